//! What a name and a size alone tell: which entries are worth opening. Content decides about everything
//! that passes; the suffix of a film is never asked.

/// The smallest file that any container with one frame of anything fits into, in bytes.
pub(crate) const SMALLEST: u64 = 128;

/// What an entry of a directory is, by name and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sieved {
    /// Not shown to anyone: hidden, or the private store of another program.
    Ignored,
    /// Goes with a film: a subtitle, a picture, a description.
    Sidecar,
    /// Another kind of document.
    NotMedia,
    /// No bytes at all.
    Empty,
    /// Too small to hold anything.
    TooSmall,
    /// Worth opening.
    Candidate,
}

/// Whether a directory of this name is walked.
pub(crate) fn walks(name: &[u8]) -> bool {
    let private: [&[u8]; 7] = [
        b"lost+found",
        b"@eaDir",
        b"@Recycle",
        b"#recycle",
        b"#snapshot",
        b"$RECYCLE.BIN",
        b"System Volume Information",
    ];
    !name.starts_with(b".") && !private.contains(&name)
}

/// What the regular file `name` of `size` bytes is.
pub(crate) fn file(name: &[u8], size: u64) -> Sieved {
    if name.starts_with(b".") || is_unfinished(name) {
        return Sieved::Ignored;
    }
    match suffix(name).as_deref() {
        Some(suffix) if SIDECARS.contains(&suffix) => Sieved::Sidecar,
        Some(suffix) if DOCUMENTS.contains(&suffix) => Sieved::NotMedia,
        _ if size == 0 => Sieved::Empty,
        _ if size < SMALLEST => Sieved::TooSmall,
        _ => Sieved::Candidate,
    }
}

/// The lower-case suffix of `name`, where it has one of plain letters and digits.
pub(crate) fn suffix(name: &[u8]) -> Option<String> {
    let dot = name.iter().rposition(|b| *b == b'.').filter(|at| *at > 0)?;
    let suffix = &name[dot + 1..];
    let plain = (1..=10).contains(&suffix.len()) && suffix.iter().all(|b| b.is_ascii_alphanumeric());
    plain.then(|| String::from_utf8_lossy(suffix).to_ascii_lowercase())
}

/// Names that download tools give to what is not whole yet; the final name comes by a rename.
fn is_unfinished(name: &[u8]) -> bool {
    let endings: [&[u8]; 7] = [
        b".part",
        b".partial",
        b".crdownload",
        b".!qB",
        b".aria2",
        b".tmp",
        b"~",
    ];
    endings.iter().any(|ending| name.ends_with(ending))
}

const SIDECARS: &[&str] = &[
    "srt", "vtt", "ass", "ssa", "sub", "idx", "sup", "smi", "ttml", "lrc", "nfo", "jpg", "jpeg", "png",
    "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "cue", "m3u", "m3u8",
];

const DOCUMENTS: &[&str] = &[
    "txt", "md", "pdf", "doc", "docx", "odt", "xls", "xlsx", "ods", "csv", "epub", "htm", "html", "xml",
    "json", "yaml", "yml", "toml", "ini", "cfg", "conf", "log", "db", "sqlite", "torrent", "nzb", "url",
    "lnk", "zip", "rar", "7z", "gz", "bz2", "xz", "zst", "tar", "tgz", "iso", "img", "dmg", "exe", "msi",
    "dll", "so", "deb", "rpm", "apk", "sh", "bat", "ps1", "py", "js", "css", "c", "h", "rs", "go", "java",
    "class", "jar", "o", "a", "ttf", "otf", "woff", "woff2", "par2", "sfv", "md5", "sha1", "sha256", "svg",
    "psd", "xcf", "bak", "swp",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_decides_wherever_the_name_does_not_rule_media_out() {
        for name in [
            &b"film"[..],
            b"film.mkv",
            b"film.xyz",
            b"-x.mp4",
            b"film.mp4.old",
            b"caf\xe9",
        ] {
            assert_eq!(file(name, 4096), Sieved::Candidate, "{name:?}");
        }
        assert_eq!(file(b"film.en.srt", 4096), Sieved::Sidecar);
        assert_eq!(file(b"poster.JPG", 4096), Sieved::Sidecar);
        assert_eq!(file(b"notes.txt", 4096), Sieved::NotMedia);
        assert_eq!(file(b"film.mkv", 0), Sieved::Empty);
        assert_eq!(file(b"film.mkv", 127), Sieved::TooSmall);
        assert_eq!(file(b".film.mkv.x8Kd3", 4096), Sieved::Ignored);
        assert_eq!(file(b"film.mkv.part", 4096), Sieved::Ignored);
        assert!(!walks(b".git") && !walks(b"lost+found") && walks(b"Films"));
    }
}
