//! What the kernel says about processes, and plain tools run to their end.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{BenchError, time};

/// CPU seconds that a process and those of its children that it has reaped have used, user and system.
///
/// The kernel counts in ticks of 10 ms, so only differences well above that mean something.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, BenchError> {
    ticks(pid, 11, 4)
}

/// CPU seconds of one process alone, and those of its children that it has reaped.
pub(crate) fn own_and_children_cpu(pid: u32) -> Result<(f64, f64), BenchError> {
    Ok((ticks(pid, 11, 2)?, ticks(pid, 13, 2)?))
}

/// CPU seconds of this process's own children that have ended.
fn own_children_cpu() -> Result<f64, BenchError> {
    ticks(std::process::id(), 13, 2)
}

/// The sum of `count` of the fields of a process's `stat`, in seconds; field 0 is the state.
fn ticks(pid: u32, first: usize, count: usize) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/stat");
    let text = std::fs::read_to_string(&path).map_err(BenchError::io(path.clone()))?;
    // The command in parentheses may hold anything; the numbers start after the last one.
    let ticks: u64 = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().skip(first).take(count))
        .map(|fields| fields.filter_map(|field| field.parse::<u64>().ok()).sum())
        .ok_or_else(|| BenchError::Other(format!("{path} cannot be read")))?;
    #[allow(clippy::cast_precision_loss, reason = "centuries of ticks are exact")]
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory of one process in MiB.
pub(crate) fn resident_mib(pid: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(BenchError::io(path.clone()))?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .ok_or_else(|| BenchError::Other(format!("{path} has no VmRSS")))?;
    Ok(kib / 1024.0)
}

/// The arguments of each FFmpeg that is a child of `pid`, program first.
pub(crate) fn ffmpeg_children(pid: u32) -> Vec<Vec<OsString>> {
    use std::os::unix::ffi::OsStringExt;

    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|children| children.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|child| {
            let line = std::fs::read(format!("/proc/{child}/cmdline")).ok()?;
            let args: Vec<OsString> = line
                .strip_suffix(b"\0")?
                .split(|byte| *byte == 0)
                .map(|arg| OsString::from_vec(arg.to_vec()))
                .collect();
            let is_ffmpeg = Path::new(args.first()?).file_name()? == "ffmpeg";
            is_ffmpeg.then_some(args)
        })
        .collect()
}

/// Wall and CPU seconds of one piece of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
}

/// Runs a tool until `file` is there, ends it, and says how many seconds that took.
pub(crate) fn run_until_file<I>(program: &str, args: I, file: &std::path::Path) -> Result<f64, BenchError>
where
    I: IntoIterator,
    I::Item: AsRef<std::ffi::OsStr>,
{
    let mut ended = None;
    let mut child = None;
    let seconds = time(|| {
        #[allow(
            clippy::disallowed_methods,
            reason = "plain tools are run by an outsider, not owned by ether"
        )]
        let mut run = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BenchError::io(program))?;
        while !file.exists() && ended.is_none() {
            ended = run.try_wait().map_err(BenchError::io(program))?;
            crate::harness::pause(1);
        }
        child = Some(run);
        Ok(())
    })?;
    if let Some(mut run) = child {
        // It may have ended by itself meanwhile, and then there is nothing to kill.
        let _ = run.kill();
        run.wait().map_err(BenchError::io(program))?;
    }
    if file.exists() {
        Ok(seconds)
    } else {
        Err(BenchError::Other(format!("{program} made no {}", file.display())))
    }
}

/// Runs a tool until it has written `count` bytes to its output, ends it, and says how many seconds that took.
pub(crate) fn run_until_bytes<I>(program: &str, args: I, count: u64) -> Result<f64, BenchError>
where
    I: IntoIterator,
    I::Item: AsRef<std::ffi::OsStr>,
{
    use std::io::Read as _;

    let mut child = None;
    let seconds = time(|| {
        #[allow(
            clippy::disallowed_methods,
            reason = "plain tools are run by an outsider, not owned by ether"
        )]
        let mut run = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BenchError::io(program))?;
        let output = run.stdout.take();
        child = Some(run);
        let output = output.ok_or_else(|| BenchError::Other(format!("{program} has no output")))?;
        let read = std::io::copy(&mut output.take(count), &mut std::io::sink());
        match read.map_err(BenchError::io(program))? {
            read if read == count => Ok(()),
            read => Err(BenchError::Other(format!("{program} wrote {read} bytes"))),
        }
    });
    if let Some(mut run) = child {
        let _ = run.kill();
        run.wait().map_err(BenchError::io(program))?;
    }
    seconds
}

/// Runs a tool to its end, its output discarded, and says what it cost.
pub(crate) fn run_tool<I>(program: &str, args: I) -> Result<Cost, BenchError>
where
    I: IntoIterator,
    I::Item: AsRef<std::ffi::OsStr>,
{
    let before = own_children_cpu()?;
    let mut output = None;
    let wall = time(|| {
        #[allow(
            clippy::disallowed_methods,
            reason = "plain tools are run by an outsider, not owned by ether"
        )]
        let run = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .and_then(std::process::Child::wait_with_output)
            .map_err(BenchError::io(program))?;
        output = Some(run);
        Ok(())
    })?;
    let cpu = own_children_cpu()? - before;
    match output {
        Some(run) if run.status.success() => Ok(Cost { wall, cpu }),
        Some(run) => Err(BenchError::Tool {
            tool: program.into(),
            status: run.status,
            stderr: String::from_utf8_lossy(&run.stderr).trim().to_owned(),
        }),
        None => Err(BenchError::Other(format!("{program} was not run"))),
    }
}
