//! The bytes of a stream on their way from FFmpeg's pipe to whoever sends them.
//!
//! Nothing is read ahead: a piece is taken out of the pipe when it is asked for, so that a slow viewer holds
//! FFmpeg back by its full pipe. In flight are at most that pipe (1 MiB) and one piece.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ether_encoder::{Ended, Input, Pieces, Revision};
use ether_media::Ticks;
use ether_process::OutputPipe;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::oneshot;

use crate::origin::{self, Origin};

use super::walker::{Span, Walker};

/// Bytes of one piece at most.
const PIECE: usize = 128 << 10;
/// Bytes that are looked at for the first picture before the stream is handed over without it.
const HEAD: usize = 2 << 20;

/// What a stream's source must go on to be.
#[derive(Debug)]
pub(super) struct Source {
    origin: Origin,
    /// A file, held open: of it the kernel knows its state without asking a disk.
    file: Option<File>,
}

impl Source {
    /// Opens it off the async threads: a network mount may take its time.
    pub(super) async fn open(origin: Origin) -> Result<Self, Ended> {
        let open = tokio::task::spawn_blocking(move || {
            let file = match origin.input() {
                Input::Gateway(_) => None,
                Input::File { path, .. } => Some(origin::open(path).map_err(|_| Ended::SourceLost)?),
            };
            Ok(Self { origin, file })
        });
        let source: Self = open.await.unwrap_or(Err(Ended::SourceLost))?;
        source.check()?;
        Ok(source)
    }

    /// Whether it is still what was promised.
    fn check(&self) -> Result<(), Ended> {
        let Some(file) = &self.file else {
            return self.origin.check();
        };
        match Revision::of(file) {
            Err(_) => Err(Ended::SourceLost),
            Ok(now) if now == self.origin.revision() => Ok(()),
            Ok(_) => Err(Ended::SourceChanged),
        }
    }
}

/// How far a stream has come, for those who watch it.
#[derive(Debug, Default)]
pub(super) struct Meter {
    /// Bytes taken out of the pipe by all runs.
    pub(super) bytes: AtomicU64,
    /// Whether somebody waits for FFmpeg: else it is not its turn.
    pub(super) waits: AtomicBool,
    /// Grows with every read that brought media which comes after all that was there.
    pub(super) steps: AtomicU64,
    /// Ticks of the latest picture, or sound where there is none; negative before the first.
    pub(super) produced: AtomicI64,
}

/// A pipe that can be taken away from its reader.
#[derive(Clone, Debug)]
pub(super) struct Tap(Arc<Mutex<Option<Pipe>>>);

impl Tap {
    fn lock(&self) -> MutexGuard<'_, Option<Pipe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes it. Whoever reads finds the end of the stream, at the next time that it is polled.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }
}

/// FFmpeg's output as the reactor reads it. Dropped in this order, so that nothing is open any more once its owner
/// counts it as closed.
#[derive(Debug)]
struct Pipe {
    receiver: Receiver,
    _owner: OutputPipe,
}

impl Pipe {
    fn new(owner: OutputPipe) -> io::Result<Self> {
        let receiver = Receiver::from_owned_fd(owner.as_fd().try_clone_to_owned()?)?;
        Ok(Self {
            receiver,
            _owner: owner,
        })
    }
}

/// Reads one run's pipe.
#[derive(Debug)]
pub(super) struct Intake {
    tap: Tap,
    source: Source,
    walker: Walker,
    meter: Arc<Meter>,
    buffer: Box<[u8]>,
    /// What was read before the stream was handed over.
    ahead: VecDeque<Bytes>,
}

impl Intake {
    pub(super) fn new(pipe: OutputPipe, source: Source, meter: Arc<Meter>) -> io::Result<Self> {
        Ok(Self {
            tap: Tap(Arc::new(Mutex::new(Some(Pipe::new(pipe)?)))),
            source,
            walker: Walker::default(),
            meter,
            buffer: vec![0; PIECE].into(),
            ahead: VecDeque::new(),
        })
    }

    pub(super) fn tap(&self) -> Tap {
        self.tap.clone()
    }

    /// The times of the `n`th track so far.
    pub(super) fn span(&self, n: usize) -> Option<Span> {
        self.walker.span(n)
    }

    /// Reads until the first block of the first track is there, which is the picture's where there is one.
    /// False where the stream ends before.
    pub(super) async fn first(&mut self) -> Result<bool, Ended> {
        let mut read = 0;
        while self.walker.span(0).is_none() && read < HEAD {
            match std::future::poll_fn(|cx| self.poll_pipe(cx)).await? {
                None => return Ok(false),
                Some(bytes) => {
                    read += bytes.len();
                    self.ahead.push_back(bytes);
                }
            }
        }
        Ok(true)
    }

    /// What the stream has come to at its end.
    pub(super) fn end(&self) -> StreamEnd {
        StreamEnd {
            whole: self.walker.is_whole(),
            picture: self.span(0).map(|span| span.last),
            sound: self.span(1).map(|span| span.last),
        }
    }

    /// The next piece; `None` at the end of the pipe.
    fn poll_pipe(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Ended>> {
        let count = loop {
            let mut tap = self.tap.lock();
            let Some(pipe) = tap.as_ref() else {
                return Poll::Ready(Ok(None));
            };
            let Poll::Ready(ready) = pipe.receiver.poll_read_ready(cx) else {
                self.meter.waits.store(true, Ordering::Relaxed);
                return Poll::Pending;
            };
            match ready.and_then(|()| pipe.receiver.try_read(&mut self.buffer)) {
                Ok(0) => {
                    *tap = None;
                    return Poll::Ready(Ok(None));
                }
                Ok(count) => break count,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => return Poll::Ready(Err(Ended::Unreadable)),
            }
        };
        self.meter.waits.store(false, Ordering::Relaxed);
        self.meter.bytes.fetch_add(count as u64, Ordering::Relaxed);
        let bytes = &self.buffer[..count];
        let latest = |walker: &Walker| [0, 1].map(|track| walker.span(track).map(|span| span.last));
        let before = latest(&self.walker);
        self.walker.push(bytes).map_err(|_| Ended::Unreadable)?;
        if latest(&self.walker) != before {
            self.meter.steps.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(span) = self.walker.span(0) {
            self.meter.produced.store(span.last.0, Ordering::Relaxed);
        }
        // Asked after the bytes were made: what was made of the promised file is handed on, nothing of another.
        self.source.check()?;
        Poll::Ready(Ok(Some(Bytes::copy_from_slice(bytes))))
    }
}

/// What a stream had come to when its pipe ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamEnd {
    /// Whether it ended where an element does.
    pub(super) whole: bool,
    /// When the latest block of the first track starts.
    pub(super) picture: Option<Ticks>,
    /// When the latest block of the second track starts.
    pub(super) sound: Option<Ticks>,
}

/// The stream as its sender holds it. Dropping it lets its supervisor know.
pub(super) struct Flow {
    intake: Intake,
    /// Says how reading ended.
    left: Option<oneshot::Sender<Result<StreamEnd, Ended>>>,
    /// Says whether the end of the pipe is that of the film, or why there is no more.
    verdict: Option<oneshot::Receiver<Result<(), Ended>>>,
}

impl Flow {
    pub(super) fn new(
        intake: Intake,
        left: oneshot::Sender<Result<StreamEnd, Ended>>,
        verdict: oneshot::Receiver<Result<(), Ended>>,
    ) -> Self {
        Self {
            intake,
            left: Some(left),
            verdict: Some(verdict),
        }
    }

    fn leave(&mut self, how: Result<StreamEnd, Ended>) {
        if let Some(left) = self.left.take() {
            // Whoever is not there any more needs no answer.
            let _ = left.send(how);
        }
    }

    fn broken(&mut self, ended: &Ended) -> Poll<Option<io::Result<Bytes>>> {
        self.verdict = None;
        self.intake.tap.close();
        let words = format!("the stream was broken off: {ended:?}");
        Poll::Ready(Some(Err(io::Error::other(words))))
    }
}

impl Pieces for Flow {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let Some(verdict) = self.verdict.as_mut() else {
            return Poll::Ready(None);
        };
        // An end that came from outside goes before everything that is there still.
        match Pin::new(verdict).poll(cx) {
            Poll::Ready(Ok(Ok(()))) => {
                self.verdict = None;
                return Poll::Ready(None);
            }
            Poll::Ready(Ok(Err(ended))) => return self.broken(&ended),
            Poll::Ready(Err(_)) => return self.broken(&Ended::Stopped),
            Poll::Pending => {}
        }
        if let Some(bytes) = self.intake.ahead.pop_front() {
            return Poll::Ready(Some(Ok(bytes)));
        }
        if self.left.is_none() {
            // The pipe is at its end, and what that means is being found out.
            return Poll::Pending;
        }
        match ready!(self.intake.poll_pipe(cx)) {
            Ok(Some(bytes)) => Poll::Ready(Some(Ok(bytes))),
            Ok(None) => {
                let end = self.intake.end();
                self.leave(Ok(end));
                Poll::Pending
            }
            Err(ended) => {
                self.leave(Err(ended.clone()));
                self.broken(&ended)
            }
        }
    }
}
