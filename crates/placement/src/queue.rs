//! Grouping: the requests that wait share one transaction, one lock and one flush to disk.
//!
//! There is no task while nobody waits (P1). The first request starts one; it takes what has gathered, runs
//! it, answers, and looks again, until nothing is left. Whoever arrives meanwhile is in the next group. The
//! task owns every connection it uses, so that a caller can be cancelled at any point: a request that is not
//! under way yet is then dropped, one that is under way ends without being told.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ether_store::{Bound, Tables, Tx};
use tokio::sync::oneshot;

use crate::command::Command;
use crate::decide::decide;
use crate::outcome::Outcome;
use crate::sql::Fault;
use crate::sql::load::load;
use crate::sql::write::{Dirty, write};
use crate::state::Own;

/// Requests that may wait at once.
const LINE: usize = 4_096;
/// Commands in one transaction. It bounds how long one group holds the lock.
const GROUP: usize = 1_024;

/// Turns that everybody else gets before the next group is closed.
const GATHER: u32 = 16;

/// What a group's failure means to each of its requests.
pub(crate) type Answer = Result<Vec<Outcome>, Arc<Fault>>;

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
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<Waiting>,
    served: bool,
}

impl Queue {
    pub(crate) fn new(tables: Tables, own: Own, bound: Bound) -> Arc<Self> {
        Arc::new(Self {
            tables,
            own: Arc::new(own),
            bound,
            line: Mutex::new(Line::default()),
        })
    }

    pub(crate) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Puts `commands` in the line as one request; they are decided in order in one transaction.
    pub(crate) fn submit(
        self: &Arc<Self>,
        commands: Vec<Command>,
    ) -> Result<oneshot::Receiver<Answer>, Full> {
        let (reply, answer) = oneshot::channel();
        let serve = {
            let mut line = self.lock();
            if line.waiting.len() >= LINE {
                return Err(Full);
            }
            line.waiting.push_back(Waiting { commands, reply });
            !std::mem::replace(&mut line.served, true)
        };
        if serve {
            tokio::spawn(Arc::clone(self).serve());
        }
        Ok(answer)
    }

    async fn serve(self: Arc<Self>) {
        let mut turn = Turn {
            queue: &self,
            done: false,
        };
        while let Some(group) = self.next_group() {
            let answered = group.len();
            self.run(group).await;
            self.gather(answered).await;
        }
        turn.done = true;
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
        let own = Arc::clone(&self.own);
        let outcome = self
            .tables
            .write(self.bound, move |tx| {
                Box::pin(async move { transact(tx, &own, &commands).await })
            })
            .await;
        match outcome {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for (waiting, size) in group.into_iter().zip(sizes) {
                    // A caller that has gone does not want its answer.
                    let _ = waiting.reply.send(Ok(outcomes.by_ref().take(size).collect()));
                }
            }
            Err(fault) => {
                let fault = Arc::new(fault);
                for waiting in group {
                    let _ = waiting.reply.send(Err(Arc::clone(&fault)));
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Load, decide one after the other, write.
async fn transact(tx: &mut Tx, own: &Own, commands: &[Command]) -> Result<Vec<Outcome>, Fault> {
    let now = tx.began();
    let mut state = load(tx, own, commands).await?;
    let mut dirty = Dirty::default();
    let mut outcomes = Vec::with_capacity(commands.len());
    for command in commands {
        let decision = decide(&state, command, now)?;
        dirty.note(&state, &decision.changes)?;
        state.apply(&decision.changes);
        outcomes.push(decision.outcome);
    }
    write(tx, &state, &dirty).await?;
    Ok(outcomes)
}

/// Whoever serves the line hands it back, even by a panic; those who waited then learn that there is no
/// answer, and the next request is served by a new task.
struct Turn<'q> {
    queue: &'q Queue,
    done: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.done {
            let mut line = self.queue.lock();
            line.served = false;
            line.waiting.clear();
        }
    }
}
