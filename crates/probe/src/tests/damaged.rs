//! Films that a bad disk or a broken download has been at, in their hundreds: whatever their bytes say, the native
//! readers answer, read no more than they may, and state nothing that contradicts itself.
//!
//! Each is damaged by its own seed, so that one that fails is made again by `ETHER_DAMAGE=SEED`. The short tier
//! damages 600 and takes a few seconds; `ETHER_SOAK=1` damages ten thousand.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ether_media::{ByteReader, Facts, Limits, read_facts, scan_keyframes};
use ether_testkit::damage::{Dice, damage};

use super::{clips, real_files};

const SHORT: u64 = 600;
const SOAK: u64 = 10_000;
/// The largest film that is damaged: every seed copies one.
const LARGEST: u64 = 4 << 20;
/// Most reads for each KiB of a film, and beside them: what neither looks for ever nor byte by byte stays below.
const READS_PER_KIB: u64 = 16;
const READS: u64 = 4_096;

/// Bytes that count how often they are asked for.
struct Counted {
    bytes: Vec<u8>,
    reads: u64,
}

impl ByteReader for Counted {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        let most = READS + READS_PER_KIB * (self.bytes.len() as u64 >> 10);
        assert!(
            self.reads <= most,
            "{} reads of {} bytes",
            self.reads,
            self.bytes.len()
        );
        let rest = usize::try_from(offset).ok().and_then(|at| self.bytes.get(at..));
        let rest = rest.unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

#[test]
fn damaged_films_are_read_within_bounds_and_never_contradict_themselves() {
    let all = real_files().into_iter().chain(clips());
    let small = all.filter(|path| std::fs::metadata(path).is_ok_and(|file| file.len() <= LARGEST));
    let films: Vec<Vec<u8>> = small.map(|path| std::fs::read(path).unwrap()).collect();
    if films.is_empty() {
        eprintln!("skipped: there are no films to damage");
        return;
    }
    let alone: Option<u64> = std::env::var("ETHER_DAMAGE")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let count = if std::env::var_os("ETHER_SOAK").is_some() {
        SOAK
    } else {
        SHORT
    };
    let seeds = alone.map_or(0..count, |seed| seed..seed + 1);
    let (mut read, mut refused) = (0, 0);
    for seed in seeds {
        let mut dice = Dice(seed);
        let mut bytes = films[dice.below(films.len())].clone();
        damage(&mut bytes, &mut dice);
        let answered = catch_unwind(AssertUnwindSafe(|| look(bytes)));
        match answered {
            Ok(true) => read += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("ETHER_DAMAGE={seed} makes this film again"),
        }
    }
    eprintln!(
        "of {} damaged films {read} were read and {refused} refused",
        read + refused
    );
    assert!(alone.is_some() || (read > 0 && refused > 0));
}

/// Reads facts and, where there is a picture, looks for every keyframe. Whether there were any facts.
fn look(bytes: Vec<u8>) -> bool {
    let mut reader = Counted { bytes, reads: 0 };
    let limits = Limits::default();
    let Ok(facts) = read_facts(&mut reader, &limits) else {
        return false;
    };
    consistent(&facts);
    reader.reads = 0;
    if let Ok(index) = scan_keyframes(&mut reader, &facts, &limits, &mut |_| {}) {
        assert!(index.times.is_sorted(), "keyframes go back");
    }
    true
}

fn consistent(facts: &Facts) {
    assert!(!facts.streams.is_empty(), "facts of nothing");
    let indexes: BTreeSet<u32> = facts.streams.iter().map(|stream| stream.index).collect();
    assert_eq!(indexes.len(), facts.streams.len(), "two streams have one number");
    if let Some(index) = &facts.keyframes {
        assert!(index.times.is_sorted(), "keyframes go back");
    }
    if let Some(duration) = facts.duration {
        assert!(duration.0 >= 0, "a film of {duration} s");
    }
}
