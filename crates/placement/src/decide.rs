//! The policy: what a command does to a snapshot, and what it answers.
//!
//! Pure and total. The same function runs under the database's lock and inside the model checker. Its
//! invariants, each checked after every step of the model and of the property tests (P23):
//!
//! 1. a pool's used units are the sum of the unretired claims on it;
//! 2. granting never lifts a pool's used units over its capacity;
//! 3. a session has at most one unretired generation, and generations only grow;
//! 4. authority that was told to have ended is never live again, whatever the clock does;
//! 5. only a retirement releases units: no passage of time does;
//! 6. asking again for what was granted changes nothing.

use ether_types::{ClusterId, Fence, Generation, Timestamp};

use crate::command::{Command, Expected, ReserveRequest, SetPool, SetTarget};
use crate::evidence::{Author, EvidenceKind, PIECES, PIECES_OF_NODE, StoredEvidence};
use crate::outcome::{
    Assignment, Authority, Ceiling, Difference, Joined, Mismatch, Outcome, PoolSet, QuotaReached, Raised,
    Record, Recorded, Refusal, Released, Renewed, Reserved, TargetSet,
};
use crate::state::{Change, Coordinator, NotLoaded, Pool, Session, State, Target};

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

/// Decides `command` on `state` at the database's instant `now`, or at the latest one that the ledger has acted
/// on where that is later.
///
/// # Errors
/// [`Defect`], where the snapshot is not one that the ledger's own transactions can have left.
pub fn decide(state: &State, command: &Command, now: Timestamp) -> Result<Decision, Defect> {
    let now = now.max(state.meta.clock);
    let ours = state.meta.cluster.as_ref() == Some(&state.own.cluster);
    if !ours && !matches!(command, Command::Join) {
        return Ok(answer(Outcome::Elsewhere(state.meta.cluster.clone())));
    }
    let mut decision = settle(state, command, now)?;
    let unremembered = end_told(state, &decision.outcome)?.is_some_and(|end| end > state.meta.clock);
    if unremembered || !decision.changes.is_empty() {
        remember(state, now, &mut decision.changes);
    }
    Ok(decision)
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

fn settle(state: &State, command: &Command, now: Timestamp) -> Result<Decision, Defect> {
    match command {
        Command::SetPool(set) => set_pool(state, set),
        Command::SetTarget(set) => set_target(state, set),
        Command::Reserve(request) => reserve(state, request, now),
        Command::Renew { fence, deadline } => renew(state, fence, *deadline, now),
        Command::Lookup { session } => {
            let found = state.sessions.get(session)?;
            Ok(answer(Outcome::Lookup(
                found.map(|row| Box::new(record(row, now))),
            )))
        }
        Command::Retire { fence } => retire(state, fence),
        Command::Record {
            fence,
            author,
            kind,
            body,
        } => {
            let evidence = StoredEvidence {
                fence: fence.clone(),
                author: author.clone(),
                kind: *kind,
                body: body.clone(),
                at: now,
            };
            record_evidence(state, evidence)
        }
        Command::Join => join(state),
        Command::Withdraw { node, boot } => {
            let found = state.all_coordinators()?.get(node);
            let gone = found.is_some_and(|row| row.boot == *boot);
            let changes = match gone {
                true => vec![Change::Coordinator(node.clone(), None)],
                false => Vec::new(),
            };
            Ok(Decision {
                outcome: Outcome::Withdraw(gone),
                changes,
            })
        }
        Command::Raise { expect, capacity } => {
            let current = state.meta.ceiling;
            let raised = match current {
                // The same call again, after an answer that was lost.
                Some(current) if current == *capacity => Raised::Raised { ceiling: current },
                Some(current) if current != *expect => Raised::Mismatch {
                    current: Some(current),
                },
                None => Raised::Mismatch { current: None },
                Some(current) if *capacity < current => Raised::NotUpward { current },
                Some(_) => {
                    let mut meta = state.meta.clone();
                    meta.ceiling = Some(*capacity);
                    return Ok(Decision {
                        outcome: Outcome::Raise(Raised::Raised { ceiling: *capacity }),
                        changes: vec![Change::Meta(meta)],
                    });
                }
            };
            Ok(answer(Outcome::Raise(raised)))
        }
    }
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

fn reserve(state: &State, request: &ReserveRequest, now: Timestamp) -> Result<Decision, Defect> {
    let asked = request.reserve();
    let row = state.sessions.get(&asked.session)?;
    let refused = |reserved| Ok(answer(Outcome::Reserve(reserved)));

    // The operation that made the current generation is answered from it for ever, whatever the target,
    // the pools or the ceiling say by now (P8).
    if let Some(row) = row.filter(|row| row.fence.operation == asked.operation) {
        return refused(if row.request == request.digest() {
            Reserved::Replayed(assignment(row, now))
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
    let deadline = now.checked_add(asked.lease.get()).ok_or(Defect::Accounting)?;
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
    let granted = Reserved::Granted(assignment(&session, now));
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

fn renew(state: &State, fence: &Fence, deadline: Timestamp, now: Timestamp) -> Result<Decision, Defect> {
    let row = match held(state, fence)? {
        Ok(row) => row,
        Err(mismatch) => return Ok(answer(Outcome::Renew(Renewed::Fenced(mismatch)))),
    };
    let latest = now
        .checked_add(state.own.published.maximum_lease)
        .ok_or(Defect::Accounting)?;
    let renewed = match authority(row, now) {
        Authority::Retired => Renewed::Retired,
        Authority::Expired => Renewed::Expired {
            deadline: row.deadline,
        },
        Authority::Live if deadline <= row.deadline => Renewed::Renewed {
            deadline: row.deadline,
            moved: false,
        },
        Authority::Live if deadline > latest => Renewed::TooFar { latest },
        Authority::Live => {
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

fn record_evidence(state: &State, evidence: StoredEvidence) -> Result<Decision, Defect> {
    let fence = &evidence.fence;
    let refused = |recorded| Ok(answer(Outcome::Record(recorded)));
    match held(state, fence)? {
        Err(mismatch) => return refused(Recorded::Fenced(mismatch)),
        Ok(row) if row.retired => return refused(Recorded::Retired),
        Ok(_) => {}
    }
    if let Some(unfit) = unfit(state, &evidence)? {
        return refused(unfit);
    }
    let kept = state.evidence.get(&fence.session)?.map_or(&[][..], Vec::as_slice);
    if let Some(current) = kept.iter().find(|piece| piece.author == evidence.author) {
        let same = current.kind == evidence.kind && current.body == evidence.body;
        return refused(match same {
            true => Recorded::Already,
            false => Recorded::Conflict {
                current: Box::new(current.clone()),
            },
        });
    }
    let author = |piece: &StoredEvidence| {
        let node = piece.author.node(&fence.target).to_owned();
        (piece.author.part(), node)
    };
    let own = author(&evidence);
    let of_node = kept.iter().filter(|piece| author(piece) == own).count();
    if of_node >= PIECES_OF_NODE || kept.len() >= PIECES {
        return refused(Recorded::Full { kept: kept.len() });
    }
    Ok(Decision {
        outcome: Outcome::Record(Recorded::Recorded),
        changes: vec![Change::Evidence(Box::new(evidence))],
    })
}

/// Why this author may not write this, as far as the ledger can tell. Who owns a source, the grant says: whether
/// a source's piece counts is for the verifier to judge.
fn unfit(state: &State, evidence: &StoredEvidence) -> Result<Option<Recorded>, NotLoaded> {
    let not_theirs = Some(Recorded::NotTheirs { kind: evidence.kind });
    if evidence.kind == EvidenceKind::Attested {
        return Ok(not_theirs);
    }
    let Author::Target { boot } = &evidence.author else {
        return Ok(None);
    };
    if *boot == evidence.fence.target_boot {
        return Ok(not_theirs.filter(|_| evidence.kind == EvidenceKind::Succeeded));
    }
    let target = state.targets.get(&evidence.fence.target)?;
    let succeeds = target.is_some_and(|target| target.boot == *boot);
    Ok((!succeeds).then_some(Recorded::NotAuthor))
}

fn set_pool(state: &State, set: &SetPool) -> Result<Decision, Defect> {
    let pool = state.pools.get(&(set.scope.clone(), set.role))?.copied();
    let current = pool.map(|pool| pool.capacity);
    let expected = match set.expected {
        Expected::Any => true,
        Expected::Absent => current.is_none(),
        Expected::Exactly(capacity) => current == Some(capacity),
    };
    // The same call again finds what it wrote, and that is a success.
    if current != Some(set.capacity) && !expected {
        return Ok(answer(Outcome::SetPool(PoolSet::Mismatch { current })));
    }
    let used = pool.map_or(0, |pool| pool.used);
    let wanted = Pool {
        capacity: set.capacity,
        used,
    };
    let changes = match pool == Some(wanted) {
        true => Vec::new(),
        false => vec![Change::Pool(set.scope.clone(), set.role, wanted)],
    };
    Ok(Decision {
        outcome: Outcome::SetPool(PoolSet::Set { pool: wanted }),
        changes,
    })
}

fn set_target(state: &State, set: &SetTarget) -> Result<Decision, Defect> {
    let wanted = Target {
        boot: set.boot.clone(),
        roles: set.admission.roles().clone(),
    };
    let current = state.targets.get(&set.target)?;
    if current == Some(&wanted) {
        return Ok(answer(Outcome::SetTarget(TargetSet::Set)));
    }
    let stands = current.map(|target| target.boot.clone());
    if stands != set.expected {
        return Ok(answer(Outcome::SetTarget(TargetSet::Superseded {
            current: stands,
        })));
    }
    Ok(Decision {
        outcome: Outcome::SetTarget(TargetSet::Set),
        changes: vec![Change::Target(set.target.clone(), wanted)],
    })
}

fn join(state: &State) -> Result<Decision, Defect> {
    let own = &state.own;
    if let Some(cluster) = state
        .meta
        .cluster
        .as_ref()
        .filter(|cluster| **cluster != own.cluster)
    {
        let cluster = cluster.clone();
        return Ok(answer(Outcome::Join(Joined::Foreign { cluster })));
    }
    let mut meta = state.meta.clone();
    meta.cluster = Some(own.cluster.clone());
    let others = || {
        let all = state.all_coordinators();
        all.map(|all| all.iter().filter(|(node, _)| **node != own.node))
    };
    let ceiling = match (state.meta.ceiling, crate::bounds::Quota::new(own.published.quota)) {
        (_, Err(_)) => return Err(Defect::Accounting),
        (Some(fleet), Ok(quota)) if fleet == quota => Ceiling::Matches(fleet),
        (Some(fleet), Ok(own)) => Ceiling::Differs { own, fleet },
        (None, Ok(_)) if !own.fleet => Ceiling::Local,
        (None, Ok(quota)) => {
            // A coordinator that knows no ceiling would go on reserving past it (P18).
            let older: Vec<_> = others()?
                .filter(|(_, row)| row.schema < CEILING_SCHEMA)
                .map(|(node, _)| node.clone())
                .collect();
            if older.is_empty() {
                meta.ceiling = Some(quota);
                Ceiling::Matches(quota)
            } else {
                Ceiling::Blocked { older }
            }
        }
    };
    let differences = others()?
        .flat_map(|(node, theirs)| {
            options(&own.published)
                .into_iter()
                .zip(options(theirs))
                .filter(|(own, theirs)| own.1 != theirs.1)
                .map(|(own, theirs)| Difference {
                    node: node.clone(),
                    option: own.0,
                    own: own.1,
                    theirs: theirs.1,
                })
        })
        .collect();
    let mut changes = Vec::new();
    if meta != state.meta {
        changes.push(Change::Meta(meta));
    }
    if state.all_coordinators()?.get(&own.node) != Some(&own.published) {
        changes.push(Change::Coordinator(own.node.clone(), Some(own.published.clone())));
    }
    Ok(Decision {
        outcome: Outcome::Join(Joined::Joined { ceiling, differences }),
        changes,
    })
}

/// The options in which coordinators should agree, in one order.
fn options(of: &Coordinator) -> [(&'static str, u64); 4] {
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    [
        ("ledger quota", of.quota),
        ("maximum lease", micros(of.maximum_lease)),
        ("transaction timeout", micros(of.transaction_timeout)),
        ("lock timeout", micros(of.lock_timeout)),
    ]
}
