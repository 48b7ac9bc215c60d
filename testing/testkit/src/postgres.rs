//! Real PostgreSQL servers for tests, one data directory each, run as an unprivileged user.
//!
//! A server is started from a copy of a template that `initdb` made once for its major version, listens on
//! nothing but a Unix socket in its own directory unless a test asks for TCP, and dies with the test: it is stopped when the value is
//! dropped, and by a parent-death signal when the test process is killed instead.
//!
//! Where the binaries of a major version are not installed, [`Server::start`] says so on the terminal and returns
//! `None`, and under `CI=true` it fails its test: a suite that skips what it is for must not look like one that
//! passed. `scripts/postgres.sh` installs 14, 16 and 17, and 15 is Debian's.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that cannot be set up fails its test, here and now"
)]

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The major versions that ether supports and tests.
pub const MAJORS: [u32; 4] = [14, 15, 16, 17];

/// How a server is to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// `fsync` off: for everything that tests behaviour. It survives a killed server, not a killed machine.
    Fast,
    /// PostgreSQL's own defaults: for measurements.
    Default,
}

/// A running server. Dropping it stops it and removes its data.
pub struct Server {
    major: u32,
    bin: PathBuf,
    durability: Durability,
    user: Option<(u32, u32)>,
    directory: tempfile::TempDir,
    /// The port, which is also part of the Unix socket's name.
    port: u16,
    /// Whether it listens on loopback besides.
    tcp: bool,
    process: Option<Process>,
}

/// The server process, owned by a thread of its own: the parent-death signal follows the thread that
/// spawned, not the process.
struct Process {
    pid: u32,
    stop: SyncSender<Signal>,
    thread: std::thread::JoinHandle<()>,
}

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    /// SIGINT: sessions are ended, a checkpoint is written.
    Fast,
    /// SIGQUIT: every process leaves at once, and the next start recovers from the log.
    Immediate,
}

impl Server {
    /// Starts a server of `major`, or says why that is not possible here and returns `None`.
    ///
    /// # Panics
    /// Where the binaries are there and the server does not come up, and where they are not there under `CI=true`.
    pub fn start(major: u32, durability: Durability) -> Option<Self> {
        let Some(bin) = binaries(major) else {
            missing(
                major,
                std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1"),
            );
            return None;
        };
        let user = unprivileged();
        let directory = tempfile::Builder::new().prefix("ether-pg").tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let template = template(major, &bin, user).unwrap();
        let mut server = Self {
            major,
            bin,
            durability,
            user,
            directory,
            port: 5432,
            tcp: false,
            process: None,
        };
        copy(&template, &server.data()).unwrap();
        if let Some((uid, gid)) = user {
            chown(server.directory.path(), Some(uid), Some(gid)).unwrap();
        }
        server.configure();
        server.run();
        Some(server)
    }

    /// The server's major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The process id of the postmaster.
    ///
    /// # Panics
    /// While the server is stopped.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().pid
    }

    /// The server's data directory.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The Unix socket that the server listens on.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join(format!(".s.PGSQL.{}", self.port))
    }

    /// Starts the server again so that it listens on a port of 127.0.0.1 as well, and returns that port.
    ///
    /// # Panics
    /// As [`Server::run`].
    pub fn listen(&mut self) -> u16 {
        self.stop();
        // Free a moment ago; should somebody else take it meanwhile, the start says so.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        self.port = free.local_addr().unwrap().port();
        drop(free);
        self.tcp = true;
        self.configure();
        self.run();
        self.port
    }

    /// A URL for `database`.
    pub fn url(&self, database: &str) -> String {
        let directory = self.directory.path().display();
        format!(
            "postgres://postgres@localhost:{}/{database}?host={directory}",
            self.port
        )
    }

    /// A URL whose search path is `schema`, which is created.
    ///
    /// # Panics
    /// Where the schema cannot be created.
    pub fn schema(&self, schema: &str) -> String {
        self.sql(&format!("CREATE SCHEMA \"{schema}\""));
        format!("{}&options[search_path]={schema}", self.url("postgres"))
    }

    /// A URL for a schema with a name of its own.
    ///
    /// # Panics
    /// As [`Server::schema`].
    pub fn fresh_schema(&self) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.schema(&format!("t{}_{number}", std::process::id()))
    }

    /// Runs SQL through `psql` as the superuser and returns its unaligned output.
    ///
    /// # Panics
    /// Where a statement fails.
    pub fn sql(&self, text: &str) -> String {
        let output = self.try_sql(text);
        assert!(
            output.status.success(),
            "psql: {}\n{text}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// As [`Server::sql`], with the outcome left to the caller.
    ///
    /// # Panics
    /// Where `psql` cannot be run at all.
    pub fn try_sql(&self, text: &str) -> Output {
        let mut child = command("psql")
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                "postgres",
                "-d",
                "postgres",
            ])
            .arg("-h")
            .arg(self.directory.path())
            .args(["-p", &self.port.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Makes the server's user the owner of `path`.
    ///
    /// # Panics
    /// Where that is not possible.
    pub fn give(&self, path: &Path) {
        if let Some((uid, gid)) = self.user {
            chown(path, Some(uid), Some(gid)).unwrap();
        }
    }

    /// Kills the server without a checkpoint, as a crash does. [`Server::run`] brings it back.
    pub fn crash(&mut self) {
        self.end(Signal::Immediate);
    }

    /// Stops the server in order. [`Server::run`] brings it back.
    pub fn stop(&mut self) {
        self.end(Signal::Fast);
    }

    /// Starts the server on its data again and waits until it answers.
    ///
    /// # Panics
    /// Where it does not come up within 30 s.
    pub fn run(&mut self) {
        assert!(self.process.is_none(), "the server is running already");
        let mut command = self.as_user("postgres");
        let log = File::create(self.directory.path().join("server.log")).unwrap();
        command
            .arg("-D")
            .arg(self.data())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let (stop, stopped) = sync_channel::<Signal>(1);
        let (started, pid) = sync_channel::<io::Result<u32>>(1);
        let thread = std::thread::spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let _ = started.send(Ok(child.id()));
            let signal = stopped.recv().unwrap_or(Signal::Immediate);
            end(&mut child, signal);
        });
        let pid = pid.recv().unwrap().unwrap();
        self.process = Some(Process { pid, stop, thread });
        for _ in 0..600 {
            if self.socket().exists() && self.try_sql("SELECT 1").status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let log = std::fs::read_to_string(self.directory.path().join("server.log")).unwrap_or_default();
        panic!("PostgreSQL {} did not come up:\n{log}", self.major);
    }

    fn end(&mut self, signal: Signal) {
        if let Some(process) = self.process.take() {
            let _ = process.stop.send(signal);
            let _ = process.thread.join();
        }
    }

    fn configure(&self) {
        let addresses = if self.tcp { "127.0.0.1" } else { "" };
        let mut settings = format!(
            "listen_addresses = '{addresses}'\nport = {}\nunix_socket_directories = '{}'\nmax_connections = 200\n\
             shared_buffers = 64MB\nlog_min_messages = warning\n",
            self.port,
            self.directory.path().display()
        );
        if self.durability == Durability::Fast {
            settings.push_str("fsync = off\nfull_page_writes = off\n");
        }
        std::fs::write(self.data().join("postgresql.auto.conf"), settings).unwrap();
        if let Some((uid, gid)) = self.user {
            chown(self.data().join("postgresql.auto.conf"), Some(uid), Some(gid)).unwrap();
        }
    }

    fn as_user(&self, program: &str) -> Command {
        as_user(&self.bin.join(program), self.user)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::Immediate);
    }
}

/// Says that `major` is not here, past any runner that keeps what a passing test prints to itself.
///
/// # Panics
/// Where it `must` be here.
fn missing(major: u32, must: bool) {
    let what = format!(
        "SKIPPED: PostgreSQL {major} is not installed, and nothing is tested on it (scripts/postgres.sh)"
    );
    assert!(!must, "{what}");
    println!("{what}");
    if let Ok(mut terminal) = File::options().write(true).open("/dev/tty") {
        // Whoever has no terminal has the line above.
        let _ = writeln!(terminal, "{what}");
    }
}

/// Where the binaries of `major` are: what `scripts/postgres.sh` installed, else Debian's.
fn binaries(major: u32) -> Option<PathBuf> {
    let target = target();
    let places = [
        target.join(format!("postgres/{major}/bin")),
        PathBuf::from(format!("/usr/lib/postgresql/{major}/bin")),
    ];
    places.into_iter().find(|place| place.join("postgres").is_file())
}

fn target() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("../../target")
        .canonicalize()
        .unwrap_or_else(|_| here.join("../../target"))
}

/// A data directory of `major` that only needs to be copied, made once and kept under `target`.
fn template(major: u32, bin: &Path, user: Option<(u32, u32)>) -> io::Result<PathBuf> {
    let home = target().join("postgres");
    std::fs::create_dir_all(&home)?;
    let template = home.join(format!("template-{major}"));
    let lock = File::create(home.join(format!("template-{major}.lock")))?;
    // Test processes start together; one makes the template and the others wait for it.
    lock.lock()?;
    if template.join("PG_VERSION").is_file() {
        return Ok(template);
    }
    let _ = std::fs::remove_dir_all(&template);
    let work = tempfile::Builder::new().prefix("ether-pg-template").tempdir()?;
    if let Some((uid, gid)) = user {
        chown(work.path(), Some(uid), Some(gid))?;
    }
    let made = work.path().join("data");
    let output = as_user(&bin.join("initdb"), user)
        .args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "-D",
        ])
        .arg(&made)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).into_owned(),
        ));
    }
    let unfinished = home.join(format!("template-{major}.new"));
    let _ = std::fs::remove_dir_all(&unfinished);
    copy(&made, &unfinished)?;
    std::fs::rename(&unfinished, &template)?;
    Ok(template)
}

/// A tree copied with owners and modes.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(from)?;
    if meta.is_dir() {
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        std::fs::set_permissions(to, meta.permissions())?;
    } else {
        std::fs::copy(from, to)?;
    }
    // Only root can give a file away, and only root needs to.
    let _ = chown(to, Some(meta.uid()), Some(meta.gid()));
    Ok(())
}

/// The user to run servers as when this process is root, which PostgreSQL refuses to run as.
fn unprivileged() -> Option<(u32, u32)> {
    let root = std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0);
    if !root {
        return None;
    }
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let uid = fields.nth(1)?.parse().ok()?;
            Some((uid, fields.next()?.parse().ok()?))
        })
    };
    ids("postgres")
        .or_else(|| ids("nobody"))
        .or(Some((65_534, 65_534)))
}

fn as_user(program: &Path, user: Option<(u32, u32)>) -> Command {
    let mut command = command("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if let Some((uid, gid)) = user {
        command.args([format!("--reuid={uid}"), format!("--regid={gid}")]);
        command.arg("--clear-groups");
    }
    command.arg("--").arg(program).env("LC_ALL", "C").current_dir("/");
    command
}

fn end(child: &mut Child, signal: Signal) {
    let name = match signal {
        Signal::Fast => "INT",
        Signal::Immediate => "QUIT",
    };
    let _ = command("kill")
        .args(["-s", name, &child.id().to_string()])
        .status();
    for _ in 0..400 {
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let _ = child.kill();
    let _ = child.wait();
}

#[allow(
    clippy::disallowed_methods,
    reason = "the testkit runs servers that are no part of ether, apart from its process code"
)]
fn command(program: &str) -> Command {
    Command::new(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "PostgreSQL 13 is not installed")]
    fn a_major_that_is_missing_where_it_must_not_be_fails() {
        missing(13, true);
    }

    #[test]
    fn a_crashed_server_comes_back_with_what_was_committed() {
        let Some(mut server) = Server::start(15, Durability::Fast) else {
            return;
        };
        server.sql("CREATE TABLE kept (n BIGINT); INSERT INTO kept VALUES (7)");
        server.crash();
        server.run();
        assert_eq!(server.sql("SELECT n FROM kept"), "7");
    }
}
