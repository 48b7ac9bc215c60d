//! The decisions of a scan, without any IO: what became of a folder, of a file, and when to look again.
//!
//! Two rules stand above the rest. Nothing is ever forgotten because something could not be seen; and an item
//! follows its film, not its path: exact content outranks the name it is found under.

use std::time::Duration;

use ether_types::{Monotonic, Timestamp};

use crate::problem::{Again, Reason};
use crate::revision::Revision;
use crate::tree::DirIdentity;

/// What a scan may do with a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FolderVerdict {
    /// It is the folder that is known: what is not in it is gone.
    Known,
    /// It is the known folder under another number, or a new one: note its identity, then as `Known`.
    Adopt,
    /// Something else stands at its path, most likely the empty place where a disk is mounted: touch nothing.
    Doubtful,
}

/// Judges the directory that stands at a folder's path.
///
/// `known` is the identity noted last, `films` how many files are remembered there, and `recognized` whether
/// some of them were found unchanged at their paths.
pub(crate) fn folder(
    known: Option<DirIdentity>,
    seen: DirIdentity,
    films: u64,
    recognized: bool,
) -> FolderVerdict {
    match known {
        Some(known) if known == seen => FolderVerdict::Known,
        Some(_) if films > 0 && !recognized => FolderVerdict::Doubtful,
        _ => FolderVerdict::Adopt,
    }
}

/// What is remembered of a file, as far as recognizing it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) revision: Revision,
    /// The digest of [`crate::revision::sample`].
    pub(crate) sample: String,
}

/// A remembered file elsewhere that may be the one found here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Candidate<Id> {
    pub(crate) id: Id,
    pub(crate) remembered: Remembered,
    /// It is proved that the file is no longer where it was remembered. Not seen is no proof.
    pub(crate) gone: bool,
}

/// What a file found at a path is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Placement<Id> {
    /// The file remembered at this path, with the bytes it had.
    Same,
    /// The file remembered at this path, with other bytes.
    Changed,
    /// A file remembered elsewhere has come here; `same_bytes` where its facts still hold.
    Moved {
        /// Which one.
        from: Id,
        /// Its facts still hold.
        same_bytes: bool,
    },
    /// A file that is not remembered.
    New,
}

/// Decides what the file found at a path is. `here` is what is remembered at that path.
pub(crate) fn place<Id: Clone>(
    here: Option<&Remembered>,
    found: &Remembered,
    candidates: &[Candidate<Id>],
) -> Placement<Id> {
    let same_bytes = |r: &Remembered| r.sample == found.sample && r.revision.size == found.revision.size;
    if here.is_some_and(|here| here.revision.same_clock(&found.revision) && same_bytes(here)) {
        return Placement::Same;
    }
    let gone = || candidates.iter().filter(|c| c.gone);
    let very_file = gone().find(|c| c.remembered.revision == found.revision);
    let same_content = || gone().find(|c| same_bytes(&c.remembered));
    if let Some(candidate) = very_file.or_else(same_content) {
        return Placement::Moved {
            from: candidate.id.clone(),
            same_bytes: same_bytes(&candidate.remembered),
        };
    }
    match here {
        // Only the clock was touched, or the file was restored from a copy.
        Some(here) if same_bytes(here) => Placement::Same,
        Some(_) => Placement::Changed,
        None => Placement::New,
    }
}

/// A file that was last seen changing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restless {
    pub(crate) size: u64,
    pub(crate) mtime_ns: i64,
    pub(crate) since: Monotonic,
}

/// Whether a file is at rest for `window`; if not, what to remember of it until the next look.
///
/// The wall clock and the file's clock may belong to two machines, so a modification in the future is believed
/// to be recent until the file was seen twice without change.
pub(crate) fn restless(
    revision: &Revision,
    before: Option<&Restless>,
    wall: Timestamp,
    now: Monotonic,
    window: Duration,
) -> Option<Restless> {
    let modified = Timestamp::from_micros(revision.mtime_ns.div_euclid(1_000));
    let recent = modified > wall || wall.saturating_since(modified) < window;
    if !recent {
        return None;
    }
    match before {
        Some(b) if b.size == revision.size && b.mtime_ns == revision.mtime_ns => {
            (now.saturating_since(b.since) < window).then_some(*b)
        }
        _ => Some(Restless {
            size: revision.size,
            mtime_ns: revision.mtime_ns,
            since: now,
        }),
    }
}

/// The shortest wait before a failed reading is tried again.
const FIRST_RETRY: Duration = Duration::from_secs(10 * 60);

/// Whether the problem of an unchanged file is due for another look, after `attempts` looks of which the last
/// was at `last`.
pub(crate) fn look_again(reason: &Reason, attempts: u32, last: Timestamp, now: Timestamp) -> bool {
    match reason.again() {
        Again::OnChange => false,
        Again::EveryScan => true,
        Again::Later => {
            let wait = FIRST_RETRY.saturating_mul(1 << attempts.min(8));
            now < last || now.saturating_since(last) >= wait
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn remembered(inode: u64, size: u64, mtime_ns: i64, content: u8) -> Remembered {
        Remembered {
            revision: Revision {
                size,
                mtime_ns,
                inode,
                device: 1,
            },
            sample: format!("{content}"),
        }
    }

    fn candidate(id: u8, remembered: Remembered, gone: bool) -> Candidate<u8> {
        Candidate { id, remembered, gone }
    }

    #[test]
    fn an_empty_mount_point_is_not_the_folder() {
        let disk = DirIdentity { device: 9, inode: 2 };
        let empty_place = DirIdentity { device: 1, inode: 77 };
        assert_eq!(folder(Some(disk), empty_place, 3, false), FolderVerdict::Doubtful);
        assert_eq!(folder(Some(disk), disk, 3, false), FolderVerdict::Known);
        // The same share mounted again under another number is recognized by what is on it.
        assert_eq!(folder(Some(disk), empty_place, 3, true), FolderVerdict::Adopt);
        // Nothing can be lost where nothing is known.
        assert_eq!(folder(Some(disk), empty_place, 0, false), FolderVerdict::Adopt);
        assert_eq!(folder(None, disk, 0, false), FolderVerdict::Adopt);
    }

    #[test]
    fn two_films_that_trade_names_keep_their_items() {
        let (a, b) = (remembered(1, 100, 5, 1), remembered(2, 100, 6, 2));
        assert_eq!(
            place(Some(&a), &b, &[candidate(2, b.clone(), true)]),
            Placement::Moved {
                from: 2,
                same_bytes: true
            }
        );
    }

    #[test]
    fn a_copy_of_a_film_that_is_still_there_is_a_film_of_its_own() {
        let film = remembered(1, 100, 5, 1);
        let copy = remembered(9, 100, 8, 1);
        assert_eq!(place(None, &copy, &[candidate(1, film, false)]), Placement::New);
    }

    #[test]
    fn of_two_equal_copies_that_both_moved_each_finds_its_own() {
        let one = remembered(1, 100, 5, 7);
        let two = remembered(2, 100, 5, 7);
        let both = [candidate(1, one, true), candidate(2, two.clone(), true)];
        assert_eq!(
            place(None, &two, &both),
            Placement::Moved {
                from: 2,
                same_bytes: true
            }
        );
    }

    #[test]
    fn a_better_encode_under_the_old_name_is_the_same_item_changed() {
        let old = remembered(1, 100, 5, 1);
        assert_eq!(
            place::<u8>(Some(&old), &remembered(3, 250, 9, 2), &[]),
            Placement::Changed
        );
        assert_eq!(
            place::<u8>(Some(&old), &remembered(1, 100, 9, 1), &[]),
            Placement::Same
        );
    }

    #[test]
    fn a_file_rests_when_it_is_old_or_was_seen_twice_without_change() {
        let window = Duration::from_secs(3);
        let wall = Timestamp::from_micros(1_000_000_000);
        let at = |s| Monotonic::from_origin(Duration::from_secs(s));
        let old = remembered(1, 10, 990_000_000_000, 0).revision;
        assert_eq!(restless(&old, None, wall, at(0), window), None);
        let future = remembered(1, 10, 5_000_000_000_000, 0).revision;
        let first = restless(&future, None, wall, at(0), window).unwrap();
        assert!(restless(&future, Some(&first), wall, at(2), window).is_some());
        assert_eq!(restless(&future, Some(&first), wall, at(3), window), None);
        let grown = Revision { size: 11, ..future };
        let again = restless(&grown, Some(&first), wall, at(3), window).unwrap();
        assert_eq!(again.since, at(3));
    }

    #[test]
    fn a_failed_reading_is_tried_ever_more_rarely() {
        let at = |s: i64| Timestamp::from_micros(s * 1_000_000);
        let slow = Reason::TimedOut;
        assert!(!look_again(&slow, 1, at(0), at(19 * 60)));
        assert!(look_again(&slow, 1, at(0), at(20 * 60)));
        assert!(!look_again(&slow, 3, at(0), at(79 * 60)));
        assert!(look_again(&slow, 200, at(0), at(60 * 60 * 24 * 3)));
        assert!(look_again(&Reason::PermissionDenied, 9, at(0), at(1)));
        assert!(!look_again(&Reason::NothingToPlay, 0, at(0), at(1 << 40)));
        // A wall clock that was set back must not postpone for ever.
        assert!(look_again(&slow, 8, at(1 << 30), at(5)));
    }

    fn some_file() -> impl Strategy<Value = Remembered> {
        (1_u64..4, 1_u64..3, 1_i64..3, 1_u8..3).prop_map(|(i, s, m, c)| remembered(i, s, m, c))
    }

    proptest! {
        #[test]
        fn no_file_is_taken_from_a_place_where_it_may_still_be(
            here in proptest::option::of(some_file()),
            found in some_file(),
            others in proptest::collection::vec((some_file(), any::<bool>()), 0..5),
        ) {
            let candidates: Vec<_> = others
                .into_iter()
                .enumerate()
                .map(|(id, (remembered, gone))| candidate(id as u8, remembered, gone))
                .collect();
            match place(here.as_ref(), &found, &candidates) {
                Placement::Moved { from, same_bytes } => {
                    let taken = &candidates[usize::from(from)];
                    prop_assert!(taken.gone);
                    prop_assert_eq!(same_bytes, taken.remembered.sample == found.sample
                        && taken.remembered.revision.size == found.revision.size);
                }
                Placement::Same => prop_assert_eq!(&here.unwrap().sample, &found.sample),
                Placement::Changed => prop_assert!(here.is_some()),
                Placement::New => prop_assert!(here.is_none()),
            }
        }
    }
}
