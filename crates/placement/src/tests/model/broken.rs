//! Rules broken on purpose. Each must be caught, or the checker checks nothing.

use std::time::Duration;

use ether_types::{OperationId, Role, Timestamp};

use crate::bounds::{Capacity, EvidenceBody};
use crate::command::{Command, Reserve, ReserveRequest};
use crate::decide::Decision;
use crate::evidence::EvidenceKind;
use crate::outcome::{Outcome, Raised, Renewed, Reserved};
use crate::state::{Change, Pool, Revision, Session, State};
use crate::tests::model::also::Also;
use crate::tests::world::scope;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// The rules as they are.
    Nothing,
    /// A deadline that has passed frees what it held.
    ExpiryFrees,
    /// A session is assigned again before it is retired.
    ReuseUnretired,
    /// The expected generation is not compared.
    AnyGeneration,
    /// A renewal revives what has expired.
    Revive,
    /// A request is not recognized when it comes again.
    Forgetful,
    /// A grant charges nothing.
    NoCharge,
    /// A pool hands out one unit more than it has.
    OneTooMany,
    /// A retirement does not look at the generation.
    StaleRetire,
    /// A new incarnation of a target clears the claims of the old one.
    PolicyClears,
    /// A retirement is answered and not written down.
    LostRetirement,
    /// There is one place for evidence, and who comes first has it.
    OnePlace,
    /// A boot may say that it has succeeded itself.
    SelfSuccession,
    /// A retirement leaves the evidence behind.
    EvidenceStays,
    /// The ledger takes sessions past its ceiling.
    NoCeiling,
    /// A lower ceiling is taken.
    Downward,
    /// Nobody remembers how late it has been.
    NoMemory,
    /// An end that one process told from its own memory, within the skew, is not written down.
    Unwritten,
    /// A clock that stands behind stops nothing.
    OpenBehind,
    /// The clock is rebased under assignments that last longer.
    RebaseHeld,
    /// The clock is rebased by somebody who saw an earlier epoch.
    RebaseAny,
    /// A pool is set by somebody who has not seen its policy.
    Blind,
    /// What two targets share is counted for each of them apart.
    NotShared,
    /// A renewal moves a deadline back.
    Backward,
    /// A replay gives the deadline that stands now.
    Inherits,
    /// A retirement that is repeated releases once more.
    ReleaseTwice,
}

impl Broken {
    pub(super) const ALL: [Broken; 25] = [
        Broken::ExpiryFrees,
        Broken::ReuseUnretired,
        Broken::AnyGeneration,
        Broken::Revive,
        Broken::Forgetful,
        Broken::NoCharge,
        Broken::OneTooMany,
        Broken::StaleRetire,
        Broken::PolicyClears,
        Broken::LostRetirement,
        Broken::OnePlace,
        Broken::SelfSuccession,
        Broken::EvidenceStays,
        Broken::NoCeiling,
        Broken::Downward,
        Broken::NoMemory,
        Broken::Unwritten,
        Broken::OpenBehind,
        Broken::RebaseHeld,
        Broken::RebaseAny,
        Broken::Blind,
        Broken::NotShared,
        Broken::Backward,
        Broken::Inherits,
        Broken::ReleaseTwice,
    ];

    /// The exploration that shows it.
    pub(super) fn shows_in(self) -> Also {
        match self {
            Broken::OnePlace | Broken::SelfSuccession | Broken::EvidenceStays => Also::Evidence,
            Broken::NoCeiling | Broken::Downward => Also::Ceiling,
            Broken::NoMemory | Broken::OpenBehind | Broken::RebaseHeld | Broken::RebaseAny => Also::Back,
            Broken::Unwritten => Also::Within,
            Broken::Blind => Also::Pools,
            _ => Also::Nothing,
        }
    }

    /// Whether only an exploration that moves deadlines can show it.
    pub(super) fn renews(self) -> bool {
        matches!(self, Broken::Revive | Broken::Backward | Broken::Inherits)
    }

    /// What the broken rule makes of the snapshot and the command.
    pub(super) fn before(self, state: &State, command: &Command, now: Timestamp) -> (State, Command) {
        let mut state = state.clone();
        let mut command = command.clone();
        match (self, &command) {
            (Broken::ExpiryFrees, Command::Reserve(_)) => {
                let rows: Vec<Session> = state.sessions.present().map(|(_, row)| row.clone()).collect();
                for row in rows.into_iter().filter(|row| !row.retired && row.deadline <= now) {
                    release(&mut state, row);
                }
            }
            (Broken::ReuseUnretired, Command::Reserve(request)) => {
                let row = state.sessions.get(&request.reserve().session).unwrap().cloned();
                if let Some(row) = row.filter(|row| !row.retired) {
                    let same = row.fence.operation == request.reserve().operation;
                    if !same {
                        release(&mut state, row);
                    }
                }
            }
            (Broken::AnyGeneration, Command::Reserve(request)) => {
                let row = state.sessions.get(&request.reserve().session).unwrap();
                if let Some(row) = row.filter(|row| row.fence.operation != request.reserve().operation) {
                    let reserve = Reserve {
                        expected: row.fence.generation,
                        ..request.reserve().clone()
                    };
                    command = Command::Reserve(ReserveRequest::new(reserve).unwrap());
                }
            }
            (Broken::Forgetful, Command::Reserve(request)) => {
                let row = state.sessions.get(&request.reserve().session).unwrap().cloned();
                if let Some(mut row) = row.filter(|row| row.retired) {
                    let reserve = Reserve {
                        expected: row.fence.generation,
                        ..request.reserve().clone()
                    };
                    row.fence.operation = OperationId::new("forgotten").unwrap();
                    state.sessions.set(row.fence.session.clone(), Some(row));
                    command = Command::Reserve(ReserveRequest::new(reserve).unwrap());
                }
            }
            (Broken::Revive, Command::Renew { fence, .. }) => {
                let row = state.sessions.get(&fence.session).unwrap().cloned();
                if let Some(mut row) = row.filter(|row| !row.retired && row.deadline <= now) {
                    row.deadline = Timestamp::from_micros(now.as_micros() + 1);
                    state.sessions.set(fence.session.clone(), Some(row));
                }
            }
            (Broken::OneTooMany, Command::Reserve(_)) => {
                let pools: Vec<_> = state
                    .pools
                    .present()
                    .map(|(key, pool)| (key.clone(), *pool))
                    .collect();
                for (key, pool) in pools {
                    let capacity = Capacity::new(2).unwrap();
                    state.pools.set(key, Some(Pool { capacity, ..pool }));
                }
            }
            (Broken::StaleRetire, Command::Retire { fence }) => {
                if let Some(row) = state.sessions.get(&fence.session).unwrap() {
                    command = Command::Retire {
                        fence: row.fence.clone(),
                    };
                }
            }
            (Broken::PolicyClears, Command::SetTarget(_)) => {
                let pools: Vec<_> = state
                    .pools
                    .present()
                    .map(|(key, pool)| (key.clone(), *pool))
                    .collect();
                for (key, pool) in pools {
                    state.pools.set(key, Some(Pool { used: 0, ..pool }));
                }
            }
            (Broken::OnePlace, Command::Record { fence, author, .. }) => {
                let kept = state.evidence.get(&fence.session).unwrap().cloned();
                if let Some(kept) = kept.filter(|kept| !kept.iter().any(|piece| piece.author == *author)) {
                    let mut first = kept[0].clone();
                    first.kind = EvidenceKind::Barrier;
                    first.author = author.clone();
                    state.evidence.set(fence.session.clone(), Some(vec![first]));
                }
            }
            (
                Broken::SelfSuccession,
                Command::Record {
                    fence, author, kind, ..
                },
            ) if *kind == EvidenceKind::Succeeded && *author.boot() == fence.target_boot => {
                command = Command::Record {
                    fence: fence.clone(),
                    author: author.clone(),
                    kind: EvidenceKind::Reaped,
                    body: EvidenceBody::new("itself").unwrap(),
                };
            }
            (Broken::NoCeiling, Command::Reserve(_)) => {
                state.meta.ceiling = None;
                state.own.published.quota = 100;
            }
            (Broken::OpenBehind, _) => state.own.published.clock_skew = Duration::from_secs(3_600),
            (Broken::RebaseHeld, Command::Rebase { .. }) => state.lasting = Some(None),
            (Broken::RebaseAny, Command::Rebase { .. }) => {
                command = Command::Rebase {
                    epoch: state.meta.epoch,
                };
            }
            (Broken::Blind, Command::SetPool(set)) => {
                let pool = state.pools.get(&(set.scope.clone(), set.role)).unwrap();
                let mut set = set.clone();
                set.seen = pool.map_or(Revision::NONE, |pool| pool.revision);
                command = Command::SetPool(set);
            }
            (Broken::NotShared, Command::Reserve(_)) => {
                let key = (scope("lan"), Role::Transcode);
                let pool = state.pools.get(&key).unwrap().copied();
                state.pools.set(key, pool.map(|pool| Pool { used: 0, ..pool }));
            }
            (Broken::ReleaseTwice, Command::Retire { fence }) => {
                let row = state.sessions.get(&fence.session).unwrap().cloned();
                if let Some(row) = row.filter(|row| row.retired && row.fence == *fence) {
                    state.meta.retired -= 1;
                    state.sessions.set(
                        fence.session.clone(),
                        Some(Session {
                            retired: false,
                            ..row
                        }),
                    );
                }
            }
            (Broken::NoMemory, _) => state.meta.clock = Timestamp::from_micros(0),
            _ => {}
        }
        (state, command)
    }

    /// What the broken rule makes of the decision.
    pub(super) fn after(self, before: &State, command: &Command, decision: &mut Decision) {
        let granted = matches!(decision.outcome, Outcome::Reserve(Reserved::Granted(_)));
        let retired = matches!(decision.outcome, Outcome::Retire(_));
        match self {
            Broken::NoCharge if granted => decision.changes.retain(|c| !matches!(c, Change::Pool(..))),
            Broken::LostRetirement if retired => {
                decision.changes.retain(|c| !matches!(c, Change::Session(_)));
            }
            Broken::EvidenceStays => {
                let keeps = |change: &Change| !matches!(change, Change::EvidenceConsumed(_));
                decision.changes.retain(keeps);
            }
            Broken::NoCeiling => {
                for change in &mut decision.changes {
                    if let Change::Meta(meta) = change {
                        meta.ceiling = before.meta.ceiling;
                    }
                }
            }
            Broken::Downward => {
                if let (Outcome::Raise(Raised::NotUpward { .. }), Command::Raise { capacity, .. }) =
                    (&decision.outcome, command)
                {
                    let mut meta = before.meta.clone();
                    meta.ceiling = Some(*capacity);
                    decision.changes.push(Change::Meta(meta));
                }
            }
            Broken::Backward => {
                let Command::Renew { fence, deadline } = command else {
                    return;
                };
                let row = before.sessions.get(&fence.session).unwrap();
                if let (Some(row), Outcome::Renew(Renewed::Renewed { moved: false, .. })) =
                    (row, &decision.outcome)
                {
                    let row = Session {
                        deadline: *deadline,
                        ..row.clone()
                    };
                    decision.changes.push(Change::Session(Box::new(row)));
                }
            }
            Broken::Inherits => {
                if let Outcome::Reserve(Reserved::Replayed(replayed)) = &mut decision.outcome {
                    let row = before.sessions.get(&replayed.fence.session).unwrap();
                    replayed.initial_deadline = row.unwrap().deadline;
                }
            }
            Broken::Unwritten if matches!(command, Command::Lookup { .. }) => decision.changes.clear(),
            Broken::NoMemory => {
                for change in &mut decision.changes {
                    if let Change::Meta(meta) = change {
                        meta.clock = Timestamp::from_micros(0);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Retires `row` without any proof.
fn release(state: &mut State, row: Session) {
    for (scope, units) in row.claims.iter() {
        let key = (scope.clone(), row.fence.role);
        if let Some(pool) = state.pools.get(&key).unwrap().copied() {
            let used = pool.used - units.get();
            state.pools.set(key, Some(Pool { used, ..pool }));
        }
    }
    state.meta.retired += 1;
    let session = row.fence.session.clone();
    state
        .sessions
        .set(session, Some(Session { retired: true, ..row }));
}
