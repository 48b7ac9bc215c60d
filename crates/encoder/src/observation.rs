//! One immutable sample of an execution (T20, E8). Never a proof of absence or of retirement.

use ether_media::Ticks;
use ether_types::{Monotonic, Timestamp};
use serde::{Deserialize, Serialize};

use crate::request::{AudioAction, Device, Protocol, Request, VideoAction};

/// A sample of one execution, taken in one go.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Wall time of the sample on the encoder's node.
    pub sampled_at: Timestamp,
    /// Monotonic time of the sample in the encoder's process.
    pub sampled_monotonic: Monotonic,
    /// What the encoder is doing.
    pub state: EncoderState,
    /// How often an encoder process was started for this execution.
    pub runs: u32,
    /// Segment that the newest run was started at, where there was one.
    pub run_start: Option<u32>,
    /// Highest segment that was asked for.
    pub requested: Option<u32>,
    /// Media time up to which the newest run has finished segments.
    pub produced: Option<Ticks>,
    /// Bytes written to scratch by all runs.
    pub bytes_produced: u64,
    /// Bytes of scratch held now.
    pub scratch_used: u64,
    /// Bytes of scratch that may be held.
    pub scratch_limit: u64,
    /// Why the newest run ended, where it has.
    pub ended: Option<Ended>,
    /// The encoder's last words, without paths or addresses; newest last.
    pub log: Vec<String>,
    /// The encoder's own first line about itself; empty where it is not known.
    pub version: String,
    /// What encodes the picture; the processor where nothing is encoded.
    pub device: Device,
    /// What is made of the source; absent where nothing could be started.
    pub work: Option<Work>,
    /// Media time at which the segment begins that was asked for last.
    pub position: Option<Ticks>,
    /// Media time that is finished from there on: what the viewer can still have if the encoder stops now.
    pub recovery: Ticks,
    /// Media seconds that the newest run makes in a second, over the last seconds; absent until that is known.
    pub speed: Option<f64>,
    /// Bits a second that were handed out over the last seconds; absent until that is known. Of a remote
    /// execution this is what its controller fetched and not what a viewer did.
    pub goodput_bits_per_second: Option<u64>,
}

impl Observation {
    /// A sample of an execution that has nothing to show.
    pub fn idle(sampled_at: Timestamp, sampled_monotonic: Monotonic) -> Self {
        Self {
            sampled_at,
            sampled_monotonic,
            state: EncoderState::Idle,
            runs: 0,
            run_start: None,
            requested: None,
            produced: None,
            bytes_produced: 0,
            scratch_used: 0,
            scratch_limit: 0,
            ended: None,
            log: Vec::new(),
            version: String::new(),
            device: Device::Software,
            work: None,
            position: None,
            recovery: Ticks::ZERO,
            speed: None,
            goodput_bits_per_second: None,
        }
    }

    /// Whether a device other than the processor encodes.
    pub fn hardware(&self) -> bool {
        self.device.is_hardware()
    }
}

/// What an execution makes of its source: the part of its request that a sample repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Work {
    /// Protocol and container.
    pub protocol: Protocol,
    /// What happens to the picture, where there is one.
    pub video: Option<Treatment>,
    /// What happens to the sound that is played unless another is chosen.
    pub audio: Option<Treatment>,
    /// Qualities of the picture.
    pub qualities: u8,
    /// Length that segments aim at: the longest one's.
    pub segment: Ticks,
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Treatment {
    /// Its packets are taken over.
    Copied,
    /// It is decoded and encoded anew.
    Encoded,
}

impl Work {
    /// What `request` asks for.
    pub fn of(request: &Request) -> Self {
        let video = request.video.as_ref().map(|track| match track.action {
            VideoAction::Copy => Treatment::Copied,
            VideoAction::Encode(_) => Treatment::Encoded,
        });
        let audio = request.audio.first().map(|track| match track.action {
            AudioAction::Copy => Treatment::Copied,
            AudioAction::Encode(_) => Treatment::Encoded,
        });
        let timeline = &request.timeline;
        let longest = (0..timeline.len()).map(|n| timeline.duration(n)).max();
        Self {
            protocol: request.protocol,
            video,
            audio,
            qualities: u8::try_from(request.rungs()).unwrap_or(u8::MAX),
            segment: longest.unwrap_or(Ticks::ZERO),
        }
    }
}

/// Whether executions of `protocol` offer samples to other machines (T20).
pub fn offers_samples(protocol: Protocol) -> bool {
    !matches!(protocol, Protocol::Http { .. })
}

/// What an encoder is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EncoderState {
    /// No encoder process runs; one starts when media is asked for.
    Idle,
    /// An encoder process runs.
    Running,
    /// An encoder process runs and is held back until the viewer catches up.
    HeldBack,
    /// The execution was told to end.
    Retiring,
}

/// Why an encoder process ended. Each is its own outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "ended")]
pub enum Ended {
    /// It reached the end of the presentation.
    Complete,
    /// The source ran out before the presentation's end.
    SourceTruncated {
        /// Media time of the last picture or sound that could be made.
        at: Ticks,
    },
    /// The file was replaced or rewritten under the playback.
    SourceChanged,
    /// The source could not be opened or read.
    SourceLost,
    /// Scratch space ran out: the disk is full.
    ScratchFull,
    /// One segment alone is larger than the scratch space that was booked.
    SegmentTooLarge {
        /// The segment.
        segment: u32,
        /// Bytes of scratch that were booked for what makes it.
        scratch: u64,
    },
    /// Output did not keep the promised bounds.
    BoundViolated {
        /// The segment that was to start.
        segment: u32,
    },
    /// The decoder configuration differs from the one that viewers already have (D2).
    ConfigurationChanged,
    /// The output could not be understood.
    Unreadable,
    /// The encoder lived and made nothing for too long.
    Stalled,
    /// The encoder process failed.
    Failed {
        /// Its exit status, where it exited by itself.
        status: Option<i32>,
        /// The signal that ended it, where one did.
        signal: Option<i32>,
    },
    /// Another run took its place, or the execution was told to end.
    Stopped,
}
