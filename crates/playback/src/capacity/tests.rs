//! Who gets an encoder, who waits, and what comes back when.

use std::time::Duration;

use ether_types::{ManualClock, PlaybackId, Timestamp, Warning};

use super::*;
use crate::ports::NeverStarted;

fn capacity(slots: u32) -> (Arc<LocalCapacity>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let limit = Units {
        milli_slots: slots,
        device_milli_slots: 0,
        scratch_mib: 1_000,
    };
    (
        Arc::new(LocalCapacity::new(limit, Arc::new(clock.clone()))),
        clock,
    )
}

fn units(milli_slots: u32) -> Units {
    Units {
        milli_slots,
        device_milli_slots: 0,
        scratch_mib: 10,
    }
}

fn ask(milli_slots: u32, since: u64) -> Ask {
    Ask {
        playback: PlaybackId::new("p").unwrap(),
        units: units(milli_slots),
        since: Monotonic::from_origin(Duration::from_secs(since)),
        until: Monotonic::from_origin(Duration::from_secs(8)),
    }
}

fn proof() -> Proof {
    Proof::NeverStarted(NeverStarted::attest())
}

/// Waits until `waiting` stand in the queue.
async fn queued(capacity: &LocalCapacity, waiting: u32) {
    while capacity.usage().waiting != waiting {
        tokio::task::yield_now().await;
    }
}

fn wait(capacity: &Arc<LocalCapacity>, ask: Ask) -> tokio::task::JoinHandle<Result<Charge, CapacityRefusal>> {
    let capacity = Arc::clone(capacity);
    tokio::spawn(async move { capacity.reserve(ask).await })
}

#[tokio::test]
async fn a_second_viewer_waits_and_is_refused_with_the_reason() {
    let (capacity, clock) = capacity(1_000);
    let charge = capacity.reserve(ask(1_000, 0)).await.unwrap();
    let second = wait(&capacity, ask(500, 1));
    queued(&capacity, 1).await;
    clock.advance(Duration::from_secs(8));
    let refused = second.await.unwrap().unwrap_err();
    assert_eq!(
        refused,
        CapacityRefusal::Encoders {
            used: 1_000,
            limit: 1_000
        }
    );
    assert_eq!(capacity.usage().waiting, 0);
    capacity.release(&charge, &proof()).await.unwrap();
    assert_eq!(capacity.usage().used, Units::default());
}

#[tokio::test]
async fn what_comes_back_goes_to_whoever_waits_longest_and_nobody_overtakes() {
    let (capacity, _clock) = capacity(1_000);
    let charge = capacity.reserve(ask(1_000, 0)).await.unwrap();
    let newcomer = wait(&capacity, ask(100, 5));
    queued(&capacity, 1).await;
    let heavy = wait(&capacity, ask(1_000, 2));
    queued(&capacity, 2).await;
    capacity.release(&charge, &proof()).await.unwrap();
    let heavy = heavy.await.unwrap().unwrap();
    assert!(!newcomer.is_finished(), "the light one came later");
    capacity.release(&heavy, &proof()).await.unwrap();
    let _ = newcomer.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_waiter_that_leaves_takes_nothing_and_blocks_nobody() {
    let (capacity, _clock) = capacity(1_000);
    let charge = capacity.reserve(ask(600, 0)).await.unwrap();
    let heavy = wait(&capacity, ask(1_000, 1));
    queued(&capacity, 1).await;
    let light = wait(&capacity, ask(300, 2));
    queued(&capacity, 2).await;
    heavy.abort();
    let _ = light.await.unwrap().unwrap();
    capacity.release(&charge, &proof()).await.unwrap();
    assert_eq!(capacity.usage().used, units(300));
}

#[tokio::test]
async fn giving_back_twice_gives_back_once() {
    let (capacity, _clock) = capacity(1_000);
    let first = capacity.reserve(ask(400, 0)).await.unwrap();
    let _second = capacity.reserve(ask(400, 0)).await.unwrap();
    capacity.release(&first, &proof()).await.unwrap();
    capacity.release(&first, &proof()).await.unwrap();
    assert_eq!(capacity.usage().used, units(400));
}

#[tokio::test]
async fn a_charge_that_is_merely_dropped_stays_taken() {
    let (capacity, _clock) = capacity(1_000);
    drop(capacity.reserve(ask(400, 0)).await.unwrap());
    assert_eq!(capacity.usage().used, units(400));
}

#[tokio::test]
async fn a_film_too_heavy_for_the_machine_is_played_alone() {
    let (capacity, _clock) = capacity(1_000);
    assert_eq!(capacity.admits(units(4_000)), Ok(()));
    let charge = capacity.reserve(ask(4_000, 0)).await.unwrap();
    assert_eq!(charge.units.milli_slots, 1_000);
    let (none, _clock) = super::tests::capacity(0);
    assert_eq!(none.admits(units(20)), Err(CapacityRefusal::None));
}

#[tokio::test]
async fn scratch_is_a_budget_of_its_own() {
    let (capacity, clock) = capacity(10_000);
    let mut large = ask(10, 0);
    large.units.scratch_mib = 1_000;
    let _charge = capacity.reserve(large).await.unwrap();
    let second = wait(&capacity, ask(10, 1));
    queued(&capacity, 1).await;
    clock.advance(Duration::from_secs(8));
    assert!(matches!(
        second.await.unwrap(),
        Err(CapacityRefusal::Scratch { used: 1_000, .. })
    ));
}

#[tokio::test]
async fn the_queue_has_an_end_and_closing_empties_it() {
    let (capacity, _clock) = capacity(10);
    let _charge = capacity.reserve(ask(10, 0)).await.unwrap();
    let waiters: Vec<_> = (0..MAX_WAITING).map(|_| wait(&capacity, ask(10, 1))).collect();
    queued(&capacity, 256).await;
    let refused = capacity.reserve(ask(10, 1)).await.unwrap_err();
    assert_eq!(refused, CapacityRefusal::QueueFull { waiting: 256 });
    capacity.close();
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap_err(), CapacityRefusal::Closed);
    }
    assert_eq!(
        capacity.reserve(ask(1, 0)).await.unwrap_err(),
        CapacityRefusal::Closed
    );
    assert_eq!(capacity.taken().len(), 1, "what was taken stays taken");
}

/// What a card does takes nothing of the processor, and without a limit of its own only the card says when it is full.
#[tokio::test]
async fn devices_have_a_budget_of_their_own() {
    let (capacity, _) = capacity(1_000);
    let on_a_card = Ask {
        units: Units {
            device_milli_slots: 9_000,
            ..units(20)
        },
        ..ask(20, 0)
    };
    let first = capacity.reserve(on_a_card.clone()).await.unwrap();
    let second = capacity.reserve(on_a_card.clone()).await.unwrap();
    let third = capacity.reserve(ask(960, 0)).await.unwrap();
    assert_eq!(capacity.usage().used.device_milli_slots, 18_000);
    for charge in [&first, &second, &third] {
        capacity.release(charge, &proof()).await.unwrap();
    }
    assert_eq!(capacity.usage().used, Units::default());

    let limited = LocalCapacity::new(
        Units {
            milli_slots: 1_000,
            device_milli_slots: 10_000,
            scratch_mib: 1_000,
        },
        Arc::new(ManualClock::at(Timestamp::from_micros(0))),
    );
    let _first = limited.reserve(on_a_card.clone()).await.unwrap();
    let now = Ask {
        until: Monotonic::from_origin(Duration::ZERO),
        ..on_a_card
    };
    let refused = limited.reserve(now).await.unwrap_err();
    let (used, limit) = (9_000, 10_000);
    assert_eq!(refused, CapacityRefusal::Encoders { used, limit });
}

/// Scratch that fills up is told of while there is time: at 70 and at 90 %, and when it will be full (D15).
#[tokio::test]
async fn the_budget_of_scratch_warns_and_looks_ahead() {
    let (capacity, clock) = capacity(100_000);
    let scratch = || {
        let budgets = capacity.budgets();
        budgets
            .into_iter()
            .find(|budget| budget.of == Remembered::Scratch)
            .unwrap()
    };
    assert_eq!(
        (scratch().used, scratch().limit, scratch().warning),
        (0, 1_000, None)
    );
    let mut charges = Vec::new();
    for (mib, warning) in [
        (400, None),
        (299, None),
        (1, Some(Warning::High)),
        (199, Some(Warning::High)),
        (1, Some(Warning::Critical)),
    ] {
        let mut ask = ask(10, 0);
        ask.units.scratch_mib = mib;
        charges.push(capacity.reserve(ask).await.unwrap());
        assert_eq!(scratch().warning, warning, "{} MiB", scratch().used);
    }
    // 900 in half an hour: the rest takes 200 s.
    clock.advance(Duration::from_secs(1_800));
    assert_eq!(scratch().full_in_ms, Some(200_000));
    for charge in charges {
        capacity.release(&charge, &proof()).await.unwrap();
    }
    assert_eq!(
        (scratch().used, scratch().warning, scratch().full_in_ms),
        (0, None, None)
    );
}
