//! Exit statuses: what a script may rely on.

use std::process::ExitCode;

/// How the program ends. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Done as asked.
    Done = 0,
    /// Something failed that has no status of its own.
    Failed = 1,
    /// The command line is not understood.
    Usage = 2,
    /// The data directory is used by another server.
    Locked = 3,
    /// The address cannot be listened on.
    Address = 4,
    /// FFmpeg or ffprobe is missing, too old, does not answer, or (the doctor's finding) lacks an encoder.
    Ffmpeg = 5,
    /// A folder of films does not exist or is not one.
    Media = 6,
    /// The data directory or the scratch directory cannot be used.
    Storage = 7,
    /// The server stopped, and the end of an encoder is not proved.
    Unproved = 8,
    /// A second signal: stopped at once.
    Interrupted = 130,
}

/// The statuses, for the help.
pub(crate) const HELP: &str = "Exit status:
  0    done as asked
  1    something failed that has no status of its own
  2    the command line is not understood
  3    the data directory is used by another server
  4    the address cannot be listened on
  5    FFmpeg or ffprobe is missing, too old, does not answer, or lacks an encoder
  6    a folder of films does not exist or is not one
  7    the data directory or the scratch directory cannot be used
  8    the server stopped, and the end of an encoder is not proved
  130  a second signal: stopped at once
The doctor ends with the status of the first failure that it finds.";

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        ExitCode::from(status as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_every_status() {
        for status in [
            Status::Done,
            Status::Failed,
            Status::Usage,
            Status::Locked,
            Status::Address,
            Status::Ffmpeg,
            Status::Media,
            Status::Storage,
            Status::Unproved,
            Status::Interrupted,
        ] {
            let number = format!("\n  {} ", status as u8);
            assert!(HELP.contains(&number), "{status:?}");
        }
    }
}
