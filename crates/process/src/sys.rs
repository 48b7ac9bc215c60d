//! Every `unsafe` of ether: five system interfaces that have no safe wrapper.

#![allow(
    unsafe_code,
    reason = "the one home of unsafe code; each use states why it is sound"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};

/// Runs `hook` in the child between `fork` and `exec`.
///
/// The hook must restrict itself to system calls: no allocation, no locks, no panics, since another thread
/// may have held any lock of the process when it was forked.
pub(crate) fn before_exec<F>(command: &mut Command, hook: F)
where
    F: FnMut() -> io::Result<()> + Send + Sync + 'static,
{
    // SAFETY: the only callers are `launch` and `guardian`, whose hooks call rustix and the functions of this
    // module, all of which are bare system calls on values captured before the fork.
    unsafe {
        command.pre_exec(hook);
    }
}

/// Marks every open file above standard error to be closed by `exec`, whoever opened it and however.
pub(crate) fn close_everything_on_exec() -> io::Result<()> {
    // SAFETY: close_range with CLOEXEC only sets a flag on this process's own descriptors; it closes none,
    // so no owned descriptor is invalidated.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3 as libc::c_uint,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Sends `SIGKILL` to the group led by the process behind `leader`, whose number is `group`.
///
/// Where the kernel can (6.9 and later) the group is named by the pidfd, which a reused number cannot fool.
/// Elsewhere it is named by number.
pub(crate) fn kill_group_of(leader: BorrowedFd<'_>, group: Pid) {
    // From linux/pidfd.h; not in every libc.
    const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;
    // SAFETY: the call reads a descriptor that is borrowed for its whole duration, and a null siginfo is
    // documented to mean "as kill(2) would send it".
    let sent = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            leader.as_raw_fd(),
            libc::SIGKILL,
            std::ptr::null::<libc::siginfo_t>(),
            PIDFD_SIGNAL_PROCESS_GROUP,
        )
    };
    if sent != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL) {
        // An empty group is the aim, not a failure.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
}

/// Makes this process deaf to the signals with which terminals and service managers end a whole group.
pub(crate) fn ignore_polite_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM, libc::SIGPIPE] {
        // SAFETY: SIG_IGN installs no handler, so no code of ours ever runs in a signal's context.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

/// Borrows a descriptor of the parent in a child between `fork` and `exec`, where it is open under the same number.
pub(crate) fn borrow<'fd>(fd: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: callers pass the number of a descriptor that the parent keeps open across the fork; the child
    // closes none before `exec`, which ends every borrow.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
