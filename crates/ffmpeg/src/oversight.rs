//! What is done for every encoder process, whoever reads its output: how it is started so that its last words
//! give nothing away, when it counts as stalled, and what its end means.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use ether_encoder::{Ended, Revision};
use ether_process::{ExitEvidence, Spec};
use ether_types::Monotonic;

use crate::reader;

/// How often a run's progress is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long an encoder that is not held back may make nothing before it counts as stalled.
const PATIENCE: Duration = Duration::from_secs(30);

/// FFmpeg with `args`, its output in a pipe, and whatever it says without the name of the `source`.
pub(crate) fn spec(program: &Path, args: &[OsString], source: &Path) -> Spec {
    let mut spec = Spec::new(program);
    spec.args(args).stdout_pipe();
    let (whole, name) = (
        source.display().to_string(),
        source.file_name().map(|n| n.to_string_lossy().into_owned()),
    );
    spec.redact(move |line| {
        let line = line.replace(&whole, "<source>");
        match &name {
            Some(name) => line.replace(name.as_str(), "<source>"),
            None => line,
        }
    });
    spec
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

    /// Looks at `now`: `made` grows with what it makes, `held` is whether it is not its turn. True once, when it
    /// has to be ended because it lives and makes nothing.
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
