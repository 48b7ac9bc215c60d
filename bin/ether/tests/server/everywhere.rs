//! Every real film in every protocol, read by FFmpeg: it begins, it goes on where it is sought to, or the server says
//! why not. The short tier takes the beginning of each and one place amid it; the long one looks all over.
//!
//! Segments are fetched as playlists and manifests name them, and not by FFmpeg's own readers of these, which lose
//! their way after a seek.

use hyper::Method;
use serde_json::{Value, json};

use crate::bed::{Server, Setup, program};
use crate::dash::{Manifest, Set};
use crate::films::real_films;
use crate::play::Play;

/// How far what is read may be from where it was declared, in seconds: a frame of the slowest film among them.
const NEAR: f64 = 0.1;
/// How long before the second that was asked for a copied stream may begin, which has to begin with a keyframe.
const BACK: f64 = 30.0;

#[tokio::test]
async fn heavy_real_films_in_fragmented_mp4() {
    every_film(json!({"protocol": "hls", "container": "fmp4"})).await;
}

#[tokio::test]
async fn heavy_real_films_in_transport_streams() {
    every_film(json!({"protocol": "hls", "container": "ts"})).await;
}

#[tokio::test]
async fn heavy_real_films_in_dash() {
    every_film(json!({"protocol": "dash"})).await;
}

#[tokio::test]
async fn heavy_real_films_in_one_stream() {
    every_film(json!({"protocol": "http"})).await;
}

async fn every_film(way: Value) {
    let Some(folder) = real_films() else {
        return;
    };
    let setup = Setup::new().folders(&[&folder]);
    let server = setup.start().await;
    let scanned = |library: &Value| {
        library["scanning"] == false && library["items"].as_array().is_some_and(|items| !items.is_empty())
    };
    let library = server.library(scanned).await;
    let (mut plays, mut refused, mut failures) = (0, Vec::new(), Vec::new());
    for problem in library["problems"].as_array().unwrap() {
        refused.push(format!("{}: not listed: {}", problem["file"], problem["reason"]));
    }
    for item in library["items"].as_array().unwrap() {
        let film = Film {
            setup: &setup,
            server: &server,
            file: item["file"].as_str().unwrap(),
            seconds: item["durationMs"].as_f64().unwrap_or(0.0) / 1_000.0,
        };
        match film.played(&way).await {
            Ok(Outcome::Plays) => plays += 1,
            Ok(Outcome::Refused(reason)) => refused.push(format!("{}: {reason}", film.file)),
            Err(what) => failures.push(format!("{}: {what}", film.file)),
        }
    }
    println!("{way}: {plays} play, {} do not: {refused:#?}", refused.len());
    assert!(failures.is_empty(), "{way}: {failures:#?}");
    assert!(plays > 15, "{way}: most of them play");
    server.rests().await;
    server.stop().await;
}

enum Outcome {
    Plays,
    /// With the reason.
    Refused(String),
}

struct Film<'a> {
    setup: &'a Setup,
    server: &'a Server,
    file: &'a str,
    seconds: f64,
}

impl Film<'_> {
    /// Plays it from its beginning and from places amid it.
    async fn played(&self, way: &Value) -> Result<Outcome, String> {
        let mut wish = way.clone();
        wish["maxHeight"] = json!(180);
        let answer = Play::ask(self.server, self.file, wish.clone()).await;
        if answer.status == 422 {
            let error = answer.json();
            let words = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
            let (code, message) = (words("code"), words("message"));
            return match code.is_empty() || message.is_empty() {
                true => Err(format!("refused without a reason: {error}")),
                false => Ok(Outcome::Refused(format!("{code}: {message}"))),
            };
        }
        let created = answer.expect(201).json();
        let id = created["id"].as_str().unwrap().to_owned();
        let played = match way["protocol"].as_str().unwrap() {
            "hls" => self.in_lists(created).await,
            "http" => self.in_one(&created, &wish).await,
            _ => {
                self.end(&id).await;
                self.in_dash(wish).await
            }
        };
        self.end(&id).await;
        played.map(|()| Outcome::Plays)
    }

    async fn end(&self, id: &str) {
        let target = format!("/ether/api/sessions/{id}");
        self.server.api(Method::DELETE, &target, None).await.expect(204);
    }

    /// Segments to look at, besides the first, of so many.
    fn places(&self, segments: usize) -> Vec<usize> {
        let mut places = vec![segments / 2];
        if soaks() {
            places.extend([segments - 1, segments / 4, segments * 3 / 4]);
        }
        places.retain(|n| *n > 0);
        places
    }

    async fn in_lists(&self, created: Value) -> Result<(), String> {
        let play = Play::of(self.server, created).await;
        let promised = |kind: &str| play.decision()[kind].is_object();
        let sound = play.sound().await;
        let together = sound.is_none();
        let (video, audio) = (promised("video"), promised("audio"));
        self.of_list(&play, video, audio && (together || !video)).await?;
        match sound {
            Some(sound) if video => self.of_list(&sound, false, true).await,
            _ => Ok(()),
        }
    }

    /// One list, whose segments hold what is said.
    async fn of_list(&self, play: &Play<'_>, video: bool, audio: bool) -> Result<(), String> {
        let init = play.init().await;
        let mut first = None;
        for n in std::iter::once(0).chain(self.places(play.segments())) {
            let answer = play.fetch(n).await;
            if answer.status != 200 {
                return Err(format!("segment {n}: {} {}", answer.status, answer.text()));
            }
            let seen = self.read(&[&init, &answer.body], n, video, audio).await?;
            let zero = *first.get_or_insert(seen);
            near(n, seen - zero, play.list.start(n) - play.list.start(0))?;
        }
        Ok(())
    }

    async fn in_dash(&self, wish: Value) -> Result<(), String> {
        let play = Manifest::open(self.server, self.file, wish)
            .await
            .map_err(|error| error.to_string())?;
        let picture = play.sets.iter().find(|set| set.kind == "video");
        let mut looked = Ok(());
        for set in picture.into_iter().chain(play.sounds()) {
            looked = looked.and(self.of_set(&play, set).await);
        }
        self.end(play.session["id"].as_str().unwrap()).await;
        looked
    }

    async fn of_set(&self, play: &Manifest, set: &Set) -> Result<(), String> {
        let name = &set.representations[0];
        let init = play.init(self.server, set, name).await;
        let video = set.kind == "video";
        let mut first = None;
        for n in std::iter::once(0).chain(self.places(set.segments.len())) {
            let media = play.segment(self.server, set, name, n).await;
            let seen = self.read(&[&init, &media], n, video, !video).await?;
            let zero = *first.get_or_insert(seen);
            let declared = set.seconds(set.segments[n].0) - set.seconds(set.segments[0].0);
            near(n, seen - zero, declared)?;
        }
        Ok(())
    }

    /// When what is in `parts` is first shown, or heard where there is no picture.
    async fn read(&self, parts: &[&[u8]], n: usize, video: bool, audio: bool) -> Result<f64, String> {
        let taken = self.setup.path("taken");
        std::fs::write(&taken, parts.concat()).unwrap();
        let promised = usize::from(video) + usize::from(audio);
        let read = decoded(taken.to_str().unwrap(), &[], promised).await;
        read.map_err(|what| format!("segment {n}: {what}"))
    }

    /// A stream cannot be sought in: its player asks for another, whose clock is the film's.
    async fn in_one(&self, created: &Value, wish: &Value) -> Result<(), String> {
        let promised = ["video", "audio"].into_iter();
        let promised = promised
            .filter(|kind| created["decision"][kind].is_object())
            .count();
        let zero = self.begins(created, promised).await?;
        let parts: &[f64] = if soaks() { &[0.5, 0.9, 0.25] } else { &[0.5] };
        for part in parts {
            let at = self.seconds * part;
            let mut wish = wish.clone();
            wish["offset"] = json!(at);
            let later = Play::ask(self.server, self.file, wish).await.expect(201).json();
            let first = self.begins(&later, promised).await;
            self.end(later["id"].as_str().unwrap()).await;
            let first = first? - zero;
            if !(at - BACK..at + NEAR).contains(&first) {
                return Err(format!("asked for from {at} s it begins at {first} s"));
            }
        }
        Ok(())
    }

    /// When the first picture of a stream comes, or the first sound where there is no picture.
    async fn begins(&self, created: &Value, promised: usize) -> Result<f64, String> {
        let address = format!(
            "http://{}{}",
            self.server.address,
            created["url"].as_str().unwrap()
        );
        decoded(&address, &["-frames:v", "8", "-frames:a", "16"], promised).await
    }
}

/// Decodes what is at `address` without a complaint, `promised` streams of it; the time of the first picture, or of the
/// first sound where there is no picture.
async fn decoded(address: &str, bounds: &[&str], promised: usize) -> Result<f64, String> {
    let mut command = program("ffmpeg");
    command.args([
        "-nostdin", "-v", "error", "-copyts", "-i", address, "-map", "0:v:0?", "-map", "0:a:0?",
    ]);
    // Every picture with its own time, and none made up for a rate.
    command
        .args(["-fps_mode", "passthrough"])
        .args(bounds)
        .args(["-f", "framecrc", "-"]);
    let output = command.output().await.map_err(|error| error.to_string())?;
    let complaints = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || !complaints.is_empty() {
        let first: Vec<&str> = complaints.lines().take(3).collect();
        return Err(format!("{}: {}", output.status, first.join(" | ")));
    }
    let firsts = firsts(&String::from_utf8_lossy(&output.stdout));
    match firsts.len() == promised {
        true => firsts
            .first()
            .copied()
            .ok_or_else(|| "nothing was promised".to_owned()),
        false => Err(format!("{} of {promised} streams come", firsts.len())),
    }
}

fn soaks() -> bool {
    std::env::var_os("ETHER_SOAK").is_some()
}

fn near(n: usize, seen: f64, declared: f64) -> Result<(), String> {
    match (seen - declared).abs() < NEAR {
        true => Ok(()),
        false => Err(format!(
            "segment {n} is declared at {declared} s and begins at {seen} s"
        )),
    }
}

/// Seconds at which each stream of FFmpeg's list of decoded frames begins, in the order of the streams.
fn firsts(list: &str) -> Vec<f64> {
    let mut scales = Vec::new();
    let mut firsts: Vec<Option<f64>> = Vec::new();
    for line in list.lines() {
        if let Some((_, scale)) = line.strip_prefix("#tb ").and_then(|tb| tb.split_once(": ")) {
            let (num, den) = scale.split_once('/').unwrap();
            scales.push(num.parse::<f64>().unwrap() / den.parse::<f64>().unwrap());
            firsts.push(None);
        } else if !line.starts_with('#') {
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let stream: usize = fields[0].parse().unwrap();
            let at = fields[2].parse::<f64>().unwrap() * scales[stream];
            let first = firsts[stream].get_or_insert(at);
            *first = first.min(at);
        }
    }
    firsts.into_iter().flatten().collect()
}
