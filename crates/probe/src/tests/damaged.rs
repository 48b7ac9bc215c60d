//! Films that a bad disk or a broken download has been at, in their hundreds: whatever their bytes say, the native
//! readers answer, read no more than they may, and state nothing that contradicts itself.
//!
//! Each is damaged by its own seed, so that one that fails is made again by `ETHER_DAMAGE=SEED`. The short tier
//! damages 600 and takes a few seconds; `ETHER_SOAK=1` damages ten thousand.

use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ether_media::{ByteReader, Facts, Limits, read_facts, scan_keyframes};

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

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}

/// Names whose neighbours are sizes, counts and tables: of boxes, and of Matroska's elements.
const NAMES: [&[u8]; 16] = [
    b"moov",
    b"trak",
    b"stsd",
    b"stts",
    b"ctts",
    b"stss",
    b"stsz",
    b"stco",
    b"elst",
    b"mdhd",
    b"moof",
    b"sidx",
    b"\x18\x53\x80\x67",
    b"\x16\x54\xae\x6b",
    b"\x1c\x53\xbb\x6b",
    b"\x1f\x43\xb6\x75",
];
/// Numbers that readers stumble over.
const NASTY: [u32; 7] = [0, 1, 0xff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Damages `bytes` in one to four places.
fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let len = bytes.len();
        let head = len.min(8 << 10);
        match dice.below(6) {
            0 => bytes.truncate(dice.below(len)),
            1 => {
                for _ in 0..1 << dice.below(8) {
                    let within = if dice.below(2) == 0 { len } else { head };
                    let at = dice.below(within);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << dice.below(8);
                    }
                }
            }
            2 => {
                let (at, count) = (dice.below(len), 1 << dice.below(15));
                let end = len.min(at + count);
                bytes[at..end].fill(0);
            }
            3 => {
                // A block that came twice, and so moved all that follows.
                let (at, count) = (dice.below(len), 1 << dice.below(12));
                let block = bytes[at..len.min(at + count)].to_vec();
                bytes.splice(at..at, block);
            }
            4 => nasty(bytes, dice.below(len), dice),
            _ => {
                let name = NAMES[dice.below(NAMES.len())];
                let found: Vec<usize> = bytes
                    .windows(name.len())
                    .enumerate()
                    .filter(|(_, window)| *window == name)
                    .map(|(at, _)| at)
                    .take(32)
                    .collect();
                if let Some(at) = found.get(dice.below(found.len())) {
                    // The size before a box's name, or what follows any name.
                    let at = (at + 4 * dice.below(8)).saturating_sub(4);
                    nasty(bytes, at, dice);
                }
            }
        }
    }
}

fn nasty(bytes: &mut [u8], at: usize, dice: &mut Dice) {
    let value = NASTY[dice.below(NASTY.len())].to_be_bytes();
    if let Some(place) = bytes.get_mut(at..at + 4) {
        place.copy_from_slice(&value);
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
