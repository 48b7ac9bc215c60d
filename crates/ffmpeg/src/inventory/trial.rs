//! What a device really does: a few frames are encoded with the arguments of the plans, and what comes out is
//! compared with what it was told (D2).

use std::path::Path;
use std::time::Duration;

use ether_encoder::{Device, Rung, VideoCodec, VideoEncode};
use ether_media::MasteringKind;
use ether_process::{Bounds, RunError, Spawner, Spec};
use ether_types::Timestamp;
use serde::{Deserialize, Serialize};

use super::lists::{ANSWER, QUESTION};
use crate::boxes::find;
use crate::devices::Fault;
use crate::pipe::{Event, PipeReader, PipeTrack};
use crate::plan::{Arguments, codec};
use crate::strand::RungSet;

/// Bytes of fixed fields before the boxes of a visual sample entry.
const VISUAL_FIXED: usize = 78;
/// How long a trial that did not succeed is believed. Whatever it failed by may have been mended meanwhile, and not
/// all of that shows in the identity of the drivers: a card was reset, a service restarted, a container allowed in.
pub(crate) const FAILURE_STANDS: Duration = Duration::from_secs(10 * 60);

/// What one device makes of one codec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// The device.
    pub device: Device,
    /// The codec.
    pub codec: VideoCodec,
    /// What came of it.
    pub verdict: Verdict,
    /// When that was, by the wall clock.
    pub tried_at: Timestamp,
}

impl Trial {
    /// Whether at `now` it says nothing (any more) and the device is to be tried anew. Success stands until FFmpeg
    /// or a driver changes, and other failures for [`FAILURE_STANDS`]; that a device was full a while ago says
    /// nothing about it.
    pub(super) fn is_open(&self, now: Timestamp) -> bool {
        match self.verdict {
            Verdict::Works => false,
            Verdict::Full | Verdict::Unknown => true,
            Verdict::Failed { .. } | Verdict::OtherConfiguration => {
                // A clock that was set back makes every age unknown.
                now < self.tried_at || now.saturating_since(self.tried_at) >= FAILURE_STANDS
            }
        }
    }
}

/// What came of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub enum Verdict {
    /// It encodes, with the profile and level that it is told.
    Works,
    /// It does not encode.
    Failed {
        /// The deciding one of FFmpeg's last words.
        said: String,
    },
    /// It encodes with another profile or level than it is told: no playlist can announce what it gives.
    OtherConfiguration,
    /// It takes no session at the moment: others use all that it has. This says nothing of what it can do.
    Full,
    /// It was not tried, or the trial took too long.
    Unknown,
}

/// Encodes a few frames on `device`, within the time that one question may take. Cancelling ends the trial.
pub(crate) async fn try_device(
    spawner: &Spawner,
    program: &Path,
    device: Device,
    codec: VideoCodec,
) -> Verdict {
    let encode = encoding(device, codec);
    let mut spec = Spec::new(program);
    spec.args(arguments(&encode)).stdout_pipe();
    let bounds = Bounds {
        stdin: None,
        max_output: ANSWER,
        deadline: QUESTION,
    };
    match spawner.run_bounded(spec, bounds).await {
        Ok(output) => match PipeReader::new(output.stdout.as_slice()).next() {
            Ok(Event::Tracks(tracks)) => {
                let told = encode.rungs.first();
                let kept = tracks.first().zip(told);
                match kept.is_some_and(|(track, rung)| announced(track, codec, rung)) {
                    true => Verdict::Works,
                    false => Verdict::OtherConfiguration,
                }
            }
            _ => Verdict::Failed {
                said: "what it made cannot be read".to_owned(),
            },
        },
        Err(RunError::Failed { stderr, .. }) => match Fault::of(device, &stderr, false) {
            Some(Fault::Full) => Verdict::Full,
            _ => Verdict::Failed {
                said: deciding(&stderr),
            },
        },
        Err(RunError::TooMuchOutput { .. }) => Verdict::Failed {
            said: "it made more than a few frames can be".to_owned(),
        },
        Err(RunError::DeadlineExceeded { .. } | RunError::Spawn(_)) => Verdict::Unknown,
    }
}

/// Whether the decoder configuration of `track` has the profile and level that `rung` was announced with.
pub(crate) fn announced(track: &PipeTrack, codec: VideoCodec, rung: &Rung) -> bool {
    let boxes = track.entry.get(VISUAL_FIXED..).unwrap_or_default();
    match codec {
        VideoCodec::H264 => find(boxes, b"avcC")
            .is_some_and(|avcc| avcc.get(1) == Some(&100) && avcc.get(3) == Some(&rung.level)),
        // Main 10 in the main tier.
        VideoCodec::Hevc => find(boxes, b"hvcC").is_some_and(|hvcc| {
            hvcc.get(1).is_some_and(|profile| profile & 0x3f == 2) && hvcc.get(12) == Some(&rung.level)
        }),
    }
}

/// The line that says most about why a device failed: the first that names it, else the first at all.
pub(crate) fn deciding(lines: &[String]) -> String {
    let names = [
        "vaapi",
        "nvenc",
        "qsv",
        "VA ",
        "cuda",
        "CUDA",
        "MFX",
        "Device creation",
        "HWDevice",
    ];
    let telling = lines
        .iter()
        .find(|line| names.iter().any(|name| line.contains(name)));
    let line = telling.or(lines.first()).map_or("nothing", String::as_str);
    // Addresses in memory tell nothing and differ every time.
    let words = line
        .split(' ')
        .filter(|word| *word != "@" && !word.starts_with("0x"));
    words.collect::<Vec<_>>().join(" ")
}

fn encoding(device: Device, codec: VideoCodec) -> VideoEncode {
    let rung = Rung {
        width: 640,
        height: 360,
        max_bit_rate: 2_000_000,
        level: match codec {
            VideoCodec::H264 => 31,
            VideoCodec::Hevc => 93,
        },
    };
    VideoEncode {
        codec,
        device,
        rungs: vec![rung],
        frame_rate: None,
        deinterlace: false,
        range: MasteringKind::Sdr,
        burn: None,
        self_describing: false,
    }
}

fn arguments(encode: &VideoEncode) -> Vec<std::ffi::OsString> {
    let mut args = Arguments::default();
    args.add("-hide_banner -nostdin -nostats -loglevel warning");
    codec::device_arguments(&mut args, encode.device);
    args.add("-f lavfi -i testsrc2=size=1280x720:rate=24:duration=0.5 -vf");
    args.one(codec::tried(encode).join(","));
    codec::video_arguments(&mut args, encode, RungSet::one(0));
    args.add("-force_key_frames 0.25 -f mp4 -movflags +delay_moov+default_base_moof+frag_keyframe pipe:1");
    args.0
}
