//! Playlists and segments: what starts an encoder, what waits for one, and what happens when it fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ether_encoder::{Control, Ended, Refusal, Resource, RetireError, ServeError};
use ether_media::Ticks;
use ether_types::Clock as _;

use super::bed::{Bed, FILM, Socket, resource};
use crate::ports::{Capacity as _, Units};

#[tokio::test]
async fn playlists_and_head_start_nothing_and_charge_nothing() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let url = session["url"].as_str().unwrap();
    let list = bed.get(url).await;
    assert_eq!(list.header("content-type"), Some("application/vnd.apple.mpegurl"));
    assert_eq!(list.header("cache-control"), Some("no-store"));
    let child = list.text().lines().last().unwrap().to_owned();
    let media = bed
        .get(&url.replace(url.rsplit('/').next().unwrap(), &child))
        .await;
    assert!(media.text().ends_with("#EXT-X-ENDLIST\n"));
    assert_eq!(
        media.body,
        bed.get(&resource(&session, "index.m3u8")).await.body,
        "the same bytes twice"
    );
    for name in ["0.m4s", "header", "index.m3u8"] {
        let head = bed.send("HEAD", &resource(&session, name), &[], "").await;
        assert_eq!(head.status.as_u16(), 200, "{name}");
        let known = name == "index.m3u8";
        assert_eq!(
            head.header("content-length").is_some(),
            known,
            "{name} {}",
            head.head
        );
    }
    assert_eq!(bed.encoder.started(), 0);
    assert_eq!(bed.capacity.usage().used, Units::default());
    assert_eq!(bed.get(&resource(&session, "0.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 1);
    assert_ne!(bed.capacity.usage().used, Units::default());
}

#[tokio::test]
async fn lavf_asks_everything_with_an_open_range() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let all = [("Range", "bytes=0-"), ("Connection", "close")];
    for url in [session["url"].as_str().unwrap(), &resource(&session, "0.m4s")] {
        let reply = bed.send("GET", url, &all, "").await;
        assert!(matches!(reply.status.as_u16(), 200 | 206) && !reply.body.is_empty());
    }
}

#[tokio::test]
async fn segments_asked_at_once_and_twice_share_one_encoder() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let session = bed.session("").await;
    let url = |n: u32| resource(&session, &format!("{n}.m4s"));
    let asked = [2, 3, 4, 5, 2].map(url);
    let mut sockets = Vec::new();
    for url in &asked {
        let mut socket = Socket::open(bed.addr).await;
        socket.write("GET", url, &[], "").await;
        sockets.push(socket);
    }
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    let puppet = bed.encoder.newest();
    bed.until("five waiting", || puppet.asked.lock().unwrap().len() == 5)
        .await;
    puppet.set(|state| state.eager = true);
    let mut bodies = Vec::new();
    for socket in &mut sockets {
        let reply = socket.read("GET").await;
        assert_eq!(reply.status.as_u16(), 200);
        bodies.push(reply.body);
    }
    assert_eq!(bodies[0], bodies[4], "the same segment has the same bytes");
    assert_eq!(bed.encoder.started(), 1);
}

#[tokio::test]
async fn an_unfinished_segment_is_held_and_then_said_to_be_late() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "1.m4s"), &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    let puppet = bed.encoder.newest();
    bed.until("the wait", || !puppet.asked.lock().unwrap().is_empty())
        .await;
    bed.clock.advance(Duration::from_secs(8));
    let reply = socket.read("GET").await;
    assert_eq!((reply.status.as_u16(), reply.code()), (503, "not_ready".into()));
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    puppet.set(|state| state.eager = true);
    assert_eq!(
        socket
            .ask("GET", &resource(&session, "1.m4s"), &[], "")
            .await
            .status
            .as_u16(),
        200
    );
    assert_eq!(bed.encoder.started(), 1, "the same encoder went on");
}

#[tokio::test]
async fn one_past_the_end_is_not_there_and_restarts_nothing() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let count = session["segments"].as_u64().unwrap();
    let reply = bed.get(&resource(&session, &format!("{count}.m4s"))).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("cache-control")),
        (404, Some("no-store"))
    );
    assert_eq!(bed.encoder.started(), 0);
    for name in ["0.ts", "x.m4s", "0", "1/header"] {
        assert_eq!(
            bed.get(&resource(&session, name)).await.status.as_u16(),
            404,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_full_machine_refuses_the_second_film_with_the_reason_and_remembers_it() {
    let bed = Bed::with(|setup| setup.capacity.milli_slots = 20).await;
    let first = bed.session("").await;
    let second = bed.session(r#""segmentSeconds":5"#).await;
    assert_eq!(bed.get(&resource(&first, "0.m4s")).await.status.as_u16(), 200);
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&second, "header"), &[], "").await;
    bed.until("the queue", || bed.capacity.usage().waiting == 1).await;
    let id = second["id"].as_str().unwrap();
    let waiting = bed
        .owner("GET", &format!("/ether/api/sessions/{id}"), "")
        .await
        .json();
    assert_eq!(waiting["state"], "waiting");
    bed.clock.advance(Duration::from_millis(7_500));
    let reply = socket.read("GET").await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (503, "capacity_encoders".into())
    );
    assert_eq!(reply.header("retry-after"), Some("2"));
    let refused = bed
        .owner("GET", &format!("/ether/api/sessions/{id}"), "")
        .await
        .json();
    assert_eq!(refused["refusals"][0]["code"], "capacity_encoders");
    assert_eq!((&refused["state"], bed.encoder.started()), (&"idle".into(), 1));
    // The first viewer leaves; the second asks again and is served.
    let gone = bed
        .owner(
            "DELETE",
            &format!("/ether/api/sessions/{}", first["id"].as_str().unwrap()),
            "",
        )
        .await;
    assert_eq!(gone.status.as_u16(), 204);
    assert_eq!(bed.get(&resource(&second, "header")).await.status.as_u16(), 200);
}

#[tokio::test]
async fn a_viewer_who_leaves_the_queue_takes_nothing() {
    let bed = Bed::with(|setup| setup.capacity.milli_slots = 20).await;
    let first = bed.session("").await;
    let second = bed.session(r#""segmentSeconds":5"#).await;
    assert_eq!(bed.get(&resource(&first, "0.m4s")).await.status.as_u16(), 200);
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&second, "header"), &[], "").await;
    bed.until("the queue", || bed.capacity.usage().waiting == 1).await;
    drop(socket);
    let stop = format!("/ether/api/sessions/{}", first["id"].as_str().unwrap());
    bed.owner("DELETE", &stop, "").await;
    bed.until("everything back", || {
        bed.capacity.usage().used == Units::default()
    })
    .await;
    assert_eq!(bed.encoder.started(), 1, "nobody waited for the second any more");
}

#[tokio::test]
async fn a_viewer_who_stops_asking_loses_the_encoder_and_gets_another() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let before = bed.get(&resource(&session, "0.m4s")).await;
    bed.clock.advance(Duration::from_secs(59));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_ne!(bed.capacity.usage().used, Units::default());
    bed.clock.advance(Duration::from_secs(1));
    bed.until("capacity back", || bed.capacity.usage().used == Units::default())
        .await;
    assert_eq!(bed.encoder.newest().state.borrow().retire_calls, 1);
    let after = bed.get(&resource(&session, "0.m4s")).await;
    assert_eq!((after.status.as_u16(), bed.encoder.started()), (200, 2));
    assert_ne!(
        before.header("etag"),
        after.header("etag"),
        "made anew, tagged anew"
    );
    for validator in ["etag", "last-modified"] {
        let stale = [
            ("Range", "bytes=0-9"),
            ("If-Range", before.header(validator).unwrap()),
        ];
        let mixed = bed.send("GET", &resource(&session, "0.m4s"), &stale, "").await;
        assert_eq!(
            mixed.status.as_u16(),
            200,
            "never a part of one with a part of another, known by {validator}"
        );
        let fresh = [stale[0], ("If-Range", after.header(validator).unwrap())];
        let rest = bed.send("GET", &resource(&session, "0.m4s"), &fresh, "").await;
        assert_eq!((rest.status.as_u16(), rest.body.len()), (206, 10), "{validator}");
    }
}

#[tokio::test]
async fn a_pause_of_ten_minutes_keeps_the_place_and_one_of_an_hour_rebuilds_it() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let state = format!("/ether/api/sessions/{}/state", session["id"].as_str().unwrap());
    bed.get(&resource(&session, "0.m4s")).await;
    let paused = bed
        .owner("POST", &state, r#"{"state":"paused","positionMs":6000}"#)
        .await;
    assert_eq!(paused.status.as_u16(), 204);
    let puppet = bed.encoder.newest();
    assert_eq!(*puppet.controls.lock().unwrap(), [Control::Paused]);
    assert_eq!(
        bed.library.positions.lock().unwrap()[&bed.film_id()].position_ms,
        6_000
    );
    bed.clock.advance(Duration::from_secs(600));
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(bed.get(&resource(&session, "1.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 1);
    bed.clock.advance(Duration::from_secs(3_600));
    bed.until("the encoder gone", || {
        bed.capacity.usage().used == Units::default()
    })
    .await;
    assert_eq!(bed.get(&resource(&session, "2.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 2);
}

#[tokio::test]
async fn a_slow_transfer_is_a_sign_of_life_and_a_stalled_one_is_cut_off() {
    let bed = Bed::with(|setup| setup.encoder.bytes = 512 << 20).await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    assert!(socket.fill().await.is_some());
    let puppet = bed.encoder.newest();
    // The kernel lets a waiting writer on only once a good part of its buffer is free, so the reader takes
    // more than that between two looks at the clock.
    for _ in 0..12 {
        let mut taken = 0;
        while taken < 4 << 20 {
            taken += socket.fill().await.expect("still open");
        }
        bed.clock.advance(Duration::from_secs(10));
    }
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(
        puppet.dropped.load(Ordering::SeqCst),
        0,
        "slow and steady is served for minutes"
    );
    assert_eq!(puppet.state.borrow().retire_calls, 0, "and is not idle");
    // Now nothing is read any more.
    let began = bed.clock.now();
    bed.as_time_passes(bed.until("the transfer dropped", || {
        puppet.dropped.load(Ordering::SeqCst) == 1
    }))
    .await;
    let took = bed.clock.now().saturating_since(began);
    assert!(took >= Duration::from_secs(50), "cut off after {took:?}");
    bed.as_time_passes(bed.until("nothing left", || bed.capacity.usage().used == Units::default()))
        .await;
}

#[tokio::test]
async fn a_viewer_who_hangs_up_ends_the_transfer_and_not_the_session() {
    let bed = Bed::with(|setup| setup.encoder.bytes = 512 << 20).await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    assert!(socket.fill().await.is_some());
    drop(socket);
    let puppet = bed.encoder.newest();
    bed.until("the transfer dropped", || {
        puppet.dropped.load(Ordering::SeqCst) == 1
    })
    .await;
    let reply = bed.send("HEAD", &resource(&session, "0.m4s"), &[], "").await;
    assert_eq!(reply.status.as_u16(), 200);
}

#[tokio::test]
async fn a_transfer_that_fails_is_seen_to_fail() {
    let bed = Bed::with(|setup| setup.encoder.bytes = 512 << 20).await;
    let session = bed.session("").await;
    bed.get(&resource(&session, "header")).await;
    bed.encoder.newest().cut_short.store(32 << 20, Ordering::SeqCst);
    let reply = bed.get(&resource(&session, "0.m4s")).await;
    assert_eq!(reply.status.as_u16(), 200, "it began well");
    assert!(
        !reply.whole && reply.body.len() <= 32 << 20,
        "and ended with a broken connection"
    );
}

#[tokio::test]
async fn every_way_to_fail_has_its_own_answer() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let cases = [
        (
            ServeError::SourceEnded {
                at: Ticks(72 * 90_000),
            },
            404,
            "source_ended",
        ),
        (
            ServeError::Ended {
                ended: Ended::Stalled,
            },
            502,
            "stalled",
        ),
        (
            ServeError::Ended {
                ended: Ended::Failed {
                    status: Some(1),
                    signal: None,
                },
            },
            502,
            "encoder_failed",
        ),
        (
            ServeError::Ended {
                ended: Ended::ScratchFull,
            },
            503,
            "scratch_full",
        ),
        (
            ServeError::Ended {
                ended: Ended::SourceLost,
            },
            502,
            "source_lost",
        ),
        (
            ServeError::Refused {
                refusal: Refusal::Device,
                retry_after: Duration::from_millis(2_500),
            },
            503,
            "capacity_device",
        ),
        (
            ServeError::Ended {
                ended: Ended::SourceChanged,
            },
            410,
            "ended",
        ),
    ];
    for (error, status, code) in cases {
        let session = bed.session("").await;
        let mut socket = Socket::open(bed.addr).await;
        let started = bed.encoder.started();
        socket.write("GET", &resource(&session, "5.m4s"), &[], "").await;
        bed.until("the encoder", || bed.encoder.started() > started).await;
        bed.encoder.newest().set(|state| state.error = Some(error));
        let reply = socket.read("GET").await;
        assert_eq!((reply.status.as_u16(), reply.code()), (status, code.to_owned()));
        let id = session["id"].as_str().unwrap();
        let report = bed
            .owner("GET", &format!("/ether/api/sessions/{id}"), "")
            .await
            .json();
        let noted = &report["refusals"][0]["code"];
        let expected = match code {
            "source_ended" => "source_truncated",
            "ended" => "source_changed",
            other => other,
        };
        assert_eq!(noted, expected, "the owner can read why");
        bed.owner("DELETE", &format!("/ether/api/sessions/{id}"), "")
            .await;
    }
    assert_eq!(bed.capacity.usage().used, Units::default());
}

#[tokio::test]
async fn a_stopped_session_is_gone_at_once_for_everybody() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    let session = bed.session("").await;
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    for _ in 0..2 {
        assert_eq!(bed.owner("DELETE", &path, "").await.status.as_u16(), 204);
    }
    assert_eq!(
        socket.read("GET").await.status.as_u16(),
        410,
        "a waiting request is told"
    );
    for name in ["index.m3u8", "header", "0.m4s"] {
        let reply = bed.get(&resource(&session, name)).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (410, "ended".into()),
            "{name}"
        );
    }
    assert_eq!(
        bed.capacity.usage().used,
        Units::default(),
        "204 came after the proof"
    );
    let report = bed.owner("GET", &path, "").await.json();
    assert_eq!(
        (&report["state"], &report["ended"]["code"]),
        (&"ended".into(), &"stopped".into())
    );
    assert_eq!(report["log"][0], "a last word");
}

#[tokio::test]
async fn an_end_that_is_not_proved_keeps_its_charge_and_is_asked_for_again() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    bed.get(&resource(&session, "0.m4s")).await;
    let puppet = bed.encoder.newest();
    puppet.set(|state| state.unprovable = Some(RetireError::Pending));
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    let mut socket = Socket::open(bed.addr).await;
    let token = format!("Bearer {}", super::bed::OWNER);
    socket
        .write("DELETE", &path, &[("Authorization", &token)], "")
        .await;
    bed.until("the first try", || puppet.state.borrow().retire_calls == 1)
        .await;
    assert_ne!(bed.capacity.usage().used, Units::default());
    let report = bed.owner("GET", &path, "").await.json();
    assert_eq!(
        (&report["state"], &report["unproved"]),
        (&"ended".into(), &1.into())
    );
    puppet.set(|state| state.unprovable = None);
    let back = bed.until("capacity back", || bed.capacity.usage().used == Units::default());
    bed.as_time_passes(back).await;
    assert_eq!(socket.read("DELETE").await.status.as_u16(), 204);
}

#[tokio::test]
async fn a_session_ends_with_its_time() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let life = session["expiresAt"].as_i64().unwrap() - bed.clock.now().as_micros();
    assert_eq!(life, (60 + 4 * 3_600) * 1_000_000);
    bed.clock.advance(Duration::from_micros(life as u64));
    let reply = bed.get(&resource(&session, "0.m4s")).await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (401, "grant_expired".into())
    );
    assert_eq!(bed.encoder.started(), 0);
}

#[tokio::test]
async fn a_viewer_begins_where_they_left_off() {
    let bed = Bed::new().await;
    let session = bed.session(r#""offsetMs":31000"#).await;
    let list = bed.get(session["url"].as_str().unwrap()).await.text();
    assert!(list.contains("#EXT-X-START:TIME-OFFSET=31.000000,PRECISE=YES"));
    bed.get(&resource(&session, "header")).await;
    assert_eq!(
        bed.encoder.newest().first,
        5,
        "the encoder begins with the segment of second 31"
    );
    let past = format!(r#"{{"item":"{FILM}","offset":60}}"#);
    let reply = bed.owner("POST", "/ether/api/sessions", &past).await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (422, "start_past_end".into())
    );
}

#[tokio::test]
async fn the_booked_scratch_reaches_the_encoder_and_transport_streams_have_their_names() {
    let bed = Bed::new().await;
    let session = bed.session(r#""container":"ts","segmentSeconds":3"#).await;
    assert_eq!(session["decision"]["container"], "ts");
    let list = bed.get(&resource(&session, "index.m3u8")).await.text();
    assert!(list.contains("\n0.ts?grant=") && !list.contains("EXT-X-MAP"));
    assert_eq!(bed.get(&resource(&session, "0.ts")).await.status.as_u16(), 200);
    let puppet = bed.encoder.newest();
    assert_eq!(
        u64::from(bed.capacity.usage().used.scratch_mib) << 20,
        puppet.scratch
    );
    let first = Resource::Segment {
        representation: 0,
        number: 0,
    };
    assert_eq!(*puppet.asked.lock().unwrap(), [first]);
}
