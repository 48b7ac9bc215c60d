//! The modelled system: the ledger's rows, the workers' processes, and the clock.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use ether_types::{Fence, Generation, OperationId, Role, SessionId, TargetId, Timestamp};

use crate::bounds::{Capacity, Claims, Lease, Quota, Units};
use crate::command::{Admission, Command, Reserve, ReserveRequest, SetPool, SetTarget};
use crate::decide::{Decision, Reading, decide, record};
use crate::outcome::{Authority, Outcome, PoolSet, Rebased, Renewed, Reserved, TargetSet};
use crate::sql::schema::SCHEMA;
use crate::state::{Change, Coordinator, Meta, Own, Revision, State};
use crate::tests::model::also::Also;
use crate::tests::model::broken::Broken;
use crate::tests::world::{START, boot, node, options, scope};

/// How far the exploration goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Steps of the clock, a second each; a lease has one.
    pub(super) ticks: u8,
    /// Generations of a session.
    pub(super) generations: u64,
    /// Whether the first worker may crash and come back.
    pub(super) crash: bool,
    /// What else may happen.
    pub(super) also: Also,
    /// Units of the scope that both workers need, each for one execution.
    pub(super) shared: u64,
    /// Whether deadlines are moved.
    pub(super) renewals: bool,
}

/// What became of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Execution {
    /// Its process may be alive, its worker's crash notwithstanding.
    Running,
    /// It is proved over, or was sealed before it began.
    Ended,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    /// The database's clock is stepped back.
    Back,
    /// The coordinator is started again with the room that the ceiling gives.
    Reconfigure,
    /// A request reaches the ledger.
    Ask(Box<Command>),
    /// A request reaches it by a process that has seen the latest clock there was.
    Glimpse(Box<Command>),
    /// The worker starts what the ledger shows as live.
    Start(Box<Fence>),
    /// The execution ends, or is sealed before it began.
    End(Box<Fence>),
    /// The first worker comes back under its next boot; what it ran may still run.
    Crash,
}

#[derive(Clone, Debug, Hash)]
pub(super) struct System {
    pub(super) ledger: State,
    pub(super) clock: u8,
    /// Steps that the clock has taken, forward and back.
    pub(super) moved: u8,
    /// The latest that the clock has been.
    pub(super) highest: u8,
    pub(super) also: Also,
    pub(super) worker_boot: u8,
    /// Every fence that was ever granted, by session and generation, with its first deadline.
    pub(super) granted: BTreeMap<(SessionId, Generation), (Fence, Timestamp)>,
    pub(super) executions: BTreeMap<(SessionId, Generation), Execution>,
    /// Fences whose authority was seen to end.
    pub(super) over: BTreeMap<(SessionId, Generation), ()>,
}

pub(super) fn key(fence: &Fence) -> (SessionId, Generation) {
    (fence.session.clone(), fence.generation)
}

impl System {
    pub(super) fn new(also: Also, shared: u64) -> Self {
        let options = options();
        let own = Own {
            cluster: options.cluster,
            node: options.node,
            published: Coordinator {
                boot: options.boot,
                schema: SCHEMA,
                quota: if also == Also::Ceiling {
                    1
                } else {
                    Quota::CEILING_DEFAULT
                },
                maximum_lease: Duration::from_secs(2),
                transaction_timeout: Duration::from_secs(1),
                lock_timeout: Duration::from_secs(1),
                verify_timeout: Duration::from_secs(1),
                clock_skew: also.skew(),
            },
            fleet: false,
        };
        let meta = Meta {
            cluster: Some(own.cluster.clone()),
            revision: 0,
            total: 0,
            retired: 0,
            ceiling: (also == Also::Ceiling).then_some(Quota::MIN),
            clock: Timestamp::from_micros(0),
            epoch: 0,
        };
        let mut ledger = State::new(own, meta);
        for name in ["w-slots", "x-slots", "lan"] {
            for role in Role::ALL {
                ledger.pools.set((scope(name), role), None);
            }
        }
        for target in ["w", "x"] {
            ledger.targets.set(TargetId::new(target).unwrap(), None);
        }
        for session in [SessionId::new(node("a"), 0), SessionId::new(node("b"), 0)] {
            ledger.evidence.set(session.clone(), None);
            ledger.sessions.set(session, None);
        }
        let mut system = Self {
            ledger,
            clock: 0,
            moved: 0,
            highest: 0,
            also,
            worker_boot: 1,
            granted: BTreeMap::new(),
            executions: BTreeMap::new(),
            over: BTreeMap::new(),
        };
        for command in Self::preparation(shared) {
            system
                .step(&Step::Ask(Box::new(command)), Broken::Nothing)
                .unwrap();
        }
        system
    }

    /// What an operator has set up before the first step: one slot on each worker, and some of a scope that both
    /// need.
    pub(super) fn preparation(shared: u64) -> Vec<Command> {
        vec![
            Self::pool("w-slots", 1, 0),
            Self::pool("x-slots", 1, 0),
            Self::pool("lan", shared, 0),
            Self::target("w", "w1", None),
            Self::target("x", "x1", None),
        ]
    }

    /// A pool's capacity, set by somebody who saw its `seen`th policy.
    pub(super) fn pool(name: &str, units: u64, seen: u64) -> Command {
        Command::SetPool(SetPool {
            scope: scope(name),
            role: Role::Transcode,
            capacity: Capacity::new(units).unwrap(),
            seen: Revision::new(seen),
        })
    }

    fn target(name: &str, incarnation: &str, seen: Option<&str>) -> Command {
        let scopes = vec![scope(&format!("{name}-slots")), scope("lan")];
        Command::SetTarget(SetTarget {
            target: TargetId::new(name).unwrap(),
            boot: boot(incarnation),
            expected: seen.map(boot),
            seen: Revision::new(u64::from(seen.is_some())),
            admission: Admission::new([(Role::Transcode, scopes)]).unwrap(),
        })
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(START + 1_000_000 * i64::from(self.clock))
    }

    /// The instant that anything is judged at.
    pub(super) fn seen(&self) -> Timestamp {
        self.now().max(self.ledger.meta.clock)
    }

    /// Every reservation that any boot of a controller could ever send.
    pub(super) fn reservations(bounds: &Bounds) -> Vec<Command> {
        let mut all = Vec::new();
        for (controller, incarnation) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
            for expected in 0..bounds.generations {
                for (target, target_boot) in [("w", "w1"), ("x", "x1"), ("w", "w2")] {
                    if target_boot == "w2" && !bounds.crash {
                        continue;
                    }
                    let claims = [scope(&format!("{target}-slots")), scope("lan")];
                    let claims = claims.map(|scope| (scope, Units::MIN));
                    let reserve = Reserve {
                        session: SessionId::new(node(controller), 0),
                        controller_node: node(controller),
                        controller_boot: boot(incarnation),
                        target: TargetId::new(target).unwrap(),
                        target_boot: boot(target_boot),
                        role: Role::Transcode,
                        operation: OperationId::new(format!("{incarnation}-{expected}-{target_boot}"))
                            .unwrap(),
                        expected: Generation::new(expected).unwrap(),
                        claims: Claims::new(claims).unwrap(),
                        lease: Lease::new(Duration::from_secs(1)).unwrap(),
                    };
                    all.push(Command::Reserve(ReserveRequest::new(reserve).unwrap()));
                }
            }
        }
        all
    }

    /// Every step that can come next.
    pub(super) fn enabled(&self, bounds: &Bounds, reservations: &[Command]) -> Vec<Step> {
        let ask = |command: &Command| Step::Ask(Box::new(command.clone()));
        let mut steps: Vec<Step> = reservations.iter().map(ask).collect();
        if self.moved < bounds.ticks {
            steps.push(Step::Tick);
        }
        self.also_enabled(&mut steps);
        if bounds.crash && self.worker_boot == 1 {
            steps.push(Step::Crash);
        }
        if self.worker_boot == 2 {
            steps.push(ask(&Self::target("w", "w2", Some("w1"))));
        }
        // The first boot's registration, delivered late.
        steps.push(ask(&Self::target("w", "w1", None)));
        for (at, (fence, _)) in &self.granted {
            // Whatever could be asked for at any time may arrive now.
            for second in 1..=i64::from(bounds.ticks) + 2 {
                if !bounds.renewals {
                    break;
                }
                let deadline = Timestamp::from_micros(START + 1_000_000 * second);
                let fence = fence.clone();
                steps.push(Step::Ask(Box::new(Command::Renew { fence, deadline })));
            }
            match self.executions.get(at) {
                Some(Execution::Ended) if self.also != Also::Evidence => {
                    let fence = fence.clone();
                    steps.push(Step::Ask(Box::new(Command::Retire { fence })));
                }
                Some(Execution::Ended) => {}
                Some(Execution::Running) => steps.push(Step::End(Box::new(fence.clone()))),
                None => {
                    steps.push(Step::End(Box::new(fence.clone())));
                    if self.may_start(fence) {
                        steps.push(Step::Start(Box::new(fence.clone())));
                    }
                }
            }
        }
        steps
    }

    /// A worker's own rule: its own boot, and authority that the ledger shows as live.
    fn may_start(&self, fence: &Fence) -> bool {
        let own = match fence.target.as_str() {
            "w" => fence.target_boot.as_str() == format!("w{}", self.worker_boot),
            _ => true,
        };
        let row = self.ledger.sessions.get(&fence.session).unwrap();
        own && row
            .is_some_and(|row| row.fence == *fence && record(row, self.seen()).authority == Authority::Live)
    }

    /// Takes one step; the error is the invariant that it broke.
    pub(super) fn step(&mut self, step: &Step, broken: Broken) -> Result<Option<Outcome>, String> {
        let mut answer = None;
        match step {
            Step::Tick => {
                self.clock += 1;
                self.moved += 1;
                self.highest = self.highest.max(self.clock);
            }
            Step::Back => {
                self.clock -= 1;
                self.moved += 1;
            }
            Step::Reconfigure => self.ledger.own.published.quota = 2,
            Step::Crash => self.worker_boot = 2,
            Step::Start(fence) => {
                self.executions.insert(key(fence), Execution::Running);
            }
            Step::End(fence) => {
                self.executions.insert(key(fence), Execution::Ended);
            }
            Step::Ask(command) => answer = Some(self.ask(command, self.now().into(), broken)?),
            Step::Glimpse(command) => {
                let reading = Reading {
                    clock: self.now(),
                    seen: Timestamp::from_micros(START + 1_000_000 * i64::from(self.highest)),
                };
                answer = Some(self.ask(command, reading, broken)?);
            }
        }
        self.check()?;
        Ok(answer)
    }

    fn ask(&mut self, command: &Command, reading: Reading, broken: Broken) -> Result<Outcome, String> {
        let now = self.now();
        let asked = command;
        let (ledger, command) = broken.before(&self.loaded(command), command, now);
        let mut decision = decide(&ledger, &command, reading).map_err(|defect| defect.to_string())?;
        broken.after(&self.ledger, &command, &mut decision);
        let mut next = ledger;
        next.apply(&decision.changes);
        next.own = self.ledger.own.clone();
        next.lasting = None;
        if broken == Broken::NoMemory {
            next.meta.clock = self.ledger.meta.clock;
        }
        if next.meta.ceiling.is_none() {
            next.meta.ceiling = self.ledger.meta.ceiling;
        }
        self.compare(&next)?;
        self.judge(&decision)?;
        self.unseen(asked, &decision)?;
        self.told(&command, &decision.outcome);
        if let Outcome::Reserve(Reserved::Granted(granted)) = &decision.outcome {
            let first = (granted.fence.clone(), granted.initial_deadline);
            self.granted.insert(key(&granted.fence), first);
        }
        self.ledger = next;
        Ok(decision.outcome)
    }

    /// Whether `command` leaves everything as it is, which most do; its answer is judged all the same.
    pub(super) fn leaves_as_is(&self, command: &Command) -> Result<bool, String> {
        let ledger = self.loaded(command);
        let decision = decide(&ledger, command, self.now().into()).map_err(|defect| defect.to_string())?;
        self.judge(&decision)?;
        Ok(decision.changes.iter().all(|change| self.of_the_clock(change)))
    }

    /// The ledger as it is read for `command`.
    fn loaded(&self, command: &Command) -> Cow<'_, State> {
        if !matches!(command, Command::Rebase { .. }) {
            return Cow::Borrowed(&self.ledger);
        }
        let mut ledger = self.ledger.clone();
        let unretired = ledger.sessions.present().filter(|(_, row)| !row.retired);
        let lasting = unretired.map(|(_, row)| (row.fence.clone(), row.deadline));
        let lasting = lasting.max_by_key(|(fence, deadline)| (*deadline, Reverse(fence.session.clone())));
        ledger.lasting = Some(lasting);
        Cow::Owned(ledger)
    }

    /// What nobody may set who has not seen what stands.
    fn unseen(&self, asked: &Command, decision: &Decision) -> Result<(), String> {
        if decision.changes.is_empty() {
            return Ok(());
        }
        let seen = match (asked, &decision.outcome) {
            (Command::SetPool(set), Outcome::SetPool(PoolSet::Set { .. })) => {
                let pool = self.ledger.pools.get(&(set.scope.clone(), set.role)).unwrap();
                pool.map_or(Revision::NONE, |pool| pool.revision) == set.seen
            }
            (Command::SetTarget(set), Outcome::SetTarget(TargetSet::Set { .. })) => {
                let target = self.ledger.targets.get(&set.target).unwrap();
                target.map_or(Revision::NONE, |target| target.revision) == set.seen
            }
            (Command::Rebase { epoch }, Outcome::Rebase(Rebased::Rebased { .. })) => {
                *epoch == self.ledger.meta.epoch
            }
            _ => true,
        };
        match seen {
            true => Ok(()),
            false => Err("something was set by somebody who had not seen what stood".to_owned()),
        }
    }

    /// Whether `change` only says how late it is, which matters where the clock may go back.
    pub(super) fn of_the_clock(&self, change: &Change) -> bool {
        let Change::Meta(meta) = change else { return false };
        let clock = self.ledger.meta.clock;
        let but_for_it = Meta {
            clock,
            ..meta.clone()
        } == self.ledger.meta;
        but_for_it && !self.also.steps_back()
    }

    /// Notes whose authority an answer told to be over.
    fn told(&mut self, command: &Command, outcome: &Outcome) {
        let over = match (command, outcome) {
            (_, Outcome::Lookup(Some(record))) if record.authority == Authority::Expired => {
                (&record.fence, record.deadline)
            }
            (Command::Renew { fence, .. }, Outcome::Renew(Renewed::Expired { deadline })) => {
                (fence, *deadline)
            }
            _ => return,
        };
        // An end that is told from further ahead than the skew is one process's own.
        let (fence, end) = over;
        if end.saturating_since(self.now().max(self.ledger.meta.clock)) <= self.also.skew() {
            self.over.insert(key(fence), ());
        }
    }

    /// Two independent hashes over everything that the future depends on.
    pub(super) fn fingerprint(&self) -> u128 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let (mut one, mut two) = (DefaultHasher::new(), DefaultHasher::new());
        1_u8.hash(&mut two);
        let hash = |hasher: &mut DefaultHasher| {
            self.clock.hash(hasher);
            self.worker_boot.hash(hasher);
            let meta = &self.ledger.meta;
            (
                meta.total,
                meta.retired,
                meta.ceiling,
                self.ledger.own.published.quota,
            )
                .hash(hasher);
            // While the clock only goes forward, how late it has been is how late it is.
            if self.also.steps_back() {
                (meta.clock, meta.epoch, self.moved, self.highest).hash(hasher);
            }
            for (key, kept) in self.ledger.evidence.present() {
                for piece in kept {
                    (key, &piece.author, piece.kind).hash(hasher);
                }
            }
            for (_, row) in self.ledger.sessions.present() {
                row.hash(hasher);
            }
            for (_, pool) in self.ledger.pools.present() {
                pool.hash(hasher);
            }
            for (key, target) in self.ledger.targets.present() {
                (key, &target.boot, target.revision).hash(hasher);
            }
            for (at, (fence, deadline)) in &self.granted {
                (at.1, &fence.operation, deadline).hash(hasher);
            }
            self.executions.hash(hasher);
            self.over.hash(hasher);
        };
        hash(&mut one);
        hash(&mut two);
        (u128::from(one.finish()) << 64) | u128::from(two.finish())
    }
}
