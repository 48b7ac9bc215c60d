//! Text tracks as playbacks know them: out of films by the encoder's reader, and from beside them by the library.

use std::sync::Arc;

use bytes::Bytes;
use ether_encoder::{BoxFuture, Input};
use ether_ffmpeg::subtitles::{Film, Reading, Sidecar, SubtitleError, Subtitles};
use ether_library::{OpenError, SIDECARS_FROM};
use ether_media::subtitles::Track;
use ether_playback::ports::{ItemDetail, TextBatch, TextError, TextSource, Texts};

/// Joins [`Subtitles`] and the library to the port.
pub(crate) struct NodeTexts {
    pub(crate) subtitles: Subtitles,
    pub(crate) library: Arc<ether_library::Library>,
}

impl Texts for NodeTexts {
    fn open(
        &self,
        item: Arc<ItemDetail>,
        stream: u32,
    ) -> BoxFuture<'_, Result<Box<dyn TextSource>, TextError>> {
        Box::pin(async move {
            if stream >= SIDECARS_FROM {
                let track = self.sidecar(&item, stream).await?;
                return Ok(Box::new(Whole(track)) as Box<dyn TextSource>);
            }
            let reading = self.subtitles.open(&film(&item), stream).map_err(text_error)?;
            Ok(Box::new(Embedded(reading)) as Box<dyn TextSource>)
        })
    }

    fn font(&self, item: Arc<ItemDetail>, stream: u32) -> BoxFuture<'_, Result<Bytes, TextError>> {
        Box::pin(async move {
            self.subtitles
                .font(&film(&item), stream)
                .await
                .map_err(text_error)
        })
    }
}

impl NodeTexts {
    async fn sidecar(&self, item: &ItemDetail, number: u32) -> Result<Arc<Track>, TextError> {
        let id = &item.summary.id;
        let beside = self
            .library
            .sidecars(id)
            .await
            .map_err(|error| open_error(&error))?;
        let found = beside.into_iter().find(|sidecar| sidecar.number == number);
        let found = found.ok_or(TextError::NoSuchTrack)?;
        let bytes = self
            .library
            .read_sidecar(id, &found)
            .await
            .map_err(|error| open_error(&error))?;
        let sidecar = Sidecar {
            bytes,
            revision: ether_encoder::Revision {
                size: found.revision.size,
                modified_nanos: found.revision.mtime_ns,
                inode: found.revision.inode,
                device: found.revision.device,
            },
            suffix: found.suffix,
        };
        self.subtitles.sidecar(&sidecar).await.map_err(text_error)
    }
}

fn film(item: &ItemDetail) -> Film {
    Film {
        input: Input::File {
            path: item.path.clone(),
            revision: item.revision,
        },
        facts: Arc::clone(&item.facts),
    }
}

/// A track of a film, as it is read.
struct Embedded(Reading);

impl TextSource for Embedded {
    fn whole(&mut self) -> BoxFuture<'_, Result<Arc<Track>, TextError>> {
        Box::pin(async move { self.0.whole().await.map_err(text_error) })
    }

    fn next(&mut self) -> BoxFuture<'_, Result<TextBatch, TextError>> {
        Box::pin(async move {
            let batch = self.0.next().await.map_err(text_error)?;
            Ok(TextBatch {
                form: batch.form,
                lines: batch.lines,
                complete: batch.complete,
            })
        })
    }
}

/// A track from beside a film, which is read at once.
struct Whole(Arc<Track>);

impl TextSource for Whole {
    fn whole(&mut self) -> BoxFuture<'_, Result<Arc<Track>, TextError>> {
        Box::pin(std::future::ready(Ok(Arc::clone(&self.0))))
    }

    fn next(&mut self) -> BoxFuture<'_, Result<TextBatch, TextError>> {
        Box::pin(std::future::ready(Ok(TextBatch {
            form: Some(self.0.form.clone()),
            lines: self.0.lines.clone(),
            complete: true,
        })))
    }
}

fn text_error(error: SubtitleError) -> TextError {
    match error {
        SubtitleError::NoSuchTrack => TextError::NoSuchTrack,
        SubtitleError::Pictures => TextError::Pictures,
        SubtitleError::Unreadable { codec } => TextError::Unreadable { format: codec },
        SubtitleError::SourceChanged => TextError::Changed,
        SubtitleError::SourceLost => TextError::Gone,
        SubtitleError::TooMuch | SubtitleError::TooSlow | SubtitleError::Failed => TextError::Failed,
        SubtitleError::Closing => TextError::Unavailable,
    }
}

fn open_error(error: &OpenError) -> TextError {
    match error {
        OpenError::NoSuchItem => TextError::NoSuchTrack,
        OpenError::FolderMissing { .. } | OpenError::Gone { .. } => TextError::Gone,
        OpenError::Changed { .. } => TextError::Changed,
        OpenError::Unreadable { .. } => TextError::Failed,
        OpenError::Closing | OpenError::Catalog(_) => TextError::Unavailable,
    }
}
