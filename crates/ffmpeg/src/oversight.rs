//! What is done for every encoder process, whoever reads its output: how it is started so that its last words
//! give nothing away, when it counts as stalled, and what its end means.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{Ended, Refusal, Revision, VideoEncode};
use ether_media::Facts;
use ether_process::{ExitEvidence, Spec};
use ether_types::Monotonic;

use crate::devices::{Devices, Fault};
use crate::reader;

/// How often a run's progress is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long an encoder that is not held back may make nothing before it counts as stalled.
const PATIENCE: Duration = Duration::from_secs(30);

/// Signals by which a driver ends the process that uses it.
const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

/// FFmpeg with `args`, its output in a pipe, and whatever it says without the name of the `source`.
pub(crate) fn spec(program: &Path, args: &[OsString], source: &Path) -> Spec {
    let mut spec = Spec::new(program);
    spec.args(args).stdout_pipe();
    let (whole, name) = (
        source.display().to_string(),
        source.file_name().map(|n| n.to_string_lossy().into_owned()),
    );
    spec.redact(move |line| redacted(line, &whole, name.as_deref()));
    spec
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

/// [`reader::check_revision`] off the async threads: a network mount may take its time.
pub(crate) async fn check_revision(path: &Path, promised: Revision) -> Result<(), Ended> {
    let path = path.to_owned();
    let check = tokio::task::spawn_blocking(move || reader::check_revision(&path, promised));
    check.await.unwrap_or(Err(Ended::SourceLost))
}

/// What the exit of a process that failed means: that of its source where this is the reason.
pub(crate) async fn failure(
    evidence: &ExitEvidence,
    stalled: bool,
    path: &Path,
    promised: Revision,
) -> Ended {
    match check_revision(path, promised).await {
        Err(ended) => ended,
        Ok(()) if stalled => Ended::Stalled,
        Ok(()) => Ended::Failed {
            status: evidence.status().code(),
            signal: evidence.status().signal(),
        },
    }
}

/// What the end of a run means for the device that was to `encode` a film with these `facts`, where it was not the
/// processor: told to `devices`, and to whoever waits for the run. `made` says whether it made anything.
pub(crate) fn device_fault(
    devices: &Arc<Devices>,
    (encode, facts): (&VideoEncode, &Arc<Facts>),
    ended: &Ended,
    lines: &[String],
    made: bool,
) -> Option<Refusal> {
    let fault = match ended {
        _ if !encode.device.is_hardware() => return None,
        Ended::Failed {
            signal: None | Some(SIGILL | SIGABRT | SIGBUS | SIGSEGV),
            ..
        }
        | Ended::Unreadable => Fault::of(encode.device, lines, made)?,
        // A disk that does not answer stalls a run as a device does.
        Ended::Stalled => Fault::Unclear {
            said: "it made nothing for too long".to_owned(),
        },
        Ended::ConfigurationChanged => Fault::Failed {
            said: "it gives another configuration than was announced".to_owned(),
        },
        _ => return None,
    };
    Some(devices.failed(encode.device, encode.codec, facts, fault))
}

/// Watches what a process makes.
#[derive(Debug)]
pub(crate) struct Vigil {
    seen: u64,
    /// Since when it has made nothing although it might have.
    idle_since: Monotonic,
    next_look: Monotonic,
    stalled: bool,
}

impl Vigil {
    /// Begins at `now`, with nothing made.
    pub(crate) fn begin(now: Monotonic) -> Self {
        Self {
            seen: 0,
            idle_since: now,
            next_look: now.saturating_add(LOOK),
            stalled: false,
        }
    }

    /// How long until the next look, however busy its owner is with viewers meanwhile.
    pub(crate) fn until_look(&self, now: Monotonic) -> Duration {
        self.next_look.saturating_since(now)
    }

    /// Looks at `now`: `made` changes as its media gets on, `held` is whether it is not its turn. True once, when it
    /// has to be ended because it lives and makes nothing. Bytes alone are no progress: an encoder that writes and
    /// never gets on is as stalled as a silent one.
    pub(crate) fn look(&mut self, now: Monotonic, made: u64, held: bool) -> bool {
        if made != self.seen || held {
            self.idle_since = now;
        }
        self.seen = made;
        self.next_look = now.saturating_add(LOOK);
        let stalled = now.saturating_since(self.idle_since) >= PATIENCE;
        let first = stalled && !self.stalled;
        self.stalled |= stalled;
        first
    }

    /// Whether it was found to be stalled.
    pub(crate) fn stalled(&self) -> bool {
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use super::redacted;

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
