//! Several qualities and several sounds of one film: common bounds, one encoder for the picture, and sound that
//! is switched without it.

use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::bed::{Server, Setup};
use crate::dash::{Head, Manifest, head, timescale};
use crate::hls::{self, Media, split};
use crate::play::{Play, join, patiently};
use crate::processes::until;

/// A multivariant playlist with several of anything.
struct Offer {
    url: String,
    session: Value,
    /// Attributes and address of every quality.
    qualities: Vec<(Vec<(String, String)>, String)>,
    /// Attributes of every sound.
    sounds: Vec<Vec<(String, String)>>,
}

fn get<'a>(list: &'a [(String, String)], name: &str) -> &'a str {
    let found = list.iter().find(|(known, _)| known == name);
    &found.unwrap_or_else(|| panic!("no {name} in {list:?}")).1
}

impl Offer {
    async fn open(server: &Server, file: &str, wish: Value) -> Self {
        let session = Play::ask(server, file, wish).await.expect(201).json();
        let url = session["url"].as_str().unwrap().to_owned();
        let text = server.get(&url).await.expect(200).text();
        let (mut qualities, mut sounds, mut pending) = (Vec::new(), Vec::new(), None);
        for line in text.lines() {
            if let Some(list) = line.strip_prefix("#EXT-X-MEDIA:") {
                let list = split(list);
                assert_eq!(get(&list, "TYPE"), "AUDIO", "{line}");
                sounds.push(list);
            } else if let Some(list) = line.strip_prefix("#EXT-X-STREAM-INF:") {
                pending = Some(split(list));
            } else if !line.starts_with('#') {
                qualities.push((pending.take().expect("a quality"), line.to_owned()));
            }
        }
        Self {
            url,
            session,
            qualities,
            sounds,
        }
    }

    /// The media playlist at a relative address, and that address in full.
    async fn list(&self, server: &Server, uri: &str) -> (Media, String) {
        let base = join(&self.url, uri);
        let list = hls::media(&server.get(&base).await.expect(200).text());
        (list, base)
    }
}

async fn segment(server: &Server, (list, base): &(Media, String), n: usize) -> Bytes {
    let address = join(base, &list.segments[n].uri);
    patiently(server, &address).await.expect(200).body
}

/// Encoders of the server that encode pictures.
fn picture_encoders(server: &Server) -> usize {
    let encodes = |word: &Vec<u8>| word == b"libx264";
    let encoders = server.encoders();
    encoders.iter().filter(|p| p.words.iter().any(encodes)).count()
}

#[tokio::test]
async fn heavy_qualities_share_their_bounds_and_their_encoder() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let wish = json!({"video": "encode", "ladder": true, "segmentSeconds": 3, "maxHeight": 360});
    let offer = Offer::open(&server, "ntsc.mkv", wish).await;
    assert!(offer.qualities.len() >= 2, "{:?}", offer.qualities);
    let height = |list: &[(String, String)]| -> u32 {
        let (_, height) = get(list, "RESOLUTION").split_once('x').unwrap();
        height.parse().unwrap()
    };
    let heights: Vec<u32> = offer.qualities.iter().map(|(list, _)| height(list)).collect();
    assert!(
        heights.is_sorted_by(|above, below| above > below) && heights[0] <= 360,
        "{heights:?}"
    );
    let bits: Vec<u64> = offer
        .qualities
        .iter()
        .map(|(list, _)| get(list, "BANDWIDTH").parse().unwrap())
        .collect();
    assert!(bits.is_sorted_by(|above, below| above > below), "{bits:?}");
    let mut lists = Vec::new();
    for (_, uri) in &offer.qualities {
        lists.push(offer.list(&server, uri).await);
    }
    let lengths = |list: &Media| list.segments.iter().map(|s| s.seconds).collect::<Vec<_>>();
    assert!(
        lists
            .iter()
            .all(|(list, _)| lengths(list) == lengths(&lists[0].0))
    );
    // All at once, as a player does that changes its mind, from the start and after a seek.
    for n in [0, 1, 12] {
        let (best, least) = (&lists[0], &lists[lists.len() - 1]);
        let (best, least) = tokio::join!(segment(&server, best, n), segment(&server, least, n));
        assert_eq!(head(&best), head(&least), "segment {n}");
        assert_eq!(head(&best).samples, 72);
        assert!(best.len() > least.len(), "the better one has more bits");
        assert!(picture_encoders(&server) <= 1, "one encoder makes both");
    }
    server.stop().await;
}

/// What a switch of the sound at segment `n` may not do: another start, another encoder of the picture.
fn joined(picture: &Head, picture_scale: u64, sound: &Head, sound_scale: u64) {
    let (shown, heard) = (
        picture.start as f64 / picture_scale as f64,
        sound.start as f64 / sound_scale as f64,
    );
    // The first frame of sound that starts no earlier than the picture.
    let frame = 1_024.0 / sound_scale as f64;
    assert!(
        heard > shown - 0.001 && heard < shown + frame + 0.001,
        "{shown} shown, {heard} heard"
    );
}

#[tokio::test]
async fn heavy_case_19_another_language_in_hls_leaves_the_picture_alone() {
    let setup = Setup::of(&["three-languages.mkv"]);
    let server = setup.start().await;
    let wish = json!({"video": "encode", "maxHeight": 180, "sounds": "all", "audio": 2});
    let offer = Offer::open(&server, "three-languages.mkv", wish).await;
    let languages: Vec<&str> = offer.sounds.iter().map(|list| get(list, "LANGUAGE")).collect();
    assert_eq!(languages, ["fr", "en", "ja"], "the chosen one comes first");
    assert_eq!(get(&offer.sounds[0], "DEFAULT"), "YES");
    assert_eq!(
        get(&offer.qualities[0].0, "AUDIO"),
        get(&offer.sounds[0], "GROUP-ID")
    );
    let heard = offer.session["decision"]["sounds"].as_array().unwrap();
    assert_eq!(heard.len(), 3);
    let picture = offer.list(&server, &offer.qualities[0].1).await;
    let first = offer.list(&server, get(&offer.sounds[0], "URI")).await;
    let third = offer.list(&server, get(&offer.sounds[2], "URI")).await;
    let lengths = |list: &Media| list.segments.iter().map(|s| s.seconds).collect::<Vec<_>>();
    assert_eq!(lengths(&picture.0), lengths(&first.0));
    assert_eq!(lengths(&picture.0), lengths(&third.0));
    for n in 0..2 {
        segment(&server, &picture, n).await;
        segment(&server, &first, n).await;
    }
    let before: Vec<u32> = server.encoders().iter().map(|p| p.pid).collect();
    // Twelve seconds in, which is where the third segment starts.
    let sound = head(&segment(&server, &third, 2).await);
    let shown = head(&segment(&server, &picture, 2).await);
    let init = join(&third.1, third.0.map.as_ref().unwrap());
    let scale = timescale(&patiently(&server, &init).await.expect(200).body);
    joined(&shown, 90_000, &sound, scale);
    let seen = offer.session["id"].as_str().unwrap();
    let target = format!("/ether/api/sessions/{seen}");
    let now = server
        .api(hyper::Method::GET, &target, None)
        .await
        .expect(200)
        .json();
    assert_eq!(now["state"], "running");
    let pictures = picture_encoders(&server);
    assert!(
        pictures <= 1,
        "{before:?}, then {pictures} encoders of the picture"
    );
    server.api(hyper::Method::DELETE, &target, None).await.expect(204);
    until("no encoder", || server.encoders().is_empty()).await;
    server.stop().await;
}

/// Two people watch one film, each in their own language: the picture is encoded once.
#[tokio::test]
async fn heavy_case_19_two_viewers_with_two_languages_share_one_encoder_of_the_picture() {
    let setup = Setup::of(&["three-languages.mkv"]);
    let server = setup.start().await;
    let mut pictures = Vec::new();
    for language in [1, 3] {
        let wish = json!({"video": "encode", "maxHeight": 180, "sounds": "all", "audio": language});
        let offer = Offer::open(&server, "three-languages.mkv", wish).await;
        let heard = offer.list(&server, get(&offer.sounds[0], "URI")).await;
        segment(&server, &heard, 0).await;
        let picture = offer.list(&server, &offer.qualities[0].1).await;
        pictures.push(segment(&server, &picture, 0).await);
        assert!(
            picture_encoders(&server) <= 1,
            "one encoder of the picture for each language"
        );
        let seen = format!("/ether/api/sessions/{}", offer.session["id"].as_str().unwrap());
        let seen = server
            .api(hyper::Method::GET, &seen, None)
            .await
            .expect(200)
            .json();
        assert_eq!(seen["viewers"], pictures.len());
    }
    assert!(pictures[0] == pictures[1], "the same bytes for both");
    server.stop().await;
}

#[tokio::test]
async fn heavy_case_19_another_language_in_dash_leaves_the_picture_alone() {
    let setup = Setup::of(&["three-languages.mkv"]);
    let server = setup.start().await;
    // A player that has no AAC: all three sounds are encoded.
    let client = json!({"video": ["avc1.640028"], "audio": ["opus"]});
    let wish = json!({"video": "encode", "maxHeight": 180, "client": client});
    let play = Manifest::open(&server, "three-languages.mkv", wish)
        .await
        .unwrap();
    let (picture, sounds) = (play.picture(), play.sounds());
    assert!(play.text.contains("value=\"main\"") && play.text.contains("value=\"alternate\""));
    for n in 0..2 {
        play.segment(&server, picture, "0", n).await;
        play.segment(&server, sounds[0], &sounds[0].representations[0], n)
            .await;
    }
    let third = sounds[2];
    let sound = head(&play.segment(&server, third, &third.representations[0], 2).await);
    let shown = head(&play.segment(&server, picture, "0", 2).await);
    assert!(play.text.contains("codecs=\"opus\""));
    assert_eq!(sound.start, third.segments[2].0, "exact to the sample");
    assert!((picture.seconds(shown.start) - 12.0).abs() < 0.02);
    joined(&shown, picture.timescale, &sound, third.timescale);
    assert!(picture_encoders(&server) <= 1);
    server.stop().await;
}
