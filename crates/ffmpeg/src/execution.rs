//! One execution: the port's side that viewers ask, and for each strand a supervisor that owns its FFmpeg.
//!
//! ```text
//!   viewers ──wants──▶ Store ◀──segments── reader thread ◀──pipe── FFmpeg
//!                       │  ▲                                         ▲
//!                  work ▼  │ changes                                 │ starts, ends, proves
//!                    supervisor ─────────────────────────────────────┘
//! ```
//!
//! The execution is retired when all of its supervisors have ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ether_encoder::{
    BoxFuture, ByteStream, Control, Device, EncoderState, Ended, Execution, Observation, Request, Resource,
    RetireError, Retirement, ServeError, Served, StartError, Work,
};
use ether_media::Ticks;
use ether_types::{Clock, Monotonic};

use crate::meter::{Fetched, Meter, Rates};
use crate::step::reaches;
use crate::store::{Piece, State, Store};
use crate::supervisor::Tools;
use crate::text::Text;

/// When asking again makes sense after a device did not work: another is chosen at once.
const CHOOSE_AGAIN: Duration = Duration::from_secs(1);

/// The part of an execution that viewers hold.
pub(crate) struct LocalExecution {
    strands: Vec<Arc<Store>>,
    text: Option<Text>,
    clock: Arc<dyn Clock>,
    version: String,
    device: Device,
    work: Work,
    meter: Mutex<Meter>,
    fetched: Fetched,
}

impl LocalExecution {
    /// An execution of `strands`, one of which makes each representation, and of a text track beside them.
    pub(crate) fn new(
        strands: Vec<Arc<Store>>,
        text: Option<Text>,
        request: &Request,
        tools: &Tools,
    ) -> Self {
        Self {
            strands,
            text,
            clock: tools.clock.clone(),
            version: tools.devices.inventory().version.clone(),
            device: request.device(),
            work: Work::of(request),
            meter: Mutex::default(),
            fetched: Fetched::default(),
        }
    }

    /// Notes what is made and fetched, for the rates that samples state.
    fn measure(&self) -> Rates {
        let run = self.strands.first().and_then(|store| {
            let run = store.lock().run?;
            let made = run.produced? - store.timeline.start(run.start as usize);
            Some((run.id, made))
        });
        let now = self.clock.monotonic();
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.note(now, run, self.fetched.bytes());
        meter.rates(now)
    }

    /// The text track, where there is one and `resource` is it.
    fn text(&self, resource: Resource) -> Option<&Text> {
        self.text.as_ref().filter(|_| resource == Resource::Subtitles)
    }

    fn sealed(&self) -> bool {
        self.strands.iter().any(|store| store.lock().sealed)
    }

    /// The strand and the piece of it that `resource` is.
    fn find(&self, resource: Resource) -> Result<(&Arc<Store>, Piece), ServeError> {
        let missing = || ServeError::NoSuchResource { resource };
        let (representation, number) = match resource {
            Resource::Init { representation } => (representation, None),
            Resource::Segment {
                representation,
                number,
            } => (representation, Some(number)),
            Resource::Subtitles => return Err(missing()),
        };
        let strand = |store: &&Arc<Store>| store.strand.rung_of(representation).is_some();
        let store = self.strands.iter().find(strand).ok_or_else(missing)?;
        let rung = store.strand.rung_of(representation).ok_or_else(missing)?;
        match number {
            None => Ok((store, Piece::Init { rung })),
            Some(number) if (number as usize) < store.timeline.len() => {
                Ok((store, Piece::Segment { number, rung }))
            }
            Some(_) => Err(missing()),
        }
    }

    fn seal(&self) {
        for store in &self.strands {
            store.update(|state| state.sealed = true);
        }
    }
}

impl Drop for LocalExecution {
    /// Nobody can retire it any more: its supervisors do, and its encoder's shutdown waits for that.
    fn drop(&mut self) {
        self.seal();
    }
}

impl Execution for LocalExecution {
    fn serve(&self, resource: Resource) -> BoxFuture<'_, Result<Served, ServeError>> {
        Box::pin(async move {
            if let Some(text) = self.text(resource) {
                return if self.sealed() {
                    Err(ServeError::Retired)
                } else {
                    text.serve().await
                };
            }
            let (store, piece) = self.find(resource)?;
            if let Some(served) = kept(store, piece) {
                return Ok(self.fetched.counted(served));
            }
            let mut changes = store.watch();
            let want = Want::register(store, piece, self.clock.monotonic());
            loop {
                changes.borrow_and_update();
                if let Some(served) = store.finished(piece) {
                    self.measure();
                    return Ok(self.fetched.counted(served));
                }
                if let Some(error) = want.verdict(piece) {
                    return Err(error);
                }
                // The sender lives in the store, which this execution holds.
                if changes.changed().await.is_err() {
                    return Err(ServeError::Retired);
                }
            }
        })
    }

    fn finished(&self, resource: Resource) -> Option<Served> {
        if let Some(text) = self.text(resource) {
            return text.finished();
        }
        let (store, piece) = self.find(resource).ok()?;
        let served = store.finished(piece).or_else(|| store.kept(piece))?;
        Some(self.fetched.counted(served))
    }

    fn reaches(&self, resource: Resource) -> bool {
        let Ok((store, piece)) = self.find(resource) else {
            return true;
        };
        if store.finished(piece).or_else(|| store.kept(piece)).is_some() {
            return true;
        }
        let state = store.lock();
        match (state.run, piece) {
            (None, _) => true,
            (Some(_), Piece::Init { .. }) => true,
            // Another quality of the same place joins the run.
            (Some(run), Piece::Segment { number, rung }) => {
                let rung = if run.rungs.has(rung) {
                    Some(rung)
                } else {
                    run.rungs.iter().next()
                };
                rung.is_some_and(|rung| reaches(&run, rung, number, &store.timeline))
            }
        }
    }

    fn stream(&self) -> BoxFuture<'_, Result<ByteStream, ServeError>> {
        Box::pin(std::future::ready(Err(ServeError::OtherProtocol)))
    }

    fn control(&self, _control: Control) -> BoxFuture<'_, Result<(), StartError>> {
        // Holding back follows what is fetched, so a viewer who pauses holds the encoder back by itself.
        Box::pin(std::future::ready(Ok(())))
    }

    fn observe(&self) -> Observation {
        // The picture's strand is what a viewer means by the encoder; counts are of all.
        let rates = self.measure();
        let mut sample = Observation {
            version: self.version.clone(),
            device: self.device,
            work: Some(self.work),
            speed: rates.speed,
            goodput_bits_per_second: rates.goodput_bits_per_second,
            ..Observation::idle(self.clock.now(), self.clock.monotonic())
        };
        for (n, store) in self.strands.iter().enumerate() {
            let state = store.lock();
            let encoder = match state.run {
                _ if state.sealed && !state.retired => EncoderState::Retiring,
                Some(run) if run.held => EncoderState::HeldBack,
                Some(_) => EncoderState::Running,
                None => EncoderState::Idle,
            };
            if n == 0 {
                sample.state = encoder;
                sample.run_start = state.run.map(|run| run.start);
                sample.produced = state.run.and_then(|run| run.produced);
                let position = store.timeline.start(state.cursor as usize);
                sample.position = state.requested.map(|_| position);
                sample.recovery = recovery(&state, store, position);
            }
            if encoder == EncoderState::Retiring {
                sample.state = encoder;
            }
            sample.requested = sample.requested.max(state.requested);
            sample.runs = sample
                .runs
                .saturating_add(u32::try_from(state.runs).unwrap_or(u32::MAX));
            sample.bytes_produced += state.bytes_produced;
            sample.scratch_used += store.scratch.used();
            sample.scratch_limit += store.scratch.limit();
            if sample.ended.is_none() || matches!(sample.ended, Some(Ended::Complete | Ended::Stopped)) {
                sample.ended = state.ended.clone().or(sample.ended);
            }
            sample.log.extend(state.log.iter().cloned());
        }
        sample
    }

    fn retire(&self) -> BoxFuture<'_, Result<Retirement, RetireError>> {
        self.seal();
        Box::pin(async move {
            let mut runs = 0_u32;
            for store in &self.strands {
                let mut changes = store.watch();
                loop {
                    changes.borrow_and_update();
                    {
                        let state = store.lock();
                        if state.retired {
                            runs = runs.saturating_add(u32::try_from(state.runs).unwrap_or(u32::MAX));
                            break;
                        }
                    }
                    if changes.changed().await.is_err() {
                        return Err(RetireError::Unprovable);
                    }
                }
            }
            Ok(Retirement { runs })
        })
    }
}

/// What an earlier execution made. The encoder that runs is not held back by it: it makes something else.
fn kept(store: &Store, piece: Piece) -> Option<Served> {
    if store.finished(piece).is_some() {
        return None;
    }
    let served = store.kept(piece)?;
    if let Piece::Segment { number, .. } = piece {
        let mut state = store.lock();
        state.requested = state.requested.max(Some(number));
        if state.run.is_none() {
            state.cursor = number;
        }
    }
    Some(served)
}

/// Media time that is finished without a gap from `position` on, in the quality that has most of it.
fn recovery(state: &State, store: &Store, position: Ticks) -> Ticks {
    let until = |rung: usize| {
        let has = |number: &u32| state.segments.contains_key(&(*number, rung));
        let next = (state.cursor..)
            .find(|number| !has(number))
            .unwrap_or(state.cursor);
        store.timeline.start(next as usize)
    };
    let furthest = (0..store.strand.representations.len().max(1)).map(until).max();
    furthest.map_or(Ticks::ZERO, |until| (until - position).max(Ticks::ZERO))
}

/// A viewer's wait; dropping it withdraws the request.
struct Want<'a> {
    store: &'a Store,
    ticket: u64,
    /// The first run whose failure concerns this wait.
    since: u64,
}

impl<'a> Want<'a> {
    fn register(store: &'a Store, piece: Piece, now: Monotonic) -> Self {
        let finished = store.finished(piece).is_some();
        let (ticket, since) = store.update(|state| {
            if let Piece::Segment { number, .. } = piece {
                state.cursor = number;
                state.requested = state.requested.max(Some(number));
            }
            state.tickets += 1;
            if !finished {
                state.wants.insert(state.tickets, piece);
            }
            let news = state.failure.as_ref().filter(|failure| failure.is_news(now));
            let since = match (state.run, news) {
                (Some(_), _) => state.runs,
                (None, Some(failure)) => failure.run,
                (None, None) => state.runs + 1,
            };
            (state.tickets, since)
        });
        Self { store, ticket, since }
    }

    /// Why `piece` will not come, where that is known.
    fn verdict(&self, piece: Piece) -> Option<ServeError> {
        let mut state = self.store.lock();
        if state.sealed {
            return Some(ServeError::Retired);
        }
        let number = match piece {
            Piece::Init { .. } => None,
            Piece::Segment { number, .. } => Some(number),
        };
        if let (Some(end), Some(number)) = (state.source_end, number)
            && self.store.timeline.start(number as usize) >= end
        {
            return Some(ServeError::SourceEnded { at: end });
        }
        let failure = state.failure.as_mut()?;
        let concerns = failure.run >= self.since && number.is_none_or(|number| number >= failure.start);
        if !concerns {
            return None;
        }
        failure.untold = None;
        Some(match &failure.refusal {
            Some(refusal) => ServeError::Refused {
                refusal: refusal.clone(),
                retry_after: CHOOSE_AGAIN,
            },
            None => ServeError::Ended {
                ended: failure.ended.clone(),
            },
        })
    }
}

impl Drop for Want<'_> {
    fn drop(&mut self) {
        let ticket = self.ticket;
        self.store.update(|state| state.wants.remove(&ticket));
    }
}
