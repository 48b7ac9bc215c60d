//! Which bytes a file holds, told without reading all of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::Stat;
use sha2::{Digest, Sha256};

use crate::name::hex;

/// The identity of one state of one file. Two equal revisions hold the same bytes, short of someone who
/// rewrites a file in place and sets its clock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Bytes in the file.
    pub size: u64,
    /// Last modification, in nanoseconds since the Unix epoch.
    pub mtime_ns: i64,
    /// The file's number on its filesystem.
    pub inode: u64,
    /// The filesystem's number. Network and overlay filesystems may get another at every mount.
    pub device: u64,
}

impl Revision {
    /// The revision that `file` has now.
    ///
    /// # Errors
    /// The operating system's.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self::from_stat(&rustix::fs::fstat(file)?))
    }

    #[allow(
        clippy::unnecessary_cast,
        clippy::useless_conversion,
        reason = "the fields' types differ between platforms"
    )]
    pub(crate) fn from_stat(stat: &Stat) -> Self {
        let nanos = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        Self {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime_ns: i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX }),
            inode: stat.st_ino as u64,
            device: stat.st_dev as u64,
        }
    }

    /// Whether `other` is the same state of the same file, although its filesystem may have been mounted anew.
    pub fn same_file(&self, other: &Self) -> bool {
        self.same_clock(other) && self.inode == other.inode
    }

    /// Whether size and modification are equal: enough to say unchanged at one path, not to say which file.
    pub fn same_clock(&self, other: &Self) -> bool {
        self.size == other.size && self.mtime_ns == other.mtime_ns
    }
}

/// Bytes in each of the three samples.
const SAMPLE: usize = 16 * 1024;

/// A digest over the size and three pieces of the file: its beginning, middle and end. It finds a film again
/// that was copied to another disk; it is no proof against someone who makes two files to fit.
///
/// # Errors
/// The operating system's; a file that shrinks meanwhile gives a digest of what could be read.
pub(crate) fn sample(file: &File, size: u64) -> io::Result<String> {
    let mut digest = Sha256::new();
    digest.update(size.to_le_bytes());
    let piece = SAMPLE as u64;
    let mut places = vec![
        0,
        (size / 2).saturating_sub(piece / 2),
        size.saturating_sub(piece),
    ];
    places.dedup();
    let mut buffer = vec![0; SAMPLE];
    for place in places {
        let got = read_full(file, place, &mut buffer)?;
        digest.update((got as u64).to_le_bytes());
        digest.update(&buffer[..got]);
    }
    Ok(hex(&digest.finalize()[..16]))
}

fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match file.read_at(&mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek as _, Write as _};

    #[test]
    fn a_sample_sees_both_ends_and_the_middle_and_the_size() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; 1 << 20]).unwrap();
        let whole = sample(&file, 1 << 20).unwrap();
        assert_eq!(sample(&file, 1 << 20).unwrap(), whole);
        for at in [3, (1 << 19) + 5, (1 << 20) - 2] {
            file.seek(io::SeekFrom::Start(at)).unwrap();
            file.write_all(&[8]).unwrap();
            assert_ne!(sample(&file, 1 << 20).unwrap(), whole, "changed at {at}");
            file.seek(io::SeekFrom::Start(at)).unwrap();
            file.write_all(&[7]).unwrap();
        }
        file.write_all(&[7]).unwrap();
        file.set_len((1 << 20) - 1).unwrap();
        assert_ne!(sample(&file, (1 << 20) - 1).unwrap(), whole);
    }
}
