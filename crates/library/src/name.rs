//! Paths inside a folder, as bytes. A file name on Linux is any bytes but `/` and NUL; a database's text is
//! not. The text form here is reversible, so a name in any encoding opens again after a restart.

use std::ffi::OsStr;
use std::fmt;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A path relative to its folder: components joined by `/`, none of them empty, `.` or `..`.
/// The folder itself is the empty path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct RelPath(Vec<u8>);

impl RelPath {
    /// The folder itself.
    pub(crate) fn root() -> Self {
        Self::default()
    }

    /// The entry `name` of this directory; `None` where `name` is not the name of an entry.
    pub(crate) fn child(&self, name: &[u8]) -> Option<Self> {
        if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
            return None;
        }
        let mut path = self.0.clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(Self(path))
    }

    /// The directory that holds this entry; `None` for the folder itself.
    pub(crate) fn parent(&self) -> Option<Self> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().rposition(|b| *b == b'/').unwrap_or(0);
        Some(Self(self.0[..end].to_vec()))
    }

    /// The last component; empty for the folder itself.
    pub(crate) fn name(&self) -> &[u8] {
        self.0.rsplit(|b| *b == b'/').next().unwrap_or_default()
    }

    /// Whether this is the folder itself.
    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// How many components it has.
    pub(crate) fn depth(&self) -> usize {
        match self.0.is_empty() {
            true => 0,
            false => 1 + self.0.iter().filter(|b| **b == b'/').count(),
        }
    }

    /// What is left of this path below `ancestor`; `None` where it does not lie strictly below.
    pub(crate) fn below(&self, ancestor: &Self) -> Option<&[u8]> {
        if ancestor.is_root() {
            return (!self.is_root()).then_some(&self.0);
        }
        self.0.strip_prefix(ancestor.0.as_slice())?.strip_prefix(b"/")
    }

    /// The path as the operating system takes it; `.` for the folder itself.
    pub(crate) fn as_path(&self) -> &Path {
        match self.0.is_empty() {
            true => Path::new("."),
            false => Path::new(OsStr::from_bytes(&self.0)),
        }
    }

    /// The path below `folder`.
    pub(crate) fn beneath(&self, folder: &Path) -> PathBuf {
        match self.0.is_empty() {
            true => folder.to_owned(),
            false => folder.join(OsStr::from_bytes(&self.0)),
        }
    }

    /// The reversible text form.
    pub(crate) fn to_text(&self) -> String {
        encode(&self.0)
    }

    /// Reads [`RelPath::to_text`] back; `None` where the text was never made by it.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let bytes = decode(text)?;
        if bytes.is_empty() {
            return Some(Self::root());
        }
        bytes
            .split(|b| *b == b'/')
            .try_fold(Self::root(), |path, name| path.child(name))
    }

    /// A fixed-length stand-in for the path in database keys: indexes have a limit that paths exceed.
    pub(crate) fn key(&self) -> String {
        let digest = Sha256::digest(&self.0);
        hex(&digest[..16])
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

/// Bytes for a person to read: what is not text, and what would break a line or hide itself, is escaped.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() || is_invisible(c) {
                true => text.extend(c.escape_default()),
                false => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Characters that reorder or hide the ones around them; a name is shown without their effect.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// Any bytes as text: valid UTF-8 as it is, everything else, `%` and NUL as `%XX`.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '%' => text.push_str("%25"),
                '\0' => text.push_str("%00"),
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = tail;
            continue;
        }
        let digits = tail.get(..2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &tail[2..];
    }
    Some(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn no_name_can_climb_out_of_its_folder() {
        let root = RelPath::root();
        for name in [&b".."[..], b".", b"", b"a/b", b"a\0b"] {
            assert_eq!(root.child(name), None, "{name:?}");
        }
        assert_eq!(RelPath::from_text("a/../b"), None);
        assert_eq!(RelPath::from_text("/a"), None);
        assert_eq!(RelPath::from_text("a%2e%2e"), RelPath::root().child(b"a.."));
        assert_eq!(RelPath::from_text("a/%2e%2E/b"), None);
    }

    #[test]
    fn below_means_a_whole_component() {
        let film = RelPath::from_text("films/one").unwrap();
        assert_eq!(
            film.below(&RelPath::from_text("films").unwrap()),
            Some(&b"one"[..])
        );
        assert_eq!(film.below(&RelPath::from_text("film").unwrap()), None);
        assert_eq!(film.below(&film), None);
        assert_eq!(film.below(&RelPath::root()), Some(&b"films/one"[..]));
        assert_eq!(film.parent(), RelPath::from_text("films"));
        assert_eq!(RelPath::root().parent(), None);
    }

    #[test]
    fn a_name_for_people_has_no_line_breaks_and_no_raw_bytes() {
        assert_eq!(shown(b"a\nb\xffc"), "a\\nb\\xffc");
        assert_eq!(shown("x\u{202e}4pm.exe".as_bytes()), "x\\u{202e}4pm.exe");
    }

    proptest! {
        #[test]
        fn every_name_survives_the_database(bytes in proptest::collection::vec(1_u8.., 1..40)) {
            let name: Vec<u8> = bytes.into_iter().map(|b| if b == b'/' { b'%' } else { b }).collect();
            if let Some(path) = RelPath::from_text("%41").unwrap().child(&name) {
                let text = path.to_text();
                prop_assert!(!text.contains('\0'));
                prop_assert_eq!(RelPath::from_text(&text), Some(path));
            }
        }
    }
}
