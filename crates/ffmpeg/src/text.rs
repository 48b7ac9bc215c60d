//! The text track of an execution: the whole of it as one ASS file, on the execution's timeline.
//!
//! What reads it is shared by all executions and owned by the encoder ([`crate::Subtitles`]); retiring an
//! execution only withdraws its interest.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::Bytes;
use ether_encoder::{ByteStream, Ended, Pieces, Resource, ServeError, Served, ServedMedia};
use ether_media::Timeline;
use ether_media::subtitles::{Clock, ass};

use crate::subtitles::{Film, SubtitleError, Subtitles};

/// A text track on its way to a viewer.
pub(crate) struct Text {
    subtitles: Subtitles,
    film: Film,
    stream: u32,
    timeline: Arc<Timeline>,
    /// The entity tag; the text is made once.
    tag: String,
    made: OnceLock<Bytes>,
}

impl Text {
    pub(crate) fn new(
        subtitles: Subtitles,
        film: Film,
        stream: u32,
        timeline: Arc<Timeline>,
        tag: String,
    ) -> Self {
        Self {
            subtitles,
            film,
            stream,
            timeline,
            tag,
            made: OnceLock::new(),
        }
    }

    /// Waits until the track is read. Cancelling withdraws the interest in it.
    pub(crate) async fn serve(&self) -> Result<Served, ServeError> {
        if let Some(served) = self.finished() {
            return Ok(served);
        }
        let reading = self.subtitles.open(&self.film, self.stream);
        let track = match reading {
            Ok(mut reading) => reading.whole().await,
            Err(error) => Err(error),
        };
        let track = track.map_err(unserved)?;
        let clock = Clock {
            zero: self.timeline.origin(),
            end: self.timeline.end(),
        };
        let made = self.made.get_or_init(|| ass::file(&track, clock).into());
        Ok(self.served(made))
    }

    pub(crate) fn finished(&self) -> Option<Served> {
        self.made.get().map(|made| self.served(made))
    }

    fn served(&self, made: &Bytes) -> Served {
        Served {
            len: made.len() as u64,
            etag: self.tag.clone(),
            content_type: ass::MEDIA_TYPE,
            media: Box::new(InMemory(made.clone())),
        }
    }
}

fn unserved(error: SubtitleError) -> ServeError {
    let ended = match error {
        SubtitleError::NoSuchTrack | SubtitleError::Pictures | SubtitleError::Unreadable { .. } => {
            return ServeError::NoSuchResource {
                resource: Resource::Subtitles,
            };
        }
        SubtitleError::Closing => return ServeError::Retired,
        SubtitleError::SourceChanged => Ended::SourceChanged,
        SubtitleError::SourceLost => Ended::SourceLost,
        SubtitleError::TooMuch | SubtitleError::TooSlow | SubtitleError::Failed => Ended::Failed {
            status: None,
            signal: None,
        },
    };
    ServeError::Ended { ended }
}

struct InMemory(Bytes);

impl ServedMedia for InMemory {
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(self.0.len());
        ByteStream::new(Once(Some(self.0.slice(at(range.start)..at(range.end)))))
    }
}

struct Once(Option<Bytes>);

impl Pieces for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        Poll::Ready(self.0.take().filter(|bytes| !bytes.is_empty()).map(Ok))
    }
}
