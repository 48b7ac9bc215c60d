//! The spawning thread, and the handle through which it is asked.
//!
//! One thread makes every child, because the parent-death signal follows the thread that forked. It also
//! replaces a guardian that died, and joins the keepers that are done.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use ether_types::Clock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

use crate::child::{Child, Shared, Wish};
use crate::error::{SpawnError, StartError};
use crate::keeper::Keeper;
use crate::launch::{self, Launched, NO_GUARDIAN};
use crate::lines::Lines;
use crate::output::OutputPipe;
use crate::processes::{Registry, Slot};
use crate::spec::{Spec, Stdout};

/// Stack of a keeper: it calls nothing deep, and there is one per child.
const KEEPER_STACK: usize = 128 * 1024;
/// How long the thread waits before it tries again to replace a guardian that could not be started.
const GUARDIAN_RETRY: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Starts programs. Cheap to clone.
#[derive(Clone)]
pub struct Spawner {
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<dyn Clock>,
    requests: SyncSender<Request>,
    wake: Arc<OwnedFd>,
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spawner")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

/// What the spawning thread is asked for.
pub(crate) enum Request {
    Spawn {
        spec: Box<Spec>,
        slot: Slot,
        reply: oneshot::Sender<Result<Child, SpawnError>>,
    },
    Stop,
}

impl Spawner {
    /// Starts a program.
    ///
    /// Cancelling is safe: a child that is started for nobody is killed, and joined by
    /// [`Processes::shutdown`](crate::Processes::shutdown).
    pub async fn spawn(&self, spec: Spec) -> Result<Child, SpawnError> {
        let slot = self.registry.reserve()?;
        let (reply, answer) = oneshot::channel();
        self.send(Request::Spawn {
            spec: Box::new(spec),
            slot,
            reply,
        });
        answer.await.unwrap_or(Err(SpawnError::ShuttingDown))
    }

    /// Puts a request in the queue, which has room for one per reserved slot. One that is refused is answered by
    /// being dropped.
    pub(crate) fn send(&self, request: Request) {
        if self.requests.try_send(request).is_ok() {
            let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        }
    }
}

/// The thread's own state.
pub(crate) struct SpawnThread {
    registry: Arc<Registry>,
    clock: Arc<dyn Clock>,
    requests: Receiver<Request>,
    wake: Arc<OwnedFd>,
    keepers: Vec<JoinHandle<()>>,
}

impl SpawnThread {
    pub(crate) fn start(
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
    ) -> Result<(Spawner, JoinHandle<()>), StartError> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(eventfd(0, flags).map_err(|e| StartError::Unsupported(e.into()))?);
        // Room for every child that may be reserved, and for `Stop` twice (shutdown, then drop).
        let (requests, queue) = sync_channel(registry.limit + 2);
        let spawner = Spawner {
            registry: Arc::clone(&registry),
            clock: Arc::clone(&clock),
            requests,
            wake: Arc::clone(&wake),
        };
        let thread = Self {
            registry,
            clock,
            requests: queue,
            wake,
            keepers: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("spawn".into())
            .spawn(move || thread.run())
            .map_err(StartError::Thread)?;
        Ok((spawner, thread))
    }

    fn run(mut self) {
        loop {
            match self.requests.try_recv() {
                Ok(Request::Spawn { spec, slot, reply }) => {
                    // A child that nobody waits for any more comes back, and is killed by its drop.
                    let _ = reply.send(self.spawn(*spec, slot));
                    self.join_finished();
                }
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => self.wait(),
            }
        }
        for keeper in self.keepers.drain(..) {
            join(keeper);
        }
        self.registry.dismiss_guardian();
    }

    /// Waits for a request or for the guardian's death, which it makes good.
    fn wait(&mut self) {
        let guardian = self.registry.guardian_pidfd();
        let mut fds = vec![PollFd::new(&*self.wake, PollFlags::IN)];
        if let Some(pidfd) = &guardian {
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
        let patience = (guardian.is_none() && self.registry.is_guarded()).then_some(&GUARDIAN_RETRY);
        let _ = poll(&mut fds, patience);
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.wake, &mut count);
        if let Err(e) = self.registry.guardian() {
            tracing::error!(error = %e, "no guardian can be started; no program is started without one");
        }
        self.join_finished();
    }

    fn join_finished(&mut self) {
        let (done, running) = std::mem::take(&mut self.keepers)
            .into_iter()
            .partition(JoinHandle::is_finished);
        self.keepers = running;
        let done: Vec<JoinHandle<()>> = done;
        done.into_iter().for_each(join);
    }

    fn spawn(&mut self, mut spec: Spec, slot: Slot) -> Result<Child, SpawnError> {
        // Whatever can fail without a child comes before there is one.
        let failed = |program: PathBuf, source: io::Error| SpawnError::Os { program, source };
        let lines = Lines::new(spec.keep_lines, spec.keep_width, spec.redact.take());
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| failed(spec.program.clone(), e.into()))?;
        let lock = spec.hold.as_ref().map(|lock| lock.path().to_owned());
        let (job, jobs) = sync_channel::<(Keeper, Slot)>(1);
        let registry = Arc::clone(&self.registry);
        let finished = Arc::clone(&self.wake);
        let keeper = std::thread::Builder::new()
            .name("keeper".into())
            .stack_size(KEEPER_STACK)
            .spawn(move || {
                // No job means that nothing was started.
                if let Ok((keeper, slot)) = jobs.recv() {
                    keeper.keep(|| registry.forget(slot.token));
                    drop(slot);
                    // So that this thread is joined soon.
                    let _ = rustix::io::write(&*finished, &1_u64.to_ne_bytes());
                }
            })
            .map_err(|e| failed(spec.program.clone(), e))?;
        self.keepers.push(keeper);

        let mut launched = self.launch(&spec, slot.token)?;
        let pidfd = launched.pidfd.try_clone();
        let number = u32::try_from(launched.pid.as_raw_nonzero().get()).unwrap_or_default();
        let stdout = launched.stdout.take();
        let piped = matches!(spec.stdout, Stdout::Pipe);
        let open = spec.pipes.len() + usize::from(piped);
        let shared = Arc::new(Shared::new(number, lines, open, wake));
        let mut keeper = Keeper::new(Arc::clone(&shared), launched, lock);
        let stdout = match spec.stdout {
            Stdout::Collect(limit) => {
                keeper.collect(stdout, limit);
                None
            }
            Stdout::Pipe | Stdout::Discard => stdout.map(|fd| OutputPipe::new(fd, Arc::clone(&shared))),
        };
        keeper.feed_with(spec.stdin.take().unwrap_or_default());
        match pidfd {
            Ok(pidfd) => self
                .registry
                .enter(&slot, Arc::clone(&shared), keeper.pid(), pidfd),
            // Without it a new guardian could not learn of the child; such a child is not let run.
            Err(_) => shared.ask(Wish::Kill),
        }
        // The writing ends go here, and with them the last of ours.
        let pipes = spec
            .pipes
            .into_iter()
            .map(|pipe| Some(OutputPipe::new(pipe.read, Arc::clone(&shared))))
            .collect();
        let child = Child::new(shared, stdout, pipes, Arc::clone(&self.clock));
        // The receiver is the thread made above, which does nothing before it has received.
        let _ = job.send((keeper, slot));
        Ok(child)
    }

    /// Launches under a guardian; where that one proves lost, once more under the next.
    fn launch(&mut self, spec: &Spec, token: u64) -> Result<Launched, SpawnError> {
        let mut attempts = 0;
        loop {
            let guardian = self
                .registry
                .guardian()
                .map_err(|source| SpawnError::GuardianLost { source })?;
            let error = match launch::launch(spec, token, guardian.as_ref().map(AsFd::as_fd)) {
                Ok(launched) => return Ok(launched),
                Err(error) => error,
            };
            // The child may have registered before it failed; its number is free again.
            self.registry.forget(token);
            if error.raw_os_error() != Some(NO_GUARDIAN.raw_os_error()) {
                return Err(classify(spec.program.clone(), error));
            }
            self.registry.guardian_lost();
            attempts += 1;
            if attempts == 2 {
                return Err(SpawnError::GuardianLost { source: error });
            }
        }
    }
}

fn classify(program: PathBuf, source: io::Error) -> SpawnError {
    match source.kind() {
        io::ErrorKind::NotFound => SpawnError::NotFound { program },
        io::ErrorKind::PermissionDenied => SpawnError::NotExecutable { program, source },
        _ => SpawnError::Os { program, source },
    }
}

fn join(keeper: JoinHandle<()>) {
    if keeper.join().is_err() {
        tracing::error!("a child's keeper panicked");
    }
}
