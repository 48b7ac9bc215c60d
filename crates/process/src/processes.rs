//! The registry of everything that was started and is not yet proved gone.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ether_types::Clock;
use rustix::process::{Pid, getpid, set_child_subreaper};
use tokio::sync::watch;

use crate::child::{Shared, Wish};
use crate::error::{SpawnError, StartError};
use crate::guardian::{GUARDIAN_ARG, Guardian};
use crate::spawner::{Request, SpawnThread, Spawner};

/// How children are owned.
#[derive(Clone)]
pub struct Config {
    /// The clock on which grace periods and deadlines run.
    pub clock: Arc<dyn Clock>,
    /// What ends the children when this process is killed.
    pub guard: Guard,
    /// How many children may live at once, at least 1. 256 where nothing is said.
    pub max_children: usize,
}

impl Config {
    /// With the guardian of this executable, whose `main` calls [`guardian_main`](crate::guardian_main) for
    /// [`GUARDIAN_ARG`].
    pub fn guarded(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            guard: Guard::ThisBinary,
            max_children: 256,
        }
    }

    /// Without a guardian: for tests and tools, whose children then have the parent-death signal alone.
    pub fn unguarded(clock: Arc<dyn Clock>) -> Self {
        Self {
            guard: Guard::None,
            ..Self::guarded(clock)
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("guard", &self.guard)
            .field("max_children", &self.max_children)
            .finish_non_exhaustive()
    }
}

/// What ends the children when this process is killed, beside the parent-death signal.
#[derive(Clone, Debug)]
pub enum Guard {
    /// This executable, with [`GUARDIAN_ARG`] as its only argument.
    ThisBinary,
    /// Another way to reach [`guardian_main`](crate::guardian_main).
    Command(GuardCommand),
    /// Nothing.
    None,
}

/// A program that calls [`guardian_main`](crate::guardian_main).
#[derive(Clone, Debug)]
pub struct GuardCommand {
    /// The program's path.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
}

impl GuardCommand {
    /// The running executable itself, even where its file was replaced or removed since.
    fn this_binary() -> Self {
        Self {
            program: "/proc/self/exe".into(),
            args: vec![GUARDIAN_ARG.into()],
            env: Vec::new(),
        }
    }
}

/// Owner of every child of this process. One per process.
///
/// Dropping it without [`shutdown`](Self::shutdown) kills every child and waits for none.
#[derive(Debug)]
pub struct Processes {
    spawner: Spawner,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Proof that every child was retired by its keeper and every thread of ours was joined. Made by
/// [`Processes::shutdown`] alone.
#[derive(Clone, Copy, Debug)]
pub struct AllGone(());

impl Processes {
    /// Makes this process the reaper of its orphans, starts the guardian, and starts the spawning thread.
    ///
    /// Blocks for the few milliseconds that the guardian takes to answer. Needs Linux 5.11 or later.
    pub fn start(config: Config) -> Result<Self, StartError> {
        set_child_subreaper(Some(getpid())).map_err(|e| StartError::Unsupported(e.into()))?;
        let command = match config.guard {
            Guard::ThisBinary => Some(GuardCommand::this_binary()),
            Guard::Command(command) => Some(command),
            Guard::None => None,
        };
        let guard = match command {
            None => None,
            Some(command) => {
                let running = Guardian::start(&command).map_err(|e| StartError::Guardian(e.into()))?;
                Some(Guarded {
                    command,
                    running: Some(running),
                })
            }
        };
        let registry = Arc::new(Registry {
            inner: Mutex::new(Inner {
                closing: false,
                next_token: 1,
                reserved: 0,
                live: HashMap::new(),
                guard,
            }),
            limit: config.max_children.max(1),
            unfinished: watch::Sender::new(0),
        });
        let (spawner, thread) = SpawnThread::start(registry, config.clock)?;
        Ok(Self {
            spawner,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A handle for those who start programs.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// How many children are not yet gone.
    pub fn alive(&self) -> usize {
        *self.spawner.registry.unfinished.borrow()
    }

    /// Refuses new children, kills those that live, and waits until every one is gone, whoever holds its
    /// handle. May be called again.
    ///
    /// Cancelling leaves everything killed and refused; calling again goes on waiting. A process that the
    /// kernel cannot kill (stuck in its own IO) keeps this waiting, as it should: the caller decides when to stop
    /// believing in it.
    pub async fn shutdown(&self) -> AllGone {
        let registry = &self.spawner.registry;
        registry.close();
        let mut unfinished = registry.unfinished.subscribe();
        // The sender lives in the registry, which is held here.
        let _ = unfinished.wait_for(|count| *count == 0).await;
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.spawner.send(Request::Stop);
            // Returns at once: nothing is queued behind a closed registry. It joins the keepers, which have
            // said their last word, and ends the guardian.
            if thread.join().is_err() {
                tracing::error!("the spawning thread panicked");
            }
        }
        AllGone(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.spawner.registry.close();
        self.spawner.send(Request::Stop);
    }
}

/// What spawning thread, keepers and handles share.
pub(crate) struct Registry {
    inner: Mutex<Inner>,
    pub(crate) limit: usize,
    /// Children reserved or alive.
    unfinished: watch::Sender<usize>,
}

struct Inner {
    closing: bool,
    next_token: u64,
    reserved: usize,
    live: HashMap<u64, Live>,
    guard: Option<Guarded>,
}

struct Guarded {
    command: GuardCommand,
    /// `None` between the loss of one guardian and the start of the next.
    running: Option<Guardian>,
}

/// A child as the registry knows it.
struct Live {
    shared: Arc<Shared>,
    pid: Pid,
    pidfd: OwnedFd,
}

/// The right to one child: counted from before its `fork` until its keeper is done.
pub(crate) struct Slot {
    registry: Arc<Registry>,
    pub(crate) token: u64,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("unfinished", &*self.unfinished.borrow())
            .finish_non_exhaustive()
    }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reserve(self: &Arc<Self>) -> Result<Slot, SpawnError> {
        let mut inner = self.lock();
        if inner.closing {
            return Err(SpawnError::ShuttingDown);
        }
        if inner.reserved >= self.limit {
            return Err(SpawnError::TooMany { limit: self.limit });
        }
        inner.reserved += 1;
        let token = inner.next_token;
        inner.next_token += 1;
        self.unfinished.send_replace(inner.reserved);
        Ok(Slot {
            registry: Arc::clone(self),
            token,
        })
    }

    /// Enters a child that was started. One that comes after the close is killed at once.
    pub(crate) fn enter(&self, slot: &Slot, shared: Arc<Shared>, pid: Pid, pidfd: OwnedFd) {
        let mut inner = self.lock();
        if inner.closing {
            shared.ask(Wish::Kill);
        }
        inner.live.insert(slot.token, Live { shared, pid, pidfd });
    }

    /// Takes a child whose group was killed off the guardian's list, and off ours.
    pub(crate) fn forget(&self, token: u64) {
        let mut inner = self.lock();
        inner.live.remove(&token);
        if let Some(guarded) = &mut inner.guard {
            let forgotten = guarded.running.as_ref().map(|running| running.forget(token));
            if let Some(Err(_)) = forgotten
                && let Some(lost) = guarded.running.take()
            {
                // It must not go on guarding a number that is about to become free.
                lost.end();
            }
        }
    }

    fn close(&self) {
        let mut inner = self.lock();
        inner.closing = true;
        for live in inner.live.values() {
            live.shared.ask(Wish::Kill);
        }
    }

    /// Makes sure that a guardian runs and knows every child; says whether there is to be one at all, with a
    /// duplicate of its socket for the next child.
    pub(crate) fn guardian(&self) -> io::Result<Option<OwnedFd>> {
        let mut inner = self.lock();
        let Inner { guard, live, .. } = &mut *inner;
        let Some(guarded) = guard else {
            return Ok(None);
        };
        if let Some(running) = guarded.running.take_if(|running| !running.is_alive()) {
            tracing::warn!("the guardian died; starting another");
            running.end();
        }
        let running = match guarded.running.take() {
            Some(running) => running,
            None => {
                let new = Guardian::start(&guarded.command)?;
                for (token, live) in live.iter() {
                    if let Err(e) = new.add(*token, live.pid, live.pidfd.as_fd()) {
                        new.end();
                        return Err(e.into());
                    }
                }
                new
            }
        };
        let socket = running.socket.try_clone();
        guarded.running = Some(running);
        socket.map(Some)
    }

    /// Counts the guardian that did not answer a child as lost.
    pub(crate) fn guardian_lost(&self) {
        let mut inner = self.lock();
        if let Some(running) = inner.guard.as_mut().and_then(|guarded| guarded.running.take()) {
            running.end();
        }
    }

    /// A duplicate of the guardian's pidfd, to notice its death by.
    pub(crate) fn guardian_pidfd(&self) -> Option<OwnedFd> {
        let inner = self.lock();
        let running = inner.guard.as_ref()?.running.as_ref()?;
        running.pidfd.try_clone().ok()
    }

    /// The guardian's process number.
    #[cfg(test)]
    pub(crate) fn guardian_pid(&self) -> Option<i32> {
        let inner = self.lock();
        let running = inner.guard.as_ref()?.running.as_ref()?;
        let info = std::fs::read_to_string(format!(
            "/proc/self/fdinfo/{}",
            std::os::fd::AsRawFd::as_raw_fd(&running.pidfd)
        ));
        info.ok()?
            .lines()
            .find_map(|line| line.strip_prefix("Pid:"))?
            .trim()
            .parse()
            .ok()
    }

    /// Whether there is to be a guardian.
    pub(crate) fn is_guarded(&self) -> bool {
        self.lock().guard.is_some()
    }

    /// Ends the guardian for good.
    pub(crate) fn dismiss_guardian(&self) {
        let guarded = self.lock().guard.take();
        if let Some(running) = guarded.and_then(|guarded| guarded.running) {
            running.end();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut inner = self.registry.lock();
        inner.reserved = inner.reserved.saturating_sub(1);
        self.registry.unfinished.send_replace(inner.reserved);
    }
}
