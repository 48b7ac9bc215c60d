//! Writing what a group of commands changed: each row once, as it is after the last of them.

use std::collections::{BTreeMap, BTreeSet};

use ether_store::{Sql, Tx, Value};
use ether_types::{NodeId, Role, ScopeName, SessionId, TargetId};

use crate::evidence::StoredEvidence;
use crate::sql::load::Snapshot;
use crate::sql::rows::{self, SESSION_COLUMNS, integer, micros};
use crate::sql::{Fault, in_list, pad, rows_of, values_table};
use crate::state::{Change, Coordinator, Pool, Session, State, Target};

/// What a group changed, gathered as its commands are decided.
#[derive(Debug, Default)]
pub(crate) struct Dirty {
    any: bool,
    /// Each changed session as it was loaded.
    sessions: BTreeMap<SessionId, Option<Session>>,
    pools: BTreeSet<(ScopeName, Role)>,
    targets: BTreeSet<TargetId>,
    coordinators: BTreeSet<NodeId>,
    consumed: BTreeSet<SessionId>,
    evidence: Vec<StoredEvidence>,
}

impl Dirty {
    /// Notes `changes`, which are about to be applied to `before`.
    pub(crate) fn note(&mut self, before: &State, changes: &[Change]) -> Result<(), Fault> {
        for change in changes {
            self.any = true;
            match change {
                Change::Meta(_) => {}
                Change::Session(session) => {
                    let key = &session.fence.session;
                    if !self.sessions.contains_key(key) {
                        let loaded = before.sessions.get(key).map_err(crate::decide::Defect::from)?;
                        self.sessions.insert(key.clone(), loaded.cloned());
                    }
                }
                Change::Pool(scope, role, _) => {
                    self.pools.insert((scope.clone(), *role));
                }
                Change::Target(target, _) => {
                    self.targets.insert(target.clone());
                }
                Change::Coordinator(node, _) => {
                    self.coordinators.insert(node.clone());
                }
                Change::Evidence(evidence) => self.evidence.push((**evidence).clone()),
                Change::EvidenceConsumed(session) => {
                    self.consumed.insert(session.clone());
                    self.evidence.retain(|piece| piece.fence.session != *session);
                }
            }
        }
        Ok(())
    }
}

/// Writes the changed rows of the snapshot's state. Nothing changed, nothing written: the transaction stays a
/// reader.
pub(crate) async fn write(tx: &mut Tx, snapshot: &Snapshot, dirty: &Dirty) -> Result<(), Fault> {
    if !dirty.any {
        return Ok(());
    }
    let state = &snapshot.state;
    let defect = crate::decide::Defect::from;
    let mut all = Statements::default();
    all.raise_revision(state);

    let mut moved = Vec::new();
    let mut whole = Vec::new();
    let mut freed = Vec::new();
    for (key, before) in &dirty.sessions {
        let Some(now) = state.sessions.get(key).map_err(defect)? else {
            continue;
        };
        let same_claims = before.as_ref().is_some_and(|before| {
            before.fence.generation == now.fence.generation && before.retired == now.retired
        });
        if same_claims {
            moved.push(now);
            continue;
        }
        if before.as_ref().is_some_and(|before| !before.retired) {
            freed.push(key.to_string());
        }
        whole.push(now);
    }
    all.move_deadlines(&moved);
    all.put_sessions(&whole);
    all.delete_by_session("placement_claims", &freed);
    all.put_claims(&whole);

    let mut pools: Vec<(&ScopeName, Role, Pool)> = Vec::with_capacity(dirty.pools.len());
    for key in &dirty.pools {
        if let Some(pool) = state.pools.get(key).map_err(defect)? {
            pools.push((&key.0, key.1, *pool));
        }
    }
    all.put_pools(&pools);
    for target in &dirty.targets {
        if let Some(row) = state.targets.get(target).map_err(defect)? {
            all.put_target(target, row);
        }
    }
    for node in &dirty.coordinators {
        let row = state.coordinators.as_ref().and_then(|all| all.rows.get(node));
        all.put_coordinator(node, row);
    }
    let consumed = dirty.consumed.intersection(&snapshot.evidenced);
    let consumed: Vec<String> = consumed.map(SessionId::to_string).collect();
    all.delete_by_session("placement_evidence", &consumed);
    all.put_evidence(&dirty.evidence);
    all.run(tx).await
}

/// What is to be written, in the order in which it is.
#[derive(Default)]
struct Statements {
    all: Vec<(Sql, Vec<Value>)>,
    /// How many rows a statement has to change, where anything else means that somebody wrote without the lock.
    expected: Vec<Option<u64>>,
}

impl Statements {
    fn put(&mut self, sql: impl Into<Sql>, values: Vec<Value>, expected: Option<u64>) {
        self.all.push((sql.into(), values));
        self.expected.push(expected);
    }

    async fn run(self, tx: &mut Tx) -> Result<(), Fault> {
        let changed = tx.execute_all(&self.all).await?;
        let as_expected = changed.len() == self.expected.len()
            && changed
                .iter()
                .zip(&self.expected)
                .all(|(changed, expected)| expected.is_none_or(|expected| expected == *changed));
        match as_expected {
            true => Ok(()),
            false => Err(Fault::Revision),
        }
    }

    /// The ledger's own row, and the proof that nobody else wrote since it was read.
    fn raise_revision(&mut self, state: &State) {
        let meta = &state.meta;
        self.put(
            "UPDATE placement_meta SET cluster = $1, mutations = $2, total = $3, retired = $4, ceiling = $5, \
             clock = $6, epoch = $7 WHERE id = 1 AND mutations = $8",
            vec![
                Value::from(meta.cluster.as_ref().map(|cluster| cluster.as_str().to_owned())),
                integer(meta.revision.saturating_add(1)),
                integer(meta.total),
                integer(meta.retired),
                Value::Integer(meta.ceiling.map(|c| i64::try_from(c.get()).unwrap_or(i64::MAX))),
                Value::from(meta.clock.as_micros()),
                integer(meta.epoch),
                integer(meta.revision),
            ],
            Some(1),
        );
    }

    fn move_deadlines(&mut self, sessions: &[&Session]) {
        for slice in pad(sessions) {
            let table = values_table(slice.len(), 2);
            let sql = format!(
                "UPDATE placement_sessions SET deadline = moved.column2 FROM (VALUES {table}) AS moved \
                 WHERE session = moved.column1"
            );
            let mut values = Vec::with_capacity(slice.len() * 2);
            for session in slice {
                values.push(Value::from(session.fence.session.to_string()));
                values.push(Value::from(session.deadline.as_micros()));
            }
            self.put(Sql::generated(sql), values, None);
        }
    }

    fn put_sessions(&mut self, sessions: &[&Session]) {
        for slice in rows_of(sessions) {
            let table = values_table(slice.len(), 14);
            // Generations only grow, here as well.
            let sql = format!(
                "INSERT INTO placement_sessions ({SESSION_COLUMNS}) VALUES {table} \
                 ON CONFLICT (session) DO UPDATE SET generation = excluded.generation, \
                 controller_node = excluded.controller_node, controller_boot = excluded.controller_boot, \
                 target = excluded.target, target_node = excluded.target_node, \
                 target_boot = excluded.target_boot, role = excluded.role, operation = excluded.operation, \
                 request = excluded.request, claims = excluded.claims, \
                 initial_deadline = excluded.initial_deadline, deadline = excluded.deadline, \
                 retired = excluded.retired \
                 WHERE placement_sessions.generation <= excluded.generation"
            );
            let mut values = Vec::with_capacity(slice.len() * 14);
            slice
                .iter()
                .for_each(|session| rows::session_values(session, &mut values));
            self.put(Sql::generated(sql), values, Some(slice.len() as u64));
        }
    }

    fn put_claims(&mut self, sessions: &[&Session]) {
        let mut claims = Vec::new();
        for session in sessions.iter().filter(|session| !session.retired) {
            for (scope, units) in session.claims.iter() {
                claims.push([
                    Value::from(session.fence.session.to_string()),
                    Value::from(scope.as_str()),
                    Value::from(session.fence.role.as_str()),
                    integer(units.get()),
                ]);
            }
        }
        for slice in rows_of(&claims) {
            let table = values_table(slice.len(), 4);
            let sql = format!("INSERT INTO placement_claims (session, scope, role, units) VALUES {table}");
            self.put(Sql::generated(sql), slice.as_flattened().to_vec(), None);
        }
    }

    fn put_pools(&mut self, pools: &[(&ScopeName, Role, Pool)]) {
        for slice in rows_of(pools) {
            let table = values_table(slice.len(), 5);
            let sql = format!(
                "INSERT INTO placement_pools (scope, role, capacity, used, revision) VALUES {table} \
                 ON CONFLICT (scope, role) DO UPDATE SET capacity = excluded.capacity, used = excluded.used, \
                 revision = excluded.revision"
            );
            let mut values = Vec::with_capacity(slice.len() * 5);
            for (scope, role, pool) in slice {
                values.extend([
                    Value::from(scope.as_str()),
                    Value::from(role.as_str()),
                    integer(pool.capacity.get()),
                    integer(pool.used),
                    integer(pool.revision.get()),
                ]);
            }
            self.put(Sql::generated(sql), values, None);
        }
    }

    fn delete_by_session(&mut self, table: &str, sessions: &[String]) {
        for slice in pad(sessions) {
            let list = in_list(slice.len());
            let sql = format!("DELETE FROM {table} WHERE session IN ({list})");
            let values: Vec<Value> = slice.into_iter().map(Value::from).collect();
            self.put(Sql::generated(sql), values, None);
        }
    }

    fn put_target(&mut self, target: &TargetId, row: &Target) {
        self.put(
            "INSERT INTO placement_targets (target, boot, roles, revision) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (target) DO UPDATE SET boot = excluded.boot, roles = excluded.roles, \
             revision = excluded.revision",
            vec![
                Value::from(target.as_str()),
                Value::from(row.boot.as_str()),
                Value::from(rows::roles_text(&row.roles)),
                integer(row.revision.get()),
            ],
            None,
        );
    }

    fn put_coordinator(&mut self, node: &NodeId, row: Option<&Coordinator>) {
        let Some(row) = row else {
            let sql = "DELETE FROM placement_coordinators WHERE node = $1";
            self.put(sql, vec![Value::from(node.as_str())], None);
            return;
        };
        self.put(
            "INSERT INTO placement_coordinators (node, boot, known_schema, quota, maximum_lease, \
             transaction_timeout, lock_timeout, verify_timeout, clock_skew) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) \
             ON CONFLICT (node) DO UPDATE SET boot = excluded.boot, known_schema = excluded.known_schema, \
             quota = excluded.quota, maximum_lease = excluded.maximum_lease, \
             transaction_timeout = excluded.transaction_timeout, lock_timeout = excluded.lock_timeout, \
             verify_timeout = excluded.verify_timeout, clock_skew = excluded.clock_skew",
            vec![
                Value::from(node.as_str()),
                Value::from(row.boot.as_str()),
                integer(row.schema),
                integer(row.quota),
                micros(row.maximum_lease),
                micros(row.transaction_timeout),
                micros(row.lock_timeout),
                micros(row.verify_timeout),
                micros(row.clock_skew),
            ],
            None,
        );
    }

    fn put_evidence(&mut self, pieces: &[StoredEvidence]) {
        for slice in rows_of(pieces) {
            let table = values_table(slice.len(), 8);
            let sql = format!(
                "INSERT INTO placement_evidence (session, generation, part, author_node, author_boot, kind, body, \
                 recorded) VALUES {table}"
            );
            let mut values = Vec::with_capacity(slice.len() * 8);
            for piece in slice {
                values.extend([
                    Value::from(piece.fence.session.to_string()),
                    integer(piece.fence.generation.get()),
                    Value::from(piece.author.part()),
                    Value::from(piece.author.node(&piece.fence.target)),
                    Value::from(piece.author.boot().as_str()),
                    Value::from(piece.kind.as_str()),
                    Value::from(piece.body.as_str()),
                    Value::from(piece.at.as_micros()),
                ]);
            }
            self.put(Sql::generated(sql), values, None);
        }
    }
}
