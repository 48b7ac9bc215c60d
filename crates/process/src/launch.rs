//! One `fork` and `exec`: what happens in the child before it becomes the program.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getpid, getppid, pidfd_open, set_parent_process_death_signal,
    setpriority_process, setrlimit,
};
use rustix::thread::set_no_new_privs;

use crate::guardian;
use crate::spec::{Pipe, Spec, Stdout, find_program, media_pipe, new_pipe};
use crate::sys;

/// What a child reports where the guardian did not answer for it. No program's start fails with it otherwise.
pub(crate) const NO_GUARDIAN: Errno = Errno::OWNERDEAD;

/// A program that was started and is not yet kept by anyone.
pub(crate) struct Launched {
    pub(crate) pid: Pid,
    pub(crate) pidfd: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: Option<OwnedFd>,
}

/// Starts the program of `spec`. With `guardian`, the child registers itself there under `token` and becomes the
/// program only after the answer.
///
/// The ends of pipes and the lock that the child inherits stay open in `spec`: the caller drops it, and with it
/// our copies, once no further attempt is to be made.
///
/// The parent-death signal follows the calling thread, which must live as long as the child may.
pub(crate) fn launch(spec: &Spec, token: u64, guardian: Option<BorrowedFd<'_>>) -> io::Result<Launched> {
    let program = find_program(&spec.program).ok_or(io::ErrorKind::NotFound)?;
    #[allow(clippy::disallowed_methods, reason = "the one home of spawning")]
    let mut command = Command::new(program);
    command
        .args(&spec.args)
        .env_clear()
        .envs(&spec.env)
        .process_group(0);
    if let Some(dir) = &spec.current_dir {
        command.current_dir(dir);
    }

    let errors = new_pipe()?;
    let stdout = match spec.stdout {
        Stdout::Discard => None,
        Stdout::Pipe => Some(media_pipe()?),
        Stdout::Collect(_) => Some(new_pipe()?),
    };
    let stdin = match spec.stdin {
        None => None,
        Some(_) => Some(new_pipe()?),
    };
    let (stdout_ours, stdout_theirs) = split(stdout);
    command.stderr(Stdio::from(errors.write));
    command.stdout(stdout_theirs.map_or_else(Stdio::null, Stdio::from));
    let stdin_ours = match stdin {
        None => {
            command.stdin(Stdio::null());
            None
        }
        Some(pipe) => {
            command.stdin(Stdio::from(pipe.read));
            Some(pipe.write)
        }
    };

    let before = Before {
        parent: getpid(),
        inherit: spec
            .pipes
            .iter()
            .map(|pipe| pipe.write.as_raw_fd())
            .chain(spec.hold.iter().map(|lock| lock.as_fd().as_raw_fd()))
            .collect(),
        guardian: guardian.map(|fd| fd.as_raw_fd()),
        token,
        nice: spec.nice,
        oom_score_adj: spec.oom_score_adj.map(oom_text),
        address_space: spec.address_space,
    };
    sys::before_exec(&mut command, move || before.run());
    let child = command.spawn()?;
    let pid = Pid::from_child(&child);
    // Not reaped before its keeper does so, hence the number is still the child's. Where even this fails, the
    // child is killed and reaped here and now.
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(Launched {
            pid,
            pidfd,
            stderr: errors.read,
            stdin: stdin_ours,
            stdout: stdout_ours,
        }),
        Err(e) => {
            let mut child = child;
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
            let _ = child.wait();
            Err(e.into())
        }
    }
}

fn split(pipe: Option<Pipe>) -> (Option<OwnedFd>, Option<OwnedFd>) {
    match pipe {
        Some(pipe) => (Some(pipe.read), Some(pipe.write)),
        None => (None, None),
    }
}

/// What the child does between `fork` and `exec`. System calls only: see [`sys::before_exec`].
struct Before {
    parent: Pid,
    inherit: Vec<RawFd>,
    guardian: Option<RawFd>,
    token: u64,
    nice: Option<i32>,
    oom_score_adj: Option<OomText>,
    address_space: Option<u64>,
}

impl Before {
    fn run(&self) -> io::Result<()> {
        sys::close_everything_on_exec()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() != Some(self.parent) {
            // The parent died before the signal was asked for.
            return Err(Errno::CHILD.into());
        }
        if let Some(socket) = self.guardian {
            guardian::register_self(socket, self.token).map_err(|_| NO_GUARDIAN)?;
        }
        // A set-user-id program would shed the parent-death signal, and is never what is meant.
        set_no_new_privs(true)?;
        limit(Resource::Core, 0)?;
        if let Some(bytes) = self.address_space {
            limit(Resource::As, bytes)?;
        }
        if let Some(text) = &self.oom_score_adj {
            let file = rustix::fs::open(
                c"/proc/self/oom_score_adj",
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            rustix::io::write(&file, text.as_bytes())?;
        }
        if let Some(nice) = self.nice {
            setpriority_process(None, nice)?;
        }
        for &fd in &self.inherit {
            fcntl_setfd(sys::borrow(fd), FdFlags::empty())?;
        }
        Ok(())
    }
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let now = rustix::process::getrlimit(resource);
    // Never above what the process was given itself.
    let most = now.maximum.map_or(most, |given| given.min(most));
    Ok(setrlimit(
        resource,
        Rlimit {
            current: Some(most),
            maximum: Some(most),
        },
    )?)
}

/// The text of an OOM score, made before the fork since the child must not allocate.
#[derive(Clone, Copy)]
struct OomText {
    bytes: [u8; 8],
    len: usize,
}

impl OomText {
    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

fn oom_text(score: i16) -> OomText {
    let mut text = OomText {
        bytes: [0; 8],
        len: 0,
    };
    for (at, byte) in score.to_string().bytes().take(8).enumerate() {
        if let Some(slot) = text.bytes.get_mut(at) {
            *slot = byte;
            text.len = at + 1;
        }
    }
    text
}
