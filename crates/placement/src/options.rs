//! A coordinator's own settings (P2), and what it publishes of them (P18).

use std::time::Duration;

use ether_types::{BootId, ClusterId, NodeId};

use crate::bounds::{Invalid, Quota};

/// How one coordinator uses the ledger. Coordinators of one ledger should agree on these; a difference in
/// the quota closes new work once a fleet ceiling stands, every other one is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The authority that this ledger is; the first coordinator writes it, the others must agree.
    pub cluster: ClusterId,
    /// The node that this coordinator runs on.
    pub node: NodeId,
    /// Its process start.
    pub boot: BootId,
    /// Rows that the ledger may remember, tombstones included.
    pub quota: Quota,
    /// Whether the quota is the fleet's ceiling: it is seeded or verified at the start, and its range is
    /// that of P19.
    pub fleet: bool,
    /// The longest lease and the longest step of a renewal: 1 s to 1 h.
    pub maximum_lease: Duration,
    /// The longest that one call may take: over zero, at most 1 min.
    pub transaction_timeout: Duration,
    /// The longest that one call may wait for the ledger's lock: over zero, at most 1 min.
    pub lock_timeout: Duration,
    /// The longest that a retirement verifier may take: over zero, at most 1 min.
    pub verify_timeout: Duration,
    /// How far the database's clock may stand behind the latest instant that the ledger acted on before nothing
    /// is granted or renewed any more: 1 ms to 1 min in whole microseconds. Deadlines may be too far ahead by as
    /// much.
    pub clock_skew: Duration,
}

impl Options {
    /// The least [`Options::clock_skew`]: no two readings of a clock may be held to less.
    const LEAST_SKEW: Duration = Duration::from_millis(1);

    /// Settings with the defaults for everything but the identities.
    pub fn new(cluster: ClusterId, node: NodeId, boot: BootId) -> Self {
        Self {
            cluster,
            node,
            boot,
            quota: Quota::ceiling(Quota::CEILING_DEFAULT).unwrap_or(Quota::MAX),
            fleet: false,
            maximum_lease: Duration::from_secs(600),
            transaction_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(5),
            verify_timeout: Duration::from_secs(10),
            clock_skew: Duration::from_secs(5),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        const MINUTE: Duration = Duration::from_secs(60);
        if self.fleet {
            Quota::ceiling(self.quota.get())?;
        }
        let lease = self.maximum_lease;
        if lease < Duration::from_secs(1) || lease > Duration::from_secs(3600) || !whole(lease) {
            return Err(Invalid::new(
                "maximum lease",
                "1 s to 1 h in whole microseconds",
                format!("{lease:?}"),
            ));
        }
        for (field, value) in [
            ("transaction timeout", self.transaction_timeout),
            ("lock timeout", self.lock_timeout),
            ("verify timeout", self.verify_timeout),
        ] {
            if value.is_zero() || value > MINUTE {
                return Err(Invalid::new(
                    field,
                    "over 0 and at most 1 min",
                    format!("{value:?}"),
                ));
            }
        }
        let skew = self.clock_skew;
        if skew < Self::LEAST_SKEW || skew > MINUTE || !whole(skew) {
            return Err(Invalid::new(
                "clock skew",
                "1 ms to 1 min in whole microseconds",
                format!("{skew:?}"),
            ));
        }
        Ok(())
    }
}

fn whole(duration: Duration) -> bool {
    duration.subsec_nanos().is_multiple_of(1_000)
}
