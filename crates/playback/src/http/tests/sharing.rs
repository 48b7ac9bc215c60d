//! Viewers of the same film share one encoder for as long as they watch near each other.

use serde_json::Value;

use super::bed::{Bed, resource};
use crate::ports::{Capacity, Units};
use crate::testing::{facts, film_picture};

async fn viewers(bed: &Bed, session: &Value) -> Value {
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    bed.owner("GET", &path, "").await.json()["viewers"].clone()
}

async fn stop(bed: &Bed, session: &Value) {
    let path = format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(bed.owner("DELETE", &path, "").await.status.as_u16(), 204);
}

#[tokio::test]
async fn ten_viewers_of_one_film_take_one_encoder_and_one_charge() {
    // Room for one.
    let bed = Bed::with(|setup| setup.capacity.milli_slots = 20).await;
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(bed.session("").await);
    }
    let replies = futures(&bed, &sessions).await;
    assert!(replies.iter().all(|status| *status == 200), "{replies:?}");
    assert_eq!(bed.encoder.started(), 1);
    assert_eq!(bed.capacity.usage().used.milli_slots, 20);
    assert_eq!(viewers(&bed, &sessions[4]).await, 10);
    for session in &sessions[..9] {
        stop(&bed, session).await;
    }
    assert_eq!(viewers(&bed, &sessions[9]).await, 1);
    assert!(
        !bed.encoder.newest().state.borrow().retired,
        "the last one still watches"
    );
    stop(&bed, &sessions[9]).await;
    bed.until("everything back", || {
        bed.capacity.usage().used == Units::default()
    })
    .await;
    assert_eq!(bed.encoder.newest().state.borrow().retire_calls, 1);
}

/// All of them at once: the first begins the encoder and the others wait for it.
async fn futures(bed: &Bed, sessions: &[Value]) -> Vec<u16> {
    let paths: Vec<String> = sessions
        .iter()
        .map(|session| resource(session, "0.m4s"))
        .collect();
    let asked = paths.iter().map(|path| bed.get(path));
    let mut statuses = Vec::new();
    let mut asked: Vec<_> = asked.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        asked.retain_mut(|asked| match asked.as_mut().poll(cx) {
            std::task::Poll::Ready(reply) => {
                statuses.push(reply.status.as_u16());
                false
            }
            std::task::Poll::Pending => true,
        });
        if asked.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    statuses
}

#[tokio::test]
async fn a_viewer_who_seeks_away_from_the_others_gets_another_encoder() {
    let bed = Bed::new().await;
    let (one, two) = (bed.session("").await, bed.session("").await);
    for session in [&one, &two] {
        assert_eq!(bed.get(&resource(session, "0.m4s")).await.status.as_u16(), 200);
    }
    let shared = bed.encoder.newest();
    shared.set(|state| state.far = [8].into());
    assert_eq!(bed.get(&resource(&two, "8.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 2);
    assert!(!shared.state.borrow().retired, "the other one still watches");
    assert_eq!(
        (viewers(&bed, &one).await, viewers(&bed, &two).await),
        (1.into(), 1.into())
    );
    // A third joins whoever is near.
    let three = bed.session("").await;
    assert_eq!(bed.get(&resource(&three, "8.m4s")).await.status.as_u16(), 200);
    assert_eq!((bed.encoder.started(), viewers(&bed, &two).await), (2, 2.into()));
    // Who is alone takes the encoder along.
    assert_eq!(bed.get(&resource(&one, "8.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 2);
}

#[tokio::test]
async fn another_quality_or_another_cut_is_another_encoder() {
    let bed = Bed::new().await;
    for wish in [
        r#""video":"encode""#,
        r#""video":"encode","maxHeight":360"#,
        r#""segmentSeconds":4"#,
        "",
    ] {
        let session = bed.session(wish).await;
        assert_eq!(bed.get(&resource(&session, "0.m4s")).await.status.as_u16(), 200);
    }
    assert_eq!(bed.encoder.started(), 4);
}

/// Whoever hears another language, or nothing, sees the same pictures.
#[tokio::test]
async fn viewers_who_choose_different_sounds_share_the_encoder_of_the_picture() {
    let bed = Bed::new().await;
    let mut film = facts(film_picture(1280, 720), 60);
    for index in [2, 3] {
        let mut sound = film.streams[1].clone();
        (sound.index, sound.language) = (index, Some(format!("l{index}")));
        film.streams.push(sound);
    }
    bed.library.add("polyglot", bed.film.clone(), film);
    let wish = |protocol: &str, more: &str| {
        format!(r#"{{"item":"polyglot","protocol":"{protocol}","video":"encode"{more}}}"#)
    };
    for (n, (protocol, choices)) in [
        ("hls", ["", r#","audio":3"#, r#","audio":-1"#]),
        ("dash", ["", r#","audio":2"#, r#","audio":3,"sounds":"one""#]),
    ]
    .into_iter()
    .enumerate()
    {
        let mut session = Value::Null;
        for more in choices {
            let wish = wish(protocol, more);
            session = bed.owner("POST", "/ether/api/sessions", &wish).await.json();
            let segment = format!(
                "/sessions/media/{}/0/0.m4s?{}",
                session["id"].as_str().unwrap(),
                grant(&session)
            );
            assert_eq!(bed.get(&segment).await.status.as_u16(), 200, "{wish}");
        }
        assert_eq!(bed.encoder.started() as usize, n + 1, "{protocol}");
        assert_eq!(viewers(&bed, &session).await, 3);
    }
    // Each hears their own: the chosen one first, at the number that it has for everybody.
    let chosen = bed
        .owner("POST", "/ether/api/sessions", &wish("hls", r#","audio":3"#))
        .await
        .json();
    let text = bed.get(chosen["url"].as_str().unwrap()).await.text();
    let numbers: Vec<&str> = text.lines().filter(|line| line.contains("TYPE=AUDIO")).collect();
    for (line, wanted) in numbers.iter().zip(["3/", "1/", "2/"]) {
        assert!(line.contains(&format!("URI=\"{wanted}index.m3u8")), "{text}");
    }
    assert!(numbers[0].contains("DEFAULT=YES"), "{text}");
}

fn grant(session: &Value) -> String {
    let url = session["url"].as_str().unwrap();
    url.split('?').nth(1).unwrap().to_owned()
}

/// An execution that ended by itself is found by nobody any more.
#[tokio::test]
async fn nobody_joins_an_execution_that_has_ended() {
    let bed = Bed::new().await;
    let (one, two) = (bed.session("").await, bed.session("").await);
    assert_eq!(bed.get(&resource(&one, "0.m4s")).await.status.as_u16(), 200);
    bed.encoder.newest().set(|state| state.retired = true);
    assert_eq!(bed.get(&resource(&one, "1.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 2);
    assert_eq!(bed.get(&resource(&two, "1.m4s")).await.status.as_u16(), 200);
    assert_eq!(bed.encoder.started(), 2);
}
