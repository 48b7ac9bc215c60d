//! Instants as ether stores, sends and compares them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A wall-clock instant in whole microseconds since 1970-01-01T00:00:00Z.
///
/// The same integer stands in memory, in the database and on the wire (D5), so that equality is exact
/// everywhere and no deadline is ever rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The instant `micros` microseconds after (or, negative, before) the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant moved forward, or `None` where the result does not fit.
    pub fn checked_add(self, by: Duration) -> Option<Self> {
        let micros = i64::try_from(by.as_micros()).ok()?;
        self.0.checked_add(micros).map(Self)
    }

    /// This instant moved back, or `None` where the result does not fit.
    pub fn checked_sub(self, by: Duration) -> Option<Self> {
        let micros = i64::try_from(by.as_micros()).ok()?;
        self.0.checked_sub(micros).map(Self)
    }

    /// How long after `earlier` this instant lies; zero when it does not lie after it.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        match u64::try_from(self.0.saturating_sub(earlier.0)) {
            Ok(micros) => Duration::from_micros(micros),
            Err(_) => Duration::ZERO,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.0)
    }
}

/// A reading of a clock that never goes back, counted from an origin private to its process.
///
/// Readings of two processes, or of two boots, cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Monotonic(Duration);

impl Monotonic {
    /// The reading `since_origin` after the process's own origin.
    pub const fn from_origin(since_origin: Duration) -> Self {
        Self(since_origin)
    }

    /// Time since the process's own origin.
    pub const fn since_origin(self) -> Duration {
        self.0
    }

    /// How long after `earlier` this reading lies; zero when it does not lie after it.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// This reading moved forward; the largest reading where the result does not fit.
    pub fn saturating_add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_at_the_end_of_the_range_refuse_to_overflow() {
        let last = Timestamp::from_micros(i64::MAX);
        assert_eq!(last.checked_add(Duration::from_micros(1)), None);
        assert_eq!(
            Timestamp::from_micros(i64::MIN).checked_sub(Duration::from_micros(1)),
            None
        );
        assert_eq!(last.checked_add(Duration::MAX), None);
    }

    #[test]
    fn an_instant_is_never_before_an_earlier_one() {
        let (a, b) = (Timestamp::from_micros(5), Timestamp::from_micros(9));
        assert_eq!(b.saturating_since(a), Duration::from_micros(4));
        assert_eq!(a.saturating_since(b), Duration::ZERO);
    }

    #[test]
    fn json_is_the_bare_integer() {
        assert_eq!(serde_json::to_string(&Timestamp::from_micros(-3)).unwrap(), "-3");
    }
}
