//! Whether a sample that came from elsewhere may be used (T20).
//!
//! Nobody knows when between the question and the answer a sample was taken, so it counts as old as the
//! question, and the other machine's wall clock is only asked whether it could be true.

use std::time::Duration;

use ether_types::{Clock, Monotonic, Timestamp};

use crate::observation::Observation;

/// A sample together with how it was had.
#[derive(Clone, Debug, PartialEq)]
pub struct Received<I> {
    /// Whose sample it says it is.
    pub identity: I,
    /// The sample.
    pub observation: Observation,
    /// Local time at which it was asked for.
    pub asked: Moment,
    /// Local time at which it had arrived whole.
    pub answered: Moment,
}

/// One moment on both of a machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Wall time.
    pub wall: Timestamp,
    /// Time since the process started.
    pub monotonic: Monotonic,
}

impl Moment {
    /// Now.
    pub fn now(clock: &dyn Clock) -> Self {
        Self {
            wall: clock.now(),
            monotonic: clock.monotonic(),
        }
    }
}

/// How old and how far off a sample may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Most time between the question and the sample's use.
    pub age: Duration,
    /// Most time between question and answer.
    pub round_trip: Duration,
    /// How much the two machines' wall clocks may differ.
    pub skew: Duration,
}

impl Default for Freshness {
    fn default() -> Self {
        Self {
            age: Duration::from_secs(10),
            round_trip: Duration::from_secs(5),
            skew: Duration::from_secs(1),
        }
    }
}

/// Why a sample is not used. It proves nothing about the execution, least of all that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stale {
    /// It is of another execution.
    #[error("the sample is of another execution")]
    Identity,
    /// It was asked for before the viewer went elsewhere.
    #[error("the sample was asked for before the last seek")]
    BeforeSeek,
    /// It was answered before it was asked for, or used before it was answered.
    #[error("the sample's own times do not follow each other")]
    Order,
    /// The answer took too long.
    #[error("the answer took {0:?}")]
    RoundTrip(Duration),
    /// It is too old.
    #[error("the sample may be {0:?} old")]
    Age(Duration),
    /// The other machine's clock says that it was taken outside the time in which it can have been.
    #[error("the sample's time lies outside question and answer by more than the clocks may differ")]
    Clock,
}

impl<I: PartialEq> Received<I> {
    /// The sample, where it is `expected`'s and fresh at `now`. `sought` is when the viewer last went
    /// elsewhere; no sample is used across that.
    ///
    /// # Errors
    /// [`Stale`] with the first thing that speaks against it.
    pub fn fresh(
        &self,
        expected: &I,
        sought: Option<Monotonic>,
        now: Monotonic,
        bounds: Freshness,
    ) -> Result<&Observation, Stale> {
        if self.identity != *expected {
            return Err(Stale::Identity);
        }
        let (asked, answered) = (self.asked.monotonic, self.answered.monotonic);
        if answered < asked || now < answered {
            return Err(Stale::Order);
        }
        if sought.is_some_and(|sought| asked < sought) {
            return Err(Stale::BeforeSeek);
        }
        let round_trip = answered.saturating_since(asked);
        if round_trip > bounds.round_trip {
            return Err(Stale::RoundTrip(round_trip));
        }
        let age = now.saturating_since(asked);
        if age > bounds.age {
            return Err(Stale::Age(age));
        }
        // The wall clock is read once: where it was set in between, the monotonic one says how much passed.
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        let skew = micros(bounds.skew);
        let earliest = self.asked.wall.as_micros().saturating_sub(skew);
        let latest = self.asked.wall.as_micros().saturating_add(micros(round_trip));
        let latest = latest.saturating_add(skew);
        if !(earliest..=latest).contains(&self.observation.sampled_at.as_micros()) {
            return Err(Stale::Clock);
        }
        Ok(&self.observation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(seconds: u64) -> Moment {
        Moment {
            wall: Timestamp::from_micros(1_000_000_000 + seconds as i64 * 1_000_000),
            monotonic: Monotonic::from_origin(Duration::from_secs(seconds)),
        }
    }

    /// Asked for at 100 s, answered at 102 s, taken at `taken` by a clock that is right.
    fn received(taken: u64) -> Received<&'static str> {
        let taken = moment(taken);
        Received {
            identity: "session 7, generation 2",
            observation: Observation::idle(taken.wall, taken.monotonic),
            asked: moment(100),
            answered: moment(102),
        }
    }

    fn judge(sample: &Received<&'static str>, sought: Option<u64>, now: u64) -> Result<(), Stale> {
        let sought = sought.map(|s| moment(s).monotonic);
        let now = moment(now).monotonic;
        sample
            .fresh(&"session 7, generation 2", sought, now, Freshness::default())
            .map(|_| ())
    }

    #[test]
    fn a_sample_is_as_old_as_its_question() {
        assert_eq!(judge(&received(101), None, 110), Ok(()));
        let old = judge(&received(101), None, 111);
        assert_eq!(old, Err(Stale::Age(Duration::from_secs(11))));
    }

    #[test]
    fn another_executions_sample_is_never_used() {
        let mut other = received(101);
        other.identity = "session 7, generation 1";
        assert_eq!(judge(&other, None, 103), Err(Stale::Identity));
    }

    #[test]
    fn a_seek_makes_every_earlier_sample_useless() {
        assert_eq!(judge(&received(101), Some(101), 103), Err(Stale::BeforeSeek));
        assert_eq!(judge(&received(101), Some(100), 103), Ok(()));
    }

    #[test]
    fn slow_answers_and_impossible_orders_are_refused() {
        let mut slow = received(101);
        slow.answered = moment(106);
        assert_eq!(
            judge(&slow, None, 106),
            Err(Stale::RoundTrip(Duration::from_secs(6)))
        );
        let mut reversed = received(101);
        reversed.answered = moment(99);
        assert_eq!(judge(&reversed, None, 103), Err(Stale::Order));
        assert_eq!(judge(&received(101), None, 101), Err(Stale::Order));
    }

    #[test]
    fn a_clock_may_be_off_by_the_skew_and_no_more() {
        for (taken, fresh) in [(98, false), (99, true), (103, true), (104, false)] {
            let expected = if fresh { Ok(()) } else { Err(Stale::Clock) };
            assert_eq!(judge(&received(taken), None, 105), expected, "taken at {taken}");
        }
    }

    /// A wall clock that is set while the answer is on its way makes nothing fresh and nothing stale.
    #[test]
    fn a_wall_clock_that_jumps_here_changes_nothing() {
        let mut jumped = received(101);
        jumped.answered.wall = Timestamp::from_micros(0);
        assert_eq!(judge(&jumped, None, 103), Ok(()));
    }
}
