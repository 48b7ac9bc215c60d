//! A ledger on a database of its own, with a clock and a verifier that the test controls.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ether_store::{Bound, Component, Location, Store, Tables, Value};
use ether_testkit::postgres::Server;
use ether_types::{
    BootId, ClusterId, Fence, Generation, ManualClock, NodeId, OperationId, Role, ScopeName, SessionId,
    SystemClock, TargetId, Timestamp,
};

use crate::bounds::{Capacity, Claims, Lease, Quota, Units};
use crate::command::{Admission, Reserve, SetPool, SetTarget};
use crate::error::Retirement;
use crate::evidence::{Author, EvidenceKind, StoredEvidence};
use crate::ledger::Ledger;
use crate::options::Options;
use crate::outcome::{Assignment, Joined, PoolSet, Record, Released, Reserved, TargetSet};
use crate::state::Revision;
use crate::verify::{Acceptance, Presented, Verdict, Verifier};

pub(crate) const START: i64 = 1_700_000_000_000_000;
pub(crate) const LONG: Bound = Bound::of(Duration::from_secs(30));

/// How the verifier answers.
#[derive(Clone, Debug, Default)]
pub(crate) enum Mode {
    #[default]
    Accept,
    Refuse,
    /// Accepts what comes with a proof, or finds one by the target or its successor among what was kept.
    Proof,
    Hang,
    Panic,
    Other(Box<Fence>),
    /// Says that it was asked, then waits for a permit, and accepts or not.
    Wait(Arc<tokio::sync::Semaphore>, Arc<tokio::sync::Semaphore>, bool),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    pub(crate) mode: Arc<Mutex<Mode>>,
    pub(crate) seen: Arc<Mutex<Vec<Presented>>>,
}

impl Judge {
    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }
}

impl Verifier for Judge {
    fn verify(&self, presented: Presented) -> Verdict<'_> {
        Box::pin(async move {
            let fence = presented.fence.clone();
            let mode = self.mode.lock().unwrap().clone();
            let kept = |piece: &StoredEvidence| matches!(piece.author, Author::Target { .. });
            let proved = presented.offered.is_some() || presented.stored.iter().any(kept);
            self.seen.lock().unwrap().push(presented);
            let kind = EvidenceKind::Reaped;
            match mode {
                Mode::Accept => Ok(Acceptance { fence, kind }),
                Mode::Proof if proved => Ok(Acceptance { fence, kind }),
                Mode::Refuse | Mode::Proof => Err("not proved".into()),
                Mode::Hang => std::future::pending().await,
                Mode::Panic => panic!("the verifier's own defect"),
                Mode::Other(fence) => Ok(Acceptance { fence: *fence, kind }),
                Mode::Wait(asked, go, accepts) => {
                    asked.add_permits(1);
                    go.acquire().await.unwrap().forget();
                    match accepts {
                        true => Ok(Acceptance { fence, kind }),
                        false => Err("the evidence is gone".into()),
                    }
                }
            }
        })
    }
}

/// Where a world's database is.
#[derive(Clone)]
pub(crate) enum Place {
    Memory,
    File,
    Postgres(Arc<Server>),
}

/// The database's clock, in the test's hand.
#[derive(Clone)]
enum Hand {
    Manual(ManualClock, Arc<Mutex<i64>>),
    /// PostgreSQL: a function in front of the server's own reads this table.
    Table(Tables, Arc<Mutex<i64>>),
}

impl Hand {
    fn now(&self) -> &Mutex<i64> {
        match self {
            Hand::Manual(_, now) | Hand::Table(_, now) => now,
        }
    }
}

pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) location: Location,
    /// The location as text; empty where it has none.
    pub(crate) url: String,
    pub(crate) store: Store,
    pub(crate) ledger: Ledger,
    pub(crate) joined: Joined,
    pub(crate) judge: Judge,
    hand: Hand,
    _directory: Option<tempfile::TempDir>,
}

const CLOCK: Component = Component {
    name: "sim",
    migrations: &[],
};

/// A schema whose clock stands where `sim_now` says.
pub(crate) fn schema_with_clock(server: &Server) -> String {
    let url = server.fresh_schema();
    let schema = url.rsplit('=').next().unwrap().to_owned();
    server.sql(&format!(
        "SET search_path = {schema}; CREATE TABLE sim_now (micros BIGINT NOT NULL); \
         INSERT INTO sim_now VALUES ({START}); \
         CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
         'SELECT timestamptz ''epoch'' + micros * interval ''1 microsecond'' FROM {schema}.sim_now'"
    ));
    format!("{url},pg_catalog")
}

pub(crate) fn options() -> Options {
    let mut options = Options::new(ClusterId::new("test").unwrap(), node("c"), boot("c1"));
    options.quota = Quota::new(5_000).unwrap();
    options.verify_timeout = Duration::from_secs(30);
    options.transaction_timeout = Duration::from_secs(30);
    options.lock_timeout = Duration::from_secs(30);
    options
}

impl World {
    pub(crate) async fn new(place: &Place) -> World {
        Self::with(place, options()).await
    }

    pub(crate) async fn with(place: &Place, options: Options) -> World {
        let manual = ManualClock::at(Timestamp::from_micros(START));
        let directory = tempfile::tempdir().unwrap();
        let url = match place {
            Place::Memory => "sqlite::memory:".to_owned(),
            Place::File => format!("sqlite:{}", directory.path().join("ledger.db").display()),
            Place::Postgres(server) => {
                let server = Arc::clone(server);
                let url = tokio::task::spawn_blocking(move || schema_with_clock(&server));
                url.await.unwrap()
            }
        };
        let location: Location = url.parse().unwrap();
        let store = open(&location, &manual).await;
        let judge = Judge::default();
        let verifier: Arc<dyn Verifier> = Arc::new(judge.clone());
        let (ledger, joined) = Ledger::open(&store, options, Some(verifier)).await.unwrap();
        let hand = match place {
            Place::Postgres(_) => {
                let tables = store.component(&CLOCK).await.unwrap();
                Hand::Table(tables, Arc::new(Mutex::new(START)))
            }
            _ => Hand::Manual(manual, Arc::new(Mutex::new(START))),
        };
        World {
            place: place.clone(),
            location,
            url,
            store,
            ledger,
            joined,
            judge,
            hand,
            _directory: Some(directory),
        }
    }

    /// A world around a ledger that was opened on the machine's own clock.
    pub(crate) fn around(store: Store, ledger: Ledger, location: Location) -> World {
        let manual = ManualClock::at(Timestamp::from_micros(START));
        World {
            place: Place::File,
            location,
            url: String::new(),
            store,
            ledger,
            joined: Joined::Foreign {
                cluster: ClusterId::new("none").unwrap(),
            },
            judge: Judge::default(),
            hand: Hand::Manual(manual, Arc::new(Mutex::new(START))),
            _directory: None,
        }
    }

    /// The same database opened once more, as another process would.
    pub(crate) async fn open_again(&self) -> Store {
        match &self.hand {
            Hand::Manual(clock, _) => open(&self.location, clock).await,
            Hand::Table(..) => open(&self.location, &ManualClock::default()).await,
        }
    }

    /// Another coordinator of the same ledger. In memory it shares the one connection.
    pub(crate) async fn join(&self, options: Options) -> Result<(Ledger, Joined), crate::OpenError> {
        let verifier: Arc<dyn Verifier> = Arc::new(self.judge.clone());
        let store = match &self.place {
            Place::Memory => self.store.clone(),
            _ => self.open_again().await,
        };
        Ledger::open(&store, options, Some(verifier)).await
    }

    pub(crate) async fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap();
        let now = *self.hand.now().lock().unwrap();
        self.set_clock(now + by).await;
    }

    /// Sets the database's clock, backwards too.
    pub(crate) async fn set_clock(&self, micros: i64) {
        let before = std::mem::replace(&mut *self.hand.now().lock().unwrap(), micros);
        match &self.hand {
            Hand::Manual(clock, _) => clock.step_wall(micros - before),
            Hand::Table(tables, _) => {
                tables
                    .write::<_, ether_store::StoreError, _>(LONG, move |tx| {
                        Box::pin(async move {
                            tx.execute("UPDATE sim_now SET micros = $1", &[Value::from(micros)])
                                .await
                        })
                    })
                    .await
                    .unwrap();
            }
        }
    }

    /// A target `w/cpu` of boot `w1` with room for two of [`ask`], and one of `w2` that shares its scratch.
    pub(crate) async fn ready(self) -> World {
        self.pool("slots", 2_000).await;
        self.pool("scratch", 100).await;
        self.pool("more-slots", 10_000).await;
        for (target, incarnation, scopes) in [
            ("w/cpu", "w1", ["slots", "scratch"]),
            ("x/gpu0", "x1", ["more-slots", "scratch"]),
        ] {
            let set = self.target(target, incarnation, None, &scopes).await;
            assert_eq!(set, Ok(()));
        }
        self
    }

    /// Sets a pool whatever it was.
    pub(crate) async fn pool(&self, name: &str, units: u64) {
        let mut set = SetPool {
            scope: scope(name),
            role: Role::Transcode,
            capacity: Capacity::new(units).unwrap(),
            seen: Revision::NONE,
        };
        while let PoolSet::Mismatch { current } = self.ledger.set_pool(set.clone()).await.unwrap() {
            set.seen = current.unwrap().revision;
        }
    }

    /// Sets a target by somebody who saw `expected`, and its newest policy; the error is the incarnation that
    /// stands.
    pub(crate) async fn target(
        &self,
        target: &str,
        boot_id: &str,
        expected: Option<&str>,
        scopes: &[&str],
    ) -> Result<(), Option<BootId>> {
        let roles = match scopes {
            [] => Vec::new(),
            scopes => vec![(Role::Transcode, scopes.iter().map(|name| scope(name)).collect())],
        };
        let mut set = SetTarget {
            target: TargetId::new(target).unwrap(),
            boot: boot(boot_id),
            expected: expected.map(boot),
            seen: Revision::NONE,
            admission: Admission::new(roles).unwrap(),
        };
        loop {
            match self.ledger.set_target(set.clone()).await.unwrap() {
                TargetSet::Set { .. } => return Ok(()),
                TargetSet::Superseded { current } => {
                    let stands = current.as_ref().map(|target| target.boot.clone());
                    if stands != set.expected {
                        return Err(stands);
                    }
                    set.seen = current.map_or(Revision::NONE, |target| target.revision);
                }
            }
        }
    }

    pub(crate) async fn grant(&self, ask: Reserve) -> Assignment {
        match self.ledger.reserve(ask).await.unwrap() {
            Reserved::Granted(assignment) => assignment,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// An assignment in each of the first `count` sessions, all asked for at once.
    pub(crate) async fn grant_all(&self, count: u32) -> Vec<Assignment> {
        let calls: Vec<_> = (0..count)
            .map(|slot| {
                let ledger = self.ledger.clone();
                tokio::spawn(async move { ledger.reserve(ask(slot, "op", 0)).await.unwrap() })
            })
            .collect();
        let mut granted = Vec::new();
        for call in calls {
            match call.await.unwrap() {
                Reserved::Granted(assignment) => granted.push(assignment),
                other => panic!("not granted: {other:?}"),
            }
        }
        granted
    }

    pub(crate) async fn retire(&self, fence: &Fence) -> Released {
        match self.ledger.retire(fence.clone(), None).await.unwrap() {
            Retirement::Proved { released, .. } => released,
            other => panic!("not retired: {other:?}"),
        }
    }

    pub(crate) async fn used(&self, name: &str) -> i64 {
        let rows = self
            .ledger
            .tables()
            .query(
                LONG,
                "SELECT used FROM placement_pools WHERE scope = $1",
                vec![Value::from(name)],
            )
            .await
            .unwrap();
        rows[0].integer(0usize).unwrap()
    }

    pub(crate) async fn audit(&self) {
        audit(self.ledger.tables()).await;
    }
}

/// What a look without the lock shows of sessions whose rows can all be read.
pub(crate) async fn look(ledger: &Ledger, sessions: &[SessionId]) -> Vec<Option<Record>> {
    let seen = ledger.lookup_many(sessions).await.unwrap();
    seen.into_iter().collect::<Result<_, _>>().unwrap()
}

/// The ledger's books: used units are the claims of unretired sessions, and the counters count rows.
pub(crate) async fn audit(tables: &Tables) {
    let drift = "SELECT p.scope FROM placement_pools p WHERE p.used <> (SELECT CAST(COALESCE(SUM(c.units), 0) \
         AS BIGINT) FROM placement_claims c WHERE c.scope = p.scope AND c.role = p.role)";
    let rows = tables.query(LONG, drift, Vec::new()).await.unwrap();
    assert!(
        rows.is_empty(),
        "used units are not the sum of claims in {:?}",
        rows[0].text(0usize)
    );
    let strays = "SELECT c.session FROM placement_claims c LEFT JOIN placement_sessions s \
         ON s.session = c.session AND s.retired = 0 WHERE s.session IS NULL";
    assert!(
        tables.query(LONG, strays, Vec::new()).await.unwrap().is_empty(),
        "a claim without its session"
    );
    let bare = "SELECT s.session FROM placement_sessions s WHERE s.retired = 0 AND NOT EXISTS \
         (SELECT 1 FROM placement_claims c WHERE c.session = s.session AND c.role = s.role)";
    assert!(
        tables.query(LONG, bare, Vec::new()).await.unwrap().is_empty(),
        "a session without its claims"
    );
    let counts = "SELECT m.total, m.retired, (SELECT CAST(COUNT(*) AS BIGINT) FROM placement_sessions), \
         (SELECT CAST(COUNT(*) AS BIGINT) FROM placement_sessions WHERE retired = 1) FROM placement_meta m";
    let row = tables.query(LONG, counts, Vec::new()).await.unwrap().remove(0);
    assert_eq!(
        row.integer(0usize).unwrap(),
        row.integer(2usize).unwrap(),
        "total"
    );
    assert_eq!(
        row.integer(1usize).unwrap(),
        row.integer(3usize).unwrap(),
        "retired"
    );
}

pub(crate) async fn open(location: &Location, clock: &ManualClock) -> Store {
    Store::open(location, ether_store::Options::default(), Arc::new(clock.clone()))
        .await
        .unwrap()
}

/// A store on the machine's own clock.
pub(crate) async fn open_real(location: &Location) -> Store {
    let options = ether_store::Options {
        readers: 1,
        ..ether_store::Options::default()
    };
    Store::open(location, options, Arc::new(SystemClock::new()))
        .await
        .unwrap()
}

pub(crate) fn node(text: &str) -> NodeId {
    NodeId::new(text).unwrap()
}

pub(crate) fn boot(text: &str) -> BootId {
    BootId::new(text).unwrap()
}

pub(crate) fn scope(text: &str) -> ScopeName {
    ScopeName::new(text).unwrap()
}

pub(crate) fn session(slot: u32) -> SessionId {
    SessionId::new(node("c"), slot)
}

pub(crate) fn claims(list: &[(&str, u64)]) -> Claims {
    Claims::new(
        list.iter()
            .map(|(name, units)| (scope(name), Units::new(*units).unwrap())),
    )
    .unwrap()
}

/// A reservation on `w/cpu` of 1,000 slots and 10 scratch for 30 s.
pub(crate) fn ask(slot: u32, operation: &str, expected: u64) -> Reserve {
    Reserve {
        session: session(slot),
        controller_node: node("c"),
        controller_boot: boot("c1"),
        target: TargetId::new("w/cpu").unwrap(),
        target_boot: boot("w1"),
        role: Role::Transcode,
        operation: OperationId::new(operation).unwrap(),
        expected: Generation::new(expected).unwrap(),
        claims: claims(&[("slots", 1_000), ("scratch", 10)]),
        lease: Lease::new(Duration::from_secs(30)).unwrap(),
    }
}

/// As [`ask`], on `x/gpu0`.
pub(crate) fn ask_gpu(slot: u32, operation: &str, expected: u64) -> Reserve {
    Reserve {
        target: TargetId::new("x/gpu0").unwrap(),
        target_boot: boot("x1"),
        claims: claims(&[("more-slots", 1_000), ("scratch", 10)]),
        ..ask(slot, operation, expected)
    }
}

pub(crate) fn later(assignment: &Assignment, by: Duration) -> Timestamp {
    assignment.initial_deadline.checked_add(by).unwrap()
}
