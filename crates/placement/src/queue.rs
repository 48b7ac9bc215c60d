//! Grouping: the requests that wait share one transaction, one lock and one flush to disk.
//!
//! There is no task while nobody waits (P1). The first request starts one; it takes what has gathered, runs
//! it, answers, and looks again, until nothing is left. Whoever arrives meanwhile is in the next group. The
//! task owns every connection it uses, so that a caller can be cancelled at any point: a request that is not
//! under way yet is then dropped, one that is under way ends without being told.
//!
//! Sharing a transaction must not mean sharing another's fault. Where a group fails by what one of its commands
//! touches, a row that the ledger cannot have written for one, it is halved until that command stands alone. Where
//! the database takes nothing new, those who only wanted to know are answered without the others. And where a group
//! is more than the database does within the bound, the next ones are smaller.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_store::{Bound, Deadline, StoreError, Tables, Tx};
use ether_types::Timestamp;
use tokio::sync::oneshot;

use crate::command::Command;
use crate::decide::{Reading, decide};
use crate::outcome::Outcome;
use crate::sql::Fault;
use crate::sql::load::load;
use crate::sql::write::{Dirty, write};
use crate::state::{Change, Meta, Own, State};

/// Commands that may wait at once.
const LINE: usize = 8_192;
/// Commands in one transaction. It bounds how long one group holds the lock.
const GROUP: usize = 1_024;
/// By how much groups may grow after one that was as large as they may be went through.
const GROWTH: usize = 16;

/// The part of a group's whole time, as a divisor, with less than which left nothing more of it is tried.
const LEAST: u32 = 64;
/// Turns that everybody else gets before the next group is closed.
const GATHER: u32 = 16;

/// What each command of a request came to.
pub(crate) type Answer = Vec<Result<Outcome, Arc<Fault>>>;

/// The line is full; the request was not taken.
#[derive(Debug)]
pub(crate) struct Full;

struct Waiting {
    commands: Vec<Command>,
    reply: oneshot::Sender<Answer>,
}

pub(crate) struct Queue {
    tables: Tables,
    own: Arc<Own>,
    bound: Bound,
    line: Mutex<Line>,
    /// How many commands a group may have: [`GROUP`], or fewer after one did not end within the bound.
    limit: AtomicUsize,
    pub(crate) latest: Arc<Latest>,
}

/// The latest instant that this process has judged anything at, and in which epoch of the ledger's clock.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<Option<(u64, Timestamp)>>);

impl Latest {
    /// `read`, or the latest instant before it where the clock was stepped back meanwhile. What was seen before the
    /// ledger's clock was rebased counts for nothing.
    pub(crate) fn at(&self, epoch: u64, read: Timestamp) -> Timestamp {
        let mut latest = self.lock();
        let at = since(*latest, epoch, read);
        if latest.is_none_or(|(known, _)| known <= epoch) {
            *latest = Some((epoch, at));
        }
        at
    }

    /// The latest instant up to now, and its epoch.
    fn so_far(&self) -> Option<(u64, Timestamp)> {
        *self.lock()
    }

    /// As [`Latest::at`], for what judges nothing.
    pub(crate) fn peek(&self, epoch: u64, read: Timestamp) -> Timestamp {
        since(*self.lock(), epoch, read)
    }

    fn lock(&self) -> MutexGuard<'_, Option<(u64, Timestamp)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }
}

fn since(latest: Option<(u64, Timestamp)>, epoch: u64, read: Timestamp) -> Timestamp {
    match latest {
        Some((known, before)) if known >= epoch => before.max(read),
        _ => read,
    }
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// Commands of all that wait.
    commands: usize,
    served: bool,
}

impl Line {
    /// Drops requests whose callers wait no more: they take no room from those who do.
    fn forget_gone(&mut self) {
        self.waiting.retain(|waiting| !waiting.reply.is_closed());
        self.commands = self.waiting.iter().map(|waiting| waiting.commands.len()).sum();
    }
}

impl Queue {
    #[cfg(test)]
    pub(crate) fn is_served(&self) -> bool {
        self.lock().served
    }

    #[cfg(test)]
    pub(crate) fn limit_to(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn new(tables: Tables, own: Own, bound: Bound) -> Arc<Self> {
        Arc::new(Self {
            tables,
            own: Arc::new(own),
            bound,
            line: Mutex::new(Line::default()),
            limit: AtomicUsize::new(GROUP),
            latest: Arc::default(),
        })
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// How many commands share a transaction at most, at present.
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Lets groups grow again after one of `size` went through.
    fn fitted(&self, size: usize) {
        let limit = self.limit();
        if size >= limit && limit < GROUP {
            self.limit.store((limit + GROWTH).min(GROUP), Ordering::Relaxed);
        }
    }

    /// Makes groups smaller than one of `size`, which did not end within its bound. Of a single command that says
    /// nothing about groups.
    fn too_large(&self, size: usize) {
        if size < 2 {
            return;
        }
        self.limit.fetch_min((size / 2).max(1), Ordering::Relaxed);
    }

    /// Puts `commands` in the line as one request; they are decided in order, in one transaction unless one of
    /// them has to be told apart.
    pub(crate) fn submit(
        self: &Arc<Self>,
        commands: Vec<Command>,
    ) -> Result<oneshot::Receiver<Answer>, Full> {
        let (reply, answer) = oneshot::channel();
        let serve = {
            let mut line = self.lock();
            if line.commands.saturating_add(commands.len()) > LINE {
                line.forget_gone();
            }
            if line.commands.saturating_add(commands.len()) > LINE {
                return Err(Full);
            }
            line.commands += commands.len();
            line.waiting.push_back(Waiting { commands, reply });
            !std::mem::replace(&mut line.served, true)
        };
        if serve {
            // The turn is there before the task: where none can be started, it hands the line back.
            let turn = Turn {
                queue: Arc::clone(self),
                done: false,
            };
            tokio::spawn(turn.serve());
        }
        Ok(answer)
    }

    /// Lets those who were just answered put their next requests in the line, so that they share a
    /// transaction again instead of falling into step one by one. It never waits for time to pass.
    async fn gather(&self, answered: usize) {
        for _ in 0..GATHER {
            if self.lock().waiting.len() >= answered {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// The next requests whose callers still wait; `None` hands the line back.
    fn next_group(&self) -> Option<Vec<Waiting>> {
        let limit = self.limit();
        let mut line = self.lock();
        let mut group = Vec::new();
        let mut commands = 0;
        while let Some(next) = line.waiting.front() {
            if !group.is_empty() && commands + next.commands.len() > limit {
                break;
            }
            let Some(next) = line.waiting.pop_front() else {
                break;
            };
            line.commands = line.commands.saturating_sub(next.commands.len());
            if next.reply.is_closed() {
                continue;
            }
            commands += next.commands.len();
            group.push(next);
        }
        if group.is_empty() {
            line.served = false;
            return None;
        }
        Some(group)
    }

    async fn run(&self, mut group: Vec<Waiting>) {
        let sizes: Vec<usize> = group.iter().map(|waiting| waiting.commands.len()).collect();
        let commands: Vec<Command> = group
            .iter_mut()
            .flat_map(|waiting| std::mem::take(&mut waiting.commands))
            .collect();
        let mut answers = self.settle(commands).await.into_iter();
        for (waiting, size) in group.into_iter().zip(sizes) {
            // A caller that has gone does not want its answer.
            let _ = waiting.reply.send(answers.by_ref().take(size).collect());
        }
    }

    /// An answer for each of `commands`, in their order.
    async fn settle(&self, commands: Vec<Command>) -> Answer {
        let deadline = Deadline::after(self.bound.total);
        // What begins with next to no time left ends as a timeout that says nothing of its size.
        let spent = || deadline.left() < self.bound.total / LEAST;
        let mut answers: Vec<Option<Result<Outcome, Arc<Fault>>>> = Vec::new();
        answers.resize_with(commands.len(), || None);
        // What is still to be tried, the first commands last.
        let mut parts = Part::of(commands, self.limit());
        while let Some(part) = parts.pop() {
            if spent() {
                // Nobody waits for these any more, and the database has enough to do.
                let late = Arc::new(Fault::Store(StoreError::Timeout(deadline.bound())));
                for place in part.places {
                    answers[place] = Some(Err(Arc::clone(&late)));
                }
                continue;
            }
            let writes = Arc::<Mutex<Vec<Writes>>>::default();
            let fault = match self.transaction(&part, &deadline, &writes).await {
                Ok(outcomes) => {
                    self.fitted(part.places.len());
                    for (place, outcome) in part.places.into_iter().zip(outcomes) {
                        answers[place] = Some(Ok(outcome));
                    }
                    continue;
                }
                Err(fault) => fault,
            };
            if matches!(&fault, Fault::Store(error) if error.is_timeout()) {
                self.too_large(part.places.len());
            }
            let failed = match spent() {
                true => part.places,
                false => {
                    let writes = writes.lock().unwrap_or_else(PoisonError::into_inner);
                    part.again(&fault, &writes, &mut parts)
                }
            };
            let fault = Arc::new(fault);
            for place in failed {
                answers[place] = Some(Err(Arc::clone(&fault)));
            }
        }
        // Every part was answered or taken apart, so that nothing is left over.
        answers.into_iter().flatten().collect()
    }

    async fn transaction(
        &self,
        part: &Part,
        deadline: &Deadline,
        writes: &Arc<Mutex<Vec<Writes>>>,
    ) -> Result<Vec<Outcome>, Fault> {
        let own = Arc::clone(&self.own);
        // What this process knew before the database's clock is read: what somebody sees there while the
        // transaction is on its way is later than that reading, and not behind it.
        let seen = self.latest.so_far();
        let latest = Arc::clone(&self.latest);
        let (commands, remembers) = (Arc::clone(&part.commands), part.remembers);
        let writes = Arc::clone(writes);
        let bound = Bound {
            lock: self.bound.lock,
            total: deadline.left(),
        };
        // The task that serves the line is its own, and nobody's cancellation reaches it.
        self.tables
            .write_here(bound, move |tx| {
                Box::pin(async move {
                    let memory = (seen, &*latest);
                    transact(tx, &own, memory, &commands, remembers, &writes).await
                })
            })
            .await
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Commands of one group that are tried in one transaction.
struct Part {
    /// Where in the group each of them stands.
    places: Vec<usize>,
    commands: Arc<[Command]>,
    /// Whether the instant is written down at which somebody is told that an assignment is over.
    remembers: bool,
}

impl Part {
    /// `commands` in parts of at most `limit`, the first of them last.
    fn of(commands: Vec<Command>, limit: usize) -> Vec<Part> {
        let places: Vec<usize> = (0..commands.len()).collect();
        let parts = places.chunks(limit.max(1)).zip(commands.chunks(limit.max(1)));
        let parts = parts.map(|(places, commands)| Part {
            places: places.to_vec(),
            commands: commands.into(),
            remembers: true,
        });
        let mut parts: Vec<Part> = parts.collect();
        parts.reverse();
        parts
    }

    /// Puts into `parts` what may fare better otherwise than in this part, which failed by `fault`; returns the
    /// places of those to whom that is the answer. `writes` is what each was about to write, as far as they came.
    fn again(self, fault: &Fault, writes: &[Writes], parts: &mut Vec<Part>) -> Vec<usize> {
        if self.places.len() > 1 && of_one_command(fault) {
            let middle = self.places.len() / 2;
            for half in [middle..self.places.len(), 0..middle] {
                parts.push(Part {
                    places: self.places[half.clone()].to_vec(),
                    commands: self.commands[half].into(),
                    remembers: self.remembers,
                });
            }
            return Vec::new();
        }
        let unwritable = matches!(fault, Fault::Store(error) if error.is_unwritable());
        // Without anybody's writes it was the lock itself that was refused.
        if !unwritable || writes.len() != self.places.len() {
            return self.places;
        }
        let stays = |writes: &Writes| *writes != Writes::Rows;
        let readers = writes.iter().filter(|writes| stays(writes)).count();
        if readers == 0 || (readers == self.places.len() && !self.remembers) {
            return self.places;
        }
        let all = self
            .places
            .into_iter()
            .zip(self.commands.iter().cloned())
            .zip(writes);
        let (readers, writers): (Vec<_>, Vec<_>) = all.partition(|(_, writes)| stays(writes));
        let (places, commands): (Vec<_>, Vec<_>) = readers.into_iter().map(|(reader, _)| reader).unzip();
        parts.push(Part {
            places,
            commands: commands.into(),
            remembers: false,
        });
        writers.into_iter().map(|((place, _), _)| place).collect()
    }
}

/// What a command's decision writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    Nothing,
    /// Only that the ledger has acted on an instant.
    Clock,
    Rows,
}

impl Writes {
    fn of(state: &State, changes: &[Change]) -> Self {
        let clock = state.meta.clock;
        let of_the_clock = |change: &Change| match change {
            Change::Meta(meta) => {
                Meta {
                    clock,
                    ..meta.clone()
                } == state.meta
            }
            _ => false,
        };
        match changes {
            [] => Writes::Nothing,
            changes if changes.iter().all(of_the_clock) => Writes::Clock,
            _ => Writes::Rows,
        }
    }
}

/// Whether a transaction failed by what one of its commands touched, and certainly left nothing.
fn of_one_command(fault: &Fault) -> bool {
    match fault {
        Fault::Corrupt { .. } | Fault::Defect(_) | Fault::Revision => true,
        Fault::Outdated { .. } => false,
        Fault::Store(error) => matches!(error, StoreError::Row { .. } | StoreError::Constraint(_)),
    }
}

/// Load, decide one after the other, write. `memory` is what this process had seen before the transaction began, and
/// where it keeps what it sees.
async fn transact(
    tx: &mut Tx,
    own: &Own,
    (seen, latest): (Option<(u64, Timestamp)>, &Latest),
    commands: &[Command],
    remembers: bool,
    writes: &Mutex<Vec<Writes>>,
) -> Result<Vec<Outcome>, Fault> {
    let mut snapshot = load(tx, own, commands).await?;
    let meta = &snapshot.state.meta;
    let (clock, epoch) = (tx.began(), meta.epoch);
    let shared = clock.max(meta.clock);
    latest.at(epoch, shared);
    let seen = since(seen, epoch, shared);
    let mut dirty = Dirty::default();
    let mut outcomes = Vec::with_capacity(commands.len());
    let mut each = Vec::with_capacity(commands.len());
    for command in commands {
        // Behind a rebase what was seen before it counts for nothing, and is forgotten once that is committed.
        let rebased = snapshot.state.meta.epoch != epoch;
        let seen = if rebased { clock } else { seen };
        let mut decision = decide(&snapshot.state, command, Reading { clock, seen })?;
        let kind = Writes::of(&snapshot.state, &decision.changes);
        each.push(kind);
        if kind == Writes::Clock && !remembers {
            decision.changes.clear();
        }
        dirty.note(&snapshot.state, &decision.changes)?;
        snapshot.state.apply(&decision.changes);
        outcomes.push(decision.outcome);
    }
    *writes.lock().unwrap_or_else(PoisonError::into_inner) = each;
    write(tx, &snapshot, &dirty).await?;
    Ok(outcomes)
}

/// Whoever serves the line hands it back, even by a panic; those who waited then learn that there is no
/// answer, and the next request is served by a new task.
struct Turn {
    queue: Arc<Queue>,
    done: bool,
}

impl Turn {
    async fn serve(mut self) {
        while let Some(group) = self.queue.next_group() {
            let answered = group.len();
            self.queue.run(group).await;
            self.queue.gather(answered).await;
        }
        self.done = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.done {
            let mut line = self.queue.lock();
            line.served = false;
            line.commands = 0;
            line.waiting.clear();
        }
    }
}
