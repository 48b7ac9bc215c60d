//! The server stops: everything ends, everything is proved, nobody is left waiting.

use std::time::Duration;

use ether_encoder::RetireError;
use ether_types::{PlaybackId, Remembered};

use super::bed::{Bed, Socket, resource};
use crate::lifecycle::EndReason;
use crate::playbacks::ShutdownReport;
use crate::ports::{Capacity as _, Units};

#[tokio::test]
async fn stopping_ends_every_encoder_and_tells_whoever_waits() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let (one, two) = (bed.session("").await, bed.session("").await);
    let mut waiting = Socket::open(bed.addr).await;
    waiting.write("GET", &resource(&one, "0.m4s"), &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    bed.capacity.close();
    bed.stop.cancel();
    let report = bed.playbacks.shutdown().await;
    assert_eq!(
        report,
        ShutdownReport {
            ended: 2,
            unproved: 0
        }
    );
    assert_eq!(waiting.read("GET").await.status.as_u16(), 410);
    assert!(
        waiting.fill().await.is_none(),
        "the connection is closed after its answer"
    );
    let served = bed.serving.await.unwrap();
    assert_eq!(served.cut_off, 0);
    assert_eq!(bed.capacity.usage().used, Units::default());
    drop(two);
}

#[tokio::test]
async fn stopping_waits_for_proof_only_so_long_and_then_says_what_is_left() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    bed.get(&resource(&session, "0.m4s")).await;
    let puppet = bed.encoder.newest();
    puppet.set(|state| state.unprovable = Some(RetireError::Unprovable));
    let playbacks = bed.playbacks.clone();
    let stopping = tokio::spawn(async move { playbacks.shutdown().await });
    bed.until("the first try", || puppet.state.borrow().retire_calls > 0)
        .await;
    for _ in 0..12 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        bed.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(
        stopping.await.unwrap(),
        ShutdownReport {
            ended: 1,
            unproved: 1
        }
    );
    assert!(
        puppet.state.borrow().retire_calls > 2,
        "it was asked again and again"
    );
    assert_ne!(
        bed.capacity.usage().used,
        Units::default(),
        "what is not proved stays charged"
    );
}

#[tokio::test]
async fn no_session_is_made_once_the_server_stops() {
    let bed = Bed::new().await;
    bed.playbacks.shutdown().await;
    let reply = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"film0"}"#)
        .await;
    assert_eq!((reply.status.as_u16(), reply.code()), (503, "closed".into()));
}

#[tokio::test]
async fn a_transfer_that_does_not_end_is_cut_off() {
    let bed = Bed::with(|setup| setup.encoder.bytes = 512 << 20).await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    assert!(socket.fill().await.is_some());
    bed.stop.cancel();
    let Bed { serving, clock, .. } = bed;
    let mut serving = serving;
    let report = loop {
        tokio::select! {
            biased;
            report = &mut serving => break report.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(2)) => clock.advance(Duration::from_secs(1)),
        }
    };
    assert_eq!(report.cut_off, 1);
    assert!(!socket.read("GET").await.whole);
}

/// Capacity that an encoder keeps which does not end is shown for what it is (D15), until its end is proved.
#[tokio::test]
async fn what_an_encoder_that_does_not_end_keeps_is_counted_as_stranded() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    bed.get(&resource(&session, "0.m4s")).await;
    let puppet = bed.encoder.newest();
    let charged = bed.capacity.usage().used.milli_slots;
    puppet.set(|state| state.unprovable = Some(RetireError::Pending));
    let playback = bed
        .playbacks
        .get(&PlaybackId::new(session["id"].as_str().unwrap()).unwrap());
    playback.unwrap().seal(EndReason::Stopped);
    bed.until("the first try", || puppet.state.borrow().retire_calls == 1)
        .await;
    let stranded = || {
        let budgets = bed.capacity.budgets();
        let budget = budgets
            .iter()
            .find(|budget| budget.of == Remembered::StrandedClaims);
        budget.unwrap().used
    };
    assert_eq!(stranded(), 0, "it has a few seconds to end");
    let counted = bed.until("it is stranded", || stranded() == u64::from(charged));
    bed.as_time_passes(counted).await;
    let list = bed.owner("GET", "/ether/api/sessions", "").await.json();
    let shown = &list["capacity"]["budgets"][1];
    assert_eq!(
        (&shown["of"], &shown["used"], &shown["limit"]),
        (&"strandedClaims".into(), &charged.into(), &2_000.into())
    );
    puppet.set(|state| state.unprovable = None);
    let back = bed.until("it came back", || stranded() == 0);
    bed.as_time_passes(back).await;
}
