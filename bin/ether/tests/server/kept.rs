//! Viewers of one film share an encoder, and what was encoded is served again without one.

use hyper::Method;
use serde_json::json;

use crate::bed::Setup;
use crate::play::Play;

#[tokio::test]
async fn ten_viewers_near_each_other_are_served_by_one_encoder() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let mut plays = Vec::new();
    for _ in 0..10 {
        plays.push(Play::open(&server, "ntsc.mkv", json!({"video": "encode"})).await);
    }
    let mut first = None;
    for play in &plays {
        let segment = play.segment(0).await;
        assert_eq!(*first.get_or_insert_with(|| segment.clone()), segment);
        assert_eq!(server.encoders().len(), 1, "another encoder was started");
    }
    let path = format!("/ether/api/sessions/{}", plays[3].created["id"].as_str().unwrap());
    let session = server.api(Method::GET, &path, None).await.expect(200).json();
    assert_eq!(session["viewers"], 10);
    assert_eq!(session["encoder"]["runs"], 1);
}

#[tokio::test]
async fn a_film_that_was_watched_needs_no_encoder_again() {
    let setup = Setup::of(&["ntsc.mkv"]).arg("--segment-cache").arg("64");
    let server = setup.start().await;
    let wish = json!({"video": "encode", "maxHeight": 180});
    let play = Play::open(&server, "ntsc.mkv", wish.clone()).await;
    let count = play.segments();
    let mut made = Vec::new();
    for n in 0..count {
        made.push(play.segment(n).await);
    }
    let path = format!("/ether/api/sessions/{}", play.created["id"].as_str().unwrap());
    server.api(Method::DELETE, &path, None).await.expect(204);
    assert!(server.encoders().is_empty());

    let again = Play::open(&server, "ntsc.mkv", wish).await;
    for n in (0..count).rev() {
        assert_eq!(again.segment(n).await, made[n], "segment {n}");
        assert!(
            server.encoders().is_empty(),
            "an encoder was started for segment {n}"
        );
    }
    let path = format!("/ether/api/sessions/{}", again.created["id"].as_str().unwrap());
    let session = server.api(Method::GET, &path, None).await.expect(200).json();
    assert_eq!(
        session["charged"],
        json!({"milliSlots": 0, "deviceMilliSlots": 0, "scratchMib": 0})
    );
}
