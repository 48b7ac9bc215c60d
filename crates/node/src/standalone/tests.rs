//! Hours of a viewer's life in seconds: the whole server, real FFmpeg and real HTTP, under a clock that runs as
//! clocks do and leaps ahead when the test says so.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_process::Config;
use ether_types::clock::Sleep;
use ether_types::{Clock, Monotonic, SystemClock, Timestamp};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::{Options, Standalone};

const MINUTE: Duration = Duration::from_secs(60);
/// How long something that is bound to happen may take on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// A clock that is ahead of the machine's by as much as it was told.
#[derive(Clone)]
struct Leaping {
    system: SystemClock,
    ahead: Arc<watch::Sender<Duration>>,
}

impl Leaping {
    fn new() -> Self {
        Self {
            system: SystemClock::new(),
            ahead: Arc::new(watch::Sender::new(Duration::ZERO)),
        }
    }

    fn leap(&self, by: Duration) {
        self.ahead.send_modify(|ahead| *ahead += by);
    }
}

impl Clock for Leaping {
    fn now(&self) -> Timestamp {
        self.system.now().checked_add(*self.ahead.borrow()).unwrap()
    }

    fn monotonic(&self) -> Monotonic {
        self.system.monotonic().saturating_add(*self.ahead.borrow())
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        let clock = self.clone();
        let until = clock.monotonic().saturating_add(duration);
        let mut leaps = self.ahead.subscribe();
        Box::pin(async move {
            loop {
                leaps.borrow_and_update();
                let left = until.saturating_since(clock.monotonic());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = clock.system.sleep(left) => {}
                    _ = leaps.changed() => {}
                }
            }
        })
    }
}

struct Answer {
    status: u16,
    etag: String,
    body: Vec<u8>,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// A server of one film, and whoever watches it.
struct House {
    server: Standalone,
    clock: Leaping,
    address: SocketAddr,
    token: String,
    _root: tempfile::TempDir,
}

impl House {
    async fn of(clip: &str) -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clips");
        let film = target.join(clip);
        assert!(film.exists(), "{} is missing: run `make setup`", film.display());
        let root = tempfile::tempdir().unwrap();
        let (films, data) = (root.path().join("films"), root.path().join("data"));
        std::fs::create_dir(&films).unwrap();
        std::fs::copy(&film, films.join(clip)).unwrap();
        let clock = Leaping::new();
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let options = Options {
            media: vec![films],
            data_dir: data.clone(),
            listen: "127.0.0.1:0".parse().unwrap(),
            ffmpeg: PathBuf::from("ffmpeg"),
            ffprobe: PathBuf::from("ffprobe"),
            capacity: 2,
            scratch_mib: 512,
            segment_cache_mib: 0,
            scratch_dir: None,
            hosts: Vec::new(),
            origins: Vec::new(),
            hardware: crate::HardwareWish::Auto,
        };
        // The guardian of a test's binary would be the test again.
        let config = Config::unguarded(shared.clone());
        let server = Standalone::start_with(options, config, shared).await.unwrap();
        Self {
            address: server.address(),
            token: std::fs::read_to_string(data.join("owner-token")).unwrap(),
            server,
            clock,
            _root: root,
        }
    }

    async fn ask(&self, method: &str, target: &str, body: Option<Value>) -> Answer {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let (address, token) = (self.address, self.token.trim());
        let head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
             Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name))
        };
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            etag: field("etag").map(|(_, tag)| tag.to_owned()).unwrap_or_default(),
            body: answer.split_off(end + 4),
        }
    }

    /// Asks until the answer is what the story waits for.
    async fn until(&self, what: &str, target: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let look = async {
            loop {
                let answer = self.ask("GET", target, None).await.json();
                if holds(&answer) {
                    return answer;
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(SOON, look)
            .await
            .unwrap_or_else(|_| panic!("{what} never came"))
    }

    /// The address of the media of a session that encodes the film.
    async fn play(&self) -> (String, String) {
        let library = self
            .until("the film", "/ether/api/library", |library| {
                library["scanning"] == false && library["items"][0]["id"].is_string()
            })
            .await;
        let wish = json!({"item": library["items"][0]["id"], "video": "encode", "maxHeight": 90});
        let created = self.ask("POST", "/ether/api/sessions", Some(wish)).await;
        assert_eq!(created.status, 201);
        let created = created.json();
        let session = format!("/ether/api/sessions/{}", created["id"].as_str().unwrap());
        (session, created["url"].as_str().unwrap().to_owned())
    }

    /// Segment `n`, asked for again where it is not ready.
    async fn segment(&self, url: &str, n: usize) -> Answer {
        let target = url.replace("/index.m3u8", &format!("/0/{n}.m4s"));
        let look = async {
            loop {
                let answer = self.ask("GET", &target, None).await;
                if answer.status != 503 {
                    return answer;
                }
                sleep(Duration::from_millis(100)).await;
            }
        };
        let answer = timeout(SOON, look).await.expect("the segment comes");
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        answer
    }

    async fn says(&self, session: &str, state: &str) {
        let body = json!({"state": state, "positionMs": 20_000});
        let target = format!("{session}/state");
        assert_eq!(self.ask("POST", &target, Some(body)).await.status, 204);
    }

    /// Waits until nothing is charged any more, which needs proof that the encoder is gone.
    async fn rests(&self) {
        let idle = json!({"milliSlots": 0, "deviceMilliSlots": 0, "scratchMib": 0});
        self.until("the capacity", "/ether/api/sessions", |sessions| {
            sessions["capacity"]["used"] == idle
        })
        .await;
    }

    /// Lets everything that the leap has made due happen: whatever wants to run had many turns.
    async fn settle(&self) {
        for _ in 0..20 {
            self.ask("GET", "/ether/api/sessions", None).await;
            sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn case_23_ten_minutes_of_pause_keep_the_place_and_an_hour_of_it_is_rebuilt() {
    let house = House::of("ntsc.mkv").await;
    let (session, url) = house.play().await;
    let before = house.segment(&url, 3).await;
    house.says(&session, "paused").await;
    for _ in 0..10 {
        house.clock.leap(MINUTE);
        house.settle().await;
    }
    house.says(&session, "playing").await;
    let after = house.segment(&url, 3).await;
    assert!(
        before.etag == after.etag && before.body == after.body,
        "the encoder and what it made were kept"
    );
    let seen = house.ask("GET", &session, None).await.json();
    assert_eq!(
        (&seen["encoder"]["runs"], &seen["encoder"]["ended"]),
        (&json!(1), &Value::Null),
        "{seen:#}"
    );
    house.segment(&url, 4).await;

    house.says(&session, "paused").await;
    house.clock.leap(60 * MINUTE);
    house.rests().await;
    house.says(&session, "playing").await;
    let rebuilt = house.segment(&url, 3).await;
    assert_ne!(rebuilt.etag, before.etag, "made anew, and served all the same");
    house.segment(&url, 5).await;
    assert_eq!(house.server.stop().await.playbacks.unproved, 0);
}

#[tokio::test]
async fn case_29_a_viewer_who_asks_for_nothing_loses_the_encoder_and_gets_another() {
    let house = House::of("ntsc.mkv").await;
    let (session, url) = house.play().await;
    house.segment(&url, 0).await;
    house.clock.leap(MINUTE);
    house.rests().await;
    let seen = house.ask("GET", &session, None).await.json();
    assert_eq!((&seen["state"], &seen["unproved"]), (&json!("idle"), &json!(0)));
    house.segment(&url, 15).await;
    // And a session that nobody ever comes back to ends.
    house.clock.leap(24 * 60 * MINUTE);
    house.rests().await;
    let seen = house.ask("GET", &session, None).await.json();
    assert_eq!(seen["ended"]["code"], "expired", "{seen:#}");
    let gone = house.ask("GET", &url, None).await;
    assert!([401, 410].contains(&gone.status), "{}", gone.status);
    assert_eq!(house.server.stop().await.playbacks.unproved, 0);
}
