//! How files are read: the port that the library needs, and how the prober keeps it.

use std::fs::File;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use ether_media::{Facts, Keyframes, ScanError, Ticks};
use ether_probe::{NotMedia, PictureError, ProbeError, Prober};
use ether_process::SpawnError;

use crate::problem::{Reason, bounded};

/// Raised whenever the readers find more than they did: everything that was read before is then read again.
const READER: i64 = 3;
/// The latest moment of a film that stands for it.
const LATEST: Ticks = Ticks(5 * 60 * Ticks::HZ);
/// The moment that stands for a film whose length is not known.
const UNKNOWN_LENGTH: Ticks = Ticks(10 * Ticks::HZ);

/// An owned future of this crate's port.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Reads films. Dropping any of its futures ends the work behind it.
pub trait MediaReader: Send + Sync + 'static {
    /// Grows whenever reading gets better, so that what was read before is read again.
    fn version(&self) -> i64;

    /// Everything known of `file`.
    fn facts(&self, file: Arc<File>) -> BoxFuture<'_, Result<Facts, ReadFailure>>;

    /// The complete keyframes of `file`, by reading all of it.
    fn keyframes(&self, file: Arc<File>, facts: Arc<Facts>)
    -> BoxFuture<'_, Result<Keyframes, ChoreFailure>>;

    /// A still picture (JPEG) that stands for `file`, `width` pixels wide.
    fn picture(
        &self,
        file: Arc<File>,
        facts: Arc<Facts>,
        width: u32,
    ) -> BoxFuture<'_, Result<Bytes, ChoreFailure>>;
}

/// Why a file could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadFailure {
    /// It is not offered, for this reason.
    Problem(Reason),
    /// The work was ended; nothing is known.
    Stopped,
}

/// Why background work on a file gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChoreFailure {
    /// This revision of the file will never give it.
    Never(String),
    /// Another time it may.
    NotNow(String),
}

/// Reads films with the native readers, `ffprobe` and FFmpeg.
#[derive(Clone)]
pub struct ProbeReader {
    prober: Prober,
}

impl ProbeReader {
    /// Reads with `prober`.
    pub fn new(prober: Prober) -> Self {
        Self { prober }
    }
}

impl MediaReader for ProbeReader {
    fn version(&self) -> i64 {
        READER
    }

    fn facts(&self, file: Arc<File>) -> BoxFuture<'_, Result<Facts, ReadFailure>> {
        Box::pin(async move { self.prober.facts(file).await.map_err(failure) })
    }

    fn keyframes(
        &self,
        file: Arc<File>,
        facts: Arc<Facts>,
    ) -> BoxFuture<'_, Result<Keyframes, ChoreFailure>> {
        Box::pin(async move {
            let found = self.prober.scan_keyframes(file, &facts, |_| {}).await;
            found.map_err(|error| match error {
                ScanError::NoVideo | ScanError::Unsupported | ScanError::Broken { .. } => {
                    ChoreFailure::Never(bounded(&error.to_string()))
                }
                ScanError::Stopped | ScanError::Io(_) => ChoreFailure::NotNow(bounded(&error.to_string())),
            })
        })
    }

    fn picture(
        &self,
        file: Arc<File>,
        facts: Arc<Facts>,
        width: u32,
    ) -> BoxFuture<'_, Result<Bytes, ChoreFailure>> {
        Box::pin(async move {
            // Past the logos and not near the end.
            let at = facts
                .duration
                .map_or(UNKNOWN_LENGTH, |d| Ticks(d.0 / 5).min(LATEST));
            let made = self.prober.still_picture(file, &facts, at, width).await;
            made.map_err(|error| match error {
                PictureError::NoPicture
                | PictureError::TimedOut
                | PictureError::TooMuchOutput
                | PictureError::Undecodable => ChoreFailure::Never(bounded(&error.to_string())),
                PictureError::Ffmpeg(_) | PictureError::Loopback(_) | PictureError::Stopped => {
                    ChoreFailure::NotNow(bounded(&error.to_string()))
                }
            })
        })
    }
}

/// What a probe that found nothing means for the library.
fn failure(error: ProbeError) -> ReadFailure {
    let detail = || bounded(&error.to_string());
    ReadFailure::Problem(match &error {
        ProbeError::NotMedia(NotMedia::Empty) => Reason::Empty,
        ProbeError::NotMedia(NotMedia::UnknownFormat) => Reason::NotMedia { detail: detail() },
        ProbeError::NotMedia(NotMedia::NothingToPlay) => Reason::NothingToPlay,
        ProbeError::NotMedia(NotMedia::Damaged { what, .. }) => Reason::Broken {
            detail: bounded(what),
        },
        ProbeError::TooMuchOutput => Reason::Broken { detail: detail() },
        ProbeError::Unreadable(error) => Reason::from_io(error),
        ProbeError::Ffprobe(SpawnError::NotFound { .. } | SpawnError::NotExecutable { .. }) => {
            Reason::FfprobeMissing
        }
        ProbeError::Ffprobe(SpawnError::ShuttingDown) | ProbeError::Stopped => return ReadFailure::Stopped,
        ProbeError::TimedOut => Reason::TimedOut,
        ProbeError::Ffprobe(_)
        | ProbeError::Failed { .. }
        | ProbeError::Answer(_)
        | ProbeError::Loopback(_) => Reason::Failed { detail: detail() },
    })
}
