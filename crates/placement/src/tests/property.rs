//! Random histories of several controllers against the plain model (P23): the same answer at every step, and
//! after it used units that are the sum of unretired claims and generations that only grew.

use std::sync::Arc;
use std::time::Duration;

use ether_testkit::postgres::{Durability, Server};
use ether_types::{Fence, Generation, OperationId, Role, SessionId, TargetId, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::bounds::{Capacity, EvidenceBody, Lease, Quota};
use crate::command::{Admission, Command, Reserve, ReserveRequest, SetPool, SetTarget};
use crate::evidence::{Author, EvidenceKind};
use crate::outcome::{
    Authority, Mismatch, Outcome, PoolSet, Raised, Rebased, Recorded, Released, Renewed, Reserved, TargetSet,
};
use crate::state::Revision;
use crate::tests::plain::{Answer, By, Granted, Kind, Move, Plain, QUOTAS, SHARED, SKEW};
use crate::tests::world::{LONG, Place, START, World, ask, boot, claims, node, options, scope};

const SCOPES: [&str; 3] = ["s0", "s1", "shared"];
const MAXIMUM: i64 = 20;

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0..4_u32, 0..5_u32, 0..4_u64, 0..2_usize, 1..3_u64, prop_oneof![Just(5_i64), Just(9), Just(21)])
            .prop_map(|(slot, operation, expected, target, units, lease)| Move::Reserve {
                slot, operation, expected, target, units, lease
            }),
        4 => (any::<prop::sample::Index>(), 0..25_i64)
            .prop_map(|(pick, ahead)| Move::Renew { pick: pick.index(64), ahead }),
        4 => any::<prop::sample::Index>().prop_map(|pick| Move::Retire { pick: pick.index(64) }),
        2 => (0..3_usize, 0..5_u64, 0..2_u64)
            .prop_map(|(scope, capacity, behind)| Move::Pool { scope, capacity, behind }),
        2 => (0..2_usize, 1..4_u32, 1..4_u32, 0..2_u64)
            .prop_map(|(target, seen, next, behind)| Move::Target { target, seen, next, behind }),
        2 => (0..4_u32).prop_map(|slot| Move::Look { slot }),
        2 => (1..8_i64).prop_map(|seconds| Move::Wait { seconds }),
        4 => (any::<prop::sample::Index>(), authors(), kinds())
            .prop_map(|(pick, by, kind)| Move::Record { pick: pick.index(64), by, kind }),
        1 => (2..6_u64, 2..6_u64).prop_map(|(expect, to)| Move::Raise { expect, to }),
        1 => (1..12_i64).prop_map(|seconds| Move::Back { seconds }),
        1 => (0..3_u64).prop_map(|behind| Move::Rebase { behind }),
    ]
}

fn authors() -> impl Strategy<Value = By> {
    prop_oneof![
        2 => Just(By::Own),
        2 => Just(By::Current),
        1 => Just(By::Stranger),
        3 => (0..2_u32).prop_map(By::Source),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Reaped),
        2 => Just(Kind::Succeeded),
        1 => Just(Kind::Attested),
    ]
}

/// The controller whose slot it is: two share the ledger.
fn controller(slot: u32) -> ether_types::NodeId {
    node(if slot.is_multiple_of(2) { "c" } else { "d" })
}

fn incarnation(number: u32) -> ether_types::BootId {
    boot(&format!("i{number}"))
}

fn target(number: usize) -> TargetId {
    TargetId::new(format!("t{number}")).unwrap()
}

fn fence(granted: &Granted) -> Fence {
    let generation = Generation::new(granted.generation).unwrap();
    request(
        granted.slot,
        granted.operation,
        granted.expected,
        granted.target,
        granted.incarnation,
        granted.units,
        granted.lease,
    )
    .fence(&options().cluster, generation)
}

fn request(
    slot: u32,
    operation: u32,
    expected: u64,
    number: usize,
    stands: u32,
    units: u64,
    lease: i64,
) -> ReserveRequest {
    let reserve = Reserve {
        session: SessionId::new(controller(slot), slot),
        controller_node: controller(slot),
        target: target(number),
        target_boot: incarnation(stands),
        operation: OperationId::new(format!("op{operation}")).unwrap(),
        claims: claims(&[(SCOPES[number], units), (SCOPES[SHARED], units)]),
        lease: Lease::new(Duration::from_secs(lease.unsigned_abs())).unwrap(),
        ..ask(slot, "x", expected)
    };
    ReserveRequest::new(reserve).unwrap()
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(START + seconds * 1_000_000)
}

fn seconds(at: Timestamp) -> i64 {
    (at.as_micros() - START) / 1_000_000
}

/// The command that `step` is, given where the plain model stands.
fn command(plain: &Plain, step: &Move) -> Option<Command> {
    let picked = |pick: usize| plain.history.get(pick % plain.history.len().max(1)).map(fence);
    Some(match *step {
        Move::Reserve {
            slot,
            operation,
            expected,
            target,
            units,
            lease,
        } => {
            let stands = plain.incarnations[target];
            Command::Reserve(request(slot, operation, expected, target, stands, units, lease))
        }
        Move::Renew { pick, ahead } => Command::Renew {
            fence: picked(pick)?,
            deadline: at(plain.clock + ahead),
        },
        Move::Retire { pick } => Command::Retire { fence: picked(pick)? },
        Move::Record { pick, by, kind } => {
            let fence = picked(pick)?;
            let about = &plain.history[pick % plain.history.len()];
            let author = match by {
                By::Own => Author::Target {
                    boot: incarnation(about.incarnation),
                },
                By::Current => Author::Target {
                    boot: incarnation(plain.incarnations[about.target]),
                },
                By::Stranger => Author::Target { boot: incarnation(9) },
                By::Source(number) => Author::Source {
                    node: node(&format!("s{number}")),
                    boot: incarnation(1),
                },
            };
            let kind = match kind {
                Kind::Reaped => EvidenceKind::Reaped,
                Kind::Succeeded => EvidenceKind::Succeeded,
                Kind::Attested => EvidenceKind::Attested,
            };
            let body = EvidenceBody::new("{}").unwrap();
            Command::Record {
                fence,
                author,
                kind,
                body,
            }
        }
        Move::Raise { expect, to } => Command::Raise {
            expect: Quota::new(expect).unwrap(),
            capacity: Quota::new(to).unwrap(),
        },
        Move::Pool {
            scope: number,
            capacity,
            behind,
        } => Command::SetPool(SetPool {
            scope: scope(SCOPES[number]),
            role: Role::Transcode,
            capacity: Capacity::new(capacity).unwrap(),
            seen: Revision::new(plain.pools[&number].1 - behind),
        }),
        Move::Target {
            target: number,
            seen,
            next,
            behind,
        } => set_target(number, Some(seen), plain.policies[number] - behind, next),
        Move::Look { slot } => Command::Lookup {
            session: SessionId::new(controller(slot), slot),
        },
        Move::Rebase { behind } => Command::Rebase {
            epoch: plain.epoch.saturating_sub(behind),
        },
        Move::Wait { .. } | Move::Back { .. } => return None,
    })
}

fn set_target(number: usize, seen: Option<u32>, policy: u64, next: u32) -> Command {
    let scopes = vec![scope(SCOPES[number]), scope(SCOPES[SHARED])];
    Command::SetTarget(SetTarget {
        target: target(number),
        boot: incarnation(next),
        expected: seen.map(incarnation),
        seen: Revision::new(policy),
        admission: Admission::new([(Role::Transcode, scopes)]).unwrap(),
    })
}

fn generation(of: &Fence) -> i64 {
    i64::try_from(of.generation.get()).unwrap()
}

fn answer(outcome: &Outcome) -> Answer {
    let current = |generation: &Generation| i64::try_from(generation.get()).unwrap();
    match outcome {
        Outcome::Reserve(Reserved::Granted(granted)) => ("granted", seconds(granted.initial_deadline)),
        Outcome::Reserve(Reserved::Replayed(first)) => ("replayed", seconds(first.initial_deadline)),
        Outcome::Reserve(Reserved::Conflict { current }) => ("conflict", generation(current)),
        Outcome::Reserve(Reserved::Unretired { holder }) => ("unretired", generation(holder)),
        Outcome::Reserve(Reserved::Superseded { current: c }) => ("superseded", current(c)),
        Outcome::Reserve(Reserved::LeaseTooLong { maximum }) => {
            ("too long", i64::try_from(maximum.as_secs()).unwrap())
        }
        Outcome::Reserve(Reserved::NoCapacity { left, .. }) => {
            ("no capacity", i64::try_from(left.unwrap()).unwrap())
        }
        Outcome::Renew(Renewed::Renewed {
            deadline,
            moved: true,
        }) => ("moved", seconds(*deadline)),
        Outcome::Renew(Renewed::Renewed {
            deadline,
            moved: false,
        }) => ("kept", seconds(*deadline)),
        Outcome::Renew(Renewed::Expired { deadline }) => ("expired", seconds(*deadline)),
        Outcome::Renew(Renewed::Retired) => ("retired", 0),
        Outcome::Renew(Renewed::TooFar { latest }) => ("too far", seconds(*latest)),
        Outcome::Renew(Renewed::Fenced(Mismatch::Superseded { current: c }))
        | Outcome::Retire(Released::Fenced(Mismatch::Superseded { current: c })) => {
            ("superseded", current(c))
        }
        Outcome::Retire(Released::Retired { already }) => ("released", i64::from(*already)),
        Outcome::SetPool(PoolSet::Set { pool }) => ("set", i64::try_from(pool.capacity.get()).unwrap()),
        Outcome::SetPool(PoolSet::Mismatch { current }) => ("stale", number(current.unwrap().revision.get())),
        Outcome::SetTarget(TargetSet::Set { revision }) => ("set", number(revision.get())),
        Outcome::SetTarget(TargetSet::Superseded { current }) => {
            ("stale", number(current.as_ref().unwrap().revision.get()))
        }
        Outcome::Lookup(None) => ("absent", 0),
        Outcome::Lookup(Some(record)) => match record.authority {
            Authority::Live => ("live", seconds(record.deadline)),
            Authority::Expired => ("over", seconds(record.deadline)),
            Authority::Retired => ("retired", seconds(record.initial_deadline)),
        },
        Outcome::Record(recorded) => match recorded {
            Recorded::Recorded => ("recorded", 0),
            Recorded::Already => ("already", 0),
            Recorded::Conflict { .. } => ("said other", 0),
            Recorded::Retired => ("retired", 0),
            Recorded::NotAuthor => ("not author", 0),
            Recorded::NotTheirs { .. } => ("not theirs", 0),
            Recorded::Fenced(Mismatch::Superseded { current: c }) => ("superseded", current(c)),
            other => panic!("{other:?}"),
        },
        Outcome::Reserve(Reserved::CeilingMismatch { fleet, .. }) => ("closed", number(fleet.get())),
        Outcome::Reserve(Reserved::Quota(reached)) => ("full", number(reached.total)),
        Outcome::Raise(Raised::Raised { ceiling }) => ("raised", number(ceiling.get())),
        Outcome::Raise(Raised::Mismatch { current }) => ("other ceiling", number(current.unwrap().get())),
        Outcome::Raise(Raised::NotUpward { current }) => ("downward", number(current.get())),
        Outcome::Reserve(Reserved::ClockBehind(clock)) | Outcome::Renew(Renewed::ClockBehind(clock)) => {
            ("behind", number(clock.behind.as_secs()))
        }
        Outcome::Rebase(Rebased::Rebased { epoch, .. }) => ("rebased", number(*epoch)),
        Outcome::Rebase(Rebased::Mismatch { current }) => ("other epoch", number(*current)),
        Outcome::Rebase(Rebased::Held { deadline, .. }) => ("held", seconds(*deadline)),
        other => panic!("{other:?}"),
    }
}

fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap()
}

/// Whether going on needs another coordinator: moves of one are grouped until the next one's turn.
fn turns(history: &[(usize, Move)], index: usize) -> bool {
    history
        .get(index + 1)
        .is_some_and(|(next, _)| *next != history[index].0)
}

/// Runs one history, grouping up to `group` moves of one coordinator that need no clock step into one transaction.
async fn compare(place: Place, history: Vec<(usize, Move)>, group: usize) {
    let mut own = options();
    own.maximum_lease = Duration::from_secs(MAXIMUM.unsigned_abs());
    own.quota = Quota::new(QUOTAS[0]).unwrap();
    own.clock_skew = Duration::from_secs(SKEW.unsigned_abs());
    let world = World::with(&place, own.clone()).await;
    let mut plain = Plain::new(MAXIMUM);
    for (number, (capacity, _)) in plain.pools.clone() {
        world.pool(SCOPES[number], capacity).await;
    }
    let first = (0..2).map(|number| set_target(number, None, 0, 1)).collect();
    world.ledger.commands(first).await.unwrap();
    // A ceiling as low as this stands in no fleet; the rule is the same.
    let seeded = world
        .ledger
        .tables()
        .write::<_, ether_store::StoreError, _>(LONG, |tx| {
            Box::pin(async move { tx.execute("UPDATE placement_meta SET ceiling = 3", &[]).await })
        });
    seeded.await.unwrap();
    own.node = node("d");
    own.quota = Quota::new(QUOTAS[1]).unwrap();
    let (other, _) = world.join(own).await.unwrap();
    let ledgers = [&world.ledger, &other];
    let mut waiting: (Vec<Command>, Vec<(Move, Answer)>) = (Vec::new(), Vec::new());
    for (index, (by, step)) in history.iter().enumerate() {
        let asked = command(&plain, step);
        let expected = plain.step(*by, step);
        let waits = matches!(step, Move::Wait { .. } | Move::Back { .. });
        if let Some(asked) = asked {
            waiting.0.push(asked);
            waiting.1.push((step.clone(), expected));
        }
        let last = index + 1 == history.len();
        if waits || waiting.0.len() >= group || last || turns(&history, index) {
            let (commands, expected) = std::mem::take(&mut waiting);
            if !commands.is_empty() {
                let outcomes = ledgers[*by].commands(commands).await.unwrap();
                for (outcome, (step, expected)) in outcomes.iter().zip(&expected) {
                    assert_eq!(answer(outcome), *expected, "{step:?} in {history:?}");
                }
            }
            if waits {
                world.set_clock(START + plain.clock * 1_000_000).await;
            }
            for (number, name) in SCOPES.iter().enumerate() {
                assert_eq!(world.used(name).await, i64::try_from(plain.used(number)).unwrap());
            }
            let kept = "SELECT session FROM placement_evidence";
            let kept = world.ledger.tables().query(LONG, kept, Vec::new());
            assert_eq!(kept.await.unwrap().len(), plain.evidence.len(), "{history:?}");
            world.audit().await;
        }
    }
}

fn histories(place: &Place, cases: u32, length: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let config = Config {
        cases: if std::env::var_os("ETHER_SOAK").is_some() {
            cases * 30
        } else {
            cases
        },
        failure_persistence: None,
        ..Config::default()
    };
    let strategy = (
        prop::collection::vec((0..2_usize, moves()), 1..length),
        1..6_usize,
    );
    let outcome = TestRunner::new(config).run(&strategy, |(history, group)| {
        let task = runtime.spawn(compare(place.clone(), history, group));
        let told = runtime.block_on(task);
        prop_assert!(told.is_ok(), "see above");
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn random_histories_in_sqlite_memory_agree_with_the_plain_model() {
    histories(&Place::Memory, 40, 80);
}

#[test]
fn random_histories_on_a_sqlite_file_agree_with_the_plain_model() {
    histories(&Place::File, 12, 60);
}

#[test]
fn random_histories_on_postgres_agree_with_the_plain_model() {
    if let Some(server) = Server::start(17, Durability::Fast) {
        histories(&Place::Postgres(Arc::new(server)), 8, 60);
    }
}
