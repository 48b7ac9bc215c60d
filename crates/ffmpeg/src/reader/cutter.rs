//! The bytes of one rung's segments: from the pipe into scratch space, and from there to whoever waits for them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use ether_encoder::Ended;

use super::{Job, Stop};
use crate::fragment;
use crate::pipe::{PipeReader, Sample};
use crate::scratch::{Blob, BlobReader, WriteError};
use crate::segmenter::{Placement, Segmenter, Table};
use crate::store::{Segment, Store};
use crate::ts;

/// Most bytes of sound that wait for one segment: an hour of anything sane.
const MAX_SOUND: usize = 64 << 20;

/// The bytes of the segments that are being made.
#[derive(Debug)]
pub(super) struct Cutter {
    pub(super) store: Arc<Store>,
    pub(super) job: Job,
    pub(super) rung: usize,
    /// Set for transport streams.
    pub(super) layout: Option<ts::Layout>,
    pub(super) open: BTreeMap<u32, Open>,
}

#[derive(Debug)]
pub(super) struct Open {
    pictures: Blob,
    sounds: Vec<u8>,
}

impl Cutter {
    pub(super) fn fragment<R: Read>(
        &mut self,
        segmenter: &mut Segmenter,
        pipe: &mut PipeReader<R>,
        samples: &[Sample],
    ) -> Result<(), Stop> {
        let mut entered = None;
        for sample in samples {
            let placement = segmenter.place(sample)?;
            let size = u64::from(sample.size);
            match placement {
                Placement::Drop => pipe.copy_to(size, &mut io::sink())?,
                Placement::Video(number) | Placement::Audio(number) => {
                    if self.job.until.is_some_and(|until| number >= until) {
                        pipe.copy_to(size, &mut io::sink())?;
                        continue;
                    }
                    if entered != Some(number) {
                        // What is complete is handed over before this thread may be held back.
                        self.hand_over(segmenter)?;
                        if !self.enter(number) {
                            return Err(Stop::Ended(Ended::Stopped));
                        }
                    }
                    entered = Some(number);
                    self.keep(pipe, number, size, matches!(placement, Placement::Video(_)))?;
                }
            }
        }
        self.hand_over(segmenter)
    }

    /// The lowest segment that is not finished.
    pub(super) fn next(&self) -> u32 {
        let view = self.store.lock().run.filter(|view| view.id == self.job.run);
        view.map_or(self.job.first, |view| view.next[self.rung])
    }

    fn hand_over(&mut self, segmenter: &mut Segmenter) -> Result<(), Stop> {
        while let Some((number, table)) = segmenter.pop_ready() {
            self.finish(number, &table).map_err(Stop::Ended)?;
        }
        Ok(())
    }

    fn enter(&self, number: u32) -> bool {
        self.store.enter(self.job.run, number)
    }

    fn keep<R: Read>(
        &mut self,
        pipe: &mut PipeReader<R>,
        number: u32,
        size: u64,
        picture: bool,
    ) -> Result<(), Stop> {
        let scratch = self.store.scratch.clone();
        let open = self.open.entry(number).or_insert_with(|| Open {
            pictures: Blob::new(scratch),
            sounds: Vec::new(),
        });
        if picture {
            let mut sink = Sink {
                blob: &mut open.pictures,
                store: &self.store,
                run: self.job.run,
                failed: None,
            };
            let copied = pipe.copy_to(size, &mut sink);
            if let Some(error) = sink.failed {
                return Err(Stop::Ended(ended_by(&error, number, &self.store)));
            }
            copied?;
        } else {
            if open.sounds.len() as u64 + size > MAX_SOUND as u64 {
                return Err(Stop::Ended(Ended::Unreadable));
            }
            pipe.copy_to(size, &mut open.sounds)?;
        }
        Ok(())
    }

    /// Completes segment `number` and hands it to whoever waits. Segments that were passed over without a
    /// picture or a sound, where one picture is shown for longer than a segment, are there and empty.
    pub(super) fn finish(&mut self, number: u32, table: &Table) -> Result<(), Ended> {
        for empty in self.next()..number {
            self.complete(empty, &Table::default())?;
        }
        self.complete(number, table)
    }

    fn complete(&mut self, number: u32, table: &Table) -> Result<(), Ended> {
        // A file that changed while it was read may have given bytes of both states: none of them are served.
        self.job.source.check()?;
        let (run, rung) = (self.job.run, self.rung);
        let store = self.store.clone();
        let open = self.open.remove(&number);
        let open = open.unwrap_or_else(|| Open {
            pictures: Blob::new(store.scratch.clone()),
            sounds: Vec::new(),
        });
        let (mut blob, head, content_type) = match &self.layout {
            None => {
                let mut blob = open.pictures;
                let head = fragment::head(number, table, self.job.reorder);
                for bytes in [&open.sounds, &head] {
                    store
                        .append(run, &mut blob, bytes)
                        .map_err(|e| ended_by(&e, number, &store))?;
                }
                let kind = if store.strand.video.is_some() {
                    "video/mp4"
                } else {
                    "audio/mp4"
                };
                (blob, head.len() as u64, kind)
            }
            Some(layout) => (
                transport(&store, run, layout, number, table, &open)?,
                0,
                "video/mp2t",
            ),
        };
        let etag = format!("{}-{run}-{rung}-{number}", store.tag);
        blob.settle();
        let len = blob.len();
        let segment = Arc::new(Segment {
            blob,
            head,
            etag,
            content_type,
        });
        let finished = segment.clone();
        store.update(|state| {
            state.bytes_produced += len;
            state.segments.insert((number, rung), segment);
            if let Some(view) = state.run.as_mut().filter(|view| view.id == run) {
                view.next[rung] = view.next[rung].max(number + 1);
            }
        });
        // Whoever waits has it by now; keeping it may take a moment.
        store.keep(rung, number, &finished);
        Ok(())
    }
}

fn transport(
    store: &Arc<Store>,
    run: u64,
    layout: &ts::Layout,
    number: u32,
    table: &Table,
    open: &Open,
) -> Result<Blob, Ended> {
    let mut blob = Blob::new(store.scratch.clone());
    let mut pictures = io::BufReader::with_capacity(
        64 << 10,
        BlobReader {
            blob: &open.pictures,
            at: 0,
        },
    );
    let mut sink = Sink {
        blob: &mut blob,
        store,
        run,
        failed: None,
    };
    let mut out = io::BufWriter::with_capacity(188 * 348, &mut sink);
    let written = ts::write_segment(layout, number, table, &mut pictures, &open.sounds, &mut out);
    let written = written.and_then(|()| out.flush());
    drop(out);
    match (sink.failed, written) {
        (Some(error), _) => Err(ended_by(&error, number, store)),
        (None, Err(error)) => {
            tracing::warn!(%error, number, "a segment cannot be written as a transport stream");
            Err(Ended::Unreadable)
        }
        (None, Ok(())) => Ok(blob),
    }
}

/// How a run ends that cannot write segment `number`.
fn ended_by(error: &WriteError, number: u32, store: &Store) -> Ended {
    match error {
        WriteError::GivenUp => Ended::Stopped,
        WriteError::TooLarge => Ended::SegmentTooLarge {
            segment: number,
            scratch: store.scratch.limit(),
        },
        WriteError::Io(error) => {
            tracing::warn!(%error, "scratch space cannot be written");
            Ended::ScratchFull
        }
    }
}

/// Appends to a blob, waiting for room; keeps the reason where it cannot.
struct Sink<'a> {
    blob: &'a mut Blob,
    store: &'a Store,
    run: u64,
    failed: Option<WriteError>,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.store.append(self.run, self.blob, bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failed = Some(error);
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
