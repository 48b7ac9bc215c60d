//! What can be read about one playback: why it was decided so, what it waits for, what was refused and why.

use std::collections::VecDeque;

use ether_encoder::{EncoderState, Ended, Observation, Refusal};
use ether_types::Timestamp;
use serde::Serialize;

use super::failure::{EndedWords, plain};
use super::{Encoding, EncodingView, Playback};
use crate::lifecycle::{EndReason, Slot, ViewerState};
use crate::ports::{CapacityRefusal, Units};

/// Refusals that are remembered of one playback, newest last.
const REMEMBERED: usize = 16;

#[derive(Default)]
pub(crate) struct Refusals(VecDeque<Refused>);

impl Refusals {
    pub(super) fn push(&mut self, refused: Refused) {
        if let Some(last) = self.0.back_mut().filter(|last| last.code == refused.code) {
            last.times += 1;
            last.at = refused.at;
            last.message = refused.message;
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(refused);
    }
}

/// One thing that was refused or went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    /// When it last happened.
    pub at: Timestamp,
    /// A short word for programs.
    pub code: &'static str,
    /// The reason, for people.
    pub message: String,
    /// How often it happened in a row.
    pub times: u32,
}

impl Refused {
    fn new(at: Timestamp, code: &'static str, message: String) -> Self {
        Self {
            at,
            code,
            message,
            times: 1,
        }
    }

    pub(crate) fn capacity(at: Timestamp, refusal: &CapacityRefusal) -> Self {
        Self::new(at, capacity_code(refusal), refusal.to_string())
    }

    pub(super) fn encoder(at: Timestamp, refusal: &Refusal) -> Self {
        Self::new(at, encoder_code(refusal), refusal.to_string())
    }

    pub(super) fn start(at: Timestamp, error: &ether_encoder::StartError) -> Self {
        Self::new(at, "encoder_not_started", error.to_string())
    }

    pub(super) fn ended(at: Timestamp, ended: &Ended) -> Self {
        let words = EndedWords::of(ended);
        Self::new(at, words.code, words.to_string())
    }
}

/// The word for a refusal of capacity.
pub(crate) fn capacity_code(refusal: &CapacityRefusal) -> &'static str {
    match refusal {
        CapacityRefusal::Encoders { .. } => "capacity_encoders",
        CapacityRefusal::Scratch { .. } => "capacity_scratch",
        CapacityRefusal::QueueFull { .. } => "capacity_queue_full",
        CapacityRefusal::Closed => "closed",
        CapacityRefusal::None => "capacity_none",
        CapacityRefusal::Unavailable => "capacity_unavailable",
    }
}

/// The word for a refusal of the encoder's own.
pub(crate) fn encoder_code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Encoders => "capacity_encoders",
        Refusal::Scratch => "capacity_scratch",
        Refusal::Device => "capacity_device",
        Refusal::DeviceLost => "device_lost",
    }
}

/// An encoder's failure as the last request met with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureView {
    /// When.
    pub at: Timestamp,
    /// A short word for programs.
    pub code: &'static str,
    /// What failed, why, and what happens next, for people.
    pub message: String,
    /// How often in a row making this part of the film failed.
    pub times: u32,
}

/// Where a playback stands, in the words of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Nothing runs and nothing is charged.
    Idle,
    /// Media was asked for and waits for capacity or for the encoder.
    Waiting,
    /// An execution serves.
    Running,
    /// The newest request for media was answered with the failure of an encoder, and none was served since.
    Failed,
    /// It has ended; its encoder's end may still await proof.
    Ended,
}

/// One playback at one moment.
#[derive(Clone, Debug)]
pub struct Report {
    /// Where it stands.
    pub stage: Stage,
    /// What the viewer says it does.
    pub viewer: ViewerState,
    /// Why it has ended, where it has.
    pub ended: Option<EndReason>,
    /// What it is charged, whatever awaits proof included.
    pub charged: Units,
    /// How many sessions watch its encoder, this one included; they are charged together.
    pub viewers: usize,
    /// Executions that were told to end and are not proved ended.
    pub unproved: u32,
    /// What encodes its picture, and why; absent when the file itself is handed over.
    pub encoding: Option<EncodingView>,
    /// The newest sample of its encoder, where it had one.
    pub encoder: Option<Sample>,
    /// The failure that the newest request for media met with; absent once media was served again.
    pub failure: Option<FailureView>,
    /// What was refused or went wrong, newest last.
    pub refusals: Vec<Refused>,
    /// The encoder's last words, newest last.
    pub log: Vec<String>,
}

/// The part of an encoder's sample that a viewer and an owner are shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sample {
    /// When it was taken.
    pub sampled_at: Timestamp,
    /// What the encoder does.
    pub state: EncoderState,
    /// How often an encoder process was started.
    pub runs: u32,
    /// Segment that the newest run began with.
    pub run_start: Option<u32>,
    /// Highest segment that was asked for.
    pub requested: Option<u32>,
    /// Media time up to which segments are finished, in milliseconds.
    pub produced_ms: Option<i64>,
    /// Media time that is finished from where the viewer asked last, in milliseconds.
    pub recovery_ms: i64,
    /// Media seconds made in a second, over the last seconds.
    pub speed: Option<f64>,
    /// Bits a second handed out over the last seconds.
    pub goodput_bits_per_second: Option<u64>,
    /// Whether a device other than the processor encodes.
    pub hardware: bool,
    /// Bytes written to scratch so far.
    pub bytes_produced: u64,
    /// Bytes of scratch held.
    pub scratch_used: u64,
    /// Bytes of scratch that may be held.
    pub scratch_limit: u64,
    /// How the newest run ended, where it has: a short word and the reason for people.
    pub ended: Option<EndedView>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EndedView {
    /// A short word for programs.
    pub code: &'static str,
    /// The reason, for people.
    pub message: String,
}

impl Sample {
    fn of(observation: &Observation) -> Self {
        Self {
            sampled_at: observation.sampled_at,
            state: observation.state,
            runs: observation.runs,
            run_start: observation.run_start,
            requested: observation.requested,
            produced_ms: observation.produced.map(|at| at.as_millis()),
            recovery_ms: observation.recovery.as_millis(),
            speed: observation.speed,
            goodput_bits_per_second: observation.goodput_bits_per_second,
            hardware: observation.hardware(),
            bytes_produced: observation.bytes_produced,
            scratch_used: observation.scratch_used,
            scratch_limit: observation.scratch_limit,
            ended: observation.ended.as_ref().map(|ended| {
                let words = EndedWords::of(ended);
                EndedView {
                    code: words.code,
                    message: words.to_string(),
                }
            }),
        }
    }
}

impl Playback {
    /// Where it stands now.
    pub fn report(&self) -> Report {
        let (work, mut report, last) = {
            let shared = self.shared();
            let stage = match (shared.sealed, shared.slot) {
                (Some(_), _) => Stage::Ended,
                (None, _) if shared.failures.newest().is_some() => Stage::Failed,
                (None, None | Some(Slot::Empty)) => Stage::Idle,
                (None, Some(Slot::Live)) => Stage::Running,
                (None, Some(Slot::Succeeding | Slot::Reserving | Slot::Starting)) => Stage::Waiting,
            };
            let report = Report {
                stage,
                viewer: shared.viewer,
                ended: shared.sealed,
                charged: shared.charged,
                viewers: 0,
                unproved: shared.unproved,
                encoding: shared.encoding.as_ref().map(Encoding::view),
                encoder: None,
                failure: shared.failures.newest().map(|failure| FailureView {
                    at: failure.at,
                    code: failure.code(),
                    message: failure.to_string(),
                    times: failure.times,
                }),
                refusals: shared.refusals.0.iter().cloned().collect(),
                log: Vec::new(),
            };
            (shared.work.clone(), report, shared.last.clone())
        };
        // Sampled outside the lock: it is the encoder's own code.
        report.viewers = work.as_ref().map_or(0, |work| work.viewers());
        let observation = work.map(|work| work.execution.observe()).or(last);
        if let Some(observation) = observation {
            report.encoder = Some(Sample::of(&observation));
            report.log = observation.log.iter().map(|line| plain(line)).collect();
        }
        report
    }
}
