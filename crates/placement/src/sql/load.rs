//! Loading what a group of commands needs, in as few statements as it takes.

use std::collections::{BTreeMap, BTreeSet};

use ether_store::{Row, Sql, Tx, Value};
use ether_types::{Role, ScopeName, SessionId, TargetId};

use crate::command::Command;
use crate::sql::rows::{self, SESSION_COLUMNS, corrupt};
use crate::sql::{Fault, in_list, pad};
use crate::state::{Own, State};

/// The keys that a group of commands will ask for.
#[derive(Debug, Default)]
struct Needs {
    sessions: BTreeSet<SessionId>,
    /// Sessions whose claims may be released: their pools are known only once their rows are.
    released: BTreeSet<SessionId>,
    evidence: BTreeSet<SessionId>,
    targets: BTreeSet<TargetId>,
    scopes: BTreeSet<ScopeName>,
    coordinators: bool,
}

impl Needs {
    fn add(&mut self, command: &Command) {
        match command {
            Command::SetPool(set) => {
                self.scopes.insert(set.scope.clone());
            }
            Command::SetTarget(set) => {
                self.targets.insert(set.target.clone());
            }
            Command::Reserve(request) => {
                let asked = request.reserve();
                self.sessions.insert(asked.session.clone());
                self.targets.insert(asked.target.clone());
                self.scopes
                    .extend(asked.claims.iter().map(|(scope, _)| scope.clone()));
            }
            Command::Renew { fence, .. } => {
                self.sessions.insert(fence.session.clone());
            }
            Command::Lookup { session } => {
                self.sessions.insert(session.clone());
            }
            Command::Retire { fence } => {
                self.sessions.insert(fence.session.clone());
                self.released.insert(fence.session.clone());
            }
            Command::Record { fence, .. } => {
                self.sessions.insert(fence.session.clone());
                self.evidence.insert(fence.session.clone());
                self.targets.insert(fence.target.clone());
            }
            Command::Join | Command::Withdraw { .. } => self.coordinators = true,
            Command::Raise { .. } => {}
        }
    }
}

/// The snapshot for `commands`, read under the lock.
pub(crate) async fn load(tx: &mut Tx, own: &Own, commands: &[Command]) -> Result<State, Fault> {
    let mut needs = Needs::default();
    commands.iter().for_each(|command| needs.add(command));

    let sql = "SELECT cluster, revision, total, retired, ceiling FROM placement_meta WHERE id = 1";
    let row = tx.first(sql, &[]).await?;
    let meta = rows::meta(&row.ok_or_else(|| corrupt("placement_meta", "id"))?)?;
    let mut state = State::new(own.clone(), meta);

    needs
        .sessions
        .iter()
        .for_each(|key| state.sessions.set(key.clone(), None));
    let keys: Vec<String> = needs.sessions.iter().map(SessionId::to_string).collect();
    let sessions = select(tx, SESSION_COLUMNS, "placement_sessions", "session", &keys).await?;
    for row in &sessions {
        let session = rows::session(row, &own.cluster)?;
        if needs.released.contains(&session.fence.session) {
            needs
                .scopes
                .extend(session.claims.iter().map(|(scope, _)| scope.clone()));
        }
        state.sessions.set(session.fence.session.clone(), Some(session));
    }

    needs
        .targets
        .iter()
        .for_each(|key| state.targets.set(key.clone(), None));
    let keys: Vec<&str> = needs.targets.iter().map(TargetId::as_str).collect();
    for row in &select(tx, "target, boot, roles", "placement_targets", "target", &keys).await? {
        let (key, target) = rows::target(row)?;
        state.targets.set(key, Some(target));
    }

    for scope in &needs.scopes {
        Role::ALL
            .iter()
            .for_each(|role| state.pools.set((scope.clone(), *role), None));
    }
    let keys: Vec<&str> = needs.scopes.iter().map(ScopeName::as_str).collect();
    for row in &select(
        tx,
        "scope, role, capacity, used",
        "placement_pools",
        "scope",
        &keys,
    )
    .await?
    {
        let (key, pool) = rows::pool(row)?;
        state.pools.set(key, Some(pool));
    }

    load_evidence(tx, &mut state, &needs.evidence).await?;
    if needs.coordinators {
        let sql = "SELECT node, boot, known_schema, quota, maximum_lease, transaction_timeout, lock_timeout \
                   FROM placement_coordinators";
        let mut all = BTreeMap::new();
        for row in &tx.query(sql, &[]).await? {
            let (node, coordinator) = rows::coordinator(row)?;
            all.insert(node, coordinator);
        }
        state.coordinators = Some(all);
    }
    Ok(state)
}

pub(crate) const EVIDENCE_COLUMNS: &str =
    "session, generation, part, author_node, author_boot, kind, body, recorded";

async fn load_evidence(tx: &mut Tx, state: &mut State, sessions: &BTreeSet<SessionId>) -> Result<(), Fault> {
    for key in sessions {
        for part in ["target", "source"] {
            state.evidence.set((key.clone(), part), None);
        }
    }
    let keys: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
    for row in &select(tx, EVIDENCE_COLUMNS, "placement_evidence", "session", &keys).await? {
        let owner = row.text(0usize)?.parse::<SessionId>();
        let owner = owner.map_err(|_| corrupt("placement_evidence", "session"))?;
        let session = state.sessions.get(&owner).map_err(crate::decide::Defect::from)?;
        let fence = session.map(|session| session.fence.clone());
        let fence = fence.ok_or_else(|| corrupt("placement_evidence", "session"))?;
        let evidence = rows::evidence(row, &fence)?;
        state
            .evidence
            .set((owner, evidence.author.part()), Some(evidence));
    }
    Ok(())
}

/// The rows of `table` whose `key` is one of `keys`.
async fn select(
    tx: &mut Tx,
    columns: &str,
    table: &str,
    key: &str,
    keys: &[impl AsRef<str> + Clone],
) -> Result<Vec<Row>, Fault> {
    let mut rows = Vec::with_capacity(keys.len());
    for keys in pad(keys) {
        let list = in_list(keys.len());
        let sql = format!("SELECT {columns} FROM {table} WHERE {key} IN ({list})");
        let values: Vec<Value> = keys.iter().map(|key| Value::from(key.as_ref())).collect();
        rows.extend(tx.query(Sql::generated(sql), &values).await?);
    }
    Ok(rows)
}
