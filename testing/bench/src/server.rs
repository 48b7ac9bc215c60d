//! A real ether server in a process of its own, and the few HTTP requests that drive it.
//!
//! The client is written out here so that what it costs is known: one kept connection, blocking reads, no copies
//! beyond the body.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{BenchError, Context, pause};

/// How often, twenty times a second, the server is asked whether it has read its library: ten minutes.
const ASKINGS: u32 = 12_000;
/// How often a segment that is not ready is asked for again. The server holds each request for some seconds itself.
const PATIENCE: u32 = 10;
/// The longest body that is believed.
const LONGEST_BODY: usize = 256 * 1024 * 1024;

/// A running server. Dropping it ends it.
pub(crate) struct Server {
    process: Child,
    client: Client,
    log: Option<std::thread::JoinHandle<()>>,
}

/// One kept connection to a server.
pub(crate) struct Client {
    authority: String,
    token: String,
    connection: Option<BufReader<TcpStream>>,
}

/// An answer with its whole body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// A playback as the server described it.
#[derive(Debug)]
pub(crate) struct Playback {
    pub(crate) id: String,
    /// The multivariant playlist, or the file itself for direct play.
    pub(crate) url: String,
}

impl Server {
    /// Starts ether on `media` with its data in `data`, and waits until it says that it is ready.
    ///
    /// It keeps no segments: what is measured is made.
    pub(crate) fn start(context: &Context, media: &Path, data: &Path) -> Result<Self, BenchError> {
        Self::start_keeping(context, media, data, 0)
    }

    /// Likewise, with `kept` MiB of finished segments kept.
    pub(crate) fn start_keeping(
        context: &Context,
        media: &Path,
        data: &Path,
        kept: u32,
    ) -> Result<Self, BenchError> {
        let what = context.ether.display().to_string();
        #[allow(
            clippy::disallowed_methods,
            reason = "the bench is an outsider that starts and ends a whole server"
        )]
        let mut process = Command::new(&context.ether)
            .arg("serve")
            .arg("--media")
            .arg(media)
            .arg("--data-dir")
            .arg(data)
            .args(["--listen", "127.0.0.1:0", "--segment-cache", &kept.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(BenchError::io(what.clone()))?;
        let stdout = process.stdout.take().map(BufReader::new);
        let mut server = Self {
            process,
            client: Client::new(String::new()),
            log: None,
        };
        let mut stdout = stdout.ok_or_else(|| BenchError::Other(format!("{what} has no output")))?;
        let mut line = String::new();
        loop {
            line.clear();
            if stdout
                .read_line(&mut line)
                .map_err(BenchError::io(what.clone()))?
                == 0
            {
                return Err(BenchError::Other(format!("{what} ended before it was ready")));
            }
            if let Some((_, url)) = line.split_once("ether is ready: http://") {
                server.client.authority = url.trim().trim_end_matches('/').to_owned();
                break;
            }
        }
        // Whatever else it prints must not fill the pipe.
        server.log = Some(std::thread::spawn(move || {
            let _ = std::io::copy(&mut stdout, &mut std::io::sink());
        }));
        Ok(server)
    }

    /// Reads the owner's token, which every request but the first page carries.
    pub(crate) fn sign_in(&mut self, data: &Path) -> Result<(), BenchError> {
        let path = data.join("owner-token");
        let token = std::fs::read_to_string(&path).map_err(BenchError::io(path.display().to_string()))?;
        token.trim().clone_into(&mut self.client.token);
        Ok(())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Ends the server as Ctrl-C does, and waits for it.
    pub(crate) fn stop(mut self) -> Result<(), BenchError> {
        self.client.connection = None;
        let _ = kill_process(Pid::from_child(&self.process), Signal::INT);
        let status = self.process.wait().map_err(BenchError::io("waiting for ether"))?;
        if status.success() {
            Ok(())
        } else {
            Err(BenchError::Other(format!("ether ended with {status}")))
        }
    }

    /// Another connection to the same server.
    pub(crate) fn another_client(&self) -> Client {
        Client {
            authority: self.client.authority.clone(),
            token: self.client.token.clone(),
            connection: None,
        }
    }

    /// Sends a request on the kept connection.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Answer, BenchError> {
        self.client.ask(method, target, body)
    }

    /// A GET that must succeed.
    pub(crate) fn get(&mut self, target: &str) -> Result<Vec<u8>, BenchError> {
        self.client.get(target)
    }

    fn get_json(&mut self, target: &str) -> Result<Value, BenchError> {
        parse(&self.get(target)?)
    }

    /// Waits until the library is read and holds at least `least` items, and returns them.
    pub(crate) fn library(&mut self, least: usize) -> Result<Vec<Value>, BenchError> {
        let mut known = 0;
        for _ in 0..ASKINGS {
            let mut library = self.get_json("/ether/api/library")?;
            if let Value::Array(items) = library["items"].take() {
                known = items.len();
                if known >= least && library["scanning"] == Value::Bool(false) {
                    return Ok(items);
                }
            }
            pause(50);
        }
        Err(BenchError::Other(format!(
            "the library has {known} items and never {least}"
        )))
    }

    /// The id of the item made from the file of that name.
    pub(crate) fn item(&mut self, file: &str) -> Result<String, BenchError> {
        self.library(1)?
            .iter()
            .find(|item| item["file"].as_str().is_some_and(|path| path.ends_with(file)))
            .and_then(|item| item["id"].as_str().map(str::to_owned))
            .ok_or_else(|| BenchError::Other(format!("{file} is not in the library")))
    }

    /// Asks for a playback.
    pub(crate) fn play(&mut self, item: &str, wishes: &Value) -> Result<Playback, BenchError> {
        let mut body = json!({ "item": item, "protocol": "hls" });
        if let (Some(body), Some(wishes)) = (body.as_object_mut(), wishes.as_object()) {
            body.extend(wishes.clone());
        }
        let answer = self.ask("POST", "/ether/api/sessions", Some(&body))?;
        let text = parse(&answer.body)?;
        match (answer.status, text["id"].as_str(), text["url"].as_str()) {
            (201, Some(id), Some(url)) => Ok(Playback {
                id: id.into(),
                url: url.into(),
            }),
            _ => Err(BenchError::Other(format!(
                "no playback: {} {text}",
                answer.status
            ))),
        }
    }

    /// The address of every segment of a playback's first representation, its init segment first.
    pub(crate) fn segments(&mut self, playback: &Playback) -> Result<Vec<String>, BenchError> {
        let variants = self.get(&playback.url)?;
        let variants = String::from_utf8_lossy(&variants).into_owned();
        let list = uris(&variants)
            .next()
            .map(|uri| resolve(&playback.url, uri))
            .ok_or_else(|| BenchError::Other("the multivariant playlist is empty".into()))?;
        self.listed(&list)
    }

    /// The addresses of every media playlist of a playback, in the order that they are named.
    pub(crate) fn playlists(&mut self, playback: &Playback) -> Result<Vec<String>, BenchError> {
        let text = self.get(&playback.url)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let media = text.lines().filter(|line| line.starts_with("#EXT-X-MEDIA:"));
        let named = media.filter_map(|line| line.split("URI=\"").nth(1)?.split('"').next());
        Ok(named
            .chain(uris(&text))
            .map(|uri| resolve(&playback.url, uri))
            .collect())
    }

    /// Every segment that a media playlist names, its initialization segment first.
    pub(crate) fn listed(&mut self, list: &str) -> Result<Vec<String>, BenchError> {
        let text = self.get(list)?;
        let text = String::from_utf8_lossy(&text).into_owned();
        let init = text
            .lines()
            .find_map(|line| line.strip_prefix("#EXT-X-MAP:URI=\"")?.split('"').next());
        Ok(init
            .into_iter()
            .chain(uris(&text))
            .map(|uri| resolve(list, uri))
            .collect())
    }

    /// Ends a playback.
    pub(crate) fn end(&mut self, playback: &Playback) -> Result<(), BenchError> {
        let answer = self.ask("DELETE", &format!("/ether/api/sessions/{}", playback.id), None)?;
        match answer.status {
            204 => Ok(()),
            status => Err(BenchError::Other(format!("DELETE of a playback: {status}"))),
        }
    }
}

impl Client {
    /// A client of whatever listens at `authority`.
    pub(crate) fn new(authority: String) -> Self {
        Self {
            authority,
            token: String::new(),
            connection: None,
        }
    }

    /// Sends a request on the kept connection.
    pub(crate) fn ask(
        &mut self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Answer, BenchError> {
        let kept = self.connection.take();
        let mut connection = match kept.filter(|kept| is_open(kept.get_ref())) {
            Some(connection) => connection,
            None => {
                let stream = TcpStream::connect(&self.authority).map_err(BenchError::io("connecting"))?;
                stream.set_nodelay(true).map_err(BenchError::io("connecting"))?;
                BufReader::with_capacity(256 * 1024, stream)
            }
        };
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.authority,
            self.token,
            body.len()
        );
        connection
            .get_mut()
            .write_all(request.as_bytes())
            .map_err(BenchError::io("sending a request"))?;
        let (answer, keep) = read_answer(&mut connection)?;
        if keep {
            self.connection = Some(connection);
        }
        Ok(answer)
    }

    /// A GET that must succeed, asked again where the server says that what is asked for is still being made.
    pub(crate) fn get(&mut self, target: &str) -> Result<Vec<u8>, BenchError> {
        let mut answer = self.ask("GET", target, None)?;
        for _ in 0..PATIENCE {
            if answer.status != 503 {
                break;
            }
            answer = self.ask("GET", target, None)?;
        }
        if answer.status == 200 {
            return Ok(answer.body);
        }
        let path = target.split('?').next().unwrap_or_default();
        let text = String::from_utf8_lossy(&answer.body);
        Err(BenchError::Other(format!("GET {path}: {} {text}", answer.status)))
    }

    /// Begins a GET and reads the first bytes of its answer; the rest waits until the connection is dropped.
    pub(crate) fn hold(&mut self, target: &str) -> Result<TcpStream, BenchError> {
        let mut stream = TcpStream::connect(&self.authority).map_err(BenchError::io("connecting"))?;
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            self.authority, self.token
        );
        stream
            .write_all(request.as_bytes())
            .map_err(BenchError::io("sending a request"))?;
        stream
            .read_exact(&mut [0; 4_096])
            .map_err(BenchError::io("reading a body"))?;
        Ok(stream)
    }

    /// From sending a GET to having `count` bytes of its body; then the connection is dropped.
    pub(crate) fn beginning(&mut self, target: &str, count: u64) -> Result<(), BenchError> {
        let mut stream = TcpStream::connect(&self.authority).map_err(BenchError::io("connecting"))?;
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
            self.authority, self.token
        );
        stream
            .write_all(request.as_bytes())
            .map_err(BenchError::io("sending a request"))?;
        let read = std::io::copy(&mut stream.take(count), &mut std::io::sink());
        match read.map_err(BenchError::io("reading a body"))? {
            read if read == count => Ok(()),
            read => Err(BenchError::Other(format!("a stream ended after {read} bytes"))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
    }
}

fn uris(playlist: &str) -> impl Iterator<Item = &str> {
    playlist
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// A reference against the address of the playlist that holds it: the two forms that playlists use.
fn resolve(base: &str, uri: &str) -> String {
    if uri.starts_with('/') {
        return uri.to_owned();
    }
    let path = base.split('?').next().unwrap_or(base);
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/{uri}")
}

fn parse(body: &[u8]) -> Result<Value, BenchError> {
    serde_json::from_slice(body)
        .map_err(|e| BenchError::Other(format!("{e} in {:?}", String::from_utf8_lossy(body))))
}

fn read_answer(from: &mut BufReader<TcpStream>) -> Result<(Answer, bool), BenchError> {
    let broken = || BenchError::Other("an answer that is no HTTP".into());
    let mut line = String::new();
    let mut next_line = |from: &mut BufReader<TcpStream>| -> Result<String, BenchError> {
        line.clear();
        from.read_line(&mut line)
            .map_err(BenchError::io("reading an answer"))?;
        Ok(line.trim_end().to_owned())
    };
    let status = next_line(from)?;
    let status = status
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(broken)?;
    let (mut length, mut chunked, mut keep) = (None, false, true);
    loop {
        let header = next_line(from)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(broken)?;
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = Some(value.parse::<usize>().map_err(|_| broken())?),
            "transfer-encoding" => chunked = value.eq_ignore_ascii_case("chunked"),
            "connection" => keep = !value.eq_ignore_ascii_case("close"),
            _ => {}
        }
    }
    let mut body = Vec::new();
    let mut read_exactly = |from: &mut BufReader<TcpStream>, count: usize| -> Result<(), BenchError> {
        if body.len().saturating_add(count) > LONGEST_BODY {
            return Err(broken());
        }
        let read = from
            .take(u64::try_from(count).unwrap_or(u64::MAX))
            .read_to_end(&mut body)
            .map_err(BenchError::io("reading a body"))?;
        if read == count {
            Ok(())
        } else {
            Err(BenchError::Other(format!(
                "a body ended after {read} of {count} bytes"
            )))
        }
    };
    if chunked {
        loop {
            let size = next_line(from)?;
            let size = size.split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size.trim(), 16).map_err(|_| broken())?;
            if size == 0 {
                while !next_line(from)?.is_empty() {}
                break;
            }
            read_exactly(from, size)?;
            next_line(from)?;
        }
    } else if let Some(length) = length {
        read_exactly(from, length)?;
    } else if status != 204 && status != 304 {
        return Err(broken());
    }
    Ok((Answer { status, body }, keep))
}

/// Whether a kept connection can be asked on: a server closes one that was idle for long.
fn is_open(stream: &TcpStream) -> bool {
    let waits = || {
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        peeked
    };
    matches!(waits(), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// A data directory for one server.
pub(crate) fn data_dir(context: &Context) -> Result<PathBuf, BenchError> {
    context.scratch("data")
}
