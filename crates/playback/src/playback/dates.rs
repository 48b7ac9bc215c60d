//! When the bytes of each segment were first handed out.
//!
//! A client may vouch by date for the part that it has (`If-Range`), so other bytes must have another date: a
//! segment that is made again differently is dated at least a second later, which is as fine as HTTP writes
//! time. The date of the playback would not do, as it stands for every segment and every making.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use ether_encoder::Resource;
use ether_types::Timestamp;

const SECOND: i64 = 1_000_000;

/// The dates of one playback: at most one entry a segment, a few dozen bytes each.
#[derive(Debug, Default)]
pub(crate) struct Dates(Mutex<BTreeMap<Resource, Known>>);

#[derive(Debug)]
struct Known {
    /// Of the entity tag; the tag itself is longer than what is kept of it here.
    hash: u64,
    at: Timestamp,
}

impl Dates {
    /// The date of the bytes that `etag` names, which is `now` where they were never seen before.
    pub(crate) fn of(&self, resource: Resource, etag: &str, now: Timestamp) -> Timestamp {
        let mut hasher = DefaultHasher::new();
        etag.hash(&mut hasher);
        let hash = hasher.finish();
        let mut dates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match dates.get(&resource) {
            Some(known) if known.hash == hash => return known.at,
            Some(older) => now.max(Timestamp::from_micros(
                older.at.as_micros().saturating_add(SECOND),
            )),
            None => now,
        };
        dates.insert(resource, Known { hash, at });
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_keep_their_date_and_others_have_a_later_one() {
        let dates = Dates::default();
        let segment = |number| Resource::Segment {
            representation: 0,
            number,
        };
        let at = |seconds: i64| Timestamp::from_micros(seconds * SECOND);
        assert_eq!(dates.of(segment(1), "a", at(10)), at(10));
        assert_eq!(dates.of(segment(1), "a", at(50)), at(10));
        assert_eq!(dates.of(segment(2), "a", at(50)), at(50));
        assert_eq!(dates.of(segment(1), "b", at(60)), at(60));
        assert_eq!(dates.of(segment(1), "c", at(60)), at(61), "in the same second");
        assert_eq!(
            dates.of(segment(1), "d", at(7)),
            at(62),
            "by a clock that was set back"
        );
    }
}
