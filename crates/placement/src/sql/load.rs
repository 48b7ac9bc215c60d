//! Loading what a group of commands needs, in as few statements as it takes.

use std::collections::{BTreeMap, BTreeSet};

use ether_store::{Sql, Tx, Value};
use ether_types::{NodeId, Role, ScopeName, SessionId, TargetId};

use crate::command::Command;
use crate::evidence::StoredEvidence;
use crate::sql::rows::{
    self, EVIDENCE_COLUMNS, EVIDENCE_WIDTH, META_COLUMNS, META_WIDTH, POOL_COLUMNS, Published,
    SESSION_COLUMNS, SESSION_JOINED, SESSION_WIDTH, TARGET_COLUMNS, corrupt,
};
use crate::sql::{Fault, in_list, in_list_from, pad};
use crate::state::{Coordinators, Own, State};

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
    /// Coordinators whose rows have to be readable: what such a one published decides about the command itself.
    published: BTreeSet<NodeId>,
    lasting: bool,
}

impl Needs {
    fn add(&mut self, own: &Own, command: &Command) {
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
            Command::Join { takes_over } => {
                self.coordinators = true;
                // Whoever takes over writes a row of its own, whatever stood there.
                if !takes_over {
                    self.published.insert(own.node.clone());
                }
            }
            Command::Withdraw { node, .. } => {
                self.coordinators = true;
                self.published.insert(node.clone());
            }
            Command::Raise { .. } => {}
            Command::Rebase { .. } => self.lasting = true,
        }
    }
}

/// What was read under the lock.
pub(crate) struct Snapshot {
    pub(crate) state: State,
    /// Sessions that evidence is kept about, among those that may be retired.
    pub(crate) evidenced: BTreeSet<SessionId>,
}

/// The snapshot for `commands`, read under the lock.
pub(crate) async fn load(tx: &mut Tx, own: &Own, commands: &[Command]) -> Result<Snapshot, Fault> {
    let mut needs = Needs::default();
    commands.iter().for_each(|command| needs.add(own, command));
    let mut snapshot = load_sessions(tx, own, &mut needs).await?;
    let state = &mut snapshot.state;
    load_targets_and_pools(tx, state, &needs).await?;
    load_evidence(tx, state, &needs.evidence).await?;
    if needs.coordinators {
        let sql = "SELECT node, boot, known_schema, quota, maximum_lease, transaction_timeout, lock_timeout, \
                   verify_timeout, clock_skew FROM placement_coordinators";
        let mut all = Coordinators::default();
        for row in &tx.query(sql, &[]).await? {
            let Published { key, read } = rows::coordinator(row)?;
            match read {
                Ok((node, coordinator)) => {
                    all.rows.insert(node, coordinator);
                }
                Err(unreadable) => {
                    if needs.published.iter().any(|node| node.as_str() == key) {
                        return Err(unreadable.into());
                    }
                    // Nobody else's call fails by it, but it counts for one that might say anything.
                    if key != own.node.as_str() {
                        all.unreadable.push(unreadable);
                    }
                }
            }
        }
        state.coordinators = Some(all);
    }
    if needs.lasting {
        // The indexes over unretired sessions hold nothing else, and this is no everyday question.
        let sql = format!(
            "SELECT {SESSION_COLUMNS} FROM placement_sessions WHERE retired = 0 \
             ORDER BY deadline DESC, session LIMIT 1"
        );
        let row = tx.first(Sql::generated(sql), &[]).await?;
        let session = row.map(|row| rows::session(&row, 0, &own.cluster)).transpose()?;
        state.lasting = Some(session.flatten().map(|session| (session.fence, session.deadline)));
    }
    Ok(snapshot)
}

/// The ledger's own row and the sessions in one statement. Where some may be retired, it also tells which of
/// them have evidence to consume.
async fn load_sessions(tx: &mut Tx, own: &Own, needs: &mut Needs) -> Result<Snapshot, Fault> {
    let keys: Vec<String> = needs.sessions.iter().map(SessionId::to_string).collect();
    let mut answers = Vec::with_capacity(keys.len().max(1));
    if keys.is_empty() {
        let sql = format!("SELECT {META_COLUMNS} FROM placement_meta m WHERE m.id = 1");
        answers.extend(tx.query(Sql::generated(sql), &[]).await?);
    }
    let evidenced = match needs.released.is_empty() {
        true => "CAST(0 AS BIGINT)",
        false => {
            "CASE WHEN EXISTS (SELECT 1 FROM placement_evidence e WHERE e.session = s.session) \
             THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END"
        }
    };
    for keys in pad(&keys) {
        let sql = format!(
            "SELECT {META_COLUMNS}, {SESSION_JOINED}, {evidenced} FROM placement_meta m \
             LEFT JOIN placement_sessions s ON s.session IN ({}) WHERE m.id = 1",
            in_list(keys.len())
        );
        let values: Vec<Value> = keys.into_iter().map(Value::from).collect();
        answers.extend(tx.query(Sql::generated(sql), &values).await?);
    }
    let first = answers
        .first()
        .ok_or_else(|| corrupt("placement_meta", "id", "the ledger itself"))?;
    let mut snapshot = Snapshot {
        state: State::new(own.clone(), rows::meta(first)?),
        evidenced: BTreeSet::new(),
    };
    for key in &needs.sessions {
        snapshot.state.sessions.set(key.clone(), None);
    }
    if keys.is_empty() {
        return Ok(snapshot);
    }
    for row in &answers {
        let Some(session) = rows::session(row, META_WIDTH, &own.cluster)? else {
            continue;
        };
        let key = session.fence.session.clone();
        if needs.released.contains(&key) {
            needs
                .scopes
                .extend(session.claims.iter().map(|(scope, _)| scope.clone()));
        }
        if row.integer(META_WIDTH + SESSION_WIDTH)? != 0 {
            snapshot.evidenced.insert(key.clone());
        }
        snapshot.state.sessions.set(key, Some(session));
    }
    Ok(snapshot)
}

/// The targets and the pools, in one statement while neither is more than one list.
async fn load_targets_and_pools(tx: &mut Tx, state: &mut State, needs: &Needs) -> Result<(), Fault> {
    for key in &needs.targets {
        state.targets.set(key.clone(), None);
    }
    for scope in &needs.scopes {
        for role in Role::ALL {
            state.pools.set((scope.clone(), role), None);
        }
    }
    let targets: Vec<&str> = needs.targets.iter().map(TargetId::as_str).collect();
    let scopes: Vec<&str> = needs.scopes.iter().map(ScopeName::as_str).collect();
    let (mut targets, mut scopes) = (pad(&targets).into_iter(), pad(&scopes).into_iter());
    loop {
        let (some_targets, some_scopes) = (targets.next(), scopes.next());
        let mut parts = Vec::with_capacity(2);
        let mut values: Vec<Value> = Vec::new();
        for (columns, table, key, keys) in [
            (TARGET_COLUMNS, "placement_targets", "target", some_targets),
            (POOL_COLUMNS, "placement_pools", "scope", some_scopes),
        ] {
            let Some(keys) = keys else { continue };
            let list = in_list_from(values.len() + 1, keys.len());
            parts.push(format!("SELECT {columns} FROM {table} WHERE {key} IN ({list})"));
            values.extend(keys.into_iter().map(Value::from));
        }
        if parts.is_empty() {
            return Ok(());
        }
        let sql = Sql::generated(parts.join(" UNION ALL "));
        for row in &tx.query(sql, &values).await? {
            if rows::is_pool(row)? {
                let (key, pool) = rows::pool(row)?;
                state.pools.set(key, Some(pool));
            } else {
                let (key, target) = rows::target(row)?;
                state.targets.set(key, Some(target));
            }
        }
    }
}

/// What is kept about the generation that each session's row has.
async fn load_evidence(tx: &mut Tx, state: &mut State, sessions: &BTreeSet<SessionId>) -> Result<(), Fault> {
    let mut kept: BTreeMap<SessionId, Vec<StoredEvidence>> = BTreeMap::new();
    for key in sessions {
        state.evidence.set(key.clone(), None);
    }
    let keys: Vec<String> = sessions.iter().map(SessionId::to_string).collect();
    for keys in pad(&keys) {
        let sql = format!(
            "SELECT {EVIDENCE_COLUMNS}, e.session FROM placement_evidence e WHERE e.session IN ({})",
            in_list(keys.len())
        );
        let values: Vec<Value> = keys.into_iter().map(Value::from).collect();
        for row in &tx.query(Sql::generated(sql), &values).await? {
            let owner = row.text(EVIDENCE_WIDTH)?.parse::<SessionId>();
            let owner = owner.map_err(|_| corrupt("placement_evidence", "session", "?"))?;
            let session = state.sessions.get(&owner).map_err(crate::decide::Defect::from)?;
            let Some(session) = session else { continue };
            // A piece that nobody can have written keeps out nobody who writes another.
            if let Ok(Some(piece)) = rows::evidence(row, 0, &session.fence) {
                kept.entry(owner).or_default().push(piece);
            }
        }
    }
    for (session, pieces) in kept {
        state.evidence.set(session, Some(pieces));
    }
    Ok(())
}
