//! The task that owns one playback's state machine and does what it says.
//!
//! It owns every execution it started until the end of each is proved, and every charge until it was given
//! back. It returns only when nothing is left, or, once told to hurry, with what could not be proved.

use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{BoxFuture, Encoder, Execution, Start, Started};
use ether_types::{Clock, Monotonic};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{Command, Playback, Refused, TurnedAway};
use crate::lifecycle::{Act, EndReason, Event, Lifecycle};
use crate::plan::Making;
use crate::ports::{Ask, Capacity, CapacityRefusal, Charge, NeverStarted, Proof};
use crate::works::{Place, Ticket, Work, Works};

/// Waits between two attempts to prove an end or to give capacity back.
const RETRY: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
];

/// How long an encoder may take to end before its charge counts as stranded.
const PROMPT: Duration = Duration::from_secs(5);

type Waiter = oneshot::Sender<Result<Arc<dyn Execution>, TurnedAway>>;

/// What is left when a playback's task returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskReport {
    /// Executions whose end was not proved; their charges stay.
    pub(crate) unproved: u32,
}

pub(crate) struct Task {
    pub(crate) playback: Arc<Playback>,
    pub(crate) commands: mpsc::Receiver<Command>,
    pub(crate) life: Lifecycle,
    pub(crate) encoder: Arc<dyn Encoder>,
    pub(crate) capacity: Arc<dyn Capacity>,
    pub(crate) works: Arc<Works>,
    pub(crate) clock: Arc<dyn Clock>,
    /// How long a playback may wait in the queue for capacity.
    pub(crate) queue: Duration,
    /// Told when the server gives up waiting for proofs.
    pub(crate) hurry: CancellationToken,
}

/// What a charge was settled for.
enum Settled {
    /// The execution on it was proved ended.
    Retired,
    /// Nothing had been started on it.
    Unused,
}

/// What waiting for an execution brought.
enum Got {
    /// Others watch the same near by.
    Shared(Arc<Work>),
    /// Capacity to begin one.
    Own(Charge, Ticket),
}

/// How long a playback that was refused keeps its place before newcomers.
const SENIORITY: Duration = Duration::from_secs(30);

/// Since when capacity is wanted that is not had yet.
#[derive(Default)]
struct Wanted {
    since: Option<Monotonic>,
    refused_at: Option<Monotonic>,
}

impl Wanted {
    /// Since when, asking at `now`: a viewer who gave up in between is a newcomer.
    fn since(&mut self, now: Monotonic) -> Monotonic {
        let stale = self
            .refused_at
            .is_some_and(|at| now.saturating_since(at) > SENIORITY);
        if stale {
            self.since = None;
        }
        *self.since.get_or_insert(now)
    }
}

/// What the task holds besides the state machine.
struct Held {
    waiters: Vec<Waiter>,
    sealing: Vec<oneshot::Sender<()>>,
    queued: Option<BoxFuture<'static, Result<Got, CapacityRefusal>>>,
    starting: Option<BoxFuture<'static, Started>>,
    /// What an execution is to be begun on.
    charge: Option<(Charge, Ticket)>,
    /// The execution of others that was found.
    found: Option<Arc<Work>>,
    live: Option<Arc<Work>>,
    settling: JoinSet<Settled>,
    wanted: Wanted,
    turned_away: Option<TurnedAway>,
}

impl Task {
    pub(crate) async fn run(mut self) -> TaskReport {
        let mut held = Held {
            waiters: Vec::new(),
            sealing: Vec::new(),
            queued: None,
            starting: None,
            charge: None,
            found: None,
            live: None,
            settling: JoinSet::new(),
            wanted: Wanted::default(),
            turned_away: None,
        };
        let hurry = self.hurry.clone();
        while !(self.life.done() && held.settling.is_empty()) {
            let event = tokio::select! {
                biased;
                () = hurry.cancelled() => break,
                event = self.next(&mut held) => event,
            };
            if let Some(event) = event {
                self.apply(event, &mut held);
            }
            self.publish(&held);
        }
        self.leave(held).await
    }

    /// The next thing that happens. Cancel-safe: whatever was begun stays in `held`.
    async fn next(&mut self, held: &mut Held) -> Option<Event> {
        let playback = Arc::clone(&self.playback);
        if self.life.sealed().is_none()
            && let Some(reason) = playback.activity.take_seal()
        {
            return Some(Event::Seal(reason));
        }
        let now = self.clock.monotonic();
        let idle_since = playback.activity.idle_since();
        let deadline = self.life.deadline(idle_since);
        if deadline.is_some_and(|at| at <= now) {
            return Some(Event::Tick { idle_since });
        }
        let alarm = deadline.map(|at| self.clock.sleep(at.saturating_since(now)));
        tokio::select! {
            biased;
            charge = pending(&mut held.queued) => Some(self.answered(charge, held)),
            started = pending(&mut held.starting) => Some(self.started(started, held)),
            Some(settled) = held.settling.join_next() => match settled {
                Ok(Settled::Unused) => None,
                // A retirement that panicked proves nothing, and never comes: its charge stays, and the
                // successor goes on without it after a while.
                Err(_) => None,
                Ok(Settled::Retired) => {
                    let mut shared = playback.shared();
                    shared.unproved = shared.unproved.saturating_sub(1);
                    Some(Event::Proved)
                }
            },
            command = self.commands.recv() => match command {
                Some(command) => self.command(command, held),
                // Every handle is gone, so nobody can ask for anything any more.
                None => Some(Event::Seal(EndReason::Displaced)),
            },
            () = playback.activity.changed.notified() => None,
            () = sleep(alarm) => None,
        }
    }

    fn command(&mut self, command: Command, held: &mut Held) -> Option<Event> {
        match command {
            Command::Want(waiter) => {
                held.waiters.push(waiter);
                Some(Event::Want)
            }
            Command::Lost(execution) => {
                let ours = held
                    .live
                    .as_ref()
                    .is_some_and(|live| Arc::ptr_eq(&live.execution, &execution));
                ours.then_some(Event::Lost)
            }
            Command::Broken(execution) => {
                if let Some(live) = held
                    .live
                    .as_ref()
                    .filter(|live| Arc::ptr_eq(&live.execution, &execution))
                {
                    self.works.spoil(live);
                    return Some(Event::Lost);
                }
                None
            }
            Command::Viewer(viewer) => {
                self.life.set_viewer(viewer);
                self.playback.shared().viewer = viewer;
                None
            }
            Command::Seal(reason, answer) => {
                held.sealing.extend(answer);
                Some(Event::Seal(reason))
            }
        }
    }

    fn answered(&self, got: Result<Got, CapacityRefusal>, held: &mut Held) -> Event {
        held.queued = None;
        match got {
            Ok(got) => {
                held.wanted = Wanted::default();
                match got {
                    Got::Shared(work) => held.found = Some(work),
                    Got::Own(charge, ticket) => held.charge = Some((charge, ticket)),
                }
                held.waiters.retain(|waiter| !waiter.is_closed());
                Event::Reserved {
                    wanted: !held.waiters.is_empty(),
                }
            }
            Err(refusal) => {
                self.playback.note(Refused::capacity(self.clock.now(), &refusal));
                held.wanted.refused_at = Some(self.clock.monotonic());
                held.turned_away = Some(TurnedAway::Capacity(refusal));
                Event::Refused
            }
        }
    }

    fn started(&self, started: Started, held: &mut Held) -> Event {
        held.starting = None;
        let usable = match started.outcome {
            Ok(()) => true,
            Err(error) => {
                self.playback.note(Refused::start(self.clock.now(), &error));
                held.turned_away = Some(TurnedAway::Start(error));
                false
            }
        };
        if let Some(work) = held.found.take() {
            held.live = Some(work);
        } else if let Some((charge, ticket)) = held.charge.take() {
            let work = Work::new(started.execution, charge);
            if usable {
                ticket.publish(&work);
            }
            held.live = Some(work);
        }
        Event::Started { usable }
    }

    fn apply(&mut self, event: Event, held: &mut Held) {
        let Some((making, _)) = self.playback.making() else {
            // Nothing is ever made for a file that is handed over; its playback only ends.
            self.life.on(event, self.clock.monotonic());
            self.turn_away(held);
            return;
        };
        for act in self.life.on(event, self.clock.monotonic()) {
            match act {
                Act::Reserve => self.reserve(&making, held),
                Act::Withdraw => held.queued = None,
                Act::Start => self.start(&making, held),
                Act::GiveBack => {
                    if let Some(work) = held.found.take() {
                        self.leave_work(work, Settled::Unused, held);
                    }
                    if let Some((charge, _ticket)) = held.charge.take() {
                        let proof = Proof::NeverStarted(NeverStarted::attest());
                        let (capacity, clock) = (Arc::clone(&self.capacity), Arc::clone(&self.clock));
                        held.settling.spawn(async move {
                            give_back(capacity, clock, charge, proof).await;
                            Settled::Unused
                        });
                    }
                }
                Act::Serve => {
                    if let Some(live) = &held.live {
                        for waiter in held.waiters.drain(..) {
                            let _ = waiter.send(Ok(Arc::clone(&live.execution)));
                        }
                    }
                }
                Act::TurnAway => self.turn_away(held),
                Act::Retire => self.retire(held),
            }
        }
    }

    fn reserve(&self, making: &Making, held: &mut Held) {
        let now = self.clock.monotonic();
        let ask = Ask {
            playback: self.playback.id.clone(),
            units: making.units,
            since: held.wanted.since(now),
            until: now.saturating_add(self.queue),
        };
        let (capacity, works) = (Arc::clone(&self.capacity), Arc::clone(&self.works));
        let clock = Arc::clone(&self.clock);
        let identity = self.playback.making().and_then(|(_, identity)| identity);
        let wanted = self.playback.wanted(making);
        held.queued = Some(Box::pin(async move {
            match works.place(identity, wanted, &*clock, ask.until).await {
                Place::Shared(work) => Ok(Got::Shared(work)),
                Place::Own(ticket) => Ok(Got::Own(capacity.reserve(ask).await?, ticket)),
            }
        }));
    }

    fn start(&self, making: &Making, held: &mut Held) {
        if let Some(work) = &held.found {
            let started = Started {
                execution: Arc::clone(&work.execution),
                outcome: Ok(()),
            };
            held.starting = Some(Box::pin(std::future::ready(started)));
            return;
        }
        let booked = held
            .charge
            .as_ref()
            .map_or(0, |(charge, _)| charge.units.scratch_mib);
        let start = Start {
            request: Arc::clone(&making.request),
            input: making.input.clone(),
            scratch: u64::from(booked) << 20,
            first: making.first,
        };
        let encoder = Arc::clone(&self.encoder);
        held.starting = Some(Box::pin(async move { encoder.start(start).await }));
    }

    fn retire(&self, held: &mut Held) {
        let Some(work) = held.live.take() else {
            debug_assert!(false, "what is retired was live");
            return;
        };
        {
            // Sampled outside the lock: it is the encoder's own code.
            let sample = work.execution.observe();
            let mut shared = self.playback.shared();
            shared.work = None;
            shared.last = Some(sample);
            shared.unproved += 1;
        }
        self.leave_work(work, Settled::Retired, held);
    }

    /// Leaves `work` to those who still watch it, or retires it as the last who did.
    fn leave_work(&self, work: Arc<Work>, settled: Settled, held: &mut Held) {
        if !self.works.leave(&work) {
            held.settling.spawn(std::future::ready(settled));
            return;
        }
        let Some(charge) = work.take_charge() else {
            debug_assert!(false, "the last viewer has the charge");
            return;
        };
        let (capacity, clock) = (Arc::clone(&self.capacity), Arc::clone(&self.clock));
        let playback = Arc::clone(&self.playback);
        held.settling.spawn(async move {
            let proof = prove(&*work.execution, &*clock, &*capacity, &charge).await;
            // Only now has it said its last words.
            let last = work.execution.observe();
            playback.shared().last = Some(last);
            give_back(capacity, clock, charge, proof).await;
            settled
        });
    }

    fn turn_away(&self, held: &mut Held) {
        let why = match self.life.sealed() {
            Some(reason) => TurnedAway::Sealed(reason),
            None => match held.turned_away.take() {
                Some(why) => why,
                None => TurnedAway::Capacity(CapacityRefusal::Unavailable),
            },
        };
        for waiter in held.waiters.drain(..) {
            let _ = waiter.send(Err(why.clone()));
        }
    }

    fn publish(&self, held: &Held) {
        let begun = held.charge.as_ref().map(|(charge, _)| charge.units);
        let units = held.live.as_ref().or(held.found.as_ref()).map(|work| work.units);
        let mut shared = self.playback.shared();
        shared.slot = Some(self.life.slot());
        shared.charged = units.or(begun).unwrap_or_default();
        if let Some(reason) = self.life.sealed() {
            shared.sealed.get_or_insert(reason);
        }
        shared.work = match self.life.sealed() {
            None if self.life.slot() == crate::lifecycle::Slot::Live => held.live.clone(),
            _ => None,
        };
    }

    /// Nothing is left, or the server waits no longer: then what is still unproved is said, and its charges
    /// stay with whoever keeps the book.
    async fn leave(mut self, mut held: Held) -> TaskReport {
        self.commands.close();
        self.turn_away(&mut held);
        // A start that is dropped before it answered created nothing.
        let unproved = self.playback.shared().unproved + u32::from(held.live.is_some());
        held.settling.shutdown().await;
        for answer in held.sealing.drain(..) {
            let _ = answer.send(());
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Seal(_, Some(answer)) => {
                    let _ = answer.send(());
                }
                Command::Want(waiter) => {
                    let why = TurnedAway::Sealed(self.life.sealed().unwrap_or(EndReason::Shutdown));
                    let _ = waiter.send(Err(why));
                }
                _ => {}
            }
        }
        TaskReport { unproved }
    }
}

/// Asks for the execution's end until it is proved. One that takes long leaves its charge stranded.
async fn prove(
    execution: &dyn Execution,
    clock: &dyn Clock,
    capacity: &dyn Capacity,
    charge: &Charge,
) -> Proof {
    let asking = async {
        let mut attempt = 0;
        loop {
            match execution.retire().await {
                Ok(retirement) => return Proof::Retired(retirement),
                Err(error) => {
                    tracing::warn!(%error, attempt, "an encoder's end is not proved; its charge stays")
                }
            }
            clock.sleep(RETRY[attempt.min(RETRY.len() - 1)]).await;
            attempt += 1;
        }
    };
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        biased;
        proof = &mut asking => return proof,
        () = clock.sleep(PROMPT) => capacity.strand(charge),
    }
    asking.await
}

/// Gives a charge back until that is known to have worked.
async fn give_back(capacity: Arc<dyn Capacity>, clock: Arc<dyn Clock>, charge: Charge, proof: Proof) {
    let mut attempt = 0;
    while let Err(error) = capacity.release(&charge, &proof).await {
        tracing::warn!(%error, attempt, "capacity was not given back; trying again");
        clock.sleep(RETRY[attempt.min(RETRY.len() - 1)]).await;
        attempt += 1;
    }
}

async fn pending<T>(future: &mut Option<BoxFuture<'static, T>>) -> T {
    match future {
        Some(future) => future.as_mut().await,
        None => std::future::pending().await,
    }
}

async fn sleep(alarm: Option<ether_types::clock::Sleep>) {
    match alarm {
        Some(alarm) => alarm.await,
        None => std::future::pending().await,
    }
}
