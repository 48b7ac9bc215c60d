//! Runs one tool on one open file: within a time that includes waiting for a turn, within a size, and with
//! its turn kept until nothing of it is left.

use std::fs::File;
use std::io::{self, Read};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use ether_process::{SpawnError, Spawner, Spec};
use ether_types::Clock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::server::RangeServer;

/// The longest a tool may take, waiting for its turn included (S6).
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// The most it may write (S6).
pub(crate) const MAX_OUTPUT: u64 = 2 << 20;

/// How a tool ended by itself.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    /// Lines of error output, for matching known sentences only.
    pub(crate) stderr: Vec<String>,
}

/// Why a tool did not end by itself.
pub(crate) enum Unfinished {
    Spawn(SpawnError),
    TimedOut,
    TooMuchOutput,
    Loopback(io::Error),
    Unreadable(io::Error),
    Stopped,
}

/// What is needed to run tools.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) spawner: Spawner,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) turns: Arc<Semaphore>,
}

impl Runner {
    /// Runs what `spec` makes of the file's URL.
    ///
    /// Cancelling kills the tool. Its turn is passed on only once the tool is reaped and its pipes and the
    /// file's server are closed, whether or not anyone still waits for the result.
    pub(crate) async fn run(
        &self,
        file: Arc<File>,
        spec: impl FnOnce(&str) -> Spec + Send + 'static,
    ) -> Result<Finished, Unfinished> {
        let mut deadline = self.clock.sleep(DEADLINE);
        let turn = tokio::select! {
            biased;
            turn = Arc::clone(&self.turns).acquire_owned() => turn.map_err(|_| Unfinished::Stopped)?,
            () = &mut deadline => return Err(Unfinished::TimedOut),
        };
        let (wanted, cancelled) = oneshot::channel::<()>();
        let owned = Owned {
            spawner: self.spawner.clone(),
            turn,
            file,
        };
        let task = tokio::spawn(owned.run(spec, deadline, cancelled));
        let result = task.await.unwrap_or(Err(Unfinished::Stopped));
        drop(wanted);
        result
    }
}

struct Owned {
    spawner: Spawner,
    turn: OwnedSemaphorePermit,
    file: Arc<File>,
}

impl Owned {
    async fn run(
        self,
        spec: impl FnOnce(&str) -> Spec,
        deadline: ether_types::clock::Sleep,
        cancelled: oneshot::Receiver<()>,
    ) -> Result<Finished, Unfinished> {
        let server = RangeServer::start(self.file)
            .await
            .map_err(Unfinished::Loopback)?;
        let mut spec = spec(server.url());
        let url = server.url().to_owned();
        spec.redact(move |line| line.replace(&url, "input")).stdout_pipe();
        let result = attend(&self.spawner, spec, deadline, cancelled).await;
        let failure = server.close().await;
        drop(self.turn);
        match (failure, result) {
            // Whatever the tool made of it, it did not see the file.
            (Some(error), Ok(_)) => Err(Unfinished::Unreadable(error)),
            (_, result) => result,
        }
    }
}

/// Sees one child from its start to its proven end.
async fn attend(
    spawner: &Spawner,
    spec: Spec,
    deadline: ether_types::clock::Sleep,
    cancelled: oneshot::Receiver<()>,
) -> Result<Finished, Unfinished> {
    let mut child = spawner.spawn(spec).await.map_err(Unfinished::Spawn)?;
    let stdout = child.take_stdout();
    let mut reader = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = stdout {
            let _ = pipe.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
        }
        bytes
    });
    let mut bytes = Vec::new();
    let ended = async {
        bytes = (&mut reader).await.unwrap_or_default();
        // Beyond its bound nothing is read, so the tool would wait for ever.
        if bytes.len() as u64 <= MAX_OUTPUT {
            child.exited().await;
        }
    };
    let failure = tokio::select! {
        biased;
        () = ended => None,
        () = deadline => Some(Unfinished::TimedOut),
        _ = cancelled => Some(Unfinished::Stopped),
    };
    let too_much = bytes.len() as u64 > MAX_OUTPUT;
    if failure.is_some() || too_much {
        child.kill();
    }
    if !reader.is_finished() {
        let _ = reader.await;
    }
    let evidence = child.retired().await;
    match failure {
        Some(failure) => Err(failure),
        None if too_much => Err(Unfinished::TooMuchOutput),
        None => Ok(Finished {
            status: evidence.status(),
            stdout: bytes,
            stderr: child.stderr_lines(),
        }),
    }
}
