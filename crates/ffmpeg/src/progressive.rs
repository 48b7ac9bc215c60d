//! Executions of one stream: Matroska that FFmpeg packages itself, handed on as it is made.
//!
//! ```text
//!   stream() ──ask──▶ Supervisor ──starts, ends, proves──▶ FFmpeg
//!      ▲                │    ▲ how reading ended             │
//!      └───── Flow ◀────┘    └────────── Flow ◀─────pipe─────┘
//! ```
//!
//! There is no scratch: what is made goes from the pipe to the viewer, and a viewer who does not read holds FFmpeg
//! back. The stream ends cleanly only when FFmpeg exited without complaint at the end of the presentation. Every
//! other end breaks it off, because a viewer would take a clean one for the end of the film: so does a source that
//! turns out to be shorter than its head says, once all of it was sent.
//!
//! A supervisor owns the process. It ends it when the stream is dropped, when the execution is sealed, and when
//! it makes nothing though it is waited for.

mod flow;
mod walker;

use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ether_encoder::{
    BoxFuture, ByteStream, Control, Device, EncoderState, Ended, Execution, Input, Observation, Refusal,
    Request, Resource, RetireError, Retirement, ServeError, Served, StartError, VideoAction, Work,
};
use ether_media::Ticks;
use ether_process::{Child, ExitEvidence};
use ether_types::Clock;
use tokio::sync::{oneshot, watch};

use crate::origin::Origin;
use crate::oversight::{self, Sight, Vigil};
use crate::plan::{self, Stream};
use crate::strand::Strand;
use crate::supervisor::Tools;
use flow::{Flow, Intake, Meter, Source, StreamEnd, Tap};

/// When asking again makes sense after a device did not work: another is chosen at once.
const CHOOSE_AGAIN: Duration = Duration::from_secs(1);
/// How much later than expected a stream may begin before it is tried from further back.
const LATE: Ticks = Ticks(Ticks::HZ / 2);
/// How much shorter than promised a source may be without being called truncated.
const SHORT: Ticks = Ticks(Ticks::HZ);

/// What is told of an execution.
#[derive(Debug, Default)]
struct State {
    runs: u32,
    running: bool,
    ended: Option<Ended>,
    log: Vec<String>,
    sealed: bool,
    retired: bool,
}

/// What viewer and supervisor share.
#[derive(Debug, Default)]
struct Shared {
    state: watch::Sender<State>,
    meter: Arc<Meter>,
}

impl Shared {
    async fn reaches(&self, state: impl FnMut(&State) -> bool) {
        // The sender is in `self`: it cannot be gone.
        let _ = self.state.subscribe().wait_for(state).await;
    }
}

type Answer = oneshot::Sender<Result<ByteStream, ServeError>>;

/// The part of an execution that its viewer holds.
pub(crate) struct StreamExecution {
    shared: Arc<Shared>,
    request: Arc<Request>,
    version: String,
    ask: Mutex<Option<oneshot::Sender<Answer>>>,
    clock: Arc<dyn Clock>,
}

/// An execution of `strand` from `start` on the output's clock, and the supervisor that has to be run for it.
pub(crate) fn create(
    request: Arc<Request>,
    strand: Strand,
    start: Ticks,
    input: Input,
    tools: Tools,
) -> (StreamExecution, Supervisor) {
    let shared = Arc::new(Shared::default());
    let (ask, asked) = oneshot::channel();
    let execution = StreamExecution {
        shared: shared.clone(),
        version: tools.devices.inventory().version.clone(),
        request,
        ask: Mutex::new(Some(ask)),
        clock: tools.clock.clone(),
    };
    let supervisor = Supervisor {
        strand,
        start,
        origin: Origin::new(input),
        tools,
        shared,
        asked,
    };
    (execution, supervisor)
}

impl StreamExecution {
    fn seal(&self) {
        self.shared.state.send_modify(|state| state.sealed = true);
    }
}

impl Drop for StreamExecution {
    /// Nobody can retire it any more: its supervisor does, and its encoder's shutdown waits for that.
    fn drop(&mut self) {
        self.seal();
    }
}

impl Execution for StreamExecution {
    fn serve(&self, _: Resource) -> BoxFuture<'_, Result<Served, ServeError>> {
        Box::pin(std::future::ready(Err(ServeError::OtherProtocol)))
    }

    fn finished(&self, _: Resource) -> Option<Served> {
        None
    }

    fn reaches(&self, _: Resource) -> bool {
        false
    }

    fn stream(&self) -> BoxFuture<'_, Result<ByteStream, ServeError>> {
        let ask = self.ask.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            // A supervisor that is gone, or goes, has retired the execution.
            ask.and_then(|ask| ask.send(answer).ok())
                .ok_or(ServeError::Retired)?;
            answered.await.unwrap_or(Err(ServeError::Retired))
        })
    }

    fn control(&self, _: Control) -> BoxFuture<'_, Result<(), StartError>> {
        // A viewer who pauses reads no more, and holds the encoder back by that.
        Box::pin(std::future::ready(Ok(())))
    }

    fn observe(&self) -> Observation {
        let meter = &self.shared.meter;
        let produced = Ticks(meter.produced.load(Ordering::Relaxed));
        let bytes_produced = meter.bytes.load(Ordering::Relaxed);
        let waits = meter.waits.load(Ordering::Relaxed);
        let state = self.shared.state.borrow();
        Observation {
            version: self.version.clone(),
            device: self
                .request
                .video
                .as_ref()
                .map_or_else(Device::default, |video| match &video.action {
                    VideoAction::Encode(encode) => encode.device,
                    VideoAction::Copy => Device::default(),
                }),
            work: Some(Work::of(&self.request)),
            state: match (state.sealed && !state.retired, state.running) {
                (true, _) => EncoderState::Retiring,
                (false, true) if waits => EncoderState::Running,
                (false, true) => EncoderState::HeldBack,
                (false, false) => EncoderState::Idle,
            },
            runs: state.runs,
            produced: (bytes_produced > 0).then_some(produced),
            bytes_produced,
            ended: state.ended.clone(),
            log: state.log.clone(),
            ..Observation::idle(self.clock.now(), self.clock.monotonic())
        }
    }

    fn retire(&self) -> BoxFuture<'_, Result<Retirement, RetireError>> {
        self.seal();
        Box::pin(async move {
            self.shared.reaches(|state| state.retired).await;
            let runs = self.shared.state.borrow().runs;
            Ok(Retirement { runs })
        })
    }
}

/// Owns the process of one execution.
pub(crate) struct Supervisor {
    strand: Strand,
    start: Ticks,
    origin: Origin,
    tools: Tools,
    shared: Arc<Shared>,
    asked: oneshot::Receiver<Answer>,
}

/// A process whose stream has begun.
struct Run {
    child: Child,
    vigil: Vigil,
    intake: Intake,
    tap: Tap,
    stream: Stream,
}

/// It was told to end, or nobody is there any more who wants what it makes.
struct Unwanted;

impl Supervisor {
    /// Runs until the execution has made its stream or is sealed, and its last process is proved gone.
    pub(crate) async fn supervise(mut self) {
        let shared = self.shared.clone();
        let asked = tokio::select! {
            biased;
            () = shared.reaches(|state| state.sealed) => None,
            asked = &mut self.asked => asked.ok(),
        };
        if let Some(answer) = asked {
            self.play(answer).await;
            // Its one stream is over; what is left is to be told so.
            shared.reaches(|state| state.sealed).await;
        }
        shared.state.send_modify(|state| state.retired = true);
    }

    async fn play(&self, mut answer: Answer) {
        match self.begin(&mut answer).await {
            Ok(run) => self.relay(run, answer).await,
            Err(Ended::Stopped) => {
                self.note(Ended::Stopped);
                let _ = answer.send(Err(ServeError::Retired));
            }
            Err(ended) => {
                self.note(ended.clone());
                let _ = answer.send(Err(match self.device_fault(&ended) {
                    Some(refusal) => ServeError::Refused {
                        refusal,
                        retry_after: CHOOSE_AGAIN,
                    },
                    None => ServeError::Ended { ended },
                }));
            }
        }
    }

    /// What it means for the device that was to encode.
    fn device_fault(&self, ended: &Ended) -> Option<Refusal> {
        let encode = self.strand.encode()?;
        let made = self.shared.meter.steps.load(Ordering::Relaxed) > 0;
        let lines = self.shared.state.borrow().log.clone();
        let picture = (encode, &self.strand.facts);
        oversight::device_fault(&self.tools.devices, picture, ended, &lines, made)
    }

    fn note(&self, ended: Ended) {
        self.shared.state.send_modify(|state| {
            state.running = false;
            state.ended = Some(ended);
        });
    }

    /// Starts a process whose stream begins where it is to, trying from further back where it began too late.
    async fn begin(&self, answer: &mut Answer) -> Result<Run, Ended> {
        let mut before = None;
        for attempt in 0.. {
            let mut run = self.spawn(attempt).await?;
            let begun = {
                let Run {
                    child, vigil, intake, ..
                } = &mut run;
                self.attend(child, vigil, intake.first(), answer.closed()).await
            };
            let failed = match begun {
                Err(Unwanted) => Some(Ended::Stopped),
                Ok(Err(ended)) => Some(ended),
                Ok(Ok(true)) => None,
                // It ended before anything was shown: how it exited says why. Past the last frame this is all there is.
                Ok(Ok(false)) => {
                    let end = run.intake.end();
                    let ended = self
                        .finish(&mut run.child, &run.vigil, &run.tap, end, &run.stream)
                        .await;
                    return match ended {
                        Ended::Complete | Ended::SourceTruncated { .. } => Ok(run),
                        failed => Err(failed),
                    };
                }
            };
            if let Some(ended) = failed {
                self.end(&mut run.child, &run.tap).await;
                return Err(ended);
            }
            let first = run.intake.span(0).map(|span| span.first);
            let late = run
                .stream
                .expected
                .zip(first)
                .is_some_and(|(at, first)| first > at + LATE);
            // What begins at the same place from further back begins where the film goes on.
            if !late || run.stream.from_start || before == first {
                return Ok(run);
            }
            tracing::debug!(attempt, "the stream begins too late: trying from further back");
            before = first;
            self.end(&mut run.child, &run.tap).await;
        }
        Err(Ended::Stopped)
    }

    async fn spawn(&self, attempt: u32) -> Result<Run, Ended> {
        let failed = || Ended::Failed {
            status: None,
            signal: None,
        };
        let source = Source::open(self.origin.clone()).await?;
        let stream = plan::progressive(&self.strand, self.start, attempt, &self.origin.name());
        let spec = oversight::spec(&self.tools.ffmpeg, &stream.args, &self.origin);
        let mut child = self.tools.spawner.spawn(spec).await.map_err(|error| {
            tracing::warn!(%error, "the encoder cannot be started");
            failed()
        })?;
        self.shared.state.send_modify(|state| {
            state.runs += 1;
            state.running = true;
            state.ended = None;
        });
        let meter = self.shared.meter.clone();
        let intake = match child.take_stdout().map(|pipe| Intake::new(pipe, source, meter)) {
            Some(Ok(intake)) => intake,
            _ => {
                // The pipe went with what failed, and the child's owner proves its end.
                child.kill();
                child.retired().await;
                return Err(failed());
            }
        };
        Ok(Run {
            vigil: Vigil::begin(self.tools.clock.monotonic()),
            tap: intake.tap(),
            child,
            intake,
            stream,
        })
    }

    /// Hands the stream over and sees to its end.
    async fn relay(&self, run: Run, answer: Answer) {
        let Run {
            mut child,
            mut vigil,
            intake,
            tap,
            stream,
        } = run;
        // Between the check and FFmpeg's own opening of it another file may have taken the name.
        if let Err(ended) = self.origin.check_apart().await {
            drop(intake);
            self.end(&mut child, &tap).await;
            self.note(ended.clone());
            let _ = answer.send(Err(ServeError::Ended { ended }));
            return;
        }
        let (leave, left) = oneshot::channel();
        let (verdict, awaited) = oneshot::channel();
        let _ = answer.send(Ok(ByteStream::new(Flow::new(intake, leave, awaited))));
        let left = self
            .attend(&child, &mut vigil, left, std::future::pending())
            .await;
        let ended = match left {
            Ok(Ok(Ok(end))) => self.finish(&mut child, &vigil, &tap, end, &stream).await,
            Ok(Ok(Err(ended))) => {
                self.end(&mut child, &tap).await;
                ended
            }
            // Sealed, or dropped by whoever had it: it is told at once, whatever the proof takes.
            Err(Unwanted) | Ok(Err(_)) => {
                let _ = verdict.send(Err(Ended::Stopped));
                self.end(&mut child, &tap).await;
                return self.note(Ended::Stopped);
            }
        };
        self.note(ended.clone());
        // Nothing can take this stream over; whoever asks for the next one is given another device.
        self.device_fault(&ended);
        let _ = verdict.send(match ended {
            Ended::Complete => Ok(()),
            broken => Err(broken),
        });
    }

    /// Carries out `work` while the process is watched, until the execution is sealed or nobody is there any more.
    async fn attend<T>(
        &self,
        child: &Child,
        vigil: &mut Vigil,
        work: impl Future<Output = T>,
        gone: impl Future<Output = ()>,
    ) -> Result<T, Unwanted> {
        let mut work = std::pin::pin!(work);
        let mut gone = std::pin::pin!(gone);
        let mut sealed = std::pin::pin!(self.shared.reaches(|state| state.sealed));
        loop {
            let until_look = vigil.until_look(self.tools.clock.monotonic());
            tokio::select! {
                biased;
                () = &mut sealed => return Err(Unwanted),
                () = &mut gone => return Err(Unwanted),
                done = &mut work => return Ok(done),
                () = self.tools.clock.sleep(until_look) => {
                    let sight = Sight {
                        made: self.shared.meter.steps.load(Ordering::Relaxed),
                        activity: child.activity(),
                        held: !self.shared.meter.waits.load(Ordering::Relaxed),
                    };
                    if vigil.look(self.tools.clock.monotonic(), sight) {
                        child.kill();
                    }
                }
            }
        }
    }

    /// Ends the process and waits for the proof.
    async fn end(&self, child: &mut Child, tap: &Tap) {
        child.kill();
        self.prove_gone(child, tap).await;
    }

    /// The last steps of a process that ends, whatever ends it: its proof, and its last words.
    async fn prove_gone(&self, child: &mut Child, tap: &Tap) -> (ExitEvidence, Vec<String>) {
        // There is no proof while its pipe is open, and a viewer who reads no more would keep it so.
        tap.close();
        let evidence = child.retired().await;
        tracing::debug!(status = %evidence.status(), "an encoder process is proved gone");
        let lines = child.stderr_lines();
        self.shared.state.send_modify(|state| state.log = lines.clone());
        (evidence, lines)
    }

    /// The pipe is at its end: what that means, once the process is proved gone.
    async fn finish(
        &self,
        child: &mut Child,
        vigil: &Vigil,
        tap: &Tap,
        end: StreamEnd,
        stream: &Stream,
    ) -> Ended {
        let mut vigil_of_exit = Vigil::begin(self.tools.clock.monotonic());
        // Nothing more comes of it, so it is its turn until it has exited.
        self.shared.meter.waits.store(true, Ordering::Relaxed);
        let exited = {
            let child: &Child = child;
            self.attend(child, &mut vigil_of_exit, child.exited(), std::future::pending())
                .await
        };
        if exited.is_err() {
            self.end(child, tap).await;
            return Ended::Stopped;
        }
        let (evidence, lines) = self.prove_gone(child, tap).await;
        if !evidence.status().success() {
            let stalled = vigil.stalled() || vigil_of_exit.stalled();
            return oversight::failure(&evidence, &lines, stalled, &self.origin).await;
        }
        if let Some(ended) = oversight::source_lost(&lines, &self.origin).await {
            return ended;
        }
        self.outcome(end, stream)
    }

    /// What a stream is that FFmpeg says is whole.
    fn outcome(&self, end: StreamEnd, stream: &Stream) -> Ended {
        let timeline = &self.strand.timeline;
        if !end.whole {
            return Ended::Unreadable;
        }
        let rate = self.strand.facts.main_video().and_then(|s| s.video()?.frame_rate);
        let frame = rate.map_or(Ticks::ZERO, |rate| {
            Ticks::from_timescale(i64::from(rate.den), u64::from(rate.num))
        });
        let picture = end.picture.map(|last| last + frame);
        // Silence that was added past the end of the picture is not the film.
        let sound = end.sound.filter(|_| !stream.padded);
        let reached = picture.max(sound).unwrap_or(self.start);
        if self.strand.cut_short() || reached + SHORT < timeline.end() + timeline.lead() {
            Ended::SourceTruncated {
                at: reached - timeline.lead(),
            }
        } else {
            Ended::Complete
        }
    }
}
