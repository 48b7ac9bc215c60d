//! Films that a bad disk or a broken download has been at, each by its own seed.

/// Numbers from a seed.
#[derive(Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `end`; 0 where there is none.
    pub fn below(&mut self, end: usize) -> usize {
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
pub fn damage(bytes: &mut Vec<u8>, dice: &mut Dice) {
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
