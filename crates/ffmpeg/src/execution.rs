//! One execution: the port's side that viewers ask, and for each strand a supervisor that owns its FFmpeg.
//!
//! ```text
//!   viewers ──wants──▶ Store ◀──segments── reader thread ◀──pipe── FFmpeg
//!                       │  ▲                                         ▲
//!                  work ▼  │ changes                                 │ starts, ends, proves
//!                    supervisor ─────────────────────────────────────┘
//! ```
//!
//! A supervisor is the only one that starts and ends processes of its strand, one at a time: the next is spawned
//! only when the last is proved gone. It ends when the execution is sealed; the execution is retired when all of
//! its supervisors have ended.

use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ether_encoder::{
    BoxFuture, ByteStream, Control, Device, EncoderState, Ended, Execution, Input, MOST_RUNGS, Observation,
    Refusal, Request, Resource, RetireError, Retirement, Revision, ServeError, Served, StartError, Work,
};
use ether_media::Ticks;
use ether_process::{Child, ExitEvidence, Spawner, Spec};
use ether_types::{Clock, Monotonic};
use tokio::sync::oneshot;

use crate::devices::{Devices, Fault};
use crate::meter::{Fetched, Meter, Rates};
use crate::plan::{self, Plan};
use crate::reader::{self, Job, Progress, ReaderEnd, Remainder};
use crate::step::{Step, next_step, reaches};
use crate::store::{Failure, Piece, RunView, State, Store};
use crate::strand::RungSet;
use crate::text::Text;

/// How long requests that arrive together may take to arrive, before an encoder starts for the lowest.
const GATHER: Duration = Duration::from_millis(8);
/// How often a run's progress is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long an encoder that is not held back may make nothing before it counts as stalled.
const PATIENCE: Duration = Duration::from_secs(30);

/// When asking again makes sense after a device did not work: another is chosen at once.
const CHOOSE_AGAIN: Duration = Duration::from_secs(1);

/// Signals by which a driver ends the process that uses it.
const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

/// What an execution needs of its encoder.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) ffmpeg: std::path::PathBuf,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) devices: Arc<Devices>,
}

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
            version: tools.devices.inventory.version.clone(),
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
            let want = Want::register(store, piece);
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
            goodput: rates.goodput,
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
    fn register(store: &'a Store, piece: Piece) -> Self {
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
            let since = if state.run.is_some() {
                state.runs
            } else {
                state.runs + 1
            };
            (state.tickets, since)
        });
        Self { store, ticket, since }
    }

    /// Why `piece` will not come, where that is known.
    fn verdict(&self, piece: Piece) -> Option<ServeError> {
        let state = self.store.lock();
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
        let failure = state.failure.as_ref()?;
        let concerns = failure.run >= self.since && number.is_none_or(|number| number >= failure.start);
        concerns.then(|| match &failure.refusal {
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

/// Owns the processes of one strand.
pub(crate) struct Supervisor {
    store: Arc<Store>,
    tools: Tools,
    input: Input,
    first: u32,
    run: Option<Run>,
}

/// A run: its process, its reader, and how they are known to be done.
struct Run {
    id: u64,
    attempt: u32,
    first: u32,
    rungs: RungSet,
    child: Child,
    progress: Arc<Progress>,
    /// How far its media had come when it was last looked at.
    seen: u64,
    /// Since when it has made nothing although it might have.
    idle_since: Monotonic,
    /// When its progress is looked at next, however busy the supervisor is with viewers meanwhile.
    next_look: Monotonic,
    stalled: bool,
    reader: oneshot::Receiver<ReaderEnd>,
    from_start: bool,
}

impl Supervisor {
    /// The supervisor of a strand; `first` is where a viewer is expected to begin.
    pub(crate) fn new(store: Arc<Store>, tools: Tools, input: Input, first: u32) -> Self {
        Self {
            store,
            tools,
            input,
            first,
            run: None,
        }
    }

    fn next_step(&self) -> Step {
        let now = self.tools.clock.monotonic();
        next_step(&self.store.lock(), &self.store.timeline, self.first, now)
    }

    /// Runs until the strand is sealed and its last process is proved gone.
    pub(crate) async fn supervise(mut self) {
        loop {
            match self.next_step() {
                Step::Seal => break,
                Step::Start { .. } => {
                    // Requests of one burst arrive in any order; a moment's patience spares a second start.
                    self.tools.clock.sleep(GATHER).await;
                    if let Step::Start { first, rungs } = self.next_step() {
                        tracing::debug!(first, ?rungs, "starting an encoder");
                        self.stop_run(Ended::Stopped).await;
                        self.start_run(first, rungs, 0).await;
                    }
                }
                Step::Wait => self.wait().await,
            }
        }
        self.stop_run(Ended::Stopped).await;
        self.store.update(|state| {
            state.segments.clear();
            state.retired = true;
        });
    }

    /// Waits until there is something to decide, and takes in a run that ended.
    async fn wait(&mut self) {
        let store = self.store.clone();
        let now = self.tools.clock.monotonic();
        let Some(run) = &mut self.run else {
            return store.work.notified().await;
        };
        let until_look = run.next_look.saturating_since(now);
        tokio::select! {
            end = &mut run.reader => self.reader_ended(end.ok()).await,
            () = store.work.notified() => {}
            () = self.tools.clock.sleep(until_look) => self.look(),
        }
    }

    /// Ends a run that lives and makes nothing although it may.
    fn look(&mut self) {
        let held = self.store.lock().run.is_some_and(|view| view.held);
        let Some(run) = &mut self.run else { return };
        let now = self.tools.clock.monotonic();
        // Bytes alone are no progress: an encoder that writes and never gets on is as stalled as a silent one.
        let made = run.progress.steps();
        if made != run.seen || held {
            run.idle_since = now;
        }
        run.seen = made;
        run.next_look = now.saturating_add(LOOK);
        if now.saturating_since(run.idle_since) >= PATIENCE && !run.stalled {
            run.stalled = true;
            run.child.kill();
        }
    }

    async fn start_run(&mut self, first: u32, rungs: RungSet, attempt: u32) {
        let now = self.tools.clock.monotonic();
        let id = self.store.update(|state| {
            state.runs += 1;
            if state.last_rungs.is_some_and(|last| !last.contains(rungs)) {
                state.switched = Some(now);
            }
            state.last_rungs = Some(rungs);
            let view = RunView {
                id: state.runs,
                start: first,
                rungs,
                next: [first; MOST_RUNGS],
                position: first,
                held: false,
                produced: None,
            };
            state.run = Some(view);
            state.ended = None;
            state.runs
        });
        if let Err(ended) = self.spawn(id, first, rungs, attempt).await {
            self.conclude(id, first, ended, None, Vec::new());
        }
    }

    async fn spawn(&mut self, id: u64, first: u32, rungs: RungSet, attempt: u32) -> Result<(), Ended> {
        let Input::File { path, revision } = &self.input;
        check_revision(path, *revision).await?;
        let plan = plan::plan(&self.store.strand, rungs, first, attempt, path.as_os_str());
        let spec = self.spec(&plan);
        let mut child = self.tools.spawner.spawn(spec).await.map_err(|error| {
            tracing::warn!(%error, "the encoder cannot be started");
            Ended::Failed {
                status: None,
                signal: None,
            }
        })?;
        let failed = Ended::Failed {
            status: None,
            signal: None,
        };
        let pipe = child.take_stdout().ok_or(failed.clone())?;
        let job = Job {
            run: id,
            first,
            rungs,
            audio: plan.sound,
            accept_late: plan.from_start,
            until: plan.until,
            reorder: plan::reorder(&self.store.strand),
            padded: plan.padded,
            source: (path.clone(), *revision),
            sound_frames: plan::sound_frames(&self.store.strand),
        };
        let progress = Arc::new(Progress::default());
        let (done, reader) = oneshot::channel();
        let (store, counter) = (self.store.clone(), progress.clone());
        let thread = std::thread::Builder::new()
            .name(format!("ether-reader-{id}"))
            .stack_size(256 << 10);
        let spawned = thread.spawn(move || {
            let end = reader::read(pipe, store, job, &counter);
            // The pipe is closed by now; whoever waits for the end may be gone, which needs no answer.
            let _ = done.send(end);
        });
        if spawned.is_err() {
            // The pipe went with the closure, and the child's owner proves its end.
            child.terminate(Duration::ZERO).await;
            return Err(failed);
        }
        let from_start = plan.from_start;
        let now = self.tools.clock.monotonic();
        self.run = Some(Run {
            id,
            attempt,
            first,
            rungs,
            child,
            progress,
            seen: 0,
            idle_since: now,
            next_look: now.saturating_add(LOOK),
            stalled: false,
            reader,
            from_start,
        });
        Ok(())
    }

    fn spec(&self, plan: &Plan) -> Spec {
        let mut spec = Spec::new(&self.tools.ffmpeg);
        spec.args(&plan.args).stdout_pipe();
        let Input::File { path, .. } = &self.input;
        let (whole, name) = (
            path.display().to_string(),
            path.file_name().map(|n| n.to_string_lossy().into_owned()),
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

    /// Ends the run that is there and waits for the proof.
    async fn stop_run(&mut self, ended: Ended) {
        let Some(mut run) = self.run.take() else { return };
        let id = run.id;
        run.child.kill();
        self.store.update(|state| state.stop = id);
        // The reader sees the end of the pipe or the order to stop; only with its pipe closed is there proof.
        let _ = (&mut run.reader).await;
        let evidence = run.child.retired().await;
        self.note(&run, &evidence);
        self.conclude(id, run.first, ended, None, run.child.stderr_lines());
    }

    /// A run's reader is done: find out what the process says, prove it gone, and go on from there.
    async fn reader_ended(&mut self, end: Option<ReaderEnd>) {
        let Some(mut run) = self.run.take() else { return };
        let end = end.unwrap_or(ReaderEnd::Failed(Ended::Unreadable));
        if !matches!(end, ReaderEnd::EndOfPipe(_)) {
            run.child.kill();
        }
        let evidence = run.child.retired().await;
        self.note(&run, &evidence);
        let lines = run.child.stderr_lines();
        let ended = match end {
            ReaderEnd::EndOfPipe(remainder) if evidence.status().success() => complete(remainder).await,
            ReaderEnd::EndOfPipe(_) | ReaderEnd::Failed(Ended::Unreadable)
                if !evidence.status().success() =>
            {
                self.failed(&run, &evidence).await
            }
            ReaderEnd::EndOfPipe(_) => Ended::Unreadable,
            ReaderEnd::Failed(ended) => ended,
            ReaderEnd::LandedLate if run.from_start => Ended::BoundViolated { segment: run.first },
            ReaderEnd::LandedLate => {
                self.conclude(run.id, run.first, Ended::Stopped, None, lines);
                return self.start_run(run.first, run.rungs, run.attempt + 1).await;
            }
        };
        let refusal = self.device_fault(&run, &ended, &lines);
        self.conclude(run.id, run.first, ended, refusal, lines);
    }

    /// What the end of a run means for the device that encoded it, where it was not the processor.
    fn device_fault(&self, run: &Run, ended: &Ended, lines: &[String]) -> Option<Refusal> {
        let encode = self.store.strand.encode()?;
        let made = run.progress.steps() > 0;
        let fault = match ended {
            _ if !encode.device.is_hardware() => return None,
            Ended::Failed {
                signal: None | Some(SIGILL | SIGABRT | SIGBUS | SIGSEGV),
                ..
            }
            | Ended::Unreadable => Fault::of(encode.device, lines, made)?,
            Ended::Stalled => Fault::Failed {
                said: "it made nothing for too long".to_owned(),
            },
            Ended::ConfigurationChanged => Fault::Failed {
                said: "it gives another configuration than was announced".to_owned(),
            },
            _ => return None,
        };
        Some(self.tools.devices.failed(encode.device, encode.codec, fault))
    }

    async fn failed(&self, run: &Run, evidence: &ExitEvidence) -> Ended {
        let Input::File { path, revision } = &self.input;
        match check_revision(path, *revision).await {
            Err(ended) => ended,
            Ok(()) if run.stalled => Ended::Stalled,
            Ok(()) => Ended::Failed {
                status: evidence.status().code(),
                signal: evidence.status().signal(),
            },
        }
    }

    fn note(&self, run: &Run, evidence: &ExitEvidence) {
        tracing::debug!(run = run.id, status = %evidence.status(), "an encoder process is proved gone");
    }

    fn conclude(&self, run: u64, start: u32, ended: Ended, refusal: Option<Refusal>, log: Vec<String>) {
        self.store.update(|state| {
            let next = state
                .run
                .filter(|view| view.id == run)
                .map_or(start, |view| view.behind());
            state.run = None;
            if !log.is_empty() {
                state.log = log;
            }
            state.failure = match &ended {
                Ended::Complete | Ended::SourceTruncated { .. } | Ended::Stopped => None,
                failed => Some(Failure {
                    run,
                    start: next,
                    ended: failed.clone(),
                    refusal,
                }),
            };
            state.ended = Some(ended);
        });
    }
}

/// Writes out what was open when the pipe ended: file work, so not on the supervisor's thread.
async fn complete(remainder: Box<Remainder>) -> Ended {
    tokio::task::spawn_blocking(move || remainder.complete())
        .await
        .unwrap_or(Ended::Unreadable)
}

/// [`reader::check_revision`] off the async threads: a network mount may take its time.
async fn check_revision(path: &std::path::Path, promised: Revision) -> Result<(), Ended> {
    let path = path.to_owned();
    let check = tokio::task::spawn_blocking(move || reader::check_revision(&path, promised));
    check.await.unwrap_or(Err(Ended::SourceLost))
}
