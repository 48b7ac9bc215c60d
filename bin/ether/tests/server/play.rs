//! One viewer: asks for a film, reads its playlists, fetches what they name.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::bed::{Server, Setup};
use crate::hls::{self, Media, Variant};
use crate::wire::{Answer, ask};

/// Times that a player asks again for what is not ready yet; each time is held for eight seconds.
const TRIES: usize = 6;

/// A session that is open.
pub(crate) struct Play<'a> {
    server: &'a Server,
    /// The answer to the wish.
    pub(crate) created: Value,
    pub(crate) variant: Variant,
    pub(crate) list: Media,
    /// Folder of the media playlist.
    base: String,
}

impl<'a> Play<'a> {
    /// Asks for the film `file` with `wish` and reads both playlists.
    pub(crate) async fn open(server: &'a Server, file: &str, wish: Value) -> Self {
        let created = Self::ask(server, file, wish).await.expect(201).json();
        Self::of(server, created).await
    }

    /// Asks for the film `file` with `wish`, and for one sound where it does not say otherwise: with several,
    /// picture and sound come apart.
    pub(crate) async fn ask(server: &Server, file: &str, mut wish: Value) -> Answer {
        wish["item"] = server.film(file).await["id"].clone();
        if wish.get("sounds").is_none() {
            wish["sounds"] = json!("one");
        }
        server.api(Method::POST, "/ether/api/sessions", Some(&wish)).await
    }

    /// Reads the playlists of a session that was made.
    pub(crate) async fn of(server: &'a Server, created: Value) -> Self {
        let url = created["url"].as_str().unwrap();
        let first = server.get(url).await.expect(200);
        assert_eq!(first.header("content-type"), "application/vnd.apple.mpegurl");
        let variant = hls::variant(&first.text());
        let media = join(url, &variant.uri);
        let second = server.get(&media).await.expect(200);
        assert_eq!(
            server.get(&media).await.expect(200).body,
            second.body,
            "a list never changes"
        );
        let list = hls::media(&second.text());
        assert_eq!(list.begin, variant.begin, "both lists name one beginning");
        Self {
            server,
            created,
            variant,
            list,
            base: media,
        }
    }

    /// The sound, where it comes apart from the picture.
    pub(crate) async fn sound(&self) -> Option<Self> {
        let base = join(
            self.created["url"].as_str().unwrap(),
            self.variant.sound.as_ref()?,
        );
        let list = hls::media(&self.server.get(&base).await.expect(200).text());
        assert_eq!(
            list.segments.len(),
            self.segments(),
            "sound and picture are cut alike"
        );
        Some(Self {
            server: self.server,
            created: self.created.clone(),
            variant: self.variant.clone(),
            list,
            base,
        })
    }

    pub(crate) fn id(&self) -> &str {
        self.created["id"].as_str().unwrap()
    }

    pub(crate) fn decision(&self) -> &Value {
        &self.created["decision"]
    }

    pub(crate) fn segments(&self) -> usize {
        self.list.segments.len()
    }

    /// Address of segment `n`.
    pub(crate) fn address(&self, n: usize) -> String {
        join(&self.base, &self.list.segments[n].uri)
    }

    /// Address of a segment that the list does not name.
    pub(crate) fn address_past_end(&self) -> String {
        let last = self.segments() - 1;
        let (before, after) = self
            .address(last)
            .split_once(&format!("/{last}."))
            .map(own)
            .unwrap();
        format!("{before}/{}.{after}", last + 1)
    }

    /// Asks for segment `n`, again where it is not ready, as players do.
    pub(crate) async fn fetch(&self, n: usize) -> Answer {
        self.patiently(&self.address(n)).await
    }

    async fn patiently(&self, address: &str) -> Answer {
        patiently(self.server, address).await
    }

    /// The bytes of segment `n`.
    pub(crate) async fn segment(&self, n: usize) -> Bytes {
        let answer = self.fetch(n).await;
        assert_eq!(answer.status, 200, "segment {n}: {}", answer.text());
        let kind = if self.list.map.is_some() {
            "video/mp4"
        } else {
            "video/mp2t"
        };
        assert!(
            [kind, "audio/mp4"].contains(&answer.header("content-type")),
            "{:?}",
            answer.headers
        );
        answer.body
    }

    /// The initialization segment; nothing where the list names none.
    pub(crate) async fn init(&self) -> Bytes {
        match &self.list.map {
            Some(uri) => self.patiently(&join(&self.base, uri)).await.expect(200).body,
            None => Bytes::new(),
        }
    }

    /// The segments of a range, in order.
    pub(crate) async fn range(&self, segments: impl IntoIterator<Item = usize>) -> Taken {
        let mut taken = Taken {
            bytes: self.init().await.to_vec(),
            starts: Vec::new(),
        };
        for n in segments {
            taken.starts.push((n, taken.bytes.len() as u64));
            taken.bytes.extend_from_slice(&self.segment(n).await);
        }
        taken
    }

    /// Everything.
    pub(crate) async fn whole(&self) -> Taken {
        self.range(0..self.segments()).await
    }

    /// How the session is doing.
    pub(crate) async fn seen(&self) -> Value {
        let target = format!("/ether/api/sessions/{}", self.id());
        self.server
            .api(Method::GET, &target, None)
            .await
            .expect(200)
            .json()
    }

    /// Says what the viewer does.
    pub(crate) async fn says(&self, state: &str, position_ms: u64) {
        let target = format!("/ether/api/sessions/{}/state", self.id());
        let body = json!({"state": state, "positionMs": position_ms});
        self.server
            .api(Method::POST, &target, Some(&body))
            .await
            .expect(204);
    }

    /// Ends it.
    pub(crate) async fn stop(&self) {
        let target = format!("/ether/api/sessions/{}", self.id());
        self.server.api(Method::DELETE, &target, None).await.expect(204);
    }

    /// A request for segment `n` by another method.
    pub(crate) async fn by(&self, method: Method, n: usize) -> Answer {
        ask(self.server.address, method, &self.address(n), &[], None).await
    }
}

/// Asks for `address` again for as long as it is not ready, as players do.
pub(crate) async fn patiently(server: &Server, address: &str) -> Answer {
    for _ in 1..TRIES {
        let answer = server.get(address).await;
        if answer.status != 503 || answer.code() != "not_ready" {
            return answer;
        }
        sleep(Duration::from_secs(answer.header("retry-after").parse().unwrap())).await;
    }
    server.get(address).await
}

/// Media that was fetched, as one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: Vec<u8>,
    /// Each segment's number and where it starts in the file.
    pub(crate) starts: Vec<(usize, u64)>,
}

impl Taken {
    /// Puts it into a file.
    pub(crate) fn save(&self, setup: &Setup, name: &str) -> PathBuf {
        let path = setup.path(name);
        std::fs::write(&path, &self.bytes).unwrap();
        path
    }

    /// The segment that holds byte `at` of the file.
    pub(crate) fn segment_at(&self, at: u64) -> usize {
        let after = self.starts.partition_point(|(_, start)| *start <= at);
        self.starts[after.checked_sub(1).expect("media, not the head")].0
    }
}

/// Resolves an address relative to the one it was read from.
pub(crate) fn join(base: &str, relative: &str) -> String {
    let path = base.split('?').next().unwrap_or_default();
    let mut folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut rest = relative;
    while let Some(up) = rest.strip_prefix("../") {
        folder = folder.rsplit_once('/').map_or("", |(folder, _)| folder);
        rest = up;
    }
    format!("{folder}/{rest}")
}

fn own((before, after): (&str, &str)) -> (String, String) {
    (before.to_owned(), after.to_owned())
}
