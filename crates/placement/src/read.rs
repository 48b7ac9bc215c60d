//! Reads without the lock: what somebody looks at, and nothing that is settled by it (P25).
//!
//! Each is one statement that reads the ledger's own row and the database's clock as well: whose ledger it is is
//! known even where it holds nothing that was asked for, and no answer is judged at an instant before the ledger's
//! latest. Since a renewal may be committing meanwhile, an answer can be older than the moment it arrives; it
//! never shows authority that the ledger did not hold.

use std::collections::HashMap;

use ether_store::{Bound, Deadline, Row, Sql, Tables, Value};
use ether_types::{BootId, ClusterId, Fence, NodeId, SessionId, Timestamp};

use crate::bounds::PageSize;
use crate::decide::record;
use crate::evidence::StoredEvidence;
use crate::outcome::{Record, Usage};
use crate::queue::Latest;
use crate::sql::rows::{
    self, EVIDENCE_COLUMNS, META_COLUMNS, META_WIDTH, SESSION_COLUMNS, SESSION_JOINED, SESSION_WIDTH, corrupt,
};
use crate::sql::{Fault, Unreadable, in_list, pad};
use crate::state::Meta;

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
    /// Rows of this page that the ledger cannot have written: each hides an assignment, and no other one.
    pub unreadable: Vec<Unreadable>,
    /// Pass it on for the next page; `None` on the last one.
    pub next: Option<Cursor>,
}

/// Where a page ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(String);

impl From<SessionId> for Cursor {
    /// Behind this session.
    fn from(session: SessionId) -> Self {
        Self(session.into())
    }
}

/// What is kept about one assignment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The pieces of evidence.
    pub pieces: Vec<StoredEvidence>,
    /// Rows that the ledger cannot have written.
    pub unreadable: Vec<Unreadable>,
}

/// Which page of whose assignments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unretired {
    /// Whose.
    pub owner: Owner,
    /// Where the page before ended.
    pub after: Option<Cursor>,
    /// How many at most.
    pub limit: PageSize,
}

/// Why a read has no answer.
#[derive(Debug)]
pub(crate) enum Failed {
    /// The ledger is another cluster's, or nobody's yet.
    Elsewhere(Option<ClusterId>),
    Fault(Fault),
}

impl<F: Into<Fault>> From<F> for Failed {
    fn from(fault: F) -> Self {
        Failed::Fault(fault.into())
    }
}

/// What every read needs of its ledger.
pub(crate) struct Reader<'l> {
    pub(crate) tables: &'l Tables,
    pub(crate) cluster: &'l ClusterId,
    pub(crate) latest: &'l Latest,
    /// Until when the whole call has to be answered.
    pub(crate) deadline: &'l Deadline,
}

const BY_CONTROLLER: &str = "controller_node = $1 AND retired = 0 AND session > $2";
const BY_TARGET: &str = "target_node = $1 AND target_boot = $2 AND retired = 0 AND session > $3";
/// Where the database's clock stands in an answer.
const CLOCK: usize = META_WIDTH + SESSION_WIDTH;

impl Reader<'_> {
    /// A page of what `asked.owner` has not retired.
    pub(crate) async fn unretired(&self, asked: Unretired) -> Result<Page, Failed> {
        // The empty text sorts before every session.
        let after = asked.after.map_or(String::new(), |cursor| cursor.0);
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
        let mut rows = self.sessions(&rest, values).await?;
        let beyond = rows.len() > limit;
        rows.truncate(limit);
        let last = rows.last().map(|(key, _)| Cursor(key.clone()));
        let mut page = Page {
            records: Vec::with_capacity(rows.len()),
            unreadable: Vec::new(),
            next: last.filter(|_| beyond),
        };
        for (_, read) in rows {
            match read {
                Ok(record) => page.records.push(record),
                Err(unreadable) => page.unreadable.push(unreadable),
            }
        }
        Ok(page)
    }

    /// One record for each of `sessions`, in their order. Up to 1,024 of them are one statement.
    pub(crate) async fn lookup_many(
        &self,
        sessions: &[SessionId],
    ) -> Result<Vec<Result<Option<Record>, Unreadable>>, Failed> {
        let mut found = HashMap::with_capacity(sessions.len());
        let keys: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
        for keys in pad(&keys) {
            let rest = format!("session IN ({})", in_list(keys.len()));
            let values = keys.into_iter().map(Value::from).collect();
            found.extend(self.sessions(&rest, values).await?);
        }
        let found = keys.iter().map(|key| found.get(key).cloned().transpose());
        Ok(found.collect())
    }

    /// The ledger's counters.
    pub(crate) async fn usage(&self) -> Result<Usage, Failed> {
        let clock = self.tables.clock_sql().unwrap_or("CAST(0 AS BIGINT)");
        let sql = format!("SELECT {META_COLUMNS}, {clock} FROM placement_meta m WHERE m.id = 1");
        let rows = self.query(sql, Vec::new()).await?;
        let row = rows
            .first()
            .ok_or_else(|| corrupt("placement_meta", "id", "the ledger itself"))?;
        let meta = self.own(row)?;
        let clock = self.clock(row, META_WIDTH).await?;
        Ok(Usage {
            total: meta.total,
            retired: meta.retired,
            ceiling: meta.ceiling,
            revision: meta.revision,
            behind: self
                .latest
                .peek(meta.epoch, clock.max(meta.clock))
                .saturating_since(clock),
            epoch: meta.epoch,
        })
    }

    /// What the ledger holds for the fence's session, and what is kept about exactly this fence.
    pub(crate) async fn evidence(&self, fence: &Fence) -> Result<(Option<Record>, Kept), Failed> {
        let clock = self.tables.clock_sql().unwrap_or("CAST(0 AS BIGINT)");
        let sql = format!(
            "SELECT {META_COLUMNS}, {SESSION_JOINED}, {clock}, {EVIDENCE_COLUMNS} FROM placement_meta m \
             LEFT JOIN placement_sessions s ON s.session = $1 \
             LEFT JOIN placement_evidence e ON e.session = s.session AND e.generation = s.generation \
             WHERE m.id = 1 ORDER BY e.part, e.author_node, e.author_boot"
        );
        let rows = self
            .query(sql, vec![Value::from(fence.session.to_string())])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| corrupt("placement_meta", "id", "the ledger itself"))?;
        let meta = self.own(row)?;
        let Some(session) = rows::session(row, META_WIDTH, self.cluster)? else {
            return Ok((None, Kept::default()));
        };
        let now = self
            .latest
            .at(meta.epoch, self.clock(row, CLOCK).await?.max(meta.clock));
        let mut kept = Kept::default();
        if session.fence == *fence {
            for row in &rows {
                match rows::evidence(row, CLOCK + 1, fence) {
                    Ok(piece) => kept.pieces.extend(piece),
                    Err(unreadable) => kept.unreadable.push(unreadable),
                }
            }
        }
        Ok((Some(record(&session, now)), kept))
    }

    /// The sessions that `rest` picks, in its order, each by its key and as far as its row can be read.
    async fn sessions(
        &self,
        rest: &str,
        values: Vec<Value>,
    ) -> Result<Vec<(String, Result<Record, Unreadable>)>, Failed> {
        let clock = self.tables.clock_sql().unwrap_or("CAST(0 AS BIGINT)");
        let sql = format!(
            "SELECT {META_COLUMNS}, {SESSION_JOINED}, {clock} FROM placement_meta m \
             LEFT JOIN (SELECT {SESSION_COLUMNS} FROM placement_sessions WHERE {rest}) s ON 1 = 1 \
             WHERE m.id = 1 ORDER BY s.session"
        );
        let rows = self.query(sql, values).await?;
        let row = rows
            .first()
            .ok_or_else(|| corrupt("placement_meta", "id", "the ledger itself"))?;
        let meta = self.own(row)?;
        let now = self
            .latest
            .at(meta.epoch, self.clock(row, CLOCK).await?.max(meta.clock));
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(key) = rows::session_key(row, META_WIDTH)? else {
                continue;
            };
            let read = match rows::session(row, META_WIDTH, self.cluster) {
                Ok(None) => continue,
                Ok(Some(session)) => Ok(record(&session, now)),
                Err(unreadable) => Err(unreadable),
            };
            records.push((key, read));
        }
        Ok(records)
    }

    /// The ledger's own row, where the ledger is this cluster's.
    fn own(&self, row: &Row) -> Result<Meta, Failed> {
        let meta = rows::meta(row)?;
        match meta.cluster.as_ref() == Some(self.cluster) {
            true => Ok(meta),
            false => Err(Failed::Elsewhere(meta.cluster)),
        }
    }

    /// The database's clock. Where the statement had none in it, a reading after it is the careful one:
    /// authority may only look shorter by it.
    async fn clock(&self, row: &Row, at: usize) -> Result<Timestamp, Fault> {
        Ok(match self.tables.clock_sql() {
            Some(_) => Timestamp::from_micros(row.integer(at)?),
            None => self.tables.now(self.bound()).await?,
        })
    }

    async fn query(&self, sql: String, values: Vec<Value>) -> Result<Vec<Row>, Fault> {
        Ok(self
            .tables
            .query(self.bound(), Sql::generated(sql), values)
            .await?)
    }

    fn bound(&self) -> Bound {
        Bound::of(self.deadline.left())
    }
}
