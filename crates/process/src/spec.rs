//! What a child is to be: program, arguments, environment, pipes and limits.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::lines::Redact;
use crate::lock::LockFile;

/// What media pipes are enlarged to. More than the default 64 KiB halves the switches between FFmpeg and its
/// reader; it is what an unprivileged process may ask for.
const PIPE_BYTES: usize = 1024 * 1024;

/// A program to start.
///
/// Its environment is empty but for [`env`](Self::env) and [`pass_env`](Self::pass_env), its input is
/// `/dev/null`, its output is discarded unless [`stdout_pipe`](Self::stdout_pipe) is asked for, and the tail of
/// its error output is kept. `Debug` shows neither arguments nor environment, which may hold secrets.
pub struct Spec {
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    pub(crate) env: BTreeMap<OsString, OsString>,
    pub(crate) current_dir: Option<PathBuf>,
    pub(crate) nice: Option<i32>,
    pub(crate) oom_score_adj: Option<i16>,
    pub(crate) address_space: Option<u64>,
    pub(crate) stdout: Stdout,
    pub(crate) stdin: Option<Vec<u8>>,
    pub(crate) hold: Option<LockFile>,
    pub(crate) redact: Option<Redact>,
    pub(crate) keep_lines: usize,
    pub(crate) keep_width: usize,
    pub(crate) pipes: Vec<Pipe>,
}

/// Where standard output goes.
pub(crate) enum Stdout {
    Discard,
    Pipe,
    /// Collected by the keeper, at most so many bytes; one more kills the child.
    Collect(usize),
}

/// A further output pipe, made before its child.
pub(crate) struct Pipe {
    pub(crate) read: OwnedFd,
    pub(crate) write: OwnedFd,
}

/// Names one of a [`Spec`]'s further output pipes, to its child and to [`Child::take_pipe`](crate::Child::take_pipe).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipeId {
    pub(crate) index: usize,
    number: RawFd,
}

impl PipeId {
    /// The descriptor's number in the child.
    pub fn number(self) -> RawFd {
        self.number
    }

    /// The pipe as FFmpeg's arguments name it.
    pub fn url(self) -> String {
        format!("pipe:{}", self.number)
    }
}

impl Spec {
    /// A program by its path, or by a bare name that is looked up in this process's `PATH` when it is spawned.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self {
            program: program.into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            current_dir: None,
            nice: None,
            oom_score_adj: None,
            address_space: None,
            stdout: Stdout::Discard,
            stdin: None,
            hold: None,
            redact: None,
            keep_lines: 40,
            keep_width: 400,
            pipes: Vec::new(),
        }
    }

    /// Adds one argument.
    pub fn arg(&mut self, arg: impl AsRef<OsStr>) -> &mut Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<I>(&mut self, args: I) -> &mut Self
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.args
            .extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets one variable of the child's environment.
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Self {
        self.env
            .insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Passes one variable of this process's environment on, where it is set.
    pub fn pass_env(&mut self, name: impl AsRef<OsStr>) -> &mut Self {
        if let Some(value) = std::env::var_os(name.as_ref()) {
            self.env.insert(name.as_ref().to_owned(), value);
        }
        self
    }

    /// The child's working directory; this process's where none is set.
    pub fn current_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.current_dir = Some(dir.into());
        self
    }

    /// The child's scheduling priority, -20 (most urgent, privileged) to 19.
    pub fn nice(&mut self, nice: i32) -> &mut Self {
        self.nice = Some(nice.clamp(-20, 19));
        self
    }

    /// How readily the kernel picks the child when memory runs out, -1000 to 1000 (first of all). Lowering it
    /// below this process's own is a privilege, and spawning without it fails.
    pub fn oom_score_adj(&mut self, score: i16) -> &mut Self {
        self.oom_score_adj = Some(score.clamp(-1000, 1000));
        self
    }

    /// The most address space the child may map, in bytes.
    pub fn address_space(&mut self, bytes: u64) -> &mut Self {
        self.address_space = Some(bytes);
        self
    }

    /// Hands standard output to the caller as a pipe ([`Child::take_stdout`](crate::Child::take_stdout)).
    pub fn stdout_pipe(&mut self) -> &mut Self {
        self.stdout = Stdout::Pipe;
        self
    }

    /// Adds a further output pipe. The child finds it under [`PipeId::number`].
    ///
    /// The number is the one that the pipe has in this process, so that giving it to the child can displace
    /// nothing. Fails where the process has too many open files.
    pub fn output_pipe(&mut self) -> io::Result<PipeId> {
        let pipe = media_pipe()?;
        let id = PipeId {
            index: self.pipes.len(),
            number: pipe.write.as_raw_fd(),
        };
        self.pipes.push(pipe);
        Ok(id)
    }

    /// Lets the child inherit a lock (D9). The file is removed when the child is proved gone.
    pub fn hold(&mut self, lock: LockFile) -> &mut Self {
        self.hold = Some(lock);
        self
    }

    /// Rewrites each line of error output before it is kept; for URLs with capabilities in them. It runs on the
    /// keeper's thread.
    pub fn redact(&mut self, redact: impl Fn(&str) -> String + Send + Sync + 'static) -> &mut Self {
        self.redact = Some(Arc::new(redact));
        self
    }

    /// How much of the error output is kept: the last `lines` lines of at most `bytes_per_line` bytes. 40 and
    /// 400 where nothing is said; at most 1,000 and 4,096.
    pub fn keep_stderr(&mut self, lines: usize, bytes_per_line: usize) -> &mut Self {
        self.keep_lines = lines.min(1_000);
        self.keep_width = bytes_per_line.min(4_096);
        self
    }
}

impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("program", &self.program)
            .field("args", &self.args.len())
            .field("env", &self.env.len())
            .finish_non_exhaustive()
    }
}

/// A pipe that `exec` closes unless the child is to have it.
pub(crate) fn new_pipe() -> io::Result<Pipe> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok(Pipe { read, write })
}

/// A pipe as large as the system grants.
pub(crate) fn media_pipe() -> io::Result<Pipe> {
    let pipe = new_pipe()?;
    // Refused where the user's share of pipe memory is used up; the default size works too.
    let _ = fcntl_setpipe_size(&pipe.write, PIPE_BYTES);
    Ok(pipe)
}

/// Finds a program that can be run: [`find_program`]'s, where it is a file that this user may execute.
pub fn find_runnable(name: &Path) -> Option<PathBuf> {
    find_program(name).filter(|program| runnable(program))
}

fn runnable(program: &Path) -> bool {
    program.is_file() && rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Finds a program: `name` itself where it has a slash, whatever is there, else the first executable file of that
/// name in this process's `PATH`.
pub fn find_program(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().is_empty() {
        return None;
    }
    if name.components().count() > 1 || name.is_absolute() {
        return Some(name.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|candidate| runnable(candidate))
}
