//! What is held against a device, and for how long.
//!
//! ```text
//!   used ──takes no session──▶ full ──half a minute──▶ used
//!     │                          ▲
//!     │                     no session
//!     │                          │
//!     └──a run failed──▶ suspected, tried ──works──▶ used
//!                            ▲     │
//!                            └─────┘ fails: tried again some minutes later
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{Device, Rejection, VideoCodec};
use ether_media::Facts;
use ether_types::Monotonic;

use super::{Fault, Trouble};
use crate::inventory::{FAILURE_STANDS, Trial, Verdict};

/// How long a device is passed over that took no further session.
pub(super) const FULL_FOR: Duration = Duration::from_secs(30);
/// How long a film that failed on a device is left to others, and counts against the device.
pub(super) const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// Films that failed by a device's own fault within that time, after which it is passed over although it passes
/// its trials: they show too little then.
const STRIKES: usize = 3;
/// Failures that are remembered; the oldest is forgotten.
const MOST: usize = 64;

/// What happened to devices since the start.
#[derive(Debug, Default)]
pub(super) struct Record {
    known: Vec<Known>,
    failures: VecDeque<Failure>,
}

/// What happened to one device with one codec.
#[derive(Debug)]
struct Known {
    device: Device,
    codec: VideoCodec,
    full_until: Option<Monotonic>,
    /// What speaks against it until a trial has proved it again.
    suspected: Option<String>,
    /// From when on another trial may show something new.
    try_at: Option<Monotonic>,
    /// Whether a trial is under way, and whether a run has failed since it began.
    trying: bool,
    failed_since: bool,
}

/// A film that failed on a device.
#[derive(Debug)]
struct Failure {
    device: Device,
    codec: VideoCodec,
    facts: Arc<Facts>,
    at: Monotonic,
    said: String,
    /// Whether the device itself said so.
    own: bool,
}

impl Record {
    /// Nothing happened yet but the `trials` of the start.
    pub(super) fn begin(trials: &[Trial], now: Monotonic) -> Self {
        let mut record = Self::default();
        for trial in trials {
            let known = record.of(trial.device, trial.codec);
            known.try_at = match trial.verdict {
                Verdict::Works => None,
                Verdict::Full => Some(now.saturating_add(FULL_FOR)),
                Verdict::Failed { .. } | Verdict::OtherConfiguration | Verdict::Unknown => {
                    Some(now.saturating_add(FAILURE_STANDS))
                }
            };
        }
        record
    }

    /// What speaks against devices at `now` for a film with these `facts`.
    pub(super) fn trouble(&self, facts: &Arc<Facts>, now: Monotonic) -> Vec<Trouble> {
        let why = |known: &Known| {
            let recent = |failure: &&Failure| {
                (failure.device, failure.codec) == (known.device, known.codec)
                    && now.saturating_since(failure.at) < REMEMBERED
            };
            let recent: Vec<&Failure> = self.failures.iter().filter(recent).collect();
            if let Some(said) = &known.suspected {
                return Some(Rejection::Lost { said: said.clone() });
            }
            let own: Vec<&&Failure> = recent.iter().filter(|failure| failure.own).collect();
            if let Some(last) = own.last().filter(|_| own.len() >= STRIKES) {
                let said = last.said.clone();
                return Some(Rejection::Lost { said });
            }
            if let Some(failure) = recent.iter().find(|failure| same(&failure.facts, facts)) {
                let said = failure.said.clone();
                return Some(Rejection::Film { said });
            }
            let full = known.full_until.is_some_and(|until| now < until);
            full.then_some(Rejection::Full)
        };
        let trouble = |known: &Known| {
            let (device, codec) = (known.device, known.codec);
            why(known).map(|why| Trouble { device, codec, why })
        };
        self.known.iter().filter_map(trouble).collect()
    }

    /// A device took no session.
    pub(super) fn full(&mut self, device: Device, codec: VideoCodec, now: Monotonic) {
        self.of(device, codec).full_until = Some(now.saturating_add(FULL_FOR));
    }

    /// A run failed, by whoever's fault.
    pub(super) fn failed(
        &mut self,
        device: Device,
        codec: VideoCodec,
        facts: &Arc<Facts>,
        fault: Fault,
        now: Monotonic,
    ) {
        let (said, own) = match fault {
            Fault::Failed { said } => (said, true),
            Fault::Unclear { said } => (said, false),
            Fault::Full => return self.full(device, codec, now),
        };
        let known = self.of(device, codec);
        known.suspected = Some(said.clone());
        known.failed_since = true;
        let again = |failure: &Failure| {
            (failure.device, failure.codec) == (device, codec) && same(&failure.facts, facts)
        };
        // A film counts once, however often it is tried.
        let own = own || self.failures.iter().any(|failure| again(failure) && failure.own);
        self.failures.retain(|failure| !again(failure));
        if self.failures.len() >= MOST {
            self.failures.pop_front();
        }
        self.failures.push_back(Failure {
            device,
            codec,
            facts: facts.clone(),
            at: now,
            said,
            own,
        });
    }

    /// Devices of which a new trial may show at `now` that they can encode `codec` after all.
    pub(super) fn due(&self, codec: VideoCodec, now: Monotonic) -> Vec<Device> {
        let due = |known: &&Known| known.codec == codec && known.try_at.is_some_and(|at| at <= now);
        self.known.iter().filter(due).map(|known| known.device).collect()
    }

    /// Whether a trial is to begin: none is under way.
    pub(super) fn begin_trial(&mut self, device: Device, codec: VideoCodec) -> bool {
        let known = self.of(device, codec);
        let begins = !std::mem::replace(&mut known.trying, true);
        if begins {
            known.failed_since = false;
        }
        begins
    }

    /// Takes in a trial that ended at `now`. False where it says nothing, since a run failed while it was under way:
    /// then it is to be repeated.
    pub(super) fn tried(
        &mut self,
        device: Device,
        codec: VideoCodec,
        verdict: &Verdict,
        now: Monotonic,
    ) -> bool {
        let known = self.of(device, codec);
        if std::mem::take(&mut known.failed_since) && *verdict == Verdict::Works {
            return false;
        }
        known.trying = false;
        known.try_at = Some(now.saturating_add(FAILURE_STANDS));
        match verdict {
            Verdict::Works => (known.suspected, known.try_at) = (None, None),
            // It answers, and others use all that it has.
            Verdict::Full => {
                let until = now.saturating_add(FULL_FOR);
                (known.suspected, known.full_until, known.try_at) = (None, Some(until), Some(until));
            }
            Verdict::Failed { said } => known.suspected = known.suspected.take().map(|_| said.clone()),
            Verdict::OtherConfiguration | Verdict::Unknown => {}
        }
        true
    }

    fn of(&mut self, device: Device, codec: VideoCodec) -> &mut Known {
        let found = self
            .known
            .iter()
            .position(|k| k.device == device && k.codec == codec);
        let at = found.unwrap_or_else(|| {
            self.known.push(Known {
                device,
                codec,
                full_until: None,
                suspected: None,
                try_at: None,
                trying: false,
                failed_since: false,
            });
            self.known.len() - 1
        });
        &mut self.known[at]
    }
}

/// Whether facts are of the same film: of a file whose facts were read twice they are equal.
fn same(a: &Arc<Facts>, b: &Arc<Facts>) -> bool {
    Arc::ptr_eq(a, b) || a == b
}

#[cfg(test)]
mod tests {
    use ether_types::Timestamp;

    use super::*;
    use crate::tests::film::Film;

    const CARD: Device = Device::Nvenc { gpu: 0 };
    const CODEC: VideoCodec = VideoCodec::H264;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    fn fault() -> Fault {
        Fault::Failed {
            said: "broke".to_owned(),
        }
    }

    fn is_lost(record: &Record, facts: &Arc<Facts>, now: Monotonic) -> bool {
        matches!(
            record.trouble(facts, now)[..],
            [Trouble {
                why: Rejection::Lost { .. },
                ..
            }]
        )
    }

    #[test]
    fn a_trial_speaks_only_for_what_happened_before_it() {
        let facts = Film::clip("ntsc.mkv").facts;
        let mut record = Record::default();
        record.failed(CARD, CODEC, &facts, fault(), at(0));
        assert!(record.begin_trial(CARD, CODEC));
        assert!(!record.begin_trial(CARD, CODEC), "one at a time");
        record.failed(CARD, CODEC, &facts, fault(), at(1));
        assert!(!record.tried(CARD, CODEC, &Verdict::Works, at(2)));
        assert!(is_lost(&record, &facts, at(2)));
        assert!(record.tried(CARD, CODEC, &Verdict::Works, at(3)));
        assert!(!is_lost(&record, &facts, at(3)));
    }

    #[test]
    fn a_trial_that_does_not_end_proves_nothing_and_another_follows() {
        let facts = Film::clip("ntsc.mkv").facts;
        let mut record = Record::default();
        record.failed(CARD, CODEC, &facts, fault(), at(0));
        record.begin_trial(CARD, CODEC);
        assert!(record.tried(CARD, CODEC, &Verdict::Unknown, at(3)));
        assert!(is_lost(&record, &facts, at(3)));
        assert_eq!(record.due(CODEC, at(4)), []);
        assert_eq!(record.due(CODEC, at(3).saturating_add(FAILURE_STANDS)), [CARD]);
    }

    #[test]
    fn a_device_that_answers_that_it_is_full_is_not_lost() {
        let facts = Film::clip("ntsc.mkv").facts;
        let other = Film::clip("vfr.mkv").facts;
        let mut record = Record::default();
        record.failed(CARD, CODEC, &facts, fault(), at(0));
        record.begin_trial(CARD, CODEC);
        record.tried(CARD, CODEC, &Verdict::Full, at(1));
        assert_eq!(record.trouble(&other, at(2))[0].why, Rejection::Full);
        let free = at(1).saturating_add(FULL_FOR);
        assert!(record.trouble(&other, free).is_empty());
        assert_eq!(record.due(CODEC, free), [CARD]);
    }

    #[test]
    fn whatever_the_start_did_not_prove_is_tried_again() {
        let soon = at(0).saturating_add(FULL_FOR);
        let later = at(0).saturating_add(FAILURE_STANDS);
        let said = "no driver".to_owned();
        for (verdict, due) in [
            (Verdict::Works, None),
            (Verdict::Full, Some(soon)),
            (Verdict::Failed { said }, Some(later)),
            (Verdict::OtherConfiguration, Some(later)),
            (Verdict::Unknown, Some(later)),
        ] {
            let trial = Trial {
                device: CARD,
                codec: CODEC,
                verdict,
                tried_at: Timestamp::from_micros(0),
            };
            let record = Record::begin(std::slice::from_ref(&trial), at(0));
            assert_eq!(record.due(CODEC, at(29)), [], "{trial:?}");
            let then = due.map(|due| record.due(CODEC, due));
            assert_eq!(then, due.map(|_| vec![CARD]), "{trial:?}");
            let ever = record.due(CODEC, at(1_000_000)).is_empty();
            assert_eq!(ever, due.is_none(), "{trial:?}");
        }
    }
}
