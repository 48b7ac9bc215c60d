//! Grouping: the requests that wait share one transaction, one lock and one flush to disk.
//!
//! There is no task while nobody waits (P1). The first request starts one; it takes what has gathered, runs
//! it, answers, and looks again, until nothing is left. Whoever arrives meanwhile is in the next group. The
//! task owns every connection it uses, so that a caller can be cancelled at any point: a request that is not
//! under way yet is then dropped, one that is under way ends without being told.
//!
//! Sharing a transaction must not mean sharing another's fault. Where a group fails by what one of its commands
//! touches, a row that the ledger cannot have written for one, it is halved until that command stands alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_store::{Bound, Deadline, StoreError, Tables, Tx};
use ether_types::Timestamp;
use tokio::sync::oneshot;

use crate::command::Command;
use crate::decide::decide;
use crate::outcome::Outcome;
use crate::sql::Fault;
use crate::sql::load::load;
use crate::sql::write::{Dirty, write};
use crate::state::Own;

/// Commands that may wait at once.
const LINE: usize = 8_192;
/// Commands in one transaction. It bounds how long one group holds the lock.
const GROUP: usize = 1_024;

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
    pub(crate) latest: Arc<Latest>,
}

/// The latest instant that this process has judged anything at.
#[derive(Debug, Default)]
pub(crate) struct Latest(AtomicI64);

impl Latest {
    /// `read`, or the latest instant before it where the clock was stepped back meanwhile.
    pub(crate) fn at(&self, read: Timestamp) -> Timestamp {
        let before = self.0.fetch_max(read.as_micros(), Ordering::SeqCst);
        Timestamp::from_micros(before.max(read.as_micros()))
    }

    #[cfg(test)]
    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    /// Commands of all that wait.
    commands: usize,
    served: bool,
}

impl Queue {
    pub(crate) fn new(tables: Tables, own: Own, bound: Bound) -> Arc<Self> {
        Arc::new(Self {
            tables,
            own: Arc::new(own),
            bound,
            line: Mutex::new(Line::default()),
            latest: Arc::default(),
        })
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
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
        let mut line = self.lock();
        let mut group = Vec::new();
        let mut commands = 0;
        while let Some(next) = line.waiting.front() {
            if !group.is_empty() && commands + next.commands.len() > GROUP {
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
        let mut answers = Vec::with_capacity(commands.len());
        // What is still to be tried, the first commands last.
        let mut parts = vec![Arc::<[Command]>::from(commands)];
        while let Some(part) = parts.pop() {
            match self.transaction(Arc::clone(&part), &deadline).await {
                Ok(outcomes) => answers.extend(outcomes.into_iter().map(Ok)),
                Err(fault) if part.len() > 1 && of_one_command(&fault) && !deadline.left().is_zero() => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([Arc::from(second), Arc::from(first)]);
                }
                Err(fault) => {
                    let fault = Arc::new(fault);
                    answers.extend(std::iter::repeat_n(Err(fault), part.len()));
                }
            }
        }
        answers
    }

    async fn transaction(
        &self,
        commands: Arc<[Command]>,
        deadline: &Deadline,
    ) -> Result<Vec<Outcome>, Fault> {
        let own = Arc::clone(&self.own);
        let latest = Arc::clone(&self.latest);
        let bound = Bound {
            lock: self.bound.lock,
            total: deadline.left(),
        };
        self.tables
            .write(bound, move |tx| {
                Box::pin(async move { transact(tx, &own, &latest, &commands).await })
            })
            .await
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a transaction failed by what one of its commands touched, and certainly left nothing.
fn of_one_command(fault: &Fault) -> bool {
    match fault {
        Fault::Corrupt { .. } | Fault::Defect(_) | Fault::Revision => true,
        Fault::Store(error) => matches!(error, StoreError::Row { .. } | StoreError::Constraint(_)),
    }
}

/// Load, decide one after the other, write.
async fn transact(
    tx: &mut Tx,
    own: &Own,
    latest: &Latest,
    commands: &[Command],
) -> Result<Vec<Outcome>, Fault> {
    let mut snapshot = load(tx, own, commands).await?;
    let now = latest.at(tx.began().max(snapshot.state.meta.clock));
    let mut dirty = Dirty::default();
    let mut outcomes = Vec::with_capacity(commands.len());
    for command in commands {
        let decision = decide(&snapshot.state, command, now)?;
        dirty.note(&snapshot.state, &decision.changes)?;
        snapshot.state.apply(&decision.changes);
        outcomes.push(decision.outcome);
    }
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
