//! Which state of a file is meant.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use ether_types::Timestamp;
use sha2::{Digest, Sha256};

/// The identity of one state of a file: any change of content that the file system shows changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Revision {
    /// Bytes.
    pub size: u64,
    /// Modification time in nanoseconds since the Unix epoch.
    pub modified_nanos: i64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
}

impl Revision {
    /// The present state of an open file.
    ///
    /// # Errors
    /// The file system's own.
    pub fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|metadata| Self::of_metadata(&metadata))
    }

    /// The state that the file system tells of.
    pub fn of_metadata(metadata: &Metadata) -> Self {
        let nanos = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        Self {
            size: metadata.size(),
            modified_nanos: i64::try_from(nanos).unwrap_or(i64::MAX),
            inode: metadata.ino(),
            device: metadata.dev(),
        }
    }

    /// One word for this state, to stand in addresses and entity tags: any difference makes another one.
    pub fn word(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.size.to_be_bytes());
        hash.update(self.modified_nanos.to_be_bytes());
        hash.update(self.inode.to_be_bytes());
        hash.update(self.device.to_be_bytes());
        let digest = hash.finalize();
        digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
    }

    /// When the file was last written.
    pub fn modified(&self) -> Timestamp {
        Timestamp::from_micros(self.modified_nanos.div_euclid(1_000))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_was_written_to_or_replaced_is_in_another_state() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("film");
        std::fs::write(&path, b"one").unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        let first = Revision::of(&file).unwrap();
        assert_eq!(first, Revision::of_metadata(&std::fs::metadata(&path).unwrap()));
        file.write_all(b" more").unwrap();
        let second = Revision::of(&file).unwrap();
        std::fs::write(folder.path().join("next"), b"one more").unwrap();
        std::fs::rename(folder.path().join("next"), &path).unwrap();
        let third = Revision::of(&File::open(&path).unwrap()).unwrap();
        let words = [first.word(), second.word(), third.word()];
        assert!(
            words[0] != words[1] && words[1] != words[2] && words[0] != words[2],
            "{words:?}"
        );
        assert_eq!(
            Revision::of(&file).unwrap(),
            second,
            "the name went on to another file"
        );
    }
}
