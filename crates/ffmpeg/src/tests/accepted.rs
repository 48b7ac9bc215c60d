//! Every plan that is kept as a golden file, carried out: a command line that reads well and is refused, or that
//! makes other tracks than it says, is of no use to anyone. Plans for devices are left to machines that have them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ether_media::Ticks;
use ether_process::Spec;

use super::film::{Studio, with_both_majors};
use crate::pipe::{Event, PipeReader};

/// The name that the golden files give their film.
const FILM: &str = "file:/films/-odd 'name' 100%.mkv";
/// What a plan has to make before it is believed.
const ENOUGH: Ticks = Ticks(Ticks::HZ);

with_both_majors!(every_plan_is_accepted_and_makes_what_it_says);

async fn every_plan_is_accepted_and_makes_what_it_says(ffmpeg: &Path) {
    let studio = Studio::with(ffmpeg).await;
    let films = films(&studio).await;
    let mut plans = 0;
    let mut refused = Vec::new();
    for (name, words) in plans_without_devices() {
        plans += 1;
        let film = match () {
            () if name.contains("-ts-") => &films[2],
            () if name.contains("mp4") => &films[1],
            () => &films[0],
        };
        let of_film = |word: &str| match word {
            FILM => OsString::from(format!("file:{}", film.display())),
            // Small pictures show the same, and are soon made.
            word => word
                .replace("1280:720", "320:180")
                .replace("960:540", "240:136")
                .into(),
        };
        let args = words.iter().map(|word| of_film(word)).collect();
        let maps = words.iter().filter(|word| *word == "-map").count();
        if let Err(why) = carry_out(&studio, ffmpeg, args, maps).await {
            refused.push(format!("{name}: {why}"));
        }
    }
    assert!(plans >= 20, "only {plans} plans were found");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// The golden files' names and words.
fn plans_without_devices() -> BTreeMap<String, Vec<String>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/plans");
    let files = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let plans = files.map(|path| {
        let words = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, words.lines().map(str::to_owned).collect::<Vec<_>>())
    });
    let of_device = |word: &String| ["-hwaccel", "-init_hw_device", "-vaapi_device"].contains(&word.as_str());
    // What draws subtitles needs a film that has them, and stories of its own that look at what is drawn.
    let of_burning = |name: &str| name.starts_with("burn-");
    // Streams are Matroska, and their own stories carry them out.
    let of_streams = |name: &str| name.starts_with("stream-");
    plans
        .filter(|(name, words)| !of_burning(name) && !of_streams(name) && !words.iter().any(of_device))
        .collect()
}

/// What the golden files are about, small: twenty seconds of Matroska, MP4 and a transport stream under a name
/// that means something to whoever does not take it as it is.
async fn films(studio: &Studio) -> [PathBuf; 3] {
    let mut films = ["mkv", "mp4", "ts"].map(|kind| studio.dir().join(format!("-odd 'name' 100%.{kind}")));
    for film in &mut films {
        let mut spec = Spec::new("ffmpeg");
        spec.args("-nostdin -v error -f lavfi -i testsrc2=s=320x180:r=24000/1001:d=20".split(' '));
        spec.args("-f lavfi -i aevalsrc=0.1*sin(440*t):c=5.1:s=44100:d=20 -ac 6".split(' '));
        spec.args("-c:v libx264 -preset ultrafast -g 96 -pix_fmt yuv420p -c:a ac3".split(' '));
        spec.args(["-output_ts_offset", "0.021", "-muxdelay", "0"]);
        spec.arg(format!("file:{}", film.display()));
        let bounds = ether_process::Bounds {
            stdin: None,
            max_output: 4096,
            deadline: Duration::from_secs(120),
        };
        studio.spawner().run_bounded(spec, bounds).await.unwrap();
    }
    films
}

/// Runs `args` until every track has [`ENOUGH`], or says what is wrong with them.
async fn carry_out(studio: &Studio, ffmpeg: &Path, args: Vec<OsString>, maps: usize) -> Result<(), String> {
    let mut spec = Spec::new(ffmpeg);
    spec.args(args).stdout_pipe();
    let mut child = studio.spawner().spawn(spec).await.unwrap();
    let pipe = child.take_stdout().unwrap();
    let (pipe, made) = tokio::task::spawn_blocking(move || {
        let mut pipe = PipeReader::new(pipe);
        let made = until_enough(&mut pipe);
        (pipe, made)
    })
    .await
    .unwrap();
    // Killed before its pipe goes, it has no reason to complain about that.
    child.kill();
    let gone = tokio::time::timeout(Duration::from_secs(60), child.exited());
    gone.await.expect("a killed process ends");
    drop(pipe);
    child.retired().await;
    let mut lines = child.stderr_lines();
    lines.retain(|line| !is_about_media(line));
    match made {
        Err(why) => Err(format!("{why}: {lines:?}")),
        Ok(tracks) if tracks != maps => Err(format!("{tracks} tracks of {maps}: {lines:?}")),
        Ok(_) if lines.is_empty() => Ok(()),
        Ok(_) => Err(format!("it complains: {lines:?}")),
    }
}

/// What FFmpeg says of pictures that it meets between keyframes, of sound that is copied, and of pictures that are
/// small: not of arguments.
fn is_about_media(line: &str) -> bool {
    let repeated = line.trim_start().starts_with("Last message repeated");
    let small = line.contains("Source height < 720p");
    repeated || small || line.starts_with("[h264 @") || line.ends_with("codec frame size is not set")
}

/// The tracks, once each of them has enough.
fn until_enough(pipe: &mut PipeReader<impl std::io::Read>) -> Result<usize, String> {
    let mut scales = Vec::new();
    let mut spans: Vec<Option<(Ticks, Ticks)>> = Vec::new();
    loop {
        match pipe.next().map_err(|error| error.to_string())? {
            Event::Tracks(tracks) => {
                scales = tracks.iter().map(|t| u64::from(t.timescale)).collect();
                spans = vec![None; scales.len()];
            }
            Event::Fragment(samples) => {
                for sample in samples {
                    let scale = scales[sample.track];
                    let start = Ticks::from_timescale(sample.pts, scale);
                    let end = start + Ticks::from_timescale(i64::from(sample.duration), scale);
                    let (first, last) = spans[sample.track].unwrap_or((start, end));
                    spans[sample.track] = Some((first.min(start), last.max(end)));
                }
                let enough = |span: &Option<(Ticks, Ticks)>| span.is_some_and(|(a, b)| b - a >= ENOUGH);
                if !spans.is_empty() && spans.iter().all(enough) {
                    return Ok(spans.len());
                }
            }
            Event::End => return Err(format!("it ended after {spans:?}")),
        }
    }
}
