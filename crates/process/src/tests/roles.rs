//! This test executable run again as a server or as its guardian, so that either can be killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as StdChild, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use ether_types::SystemClock;
use rustix::process::Pid;

use crate::processes::GuardCommand;
use crate::{Config, Guard, LockFile, Processes, Spec, guardian_main};

const ROLE: &str = "ETHER_PROCESS_TEST_ROLE";
const LOCK: &str = "ETHER_PROCESS_TEST_LOCK";
const ENTRY: [&str; 4] = [
    "--exact",
    "tests::roles::entry",
    "--nocapture",
    "--test-threads=1",
];

/// Where the other roles begin. As a test of its own it has nothing to do.
#[test]
fn entry() {
    match std::env::var(ROLE).as_deref() {
        Ok("guardian") => {
            let _ = guardian_main();
            std::process::exit(0);
        }
        Ok("server") => serve(Guard::Command(guard_command())),
        Ok("server without guardian") => serve(Guard::None),
        _ => {}
    }
}

pub(super) fn guard_command() -> GuardCommand {
    GuardCommand {
        program: "/proc/self/exe".into(),
        args: ENTRY.iter().map(Into::into).collect(),
        env: vec![(ROLE.into(), "guardian".into())],
    }
}

/// Starts one FFmpeg per line of standard input, and prints what can be watched of it.
fn serve(guard: Guard) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let config = Config {
        guard,
        ..Config::unguarded(Arc::new(SystemClock::new()))
    };
    let processes = Processes::start(config).unwrap();
    let mut kept = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let mut spec = match line.unwrap().as_str() {
            "leader" => endless_ffmpeg(),
            "grandchild" => {
                // FFmpeg below a shell: no parent-death signal reaches it.
                let mut spec = super::shell("\"$@\" & echo $!; wait");
                spec.arg("sh").arg("/usr/bin/ffmpeg").args(ffmpeg_args());
                spec.stdout_pipe();
                spec
            }
            "leftovers" => {
                println!("answer {}", leftovers(&runtime, &processes));
                continue;
            }
            other => panic!("unknown request {other}"),
        };
        if let Ok(path) = std::env::var(LOCK) {
            spec.hold(LockFile::create(path).unwrap());
        }
        let mut child = runtime.block_on(processes.spawner().spawn(spec)).unwrap();
        match child.take_stdout() {
            None => println!("answer {}", child.id()),
            Some(stdout) => {
                let mut stdout = BufReader::new(stdout);
                println!("answer {}", super::read_pid(&mut stdout));
                std::mem::forget(stdout);
            }
        }
        kept.push(child);
    }
}

/// Starts and ends children in every way there is, and counts what that leaves: open files, threads and children.
fn leftovers(runtime: &tokio::runtime::Runtime, processes: &Processes) -> usize {
    let spawner = processes.spawner();
    let round = || {
        runtime.block_on(async {
            for _ in 0..20 {
                drop(spawner.spawn(super::shell("sleep 1000")).await.unwrap());
                spawner.spawn(Spec::new("/nonexistent")).await.unwrap_err();
                let mut spec = super::shell("sleep 1000 & echo; wait");
                spec.stdout_pipe().output_pipe().unwrap();
                let mut child = spawner.spawn(spec).await.unwrap();
                let stdout = child.take_stdout();
                child.kill();
                drop(stdout);
                child.retired().await;
                let bounds = crate::Bounds {
                    stdin: Some(vec![0; 1_000]),
                    max_output: 10,
                    deadline: std::time::Duration::from_secs(60),
                };
                spawner
                    .run_bounded(super::shell("exit 1"), bounds)
                    .await
                    .unwrap_err();
            }
            while processes.alive() > 0 {
                tokio::task::yield_now().await;
            }
            // The last keepers say that they are done just before their threads end, and are joined after.
            spawner.spawn(super::shell("true")).await.unwrap().retired().await;
            while processes.alive() > 0 || count_keepers() > 0 {
                tokio::task::yield_now().await;
            }
        });
    };
    round();
    let all = || count("/proc/self/fd") + count("/proc/self/task") + children();
    let before = all();
    round();
    // What a thread had goes a moment after the thread; what was lost stays however long it is waited for.
    for _ in 0..2_000 {
        if all() <= before {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    all().saturating_sub(before)
}

fn count(dir: &str) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

fn count_keepers() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter(|task| {
            std::fs::read_to_string(task.as_ref().unwrap().path().join("comm"))
                .is_ok_and(|name| name.trim() == "keeper")
        })
        .count()
}

fn children() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default())
        .map(|line| line.split_whitespace().count())
        .sum()
}

fn endless_ffmpeg() -> Spec {
    let mut spec = Spec::new("/usr/bin/ffmpeg");
    spec.args(ffmpeg_args());
    spec
}

fn ffmpeg_args() -> Vec<&'static str> {
    let source = ["-re", "-f", "lavfi", "-i", "testsrc2=s=64x64:r=5"];
    let mut args = vec!["-nostdin", "-loglevel", "error"];
    args.extend(source);
    args.extend(["-f", "null", "-"]);
    args
}

/// A server in a process of its own, for the test to kill.
pub(super) struct Server {
    process: StdChild,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Server {
    pub(super) fn start(role: &str, lock: Option<&std::path::Path>) -> Self {
        #[allow(
            clippy::disallowed_methods,
            reason = "the test itself is the outsider that kills"
        )]
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(ENTRY)
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(lock) = lock {
            command.env(LOCK, lock);
        }
        let mut process = command.spawn().unwrap();
        let requests = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            requests,
            answers,
        }
    }

    /// Asks for an FFmpeg, as `leader` of its group or `grandchild`, and returns its process number; or for
    /// `leftovers`, and returns how many.
    pub(super) fn ask(&mut self, what: &str) -> u32 {
        writeln!(self.requests, "{what}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.answers.read_line(&mut line).unwrap(), 0, "the server died");
            // The harness prints its own lines, and may leave one unfinished.
            if let Some((_, number)) = line.rsplit_once("answer ") {
                return number.trim().parse().unwrap();
            }
        }
    }

    /// The process number of its guardian.
    pub(super) fn guardian(&self) -> u32 {
        let server = self.process.id();
        let children = std::fs::read_dir(format!("/proc/{server}/task"))
            .unwrap()
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).unwrap_or_default())
            .collect::<String>();
        children
            .split_whitespace()
            .find(|pid| {
                std::fs::read_to_string(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with("process-guard"))
            })
            .expect("the server has a guardian")
            .parse()
            .unwrap()
    }

    /// What `kill -9` does.
    pub(super) fn kill(mut self) {
        let pid = Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        self.process.wait().unwrap();
    }
}
