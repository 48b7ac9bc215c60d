//! A server on a loopback socket with a scripted encoder behind it, and a client that hides nothing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ether_types::{ItemId, ManualClock, Timestamp};
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::auth::Auth;
use crate::capacity::LocalCapacity;
use crate::grant::{GrantKey, GrantKeys};
use crate::http::{Hosts, Origins, Server, ServerLimits, ServerReport, Surface, router};
use crate::playbacks::{Limits, Playbacks};
use crate::ports::Units;
use crate::testing::{MemoryLibrary, MemoryTexts, MemoryTokens, Script, facts, film_picture};

pub(super) const OWNER: &str = "the-owner-token-of-this-test";
pub(super) const FILM: &str = "film0";
/// 2026-01-01T00:00:00Z.
pub(super) const NOW: i64 = 1_767_225_600_000_000;

/// What a bed is made of.
pub(super) struct Setup {
    pub(super) encoder: Script,
    pub(super) limits: Limits,
    pub(super) server: ServerLimits,
    pub(super) capacity: Units,
    pub(super) origins: Vec<String>,
    pub(super) file_bytes: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            encoder: Script::default(),
            limits: Limits::default(),
            server: ServerLimits::default(),
            capacity: Units {
                milli_slots: 2_000,
                device_milli_slots: 0,
                scratch_mib: 4_096,
            },
            origins: Vec::new(),
            file_bytes: 1_000,
        }
    }
}

pub(super) struct Bed {
    pub(super) clock: ManualClock,
    pub(super) library: Arc<MemoryLibrary>,
    pub(super) encoder: Arc<Script>,
    pub(super) texts: Arc<MemoryTexts>,
    pub(super) capacity: Arc<LocalCapacity>,
    pub(super) playbacks: Arc<Playbacks>,
    pub(super) auth: Arc<Auth>,
    pub(super) addr: SocketAddr,
    pub(super) stop: CancellationToken,
    pub(super) serving: JoinHandle<ServerReport>,
    pub(super) film: PathBuf,
    _dir: tempfile::TempDir,
}

/// One answer.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) head: String,
    pub(super) body: Vec<u8>,
    /// Whether all that was announced came.
    pub(super) whole: bool,
}

impl Reply {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub(super) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }
}

impl Bed {
    pub(super) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let mut setup = Setup::default();
        change(&mut setup);
        let clock = ManualClock::at(Timestamp::from_micros(NOW));
        let shared = Arc::new(clock.clone());
        let dir = tempfile::tempdir().unwrap();
        let film = dir.path().join("A film #1.mp4");
        let bytes: Vec<u8> = (0..setup.file_bytes).map(|n| (n % 251) as u8).collect();
        std::fs::write(&film, bytes).unwrap();
        let library = Arc::new(MemoryLibrary::default());
        library.add(FILM, film.clone(), facts(film_picture(1280, 720), 60));
        let encoder = Arc::new(setup.encoder);
        let texts = Arc::new(MemoryTexts::default());
        let capacity = Arc::new(LocalCapacity::new(setup.capacity, shared.clone()));
        let auth = Arc::new(Auth::new(
            OWNER,
            Arc::new(MemoryTokens::default()),
            shared.clone(),
        ));
        let playbacks = Arc::new(Playbacks::new(
            library.clone(),
            encoder.clone(),
            capacity.clone(),
            GrantKeys::new(GrantKey::new(1, [7; 32]), Vec::new()),
            setup.limits,
            shared.clone(),
        ));
        let routes = router(Surface {
            playbacks: playbacks.clone(),
            library: library.clone(),
            texts: texts.clone(),
            auth: auth.clone(),
            hosts: Hosts::new(["films.example".to_owned()]),
            origins: Origins::new(setup.origins),
            clock: shared.clone(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = Server::new(routes, setup.server, shared);
        let stopping = stop.clone();
        let serving = tokio::spawn(async move { server.serve(listener, stopping).await });
        Self {
            clock,
            library,
            encoder,
            texts,
            capacity,
            playbacks,
            auth,
            addr,
            stop,
            serving,
            film,
            _dir: dir,
        }
    }

    pub(super) fn film_id(&self) -> ItemId {
        ItemId::new(FILM).unwrap()
    }

    /// One request on a connection of its own, as anybody.
    pub(super) async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut socket = Socket::open(self.addr).await;
        socket.ask(method, path, headers, body).await
    }

    /// As the owner.
    pub(super) async fn owner(&self, method: &str, path: &str, body: &str) -> Reply {
        let token = format!("Bearer {OWNER}");
        self.send(method, path, &[("Authorization", &token)], body).await
    }

    /// A signed-in viewer's token.
    pub(super) async fn viewer(&self) -> String {
        let code = self.auth.issue_code().unwrap();
        self.auth
            .sign_in(code.expose(), None)
            .await
            .unwrap()
            .expose()
            .to_owned()
    }

    /// Asks for a session of the film with `more` fields, such as `"video":"encode"`.
    pub(super) async fn session(&self, more: &str) -> Value {
        let comma = if more.is_empty() { "" } else { "," };
        let body = format!("{{\"item\":\"{FILM}\",\"protocol\":\"hls\"{comma}{more}}}");
        let reply = self.owner("POST", "/ether/api/sessions", &body).await;
        assert_eq!(reply.status, StatusCode::CREATED, "{}", reply.text());
        reply.json()
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], "").await
    }

    /// Lets seconds pass, one after the other, until `work` is done.
    pub(super) async fn as_time_passes<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        for _ in 0..10_000 {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(Duration::from_millis(2)) => self.clock.advance(Duration::from_secs(1)),
            }
        }
        panic!("time passed in vain");
    }

    /// Waits for something that other tasks bring about.
    pub(super) async fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..20_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        panic!("{what} never came");
    }
}

/// The address of resource `name` of the one representation of `session`.
pub(super) fn resource(session: &Value, name: &str) -> String {
    let url = session["url"].as_str().unwrap();
    url.replace("/index.m3u8", &format!("/0/{name}"))
}

/// One connection.
pub(super) struct Socket {
    pub(super) stream: TcpStream,
    addr: SocketAddr,
    left: Vec<u8>,
}

impl Socket {
    pub(super) async fn open(addr: SocketAddr) -> Self {
        Self::over(TcpStream::connect(addr).await.unwrap(), addr)
    }

    /// A connection to `addr` that was made otherwise.
    pub(super) fn over(stream: TcpStream, addr: SocketAddr) -> Self {
        Self {
            stream,
            addr,
            left: Vec::new(),
        }
    }

    pub(super) async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        self.write(method, path, headers, body).await;
        self.read(method).await
    }

    pub(super) async fn write(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text += &format!("Host: {}\r\n", self.addr);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || matches!(method, "POST" | "PUT") {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        text += "\r\n";
        text += body;
        self.stream.write_all(text.as_bytes()).await.unwrap();
    }

    /// Reads one answer to a `method` request.
    pub(super) async fn read(&mut self, method: &str) -> Reply {
        let end = loop {
            if let Some(at) = find(&self.left, b"\r\n\r\n") {
                break at;
            }
            assert!(
                self.fill().await.is_some(),
                "the connection ended before an answer: {:?}",
                String::from_utf8_lossy(&self.left)
            );
        };
        let head = String::from_utf8(self.left[..end].to_vec()).unwrap();
        self.left.drain(..end + 4);
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let mut reply = Reply {
            status: StatusCode::from_u16(status).unwrap(),
            head,
            body: Vec::new(),
            whole: true,
        };
        let bodiless = method == Method::HEAD.as_str() || status == 204 || status == 304;
        if bodiless {
            return reply;
        }
        if reply.header("transfer-encoding") == Some("chunked") {
            // Only what is sent as it is made has no length: all of it is taken as it comes, its frames included.
            reply.whole = loop {
                if self.left.ends_with(b"0\r\n\r\n") {
                    break true;
                }
                if self.fill().await.is_none() {
                    break false;
                }
            };
            reply.body = std::mem::take(&mut self.left);
            return reply;
        }
        let length: usize = reply.header("content-length").expect("a length").parse().unwrap();
        while self.left.len() < length {
            if self.fill().await.is_none() {
                reply.whole = false;
                break;
            }
        }
        let got = length.min(self.left.len());
        reply.body = self.left.drain(..got).collect();
        reply
    }

    /// Reads more and says how much; `None` once the connection is closed.
    pub(super) async fn fill(&mut self) -> Option<usize> {
        let mut piece = vec![0; 256 * 1024];
        match self.stream.read(&mut piece).await {
            Ok(0) | Err(_) => None,
            Ok(read) => {
                self.left.extend(&piece[..read]);
                Some(read)
            }
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}
