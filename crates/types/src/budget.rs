//! Budgets of what must be remembered for ever or for a boot: one kind, whatever it is that fills up (D15).
//!
//! A budget says how much is used, how much there is, and, from how fast use grew lately, when it will be full. It
//! warns at 70 and at 90 %, once each time that a mark is passed, so that whoever owns it hears of it while there is
//! time to act. It does not hold anybody back: who takes from it checks the limit.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;

use crate::time::Monotonic;

/// Samples that a budget remembers at most, whatever the length of what it looks back on.
const SAMPLES: u32 = 64;
/// Parts of a hundred that use has to fall below a mark before passing it is told again.
const SLACK: u64 = 5;

/// What fills a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Remembered {
    /// Rows of sessions in the ledger, which are never deleted.
    Tombstones,
    /// A worker's records, which it keeps for its whole boot.
    WorkerRecords,
    /// Capacity whose encoders were told to end and are not proved gone.
    StrandedClaims,
    /// Scratch space.
    Scratch,
}

impl Remembered {
    /// How far back its growth is looked at.
    pub fn window(self) -> Duration {
        const HOUR: u64 = 3_600;
        Duration::from_secs(match self {
            Self::Tombstones => 7 * 24 * HOUR,
            Self::WorkerRecords | Self::StrandedClaims => 24 * HOUR,
            Self::Scratch => HOUR,
        })
    }

    /// What can be done about a budget that fills up, for people.
    pub fn mend(self) -> &'static str {
        match self {
            Self::Tombstones => {
                "raise the ceiling, reuse session ids, or archive the whole namespace once nothing of it runs"
            }
            Self::WorkerRecords => "drain the worker and restart it",
            Self::StrandedClaims => {
                "see why encoders do not end: a disk that does not answer holds them; a restart of the server ends them"
            }
            Self::Scratch => "start ether with a larger --scratch, or with fewer encoders (--capacity)",
        }
    }
}

/// How full a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Warning {
    /// 70 % and more.
    High,
    /// 90 % and more.
    Critical,
}

impl Warning {
    /// The mark, in parts of a hundred of the limit.
    pub fn mark(self) -> u64 {
        match self {
            Self::High => 70,
            Self::Critical => 90,
        }
    }

    /// Of `used` out of `limit`. Of nothing, what is used at all is too much.
    fn of(used: u64, limit: u64) -> Option<Self> {
        [Self::Critical, Self::High]
            .into_iter()
            .find(|warning| used > 0 && reaches(used, limit, warning.mark()))
    }
}

/// Whether `used` is at least `percent` of `limit`.
fn reaches(used: u64, limit: u64, percent: u64) -> bool {
    u128::from(used) * 100 >= u128::from(limit) * u128::from(percent)
}

/// One budget, as it is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetView {
    /// What fills it.
    pub of: Remembered,
    /// Taken now, in units that depend on what fills it.
    pub used: u64,
    /// There is this much.
    pub limit: u64,
    /// In how many milliseconds it will be full, if use goes on to grow as it did lately; zero where it is full, absent
    /// where use does not grow or was not looked at for long enough.
    pub full_in_ms: Option<u64>,
    /// How full it is; absent below 70 %.
    pub warning: Option<Warning>,
}

/// One budget. Pure: it is told what is used and when.
#[derive(Clone, Debug)]
pub struct Budget {
    of: Remembered,
    used: u64,
    limit: u64,
    /// When how much was used, oldest first, at most [`SAMPLES`] and one; the newest may be replaced.
    samples: VecDeque<(Monotonic, u64)>,
    /// What was warned of last.
    told: Option<Warning>,
}

impl Budget {
    /// A budget of `limit` of which `used` is taken at `now`.
    pub fn new(of: Remembered, used: u64, limit: u64, now: Monotonic) -> Self {
        Self {
            of,
            used,
            limit,
            samples: VecDeque::from([(now, used)]),
            told: None,
        }
    }

    /// Takes in what is used of how much at `now`. Answers with a mark that was passed on the way up and not told
    /// since use was last well below it.
    pub fn note(&mut self, used: u64, limit: u64, now: Monotonic) -> Option<Warning> {
        (self.used, self.limit) = (used, limit);
        let spacing = self.of.window() / SAMPLES;
        let last = self.samples.back().map_or(now, |(at, _)| *at);
        if now.saturating_since(last) >= spacing {
            self.samples.push_back((now, used));
            let window = self.of.window();
            while self.samples.len() > SAMPLES as usize
                || self
                    .samples
                    .front()
                    .is_some_and(|(at, _)| now.saturating_since(*at) > window)
            {
                self.samples.pop_front();
            }
        }
        let warning = Warning::of(used, limit);
        if warning > self.told {
            self.told = warning;
            return warning;
        }
        while let Some(told) = self.told
            && !reaches(used, limit, told.mark() - SLACK)
        {
            self.told = match told {
                Warning::Critical => Some(Warning::High),
                Warning::High => None,
            };
        }
        None
    }

    /// How it stands at `now`.
    pub fn look(&self, now: Monotonic) -> BudgetView {
        BudgetView {
            of: self.of,
            used: self.used,
            limit: self.limit,
            full_in_ms: self.full_in(now),
            warning: Warning::of(self.used, self.limit),
        }
    }

    /// Milliseconds until it is full, at the pace since the oldest sample that counts.
    fn full_in(&self, now: Monotonic) -> Option<u64> {
        let left = self.limit.saturating_sub(self.used);
        if left == 0 && self.used > 0 {
            return Some(0);
        }
        let window = self.of.window();
        let counts = |(at, _): &&(Monotonic, u64)| now.saturating_since(*at) <= window;
        let (since, before) = self.samples.iter().find(counts)?;
        let grown = self.used.checked_sub(*before).filter(|grown| *grown > 0)?;
        let elapsed = now.saturating_since(*since);
        if elapsed < window / SAMPLES {
            return None;
        }
        let ms = elapsed.as_millis().saturating_mul(u128::from(left)) / u128::from(grown);
        Some(u64::try_from(ms).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_origin(Duration::from_secs(seconds))
    }

    const HOUR: u64 = 3_600;

    #[test]
    fn the_marks_are_seventy_and_ninety_percent() {
        let budget = Budget::new(Remembered::Tombstones, 0, 1_000, at(0));
        for (used, warning) in [
            (0, None),
            (699, None),
            (700, Some(Warning::High)),
            (899, Some(Warning::High)),
            (900, Some(Warning::Critical)),
            (1_000, Some(Warning::Critical)),
        ] {
            let mut budget = budget.clone();
            assert_eq!(budget.note(used, 1_000, at(1)), warning, "{used}");
            assert_eq!(budget.look(at(1)).warning, warning, "{used}");
        }
        // Nothing of nothing is no trouble; something of nothing is, and no number is too large.
        let empty = Budget::new(Remembered::Scratch, 0, 0, at(0)).look(at(9));
        assert_eq!((empty.warning, empty.full_in_ms), (None, None));
        let mut over = Budget::new(Remembered::Scratch, 0, 0, at(0));
        assert_eq!(over.note(1, 0, at(1)), Some(Warning::Critical));
        assert_eq!(over.note(u64::MAX, u64::MAX, at(2)), None);
    }

    /// Use that goes to and fro about a mark is told once.
    #[test]
    fn each_mark_is_told_once_on_the_way_up() {
        let mut budget = Budget::new(Remembered::Scratch, 0, 100, at(0));
        let told: Vec<_> = [69, 70, 69, 71, 66, 70, 90, 89, 91, 84, 86, 90, 64, 70, 95]
            .into_iter()
            .map(|used| budget.note(used, 100, at(1)))
            .collect();
        let (high, critical) = (Some(Warning::High), Some(Warning::Critical));
        let expected = [
            None, high, None, None, None, None, critical, None, None, None, None, critical, None, high,
            critical,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_forecast_follows_how_use_grew() {
        let mut budget = Budget::new(Remembered::Tombstones, 100, 1_000, at(0));
        assert_eq!(budget.look(at(0)).full_in_ms, None, "nothing was seen yet");
        budget.note(101, 1_000, at(1));
        assert_eq!(
            budget.look(at(1)).full_in_ms,
            None,
            "a second says nothing of days"
        );
        // Ten an hour.
        for hour in 1..=24 {
            budget.note(100 + 10 * hour, 1_000, at(hour * HOUR));
        }
        let full_in = budget.look(at(24 * HOUR)).full_in_ms.unwrap() / 1_000;
        assert_eq!(full_in / HOUR, 66, "660 are left");
        budget.note(1_000, 1_000, at(25 * HOUR));
        assert_eq!(budget.look(at(25 * HOUR)).full_in_ms, Some(0));
        // A larger limit gives time, and use that fell gives no forecast at all.
        budget.note(1_000, 2_000, at(25 * HOUR));
        assert!(budget.look(at(25 * HOUR)).full_in_ms > Some(0));
        budget.note(50, 2_000, at(26 * HOUR));
        assert_eq!(budget.look(at(26 * HOUR)).full_in_ms, None);
    }

    /// What grew long ago and rests since is not about to be full.
    #[test]
    fn old_growth_is_forgotten_and_memory_is_bounded() {
        let mut budget = Budget::new(Remembered::Scratch, 0, 1_000, at(0));
        for second in 0..100_000 {
            budget.note(second.min(600), 1_000, at(second));
        }
        assert!(budget.samples.len() <= SAMPLES as usize);
        assert_eq!(budget.look(at(100_000)).full_in_ms, None);
    }
}
