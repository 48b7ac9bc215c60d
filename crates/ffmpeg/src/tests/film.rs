//! Films to encode, executions of them, and what their segments hold.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, AudioTrack, Device, Encoder, Execution, Input, Protocol, Request,
    Resource, Revision, Rung, SegmentContainer, ServeError, Start, VideoAction, VideoCodec, VideoEncode,
    VideoTrack,
};
use ether_media::{Facts, FileReader, Limits, MasteringKind, Ticks, Timeline, read_facts};
use ether_process::{Config, Processes};
use ether_types::{Clock, ManualClock, SystemClock};

use crate::pipe::{Event, PipeReader};
use crate::{HardwareWish, Inventory, LocalEncoder, LocalOptions};

/// The clips that the project makes for itself.
pub(crate) fn clip(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join("target/clips").join(name);
    assert!(path.exists(), "{} is missing: run `make clips`", path.display());
    path.canonicalize().unwrap()
}

pub(crate) struct Film {
    pub(crate) path: PathBuf,
    pub(crate) facts: Arc<Facts>,
}

impl Film {
    pub(crate) fn open(path: PathBuf) -> Self {
        Self::try_open(path).unwrap()
    }

    /// The film, if a native reader makes anything of it.
    pub(crate) fn try_open(path: PathBuf) -> Result<Self, ether_media::FactsError> {
        let mut reader = FileReader::new(std::fs::File::open(&path).unwrap().into()).unwrap();
        let mut facts = read_facts(&mut reader, &Limits::default())?;
        if facts.keyframes.is_none() && facts.main_video().is_some() {
            let mut progress = |_| {};
            let index = ether_media::scan_keyframes(&mut reader, &facts, &Limits::default(), &mut progress);
            facts.keyframes = index.ok();
        }
        let facts = Arc::new(facts);
        Ok(Self { path, facts })
    }

    pub(crate) fn clip(name: &str) -> Self {
        Self::open(clip(name))
    }

    /// The same film under a name of its own in `dir`: processes that read it are nobody else's.
    pub(crate) fn known_in(mut self, dir: &Path) -> Self {
        // Its folder is linked: a film that is itself a link is not opened.
        let folder = dir.join("films");
        std::os::unix::fs::symlink(self.path.parent().unwrap(), &folder).unwrap();
        self.path = folder.join(self.path.file_name().unwrap());
        self
    }

    pub(crate) fn start(&self, make: Make, scratch: u64) -> Start {
        self.start_request(self.request(make), scratch)
    }

    pub(crate) fn start_request(&self, request: Request, scratch: u64) -> Start {
        let revision = Revision::of_metadata(&std::fs::metadata(&self.path).unwrap());
        let input = Input::File {
            path: self.path.clone(),
            revision,
        };
        Start {
            request: Arc::new(request),
            input,
            scratch,
            first: 0,
        }
    }

    /// Start and length of the picture, or of the sound where there is none.
    fn span(&self) -> Option<(Ticks, Ticks)> {
        let stream = self.facts.main_video().or(self.facts.main_audio())?;
        let start = stream.start.unwrap_or(self.facts.start);
        let length = stream
            .duration
            .or(self.facts.duration.map(|d| d + self.facts.start - start))?;
        Some((start, length))
    }

    pub(crate) fn request(&self, make: Make) -> Request {
        self.try_request(make).unwrap()
    }

    /// The request, if the film's facts are enough for one.
    pub(crate) fn try_request(&self, make: Make) -> Option<Request> {
        let (origin, length) = self.span()?;
        let video = self.facts.main_video();
        let rate = video.and_then(|v| v.video()).and_then(|v| v.frame_rate);
        let target = Ticks(make.target * Ticks::HZ);
        let copied = make.copy_video && video.is_some();
        let timeline = if copied {
            let index = self.facts.keyframes.as_ref()?;
            Timeline::keyframes(origin, length, target, &index.times)
        } else {
            Timeline::grid(origin, length, target, rate)
        };
        let sound = self.facts.main_audio().and_then(|a| a.start).unwrap_or(origin);
        let encode = |v: &ether_media::VideoFacts| {
            VideoAction::Encode(VideoEncode {
                codec: VideoCodec::H264,
                device: Device::Software,
                rungs: vec![Rung {
                    // Small pictures have the same times, and are soon made.
                    width: (v.width / 4) & !1,
                    height: (v.height / 4) & !1,
                    max_bit_rate: 4_000_000,
                    level: 40,
                }],
                frame_rate: v.frame_rate.map(Into::into),
                deinterlace: false,
                range: MasteringKind::Sdr,
                burn: None,
                self_describing: false,
            })
        };
        let aac = AudioEncode {
            codec: AudioCodec::Aac,
            channels: 2,
            sample_rate: 48_000,
            bit_rate: 128_000,
        };
        Some(Request {
            facts: self.facts.clone(),
            protocol: Protocol::Hls {
                container: make.container,
            },
            timeline: Arc::new(timeline.ok()?.with_sound_from(sound)),
            video: video.map(|v| VideoTrack {
                stream: v.index,
                action: if copied {
                    VideoAction::Copy
                } else {
                    encode(v.video().unwrap())
                },
            }),
            audio: Vec::from_iter(self.facts.main_audio().map(|a| AudioTrack {
                stream: a.index,
                action: if make.copy_audio {
                    AudioAction::Copy
                } else {
                    AudioAction::Encode(aac)
                },
            })),
            subtitle: None,
        })
    }
}

/// What to make of a film.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Make {
    pub(crate) copy_video: bool,
    pub(crate) copy_audio: bool,
    pub(crate) container: SegmentContainer,
    pub(crate) target: i64,
}

pub(crate) const COPY: Make = Make {
    copy_video: true,
    copy_audio: true,
    container: SegmentContainer::Fmp4,
    target: 6,
};
pub(crate) const ENCODE: Make = Make {
    copy_video: false,
    copy_audio: false,
    container: SegmentContainer::Fmp4,
    target: 3,
};

/// Where the inventory of a program is kept: that of either FFmpeg for all tests, so that each is asked once.
fn kept_inventory(ffmpeg: &Path, dir: &Path) -> PathBuf {
    let name = match ffmpeg {
        ffmpeg if ffmpeg == Path::new("ffmpeg") => "ffmpeg-inventory.json",
        ffmpeg if ffmpeg.ends_with("ffmpeg-current/ffmpeg") => "ffmpeg-current-inventory.json",
        _ => return dir.join("inventory.json"),
    };
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tmp");
    std::fs::create_dir_all(&shared).unwrap();
    shared.join(name)
}

/// The FFmpegs that have to do the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Major {
    /// Debian's.
    Debian,
    /// A current one, which `make setup` puts beside Debian's.
    Current,
}

impl Major {
    /// The program; says so where it is not there, and its stories pass.
    pub(crate) fn program(self) -> Option<PathBuf> {
        let current = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ffmpeg-current/ffmpeg");
        match self {
            Self::Debian => Some("ffmpeg".into()),
            Self::Current if current.exists() => Some(current.canonicalize().unwrap()),
            Self::Current => {
                eprintln!("skipped: target/ffmpeg-current has no FFmpeg; `make setup` puts one there");
                None
            }
        }
    }
}

/// Makes a test of each story for each FFmpeg. A story takes the program's path.
macro_rules! with_both_majors {
    ($($(#[$about:meta])* $story:ident),* $(,)?) => {
        mod debian {
            $($(#[$about])* #[tokio::test] async fn $story() {
                if let Some(program) = $crate::tests::film::Major::Debian.program() {
                    super::$story(&program).await;
                }
            })*
        }
        mod current {
            $($(#[$about])* #[tokio::test] async fn $story() {
                if let Some(program) = $crate::tests::film::Major::Current.program() {
                    super::$story(&program).await;
                }
            })*
        }
    };
}
pub(crate) use with_both_majors;

/// An encoder with everything it needs, which proves at the end that nothing is left.
pub(crate) struct Studio {
    pub(crate) encoder: LocalEncoder,
    processes: Processes,
    pub(crate) clock: Arc<dyn Clock>,
    dir: tempfile::TempDir,
}

impl Studio {
    pub(crate) async fn open() -> Self {
        Self::with(Path::new("ffmpeg")).await
    }

    pub(crate) async fn with(ffmpeg: &Path) -> Self {
        Self::timed(ffmpeg, Arc::new(SystemClock::new())).await
    }

    /// An encoder that lives by `clock`; its processes end in the machine's own time all the same.
    pub(crate) async fn timed(ffmpeg: &Path, clock: Arc<dyn Clock>) -> Self {
        Self::built(ffmpeg, clock, 0).await
    }

    /// An encoder that keeps this many bytes of what it made.
    pub(crate) async fn keeping(kept: u64) -> Self {
        Self::built(Path::new("ffmpeg"), Arc::new(SystemClock::new()), kept).await
    }

    /// An encoder of which everything is told.
    pub(crate) async fn built(ffmpeg: &Path, clock: Arc<dyn Clock>, kept: u64) -> Self {
        let processes = Processes::start(Config::unguarded(Arc::new(SystemClock::new()))).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (spawner, cache) = (processes.spawner(), kept_inventory(ffmpeg, dir.path()));
        let options = LocalOptions {
            inventory: Inventory::load(&spawner, &SystemClock::new(), ffmpeg, &cache)
                .await
                .unwrap(),
            scratch: dir.path().to_owned(),
            kept,
            spawner: processes.spawner(),
            clock: clock.clone(),
            hardware: HardwareWish::Auto,
        };
        Self {
            encoder: LocalEncoder::new(options),
            processes,
            clock,
            dir,
        }
    }

    pub(crate) async fn start(&self, film: &Film, make: Make, scratch: u64) -> Arc<dyn Execution> {
        self.start_request(film, film.request(make), scratch).await
    }

    pub(crate) async fn start_request(
        &self,
        film: &Film,
        request: Request,
        scratch: u64,
    ) -> Arc<dyn Execution> {
        let started = self.encoder.start(film.start_request(request, scratch)).await;
        started.outcome.unwrap();
        started.execution
    }

    /// Another encoder like this one, with its scratch files in `dir`.
    pub(crate) async fn elsewhere(&self, dir: &Path) -> LocalEncoder {
        let ffmpeg = Path::new("ffmpeg");
        let (spawner, cache) = (self.processes.spawner(), kept_inventory(ffmpeg, self.dir.path()));
        let inventory = Inventory::load(&spawner, &SystemClock::new(), ffmpeg, &cache)
            .await
            .unwrap();
        let clock = self.clock.clone();
        LocalEncoder::new(LocalOptions {
            inventory,
            scratch: dir.to_owned(),
            kept: 0,
            spawner,
            clock,
            hardware: HardwareWish::Auto,
        })
    }

    pub(crate) fn spawner(&self) -> ether_process::Spawner {
        self.processes.spawner()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn close(self, execution: Arc<dyn Execution>) {
        execution.retire().await.unwrap();
        drop(execution);
        self.encoder.join().await;
        self.shut().await;
    }

    /// [`Studio::close`] under a clock that stands still unless it is moved: the supervisor may wait for a burst of
    /// requests to be complete.
    pub(crate) async fn close_under(self, clock: &ManualClock, execution: Arc<dyn Execution>) {
        let mut closing = std::pin::pin!(self.close(execution));
        loop {
            tokio::select! {
                () = &mut closing => break,
                () = tokio::time::sleep(Duration::from_millis(1)) => clock.advance(Duration::from_secs(1)),
            }
        }
    }

    /// Waits until no process is left.
    pub(crate) async fn shut(self) {
        self.processes.shutdown().await;
    }
}

/// A program `name` in `dir` that is this shell script.
pub(crate) fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

pub(crate) fn segment(number: u32) -> Resource {
    Resource::Segment {
        representation: 0,
        number,
    }
}

pub(crate) const INIT: Resource = Resource::Init { representation: 0 };

/// The bytes of `resource`, waited for at most a minute: nobody waits for ever.
pub(crate) async fn fetch(execution: &dyn Execution, resource: Resource) -> Result<Vec<u8>, ServeError> {
    let bound = std::time::Duration::from_secs(60);
    let served = tokio::time::timeout(bound, execution.serve(resource))
        .await
        .expect("an answer within a minute")?;
    let mut stream = served.media.stream(0..served.len);
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next_piece().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    assert_eq!(bytes.len() as u64, served.len);
    Ok(bytes)
}

/// What a segment holds: times of every sample in units of its track.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Shape {
    /// Decode time, presentation time, duration, keyframe.
    pub(crate) pictures: Vec<(i64, i64, u32, bool)>,
    /// Start and duration.
    pub(crate) sounds: Vec<(i64, u32)>,
}

impl Shape {
    pub(crate) fn read(init: &[u8], segment: &[u8]) -> Self {
        let whole = [init, segment].concat();
        let mut reader = PipeReader::new(whole.as_slice());
        let mut shape = Shape::default();
        let mut video = None;
        loop {
            match reader.next().unwrap() {
                Event::Tracks(tracks) => video = tracks.iter().position(|t| &t.handler == b"vide"),
                Event::Fragment(samples) => {
                    for s in samples {
                        if Some(s.track) == video {
                            shape.pictures.push((s.dts, s.pts, s.duration, s.key));
                        } else {
                            shape.sounds.push((s.dts, s.duration));
                        }
                    }
                }
                Event::End => return shape,
            }
        }
    }

    /// The first thing that differs in `other`, in words.
    pub(crate) fn difference(&self, other: &Self) -> Option<String> {
        let counts = |s: &Self| (s.pictures.len(), s.sounds.len());
        if counts(self) != counts(other) {
            let edge = |s: &Self| {
                (
                    s.pictures.first().copied(),
                    s.sounds.first().copied(),
                    s.sounds.last().copied(),
                )
            };
            return Some(format!(
                "{:?} samples became {:?}; edges {:?} became {:?}",
                counts(self),
                counts(other),
                edge(self),
                edge(other)
            ));
        }
        let picture = self
            .pictures
            .iter()
            .zip(&other.pictures)
            .enumerate()
            .find(|(_, (a, b))| a != b);
        let sound = self
            .sounds
            .iter()
            .zip(&other.sounds)
            .enumerate()
            .find(|(_, (a, b))| a != b);
        match (picture, sound) {
            (None, None) => None,
            (picture, sound) => Some(format!("picture {picture:?}, sound {sound:?}")),
        }
    }

    pub(crate) fn first_shown(&self) -> Option<i64> {
        self.pictures.iter().map(|p| p.1).min()
    }
}

/// FFmpeg processes of this test process that have `path` among their arguments.
pub(crate) fn ffmpegs_reading(path: &Path) -> Vec<rustix::process::Pid> {
    let wanted = path.as_os_str().as_encoded_bytes();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers
        .filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let parent = stat
                .rsplit(") ")
                .next()
                .and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
            parent == Some(std::process::id()) && line.windows(wanted.len()).any(|part| part == wanted)
        })
        .filter_map(rustix::process::Pid::from_raw)
        .collect()
}
