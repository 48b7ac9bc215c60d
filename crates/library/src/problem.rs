//! Why an entry of a folder is not in the library: one typed reason each, with what a person can do.

use serde::{Deserialize, Serialize};

/// Why something in a folder is not offered for playing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "code")]
pub enum Reason {
    /// The name says that it is another kind of document; it was not opened.
    #[error("not a film or song: a .{suffix} file")]
    OtherDocument {
        /// The suffix, in lower case.
        suffix: String,
    },
    /// The file has no bytes.
    #[error("the file is empty: copy it again")]
    Empty,
    /// No container fits into so few bytes.
    #[error("the file has only {size} bytes: copy it again if it was a film")]
    TooSmall {
        /// Bytes in the file.
        size: u64,
    },
    /// The bytes are no container that the readers or FFmpeg know.
    #[error("not a film or song: {detail}")]
    NotMedia {
        /// What the reader said.
        detail: String,
    },
    /// A container without moving pictures and without sound.
    #[error("there is nothing to play in it: no film and no sound")]
    NothingToPlay,
    /// The container is damaged beyond use.
    #[error("the file is damaged: {detail}")]
    Broken {
        /// What the reader said.
        detail: String,
    },
    /// The operating system does not let this process read it.
    #[error("permission denied: make it readable for the user that runs ether")]
    PermissionDenied,
    /// The operating system failed to read it.
    #[error("it cannot be read: {detail}; check the disk or the network share")]
    Unreadable {
        /// What the operating system said.
        detail: String,
    },
    /// The disk or share does not answer at all.
    #[error("its disk or share does not answer: check its connection; it is looked at again once it does")]
    Silent,
    /// A pipe, socket or device; never opened.
    #[error("not a file but a {what}")]
    SpecialFile {
        /// Which kind.
        what: SpecialKind,
    },
    /// A symbolic link that leads nowhere.
    #[error("a symbolic link whose target does not exist")]
    BrokenLink,
    /// A symbolic link that leads out of the folder; it is not followed.
    #[error("a symbolic link that leads out of the folder: give its target with --media as well")]
    LinkOutside,
    /// A symbolic link that leads to itself.
    #[error("a symbolic link that leads to itself")]
    LinkLoop,
    /// Directories nested deeper than is followed.
    #[error("directories are nested deeper than {limit}: this one is not entered")]
    TooDeep {
        /// The deepest level that is entered.
        limit: usize,
    },
    /// The directory contains itself (a bind mount).
    #[error("this directory is one of those that contain it: it is not entered again")]
    Cycle,
    /// A disk or share that was mounted here is not mounted now; its films are kept.
    #[error("the disk or share that was mounted here is not: mount it again; its films are kept")]
    NotMounted,
    /// The file is still changing; it is read once it rests.
    #[error("it is still being written: it will be read once it rests")]
    BeingWritten,
    /// `ffprobe` is needed for this container and is not installed.
    #[error("reading this kind of file needs ffprobe: install FFmpeg")]
    FfprobeMissing,
    /// Reading took longer than it may.
    #[error("reading it took too long; it is tried again later")]
    TimedOut,
    /// The reader failed in another way; it is tried again later.
    #[error("reading it failed: {detail}; it is tried again later")]
    Failed {
        /// What the reader said.
        detail: String,
    },
    /// A reason that a newer version wrote.
    #[error("for a reason that this version does not know")]
    #[serde(other)]
    Unknown,
}

/// What a special file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpecialKind {
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// Something else that is neither file nor directory.
    Other,
}

impl std::fmt::Display for SpecialKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SpecialKind::Pipe => "named pipe",
            SpecialKind::Socket => "socket",
            SpecialKind::Device => "device",
            SpecialKind::Other => "special file",
        })
    }
}

/// When a problem is looked at again although its file did not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Only when the file or the reader changes.
    OnChange,
    /// At every scan: trying costs nothing.
    EveryScan,
    /// At scans, ever more rarely.
    Later,
}

impl Reason {
    /// A stable word for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::OtherDocument { .. } | Reason::NotMedia { .. } => "not-media",
            Reason::Empty => "empty",
            Reason::TooSmall { .. } => "too-small",
            Reason::NothingToPlay => "nothing-to-play",
            Reason::Broken { .. } => "broken",
            Reason::PermissionDenied => "permission-denied",
            Reason::Unreadable { .. } => "unreadable",
            Reason::Silent => "silent",
            Reason::SpecialFile { .. } => "special-file",
            Reason::BrokenLink => "broken-link",
            Reason::LinkOutside => "link-outside",
            Reason::LinkLoop => "link-loop",
            Reason::TooDeep { .. } => "too-deep",
            Reason::Cycle => "cycle",
            Reason::NotMounted => "not-mounted",
            Reason::BeingWritten => "being-written",
            Reason::FfprobeMissing => "ffprobe-missing",
            Reason::TimedOut => "timed-out",
            Reason::Failed { .. } => "failed",
            Reason::Unknown => "unknown",
        }
    }

    /// What an error of the operating system means for the entry it was met at.
    pub(crate) fn from_io(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::PermissionDenied => Reason::PermissionDenied,
            _ => Reason::Unreadable {
                detail: bounded(&error.to_string()),
            },
        }
    }

    /// Whether what is there now is known not to be a film, as opposed to not being readable now.
    pub(crate) fn is_about_content(&self) -> bool {
        !matches!(
            self,
            Reason::PermissionDenied
                | Reason::Unreadable { .. }
                | Reason::Silent
                | Reason::BeingWritten
                | Reason::NotMounted
        )
    }

    /// Whether another try may well succeed with the same bytes.
    pub(crate) fn is_passing(&self) -> bool {
        self.again() != Again::OnChange
    }

    pub(crate) fn again(&self) -> Again {
        match self {
            Reason::PermissionDenied | Reason::Unreadable { .. } | Reason::Silent | Reason::BeingWritten => {
                Again::EveryScan
            }
            Reason::FfprobeMissing => Again::EveryScan,
            Reason::TimedOut | Reason::Failed { .. } | Reason::Unknown => Again::Later,
            _ => Again::OnChange,
        }
    }

    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| r#"{"code":"unknown"}"#.to_owned())
    }

    pub(crate) fn from_text(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or(Reason::Unknown)
    }
}

/// A reader's words, bounded and on one line, as they are kept.
pub(crate) fn bounded(text: &str) -> String {
    let short: String = text.chars().take(300).collect();
    crate::name::shown(short.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_reads_back_and_a_newer_one_is_admitted() {
        let reasons = [
            Reason::OtherDocument { suffix: "txt".into() },
            Reason::TooSmall { size: 7 },
            Reason::SpecialFile {
                what: SpecialKind::Pipe,
            },
            Reason::LinkLoop,
        ];
        for reason in reasons {
            assert_eq!(Reason::from_text(&reason.to_text()), reason);
        }
        assert_eq!(
            Reason::from_text(r#"{"code":"eaten-by-a-grue","who":1}"#),
            Reason::Unknown
        );
        assert_eq!(Reason::from_text("not json"), Reason::Unknown);
    }
}
