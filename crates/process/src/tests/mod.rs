//! Stories about children, told with real ones: shells, FFmpeg, and this test executable in other roles.

mod bounded;
mod guard;
mod ownership;
mod roles;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ether_types::{ManualClock, SystemClock, Timestamp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{Config, OutputPipe, Processes, Spec};

/// How long something that must happen may take before the test gives up. Never part of what is asserted.
const PATIENCE: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

fn unguarded() -> Processes {
    Processes::start(Config::unguarded(Arc::new(SystemClock::new()))).unwrap()
}

fn on_manual_clock() -> (Processes, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let processes = Processes::start(Config::unguarded(Arc::new(clock.clone()))).unwrap();
    (processes, clock)
}

fn shell(script: &str) -> Spec {
    let mut spec = Spec::new("/bin/sh");
    spec.arg("-c").arg(script).pass_env("PATH");
    spec
}

/// A process that someone else owns, watched so that its number cannot be mistaken.
struct Watched {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Watched {
    fn open(pid: u32) -> Self {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let watched = Self { pid, pidfd };
        assert!(watched.is_alive(), "{pid:?} was dead before it was watched");
        watched
    }

    fn is_alive(&self) -> bool {
        !readable_within(
            self.pidfd.as_fd(),
            &Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
        )
    }

    fn expect_death(&self) {
        assert!(
            readable_within(self.pidfd.as_fd(), &PATIENCE),
            "process {:?} lives on",
            self.pid
        );
    }
}

fn readable_within(fd: std::os::fd::BorrowedFd<'_>, patience: &Timespec) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(patience)).unwrap() > 0
}

/// Reads one number that the child printed on a line of its own.
fn read_pid(pipe: &mut BufReader<OutputPipe>) -> u32 {
    let mut line = String::new();
    pipe.read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}
