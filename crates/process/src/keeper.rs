//! The keeper: one thread per child that drains it, signals it, reaps it and says when nothing of it is left.
//!
//! ```text
//! running --(wish)--> signalled --(leader exits)--> zombie
//!   zombie: last SIGKILL to the group; guardian forgets it; leader reaped; status published
//!   then:   orphans reaped until the group answers ESRCH; error output read to its end; lock free; gone published
//! ```
//!
//! No other thread reaps a leader, so as long as this one has not done so the group's number is certain.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, test_kill_process_group, waitid,
};

use crate::child::{Shared, Wish};
use crate::launch::Launched;
use crate::lock::{LockState, lock_state};

const CHUNK: usize = 16 * 1024;

/// How often a group that was killed is asked whether it is gone. The wait grows from the first to the last.
const ASK_FIRST: Duration = Duration::from_millis(1);
const ASK_LAST: Duration = Duration::from_millis(100);
/// After so many unanswered askings (about ten seconds) the log says what is being waited for.
const ASKINGS_UNTIL_REPORT: u32 = 100;

/// What a keeper needs beyond what it shares with the handle.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    pid: Pid,
    pidfd: OwnedFd,
    stderr: Option<OwnedFd>,
    stdout: Option<OwnedFd>,
    collect: usize,
    stdin: Option<OwnedFd>,
    input: Vec<u8>,
    fed: usize,
    lock: Option<PathBuf>,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, launched: Launched, lock: Option<PathBuf>) -> Self {
        Self {
            shared,
            pid: launched.pid,
            pidfd: launched.pidfd,
            stderr: Some(launched.stderr),
            stdout: None,
            collect: 0,
            stdin: launched.stdin,
            input: Vec::new(),
            fed: 0,
            lock,
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Collects standard output, and kills the child at the first byte beyond `limit`.
    pub(crate) fn collect(&mut self, stdout: Option<OwnedFd>, limit: usize) {
        self.stdout = stdout;
        self.collect = limit;
    }

    /// What the child is to read from its standard input, where that is a pipe.
    pub(crate) fn feed_with(&mut self, input: Vec<u8>) {
        self.input = input;
    }

    /// Keeps the child to its end. `before_reaping` runs while the group's number is still certain and its
    /// members are all as good as dead.
    pub(crate) fn keep(mut self, before_reaping: impl FnOnce()) {
        for fd in [&self.stderr, &self.stdout, &self.stdin].into_iter().flatten() {
            // Cannot fail on a pipe of our own; if it did, a read would wait for output, not lose any.
            if let Ok(flags) = fcntl_getfl(fd) {
                let _ = fcntl_setfl(fd, flags | OFlags::NONBLOCK);
            }
        }
        let mut sent = Wish::Run;
        while !self.turn(&mut sent, None) {}

        // The leader is a zombie: its number, and so its group's, belongs to nobody else yet. Whoever is left in
        // the group gets a signal that cannot be caught, and a killed process cannot fork.
        let status = self.peek();
        let _ = kill_process_group(self.pid, Signal::KILL);
        before_reaping();
        let _ =
            rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED));
        self.shared.leader_exited(status);

        self.await_empty_group();
        self.await_end_of_output();
        self.await_free_lock();
        self.shared.gone();
    }

    /// Waits for one event and handles it. True once the leader has exited.
    fn turn(&mut self, sent: &mut Wish, wait: Option<&Timespec>) -> bool {
        let (mut errors, mut output, mut input, mut woken, mut exited) = (false, false, false, false, false);
        {
            let mut fds = vec![
                PollFd::new(&self.pidfd, PollFlags::IN),
                PollFd::new(&self.shared.wake, PollFlags::IN),
            ];
            for fd in [&self.stderr, &self.stdout].into_iter().flatten() {
                fds.push(PollFd::new(fd, PollFlags::IN));
            }
            if let Some(fd) = &self.stdin {
                fds.push(PollFd::new(fd, PollFlags::OUT));
            }
            if poll(&mut fds, wait).is_err() {
                // Interrupted, or short of memory for a moment: the next turn asks again.
                return false;
            }
            let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
            let mut next = |there: bool| there && ready.next().unwrap_or(false);
            exited |= next(true);
            woken |= next(true);
            errors |= next(self.stderr.is_some());
            output |= next(self.stdout.is_some());
            input |= next(self.stdin.is_some());
        }
        if errors {
            self.read_errors();
        }
        if output {
            self.read_output();
        }
        if input {
            self.feed();
        }
        if woken {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.shared.wake, &mut count);
        }
        let wish = self.shared.wish();
        if !exited && wish > *sent {
            let signal = if wish == Wish::Kill {
                Signal::KILL
            } else {
                Signal::TERM
            };
            let _ = kill_process_group(self.pid, signal);
            *sent = wish;
        }
        exited
    }

    fn read_errors(&mut self) {
        let mut buf = [0; CHUNK];
        let Some(fd) = &self.stderr else { return };
        let mut lines = self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner);
        match rustix::io::read(fd, &mut buf) {
            Ok(0) => {
                lines.end_line();
                drop(lines);
                self.stderr = None;
            }
            Ok(read) => lines.push(buf.get(..read).unwrap_or_default()),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => {
                drop(lines);
                self.stderr = None;
            }
        }
    }

    fn read_output(&mut self) {
        let mut buf = [0; CHUNK];
        let Some(fd) = &self.stdout else { return };
        match rustix::io::read(fd, &mut buf) {
            Ok(0) => self.stdout = None,
            Ok(read) => {
                let mut collected = self
                    .shared
                    .collected
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if collected.bytes.len().saturating_add(read) > self.collect {
                    collected.too_much = true;
                    drop(collected);
                    self.stdout = None;
                    self.shared.ask(Wish::Kill);
                } else {
                    collected
                        .bytes
                        .extend_from_slice(buf.get(..read).unwrap_or_default());
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.stdout = None,
        }
    }

    fn feed(&mut self) {
        let Some(fd) = &self.stdin else { return };
        let rest = self.input.get(self.fed..).unwrap_or_default();
        if rest.is_empty() {
            self.stdin = None;
            return;
        }
        match rustix::io::write(fd, rest) {
            Ok(written) => self.fed += written,
            Err(Errno::AGAIN | Errno::INTR) => return,
            // A child that does not want its input is within its rights.
            Err(_) => self.stdin = None,
        }
        if self.fed >= self.input.len() {
            self.stdin = None;
        }
    }

    /// How the leader, which has exited, ended. It stays a zombie.
    fn peek(&self) -> ExitStatus {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        match rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), options)) {
            Ok(Some(status)) => exit_status(&status),
            // Someone reaped it behind our back: it did end, and how is not known.
            Ok(None) | Err(_) => ExitStatus::from_raw(Signal::KILL.as_raw()),
        }
    }

    fn await_empty_group(&mut self) {
        let mut pause = Backoff::new(self.pid, "members of its group");
        loop {
            // Orphans of the group are ours to reap: this process is their subreaper.
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
            while let Ok(Some(_)) = waitid(WaitId::Pgid(Some(self.pid)), options) {}
            if test_kill_process_group(self.pid) == Err(Errno::SRCH) {
                return;
            }
            self.read_errors();
            self.read_output();
            pause.wait();
        }
    }

    fn await_end_of_output(&mut self) {
        let mut pause = Backoff::new(self.pid, "a stray process to close its output");
        self.stdin = None;
        while self.stderr.is_some() || self.stdout.is_some() {
            let before = (self.stderr.is_some(), self.stdout.is_some());
            self.read_errors();
            self.read_output();
            if before == (self.stderr.is_some(), self.stdout.is_some()) && !self.readable_now() {
                pause.wait();
            }
        }
    }

    fn readable_now(&self) -> bool {
        let mut fds: Vec<PollFd<'_>> = [&self.stderr, &self.stdout]
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(poll(&mut fds, Some(&now)), Ok(1..))
    }

    fn await_free_lock(&mut self) {
        let Some(path) = self.lock.take() else { return };
        let mut pause = Backoff::new(self.pid, "a stray process to release its lock");
        loop {
            match lock_state(&path) {
                Ok(LockState::Absent) => return,
                Ok(LockState::Released(proof)) => {
                    if let Err(e) = proof.remove() {
                        tracing::warn!(path = %path.display(), error = %e, "a lock file could not be removed");
                    }
                    return;
                }
                Ok(LockState::Held) => {}
                // Replaced or unreadable: it can prove nothing, and everything else has been proved.
                Err(e) => {
                    tracing::warn!(path = %path.display(), error = %e, "a lock file could not be read");
                    return;
                }
            }
            pause.wait();
        }
    }
}

fn exit_status(status: &WaitIdStatus) -> ExitStatus {
    // The encoding of wait(2): the signal in the low bits, the exit code above them.
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ExitStatus::from_raw((code & 0xff) << 8),
        (None, Some(signal)) => ExitStatus::from_raw(signal & 0x7f),
        (None, None) => ExitStatus::from_raw(Signal::KILL.as_raw()),
    }
}

/// Pauses between askings, and one line in the log when they have become many.
struct Backoff {
    pid: Pid,
    what: &'static str,
    pause: Duration,
    askings: u32,
}

impl Backoff {
    fn new(pid: Pid, what: &'static str) -> Self {
        Self {
            pid,
            what,
            pause: ASK_FIRST,
            askings: 0,
        }
    }

    fn wait(&mut self) {
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(ASK_LAST);
        self.askings = self.askings.saturating_add(1);
        if self.askings == ASKINGS_UNTIL_REPORT {
            tracing::warn!(
                pid = self.pid.as_raw_nonzero().get(),
                "a child has exited and is not gone: waiting for {}",
                self.what
            );
        }
    }
}
