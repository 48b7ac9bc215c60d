//! The guardian: a second process that ends our children when we cannot.
//!
//! One seqpacket socket joins the two. Messages go one way, from the server's side; each is a kind, a token that
//! is never reused, and a process number:
//!
//! | kind | from | files passed | meaning |
//! | --- | --- | --- | --- |
//! | `R` | a child before `exec` | its pidfd, the writing end of a pipe | guard my group; one byte into the pipe when done |
//! | `A` | the server | a pidfd | guard this group too (after a guardian was replaced) |
//! | `D` | the server | none | the group was killed: forget it |
//!
//! The guardian writes one byte into the socket once, when it is ready. The other end is open in the server and, between
//! `fork` and `exec`, in its children; so at end of file no child can be on its way to `exec` unregistered.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, waitid};

use crate::processes::GuardCommand;
use crate::sys;

/// The first argument that tells an executable to call [`guardian_main`] and do nothing else.
pub const GUARDIAN_ARG: &str = "__guardian";

/// How the guardian shows in process lists: apart from the server, so that whoever kills by name kills one.
const NAME: &std::ffi::CStr = c"process-guard";

/// How long the other side may take to answer before it counts as lost.
const PATIENCE: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

const REGISTER: u8 = b'R';
const ADD: u8 = b'A';
const FORGET: u8 = b'D';
const MESSAGE: usize = 13;

fn message(kind: u8, token: u64, pid: Pid) -> [u8; MESSAGE] {
    let mut out = [kind; MESSAGE];
    let (head, tail) = out.split_at_mut(9);
    head[1..].copy_from_slice(&token.to_le_bytes());
    tail.copy_from_slice(&pid.as_raw_nonzero().get().to_le_bytes());
    out
}

fn parse(bytes: &[u8; MESSAGE]) -> Option<(u8, u64, Pid)> {
    let (kind, rest) = bytes.split_first()?;
    let (token, rest) = rest.split_first_chunk::<8>()?;
    let pid = rest.first_chunk::<4>()?;
    let pid = Pid::from_raw(i32::from_le_bytes(*pid))?;
    Some((*kind, u64::from_le_bytes(*token), pid))
}

/// Registers the calling process, a child between `fork` and `exec`, and waits for the answer.
///
/// System calls only.
pub(crate) fn register_self(socket: RawFd, token: u64) -> Result<(), Errno> {
    let socket = sys::borrow(socket);
    let me = getpid();
    let pidfd = pidfd_open(me, PidfdFlags::empty())?;
    let (answer, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    send(
        socket,
        &message(REGISTER, token, me),
        &[pidfd.as_fd(), theirs.as_fd()],
        SendFlags::empty(),
    )?;
    drop(theirs);
    wait_readable(answer.as_fd())?;
    let mut byte = [0; 1];
    match rustix::io::retry_on_intr(|| rustix::io::read(&answer, &mut byte))? {
        0 => Err(Errno::PIPE),
        _ => Ok(()),
    }
}

fn wait_readable(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    match rustix::io::retry_on_intr(|| poll(&mut fds, Some(&PATIENCE)))? {
        0 => Err(Errno::TIMEDOUT),
        _ => Ok(()),
    }
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8; MESSAGE],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::NOBUFS);
    }
    let flags = flags | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags))?;
    Ok(())
}

/// The server's side of a running guardian.
#[derive(Debug)]
pub(crate) struct Guardian {
    pub(crate) socket: OwnedFd,
    pub(crate) pidfd: OwnedFd,
}

impl Guardian {
    /// Starts a guardian and waits until it is ready.
    pub(crate) fn start(guard: &GuardCommand) -> Result<Self, Errno> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        #[allow(clippy::disallowed_methods, reason = "the one home of spawning")]
        let mut command = Command::new(&guard.program);
        command
            .arg0("process-guard")
            .args(&guard.args)
            .env_clear()
            .envs(guard.env.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        sys::before_exec(&mut command, || {
            sys::close_everything_on_exec()?;
            // A session of its own: no terminal and no group kill reaches it.
            rustix::process::setsid()?;
            Ok(())
        });
        let child = command
            .spawn()
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        // The command holds their end of the socket, which must be theirs alone for its end to be seen.
        drop(command);
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let guardian = Self { socket: ours, pidfd };
        let mut byte = [0; 1];
        let ready = wait_readable(guardian.socket.as_fd())
            .and_then(|()| rustix::io::retry_on_intr(|| rustix::io::read(&guardian.socket, &mut byte)));
        match ready {
            Ok(1..) => Ok(guardian),
            Ok(0) => {
                guardian.end();
                Err(Errno::NOEXEC)
            }
            Err(e) => {
                guardian.end();
                Err(e)
            }
        }
    }

    /// Whether the process is still there (a zombie is not).
    pub(crate) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        matches!(rustix::io::retry_on_intr(|| poll(&mut fds, Some(&now))), Ok(0))
    }

    pub(crate) fn add(&self, token: u64, pid: Pid, pidfd: BorrowedFd<'_>) -> Result<(), Errno> {
        send(
            self.socket.as_fd(),
            &message(ADD, token, pid),
            &[pidfd],
            SendFlags::DONTWAIT,
        )
    }

    /// Never waits: a guardian that does not read is a lost one.
    pub(crate) fn forget(&self, token: u64) -> Result<(), Errno> {
        send(
            self.socket.as_fd(),
            &message(FORGET, token, Pid::INIT),
            &[],
            SendFlags::DONTWAIT,
        )
    }

    /// Kills the guardian and reaps it. Nothing that it guards is touched.
    pub(crate) fn end(self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ =
            rustix::io::retry_on_intr(|| waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED));
    }
}

/// The guardian's whole life, for an executable that was started with [`GUARDIAN_ARG`]: guards what is registered
/// over the socket that is its standard input, until that ends, then kills what is left and returns.
///
/// Call it first thing in `main`, before any thread or runtime is made, and return what it returns.
pub fn guardian_main() -> ExitCode {
    sys::ignore_polite_signals();
    // Only for people who look at process lists.
    let _ = rustix::thread::set_name(NAME);
    let socket = rustix::stdio::stdin();
    if rustix::net::send(socket, b"!", SendFlags::NOSIGNAL).is_err() {
        // Started by hand, most likely: there is nobody to guard.
        return ExitCode::FAILURE;
    }
    let mut guarded: HashMap<u64, (Pid, OwnedFd)> = HashMap::new();
    while let Some((kind, token, pid, mut files)) = receive(socket) {
        let second = files.pop();
        let first = files.pop();
        match (kind, first, second) {
            (REGISTER, Some(pidfd), Some(answer)) => {
                guarded.insert(token, (pid, pidfd));
                // A child that died meanwhile does not read it; the server forgets it by its token.
                let _ = rustix::io::write(&answer, b"!");
            }
            (ADD, None, Some(pidfd)) => {
                guarded.insert(token, (pid, pidfd));
            }
            (FORGET, None, None) => {
                guarded.remove(&token);
            }
            _ => {}
        }
    }
    for (group, leader) in guarded.values() {
        let _ = rustix::process::pidfd_send_signal(leader, Signal::KILL);
        sys::kill_group_of(leader.as_fd(), *group);
    }
    ExitCode::SUCCESS
}

/// The next message, or `None` when there will be none.
fn receive(socket: BorrowedFd<'_>) -> Option<(u8, u64, Pid, Vec<OwnedFd>)> {
    loop {
        let mut bytes = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        match got {
            Err(Errno::INTR) => continue,
            Err(_) => return None,
            Ok(got) if got.bytes == 0 => return None,
            Ok(_) => {}
        }
        let files = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(files) => Some(files),
                _ => None,
            })
            .flatten()
            .collect();
        if let Some((kind, token, pid)) = parse(&bytes) {
            return Some((kind, token, pid, files));
        }
    }
}
