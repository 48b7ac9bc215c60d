//! What an encoder's process reads: a file of this node, or a film of another one behind a gateway.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

use ether_encoder::{Ended, Input, Revision, SourceFailure};
use rustix::fs::{Mode, OFlags};

/// The input of an execution, as its runs use it.
#[derive(Clone, Debug)]
pub(crate) struct Origin(Input);

impl Origin {
    pub(crate) fn new(input: Input) -> Self {
        Self(input)
    }

    pub(crate) fn input(&self) -> &Input {
        &self.0
    }

    /// The state that was promised.
    pub(crate) fn revision(&self) -> Revision {
        match &self.0 {
            Input::File { revision, .. } => *revision,
            Input::Gateway(gateway) => gateway.revision(),
        }
    }

    /// How FFmpeg is told of it.
    pub(crate) fn name(&self) -> OsString {
        match &self.0 {
            Input::File { path, .. } => file_url(path.as_os_str()),
            Input::Gateway(gateway) => gateway.url().into(),
        }
    }

    /// Takes what names it out of a line of FFmpeg.
    pub(crate) fn redactor(&self) -> impl Fn(&str) -> String + Send + Sync + 'static {
        let (whole, name) = match &self.0 {
            Input::File { path, .. } => (
                path.display().to_string(),
                path.file_name().map(|name| name.to_string_lossy().into_owned()),
            ),
            // Its last part alone is the secret.
            Input::Gateway(gateway) => (
                gateway.url().to_owned(),
                gateway
                    .url()
                    .rsplit_once('/')
                    .map(|(_, secret)| secret.to_owned()),
            ),
        };
        move |line| redacted(line, &whole, name.as_deref())
    }

    /// Whether it is still the one that was promised. Of a file this asks the file system, which may take its time.
    pub(crate) fn check(&self) -> Result<(), Ended> {
        match &self.0 {
            Input::File { path, revision } => check_file(path, *revision),
            Input::Gateway(gateway) => match gateway.failure() {
                None => Ok(()),
                Some(SourceFailure::Changed) => Err(Ended::SourceChanged),
                Some(SourceFailure::Lost) => Err(Ended::SourceLost),
            },
        }
    }

    /// [`Self::check`] off the async threads.
    pub(crate) async fn check_apart(&self) -> Result<(), Ended> {
        let origin = self.clone();
        let check = tokio::task::spawn_blocking(move || origin.check());
        check.await.unwrap_or(Err(Ended::SourceLost))
    }
}

/// Opens a film's file. No link can have taken its place, and no pipe that would be waited for.
///
/// # Errors
/// The system's own.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Whether the file is still the one that the facts were read from, and no link to it. Takes one question to the
/// file system.
fn check_file(path: &Path, promised: Revision) -> Result<(), Ended> {
    let metadata = std::fs::symlink_metadata(path).map_err(|_| Ended::SourceLost)?;
    if Revision::of_metadata(&metadata) == promised {
        Ok(())
    } else {
        Err(Ended::SourceChanged)
    }
}

/// Names a file so that nothing in its name is taken for a protocol, an option or a pattern.
pub(crate) fn file_url(path: &OsStr) -> OsString {
    let mut url = OsString::from("file:");
    url.push(path);
    url
}

/// What FFmpeg may open to read what is named `name`, and nothing else: no playlist and no reference in a film leads it
/// anywhere.
pub(crate) fn protocols(name: &OsStr) -> &'static str {
    if name.as_encoded_bytes().starts_with(b"http:") {
        "http,tcp"
    } else {
        "file,pipe"
    }
}

/// A line of FFmpeg without the source's path and name. Filters show the file that they read with escapes of their
/// own, so there the rest of the line goes.
fn redacted(line: &str, path: &str, name: Option<&str>) -> String {
    let mut line = line.replace(path, "<source>");
    if let Some(name) = name {
        line = line.replace(name, "<source>");
    }
    match line.split_once("filename=") {
        Some((before, _)) => format!("{before}filename=<source>"),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_carry_no_path_however_it_is_written() {
        let (path, name) = ("/films/it's: a [secret].mkv", "it's: a [secret].mkv");
        for line in [
            "file:/films/it's: a [secret].mkv: Invalid data found",
            "[matroska,webm @ 0x1] it's: a [secret].mkv: Read error",
            r"Error initializing filter 'subtitles' with args 'filename=/films/it\\\'s\: a \[secret\].mkv:si=0'",
        ] {
            let shown = redacted(line, path, Some(name));
            assert!(!shown.contains("secret") && !shown.contains("/films"), "{shown}");
            assert!(shown.contains("<source>"), "{shown}");
        }
        let lavfi = "[lavfi @ 0x1] anullsrc=r=48000: no such layout";
        assert_eq!(redacted(lavfi, path, Some(name)), lavfi);
    }
}
