//! The owner of one strand's processes.
//!
//! A supervisor is the only one that starts and ends processes of its strand, one at a time: the next is spawned
//! only when the last is proved gone. It ends when the execution is sealed.

use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{Ended, Input, MOST_RUNGS, Refusal};
use ether_process::{Child, ExitEvidence, Spawner};
use ether_types::Clock;
use tokio::sync::oneshot;

use crate::devices::Devices;
use crate::origin::Origin;
use crate::oversight::{self, Sight, Vigil};
use crate::plan;
use crate::reader::{self, Job, Progress, ReaderEnd, Remainder};
use crate::step::{Step, next_step};
use crate::store::{Failure, RunView, Store};
use crate::strand::RungSet;

/// How long requests that arrive together may take to arrive, before an encoder starts for the lowest.
const GATHER: Duration = Duration::from_millis(8);
/// What an execution needs of its encoder.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) ffmpeg: std::path::PathBuf,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) devices: Arc<Devices>,
}

/// Owns the processes of one strand.
pub(crate) struct Supervisor {
    store: Arc<Store>,
    tools: Tools,
    origin: Origin,
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
    vigil: Vigil,
    reader: oneshot::Receiver<ReaderEnd>,
    from_start: bool,
}

impl Supervisor {
    /// The supervisor of a strand; `first` is where a viewer is expected to begin.
    pub(crate) fn new(store: Arc<Store>, tools: Tools, input: Input, first: u32) -> Self {
        Self {
            store,
            tools,
            origin: Origin::new(input),
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
        let until_look = run.vigil.until_look(now);
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
        let sight = Sight {
            made: run.progress.steps(),
            activity: run.child.activity(),
            held,
        };
        if run.vigil.look(now, sight) {
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
        self.origin.check_apart().await?;
        let name = self.origin.name();
        let plan = plan::plan(&self.store.strand, rungs, first, attempt, &name);
        let spec = oversight::spec(&self.tools.ffmpeg, &plan.args, &self.origin);
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
            source: self.origin.clone(),
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
            vigil: Vigil::begin(now),
            reader,
            from_start,
        });
        Ok(())
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
            ReaderEnd::EndOfPipe(remainder) if evidence.status().success() => {
                // The segments that are open then lack what could not be read: they are not finished.
                match oversight::source_lost(&lines, &self.origin).await {
                    Some(ended) => ended,
                    None => complete(remainder).await,
                }
            }
            ReaderEnd::EndOfPipe(_) | ReaderEnd::Failed(Ended::Unreadable)
                if !evidence.status().success() =>
            {
                oversight::failure(&evidence, &lines, run.vigil.stalled(), &self.origin).await
            }
            ReaderEnd::EndOfPipe(_) => Ended::Unreadable,
            ReaderEnd::Failed(ended) => ended,
            ReaderEnd::LandedLate if run.from_start => Ended::BoundViolated { segment: run.first },
            ReaderEnd::LandedLate => {
                self.conclude(run.id, run.first, Ended::Stopped, None, lines);
                return self.start_run(run.first, run.rungs, run.attempt + 1).await;
            }
        };
        let made = run.progress.steps() > 0;
        let devices = &self.tools.devices;
        let strand = &self.store.strand;
        let refusal = strand.encode().and_then(|encode| {
            oversight::device_fault(devices, (encode, &strand.facts), &ended, &lines, made)
        });
        self.conclude(run.id, run.first, ended, refusal, lines);
    }

    fn note(&self, run: &Run, evidence: &ExitEvidence) {
        tracing::debug!(run = run.id, status = %evidence.status(), "an encoder process is proved gone");
    }

    fn conclude(&self, run: u64, start: u32, ended: Ended, refusal: Option<Refusal>, log: Vec<String>) {
        let now = self.tools.clock.monotonic();
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
                    untold: Some(now),
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
