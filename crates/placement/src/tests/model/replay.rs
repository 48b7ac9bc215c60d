//! What the model found, done again by the real thing.

use std::sync::Arc;

use ether_store::{Sql, StoreError, Value};
use ether_testkit::postgres::Server;

use crate::command::Command;
use crate::ledger::Ledger;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::tests::model::broken::Broken;
use crate::tests::model::explore::Found;
use crate::tests::model::soak;
use crate::tests::model::system::{Bounds, Step, System};
use crate::tests::world::{LONG, Place, START, World, boot, node, options, session};

/// The model is only worth what the real thing shares with it: the same steps on PostgreSQL give the same
/// answers, one by one and grouped into transactions.
pub(super) async fn replay_on(server: &Arc<Server>, bounds: &Bounds, found: &Found) {
    let wanted = if soak() { 1_500 } else { 60 };
    let mut stage = Stage::set(&Place::Postgres(Arc::clone(server)), bounds).await;
    // The states that were found last have the longest traces.
    let states = (found.states / 2..found.states).step_by((found.states / 2 / wanted).max(1));
    for (number, state) in states.enumerate() {
        stage
            .replay(bounds, &found.trace(state), number % 2 == 1, number)
            .await;
    }
    println!("{:?}", stage.played);
    stage.world.audit().await;
    let played = &stage.played;
    assert!(played.traces >= wanted.min(found.states / 2) && played.asked > played.traces);
    assert_eq!(bounds.also.has_glimpses(), played.glimpses > 0);
    assert_eq!(bounds.also.has_restarts(), played.restarts > 0);
}

/// What was replayed.
#[derive(Debug, Default)]
struct Played {
    traces: usize,
    asked: usize,
    glimpses: usize,
    restarts: usize,
}

/// A real ledger, and the coordinators that ask it.
struct Stage {
    world: World,
    /// The coordinator after its restart with the room that the ceiling gives, or a process that has seen a later
    /// clock.
    other: Ledger,
    /// Whether the first coordinator has been restarted.
    restarted: bool,
    /// What waits for its transaction, and what the model answered.
    waiting: (Vec<Command>, Vec<Outcome>),
    played: Played,
}

impl Stage {
    /// A database for the traces of one exploration.
    async fn set(place: &Place, bounds: &Bounds) -> Stage {
        let mut system = System::new(bounds.also, bounds.shared);
        let first = as_in(&system, options());
        if bounds.also.has_restarts() {
            system.step(&Step::Reconfigure, Broken::Nothing).unwrap();
        }
        let mut other = as_in(&system, options());
        other.node = node("other");
        other.boot = boot("o1");
        let world = World::with(place, first).await;
        let (other, _) = world.join(other).await.unwrap();
        Stage {
            world,
            other,
            restarted: false,
            waiting: Default::default(),
            played: Played::default(),
        }
    }

    /// The steps of `trace`, each after something that changes nothing: what was found by steps that did change
    /// something has to be told from what is refused, repeated or looked at as well.
    async fn replay(&mut self, bounds: &Bounds, trace: &[Step], grouped: bool, number: usize) {
        let mut system = System::new(bounds.also, bounds.shared);
        let reservations = System::reservations(bounds);
        self.restarted = false;
        self.empty(&system).await;
        self.world.set_clock(START).await;
        self.world.ledger.forget_clock();
        let preparation = System::preparation(bounds.shared);
        self.world.ledger.commands(preparation).await.unwrap();
        self.played.traces += 1;
        for (at, step) in trace.iter().enumerate() {
            let enabled = system.enabled(bounds, &reservations);
            let idle: Vec<&Step> = enabled.iter().filter(|step| is_idle(&system, step)).collect();
            if let Some(idle) = idle.get((number + 7 * at) % idle.len().max(1)) {
                self.take(&mut system, idle, grouped, trace).await;
            }
            self.take(&mut system, step, grouped, trace).await;
        }
        self.flush(trace).await;
    }

    /// One step, in the model and in reality.
    async fn take(&mut self, system: &mut System, step: &Step, grouped: bool, trace: &[Step]) {
        let outcome = system.step(step, Broken::Nothing).unwrap();
        match (step, outcome) {
            (Step::Ask(command), Some(outcome)) => {
                self.waiting.0.push((**command).clone());
                self.waiting.1.push(outcome);
                self.played.asked += 1;
                if !grouped {
                    self.flush(trace).await;
                }
            }
            (Step::Glimpse(command), Some(outcome)) => {
                self.flush(trace).await;
                self.glimpse(system).await;
                let answer = self.other.commands(vec![(**command).clone()]).await.unwrap();
                assert_eq!(answer, [outcome], "{trace:#?}");
                self.played.glimpses += 1;
            }
            (Step::Tick | Step::Back, _) => {
                self.flush(trace).await;
                self.world.set_clock(clock(system.clock)).await;
            }
            (Step::Reconfigure, _) => {
                self.flush(trace).await;
                self.restarted = true;
                self.played.restarts += 1;
            }
            _ => {}
        }
    }

    /// Lets the other process see the latest clock there was, by a look without the lock.
    async fn glimpse(&self, system: &System) {
        self.world.set_clock(clock(system.highest)).await;
        self.other.forget_clock();
        self.other.lookup_many(&[session(0)]).await.unwrap();
        self.world.set_clock(clock(system.clock)).await;
    }

    async fn flush(&mut self, trace: &[Step]) {
        let (commands, expected) = std::mem::take(&mut self.waiting);
        if commands.is_empty() {
            return;
        }
        let ledger = match self.restarted {
            true => &self.other,
            false => &self.world.ledger,
        };
        // The model knows the clock that the database remembers, and not the one that a process does.
        ledger.forget_clock();
        let outcomes = ledger.commands(commands).await.unwrap();
        assert_eq!(outcomes, expected, "{trace:#?}");
    }

    /// Empties the ledger between traces, under its own lock, and gives it the ceiling that `system` begins with.
    async fn empty(&self, system: &System) {
        let ceiling = system.ledger.meta.ceiling;
        let ceiling = ceiling.map(|ceiling| i64::try_from(ceiling.get()).unwrap());
        let emptied = self
            .world
            .ledger
            .tables()
            .write::<_, StoreError, _>(LONG, move |tx| {
                Box::pin(async move {
                    for table in ["sessions", "claims", "pools", "targets", "evidence"] {
                        let sql = Sql::generated(format!("DELETE FROM placement_{table}"));
                        tx.execute(sql, &[]).await?;
                    }
                    let sql = "UPDATE placement_meta SET total = 0, retired = 0, clock = 0, epoch = 0, ceiling = $1";
                    tx.execute(sql, &[Value::from(ceiling)]).await
                })
            });
        emptied.await.unwrap();
    }
}

/// `options` as far as the coordinator of the model has them.
fn as_in(system: &System, options: Options) -> Options {
    let own = &system.ledger.own;
    Options {
        cluster: own.cluster.clone(),
        quota: crate::Quota::new(own.published.quota).unwrap(),
        maximum_lease: own.published.maximum_lease,
        clock_skew: own.published.clock_skew,
        ..options
    }
}

/// Whether `step` is something that is asked and changes nothing.
fn is_idle(system: &System, step: &Step) -> bool {
    match step {
        Step::Ask(asked) => system.leaves_as_is(asked) == Ok(true),
        Step::Glimpse(_) => {
            let mut after = system.clone();
            after.step(step, Broken::Nothing).unwrap();
            after.fingerprint() == system.fingerprint()
        }
        _ => false,
    }
}

/// The database's clock after so many steps of the model's.
fn clock(steps: u8) -> i64 {
    START + 1_000_000 * i64::from(steps)
}
