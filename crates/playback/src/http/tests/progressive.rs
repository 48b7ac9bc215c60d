//! Streams without segments, as players that pause and players of an older HTTP meet them.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ether_encoder::{Device, Refusal, ServeError};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bed::{Bed, FILM, Socket};
use crate::ports::{Capacity, Units};

async fn session(bed: &Bed, more: &str) -> Value {
    let wish = format!("{{\"item\":\"{FILM}\",\"protocol\":\"http\"{more}}}");
    let reply = bed.owner("POST", "/ether/api/sessions", &wish).await;
    assert_eq!(reply.status.as_u16(), 201, "{}", reply.text());
    reply.json()
}

/// A player that pauses has no way to say so but to read no more. It keeps its stream for as long as a paused session
/// lasts, and no longer.
#[tokio::test]
async fn a_paused_player_keeps_its_stream_for_half_an_hour() {
    let bed = Bed::with(|setup| setup.encoder.bytes = 512 << 20).await;
    let session = session(&bed, "").await;
    let mut socket = Socket::open(bed.addr).await;
    socket
        .write("GET", session["url"].as_str().unwrap(), &[], "")
        .await;
    assert!(socket.fill().await.is_some());
    let puppet = bed.encoder.newest();
    let dropped = || puppet.dropped.load(Ordering::SeqCst);
    let minutes = async |count: u64| {
        // What the kernel takes meanwhile is not part of the pause.
        tokio::time::sleep(Duration::from_millis(50)).await;
        for _ in 0..count * 6 {
            tokio::time::sleep(Duration::from_millis(2)).await;
            bed.clock.advance(Duration::from_secs(10));
        }
    };
    minutes(25).await;
    assert_eq!(dropped(), 0, "cut off while it was paused");
    // It plays on, and may pause again.
    let mut taken = 0;
    while taken < 32 << 20 {
        taken += socket.fill().await.expect("still open");
    }
    minutes(25).await;
    assert_eq!(dropped(), 0, "cut off in its second pause");
    minutes(15).await;
    bed.until("the stream dropped", || dropped() == 1).await;
    bed.as_time_passes(bed.until("nothing left", || bed.capacity.usage().used == Units::default()))
        .await;
}

/// Without chunks only the end of the connection tells that an answer is whole: a broken one ends in an error.
#[tokio::test]
async fn a_broken_stream_looks_whole_to_no_player_of_an_older_http() {
    for whole in [true, false] {
        let bed = Bed::with(|setup| {
            setup.encoder.bytes = 4 << 20;
            setup.encoder.eager = false;
        })
        .await;
        let session = session(&bed, "").await;
        let mut socket = Socket::open(bed.addr).await;
        let head = format!(
            "GET {} HTTP/1.0\r\nHost: {}\r\n\r\n",
            session["url"].as_str().unwrap(),
            bed.addr
        );
        socket.stream.write_all(head.as_bytes()).await.unwrap();
        bed.until("an encoder", || bed.encoder.started() == 1).await;
        let puppet = bed.encoder.newest();
        if !whole {
            puppet.cut_short.store(2 << 20, Ordering::SeqCst);
        }
        puppet.set(|state| state.eager = true);
        let mut bytes = Vec::new();
        let end = socket.stream.read_to_end(&mut bytes).await;
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).to_ascii_lowercase();
        assert!(
            head.starts_with("http/1.0 200") || head.starts_with("http/1.1 200"),
            "{head}"
        );
        assert!(
            !head.contains("chunked") && !head.contains("content-length"),
            "{head}"
        );
        match end {
            Ok(_) => assert!(whole && bytes.len() > 4 << 20, "{} bytes", bytes.len()),
            Err(error) => {
                assert_eq!((whole, error.kind()), (false, ErrorKind::ConnectionReset));
            }
        }
    }
}

/// Before anything of it was sent a stream falls back like everything else (case 31).
#[tokio::test]
async fn a_stream_falls_back_to_the_processor_before_it_begins() {
    let bed = Bed::with(|setup| setup.encoder.eager = false).await;
    *bed.encoder.device.lock().unwrap() = Device::Nvenc { gpu: 0 };
    let session = session(&bed, ",\"video\":\"encode\"").await;
    let mut socket = Socket::open(bed.addr).await;
    socket
        .write("GET", session["url"].as_str().unwrap(), &[], "")
        .await;
    bed.until("an encoder", || bed.encoder.started() == 1).await;
    *bed.encoder.device.lock().unwrap() = Device::Software;
    bed.encoder.newest().set(|state| {
        state.error = Some(ServeError::Refused {
            refusal: Refusal::DeviceLost,
            retry_after: Duration::from_secs(1),
        });
    });
    bed.until("another encoder", || bed.encoder.started() == 2).await;
    assert_eq!(bed.encoder.newest().device, Device::Software);
    bed.encoder.newest().set(|state| state.eager = true);
    let mut line = [0; 12];
    socket.stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 200");
}
