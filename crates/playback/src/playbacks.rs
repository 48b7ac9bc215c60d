//! All playbacks of a server: made, found, listed, ended, and joined when the server stops.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_encoder::{DeviceCounts, Encoder};
use ether_media::Ticks;
use ether_media::decision::{Client, Wishes};
use ether_types::{Clock, ItemId, OperationId, PlaybackId, Timestamp};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::auth::Principal;
use crate::grant::GrantKeys;
use crate::lifecycle::{EndReason, LifeLimits, Lifecycle};
use crate::plan::{Plan, PlanError, SubtitleWish};
use crate::playback::{Activity, Dates, Editor, Encoding, Playback, Shared, Task, TaskReport};
use crate::ports::{Capacity, CapacityRefusal, ItemDetail, Library, LibraryError, OpenError};
use crate::works::Works;

/// Messages that wait for one playback's task.
const COMMANDS: usize = 64;
/// Ended playbacks that are remembered, so that they can be read about.
const ENDED_REMEMBERED: usize = 128;
/// Keys of idempotent wishes that are remembered.
const OPERATIONS_REMEMBERED: usize = 4_096;
/// A playback that showed no sign of life for this long may make room for another.
const DISPLACEABLE: Duration = Duration::from_secs(10 * 60);

/// Bounds of a server's playbacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Playbacks that live at once.
    pub sessions: usize,
    /// Of these, how many one principal may have.
    pub sessions_each: usize,
    /// How long a request for media is held.
    pub hold: Duration,
    /// How long a playback waits in the queue for capacity: a little less than a request is held, so that
    /// the reason for a refusal still reaches it.
    pub queue: Duration,
    /// How long a playback lives beyond the length of what it plays.
    pub margin: Duration,
    /// How long a playback lives at most.
    pub longest: Duration,
    /// Bounds of its execution.
    pub life: LifeLimits,
    /// How long stopping waits for proof that every encoder has ended.
    pub shutdown: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 256,
            sessions_each: 64,
            hold: Duration::from_secs(8),
            queue: Duration::from_millis(7_500),
            margin: Duration::from_secs(4 * 3600),
            longest: Duration::from_secs(12 * 3600),
            life: LifeLimits::default(),
            shutdown: Duration::from_secs(10),
        }
    }
}

/// What a viewer asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPlayback {
    /// What to play.
    pub item: ItemId,
    /// Where to begin.
    pub start: Ticks,
    /// What the player can show.
    pub client: Client,
    /// What the viewer wishes.
    pub wishes: Wishes,
    /// The subtitle track that is to be shown, and how.
    pub subtitle: Option<SubtitleWish>,
}

/// Why a playback is not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The library does not give the item.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// Its file is not to be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be played so.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Encoding it can never be admitted here, or not now that the server stops.
    #[error(transparent)]
    Capacity(#[from] CapacityRefusal),
    /// The same operation was asked for with another wish.
    #[error("this Idempotency-Key was used for another request")]
    OperationConflict,
    /// The same operation was asked for before, and what it made has ended since: a repeated request never makes a
    /// second session.
    #[error("this Idempotency-Key made session {id}, which has ended, as {reason}")]
    OperationEnded {
        /// The session.
        id: PlaybackId,
        /// Why it ended.
        reason: EndReason,
    },
    /// There are as many playbacks as there may be.
    #[error("{live} sessions are open, as many as this server keeps")]
    TooMany {
        /// How many there are.
        live: usize,
    },
    /// Whoever asks has as many playbacks as one may have; others still get theirs.
    #[error("{live} sessions are open with this token, as many as one may have")]
    TooManyOfYours {
        /// How many there are.
        live: usize,
    },
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandomness,
}

/// What stopping left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Playbacks that were ended.
    pub ended: usize,
    /// Executions whose end was not proved in time.
    pub unproved: u32,
}

/// The playbacks of a server.
pub struct Playbacks {
    clock: Arc<dyn Clock>,
    library: Arc<dyn Library>,
    encoder: Arc<dyn Encoder>,
    capacity: Arc<dyn Capacity>,
    works: Arc<Works>,
    keys: GrantKeys,
    limits: Limits,
    book: Mutex<Book>,
    hurry: CancellationToken,
}

#[derive(Default)]
struct Book {
    closed: bool,
    playbacks: BTreeMap<PlaybackId, Arc<Playback>>,
    /// The order in which playbacks were made.
    made: Vec<PlaybackId>,
    operations: HashMap<(Principal, OperationId), Arc<Operation>>,
    tasks: JoinSet<TaskReport>,
}

/// One idempotent wish: the first request that holds the lock makes the playback, the others find it.
struct Operation {
    wish: NewPlayback,
    made: tokio::sync::Mutex<Option<PlaybackId>>,
}

impl fmt::Debug for Playbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Playbacks")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Playbacks {
    /// No playbacks yet. Nothing runs until one is made.
    pub fn new(
        library: Arc<dyn Library>,
        encoder: Arc<dyn Encoder>,
        capacity: Arc<dyn Capacity>,
        keys: GrantKeys,
        limits: Limits,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            clock,
            library,
            encoder,
            capacity,
            works: Arc::default(),
            keys,
            limits,
            book: Mutex::new(Book::default()),
            hurry: CancellationToken::new(),
        }
    }

    /// The bounds that were given.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The keys that sign and check grants.
    pub fn keys(&self) -> &GrantKeys {
        &self.keys
    }

    /// How often encoding devices were used, full or broken since the start, where the encoder counts that.
    pub fn device_counts(&self) -> Option<DeviceCounts> {
        self.encoder.device_counts()
    }

    /// The capacity that playbacks draw on.
    pub fn capacity(&self) -> &Arc<dyn Capacity> {
        &self.capacity
    }

    /// Makes a playback for `principal`. The same `operation` with the same wish gives the same playback, and once
    /// that has ended [`CreateError::OperationEnded`], for as long as it is remembered.
    ///
    /// Admission is checked and nothing is reserved (D17). Cancelling makes it or does not; the operation's
    /// key tells.
    ///
    /// # Errors
    /// [`CreateError`].
    pub async fn create(
        &self,
        principal: &Principal,
        wish: NewPlayback,
        operation: Option<OperationId>,
    ) -> Result<Arc<Playback>, CreateError> {
        let Some(operation) = operation else {
            return self.make(principal, &wish).await;
        };
        let key = (principal.clone(), operation);
        let entry = {
            let mut book = self.book();
            if book.operations.len() >= OPERATIONS_REMEMBERED {
                book.tidy();
                let live = book.playbacks.len();
                if book.operations.len() >= OPERATIONS_REMEMBERED {
                    return Err(CreateError::TooMany { live });
                }
            }
            let fresh = || {
                Arc::new(Operation {
                    wish: wish.clone(),
                    made: tokio::sync::Mutex::default(),
                })
            };
            Arc::clone(book.operations.entry(key.clone()).or_insert_with(fresh))
        };
        if entry.wish != wish {
            return Err(CreateError::OperationConflict);
        }
        let mut made = entry.made.lock().await;
        if let Some(playback) = made.as_ref().and_then(|id| self.get(id)) {
            return match playback.sealed() {
                None => Ok(playback),
                Some(reason) => Err(CreateError::OperationEnded {
                    id: playback.id.clone(),
                    reason,
                }),
            };
        }
        let playback = self.make(principal, &wish).await;
        match &playback {
            Ok(playback) => *made = Some(playback.id.clone()),
            Err(_) => {
                // Nothing came of it. Whoever waits for the entry makes their own attempt through it; a key
                // that nobody waits for is forgotten.
                let mut book = self.book();
                if Arc::strong_count(&entry) <= 2 {
                    book.operations.remove(&key);
                }
            }
        }
        playback
    }

    async fn make(&self, principal: &Principal, wish: &NewPlayback) -> Result<Arc<Playback>, CreateError> {
        let item = Arc::new(self.library.item(wish.item.clone()).await?);
        let (plan, encoding) = self.plan(&item, wish)?;
        // A film whose disk is not there is refused here, and not by a player that waits for its first segment.
        drop(self.library.open(&item).await?);
        let id = PlaybackId::random().map_err(|_| CreateError::NoRandomness)?;
        let created_at = self.clock.now();
        let life = (plan.decision.timeline.end().to_duration() + self.limits.margin).min(self.limits.longest);
        let expires_at = created_at
            .checked_add(life)
            .unwrap_or(Timestamp::from_micros(i64::MAX));
        let editor = Editor {
            id: id.clone(),
            keys: self.keys.clone(),
            expires_at,
        };
        let edition = editor.write(&plan, &item, 0);
        let now = self.clock.monotonic();
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let playback = Arc::new(Playback {
            activity: Arc::new(Activity::new(now)),
            shared: Mutex::new(Shared::new(edition, encoding)),
            dates: Dates::default(),
            clock: Arc::clone(&self.clock),
            principal: principal.clone(),
            id,
            item,
            encoder: Arc::clone(&self.encoder),
            plan,
            editor,
            created_at,
            expires_at,
            commands,
        });
        let task = Task {
            playback: Arc::clone(&playback),
            commands: inbox,
            life: Lifecycle::new(self.limits.life, now.saturating_add(life)),
            encoder: Arc::clone(&self.encoder),
            capacity: Arc::clone(&self.capacity),
            works: Arc::clone(&self.works),
            clock: Arc::clone(&self.clock),
            queue: self.limits.queue,
            hurry: self.hurry.clone(),
        };
        let mut book = self.book();
        book.tidy();
        if book.closed {
            return Err(CapacityRefusal::Closed.into());
        }
        let displaced = book.make_room(principal, &self.limits, now)?;
        book.made.push(playback.id.clone());
        book.playbacks.insert(playback.id.clone(), Arc::clone(&playback));
        book.tasks.spawn(task.run());
        drop(book);
        if let Some(displaced) = displaced {
            displaced.seal(EndReason::Displaced);
        }
        Ok(playback)
    }

    /// What is done for `wish`, and on what. A ladder that is more than the whole machine is given up: one quality of a
    /// film that plays is better than several that nobody else can watch anything beside.
    fn plan(&self, item: &ItemDetail, wish: &NewPlayback) -> Result<(Plan, Option<Encoding>), CreateError> {
        let (plan, encoding) = self.admitted(item, wish, &wish.wishes)?;
        let limit = self.capacity.usage().limit.milli_slots;
        let ladder = !plan.decision.lower.is_empty();
        let beyond = |encoding: &Encoding| encoding.making.units.milli_slots > limit;
        if ladder && encoding.as_ref().is_some_and(beyond) {
            let one = Wishes {
                ladder: false,
                ..wish.wishes
            };
            return self.admitted(item, wish, &one);
        }
        Ok((plan, encoding))
    }

    fn admitted(
        &self,
        item: &ItemDetail,
        wish: &NewPlayback,
        wishes: &Wishes,
    ) -> Result<(Plan, Option<Encoding>), CreateError> {
        let capabilities = self.encoder.capabilities();
        let plan = Plan::with_subtitle(
            item,
            &wish.client,
            wishes,
            wish.start,
            wish.subtitle,
            capabilities,
        )?;
        let Some(making) = plan.making.clone() else {
            return Ok((plan, None));
        };
        self.encoder
            .supports(&making.request)
            .map_err(|unsupported| CreateError::Plan(PlanError::Unsupported(unsupported)))?;
        // What is charged depends on what encodes.
        let most_scratch = self.capacity.usage().limit.scratch_mib;
        let encoding = Encoding::new(making, most_scratch, &*self.encoder);
        self.capacity.admits(encoding.making.units)?;
        Ok((plan, Some(encoding)))
    }

    /// The playback `id`, ended ones included for as long as they are remembered.
    pub fn get(&self, id: &PlaybackId) -> Option<Arc<Playback>> {
        self.book().playbacks.get(id).cloned()
    }

    /// The playbacks that `principal` may see, in the order in which they were made.
    pub fn list(&self, principal: &Principal) -> Vec<Arc<Playback>> {
        let book = self.book();
        let all = book.made.iter().filter_map(|id| book.playbacks.get(id));
        all.filter(|playback| visible(playback, principal))
            .cloned()
            .collect()
    }

    /// The playback `id`, if `principal` may see it.
    pub fn visible(&self, id: &PlaybackId, principal: &Principal) -> Option<Arc<Playback>> {
        self.get(id).filter(|playback| visible(playback, principal))
    }

    /// Ends every playback, takes no more, and waits until every encoder is proved gone, at most the stated
    /// time. Call it once nothing asks for media any more, or while it still does: requests are told.
    pub async fn shutdown(&self) -> ShutdownReport {
        let (playbacks, mut tasks) = {
            let mut book = self.book();
            book.closed = true;
            let live: Vec<_> = book.playbacks.values().cloned().collect();
            (live, std::mem::take(&mut book.tasks))
        };
        let ended = playbacks
            .iter()
            .filter(|playback| playback.sealed().is_none())
            .count();
        for playback in &playbacks {
            playback.seal(EndReason::Shutdown);
        }
        let mut unproved = 0;
        let mut alarm = self.clock.sleep(self.limits.shutdown);
        loop {
            tokio::select! {
                biased;
                task = tasks.join_next() => match task {
                    Some(Ok(report)) => unproved += report.unproved,
                    // A task that panicked proves nothing.
                    Some(Err(_)) => unproved += 1,
                    None => return ShutdownReport { ended, unproved },
                },
                () = &mut alarm => {
                    self.hurry.cancel();
                    alarm = Box::pin(std::future::pending());
                }
            }
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn visible(playback: &Playback, principal: &Principal) -> bool {
    principal.is_owner() || playback.principal == *principal
}

impl Book {
    /// Forgets what need not be remembered any more.
    fn tidy(&mut self) {
        while let Some(joined) = self.tasks.try_join_next() {
            if let Err(error) = joined {
                tracing::error!(%error, "a session's task failed; what it was charged stays taken");
            }
        }
        let ended: Vec<PlaybackId> = self
            .made
            .iter()
            .filter(|id| self.playbacks.get(id).is_some_and(|p| p.sealed().is_some()))
            .cloned()
            .collect();
        let surplus = ended.len().saturating_sub(ENDED_REMEMBERED);
        for id in ended.into_iter().take(surplus) {
            self.playbacks.remove(&id);
        }
        let playbacks = &self.playbacks;
        self.made.retain(|id| playbacks.contains_key(id));
        self.operations
            .retain(|_, operation| match operation.made.try_lock() {
                Ok(made) => match made.as_ref() {
                    Some(id) => playbacks.contains_key(id),
                    // Nothing came of it: it can be asked for anew, by anybody who still holds the entry too.
                    None => Arc::strong_count(operation) > 1,
                },
                Err(_) => true,
            });
    }

    /// Finds room for one more of `principal`: the playback that has to go for it, if one may.
    fn make_room(
        &self,
        principal: &Principal,
        limits: &Limits,
        now: ether_types::Monotonic,
    ) -> Result<Option<Arc<Playback>>, CreateError> {
        // The oldest first, which decides between those that are idle for the same time.
        let made = self.made.iter().filter_map(|id| self.playbacks.get(id));
        let live: Vec<_> = made.filter(|p| p.sealed().is_none()).collect();
        // Whoever has their share makes room themselves, so that no token can push the others out.
        let own: Vec<_> = live
            .iter()
            .copied()
            .filter(|p| p.principal == *principal)
            .collect();
        if own.len() >= limits.sessions_each {
            let refusal = CreateError::TooManyOfYours { live: own.len() };
            return displaceable(&own, now).map(Some).ok_or(refusal);
        }
        if live.len() >= limits.sessions {
            let refusal = CreateError::TooMany { live: live.len() };
            return displaceable(&live, now).map(Some).ok_or(refusal);
        }
        Ok(None)
    }
}

/// Of `live`, the playback that showed no sign of life for longest, where that is long enough.
fn displaceable(live: &[&Arc<Playback>], now: ether_types::Monotonic) -> Option<Arc<Playback>> {
    let idle = live
        .iter()
        .filter(|p| p.activity.idle_since().is_some() && p.shared().work.is_none())
        .min_by_key(|p| p.activity.last())?;
    (now.saturating_since(idle.activity.last()) >= DISPLACEABLE).then(|| Arc::clone(idle))
}
