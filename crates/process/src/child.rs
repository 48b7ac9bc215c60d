//! The owner's handle on one child, and the proof of its end.

use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ether_types::Clock;
use tokio::sync::watch;

use crate::activity::Activity;
use crate::lines::Lines;
use crate::output::OutputPipe;
use crate::spec::PipeId;

/// Proof that a child has ended: its leader was reaped, its group is gone, its error output reached end of file,
/// the lock it inherited is free, and its output pipes are at end of file or dropped.
///
/// It says nothing about success; the status is there to be read.
#[derive(Clone, Debug)]
pub struct ExitEvidence {
    pid: u32,
    status: ExitStatus,
}

impl ExitEvidence {
    /// The process number that the leader had. Another process may have it by now.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// How the leader ended.
    pub fn status(&self) -> ExitStatus {
        self.status
    }
}

/// How far a child's end has come, and how many of its output pipes are still open on our side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) exited: Option<ExitStatus>,
    pub(crate) gone: bool,
    pub(crate) open_pipes: usize,
}

/// What the keeper is asked to do. Ordered: a request is only ever raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Wish {
    Run = 0,
    Terminate = 1,
    Kill = 2,
}

/// What handle, pipes and keeper of one child share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) pid: u32,
    pub(crate) lines: Mutex<Lines>,
    pub(crate) collected: Mutex<Collected>,
    progress: watch::Sender<Progress>,
    wish: AtomicU8,
    /// An eventfd that wakes the keeper.
    pub(crate) wake: OwnedFd,
}

/// What the keeper collected of a child's standard output.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) bytes: Vec<u8>,
    pub(crate) too_much: bool,
}

impl Shared {
    pub(crate) fn new(pid: u32, lines: Lines, open_pipes: usize, wake: OwnedFd) -> Self {
        let (progress, _) = watch::channel(Progress {
            exited: None,
            gone: false,
            open_pipes,
        });
        Self {
            pid,
            lines: Mutex::new(lines),
            collected: Mutex::default(),
            progress,
            wish: AtomicU8::new(Wish::Run as u8),
            wake,
        }
    }

    pub(crate) fn ask(&self, wish: Wish) {
        if self.wish.fetch_max(wish as u8, Ordering::AcqRel) < wish as u8 {
            // An eventfd refuses only a counter that would overflow, and then it is readable already.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn wish(&self) -> Wish {
        match self.wish.load(Ordering::Acquire) {
            0 => Wish::Run,
            1 => Wish::Terminate,
            _ => Wish::Kill,
        }
    }

    pub(crate) fn leader_exited(&self, status: ExitStatus) {
        self.progress.send_modify(|p| p.exited = Some(status));
    }

    pub(crate) fn gone(&self) {
        self.progress.send_modify(|p| p.gone = true);
    }

    pub(crate) fn pipe_closed(&self) {
        self.progress
            .send_modify(|p| p.open_pipes = p.open_pipes.saturating_sub(1));
    }

    pub(crate) fn take_collected(&self) -> Collected {
        std::mem::take(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn tail(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).tail()
    }
}

/// A running child. Dropping it kills its group; its keeper sees to the rest.
pub struct Child {
    pub(crate) shared: Arc<Shared>,
    stdout: Option<OutputPipe>,
    pipes: Vec<Option<OutputPipe>>,
    progress: watch::Receiver<Progress>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Child {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Child")
            .field("pid", &self.shared.pid)
            .field("progress", &*self.progress.borrow())
            .finish_non_exhaustive()
    }
}

impl Child {
    pub(crate) fn new(
        shared: Arc<Shared>,
        stdout: Option<OutputPipe>,
        pipes: Vec<Option<OutputPipe>>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let progress = shared.progress.subscribe();
        Self {
            shared,
            stdout,
            pipes,
            progress,
            clock,
        }
    }

    /// The leader's process number, which is its group's too. For logs; it is never to be signalled by number.
    pub fn id(&self) -> u32 {
        self.shared.pid
    }

    /// What the kernel has counted of the leader; nothing once it has exited, or where the kernel does not say.
    ///
    /// Reads two small files of `/proc`. At the very moment of the leader's end the numbers may be another process's.
    pub fn activity(&self) -> Option<Activity> {
        if self.progress.borrow().exited.is_some() {
            return None;
        }
        Activity::of(self.shared.pid)
    }

    /// The child's standard output, once, where [`Spec::stdout_pipe`](crate::Spec::stdout_pipe) was asked for.
    pub fn take_stdout(&mut self) -> Option<OutputPipe> {
        self.stdout.take()
    }

    /// A further output pipe of its spec, once.
    pub fn take_pipe(&mut self, id: PipeId) -> Option<OutputPipe> {
        self.pipes.get_mut(id.index)?.take()
    }

    /// The last lines of error output so far, oldest first, redacted and bounded as the spec says.
    pub fn stderr_lines(&self) -> Vec<String> {
        self.shared.tail()
    }

    /// Kills the whole group now, without waiting for anything.
    pub fn kill(&self) {
        self.shared.ask(Wish::Kill);
    }

    /// Waits until the leader has exited and says how. Its output may still be in the pipes.
    ///
    /// Cancelling has no effect on the child; asking again gives the same answer.
    pub async fn exited(&self) -> ExitStatus {
        let progress = wait_for(self.progress.clone(), |p| p.exited.is_some()).await;
        // `wait_for` answers only once the status is there.
        progress.exited.unwrap_or_default()
    }

    /// Waits until the child has ended by itself and everything of it is gone.
    ///
    /// Output pipes that were not taken are closed first. Those that were taken must be read to end of file
    /// or dropped by their holders, or this waits for them. Cancelling has no effect on the child.
    pub async fn retired(&mut self) -> ExitEvidence {
        self.stdout = None;
        self.pipes.clear();
        let progress = wait_for(self.progress.clone(), |p| p.gone && p.open_pipes == 0).await;
        ExitEvidence {
            pid: self.shared.pid,
            status: progress.exited.unwrap_or_default(),
        }
    }

    /// Ends the child: `SIGTERM` to its group, `SIGKILL` once `grace` has passed or the leader has exited, then
    /// as [`retired`](Self::retired).
    ///
    /// Cancelling leaves the child asked to end but still owned; calling again starts a new grace.
    pub async fn terminate(&mut self, grace: Duration) -> ExitEvidence {
        self.shared.ask(Wish::Terminate);
        let clock = Arc::clone(&self.clock);
        tokio::select! {
            biased;
            _ = self.exited() => {}
            () = clock.sleep(grace) => self.kill(),
        }
        self.retired().await
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a state of progress. The sender cannot be gone: whoever waits holds the `Shared` it lives in.
async fn wait_for(mut progress: watch::Receiver<Progress>, reached: impl Fn(&Progress) -> bool) -> Progress {
    loop {
        let now = *progress.borrow_and_update();
        if reached(&now) {
            return now;
        }
        if progress.changed().await.is_err() {
            // No sender means no proof, so no answer either.
            std::future::pending::<()>().await;
        }
    }
}
