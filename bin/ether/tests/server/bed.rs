//! A server to test: `ether serve` as a child process with folders of its own, on a port that the system chose.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use crate::processes::{self, Process, SOON};
use crate::wire::{Answer, ask};

/// How long a server may take from its start to its first line, FFmpeg's answers about itself included.
const START: Duration = Duration::from_secs(60);

/// The clip of that name, made by `make setup`.
pub(crate) fn clip(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/clips")
        .join(name);
    path.canonicalize()
        .unwrap_or_else(|_| panic!("{} is missing: run `make setup`", path.display()))
}

/// A program that is not owned by anything but the test, which ends it when it ends.
#[allow(
    clippy::disallowed_methods,
    reason = "these tests stand outside the server, where a shell would"
)]
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.stdin(Stdio::null()).kill_on_drop(true);
    command
}

/// Runs a program to its end; what it printed, where it succeeded.
pub(crate) async fn run(command: &mut Command) -> std::process::Output {
    let output = timeout(Duration::from_secs(120), command.output())
        .await
        .expect("it ends in time")
        .unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// How a server is started; it may be started again with the same data.
pub(crate) struct Setup {
    root: TempDir,
    wrapper: Vec<OsString>,
    args: Vec<OsString>,
    envs: Vec<(OsString, OsString)>,
    folders: Vec<PathBuf>,
}

impl Setup {
    /// A server of one empty folder.
    pub(crate) fn new() -> Self {
        // Beside the clips, so that linking them costs nothing.
        let root = TempDir::with_prefix_in("server-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let films = root.path().join("films");
        std::fs::create_dir(&films).unwrap();
        Self {
            folders: vec![films],
            root,
            wrapper: Vec::new(),
            args: Vec::new(),
            envs: Vec::new(),
        }
    }

    /// A server of these clips.
    pub(crate) fn of(clips: &[&str]) -> Self {
        let setup = Self::new();
        for name in clips {
            setup.put(&clip(name), name);
        }
        setup
    }

    /// Puts a file into the folder under `name`, without copying where that is possible.
    pub(crate) fn put(&self, file: &Path, name: impl AsRef<Path>) {
        let place = self.films().join(name);
        if std::fs::hard_link(file, &place).is_err() {
            std::fs::copy(file, &place).unwrap();
        }
    }

    /// Puts a file of its own, which may be changed without changing another test's, into the folder.
    pub(crate) fn write(&self, name: impl AsRef<Path>, content: &[u8]) {
        std::fs::write(self.films().join(name), content).unwrap();
    }

    pub(crate) fn films(&self) -> PathBuf {
        self.root.path().join("films")
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.root.path().join("data")
    }

    /// A place for whatever else the test needs.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Serves these folders instead of the test's own.
    pub(crate) fn folders(mut self, folders: &[&Path]) -> Self {
        self.folders = folders.iter().map(|folder| folder.to_path_buf()).collect();
        self
    }

    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.envs.push((name.into(), value.into()));
        self
    }

    /// Keeps no segments for the next viewer, so that each play is made anew.
    pub(crate) fn forgetful(self) -> Self {
        self.arg("--segment-cache").arg("0")
    }

    /// Starts the server by these words, which end with `exec "$@"` or the like.
    pub(crate) fn through(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.wrapper = words.into_iter().map(Into::into).collect();
        self
    }

    /// A program in the folder of the test, as a shell script.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    fn command(&self) -> Command {
        let ether = OsString::from(env!("CARGO_BIN_EXE_ether"));
        let words: Vec<_> = self.wrapper.iter().chain([&ether]).collect();
        let mut command = program(words[0]);
        command
            .args(&words[1..])
            .arg("serve")
            .current_dir(self.root.path());
        for folder in &self.folders {
            command.arg("--media").arg(folder);
        }
        command.arg("--data-dir").arg(self.data());
        if !self.args.iter().any(|arg| arg == "--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        // What is kept for later viewers would hide what these stories count.
        if !self.args.iter().any(|arg| arg == "--segment-cache") {
            command.args(["--segment-cache", "0"]);
        }
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ETHER_") {
                command.env_remove(name);
            }
        }
        command
            .args(&self.args)
            .envs(self.envs.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it and waits until it says that it is ready.
    pub(crate) async fn start(&self) -> Server {
        let log = self.path("log");
        let errors = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        let line = timeout(START, stdout.read_line(&mut ready)).await;
        let told = || std::fs::read_to_string(&log).unwrap_or_default();
        line.unwrap_or_else(|_| panic!("not ready in {START:?}: {}", told()))
            .unwrap();
        let address = ready
            .strip_prefix("ether is ready: http://")
            .and_then(|rest| rest.split('/').next());
        let address = address.and_then(|address| address.parse().ok());
        let address = address.unwrap_or_else(|| panic!("{ready:?}: {}", told()));
        Server {
            address,
            token: std::fs::read_to_string(self.data().join("owner-token")).unwrap(),
            ready,
            child,
            stdout,
            films: self.films(),
            scratch: self.data().join("scratch"),
            log,
        }
    }

    /// Starts it where it must not start: its exit status, and what it printed for a person.
    pub(crate) async fn refused(&self) -> (i32, String) {
        let mut child = self
            .command()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        timeout(START, stdout.read_line(&mut line))
            .await
            .expect("it says why in time")
            .unwrap();
        assert_eq!(line, "", "whoever is refused is not ready");
        let output = timeout(SOON, child.wait_with_output())
            .await
            .expect("it ends")
            .unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }
}

/// A running server; it is killed when the test forgets it, and its guardian ends what it started.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
    /// The line that says where it is.
    pub(crate) ready: String,
    child: Child,
    stdout: BufReader<tokio::process::ChildStdout>,
    films: PathBuf,
    scratch: PathBuf,
    log: PathBuf,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it was not reaped")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it is gone, and gives what it printed after its first line.
    pub(crate) async fn exit(&mut self) -> (ExitStatus, String) {
        let status = timeout(SOON, self.child.wait())
            .await
            .expect("it ends in time")
            .unwrap();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).await.unwrap();
        (status, rest)
    }

    /// Kills it as the kernel would for want of memory.
    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.exit().await;
    }

    /// Ends it as a person would, which must succeed.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let (status, _) = self.exit().await;
        assert_eq!(status.code(), Some(0), "{}", self.log());
    }

    /// What it logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A request with the owner's token.
    pub(crate) async fn api(&self, method: Method, target: &str, body: Option<&Value>) -> Answer {
        let token = format!("Bearer {}", self.token);
        ask(self.address, method, target, &[("authorization", &token)], body).await
    }

    /// A request with nothing to show for itself but what its address holds.
    pub(crate) async fn get(&self, target: &str) -> Answer {
        ask(self.address, Method::GET, target, &[], None).await
    }

    /// The library once it holds what `enough` wants.
    pub(crate) async fn library(&self, enough: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let look = async {
            loop {
                last = self
                    .api(Method::GET, "/ether/api/library", None)
                    .await
                    .expect(200)
                    .json();
                if last["scanning"] == false && enough(&last) {
                    return;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        let found = timeout(SOON, look).await;
        assert!(found.is_ok(), "the library never held enough: {last:#}");
        last
    }

    /// The film of that file name, once it is known.
    pub(crate) async fn film(&self, file: &str) -> Value {
        let find = |library: &Value| {
            let items = library["items"].as_array().unwrap();
            items.iter().find(|item| item["file"] == file).cloned()
        };
        let library = self.library(|library| find(library).is_some()).await;
        find(&library).unwrap()
    }

    /// Waits until nothing is left to be found out about a film: of some, keyframes are looked for behind.
    pub(crate) async fn knows(&self, file: &str) {
        let target = format!(
            "/ether/api/items/{}",
            self.film(file).await["id"].as_str().unwrap()
        );
        let mut gaps = Value::Null;
        let look = async {
            while gaps != serde_json::json!([]) {
                sleep(Duration::from_millis(20)).await;
                gaps = self.api(Method::GET, &target, None).await.expect(200).json()["gaps"].take();
            }
        };
        let known = timeout(SOON, look).await;
        assert!(known.is_ok(), "{file}: {gaps:#} are not known");
    }

    /// Encoders that read its films.
    pub(crate) fn encoders(&self) -> Vec<Process> {
        let mine = processes::descendants(self.pid());
        mine.into_iter()
            .filter(|process| process.runs("ffmpeg") && process.reads(&self.films))
            .collect()
    }

    /// Bytes of scratch that it holds.
    pub(crate) fn scratch_bytes(&self) -> u64 {
        processes::nameless_bytes(self.pid(), &self.scratch)
    }

    /// Waits until no encoder, no scratch and no charge is left.
    pub(crate) async fn rests(&self) {
        processes::until("no encoder and no scratch", || {
            self.encoders().is_empty() && self.scratch_bytes() == 0
        })
        .await;
        let capacity = || async {
            let sessions = self
                .api(Method::GET, "/ether/api/sessions", None)
                .await
                .expect(200)
                .json();
            sessions["capacity"]["used"].clone()
        };
        let look = async {
            while capacity().await
                != serde_json::json!({"milliSlots": 0, "deviceMilliSlots": 0, "scratchMib": 0})
            {
                sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(
            timeout(SOON, look).await.is_ok(),
            "still charged: {}",
            capacity().await
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log ---\n{}", self.log());
        }
    }
}
