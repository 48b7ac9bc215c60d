//! Rows to types and back. What does not parse was not written by the ledger and stops it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use ether_store::{Row, Value};
use ether_types::{
    BootId, ClusterId, Fence, Generation, NodeId, OperationId, Role, ScopeName, SessionId, TargetId,
    Timestamp,
};

use crate::bounds::{Capacity, Claims, EvidenceBody, Quota, Units};
use crate::evidence::{Author, EvidenceKind, StoredEvidence, node_of};
use crate::sql::Fault;
use crate::state::{Coordinator, Meta, Pool, Session, Target};

pub(crate) const SESSION_COLUMNS: &str = "session, generation, controller_node, controller_boot, target, \
     target_node, target_boot, role, operation, request, claims, initial_deadline, deadline, retired";
/// The same in a join, as [`session`] reads them.
pub(crate) const SESSION_JOINED: &str = "s.session, s.generation, s.controller_node, s.controller_boot, s.target, \
     s.target_node, s.target_boot, s.role, s.operation, s.request, s.claims, s.initial_deadline, s.deadline, \
     s.retired";

pub(crate) fn corrupt(table: &'static str, column: &'static str) -> Fault {
    Fault::Corrupt { table, column }
}

fn parse<T>(parsed: Result<T, impl Sized>, table: &'static str, column: &'static str) -> Result<T, Fault> {
    parsed.map_err(|_| corrupt(table, column))
}

fn count(row: &Row, at: usize, table: &'static str, column: &'static str) -> Result<u64, Fault> {
    parse(u64::try_from(row.integer(at)?), table, column)
}

/// A number of the ledger as a column holds it. The bounds of every counter lie far inside the column's.
pub(crate) fn integer(value: u64) -> Value {
    Value::from(i64::try_from(value).unwrap_or(i64::MAX))
}

pub(crate) fn micros(duration: Duration) -> Value {
    integer(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// The columns of the ledger's own row, as [`meta`] reads them.
pub(crate) const META_COLUMNS: &str = "m.cluster, m.revision, m.total, m.retired, m.ceiling, m.clock";
/// How many they are.
pub(crate) const META_WIDTH: usize = 6;
/// How many [`SESSION_JOINED`] are.
pub(crate) const SESSION_WIDTH: usize = 14;

pub(crate) fn meta(row: &Row) -> Result<Meta, Fault> {
    const T: &str = "placement_meta";
    let cluster = row.opt_text(0usize)?.map(ClusterId::new).transpose();
    let ceiling = row
        .opt_integer(4usize)?
        .map(|n| Quota::new(u64::try_from(n).unwrap_or(0)));
    Ok(Meta {
        cluster: parse(cluster, T, "cluster")?,
        revision: count(row, 1, T, "revision")?,
        total: count(row, 2, T, "total")?,
        retired: count(row, 3, T, "retired")?,
        ceiling: parse(ceiling.transpose(), T, "ceiling")?,
        clock: Timestamp::from_micros(row.integer(5usize)?),
    })
}

/// The session whose columns begin at `first`; `None` where an outer join found none.
pub(crate) fn session(row: &Row, first: usize, cluster: &ClusterId) -> Result<Option<Session>, Fault> {
    const T: &str = "placement_sessions";
    let Some(session) = row.opt_text(first)? else {
        return Ok(None);
    };
    let generation = Generation::new(count(row, first + 1, T, "generation")?);
    let fence = Fence {
        cluster: cluster.clone(),
        session: parse(session.parse::<SessionId>(), T, "session")?,
        generation: generation.ok_or_else(|| corrupt(T, "generation"))?,
        controller_node: parse(NodeId::new(row.text(first + 2)?), T, "controller_node")?,
        controller_boot: parse(BootId::new(row.text(first + 3)?), T, "controller_boot")?,
        target: parse(TargetId::new(row.text(first + 4)?), T, "target")?,
        target_boot: parse(BootId::new(row.text(first + 6)?), T, "target_boot")?,
        role: parse(row.text(first + 7)?.parse::<Role>(), T, "role")?,
        operation: parse(OperationId::new(row.text(first + 8)?), T, "operation")?,
    };
    Ok(Some(Session {
        fence,
        request: row.text(first + 9)?,
        claims: claims(&row.text(first + 10)?).ok_or_else(|| corrupt(T, "claims"))?,
        initial_deadline: Timestamp::from_micros(row.integer(first + 11)?),
        deadline: Timestamp::from_micros(row.integer(first + 12)?),
        retired: row.integer(first + 13)? != 0,
    }))
}

pub(crate) fn session_values(session: &Session, into: &mut Vec<Value>) {
    let fence = &session.fence;
    into.extend([
        Value::from(fence.session.to_string()),
        integer(fence.generation.get()),
        Value::from(fence.controller_node.as_str()),
        Value::from(fence.controller_boot.as_str()),
        Value::from(fence.target.as_str()),
        Value::from(node_of(&fence.target)),
        Value::from(fence.target_boot.as_str()),
        Value::from(fence.role.as_str()),
        Value::from(fence.operation.as_str()),
        Value::from(session.request.as_str()),
        Value::from(claims_text(&session.claims)),
        Value::from(session.initial_deadline.as_micros()),
        Value::from(session.deadline.as_micros()),
        Value::from(i64::from(session.retired)),
    ]);
}

// The alphabet of a scope has no '=', ',' and ';', so that these texts need no escapes.

fn claims_text(claims: &Claims) -> String {
    let mut text = String::new();
    for (scope, units) in claims.iter() {
        // Writing to a String does not fail.
        let _ = write!(text, "{}{scope}={units}", if text.is_empty() { "" } else { "," });
    }
    text
}

fn claims(text: &str) -> Option<Claims> {
    let mut claims = Vec::new();
    for claim in text.split(',') {
        let (scope, units) = claim.split_once('=')?;
        claims.push((ScopeName::new(scope).ok()?, Units::new(units.parse().ok()?).ok()?));
    }
    Claims::new(claims).ok()
}

pub(crate) fn roles_text(roles: &BTreeMap<Role, BTreeSet<ScopeName>>) -> String {
    let mut text = String::new();
    for (role, scopes) in roles {
        let _ = write!(text, "{}{role}", if text.is_empty() { "" } else { ";" });
        for (scope, mark) in scopes
            .iter()
            .zip(std::iter::once('=').chain(std::iter::repeat(',')))
        {
            let _ = write!(text, "{mark}{scope}");
        }
    }
    text
}

fn roles(text: &str) -> Option<BTreeMap<Role, BTreeSet<ScopeName>>> {
    let mut roles = BTreeMap::new();
    for entry in text.split(';').filter(|entry| !entry.is_empty()) {
        let (role, scopes) = entry.split_once('=')?;
        let scopes: Option<BTreeSet<_>> = scopes.split(',').map(|s| ScopeName::new(s).ok()).collect();
        roles.insert(role.parse().ok()?, scopes?);
    }
    Some(roles)
}

/// Targets and pools come in one answer; its first column says which of the two a row is.
pub(crate) const TARGET_COLUMNS: &str =
    "CAST(0 AS BIGINT), target, boot, roles, CAST(0 AS BIGINT), CAST(0 AS BIGINT)";
pub(crate) const POOL_COLUMNS: &str = "CAST(1 AS BIGINT), scope, role, '', capacity, used";

pub(crate) fn is_pool(row: &Row) -> Result<bool, Fault> {
    Ok(row.integer(0usize)? != 0)
}

pub(crate) fn target(row: &Row) -> Result<(TargetId, Target), Fault> {
    const T: &str = "placement_targets";
    let id = parse(TargetId::new(row.text(1usize)?), T, "target")?;
    let target = Target {
        boot: parse(BootId::new(row.text(2usize)?), T, "boot")?,
        roles: roles(&row.text(3usize)?).ok_or_else(|| corrupt(T, "roles"))?,
    };
    Ok((id, target))
}

pub(crate) fn pool(row: &Row) -> Result<((ScopeName, Role), Pool), Fault> {
    const T: &str = "placement_pools";
    let scope = parse(ScopeName::new(row.text(1usize)?), T, "scope")?;
    let role = parse(row.text(2usize)?.parse::<Role>(), T, "role")?;
    let pool = Pool {
        capacity: parse(Capacity::new(count(row, 4, T, "capacity")?), T, "capacity")?,
        used: count(row, 5, T, "used")?,
    };
    Ok(((scope, role), pool))
}

pub(crate) fn coordinator(row: &Row) -> Result<(NodeId, Coordinator), Fault> {
    const T: &str = "placement_coordinators";
    let node = parse(NodeId::new(row.text(0usize)?), T, "node")?;
    let coordinator = Coordinator {
        boot: parse(BootId::new(row.text(1usize)?), T, "boot")?,
        schema: count(row, 2, T, "known_schema")?,
        quota: count(row, 3, T, "quota")?,
        maximum_lease: Duration::from_micros(count(row, 4, T, "maximum_lease")?),
        transaction_timeout: Duration::from_micros(count(row, 5, T, "transaction_timeout")?),
        lock_timeout: Duration::from_micros(count(row, 6, T, "lock_timeout")?),
    };
    Ok((node, coordinator))
}

/// The columns of a piece of evidence, as [`evidence`] reads them.
pub(crate) const EVIDENCE_COLUMNS: &str =
    "e.generation, e.part, e.author_node, e.author_boot, e.kind, e.body, e.recorded";
/// How many they are.
pub(crate) const EVIDENCE_WIDTH: usize = 7;

/// The piece whose columns begin at `first` and which is about `fence`. `None` where an outer join found none,
/// and for one about another generation, which nothing can come of.
pub(crate) fn evidence(row: &Row, first: usize, fence: &Fence) -> Result<Option<StoredEvidence>, Fault> {
    const T: &str = "placement_evidence";
    let Some(generation) = row.opt_integer(first)? else {
        return Ok(None);
    };
    if u64::try_from(generation) != Ok(fence.generation.get()) {
        return Ok(None);
    }
    let node = row.text(first + 2)?;
    let boot = parse(BootId::new(row.text(first + 3)?), T, "author_boot")?;
    let author = match row.text(first + 1)?.as_str() {
        "target" if node == node_of(&fence.target) => Author::Target { boot },
        "source" => Author::Source {
            node: parse(NodeId::new(node), T, "author_node")?,
            boot,
        },
        _ => return Err(corrupt(T, "part")),
    };
    Ok(Some(StoredEvidence {
        fence: fence.clone(),
        author,
        kind: EvidenceKind::parse(&row.text(first + 4)?).ok_or_else(|| corrupt(T, "kind"))?,
        body: parse(EvidenceBody::new(row.text(first + 5)?), T, "body")?,
        at: Timestamp::from_micros(row.integer(first + 6)?),
    }))
}
