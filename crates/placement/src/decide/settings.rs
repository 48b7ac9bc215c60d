//! What operators, membership and coordinators set: pools, targets, the ceiling, the clock, published options.
//!
//! Each is compared and swapped. A call may be long on its way, or come twice, and must not undo what somebody who
//! saw more has set since.

use ether_types::{BootId, NodeId, Timestamp};

use crate::bounds::Quota;
use crate::command::{SetPool, SetTarget};
use crate::decide::{CEILING_SCHEMA, Decision, Defect, answer};
use crate::outcome::{Ceiling, Difference, Joined, Outcome, PoolSet, Raised, Rebased, TargetSet};
use crate::state::{Change, Coordinator, Pool, Revision, State, Target};

pub(super) fn set_pool(state: &State, set: &SetPool) -> Result<Decision, Defect> {
    let current = state.pools.get(&(set.scope.clone(), set.role))?.copied();
    // The same call again finds what it wrote, and that is a success.
    if let Some(pool) = current.filter(|pool| pool.capacity == set.capacity) {
        return Ok(answer(Outcome::SetPool(PoolSet::Set { pool })));
    }
    let seen = current.map_or(Revision::NONE, |pool| pool.revision);
    if seen != set.seen {
        return Ok(answer(Outcome::SetPool(PoolSet::Mismatch { current })));
    }
    let pool = Pool {
        capacity: set.capacity,
        used: current.map_or(0, |pool| pool.used),
        revision: seen.next().ok_or(Defect::Accounting)?,
    };
    Ok(Decision {
        outcome: Outcome::SetPool(PoolSet::Set { pool }),
        changes: vec![Change::Pool(set.scope.clone(), set.role, pool)],
    })
}

pub(super) fn set_target(state: &State, set: &SetTarget) -> Result<Decision, Defect> {
    let current = state.targets.get(&set.target)?;
    let same = |target: &&Target| target.boot == set.boot && target.roles == *set.admission.roles();
    if let Some(Target { revision, .. }) = current.filter(same) {
        let revision = *revision;
        return Ok(answer(Outcome::SetTarget(TargetSet::Set { revision })));
    }
    let stands = current.map(|target| &target.boot);
    let revision = current.map_or(Revision::NONE, |target| target.revision);
    if stands != set.expected.as_ref() || revision != set.seen {
        let current = current.cloned().map(Box::new);
        return Ok(answer(Outcome::SetTarget(TargetSet::Superseded { current })));
    }
    let wanted = Target {
        boot: set.boot.clone(),
        roles: set.admission.roles().clone(),
        revision: revision.next().ok_or(Defect::Accounting)?,
    };
    Ok(Decision {
        outcome: Outcome::SetTarget(TargetSet::Set {
            revision: wanted.revision,
        }),
        changes: vec![Change::Target(set.target.clone(), wanted)],
    })
}

pub(super) fn withdraw(state: &State, node: &NodeId, boot: &BootId) -> Result<Decision, Defect> {
    let found = state.all_coordinators()?.rows.get(node);
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

pub(super) fn raise(state: &State, expect: Quota, capacity: Quota) -> Decision {
    let raised = match state.meta.ceiling {
        // The same call again, after an answer that was lost.
        Some(current) if current == capacity => Raised::Raised { ceiling: current },
        Some(current) if current != expect => Raised::Mismatch {
            current: Some(current),
        },
        None => Raised::Mismatch { current: None },
        Some(current) if capacity < current => Raised::NotUpward { current },
        Some(_) => {
            let mut meta = state.meta.clone();
            meta.ceiling = Some(capacity);
            return Decision {
                outcome: Outcome::Raise(Raised::Raised { ceiling: capacity }),
                changes: vec![Change::Meta(meta)],
            };
        }
    };
    answer(Outcome::Raise(raised))
}

/// Goes by `clock` from here on, whatever instant the ledger acted on before. Nothing may depend on that one any
/// more: an unretired assignment whose deadline lies behind `clock` is over by both, every other one is in the way.
pub(super) fn rebase(state: &State, epoch: u64, clock: Timestamp) -> Result<Decision, Defect> {
    let current = state.meta.epoch;
    let next = epoch.checked_add(1).ok_or(Defect::Accounting)?;
    let told = |rebased| Ok(answer(Outcome::Rebase(rebased)));
    if current == next {
        return told(Rebased::Rebased {
            epoch: next,
            moved: false,
        });
    }
    if current != epoch {
        return told(Rebased::Mismatch { current });
    }
    if let Some((holder, deadline)) = state.lasting()?.filter(|(_, deadline)| *deadline > clock) {
        return told(Rebased::Held {
            holder: Box::new(holder.clone()),
            deadline: *deadline,
        });
    }
    let mut meta = state.meta.clone();
    meta.clock = clock;
    meta.epoch = next;
    Ok(Decision {
        outcome: Outcome::Rebase(Rebased::Rebased {
            epoch: next,
            moved: true,
        }),
        changes: vec![Change::Meta(meta)],
    })
}

pub(super) fn join(state: &State, takes_over: bool) -> Result<Decision, Defect> {
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
    let coordinators = state.all_coordinators()?;
    let published = coordinators.rows.get(&own.node);
    if let Some(current) = published
        .map(|row| &row.boot)
        .filter(|boot| **boot != own.published.boot)
        && !takes_over
    {
        let current = current.clone();
        return Ok(answer(Outcome::Join(Joined::Superseded { current })));
    }
    let mut meta = state.meta.clone();
    meta.cluster = Some(own.cluster.clone());
    let others = || coordinators.rows.iter().filter(|(node, _)| **node != own.node);
    let ceiling = match (state.meta.ceiling, Quota::new(own.published.quota)) {
        (_, Err(_)) => return Err(Defect::Accounting),
        (Some(fleet), Ok(quota)) if fleet == quota => Ceiling::Matches(fleet),
        (Some(fleet), Ok(own)) => Ceiling::Differs { own, fleet },
        (None, Ok(_)) if !own.fleet => Ceiling::Local,
        (None, Ok(quota)) => {
            // A coordinator that knows no ceiling would go on reserving past it (P18).
            let older: Vec<_> = others()
                .filter(|(_, row)| row.schema < CEILING_SCHEMA)
                .map(|(node, _)| node.clone())
                .collect();
            // What cannot be read may be one as well.
            if older.is_empty() && coordinators.unreadable.is_empty() {
                meta.ceiling = Some(quota);
                Ceiling::Matches(quota)
            } else {
                Ceiling::Blocked { older }
            }
        }
    };
    let differences = others()
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
    if published != Some(&own.published) {
        changes.push(Change::Coordinator(own.node.clone(), Some(own.published.clone())));
    }
    Ok(Decision {
        outcome: Outcome::Join(Joined::Joined {
            ceiling,
            differences,
            unreadable: coordinators.unreadable.clone(),
        }),
        changes,
    })
}

/// The options in which coordinators should agree, in one order.
fn options(of: &Coordinator) -> [(&'static str, u64); 6] {
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    [
        ("ledger quota", of.quota),
        ("maximum lease", micros(of.maximum_lease)),
        ("transaction timeout", micros(of.transaction_timeout)),
        ("lock timeout", micros(of.lock_timeout)),
        ("verify timeout", micros(of.verify_timeout)),
        ("clock skew", micros(of.clock_skew)),
    ]
}
