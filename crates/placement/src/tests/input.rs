//! Bad input (P2, P21), from the Rust API and from serialized forms: typed, with the field and its range.

use std::time::Duration;

use ether_types::{Generation, Role, ScopeName, SessionId, Timestamp};

use crate::bounds::{Capacity, Claims, EvidenceBody, Invalid, Lease, PageSize, Quota, Units};
use crate::command::{Admission, Reserve, ReserveRequest, check_deadline};
use crate::ledger::{LedgerError, OpenError};
use crate::options::Options;
use crate::tests::world::{Place, World, ask, claims, node, options, scope};

fn field<T: std::fmt::Debug>(outcome: Result<T, Invalid>) -> (&'static str, &'static str) {
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains(error.range), "{error}");
    (error.field, error.range)
}

#[test]
fn numbers_out_of_range_name_their_field_and_range() {
    assert_eq!(field(Units::new(0)), ("units", "1 to 1000000000000"));
    assert_eq!(
        field(Units::new(1_000_000_000_001)),
        ("units", "1 to 1000000000000")
    );
    assert_eq!(field(Units::new(u64::MAX)).0, "units");
    assert_eq!(field(Capacity::new(u64::MAX)).0, "capacity");
    assert!(Capacity::new(0).is_ok());
    assert_eq!(field(Quota::new(0)).0, "ledger quota");
    assert_eq!(
        field(Quota::ceiling(4_095)),
        ("fleet ceiling", "4096 to 10000000")
    );
    assert_eq!(field(Quota::ceiling(10_000_001)).0, "fleet ceiling");
    assert_eq!(field(PageSize::new(0)).0, "page size");
    assert_eq!(field(PageSize::new(1_001)).0, "page size");
    for length in [
        Duration::ZERO,
        Duration::from_nanos(1_500),
        Duration::from_micros(3_600_000_001),
        Duration::MAX,
    ] {
        assert_eq!(field(Lease::new(length)).0, "lease", "{length:?}");
    }
    for micros in [i64::MIN, -1, 0, i64::MAX] {
        assert_eq!(
            field(check_deadline(Timestamp::from_micros(micros))).0,
            "deadline"
        );
    }
    assert_eq!(Generation::new(u64::MAX), None);
}

#[test]
fn claims_are_one_to_sixteen_distinct_scopes() {
    let many = |count: usize| (0..count).map(|n| (scope(&format!("s{n}")), Units::MIN));
    assert_eq!(field(Claims::new(many(0))).0, "claims");
    assert_eq!(field(Claims::new(many(17))), ("claims", "1 to 16 scopes"));
    assert_eq!(Claims::new(many(16)).unwrap().len(), 16);
    assert_eq!(
        field(Claims::new(many(2).chain(many(1)))),
        ("claims", "distinct scopes")
    );

    let scopes = |count: usize| (0..count).map(|n| scope(&format!("s{n}"))).collect::<Vec<_>>();
    for bad in [scopes(0), scopes(17), vec![scope("a"), scope("a")]] {
        assert_eq!(
            field(Admission::new([(Role::Transcode, bad)])).0,
            "scopes of a role"
        );
    }
    let twice = [(Role::Transcode, scopes(1)), (Role::Transcode, scopes(2))];
    assert_eq!(field(Admission::new(twice)).0, "roles of a target");
}

#[test]
fn evidence_is_bounded_printable_text_and_is_not_repeated_in_errors() {
    assert_eq!(field(EvidenceBody::new("")).0, "evidence");
    assert_eq!(field(EvidenceBody::new("x".repeat(4_097))).1, "1 to 4096 bytes");
    assert!(EvidenceBody::new("x".repeat(4_096)).is_ok());
    for text in ["line\nbreak", "nul\0", "é", "\u{202e}"] {
        let error = EvidenceBody::new(text).unwrap_err();
        assert_eq!(error.range, "printable ASCII");
        assert!(!error.to_string().contains(text));
    }
}

#[test]
fn a_session_is_its_controllers_and_its_generation_has_a_successor() {
    let foreign = Reserve {
        session: SessionId::new(node("d"), 1),
        ..ask(1, "op", 0)
    };
    assert_eq!(field(ReserveRequest::new(foreign)).0, "session");
    let last = Reserve {
        expected: Generation::MAX,
        ..ask(1, "op", 0)
    };
    assert_eq!(field(ReserveRequest::new(last)).0, "expected generation");
}

#[test]
fn every_serialized_form_has_the_same_bounds() {
    let good = serde_json::to_value(ask(1, "op", 0)).unwrap();
    assert!(serde_json::from_value::<Reserve>(good.clone()).is_ok());
    let bad: [(&str, serde_json::Value); 18] = [
        ("session", "c/-1".into()),
        ("session", "c".into()),
        ("session", format!("{}/1", "c".repeat(65)).into()),
        ("controllerNode", "".into()),
        ("controllerBoot", "a b".into()),
        ("target", "w\\cpu".into()),
        ("role", "janitor".into()),
        ("operation", "o".repeat(129).into()),
        ("operation", "\u{0}".into()),
        ("expected", (-1).into()),
        ("lease", 0.into()),
        ("lease", 3_600_000_001_u64.into()),
        ("lease", u64::MAX.into()),
        ("claims", serde_json::json!([])),
        ("claims", serde_json::json!([["a", 0]])),
        ("claims", serde_json::json!([["a", 1], ["a", 1]])),
        (
            "claims",
            serde_json::json!((0..17).map(|n| (format!("s{n}"), 1)).collect::<Vec<_>>()),
        ),
        ("claims", serde_json::json!([["sco pe", 1]])),
    ];
    for (name, value) in bad {
        let mut form = good.clone();
        form[name] = value.clone();
        assert!(
            serde_json::from_value::<Reserve>(form).is_err(),
            "{name} = {value}"
        );
    }
    let mut unknown = good;
    unknown["extra"] = 1.into();
    assert!(serde_json::from_value::<Reserve>(unknown).is_err());
    assert!(serde_json::from_str::<Capacity>("18446744073709551615").is_err());
    assert!(serde_json::from_str::<EvidenceBody>("\"\"").is_err());
    assert!(ScopeName::new("a".repeat(129)).is_err());
}

#[tokio::test]
async fn options_out_of_range_open_nothing() {
    let world = World::new(&Place::Memory).await;
    type Spoil = fn(&mut Options);
    let spoils: [(&str, Spoil); 8] = [
        ("maximum lease", |o| o.maximum_lease = Duration::from_millis(999)),
        ("maximum lease", |o| o.maximum_lease = Duration::from_secs(3_601)),
        ("transaction timeout", |o| o.transaction_timeout = Duration::ZERO),
        ("transaction timeout", |o| {
            o.transaction_timeout = Duration::from_millis(60_001)
        }),
        ("lock timeout", |o| o.lock_timeout = Duration::ZERO),
        ("lock timeout", |o| o.lock_timeout = Duration::MAX),
        ("verify timeout", |o| o.verify_timeout = Duration::ZERO),
        ("fleet ceiling", |o| {
            o.fleet = true;
            o.quota = Quota::new(4_095).unwrap();
        }),
    ];
    for (name, spoil) in spoils {
        let mut options = options();
        spoil(&mut options);
        match world.join(options).await {
            Err(OpenError::Option(invalid)) => {
                assert_eq!(invalid.field, name);
                assert!(!invalid.range.is_empty() && !invalid.value.is_empty());
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn bad_input_changes_nothing() {
    let world = World::new(&Place::Memory).await.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let before = world.ledger.usage().await.unwrap();
    let past = Timestamp::from_micros(-5);
    let renewed = world.ledger.renew(fence.clone(), past).await;
    assert!(matches!(renewed, Err(LedgerError::Invalid(i)) if i.field == "deadline"));
    let many = vec![
        (fence.clone(), Timestamp::from_micros(i64::MAX / 2)),
        (fence, Timestamp::from_micros(i64::MAX)),
    ];
    assert_eq!(world.ledger.renew_many(many).await.unwrap_err().field, "deadline");
    let foreign = Reserve {
        session: SessionId::new(node("d"), 1),
        claims: claims(&[("slots", 1)]),
        ..ask(1, "x", 0)
    };
    assert!(matches!(
        world.ledger.reserve(foreign).await,
        Err(LedgerError::Invalid(_))
    ));
    assert_eq!(world.ledger.usage().await.unwrap(), before);
}
