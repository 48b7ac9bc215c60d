//! The owner's side: the book with real files, real connections and a clock.
//!
//! ```text
//!             prepare                opened               seal                 last holder
//!   (nothing) ───────▶ opening file ───────▶ open ──────────────────▶ cut ───────────────▶ closed: proved
//!                          │                      request, deadline,        of the file drops it
//!                          └── not the promised revision, or not to be had ────────────────▶ closed: proved
//! ```
//!
//! The file is held by the grant and by whoever reads from it just now, a read that hangs in the kernel included. It
//! is closed when the last of them lets go, and only then does the book hear that it is: what the proof says was so
//! before it is given.

mod http;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use ether_encoder::{BoxFuture, Revision};
use ether_tls::Member;
use ether_transfer::{Cut, DISK_READS};
use ether_types::{Clock, FenceHash, ItemId};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::book::{Book, Opening, Prepared, Reading};
use crate::grant::{
    Bearer, BearerHash, Denied, ExtendError, Extension, Handle, Instant, Limits, PrepareError, RetireAnswer,
    Terms,
};
use crate::wire::{
    AdmitAnswer, Extend, ExtendAnswer, NotOpened, Prepare, PrepareAnswer, Retire, RetirementAnswer, millis,
};

/// How long a preparation waits for its file before it says that it is still being opened.
const OPENING: Duration = Duration::from_secs(4);
/// The wall clock may be set forward: deadlines are looked at this often.
const LOOK: Duration = Duration::from_secs(1);

/// The films of this node, as an owner needs them.
pub trait Films: Send + Sync {
    /// Opens the file of `item`, wherever it is now.
    ///
    /// # Errors
    /// [`NotOpened`]. That the file is in the promised state is checked by the caller.
    fn open<'a>(&'a self, item: &'a ItemId) -> BoxFuture<'a, Result<File, NotOpened>>;
}

/// The placement ledger, as an owner needs it (T2): nobody is believed about an assignment of theirs.
pub trait Assignments: Send + Sync {
    /// Whether `terms` are those of an assignment that is live by the database's clock: its fence has the hash, its
    /// controller and worker boots are those that are named.
    ///
    /// # Errors
    /// [`NotLive`].
    fn live<'a>(&'a self, terms: &'a Terms) -> BoxFuture<'a, Result<(), NotLive>>;
}

/// Why terms are not taken for a live assignment's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLive {
    /// The ledger says otherwise.
    #[error("the ledger knows of no such live assignment")]
    NotAssigned,
    /// The ledger cannot be asked.
    #[error("the ledger cannot be asked now")]
    Unavailable,
}

/// A source owner: one boot's grants.
#[derive(Clone)]
pub struct Owner {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    limits: Limits,
    films: Arc<dyn Films>,
    assignments: Arc<dyn Assignments>,
    clock: Arc<dyn Clock>,
    disk: Arc<Semaphore>,
    openings: TaskTracker,
    /// Something was sealed, opened or closed, or a deadline was set.
    changed: Notify,
}

struct State {
    book: Book,
    files: HashMap<Handle, Kept>,
}

/// What is kept of a grant's file besides what the book knows.
enum Kept {
    Open {
        file: Lent,
        revision: Revision,
        cut: Cut,
    },
    NotOpened(NotOpened),
}

/// A file that is in use. The book hears of its closing when the last clone is dropped.
#[derive(Clone)]
struct Lent(Arc<Loan>);

struct Loan {
    // Dropped in this order: the book is told of what has happened.
    file: File,
    _told: Told,
}

struct Told {
    handle: Handle,
    owner: Weak<Shared>,
}

impl AsRef<File> for Lent {
    fn as_ref(&self) -> &File {
        &self.0.file
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.lock().book.closed(&self.handle);
            owner.changed.notify_waiters();
        }
    }
}

/// One answer that is being sent. Dropping it tells the book, and then lets go of the file.
struct Reader {
    reading: Option<Reading>,
    owner: Arc<Shared>,
}

impl Reader {
    /// Whether the next piece may be sent.
    fn may_go_on(&self) -> bool {
        let now = self.owner.now();
        self.reading
            .as_ref()
            .is_some_and(|reading| self.owner.lock().book.may_go_on(reading, now))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.take() {
            self.owner.lock().book.joined(reading);
            self.owner.changed.notify_waiters();
        }
    }
}

/// A reader, the file it reads, and what would cut it off.
struct Granted {
    reader: Reader,
    file: Lent,
    revision: Revision,
    cut: Cut,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner")
            .field("limits", &self.shared.limits)
            .finish_non_exhaustive()
    }
}

impl Owner {
    /// An owner of `films` that believes `assignments`. Nothing runs until [`Owner::run`].
    pub fn new(
        limits: Limits,
        films: Arc<dyn Films>,
        assignments: Arc<dyn Assignments>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                state: Mutex::new(State {
                    book: Book::new(limits),
                    files: HashMap::new(),
                }),
                limits,
                films,
                assignments,
                clock,
                disk: Arc::new(Semaphore::new(DISK_READS)),
                openings: TaskTracker::new(),
                changed: Notify::new(),
            }),
        }
    }

    /// What is mounted on the private listener.
    pub fn routes(&self) -> Router {
        http::routes(Arc::clone(&self.shared))
    }

    /// Records that are used, of the limit.
    pub fn used(&self) -> (usize, usize) {
        self.shared.lock().book.used()
    }

    /// Ends grants in time until `stop`, then ends all of them, and returns once every file is proved closed. A read
    /// that hangs in the kernel holds it up for as long.
    ///
    /// Cancelling ends nothing: deadlines are still kept wherever a grant is used.
    pub async fn run(&self, stop: CancellationToken) {
        let shared = &self.shared;
        loop {
            let now = shared.now();
            let next = {
                let mut state = shared.lock();
                state.book.expire(now);
                state.book.next_end()
            };
            shared.let_go();
            let wait = next.map_or(LOOK, |next| next.saturating_since(now.monotonic).min(LOOK));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = shared.clock.sleep(wait) => {}
            }
        }
        let now = shared.now();
        shared.lock().book.stop(now);
        shared.let_go();
        shared.openings.close();
        loop {
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            if shared.lock().book.open() == 0 {
                break;
            }
            changed.await;
        }
        shared.openings.wait().await;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Instant {
        Instant {
            wall: self.clock.now(),
            monotonic: self.clock.monotonic(),
        }
    }

    /// Cuts the answers of sealed grants off, and lets go of their files.
    fn let_go(&self) {
        let mut dropped = Vec::new();
        let mut guard = self.lock();
        let State { book, files } = &mut *guard;
        files.retain(|handle, kept| {
            let sealed = book.sealed(handle).is_some();
            if let (Kept::Open { file, cut, .. }, true) = (&*kept, sealed) {
                cut.make();
                dropped.push(file.clone());
                return false;
            }
            true
        });
        drop(guard);
        // Closing may take time, and tells the book: both want the lock to be free.
        drop(dropped);
        self.changed.notify_waiters();
    }

    async fn prepare(self: &Arc<Self>, controller: &Member, asked: Prepare) -> PrepareAnswer {
        let terms = Terms {
            operation: asked.operation,
            session: asked.session,
            generation: asked.generation,
            fence: asked.fence,
            controller: controller.clone(),
            worker: asked.worker.in_the_cluster_of(controller),
            item: asked.item,
            revision: asked.revision,
            until: asked.until,
        };
        match self.assignments.live(&terms).await {
            Ok(()) => {}
            Err(NotLive::NotAssigned) => return PrepareAnswer::NotAssigned {},
            Err(NotLive::Unavailable) => return PrepareAnswer::Unavailable {},
        }
        let Ok(fresh) = Handle::random() else {
            return PrepareAnswer::Unavailable {};
        };
        let mut deadline = self.clock.sleep(OPENING);
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let now = self.now();
            let prepared = self.lock().book.prepare(terms.clone(), fresh.clone(), now);
            match prepared {
                Ok(Prepared::Open(opening)) => {
                    // A task of its own: whoever asked may be gone before the file is open.
                    let (owner, terms) = (Arc::clone(self), terms.clone());
                    self.openings
                        .spawn(async move { owner.open(opening, &terms).await });
                }
                Ok(Prepared::Replayed {
                    handle,
                    opening: false,
                    sealed,
                    extended,
                }) => {
                    let not_opened = match self.lock().files.get(&handle) {
                        Some(Kept::NotOpened(why)) => Some(*why),
                        _ => None,
                    };
                    return match (not_opened, sealed) {
                        (Some(why), _) => PrepareAnswer::NotOpened { why },
                        (None, Some(by)) => PrepareAnswer::Ended { by },
                        (None, None) => PrepareAnswer::Granted {
                            handle,
                            held: extended,
                        },
                    };
                }
                Ok(Prepared::Replayed { handle, sealed, .. }) => {
                    if let Some(by) = sealed {
                        return PrepareAnswer::Ended { by };
                    }
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = &mut deadline => return PrepareAnswer::Opening { handle },
                    }
                }
                Err(refused) => return refused.into(),
            }
        }
    }

    /// Opens the file of a new grant, and says in the book what came of it.
    async fn open(self: Arc<Self>, opening: Opening, terms: &Terms) {
        let handle = opening.handle().clone();
        let opened = self.films.open(&terms.item).await.and_then(|file| {
            let now = Revision::of(&file).map_err(|_: io::Error| NotOpened::Unreadable)?;
            match now == terms.revision {
                true => Ok(file),
                false => Err(NotOpened::Changed),
            }
        });
        let mut late = None;
        {
            let mut guard = self.lock();
            let State { book, files } = &mut *guard;
            match opened {
                Ok(file) => {
                    let lent = Lent(Arc::new(Loan {
                        file,
                        _told: Told {
                            handle: handle.clone(),
                            owner: Arc::downgrade(&self),
                        },
                    }));
                    if book.opened(&opening) {
                        let kept = Kept::Open {
                            file: lent,
                            revision: terms.revision,
                            cut: Cut::new(),
                        };
                        files.insert(handle, kept);
                    } else {
                        late = Some(lent);
                    }
                }
                Err(why) => {
                    book.not_opened(&opening);
                    files.insert(handle, Kept::NotOpened(why));
                }
            }
        }
        // Closed outside the lock, which its closing takes.
        drop(late);
        self.changed.notify_waiters();
    }

    fn admit(&self, worker: &Member, handle: &Handle, fence: FenceHash) -> AdmitAnswer {
        // Without random numbers there is no bearer yet: whoever asks again may get one.
        let Ok(bearer) = Bearer::random() else {
            return AdmitAnswer::Denied { why: Denied::Opening };
        };
        let now = self.now();
        let admitted = self.lock().book.admit(handle, worker, fence, bearer.hash(), now);
        match admitted {
            Ok(()) => AdmitAnswer::Admitted {
                bearer,
                lasts_millis: millis(self.limits.bearer),
            },
            Err(why) => AdmitAnswer::Denied { why },
        }
    }

    async fn extend(&self, worker: &Member, handle: &Handle, asked: Extend) -> ExtendAnswer {
        let terms = self.lock().book.terms(handle, worker).cloned();
        let Some(terms) = terms else {
            let why = Denied::NoSuchGrant;
            return ExtendAnswer::Denied { why };
        };
        match self.assignments.live(&terms).await {
            Ok(()) => {}
            Err(NotLive::NotAssigned) => return ExtendAnswer::NotAssigned {},
            Err(NotLive::Unavailable) => return ExtendAnswer::Unavailable {},
        }
        let wish = Extension {
            version: asked.version,
            previous: asked.previous,
            until: asked.until,
        };
        let now = self.now();
        let extended = self.lock().book.extend(handle, worker, asked.fence, wish, now);
        match extended {
            Ok(held) => ExtendAnswer::Extended { held },
            Err(ExtendError::Conflict(held)) => ExtendAnswer::Conflict { held },
            Err(ExtendError::Denied(why)) => ExtendAnswer::Denied { why },
            Err(ExtendError::Deadline { previous, most }) => ExtendAnswer::Deadline {
                previous,
                most_millis: millis(most),
            },
        }
    }

    fn retire(&self, peer: &Member, asked: &Retire) -> RetirementAnswer {
        let now = self.now();
        let ask = |book: &mut Book| book.retire(&asked.operation, asked.fence, peer, now);
        let first = ask(&mut self.lock().book);
        // Where nobody reads, letting go closes the file, and the proof can be given at once.
        let answer = match first {
            Ok(RetireAnswer::Pending { .. }) => {
                self.let_go();
                ask(&mut self.lock().book)
            }
            first => first,
        };
        match answer {
            Ok(RetireAnswer::Pending { readers }) => RetirementAnswer::Pending { readers },
            Ok(RetireAnswer::Proved(proof)) => RetirementAnswer::Proved {
                answers: proof.answers(),
            },
            Err(_) => RetirementAnswer::Unknown {},
        }
    }

    fn read(
        self: &Arc<Self>,
        worker: &Member,
        handle: &Handle,
        bearer: BearerHash,
    ) -> Result<Granted, Denied> {
        let now = self.now();
        let mut guard = self.lock();
        let State { book, files } = &mut *guard;
        let reading = book.read(handle, worker, bearer, now);
        let reader = Reader {
            reading: Some(reading?),
            owner: Arc::clone(self),
        };
        let kept = match files.get(handle) {
            Some(Kept::Open { file, revision, cut }) => Ok((file.clone(), *revision, cut.clone())),
            _ => Err(Denied::Sealed),
        };
        // A reader that is dropped takes the lock.
        drop(guard);
        let (file, revision, cut) = kept?;
        Ok(Granted {
            reader,
            file,
            revision,
            cut,
        })
    }
}

impl From<PrepareError> for PrepareAnswer {
    fn from(refused: PrepareError) -> Self {
        match refused {
            PrepareError::Conflict => Self::Conflict {},
            PrepareError::Barred => Self::Barred {},
            PrepareError::Deadline { most } => Self::Deadline {
                most_millis: millis(most),
            },
            PrepareError::Records { limit } => Self::Full {
                limit: limit as u64,
                passes: false,
            },
            PrepareError::Open { limit } => Self::Full {
                limit: limit as u64,
                passes: true,
            },
        }
    }
}
