//! Rows to types and back. What does not parse was not written by the ledger, and whatever needs it stops at it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use ether_store::{Row, StoreError, Value};
use ether_types::{
    BootId, ClusterId, Fence, Generation, NodeId, OperationId, Role, ScopeName, SessionId, TargetId,
    Timestamp,
};

use crate::bounds::{Capacity, Claims, EvidenceBody, Quota, Units};
use crate::evidence::{Author, EvidenceKind, StoredEvidence, node_of};
use crate::sql::schema::SCHEMA;
use crate::sql::{Fault, Unreadable};
use crate::state::{Coordinator, Meta, Pool, Revision, Session, Target};

pub(crate) const SESSION_COLUMNS: &str = "session, generation, controller_node, controller_boot, target, \
     target_node, target_boot, role, operation, request, claims, initial_deadline, deadline, retired";
/// The same in a join, as [`session`] reads them.
pub(crate) const SESSION_JOINED: &str = "s.session, s.generation, s.controller_node, s.controller_boot, s.target, \
     s.target_node, s.target_boot, s.role, s.operation, s.request, s.claims, s.initial_deadline, s.deadline, \
     s.retired";

/// A row of `table`, named by its key, whose `column` does not parse.
pub(crate) fn corrupt(table: &'static str, column: &'static str, row: &str) -> Unreadable {
    let row = row.escape_debug().take(80).collect();
    Unreadable { table, column, row }
}

/// One row of a table, with what names it in an error.
struct Read<'r> {
    row: &'r Row,
    table: &'static str,
    key: &'r str,
}

impl Read<'_> {
    fn parsed<T, E>(&self, column: &'static str, parsed: Result<T, E>) -> Result<T, Unreadable> {
        parsed.map_err(|_| corrupt(self.table, column, self.key))
    }

    fn text(&self, at: usize, column: &'static str) -> Result<String, Unreadable> {
        self.parsed(column, self.row.text(at))
    }

    fn integer(&self, at: usize, column: &'static str) -> Result<i64, Unreadable> {
        self.parsed(column, self.row.integer(at))
    }

    fn count(&self, at: usize, column: &'static str) -> Result<u64, Unreadable> {
        self.parsed(column, u64::try_from(self.integer(at, column)?))
    }

    fn span(&self, at: usize, column: &'static str) -> Result<Duration, Unreadable> {
        self.count(at, column).map(Duration::from_micros)
    }

    fn instant(&self, at: usize, column: &'static str) -> Result<Timestamp, Unreadable> {
        self.integer(at, column).map(Timestamp::from_micros)
    }

    /// A text that has to parse.
    fn of<T, E>(
        &self,
        at: usize,
        column: &'static str,
        parse: impl FnOnce(String) -> Result<T, E>,
    ) -> Result<T, Unreadable> {
        self.parsed(column, parse(self.text(at, column)?))
    }
}

/// A number of the ledger as a column holds it. The bounds of every counter lie far inside the column's.
pub(crate) fn integer(value: u64) -> Value {
    Value::from(i64::try_from(value).unwrap_or(i64::MAX))
}

pub(crate) fn micros(duration: Duration) -> Value {
    integer(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// The columns of the ledger's own row, as [`meta`] reads them.
pub(crate) const META_COLUMNS: &str =
    "m.cluster, m.mutations, m.total, m.retired, m.ceiling, m.clock, m.epoch, m.known_schema";
/// How many they are.
pub(crate) const META_WIDTH: usize = 8;
/// How many [`SESSION_JOINED`] are.
pub(crate) const SESSION_WIDTH: usize = 14;

pub(crate) fn meta(row: &Row) -> Result<Meta, Fault> {
    let read = Read {
        row,
        table: "placement_meta",
        key: "the ledger itself",
    };
    let found = read.count(7, "known_schema")?;
    if found > SCHEMA {
        return Err(Fault::Outdated { found, known: SCHEMA });
    }
    let cluster = read.parsed("cluster", row.opt_text(0usize))?;
    let ceiling = read.parsed("ceiling", row.opt_integer(4usize))?;
    let ceiling = ceiling.map(|number| Quota::new(u64::try_from(number).unwrap_or(0)));
    Ok(Meta {
        cluster: read.parsed("cluster", cluster.map(ClusterId::new).transpose())?,
        revision: read.count(1, "mutations")?,
        total: read.count(2, "total")?,
        retired: read.count(3, "retired")?,
        ceiling: read.parsed("ceiling", ceiling.transpose())?,
        clock: read.instant(5, "clock")?,
        epoch: read.count(6, "epoch")?,
    })
}

/// The key of the session whose columns begin at `first`; `None` where an outer join found none.
pub(crate) fn session_key(row: &Row, first: usize) -> Result<Option<String>, Unreadable> {
    let key = row.opt_text(first);
    key.map_err(|_| corrupt("placement_sessions", "session", "?"))
}

/// The session whose columns begin at `first`; `None` where an outer join found none.
pub(crate) fn session(row: &Row, first: usize, cluster: &ClusterId) -> Result<Option<Session>, Unreadable> {
    let Some(session) = session_key(row, first)? else {
        return Ok(None);
    };
    let read = Read {
        row,
        table: "placement_sessions",
        key: &session,
    };
    let generation = read.count(first + 1, "generation")?;
    let claims = read.text(first + 10, "claims")?;
    Ok(Some(Session {
        fence: Fence {
            cluster: cluster.clone(),
            session: read.parsed("session", session.parse::<SessionId>())?,
            generation: read.parsed("generation", Generation::new(generation).ok_or(()))?,
            controller_node: read.of(first + 2, "controller_node", NodeId::new)?,
            controller_boot: read.of(first + 3, "controller_boot", BootId::new)?,
            target: read.of(first + 4, "target", TargetId::new)?,
            target_boot: read.of(first + 6, "target_boot", BootId::new)?,
            role: read.of(first + 7, "role", |text| text.parse::<Role>())?,
            operation: read.of(first + 8, "operation", OperationId::new)?,
        },
        request: read.text(first + 9, "request")?,
        claims: read.parsed("claims", self::claims(&claims).ok_or(()))?,
        initial_deadline: read.instant(first + 11, "initial_deadline")?,
        deadline: read.instant(first + 12, "deadline")?,
        retired: read.integer(first + 13, "retired")? != 0,
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
    "CAST(0 AS BIGINT), target, boot, roles, CAST(0 AS BIGINT), CAST(0 AS BIGINT), revision";
pub(crate) const POOL_COLUMNS: &str = "CAST(1 AS BIGINT), scope, role, '', capacity, used, revision";

pub(crate) fn is_pool(row: &Row) -> Result<bool, Fault> {
    Ok(row.integer(0usize)? != 0)
}

pub(crate) fn target(row: &Row) -> Result<(TargetId, Target), Fault> {
    let key = row.text(1usize)?;
    let read = Read {
        row,
        table: "placement_targets",
        key: &key,
    };
    let target = Target {
        boot: read.of(2, "boot", BootId::new)?,
        roles: read.of(3, "roles", |text| roles(&text).ok_or(()))?,
        revision: Revision::new(read.count(6, "revision")?),
    };
    Ok((read.parsed("target", TargetId::new(&key))?, target))
}

pub(crate) fn pool(row: &Row) -> Result<((ScopeName, Role), Pool), Fault> {
    let key = row.text(1usize)?;
    let read = Read {
        row,
        table: "placement_pools",
        key: &key,
    };
    let role = read.of(2, "role", |text| text.parse::<Role>())?;
    let capacity = read.count(4, "capacity")?;
    let pool = Pool {
        capacity: read.parsed("capacity", Capacity::new(capacity))?,
        used: read.count(5, "used")?,
        revision: Revision::new(read.count(6, "revision")?),
    };
    Ok(((read.parsed("scope", ScopeName::new(&key))?, role), pool))
}

pub(crate) fn coordinator(row: &Row) -> Result<Published, StoreError> {
    let key = row.text(0usize)?;
    let read = published(row, &key);
    Ok(Published { key, read })
}

/// A coordinator's row: its key, and the rest as far as it can be read.
pub(crate) struct Published {
    pub(crate) key: String,
    pub(crate) read: Result<(NodeId, Coordinator), Unreadable>,
}

fn published(row: &Row, key: &str) -> Result<(NodeId, Coordinator), Unreadable> {
    let read = Read {
        row,
        table: "placement_coordinators",
        key,
    };
    let coordinator = Coordinator {
        boot: read.of(1, "boot", BootId::new)?,
        schema: read.count(2, "known_schema")?,
        quota: read.count(3, "quota")?,
        maximum_lease: read.span(4, "maximum_lease")?,
        transaction_timeout: read.span(5, "transaction_timeout")?,
        lock_timeout: read.span(6, "lock_timeout")?,
        verify_timeout: read.span(7, "verify_timeout")?,
        clock_skew: read.span(8, "clock_skew")?,
    };
    Ok((read.parsed("node", NodeId::new(key))?, coordinator))
}

/// The columns of a piece of evidence, as [`evidence`] reads them.
pub(crate) const EVIDENCE_COLUMNS: &str =
    "e.generation, e.part, e.author_node, e.author_boot, e.kind, e.body, e.recorded";
/// How many they are.
pub(crate) const EVIDENCE_WIDTH: usize = 7;

/// The piece whose columns begin at `first` and which is about `fence`. `None` where an outer join found none,
/// and for one about another generation, which nothing can come of.
pub(crate) fn evidence(row: &Row, first: usize, fence: &Fence) -> Result<Option<StoredEvidence>, Unreadable> {
    let key = fence.session.to_string();
    let read = Read {
        row,
        table: "placement_evidence",
        key: &key,
    };
    let Some(generation) = read.parsed("generation", row.opt_integer(first))? else {
        return Ok(None);
    };
    if u64::try_from(generation) != Ok(fence.generation.get()) {
        return Ok(None);
    }
    let node = read.text(first + 2, "author_node")?;
    let boot = read.of(first + 3, "author_boot", BootId::new)?;
    let author = match read.text(first + 1, "part")?.as_str() {
        "target" if node == node_of(&fence.target) => Author::Target { boot },
        "source" => Author::Source {
            node: read.parsed("author_node", NodeId::new(node))?,
            boot,
        },
        _ => return Err(corrupt(read.table, "part", &key)),
    };
    Ok(Some(StoredEvidence {
        fence: fence.clone(),
        author,
        kind: read.of(first + 4, "kind", |text| EvidenceKind::parse(&text).ok_or(()))?,
        body: read.of(first + 5, "body", EvidenceBody::new)?,
        at: read.instant(first + 6, "recorded")?,
    }))
}
