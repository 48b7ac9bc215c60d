//! The policy: what a command does to a snapshot, and what it answers.
//!
//! Pure and total. The same function runs under the database's lock and inside the model checker. Its
//! invariants, each checked after every step of the model and of the property tests (P23):
//!
//! 1. a pool's used units are the sum of the unretired claims on it;
//! 2. granting never lifts a pool's used units over its capacity;
//! 3. a session has at most one unretired generation, and generations only grow;
//! 4. authority that was told under the lock to have ended is never live again, whatever the clock does, unless the
//!    end is known from one process's own memory alone and lies further ahead than the declared skew: then that
//!    process keeps to it, and nobody else;
//! 5. only a retirement releases units: no passage of time does;
//! 6. asking again for what was granted changes nothing;
//! 7. no deadline is given out that lies further ahead of the database's clock than a lease and the declared skew.

mod evidence;
mod settings;

use std::time::Duration;

use ether_types::{ClusterId, Fence, Generation, Timestamp};

use crate::command::{Command, ReserveRequest};
use crate::evidence::StoredEvidence;
use crate::outcome::{
    Assignment, Authority, ClockBehind, Mismatch, Outcome, QuotaReached, Record, Refusal, Released, Renewed,
    Reserved,
};
use crate::state::{Change, NotLoaded, Pool, Session, State};

/// The first placement schema that has a fleet ceiling.
pub const CEILING_SCHEMA: u64 = 2;

/// What a command answers, and the rows it changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub outcome: Outcome,
    /// Whole new rows, empty where nothing changes.
    pub changes: Vec<Change>,
}

/// A decision that cannot be made. Neither is an answer: the transaction ends without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// The shell did not load what the decision needs.
    #[error(transparent)]
    NotLoaded(#[from] NotLoaded),
    /// The rows contradict each other: more is to be released than is in use, or a counter would wrap.
    #[error("the ledger's accounting does not add up")]
    Accounting,
}

/// What the clocks say when something is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The database's clock.
    pub clock: Timestamp,
    /// The latest instant that the deciding process had judged anything at before its transaction began. It rules
    /// what this process answers, and not what is written down for everybody.
    pub seen: Timestamp,
}

impl From<Timestamp> for Reading {
    /// Of a process that has judged nothing before.
    fn from(clock: Timestamp) -> Self {
        Self { clock, seen: clock }
    }
}

/// The instant that is judged at, and how far the database's clock stands behind it.
#[derive(Clone, Copy)]
struct Now {
    at: Timestamp,
    /// As far as the ledger itself and its database vouch for it, the deciding process's own memory left out.
    shared: Timestamp,
    clock: Timestamp,
    behind: Duration,
}

/// Decides `command` on `state` at the instant that `reading` gives, or at the latest one that the ledger has
/// acted on where that is later.
///
/// # Errors
/// [`Defect`], where the snapshot is not one that the ledger's own transactions can have left.
pub fn decide(state: &State, command: &Command, reading: Reading) -> Result<Decision, Defect> {
    let shared = reading.clock.max(state.meta.clock);
    let at = shared.max(reading.seen);
    let now = Now {
        at,
        shared,
        clock: reading.clock,
        behind: at.saturating_since(reading.clock),
    };
    let ours = state.meta.cluster.as_ref() == Some(&state.own.cluster);
    if !ours && !matches!(command, Command::Join { .. }) {
        return Ok(answer(Outcome::Elsewhere(state.meta.cluster.clone())));
    }
    let mut decision = settle(state, command, now)?;
    if matches!(command, Command::Rebase { .. }) {
        // The one change that does not happen at the instant it was judged at, but at the one that it sets.
        return Ok(decision);
    }
    let told = end_told(state, &decision.outcome)?;
    if let Some(instant) = acted_on(state, told, &decision.changes, now) {
        remember(state, instant, &mut decision.changes);
    }
    Ok(decision)
}

/// The instant that the ledger acted on by a decision that `told` an end and makes `changes`.
///
/// What one process remembers alone may be the glimpse of a clock that was wrong for a moment, and must not end the
/// authority of everybody else. Of that only the end that was told is written, and only where it lies no further
/// ahead of the clock than the skew: anything further would stop the whole ledger besides.
fn acted_on(state: &State, told: Option<Timestamp>, changes: &[Change], now: Now) -> Option<Timestamp> {
    match told {
        Some(end) if end > now.shared => {
            let ahead = end.saturating_since(now.clock);
            (ahead <= state.own.published.clock_skew).then_some(end)
        }
        Some(end) if end > state.meta.clock => Some(now.shared),
        _ => (!changes.is_empty()).then_some(now.shared),
    }
}

/// The deadline that `outcome` tells to have passed.
fn end_told(state: &State, outcome: &Outcome) -> Result<Option<Timestamp>, NotLoaded> {
    Ok(match outcome {
        Outcome::Renew(Renewed::Expired { deadline }) => Some(*deadline),
        Outcome::Lookup(Some(record)) if record.authority == Authority::Expired => Some(record.deadline),
        Outcome::Reserve(Reserved::Replayed(replayed)) if replayed.authority == Authority::Expired => {
            let row = state.sessions.get(&replayed.fence.session)?;
            row.map(|row| row.deadline)
        }
        _ => None,
    })
}

/// Adds to `changes` that the ledger has acted on the instant `now`.
fn remember(state: &State, now: Timestamp, changes: &mut Vec<Change>) {
    if now <= state.meta.clock {
        return;
    }
    for change in changes.iter_mut() {
        if let Change::Meta(meta) = change {
            meta.clock = now;
            return;
        }
    }
    let mut meta = state.meta.clone();
    meta.clock = now;
    changes.push(Change::Meta(meta));
}

fn settle(state: &State, command: &Command, now: Now) -> Result<Decision, Defect> {
    match command {
        Command::SetPool(set) => settings::set_pool(state, set),
        Command::SetTarget(set) => settings::set_target(state, set),
        Command::Reserve(request) => reserve(state, request, now),
        Command::Renew { fence, deadline } => renew(state, fence, *deadline, now),
        Command::Lookup { session } => {
            let found = state.sessions.get(session)?;
            Ok(answer(Outcome::Lookup(
                found.map(|row| Box::new(record(row, now.at))),
            )))
        }
        Command::Retire { fence } => retire(state, fence),
        Command::Record {
            fence,
            author,
            kind,
            body,
        } => {
            let piece = StoredEvidence {
                fence: fence.clone(),
                author: author.clone(),
                kind: *kind,
                body: body.clone(),
                at: now.shared,
            };
            evidence::record_evidence(state, piece)
        }
        Command::Join { takes_over } => settings::join(state, *takes_over),
        Command::Withdraw { node, boot } => settings::withdraw(state, node, boot),
        Command::Raise { expect, capacity } => Ok(settings::raise(state, *expect, *capacity)),
        Command::Rebase { epoch } => settings::rebase(state, *epoch, now.clock),
    }
}

/// Why the clock lets nothing begin and no authority grow; `None` while it may be trusted.
fn stopped(state: &State, now: Now) -> Option<ClockBehind> {
    let skew = state.own.published.clock_skew;
    let behind = now.behind;
    (behind > skew).then_some(ClockBehind { behind, skew })
}

/// What a session's row says at `now`.
pub fn record(row: &Session, now: Timestamp) -> Record {
    Record {
        fence: row.fence.clone(),
        claims: row.claims.clone(),
        initial_deadline: row.initial_deadline,
        deadline: row.deadline,
        authority: authority(row, now),
        now,
    }
}

fn answer(outcome: Outcome) -> Decision {
    Decision {
        outcome,
        changes: Vec::new(),
    }
}

fn authority(row: &Session, now: Timestamp) -> Authority {
    if row.retired {
        Authority::Retired
    } else if now < row.deadline {
        Authority::Live
    } else {
        Authority::Expired
    }
}

/// Why `fence` is not the one that a session's row holds in `cluster`'s ledger; `None` where it is.
fn mismatch(cluster: &ClusterId, holds: Option<&Fence>, fence: &Fence) -> Option<Mismatch> {
    if fence.cluster != *cluster {
        let cluster = cluster.clone();
        return Some(Mismatch::Foreign { cluster });
    }
    let Some(holds) = holds else {
        return Some(Mismatch::Absent);
    };
    let current = holds.generation;
    if current > fence.generation {
        Some(Mismatch::Superseded { current })
    } else if current < fence.generation {
        Some(Mismatch::Absent)
    } else {
        (holds != fence).then(|| Mismatch::Conflict {
            current: Box::new(holds.clone()),
        })
    }
}

/// The row of exactly this fence, or why there is none.
fn held<'s>(state: &'s State, fence: &Fence) -> Result<Result<&'s Session, Mismatch>, NotLoaded> {
    let row = state.sessions.get(&fence.session)?;
    let holds = row.map(|row| &row.fence);
    Ok(match mismatch(&state.own.cluster, holds, fence) {
        Some(mismatch) => Err(mismatch),
        None => row.ok_or(Mismatch::Absent),
    })
}

/// What a retirement of `fence` comes to without any proof, where `cluster`'s ledger holds `found` for its
/// session: a fence that holds nothing has nothing to prove. `None` where it holds something.
pub(crate) fn settled(cluster: &ClusterId, found: Option<&Record>, fence: &Fence) -> Option<Released> {
    match mismatch(cluster, found.map(|record| &record.fence), fence) {
        Some(mismatch) => Some(Released::Fenced(mismatch)),
        None => found
            .is_some_and(|record| record.authority == Authority::Retired)
            .then_some(Released::Retired { already: true }),
    }
}

fn reserve(state: &State, request: &ReserveRequest, now: Now) -> Result<Decision, Defect> {
    let asked = request.reserve();
    let row = state.sessions.get(&asked.session)?;
    let refused = |reserved| Ok(answer(Outcome::Reserve(reserved)));

    // The operation that made the current generation is answered from it for ever, whatever the target,
    // the pools or the ceiling say by now (P8).
    if let Some(row) = row.filter(|row| row.fence.operation == asked.operation) {
        return refused(if row.request == request.digest() {
            Reserved::Replayed(assignment(row, now.at))
        } else {
            Reserved::Conflict {
                current: Box::new(row.fence.clone()),
            }
        });
    }
    let current = row.map_or(Generation::NEVER, |row| row.fence.generation);
    if asked.expected != current {
        return refused(Reserved::Superseded { current });
    }
    if let Some(row) = row.filter(|row| !row.retired) {
        return refused(Reserved::Unretired {
            holder: Box::new(row.fence.clone()),
        });
    }
    if let Some(behind) = stopped(state, now) {
        return refused(Reserved::ClockBehind(behind));
    }
    if let Some(reserved) = closed(state, row.is_none()) {
        return refused(reserved);
    }
    let maximum = state.own.published.maximum_lease;
    if asked.lease.get() > maximum {
        return refused(Reserved::LeaseTooLong { maximum });
    }
    if let Err(refusal) = admitted(state, request)? {
        return refused(Reserved::NotAdmitted(refusal));
    }

    let mut changes = Vec::with_capacity(asked.claims.len() + 2);
    for (scope, units) in asked.claims.iter() {
        let pool = state.pools.get(&(scope.clone(), asked.role))?.copied();
        let left = pool.map(|pool| pool.capacity.get().saturating_sub(pool.used));
        let Some(pool) = pool.filter(|_| left.is_some_and(|left| units.get() <= left)) else {
            return refused(Reserved::NoCapacity {
                scope: scope.clone(),
                left,
            });
        };
        let used = pool.used.checked_add(units.get()).ok_or(Defect::Accounting)?;
        changes.push(Change::Pool(scope.clone(), asked.role, Pool { used, ..pool }));
    }
    let generation = current.next().ok_or(Defect::Accounting)?;
    let deadline = now.at.checked_add(asked.lease.get()).ok_or(Defect::Accounting)?;
    let session = Session {
        fence: request.fence(&state.own.cluster, generation),
        request: request.digest().to_owned(),
        claims: asked.claims.clone(),
        initial_deadline: deadline,
        deadline,
        retired: false,
    };
    let mut meta = state.meta.clone();
    match row {
        None => meta.total = meta.total.checked_add(1).ok_or(Defect::Accounting)?,
        Some(_) => meta.retired = meta.retired.checked_sub(1).ok_or(Defect::Accounting)?,
    }
    let granted = Reserved::Granted(assignment(&session, now.at));
    changes.push(Change::Session(Box::new(session)));
    changes.push(Change::Meta(meta));
    Ok(Decision {
        outcome: Outcome::Reserve(granted),
        changes,
    })
}

/// Whether the ledger as a whole takes no new generation from this coordinator.
fn closed(state: &State, new_session: bool) -> Option<Reserved> {
    let own = state.own.published.quota;
    let quota = match state.meta.ceiling {
        Some(fleet) if fleet.get() != own => {
            let own = crate::bounds::Quota::new(own).unwrap_or(crate::bounds::Quota::MIN);
            return Some(Reserved::CeilingMismatch { own, fleet });
        }
        Some(fleet) => fleet.get(),
        None => own,
    };
    (new_session && state.meta.total >= quota).then_some(Reserved::Quota(QuotaReached {
        total: state.meta.total,
        retired: state.meta.retired,
        quota,
    }))
}

/// Whether the target takes this work: the boot, the role, and exactly its scopes (P5, P6).
fn admitted(state: &State, request: &ReserveRequest) -> Result<Result<(), Refusal>, NotLoaded> {
    let asked = request.reserve();
    let Some(target) = state.targets.get(&asked.target)? else {
        return Ok(Err(Refusal::UnknownTarget));
    };
    if target.boot != asked.target_boot {
        return Ok(Err(Refusal::OtherBoot {
            current: target.boot.clone(),
        }));
    }
    let Some(scopes) = target.roles.get(&asked.role) else {
        return Ok(Err(Refusal::Role(asked.role)));
    };
    if let Some((scope, _)) = asked.claims.iter().find(|(scope, _)| !scopes.contains(scope)) {
        return Ok(Err(Refusal::NotListed(scope.clone())));
    }
    Ok(
        match scopes.iter().find(|scope| asked.claims.get(scope).is_none()) {
            Some(scope) => Err(Refusal::Unclaimed(scope.clone())),
            None => Ok(()),
        },
    )
}

fn assignment(row: &Session, now: Timestamp) -> Assignment {
    Assignment {
        fence: row.fence.clone(),
        claims: row.claims.clone(),
        initial_deadline: row.initial_deadline,
        authority: authority(row, now),
        now,
    }
}

fn renew(state: &State, fence: &Fence, deadline: Timestamp, now: Now) -> Result<Decision, Defect> {
    let row = match held(state, fence)? {
        Ok(row) => row,
        Err(mismatch) => return Ok(answer(Outcome::Renew(Renewed::Fenced(mismatch)))),
    };
    let latest = now
        .at
        .checked_add(state.own.published.maximum_lease)
        .ok_or(Defect::Accounting)?;
    let renewed = match (authority(row, now.at), stopped(state, now)) {
        (Authority::Retired, _) => Renewed::Retired,
        (Authority::Expired, _) => Renewed::Expired {
            deadline: row.deadline,
        },
        (Authority::Live, _) if deadline <= row.deadline => Renewed::Renewed {
            deadline: row.deadline,
            moved: false,
        },
        (Authority::Live, Some(behind)) => Renewed::ClockBehind(behind),
        (Authority::Live, None) if deadline > latest => Renewed::TooFar { latest },
        (Authority::Live, None) => {
            let row = Session {
                deadline,
                ..row.clone()
            };
            return Ok(Decision {
                outcome: Outcome::Renew(Renewed::Renewed {
                    deadline,
                    moved: true,
                }),
                changes: vec![Change::Session(Box::new(row))],
            });
        }
    };
    Ok(answer(Outcome::Renew(renewed)))
}

fn retire(state: &State, fence: &Fence) -> Result<Decision, Defect> {
    let row = match held(state, fence)? {
        Ok(row) => row,
        Err(mismatch) => return Ok(answer(Outcome::Retire(Released::Fenced(mismatch)))),
    };
    if row.retired {
        return Ok(answer(Outcome::Retire(Released::Retired { already: true })));
    }
    let mut changes = Vec::with_capacity(row.claims.len() + 3);
    for (scope, units) in row.claims.iter() {
        let key = (scope.clone(), fence.role);
        let pool = state.pools.get(&key)?.copied().ok_or(Defect::Accounting)?;
        let used = pool.used.checked_sub(units.get()).ok_or(Defect::Accounting)?;
        changes.push(Change::Pool(key.0, key.1, Pool { used, ..pool }));
    }
    changes.push(Change::Session(Box::new(Session {
        retired: true,
        ..row.clone()
    })));
    changes.push(Change::EvidenceConsumed(fence.session.clone()));
    let mut meta = state.meta.clone();
    meta.retired = meta.retired.checked_add(1).ok_or(Defect::Accounting)?;
    changes.push(Change::Meta(meta));
    Ok(Decision {
        outcome: Outcome::Retire(Released::Retired { already: false }),
        changes,
    })
}
