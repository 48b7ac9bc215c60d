//! Reads without the lock: what somebody looks at, and nothing that is settled by it (P25).
//!
//! Each is one statement with the database's clock in it. Since a renewal may be committing meanwhile, an
//! answer can be older than the moment it arrives; it never shows authority that the ledger did not hold.

use ether_store::{Bound, Row, Sql, Tables, Value};
use ether_types::{BootId, ClusterId, Fence, NodeId, SessionId, Timestamp};

use crate::bounds::PageSize;
use crate::decide::record;
use crate::evidence::StoredEvidence;
use crate::outcome::{Record, Usage};
use crate::sql::load::EVIDENCE_COLUMNS;
use crate::sql::rows::{self, SESSION_COLUMNS, corrupt};
use crate::sql::{Fault, in_list, pad};

/// Whose unretired assignments are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Every boot of this controller's node.
    Controller(NodeId),
    /// The devices of this node, under this boot.
    Target {
        /// The node.
        node: NodeId,
        /// The boot that the assignments name.
        boot: BootId,
    },
}

/// One page of unretired assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// In the database's order of session identities.
    pub records: Vec<Record>,
    /// Pass it on for the next page; `None` on the last one.
    pub next: Option<SessionId>,
}

/// Which page of whose assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unretired {
    /// Whose.
    pub owner: Owner,
    /// Where the page before ended.
    pub after: Option<SessionId>,
    /// How many at most.
    pub limit: PageSize,
}

pub(crate) const BY_CONTROLLER: &str = "controller_node = $1 AND retired = 0 AND session > $2";
pub(crate) const BY_TARGET: &str = "target_node = $1 AND target_boot = $2 AND retired = 0 AND session > $3";

/// A statement over sessions that reads the clock too.
pub(crate) fn sessions_sql(tables: &Tables, rest: &str) -> Sql {
    let clock = tables.clock_sql().unwrap_or("0");
    Sql::generated(format!(
        "SELECT {SESSION_COLUMNS}, {clock} FROM placement_sessions WHERE {rest}"
    ))
}

pub(crate) async fn unretired(
    tables: &Tables,
    cluster: &ClusterId,
    bound: Bound,
    asked: Unretired,
) -> Result<Page, Fault> {
    // The empty text sorts before every session.
    let after = asked.after.map_or(String::new(), |session| session.to_string());
    let limit = usize::try_from(asked.limit.get()).unwrap_or(usize::MAX);
    let more = i64::try_from(asked.limit.get())
        .unwrap_or(i64::MAX)
        .saturating_add(1);
    let (rest, values) = match asked.owner {
        Owner::Controller(node) => (
            format!("{BY_CONTROLLER} ORDER BY session LIMIT $3"),
            vec![Value::from(node.as_str()), Value::from(after), Value::from(more)],
        ),
        Owner::Target { node, boot } => (
            format!("{BY_TARGET} ORDER BY session LIMIT $4"),
            vec![
                Value::from(node.as_str()),
                Value::from(boot.as_str()),
                Value::from(after),
                Value::from(more),
            ],
        ),
    };
    let rows = tables.query(bound, sessions_sql(tables, &rest), values).await?;
    let mut records = records(tables, cluster, bound, &rows).await?;
    let beyond = records.len() > limit;
    records.truncate(limit);
    let last = records.last().map(|record| record.fence.session.clone());
    Ok(Page {
        records,
        next: last.filter(|_| beyond),
    })
}

/// One record for each of `sessions`, in their order. Up to 1,024 of them are one statement.
pub(crate) async fn lookup_many(
    tables: &Tables,
    cluster: &ClusterId,
    bound: Bound,
    sessions: &[SessionId],
) -> Result<Vec<Option<Record>>, Fault> {
    let mut found = std::collections::HashMap::with_capacity(sessions.len());
    let keys: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
    for keys in pad(&keys) {
        let rest = format!("session IN ({})", in_list(keys.len()));
        let values = keys.into_iter().map(Value::from).collect();
        let rows = tables.query(bound, sessions_sql(tables, &rest), values).await?;
        for record in records(tables, cluster, bound, &rows).await? {
            found.insert(record.fence.session.clone(), record);
        }
    }
    Ok(sessions
        .iter()
        .map(|session| found.get(session).cloned())
        .collect())
}

async fn records(
    tables: &Tables,
    cluster: &ClusterId,
    bound: Bound,
    rows: &[Row],
) -> Result<Vec<Record>, Fault> {
    // Where the statement had no clock in it, a reading after it is the careful one: authority may only
    // look shorter by it.
    let after = match tables.clock_sql() {
        Some(_) => None,
        None => Some(tables.now(bound).await?),
    };
    rows.iter()
        .map(|row| {
            let now = match after {
                Some(now) => now,
                None => Timestamp::from_micros(row.integer(14usize)?),
            };
            Ok(record(&rows::session(row, cluster)?, now))
        })
        .collect()
}

pub(crate) async fn usage(tables: &Tables, bound: Bound) -> Result<Usage, Fault> {
    let sql = "SELECT cluster, revision, total, retired, ceiling FROM placement_meta WHERE id = 1";
    let rows = tables.query(bound, sql, Vec::new()).await?;
    let meta = rows::meta(rows.first().ok_or_else(|| corrupt("placement_meta", "id"))?)?;
    Ok(Usage {
        total: meta.total,
        retired: meta.retired,
        ceiling: meta.ceiling,
        revision: meta.revision,
    })
}

pub(crate) async fn evidence(
    tables: &Tables,
    bound: Bound,
    fence: &Fence,
) -> Result<Vec<StoredEvidence>, Fault> {
    let sql = format!(
        "SELECT {EVIDENCE_COLUMNS} FROM placement_evidence WHERE session = $1 AND generation = $2 \
         ORDER BY part"
    );
    let generation = rows::integer(fence.generation.get());
    let values = vec![Value::from(fence.session.to_string()), generation];
    let rows = tables.query(bound, Sql::generated(sql), values).await?;
    rows.iter().map(|row| rows::evidence(row, fence)).collect()
}
