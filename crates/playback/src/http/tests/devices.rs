//! A device that is full or broken is left for the processor, and the owner can read why (cases 31 and 33).

use std::time::Duration;

use ether_encoder::{Device, Refusal, Resource, ServeError};
use serde_json::{Value, json};

use super::bed::{Bed, Socket, resource};
use crate::ports::Capacity;

const CARD: Device = Device::Nvenc { gpu: 0 };

async fn encoding(bed: &Bed, session: &Value) -> Value {
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    bed.owner("GET", &path, "").await.json()["encoding"].clone()
}

fn refused(refusal: Refusal) -> ServeError {
    ServeError::Refused {
        refusal,
        retry_after: Duration::from_secs(1),
    }
}

/// Asks for `name` of `session`, and lets the execution that is begun for it answer `error`.
async fn asks_and_meets(bed: &Bed, session: &Value, name: &str, error: ServeError) -> Socket {
    let mut socket = Socket::open(bed.addr).await;
    let started = bed.encoder.started();
    socket.write("GET", &resource(session, name), &[], "").await;
    bed.until("an encoder", || bed.encoder.started() > started).await;
    bed.encoder.newest().set(|state| state.error = Some(error));
    socket
}

/// How often sessions fell back is the owner's to read in one place (case 33).
#[tokio::test]
async fn the_owner_sees_how_devices_fared_and_viewers_do_not() {
    let bed = Bed::new().await;
    let list = bed.owner("GET", "/ether/api/sessions", "").await.json();
    assert_eq!(
        list["devices"],
        json!({"hardware": 0, "software": 0, "fallbacks": 3, "full": 0, "failed": 0})
    );
    let viewer = format!("Bearer {}", bed.viewer().await);
    let headers = [("Authorization", viewer.as_str())];
    let list = bed.send("GET", "/ether/api/sessions", &headers, "").await.json();
    assert_eq!(list["devices"], Value::Null);
}

fn finish(bed: &Bed, resource: Resource) {
    bed.encoder.newest().set(|state| {
        state.finished.insert(resource);
    });
}

#[tokio::test]
async fn a_device_that_takes_no_further_session_is_left_for_the_processor() {
    for (refusal, code) in [
        (Refusal::Device, "capacity_device"),
        (Refusal::DeviceLost, "device_lost"),
    ] {
        let bed = Bed::with(|setup| setup.encoder.eager = false).await;
        *bed.encoder.device.lock().unwrap() = CARD;
        let session = bed.session(r#""video":"encode""#).await;
        let chosen = encoding(&bed, &session).await;
        assert_eq!((&chosen["device"], &chosen["gpu"]), (&json!("nvenc"), &json!(0)));
        assert_eq!(chosen["fallbacks"], json!([]));
        // From now on the encoder would choose the processor.
        *bed.encoder.device.lock().unwrap() = Device::Software;
        let mut socket = asks_and_meets(&bed, &session, "3.m4s", refused(refusal)).await;
        assert_eq!(bed.encoder.newest().device, CARD);
        let used = bed.capacity.usage().used;
        assert_eq!(used.milli_slots, 20, "the card does all of the picture");
        assert!(used.device_milli_slots > 100, "{used:?}");
        bed.until("another encoder", || bed.encoder.started() == 2).await;
        assert_eq!(bed.encoder.newest().device, Device::Software);
        finish(
            &bed,
            Resource::Segment {
                representation: 0,
                number: 3,
            },
        );
        // The viewer notices nothing but the wait, the charge follows the work, and the owner can read what happened.
        assert_eq!(socket.read("GET").await.status.as_u16(), 200);
        let after = bed.capacity.usage().used;
        assert_eq!(after.milli_slots, 20 + used.device_milli_slots);
        assert_eq!(after.device_milli_slots, 0);
        let now = encoding(&bed, &session).await;
        assert_eq!(now["device"], "software");
        assert_eq!(now["fallbacks"][0]["code"], code);
        assert_eq!(now["fallbacks"][0]["from"], "NVENC on card 0");
    }
}

/// A player that has one device's description goes on with another's pictures, which describe themselves: it keeps
/// its addresses, and whoever reads the playlist anew is led to the new description (D2).
#[tokio::test]
async fn a_player_that_has_the_description_goes_on_in_a_new_epoch() {
    for refusal in [Refusal::Device, Refusal::DeviceLost] {
        let bed = Bed::with(|setup| setup.encoder.eager = false).await;
        *bed.encoder.device.lock().unwrap() = CARD;
        let session = bed.session(r#""video":"encode""#).await;
        let mut socket = Socket::open(bed.addr).await;
        socket
            .write("GET", &resource(&session, "init.mp4"), &[], "")
            .await;
        bed.until("an encoder", || bed.encoder.started() == 1).await;
        finish(&bed, Resource::Init { representation: 0 });
        assert_eq!(socket.read("GET").await.status.as_u16(), 200);
        assert!(!bed.encoder.newest().self_describing);
        let before = bed.get(&resource(&session, "index.m3u8")).await.text();

        *bed.encoder.device.lock().unwrap() = Device::Software;
        bed.encoder
            .newest()
            .set(|state| state.error = Some(refused(refusal)));
        let mut socket = Socket::open(bed.addr).await;
        socket.write("GET", &resource(&session, "3.m4s"), &[], "").await;
        bed.until("another encoder", || bed.encoder.started() == 2).await;
        assert_eq!(bed.encoder.newest().device, Device::Software);
        assert!(bed.encoder.newest().self_describing);
        let segment = Resource::Segment {
            representation: 0,
            number: 3,
        };
        finish(&bed, segment);
        assert_eq!(socket.read("GET").await.status.as_u16(), 200);
        assert_eq!(encoding(&bed, &session).await["device"], "software");

        // Read anew, the playlist leads to addresses of its own, and those that are known already stay good.
        let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
        assert_eq!(bed.owner("GET", &path, "").await.json()["epoch"], 1);
        let after = bed.get(&resource(&session, "index.m3u8")).await.text();
        let map = |text: &str| {
            text.lines()
                .find(|line| line.starts_with("#EXT-X-MAP"))
                .unwrap()
                .to_owned()
        };
        assert_ne!(map(&before), map(&after));
        finish(&bed, Resource::Init { representation: 0 });
        let base = session["url"].as_str().unwrap();
        let base = base.split("index").next().unwrap().to_owned() + "0/";
        for text in [&before, &after] {
            let map = map(text);
            let name = map.split('"').nth(1).unwrap();
            assert_eq!(bed.get(&format!("{base}{name}")).await.status.as_u16(), 200);
            let name = text.lines().find(|line| line.starts_with("3.m4s")).unwrap();
            assert_eq!(bed.get(&format!("{base}{name}")).await.status.as_u16(), 200);
        }
    }
}

/// With no other device to go on with, the player waits for its own.
#[tokio::test]
async fn a_full_device_without_another_is_waited_for() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    *bed.encoder.device.lock().unwrap() = CARD;
    let session = bed.session(r#""video":"encode""#).await;
    let mut socket = asks_and_meets(&bed, &session, "3.m4s", refused(Refusal::Device)).await;
    let reply = socket.read("GET").await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (503, "capacity_device".to_owned())
    );
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(bed.owner("GET", &path, "").await.json()["epoch"], 0);
}

/// A viewer comes back after a long pause, and FFmpeg was replaced meanwhile: it describes its pictures otherwise than
/// the initialization segment that the player has. What comes describes itself; what is described alike goes on as it
/// was.
#[tokio::test]
async fn a_player_outlives_the_encoder_s_own_description() {
    for (described, epoch) in [("init", 0), ("other", 1)] {
        let bed = Bed::with(|setup| setup.encoder.eager = false).await;
        let session = bed.session(r#""video":"encode""#).await;
        // Every execution has made all that is asked for by the time that it answers.
        let made = |number| {
            finish(&bed, Resource::Init { representation: 0 });
            finish(
                &bed,
                Resource::Segment {
                    representation: 0,
                    number,
                },
            );
        };
        let mut socket = Socket::open(bed.addr).await;
        socket
            .write("GET", &resource(&session, "init.mp4"), &[], "")
            .await;
        bed.until("an encoder", || bed.encoder.started() == 1).await;
        made(0);
        assert_eq!(socket.read("GET").await.status.as_u16(), 200);
        let first = bed.encoder.newest();
        bed.as_time_passes(bed.until("the encoder retired", || first.state.borrow().retire_calls > 0))
            .await;
        *bed.encoder.described.lock().unwrap() = described.to_owned();
        let mut socket = Socket::open(bed.addr).await;
        socket.write("GET", &resource(&session, "1.m4s"), &[], "").await;
        for started in 2..=2 + epoch {
            bed.until("another encoder", || bed.encoder.started() == started)
                .await;
            made(1);
        }
        assert_eq!(socket.read("GET").await.status.as_u16(), 200);
        assert_eq!(bed.encoder.newest().self_describing, epoch == 1);
        let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
        assert_eq!(bed.owner("GET", &path, "").await.json()["epoch"], epoch);
        // From then on it stays as it is.
        made(2);
        for name in ["2.m4s", "init.mp4", "1.m4s"] {
            assert_eq!(bed.get(&resource(&session, name)).await.status.as_u16(), 200);
        }
        assert_eq!(bed.encoder.started(), 2 + epoch);
    }
}
