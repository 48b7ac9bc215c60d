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
use crate::evidence::{Author, EvidenceKind, StoredEvidence};
use crate::sql::Fault;
use crate::state::{Coordinator, Meta, Pool, Session, Target};

pub(crate) const SESSION_COLUMNS: &str = "session, generation, controller_node, controller_boot, target, \
     target_node, target_boot, role, operation, request, claims, initial_deadline, deadline, retired";

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
    })
}

pub(crate) fn session(row: &Row, cluster: &ClusterId) -> Result<Session, Fault> {
    const T: &str = "placement_sessions";
    let generation = Generation::new(count(row, 1, T, "generation")?);
    let fence = Fence {
        cluster: cluster.clone(),
        session: parse(row.text(0usize)?.parse::<SessionId>(), T, "session")?,
        generation: generation.ok_or_else(|| corrupt(T, "generation"))?,
        controller_node: parse(NodeId::new(row.text(2usize)?), T, "controller_node")?,
        controller_boot: parse(BootId::new(row.text(3usize)?), T, "controller_boot")?,
        target: parse(TargetId::new(row.text(4usize)?), T, "target")?,
        target_boot: parse(BootId::new(row.text(6usize)?), T, "target_boot")?,
        role: parse(row.text(7usize)?.parse::<Role>(), T, "role")?,
        operation: parse(OperationId::new(row.text(8usize)?), T, "operation")?,
    };
    Ok(Session {
        fence,
        request: row.text(9usize)?,
        claims: claims(&row.text(10usize)?).ok_or_else(|| corrupt(T, "claims"))?,
        initial_deadline: Timestamp::from_micros(row.integer(11usize)?),
        deadline: Timestamp::from_micros(row.integer(12usize)?),
        retired: row.integer(13usize)? != 0,
    })
}

pub(crate) fn session_values(session: &Session, into: &mut Vec<Value>) {
    let fence = &session.fence;
    into.extend([
        Value::from(fence.session.to_string()),
        integer(fence.generation.get()),
        Value::from(fence.controller_node.as_str()),
        Value::from(fence.controller_boot.as_str()),
        Value::from(fence.target.as_str()),
        Value::from(target_node(&fence.target)),
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

/// The node whose device a target is: what stands before the first slash (D18).
pub(crate) fn target_node(target: &TargetId) -> &str {
    let text = target.as_str();
    text.split_once('/').map_or(text, |(node, _)| node)
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

pub(crate) fn target(row: &Row) -> Result<(TargetId, Target), Fault> {
    const T: &str = "placement_targets";
    let id = parse(TargetId::new(row.text(0usize)?), T, "target")?;
    let target = Target {
        boot: parse(BootId::new(row.text(1usize)?), T, "boot")?,
        roles: roles(&row.text(2usize)?).ok_or_else(|| corrupt(T, "roles"))?,
    };
    Ok((id, target))
}

pub(crate) fn pool(row: &Row) -> Result<((ScopeName, Role), Pool), Fault> {
    const T: &str = "placement_pools";
    let scope = parse(ScopeName::new(row.text(0usize)?), T, "scope")?;
    let role = parse(row.text(1usize)?.parse::<Role>(), T, "role")?;
    let pool = Pool {
        capacity: parse(Capacity::new(count(row, 2, T, "capacity")?), T, "capacity")?,
        used: count(row, 3, T, "used")?,
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

/// A piece of evidence, whose fence is that of its session's row: evidence of another generation than the
/// row's does not exist, since a retirement consumes it.
pub(crate) fn evidence(row: &Row, fence: &Fence) -> Result<StoredEvidence, Fault> {
    const T: &str = "placement_evidence";
    if count(row, 1, T, "generation")? != fence.generation.get() {
        return Err(corrupt(T, "generation"));
    }
    let boot = parse(BootId::new(row.text(4usize)?), T, "author_boot")?;
    let author = match (row.text(2usize)?.as_str(), row.opt_text(3usize)?) {
        ("target", None) => Author::Target { boot },
        ("source", Some(node)) => Author::Source {
            node: parse(NodeId::new(node), T, "author_node")?,
            boot,
        },
        _ => return Err(corrupt(T, "part")),
    };
    Ok(StoredEvidence {
        fence: fence.clone(),
        author,
        kind: EvidenceKind::parse(&row.text(5usize)?).ok_or_else(|| corrupt(T, "kind"))?,
        body: parse(EvidenceBody::new(row.text(6usize)?), T, "body")?,
        at: Timestamp::from_micros(row.integer(7usize)?),
    })
}
