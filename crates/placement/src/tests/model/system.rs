//! The modelled system: the ledger's rows, the workers' processes, and the clock.

use std::collections::BTreeMap;
use std::time::Duration;

use ether_types::{Fence, Generation, OperationId, Role, SessionId, TargetId, Timestamp};

use crate::bounds::{Capacity, Claims, Lease, Quota, Units};
use crate::command::{Admission, Command, Expected, Reserve, ReserveRequest, SetPool, SetTarget};
use crate::decide::{Decision, decide, record};
use crate::outcome::{Authority, Outcome, Renewed, Reserved};
use crate::state::{Coordinator, Meta, Own, State};
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
    /// A request reaches the ledger.
    Ask(Box<Command>),
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
    worker_boot: u8,
    /// Every fence that was ever granted, by session and generation, with its first deadline.
    granted: BTreeMap<(SessionId, Generation), (Fence, Timestamp)>,
    executions: BTreeMap<(SessionId, Generation), Execution>,
    /// Fences whose authority was seen to end.
    over: BTreeMap<(SessionId, Generation), ()>,
}

fn key(fence: &Fence) -> (SessionId, Generation) {
    (fence.session.clone(), fence.generation)
}

impl System {
    pub(super) fn new() -> Self {
        let options = options();
        let own = Own {
            cluster: options.cluster,
            node: options.node,
            published: Coordinator {
                boot: options.boot,
                schema: 3,
                quota: Quota::CEILING_DEFAULT,
                maximum_lease: Duration::from_secs(1),
                transaction_timeout: Duration::from_secs(1),
                lock_timeout: Duration::from_secs(1),
            },
            fleet: false,
        };
        let meta = Meta {
            cluster: Some(own.cluster.clone()),
            revision: 0,
            total: 0,
            retired: 0,
            ceiling: None,
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
            for part in ["target", "source"] {
                ledger.evidence.set((session.clone(), part), None);
            }
            ledger.sessions.set(session, None);
        }
        let mut system = Self {
            ledger,
            clock: 0,
            worker_boot: 1,
            granted: BTreeMap::new(),
            executions: BTreeMap::new(),
            over: BTreeMap::new(),
        };
        for command in Self::preparation() {
            system
                .step(&Step::Ask(Box::new(command)), Broken::Nothing)
                .unwrap();
        }
        system
    }

    /// What an operator has set up before the first step: one slot on each worker, and one unit of a scope
    /// that only one of the two needs.
    pub(super) fn preparation() -> Vec<Command> {
        let pool = |name| {
            Command::SetPool(SetPool {
                scope: scope(name),
                role: Role::Transcode,
                capacity: Capacity::new(1).unwrap(),
                expected: Expected::Any,
            })
        };
        vec![
            pool("w-slots"),
            pool("x-slots"),
            pool("lan"),
            Self::target("w", "w1", None),
            Self::target("x", "x1", None),
        ]
    }

    fn target(name: &str, incarnation: &str, seen: Option<&str>) -> Command {
        let scopes: Vec<_> = match name {
            "w" => vec![scope("w-slots")],
            _ => vec![scope("x-slots"), scope("lan")],
        };
        Command::SetTarget(SetTarget {
            target: TargetId::new(name).unwrap(),
            boot: boot(incarnation),
            expected: seen.map(boot),
            admission: Admission::new([(Role::Transcode, scopes)]).unwrap(),
        })
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_micros(START + 1_000_000 * i64::from(self.clock))
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
                    let claims = match target {
                        "w" => vec![(scope("w-slots"), Units::MIN)],
                        _ => vec![(scope("x-slots"), Units::MIN), (scope("lan"), Units::MIN)],
                    };
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
        if self.clock < bounds.ticks {
            steps.push(Step::Tick);
        }
        if bounds.crash && self.worker_boot == 1 {
            steps.push(Step::Crash);
        }
        if self.worker_boot == 2 {
            steps.push(ask(&Self::target("w", "w2", Some("w1"))));
        }
        // The first boot's registration, delivered late.
        steps.push(ask(&Self::target("w", "w1", None)));
        for (at, (fence, _)) in &self.granted {
            for ahead in [1_u64, 2] {
                let deadline = self.now().checked_add(Duration::from_secs(ahead)).unwrap();
                let fence = fence.clone();
                steps.push(Step::Ask(Box::new(Command::Renew { fence, deadline })));
            }
            match self.executions.get(at) {
                Some(Execution::Ended) => {
                    let fence = fence.clone();
                    steps.push(Step::Ask(Box::new(Command::Retire { fence })));
                }
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
            .is_some_and(|row| row.fence == *fence && record(row, self.now()).authority == Authority::Live)
    }

    /// Takes one step; the error is the invariant that it broke.
    pub(super) fn step(&mut self, step: &Step, broken: Broken) -> Result<Option<Outcome>, String> {
        let mut answer = None;
        match step {
            Step::Tick => self.clock += 1,
            Step::Crash => self.worker_boot = 2,
            Step::Start(fence) => {
                self.executions.insert(key(fence), Execution::Running);
            }
            Step::End(fence) => {
                self.executions.insert(key(fence), Execution::Ended);
            }
            Step::Ask(command) => answer = Some(self.ask(command, broken)?),
        }
        self.check()?;
        Ok(answer)
    }

    fn ask(&mut self, command: &Command, broken: Broken) -> Result<Outcome, String> {
        let now = self.now();
        let (ledger, command) = broken.before(&self.ledger, command, now);
        let mut decision = decide(&ledger, &command, now).map_err(|defect| defect.to_string())?;
        broken.after(&mut decision);
        let mut next = ledger;
        next.apply(&decision.changes);
        self.compare(&next)?;
        self.judge(&decision)?;
        if let Outcome::Reserve(Reserved::Granted(granted)) = &decision.outcome {
            let first = (granted.fence.clone(), granted.initial_deadline);
            self.granted.insert(key(&granted.fence), first);
        }
        self.ledger = next;
        Ok(decision.outcome)
    }

    /// Whether `command` leaves everything as it is, which most do; its answer is judged all the same.
    pub(super) fn leaves_as_is(&self, command: &Command) -> Result<bool, String> {
        let decision = decide(&self.ledger, command, self.now()).map_err(|defect| defect.to_string())?;
        self.judge(&decision)?;
        Ok(decision.changes.is_empty())
    }

    /// What no answer may say.
    fn judge(&self, decision: &Decision) -> Result<(), String> {
        match &decision.outcome {
            Outcome::Reserve(Reserved::Granted(granted)) => {
                let double = self
                    .granted
                    .values()
                    .any(|(fence, _)| fence.operation == granted.fence.operation);
                if double {
                    return Err("one operation was granted twice".to_owned());
                }
                if self.granted.contains_key(&key(&granted.fence)) {
                    return Err("one generation was granted twice".to_owned());
                }
            }
            Outcome::Reserve(Reserved::Replayed(replayed)) => {
                let first = self.granted.get(&key(&replayed.fence));
                if first != Some(&(replayed.fence.clone(), replayed.initial_deadline)) {
                    return Err("a replay is not the first answer".to_owned());
                }
                if !decision.changes.is_empty() {
                    return Err("a replay changed something".to_owned());
                }
            }
            Outcome::Renew(Renewed::Renewed { deadline, .. }) if *deadline <= self.now() => {
                return Err("a renewal gave authority that is over".to_owned());
            }
            _ => {}
        }
        Ok(())
    }

    /// What no step may do to a session: take its generation or its deadline back.
    fn compare(&self, next: &State) -> Result<(), String> {
        for (session, before) in self.ledger.sessions.present() {
            let Ok(Some(after)) = next.sessions.get(session) else {
                return Err("a session was forgotten".to_owned());
            };
            let (old, new) = (before.fence.generation, after.fence.generation);
            if new < old {
                return Err("a generation went back".to_owned());
            }
            if new == old && (after.deadline < before.deadline || after.fence != before.fence) {
                return Err("an assignment changed under its fence".to_owned());
            }
            if new == old && before.retired && !after.retired {
                return Err("a retirement was taken back".to_owned());
            }
        }
        Ok(())
    }

    /// What holds in every state.
    fn check(&mut self) -> Result<(), String> {
        let now = self.now();
        let mut used = BTreeMap::new();
        let (mut total, mut retired) = (0, 0);
        for (session, row) in self.ledger.sessions.present() {
            total += 1;
            let at = (session.clone(), row.fence.generation);
            match record(row, now).authority {
                Authority::Retired => retired += 1,
                Authority::Live if self.over.contains_key(&at) => {
                    return Err("authority came back after its expiry".to_owned());
                }
                Authority::Live => {}
                Authority::Expired => {
                    self.over.insert(at, ());
                }
            }
            if !row.retired {
                for (scope, units) in row.claims.iter() {
                    *used.entry((scope.clone(), row.fence.role)).or_insert(0) += units.get();
                }
            }
        }
        if (total, retired) != (self.ledger.meta.total, self.ledger.meta.retired) {
            return Err("the counters do not count the rows".to_owned());
        }
        for (key, pool) in self.ledger.pools.present() {
            if pool.used != used.get(key).copied().unwrap_or(0) {
                return Err("used units are not the unretired claims".to_owned());
            }
            if pool.used > pool.capacity.get() {
                return Err("a pool is over its capacity".to_owned());
            }
        }
        let mut running = BTreeMap::new();
        for (at, _) in self.executions.iter().filter(|(_, e)| **e == Execution::Running) {
            let fence = &self.granted[at].0;
            let row = self.ledger.sessions.get(&at.0).unwrap();
            if row.is_none_or(|row| row.retired || row.fence != *fence) {
                return Err("a process runs that the ledger has forgotten".to_owned());
            }
            *running.entry(fence.target.clone()).or_insert(0) += 1;
        }
        if running.values().any(|processes| *processes > 1) {
            return Err("two processes share one slot".to_owned());
        }
        Ok(())
    }

    /// Two independent hashes over everything that the future depends on.
    pub(super) fn fingerprint(&self) -> u128 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let (mut one, mut two) = (DefaultHasher::new(), DefaultHasher::new());
        1_u8.hash(&mut two);
        let hash = |hasher: &mut DefaultHasher| {
            self.clock.hash(hasher);
            self.worker_boot.hash(hasher);
            self.ledger.meta.hash(hasher);
            for (_, row) in self.ledger.sessions.present() {
                row.hash(hasher);
            }
            for (_, pool) in self.ledger.pools.present() {
                pool.hash(hasher);
            }
            for (key, target) in self.ledger.targets.present() {
                (key, &target.boot).hash(hasher);
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
