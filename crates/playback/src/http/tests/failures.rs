//! Encoders that fail: what the viewer is told, what the owner sees, and what happens when it is asked for again.

use std::time::Duration;

use ether_encoder::{Ended, ServeError};

use super::bed::{Bed, Socket, resource};
use crate::ports::{Capacity as _, Units};

/// Players ask again at once, and each time would start an encoder that fails like the one before it.
#[tokio::test]
async fn an_encoder_that_fails_shows_as_failed_and_rests_after_three_times() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let session = bed.session("").await;
    let (seventh, eighth) = (resource(&session, "7.m4s"), resource(&session, "8.m4s"));
    let target = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    let fails = ServeError::Ended {
        ended: Ended::Failed {
            status: Some(1),
            signal: None,
        },
    };
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &seventh, &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    bed.encoder.newest().set(|state| state.error = Some(fails));
    let first = socket.read("GET").await;
    let told = first.json();
    for word in ["A film #1.mp4", "exit status 1", "a last word", "Asking again"] {
        assert!(told["message"].as_str().unwrap().contains(word), "{word}: {told}");
    }
    let shown = bed.owner("GET", &target, "").await.json();
    assert_eq!(
        (&shown["state"], &shown["failure"]["code"]),
        (&"failed".into(), &"encoder_failed".into())
    );
    assert_eq!(bed.get(&seventh).await.json()["times"], 2);
    let third = bed.get(&seventh).await;
    assert_eq!(
        (third.status.as_u16(), third.header("retry-after")),
        (502, Some("30"))
    );
    // Its capacity is others' meanwhile, and asking again starts nothing.
    bed.until("its end", || bed.capacity.usage().used == Units::default())
        .await;
    let resting = bed.get(&seventh).await;
    assert!(
        resting.json()["message"].as_str().unwrap().contains("30 s"),
        "{resting:?}"
    );
    assert_eq!(bed.encoder.started(), 1);
    // Another part of the film is tried at once, and once it plays nothing is wrong any more.
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &eighth, &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 2).await;
    bed.encoder.newest().set(|state| state.eager = true);
    assert_eq!(socket.read("GET").await.status.as_u16(), 200);
    let shown = bed.owner("GET", &target, "").await.json();
    assert_eq!(
        (&shown["state"], shown["failure"].is_null()),
        (&"running".into(), true)
    );
    bed.clock.advance(Duration::from_secs(30));
    assert_eq!(bed.get(&seventh).await.status.as_u16(), 200);
}

#[tokio::test]
async fn a_segment_that_is_larger_than_was_guessed_gets_more_scratch_until_there_is_no_more() {
    let bed = Bed::with(|setup| {
        setup.encoder.eager = false;
        setup.capacity.scratch_mib = 100;
    })
    .await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "3.m4s"), &[], "").await;
    let mut booked = Vec::new();
    for started in 1..=2 {
        bed.until("an encoder", || bed.encoder.started() == started).await;
        let puppet = bed.encoder.newest();
        booked.push(puppet.scratch >> 20);
        let ended = Ended::SegmentTooLarge {
            segment: 3,
            scratch: puppet.scratch,
        };
        puppet.set(|state| state.error = Some(ServeError::Ended { ended }));
    }
    let refused = socket.read("GET").await;
    assert_eq!(
        (refused.status.as_u16(), refused.code()),
        (502, "segment_too_large".to_owned())
    );
    let told = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(
        told.contains("segment 3") && told.contains("100 MiB") && told.contains("--scratch"),
        "{told}"
    );
    assert!(booked[0] < booked[1] && booked[1] == 100, "{booked:?}");
}
