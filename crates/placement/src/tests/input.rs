//! Bad input (P2, P21), from the Rust API and from serialized forms: typed, with the field and its range.

use std::time::Duration;

use ether_types::{Generation, Role, ScopeName, SessionId, Timestamp};

use crate::bounds::{Capacity, Claims, EvidenceBody, Invalid, Lease, PageSize, Quota, Units};
use crate::command::{Admission, Reserve, ReserveRequest, check_deadline};
use crate::error::{LedgerError, OpenError};
use crate::evidence::EvidenceKind;
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
    for target in ["/gpu0", "/"] {
        let nobodys = Reserve {
            target: ether_types::TargetId::new(target).unwrap(),
            ..ask(1, "op", 0)
        };
        let form = "<node> or <node>/<device>";
        assert_eq!(field(ReserveRequest::new(nobodys)), ("target", form));
    }
    let last = Reserve {
        expected: Generation::MAX,
        ..ask(1, "op", 0)
    };
    assert_eq!(field(ReserveRequest::new(last)).0, "expected generation");
}

/// It stands in the ledger's rows, and tells a retry from another request under a program of any later version: this
/// one was computed by another program.
#[test]
fn the_digest_of_a_request_is_the_same_for_ever() {
    let request = ReserveRequest::new(ask(1, "op", 0)).unwrap();
    assert_eq!(
        request.digest(),
        "e3e4f672c62f4f3fa79b4bd2ba3f74e5dc8a1af09698e1092215cc25242f9718"
    );
}

#[test]
fn every_serialized_form_has_the_same_bounds() {
    let good = serde_json::to_value(ask(1, "op", 0)).unwrap();
    assert!(serde_json::from_value::<Reserve>(good.clone()).is_ok());
    let units = "1 to 1000000000000";
    let lease = "1 us to 1 h";
    let expected = "0 to 9223372036854775806";
    let slot = "<controller node>/<slot 0 to 4294967295>";
    // The field, what stands there, and how the error names the field and its range.
    let bad: [(&str, serde_json::Value, &str, &str); 26] = [
        ("session", "c/-1".into(), "session id", slot),
        ("session", "c".into(), "session id", slot),
        (
            "session",
            format!("{}/1", "c".repeat(65)).into(),
            "node id",
            "1 to 64",
        ),
        ("controllerNode", "".into(), "node id", "1 to 64"),
        ("controllerBoot", "a b".into(), "boot id", "letters, digits"),
        ("target", "w\\cpu".into(), "target", "letters, digits"),
        ("targetBoot", "b".repeat(65).into(), "boot id", "1 to 64"),
        (
            "role",
            "janitor".into(),
            "role",
            "server, source, delivery, transcode or control",
        ),
        ("operation", "o".repeat(129).into(), "operation id", "1 to 128"),
        ("operation", "\u{0}".into(), "operation id", "letters, digits"),
        ("expected", (-1).into(), "expected generation", expected),
        ("expected", u64::MAX.into(), "expected generation", expected),
        ("expected", i64::MAX.into(), "expected generation", expected),
        ("expected", 1e30.into(), "expected generation", expected),
        ("expected", "1".into(), "expected generation", expected),
        ("lease", 0.into(), "lease", lease),
        ("lease", (-1).into(), "lease", lease),
        ("lease", 3_600_000_001_u64.into(), "lease", lease),
        ("lease", u64::MAX.into(), "lease", lease),
        ("claims", serde_json::json!([]), "claims", "1 to 16 scopes"),
        ("claims", serde_json::json!([["a", 0]]), "units", units),
        ("claims", serde_json::json!([["a", -1]]), "units", units),
        ("claims", serde_json::json!([["a", u64::MAX]]), "units", units),
        (
            "claims",
            serde_json::json!([["a", 1], ["a", 1]]),
            "claims",
            "distinct scopes",
        ),
        (
            "claims",
            serde_json::json!((0..17).map(|n| (format!("s{n}"), 1)).collect::<Vec<_>>()),
            "claims",
            "1 to 16 scopes",
        ),
        (
            "claims",
            serde_json::json!([["sco pe", 1]]),
            "scope",
            "letters, digits",
        ),
    ];
    for (name, value, named, range) in bad {
        let mut form = good.clone();
        form[name] = value.clone();
        let error = serde_json::from_value::<Reserve>(form).unwrap_err().to_string();
        assert!(
            error.contains(named) && error.contains(range),
            "{name} = {value}: {error}"
        );
    }
    let mut unknown = good;
    unknown["extra"] = 1.into();
    assert!(serde_json::from_value::<Reserve>(unknown).is_err());
    let told = |outcome: Result<(), serde_json::Error>| outcome.unwrap_err().to_string();
    for (text, range) in [
        ("18446744073709551615", "0 to 1000000000000"),
        ("18446744073709551616", "0 to 1000000000000"),
        ("-1", "0 to 1000000000000"),
        ("null", "0 to 1000000000000"),
    ] {
        let error = told(serde_json::from_str::<Capacity>(text).map(drop));
        assert!(error.contains("capacity") && error.contains(range), "{error}");
    }
    for text in ["0", "10000001"] {
        let error = told(serde_json::from_str::<Quota>(text).map(drop));
        assert!(
            error.contains("ledger quota") && error.contains("1 to 10000000"),
            "{error}"
        );
    }
    let error = told(serde_json::from_str::<PageSize>("1001").map(drop));
    assert!(
        error.contains("page size") && error.contains("1 to 1000"),
        "{error}"
    );
    let error = told(serde_json::from_str::<EvidenceBody>("\"\"").map(drop));
    assert!(
        error.contains("evidence") && error.contains("1 to 4096 bytes"),
        "{error}"
    );
    let error = told(serde_json::from_str::<EvidenceKind>("\"hearsay\"").map(drop));
    assert!(error.contains("reaped") && error.contains("succeeded"), "{error}");
    let fence = ReserveRequest::new(ask(1, "op", 0)).unwrap();
    let fence = fence.fence(&options().cluster, Generation::new(1).unwrap());
    let mut form = serde_json::to_value(&fence).unwrap();
    assert!(serde_json::from_value::<ether_types::Fence>(form.clone()).is_ok());
    for (generation, range) in [
        (0_u64, "1 to 9223372036854775807"),
        (u64::MAX, "9223372036854775807"),
    ] {
        form["generation"] = generation.into();
        let error = told(serde_json::from_value::<ether_types::Fence>(form.clone()).map(drop));
        assert!(error.contains("generation") && error.contains(range), "{error}");
    }
    assert!(ScopeName::new("a".repeat(129)).is_err());
}

#[tokio::test]
async fn options_out_of_range_open_nothing() {
    let world = World::new(&Place::Memory).await;
    type Spoil = fn(&mut Options);
    let spoils: [(&str, Spoil); 11] = [
        ("maximum lease", |o| o.maximum_lease = Duration::from_millis(999)),
        ("maximum lease", |o| o.maximum_lease = Duration::from_secs(3_601)),
        ("transaction timeout", |o| o.transaction_timeout = Duration::ZERO),
        ("transaction timeout", |o| {
            o.transaction_timeout = Duration::from_millis(60_001)
        }),
        ("lock timeout", |o| o.lock_timeout = Duration::ZERO),
        ("lock timeout", |o| o.lock_timeout = Duration::MAX),
        ("verify timeout", |o| o.verify_timeout = Duration::ZERO),
        ("clock skew", |o| o.clock_skew = Duration::from_millis(60_001)),
        ("clock skew", |o| o.clock_skew = Duration::from_micros(999)),
        ("clock skew", |o| {
            o.clock_skew = Duration::from_nanos(5_000_000_500)
        }),
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
async fn the_ends_of_every_options_range_are_in_it() {
    let world = World::new(&Place::Memory).await;
    let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
    let least = Duration::from_nanos(1);
    let skew = Duration::from_millis(1);
    let ends = [
        (second, least, skew, Quota::CEILING_MIN),
        (60 * minute, minute, minute, 10_000_000),
    ];
    for (lease, timeout, skew, quota) in ends {
        let mut options = options();
        options.maximum_lease = lease;
        options.transaction_timeout = timeout;
        options.lock_timeout = timeout;
        options.verify_timeout = timeout;
        options.clock_skew = skew;
        options.fleet = true;
        options.quota = Quota::new(quota).unwrap();
        // What opening comes to within a nanosecond is another matter.
        let opened = world.join(options.clone()).await.map(drop);
        assert!(
            !matches!(opened, Err(OpenError::Option(_))),
            "{options:?}: {opened:?}"
        );
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
    let never = ether_types::Fence {
        generation: Generation::NEVER,
        ..fence.clone()
    };
    let soon = Timestamp::from_micros(i64::MAX / 2);
    let names =
        |outcome| matches!(outcome, Err(LedgerError::Invalid(i)) if i.field == "generation of a fence");
    assert!(names(world.ledger.renew(never.clone(), soon).await.map(drop)));
    assert!(names(world.ledger.retire(never.clone(), None).await.map(drop)));
    assert!(names(world.ledger.evidence(&never).await.map(drop)));
    let many = vec![(fence.clone(), soon), (never, soon)];
    let refused = world.ledger.renew_many(many).await.unwrap_err();
    assert_eq!(refused.field, "generation of a fence");
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
