//! Rules broken on purpose. Each must be caught, or the checker checks nothing.

use ether_types::{OperationId, Timestamp};

use crate::bounds::Capacity;
use crate::command::{Command, Reserve, ReserveRequest};
use crate::decide::Decision;
use crate::outcome::{Outcome, Reserved};
use crate::state::{Change, Pool, Session, State};

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
}

impl Broken {
    pub(super) const ALL: [Broken; 10] = [
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
    ];

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
            _ => {}
        }
        (state, command)
    }

    /// What the broken rule makes of the decision.
    pub(super) fn after(self, decision: &mut Decision) {
        let granted = matches!(decision.outcome, Outcome::Reserve(Reserved::Granted(_)));
        let retired = matches!(decision.outcome, Outcome::Retire(_));
        match self {
            Broken::NoCharge if granted => decision.changes.retain(|c| !matches!(c, Change::Pool(..))),
            Broken::LostRetirement if retired => {
                decision.changes.retain(|c| !matches!(c, Change::Session(_)));
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
