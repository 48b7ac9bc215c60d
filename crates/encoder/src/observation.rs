//! One immutable sample of an execution (T20, E8). Never a proof of absence or of retirement.

use ether_media::Ticks;
use ether_types::{Monotonic, Timestamp};
use serde::{Deserialize, Serialize};

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
