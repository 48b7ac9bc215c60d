//! One playback: what a viewer watches, from the answer to their wish until its end is proved.
//!
//! A playback is a handle that requests share and one task that owns the state machine of
//! the lifecycle module. Requests take the running execution straight from the handle; only when there is
//! none do they talk to the task. Nothing is charged and no encoder is asked before the first byte of media
//! is (D17): playlists, HEAD requests and questions about the session start nothing.

mod activity;
mod dates;
mod edition;
mod encoding;
mod failure;
mod report;
mod show;
mod task;

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_encoder::{Control, Encoder, Ended, Execution, Observation, Refusal, Resource, ServeError, Served};
use ether_types::{Clock, ItemId, Monotonic, PlaybackId, Timestamp};
use tokio::sync::{mpsc, oneshot};

use crate::auth::Principal;
use crate::lifecycle::{EndReason, Slot, ViewerState};
use crate::plan::{Making, Plan};
use crate::ports::{CapacityRefusal, ItemDetail, Units};
use crate::works::{Identity, Work};

pub(crate) use activity::Activity;
pub use activity::Hold;
pub(crate) use dates::Dates;
pub(crate) use edition::{Edition, Editor};
pub(crate) use encoding::{Encoding, Left};
pub use encoding::{EncodingView, Fallback};
pub use failure::Failure;
pub(crate) use failure::Failures;
pub use report::{EndedView, FailureView, Refused, Report, Sample, Stage};
pub(crate) use report::{capacity_code, encoder_code};
pub(crate) use show::Show;
pub(crate) use task::{Task, TaskReport};

/// How often a request asks again for an execution that ended under it.
const REBUILDS: usize = 3;

/// One playback.
pub struct Playback {
    pub(crate) id: PlaybackId,
    pub(crate) item: Arc<ItemDetail>,
    pub(crate) principal: Principal,
    pub(crate) plan: Plan,
    pub(crate) encoder: Arc<dyn Encoder>,
    pub(crate) editor: Editor,
    pub(crate) created_at: Timestamp,
    pub(crate) expires_at: Timestamp,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) activity: Arc<Activity>,
    pub(crate) shared: Mutex<Shared>,
    pub(crate) dates: Dates,
}

/// What the task shows and requests read.
pub(crate) struct Shared {
    /// What players are told now.
    pub(crate) edition: Arc<Edition>,
    pub(crate) work: Option<Arc<Work>>,
    /// What is made, and on what; absent when the file itself is handed over.
    pub(crate) encoding: Option<Encoding>,
    /// The representation and the segment that were asked for last.
    pub(crate) wanted: Option<(u32, u32)>,
    pub(crate) slot: Option<Slot>,
    pub(crate) viewer: ViewerState,
    pub(crate) sealed: Option<EndReason>,
    pub(crate) charged: Units,
    pub(crate) unproved: u32,
    pub(crate) refusals: report::Refusals,
    pub(crate) failures: Failures,
    /// The newest sample of an execution that is gone.
    pub(crate) last: Option<Observation>,
}

impl Shared {
    /// Of a playback that begins with `edition`.
    pub(crate) fn new(edition: Arc<Edition>, encoding: Option<Encoding>) -> Self {
        Self {
            edition,
            work: None,
            encoding,
            wanted: None,
            slot: None,
            viewer: ViewerState::default(),
            sealed: None,
            charged: Units::default(),
            unproved: 0,
            refusals: report::Refusals::default(),
            failures: Failures::default(),
            last: None,
        }
    }
}

/// What the task is told.
pub(crate) enum Command {
    /// Somebody needs the execution.
    Want(oneshot::Sender<Result<Arc<dyn Execution>, TurnedAway>>),
    /// The playback leaves this execution to others.
    Lost(Arc<dyn Execution>),
    /// This execution says that it has ended.
    Broken(Arc<dyn Execution>),
    /// The viewer says what it does.
    Viewer(ViewerState),
    /// It ends for good. The answer comes once nothing of it is left, or it is known that this cannot be
    /// proved.
    Seal(EndReason, Option<oneshot::Sender<()>>),
}

/// Why there is no execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TurnedAway {
    Sealed(EndReason),
    Capacity(CapacityRefusal),
    Start(ether_encoder::StartError),
}

/// Why media is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The playback has ended for good.
    #[error("the session has ended: {0}")]
    Ended(EndReason),
    /// There is no such segment or initialization segment in this playback.
    #[error("this session has no {resource}")]
    NoSuchResource {
        /// What was asked for.
        resource: Resource,
    },
    /// The source ended before this segment.
    #[error("{film} ends at {at} s, before this segment: it is shorter than it says")]
    SourceEnded {
        /// The file's path below its folder.
        film: String,
        /// Where it ends.
        at: ether_media::Ticks,
    },
    /// It is being made and was not finished in time.
    #[error("the segment is being made")]
    NotReady,
    /// No capacity could be had in time.
    #[error("{0}")]
    NoCapacity(CapacityRefusal),
    /// The encoder refuses for now.
    #[error("the encoder refuses for now: {refusal}")]
    Refused {
        /// Why.
        refusal: ether_encoder::Refusal,
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// The encoder could not be started.
    #[error("the encoder could not be started: {0}")]
    Start(ether_encoder::StartError),
    /// The encoder failed, just now or so often that it is not started for this part again yet.
    #[error("{0}")]
    Failed(Box<Failure>),
}

impl fmt::Debug for Playback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Playback")
            .field("id", &self.id)
            .field("item", &self.item.summary.id)
            .finish_non_exhaustive()
    }
}

impl Playback {
    /// Its identity.
    pub fn id(&self) -> &PlaybackId {
        &self.id
    }

    /// What is played.
    pub fn item(&self) -> &ItemId {
        &self.item.summary.id
    }

    /// What is done for it.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// When it ends at the latest.
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// What players are told of it now.
    pub(crate) fn edition(&self) -> Arc<Edition> {
        Arc::clone(&self.shared().edition)
    }

    /// Why it has ended, where it has.
    pub fn sealed(&self) -> Option<EndReason> {
        self.shared().sealed
    }

    /// Counts as a sign of life of the viewer for as long as the hold is kept.
    pub fn hold(&self) -> Hold {
        self.activity.enter(Arc::clone(&self.clock))
    }

    /// `resource` if it is finished already. Starts nothing and is no sign of life.
    pub fn finished(&self, resource: Resource) -> Option<Served> {
        let work = self.shared().work.clone();
        match work {
            Some(work) => work.execution.finished(resource),
            None => self.kept(resource),
        }
    }

    /// `resource`, if an earlier execution made it and it was kept.
    fn kept(&self, resource: Resource) -> Option<Served> {
        let (making, _) = self.making()?;
        self.encoder.kept(&making.request, &making.input, resource)
    }

    /// The representation and the segment that an execution is to be found or begun for.
    pub(crate) fn wanted(&self, making: &Making) -> (u32, u32) {
        self.shared().wanted.unwrap_or((0, making.first))
    }

    /// Waits until `resource` is finished, at most `patience`, starting what is needed for it.
    ///
    /// Cancelling forgets the wait. An encoder that was started for it stays until the viewer is idle.
    ///
    /// # Errors
    /// [`MediaError`]; refusals for want of room are also kept for [`Playback::report`].
    pub async fn media(&self, resource: Resource, patience: Duration) -> Result<Served, MediaError> {
        let until = self.clock.monotonic().saturating_add(patience);
        if self.expects(resource)? {
            // A film that was watched before, or is watched by others, may need no encoder at all.
            if let Some(served) = self.kept(resource) {
                self.gave(resource, &served);
                return Ok(served);
            }
        }
        self.rests(Some(resource))?;
        for attempt in 0..REBUILDS {
            let execution = self.execution(until, attempt == 0).await?;
            if self.crowded(&execution) && !execution.reaches(resource) {
                // Others watch elsewhere: they keep the encoder, and this viewer gets another.
                let _ = self.commands.send(Command::Lost(execution)).await;
                continue;
            }
            let served = self.within(until, execution.serve(resource)).await;
            match served {
                None => return Err(MediaError::NotReady),
                Some(Ok(served)) => {
                    if self.described_otherwise(&execution, resource) {
                        self.lost(execution).await;
                        continue;
                    }
                    self.gave(resource, &served);
                    return Ok(served);
                }
                Some(Err(ServeError::Retired)) => self.lost(execution).await,
                // Want of capacity or a broken device, and no failure: another may make the same (case 31).
                Some(Err(ServeError::Refused { refusal, .. })) if self.falls_back(&execution, &refusal) => {
                    self.lost(execution).await;
                }
                // More scratch was guessed to do than does: it is booked anew, up to what the server has.
                Some(Err(ServeError::Ended {
                    ended: Ended::SegmentTooLarge { .. },
                })) if self.books_more() => self.lost(execution).await,
                Some(Err(error)) => return Err(self.explain(error, Some(resource), execution).await),
            }
        }
        Err(MediaError::NotReady)
    }

    /// An encoder that failed three times in a row for the same part of the film is not started for it again for
    /// a while: players ask again at once, and each time would cost a start for nothing.
    fn rests(&self, resource: Option<Resource>) -> Result<(), MediaError> {
        let resting = self.shared().failures.resting(resource, self.clock.monotonic());
        match resting {
            // Whatever was made in the meantime is served all the same.
            Some(failure) if resource.is_none_or(|resource| self.finished(resource).is_none()) => {
                Err(MediaError::Failed(Box::new(failure)))
            }
            _ => Ok(()),
        }
    }

    /// Whether more scratch is booked for the next execution than was for the last.
    fn books_more(&self) -> bool {
        let mut shared = self.shared();
        shared.encoding.as_mut().is_some_and(Encoding::book_more)
    }

    /// Notes what is wanted; whether there is no execution to ask for it.
    fn expects(&self, resource: Resource) -> Result<bool, MediaError> {
        let mut shared = self.shared();
        if let Some(reason) = shared.sealed {
            return Err(MediaError::Ended(reason));
        }
        if let Resource::Segment {
            representation,
            number,
        } = resource
        {
            shared.wanted = Some((representation, number));
        }
        Ok(shared.work.is_none())
    }

    /// What is made now, and what stands for it among works that may be shared.
    pub(crate) fn making(&self) -> Option<(Making, Option<Identity>)> {
        let shared = self.shared();
        let encoding = shared.encoding.as_ref()?;
        Some((encoding.making.clone(), encoding.identity))
    }

    /// Notes that the viewer has `resource`.
    fn gave(&self, resource: Resource, served: &Served) {
        self.shared().failures.served(Some(resource));
        if let (Resource::Init { representation }, Some(encoding)) =
            (resource, self.shared().encoding.as_mut())
        {
            encoding.gave_description(representation, &served.etag);
        }
    }

    /// Whether `execution` made `resource` for another initialization segment than the viewer has, as one does whose
    /// FFmpeg was replaced since: then it is made anew, in a new epoch.
    fn described_otherwise(&self, execution: &Arc<dyn Execution>, resource: Resource) -> bool {
        let Resource::Segment { representation, .. } = resource else {
            return false;
        };
        let Some(init) = execution.finished(Resource::Init { representation }) else {
            return false;
        };
        let mut shared = self.shared();
        let encoding = shared.encoding.as_mut();
        let otherwise = encoding.is_some_and(|encoding| encoding.describe(representation, &init.etag));
        if otherwise {
            self.next_epoch(&mut shared);
        }
        otherwise
    }

    /// Whoever reads playlists from now on begins with the initialization segments that are made now.
    fn next_epoch(&self, shared: &mut Shared) {
        let epoch = shared.edition.epoch.saturating_add(1);
        shared.edition = self.editor.write(&self.plan, &self.item, epoch);
    }

    /// Whether the device of `execution`, which answered `refusal`, is left for another.
    fn falls_back(&self, execution: &Arc<dyn Execution>, refusal: &Refusal) -> bool {
        if !matches!(refusal, Refusal::Device | Refusal::DeviceLost) {
            return false;
        }
        let now = self.clock.now();
        let failed = execution.observe().device;
        let left = {
            let mut shared = self.shared();
            let encoding = shared.encoding.as_mut();
            let left = encoding.and_then(|encoding| encoding.fall_back(&*self.encoder, failed, refusal, now));
            if left == Some(Left::Described) {
                self.next_epoch(&mut shared);
            }
            left
        };
        if left.is_some() {
            self.note(Refused::encoder(now, refusal));
        }
        left.is_some()
    }

    /// Whether others watch `execution` too.
    fn crowded(&self, execution: &Arc<dyn Execution>) -> bool {
        let shared = self.shared();
        let own = shared.work.as_ref();
        own.is_some_and(|work| Arc::ptr_eq(&work.execution, execution) && work.viewers() > 1)
    }

    /// The execution: the one that runs where `any` will do, else what the task answers after everything that
    /// it was told before.
    async fn execution(&self, until: Monotonic, any: bool) -> Result<Arc<dyn Execution>, MediaError> {
        {
            let shared = self.shared();
            if let Some(reason) = shared.sealed {
                return Err(MediaError::Ended(reason));
            }
            if let Some(work) = shared.work.as_ref().filter(|_| any) {
                return Ok(Arc::clone(&work.execution));
            }
        }
        let (answer, answered) = oneshot::channel();
        let asked = async {
            // A task that is gone has sealed the playback and proved its end.
            self.commands.send(Command::Want(answer)).await.ok()?;
            answered.await.ok()
        };
        match self.within(until, asked).await {
            Some(Some(Ok(execution))) => Ok(execution),
            Some(Some(Err(TurnedAway::Sealed(reason)))) => Err(MediaError::Ended(reason)),
            Some(Some(Err(TurnedAway::Capacity(refusal)))) => Err(MediaError::NoCapacity(refusal)),
            Some(Some(Err(TurnedAway::Start(error)))) => Err(MediaError::Start(error)),
            Some(None) => Err(MediaError::Ended(self.sealed().unwrap_or(EndReason::Stopped))),
            None => Err(MediaError::NotReady),
        }
    }

    async fn within<T>(&self, until: Monotonic, work: impl Future<Output = T>) -> Option<T> {
        let left = until.saturating_since(self.clock.monotonic());
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.clock.sleep(left) => None,
        }
    }

    /// Says that an execution ended by itself, so that whoever asks next gets another.
    async fn lost(&self, execution: Arc<dyn Execution>) {
        let _ = self.commands.send(Command::Broken(execution)).await;
    }

    /// What `execution`'s answer to a request for `resource`, or for the stream, means for the viewer.
    async fn explain(
        &self,
        error: ServeError,
        resource: Option<Resource>,
        execution: Arc<dyn Execution>,
    ) -> MediaError {
        match error {
            ServeError::NoSuchResource { resource } => MediaError::NoSuchResource { resource },
            ServeError::OtherProtocol => MediaError::NoSuchResource {
                resource: resource.unwrap_or(Resource::Init { representation: 0 }),
            },
            ServeError::SourceEnded { at } => {
                self.note(Refused::ended(self.clock.now(), &Ended::SourceTruncated { at }));
                MediaError::SourceEnded {
                    film: self.item.summary.file.clone(),
                    at,
                }
            }
            ServeError::Refused { refusal, retry_after } => {
                self.note(Refused::encoder(self.clock.now(), &refusal));
                MediaError::Refused { refusal, retry_after }
            }
            // It ended to make room for another run, or because it had made everything: asking again helps.
            ServeError::Retired => MediaError::NotReady,
            ServeError::Ended {
                ended: Ended::Complete | Ended::Stopped,
            } => MediaError::NotReady,
            ServeError::Ended { ended } => {
                self.note(Refused::ended(self.clock.now(), &ended));
                if ended == Ended::SourceChanged {
                    self.seal(EndReason::SourceChanged);
                    return MediaError::Ended(EndReason::SourceChanged);
                }
                self.failed(ended, resource, execution).await
            }
        }
    }

    async fn failed(
        &self,
        ended: Ended,
        resource: Option<Resource>,
        execution: Arc<dyn Execution>,
    ) -> MediaError {
        // Sampled outside the lock: it is the encoder's own code.
        let log = execution.observe().log;
        let failure = Failure::new(self.clock.now(), &self.item.summary.file, ended, &log);
        let now = self.clock.monotonic();
        let failure = self.shared().failures.note(resource, failure, now);
        if failure.rests.is_some() {
            // Nothing of it is wanted for a while, so its capacity is others'.
            self.lost(execution).await;
        }
        MediaError::Failed(Box::new(failure))
    }

    /// Tells the execution, where there is one, and the state machine what the viewer does. Counts as a sign
    /// of life.
    pub async fn viewer(&self, viewer: ViewerState) {
        self.activity.touch(self.clock.monotonic());
        let _ = self.commands.send(Command::Viewer(viewer)).await;
        let work = self.shared().work.clone();
        if let Some(work) = work {
            let control = match viewer {
                ViewerState::Playing => Control::Playing,
                ViewerState::Paused => Control::Paused,
            };
            // It is a courtesy: hold-back and idleness do not depend on it.
            let _ = work.execution.control(control).await;
        }
    }

    /// Ends the playback for good. Returns at once; every later request is told that it has ended.
    pub fn seal(&self, reason: EndReason) {
        {
            let mut shared = self.shared();
            if shared.sealed.is_some() {
                return;
            }
            shared.sealed = Some(reason);
        }
        self.activity.seal(reason);
    }

    /// Ends the playback for good and waits until nothing of it is left, or it is known that this cannot be
    /// proved now. Cancelling the wait cancels nothing else.
    pub async fn end(&self, reason: EndReason) {
        self.seal(reason);
        let (answer, answered) = oneshot::channel();
        if self
            .commands
            .send(Command::Seal(reason, Some(answer)))
            .await
            .is_ok()
        {
            let _ = answered.await;
        }
    }

    pub(crate) fn note(&self, refused: Refused) {
        self.shared().refusals.push(refused);
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
