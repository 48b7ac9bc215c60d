//! Asking for sessions: what is answered, what is decided, what is refused.

use std::sync::atomic::Ordering;

use ether_encoder::Unsupported;
use ether_media::{Codec, Color};

use super::bed::{Bed, FILM, OWNER};
use crate::ports::OpenError;
use crate::testing::{facts, film_picture};

#[tokio::test]
async fn a_key_whose_session_has_ended_makes_no_second_one_and_gives_no_dead_address() {
    let bed = Bed::new().await;
    let token = format!("Bearer {OWNER}");
    let keyed = [("Authorization", token.as_str()), ("Idempotency-Key", "once")];
    let wish = format!("{{\"item\":\"{FILM}\"}}");
    let first = bed.send("POST", "/ether/api/sessions", &keyed, &wish).await;
    let again = bed.send("POST", "/ether/api/sessions", &keyed, &wish).await;
    assert_eq!(first.json()["id"], again.json()["id"]);
    let id = first.json()["id"].as_str().unwrap().to_owned();
    bed.owner("DELETE", &format!("/ether/api/sessions/{id}"), "")
        .await;
    let late = bed.send("POST", "/ether/api/sessions", &keyed, &wish).await;
    assert_eq!((late.status.as_u16(), late.code()), (410, "ended".to_owned()));
    assert_eq!(late.json()["session"], id);
    assert!(
        late.json()["message"]
            .as_str()
            .unwrap()
            .contains("new Idempotency-Key")
    );
    let all = bed.owner("GET", "/ether/api/sessions", "").await.json();
    assert_eq!(all["sessions"].as_array().unwrap().len(), 1, "nothing was made");
}

#[tokio::test]
async fn a_film_in_a_folder_that_is_not_there_is_refused_with_the_folders_name() {
    let bed = Bed::new().await;
    *bed.library.refuses.lock().unwrap() = Some(OpenError::FolderMissing {
        folder: "Films".into(),
    });
    let wish = format!("{{\"item\":\"{FILM}\"}}");
    let refused = bed.owner("POST", "/ether/api/sessions", &wish).await;
    assert_eq!(
        (refused.status.as_u16(), refused.code()),
        (404, "folder_missing".to_owned())
    );
    let told = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(told.contains("Films") && told.contains("mount"), "{told}");
}

#[tokio::test]
async fn a_copy_is_refused_where_it_would_be_larger_than_was_asked_for() {
    let bed = Bed::new().await;
    for (wish, field, allowed) in [
        (r#""video":"copy","maxHeight":719"#, "maxHeight", "from 720"),
        (r#""video":"copy","maxBitrate":64000"#, "maxBitrate", "from "),
    ] {
        let wish = format!("{{\"item\":\"{FILM}\",{wish}}}");
        let refused = bed.owner("POST", "/ether/api/sessions", &wish).await;
        assert_eq!(
            (refused.status.as_u16(), refused.code()),
            (422, "cannot_copy".to_owned())
        );
        let refused = refused.json();
        assert_eq!(refused["field"], field);
        assert!(
            refused["allowed"].as_str().unwrap().contains(allowed),
            "{refused}"
        );
    }
    let copied = bed.session(r#""video":"copy","maxHeight":720"#).await;
    assert_eq!(copied["decision"]["video"]["action"], "copy");
    let encoded = bed.session(r#""maxHeight":719"#).await;
    assert_eq!(encoded["decision"]["video"]["action"], "encode");
}

#[tokio::test]
async fn a_session_says_what_is_done_and_why() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let id = session["id"].as_str().unwrap();
    assert!(
        session["url"]
            .as_str()
            .unwrap()
            .starts_with(&format!("/sessions/media/{id}/index.m3u8?grant="))
    );
    assert_eq!(
        (&session["durationMs"], &session["segments"]),
        (&60_000.into(), &10.into())
    );
    let decision = &session["decision"];
    assert_eq!(
        (&decision["mode"], &decision["container"]),
        (&"copy".into(), &"fmp4".into())
    );
    assert_eq!(decision["video"]["action"], "copy");
    assert_eq!(decision["video"]["reasons"][0]["code"], "client_plays_codec");
    assert!(decision["reasons"][0]["text"].as_str().unwrap().contains("MP4"));
    let encoded = bed.session(r#""video":"encode","maxHeight":360"#).await;
    let video = &encoded["decision"]["video"];
    assert_eq!(
        (&video["action"], &video["height"]),
        (&"encode".into(), &360.into())
    );
    assert_eq!(video["reasons"][0]["code"], "asked");
    assert_eq!(encoded["decision"]["audio"]["action"], "copy");
}

#[tokio::test]
async fn the_same_key_gives_the_same_session_even_at_once() {
    let bed = Bed::new().await;
    let token = format!("Bearer {OWNER}");
    let headers = [("Authorization", token.as_str()), ("Idempotency-Key", "key-1")];
    let body = format!("{{\"item\":\"{FILM}\"}}");
    let ask = || bed.send("POST", "/ether/api/sessions", &headers, &body);
    let (one, two) = tokio::join!(ask(), ask());
    assert_eq!((one.status.as_u16(), two.status.as_u16()), (201, 201));
    assert_eq!(one.body, two.body);
    let location = format!("/ether/api/sessions/{}", one.json()["id"].as_str().unwrap());
    assert_eq!(one.header("location"), Some(location.as_str()));
    let other = format!("{{\"item\":\"{FILM}\",\"maxHeight\":360}}");
    let conflict = bed.send("POST", "/ether/api/sessions", &headers, &other).await;
    assert_eq!(
        (conflict.status.as_u16(), conflict.code()),
        (409, "operation_conflict".into())
    );
    let bad = [headers[0], ("Idempotency-Key", "not a key")];
    assert_eq!(
        bed.send("POST", "/ether/api/sessions", &bad, &body)
            .await
            .status
            .as_u16(),
        400
    );
    let sessions = bed.owner("GET", "/ether/api/sessions", "").await.json();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn bad_wishes_are_named() {
    let bed = Bed::new().await;
    let cases = [
        ("", 400, "malformed"),
        ("[]", 400, "malformed"),
        (r#"{"item":5}"#, 400, "malformed"),
        (r#"{"item":"none"}"#, 404, "no_such_item"),
        (r#"{"item":"../../etc/passwd"}"#, 404, "no_such_item"),
        (
            r#"{"item":"film0","protocol":"dash","container":"ts"}"#,
            400,
            "malformed",
        ),
        (r#"{"item":"film0","sounds":"two"}"#, 400, "malformed"),
        (r#"{"item":"film0","protocol":"gopher"}"#, 400, "malformed"),
        (r#"{"item":"film0","subtitle":2}"#, 422, "no_such_stream"),
        (r#"{"item":"film0","segmentSeconds":0.5}"#, 400, "malformed"),
        (r#"{"item":"film0","segmentSeconds":16}"#, 400, "malformed"),
        (r#"{"item":"film0","maxBitrate":1000}"#, 400, "malformed"),
        (r#"{"item":"film0","maxHeight":1}"#, 400, "malformed"),
        (r#"{"item":"film0","container":"avi"}"#, 400, "malformed"),
        (r#"{"item":"film0","video":"paint"}"#, 400, "malformed"),
        (r#"{"item":"film0","offset":-1}"#, 400, "malformed"),
        (r#"{"item":"film0","audio":0}"#, 422, "no_such_stream"),
        (r#"{"item":"film0","audio":-7}"#, 400, "malformed"),
        (r#"{"item":"film0"} {}"#, 400, "malformed"),
    ];
    for (body, status, code) in cases {
        let reply = bed.owner("POST", "/ether/api/sessions", body).await;
        assert_eq!(
            (reply.status.as_u16(), reply.code()),
            (status, code.to_owned()),
            "{body}"
        );
    }
    let nobody = bed
        .send("POST", "/ether/api/sessions", &[], r#"{"item":5}"#)
        .await;
    assert_eq!(
        nobody.status.as_u16(),
        401,
        "whoever may not ask is not told how to"
    );
}

#[tokio::test]
async fn what_is_wrong_is_said_with_its_field_its_value_and_what_is_allowed() {
    let bed = Bed::new().await;
    let cases = [
        ("{}", "item", "missing", "the id of an item"),
        (r#"{"item":5}"#, "item", "5", "a text"),
        (
            r#"{"item":"film0","maxHeight":"tall"}"#,
            "maxHeight",
            r#""tall""#,
            "a whole number from 16 to 16384",
        ),
        (
            r#"{"item":"film0","client":{"video":7}}"#,
            "client.video",
            "7",
            "a list of at most 64 texts of at most 128 bytes",
        ),
        (
            r#"{"item":"film0","client":{"video":["avc1",null]}}"#,
            "client.video[1]",
            "null",
            "a text of at most 128 bytes",
        ),
        (
            r#"{"item":"film0","client":{"maxHeight":0}}"#,
            "client.maxHeight",
            "0",
            "a whole number from 16 to 16384",
        ),
        (
            r#"{"item":"film0","client":{"audioChannels":0}}"#,
            "client.audioChannels",
            "0",
            "a whole number from 1 to 64",
        ),
        (
            r#"{"item":"film0","video":"paint"}"#,
            "video",
            r#""paint""#,
            "auto, copy, encode",
        ),
        (
            r#"{"item":"film0","client":[]}"#,
            "client",
            "a list of 0",
            "an object",
        ),
    ];
    for (body, field, shown, allowed) in cases {
        let reply = bed.owner("POST", "/ether/api/sessions", body).await;
        let said = reply.json();
        assert_eq!(
            (reply.code().as_str(), &said["field"], &said["allowed"]),
            ("malformed", &field.into(), &allowed.into()),
            "{body}"
        );
        let message = said["message"].as_str().unwrap();
        assert!(
            message.starts_with(&format!("`{field}` is {shown};")) && message.ends_with(allowed),
            "{message}"
        );
    }
    // What nobody but its owner may read is not repeated, not even to whoever sent it.
    let secret = r#"{"code":[7777777]}"#;
    let reply = bed.send("POST", "/ether/api/sign-in", &[], secret).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.json()["field"]),
        (400, &"code".into())
    );
    let bare = format!(r#"{{"item":["{OWNER}"],"state":"{OWNER}"}}"#);
    for path in ["/ether/api/sessions", "/ether/api/sign-in"] {
        let reply = bed.owner("POST", path, &bare).await;
        assert_eq!(reply.status.as_u16(), 400);
        assert!(!reply.text().contains(OWNER), "{}", reply.text());
    }
}

#[tokio::test]
async fn what_no_encoder_here_can_do_is_refused_before_it_is_tried() {
    let bed = Bed::new().await;
    *bed.encoder.lacks.lock().unwrap() = Some(Unsupported::Missing {
        what: "encoder libx264".into(),
    });
    let reply = bed
        .owner(
            "POST",
            "/ether/api/sessions",
            r#"{"item":"film0","video":"encode"}"#,
        )
        .await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (422, "encoder_lacks".into())
    );
    assert!(reply.json()["message"].as_str().unwrap().contains("libx264"));
    let mut hdr = facts(film_picture(3840, 2160), 60);
    hdr.streams[0].codec = Codec::Hevc;
    let ether_media::StreamKind::Video(video) = &mut hdr.streams[0].kind else {
        panic!("a picture")
    };
    video.color = Color {
        transfer: Some(16),
        ..Color::default()
    };
    bed.library.add("hdr", bed.film.clone(), hdr);
    let reply = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"hdr"}"#)
        .await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (422, "encoder_lacks".into()),
        "whether it can be mapped is the encoder's word"
    );
    let mut unindexed = facts(film_picture(640, 360), 60);
    unindexed.keyframes = None;
    bed.library.add("ts", bed.film.clone(), unindexed);
    let reply = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"ts","video":"copy"}"#)
        .await;
    assert_eq!((reply.status.as_u16(), reply.code()), (422, "cannot_copy".into()));
    assert_eq!(reply.json()["reason"], "no_keyframe_index");
}

#[tokio::test]
async fn a_server_without_encoding_capacity_says_so_at_once_and_still_hands_files_over() {
    let bed = Bed::with(|setup| setup.capacity.milli_slots = 0).await;
    let reply = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"film0"}"#)
        .await;
    assert_eq!(
        (reply.status.as_u16(), reply.code()),
        (503, "capacity_none".into())
    );
    bed.session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
}

#[tokio::test]
async fn there_are_only_so_many_sessions_and_idle_ones_make_room() {
    let bed = Bed::with(|setup| setup.limits.sessions = 2).await;
    let first = bed.session("").await;
    bed.session("").await;
    let full = bed
        .owner("POST", "/ether/api/sessions", r#"{"item":"film0"}"#)
        .await;
    assert_eq!(
        (full.status.as_u16(), full.code()),
        (503, "too_many_sessions".into())
    );
    bed.clock.advance(std::time::Duration::from_secs(600));
    bed.session("").await;
    let path = format!("/ether/api/sessions/{}", first["id"].as_str().unwrap());
    let displaced = bed.owner("GET", &path, "").await.json();
    assert_eq!(displaced["ended"]["code"], "displaced");
}

#[tokio::test]
async fn one_token_takes_its_share_of_the_sessions_and_leaves_the_rest_to_others() {
    let bed = Bed::with(|setup| setup.limits.sessions_each = 2).await;
    let (first, second) = (bed.session("").await, bed.session("").await);
    let ask = r#"{"item":"film0"}"#;
    let full = bed.owner("POST", "/ether/api/sessions", ask).await;
    assert_eq!(
        (full.status.as_u16(), full.code(), full.header("retry-after")),
        (429, "too_many_of_yours".into(), Some("10"))
    );
    let bearer = format!("Bearer {}", bed.viewer().await);
    let viewer = [("Authorization", bearer.as_str())];
    for _ in 0..2 {
        let other = bed.send("POST", "/ether/api/sessions", &viewer, ask).await;
        assert_eq!(other.status.as_u16(), 201, "the others have theirs");
    }
    let path =
        |session: &serde_json::Value| format!("/ether/api/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(bed.owner("DELETE", &path(&first), "").await.status.as_u16(), 204);
    bed.session("").await;
    // Of the own ones, too, those that nobody watches make room; another's idle one does not.
    bed.clock.advance(std::time::Duration::from_secs(600));
    bed.session("").await;
    let displaced = bed.owner("GET", &path(&second), "").await.json();
    assert_eq!(displaced["ended"]["code"], "displaced");
    let all = bed.owner("GET", "/ether/api/sessions", "").await.json();
    let live = |session: &&serde_json::Value| session["ended"].is_null();
    assert_eq!(all["sessions"].as_array().unwrap().iter().filter(live).count(), 4);
}

#[tokio::test]
async fn the_library_is_listed_paged_and_revalidated() {
    let bed = Bed::new().await;
    bed.library
        .add("film1", bed.film.clone(), facts(film_picture(640, 360), 5));
    let all = bed.owner("GET", "/ether/api/library", "").await;
    let json = all.json();
    let item = &json["items"][0];
    assert_eq!((&item["id"], &item["durationMs"]), (&FILM.into(), &60_000.into()));
    assert_eq!(item["picture"], format!("/ether/api/items/{FILM}/picture"));
    assert_eq!(
        (&json["scanning"], &json["folders"][0]["state"]),
        (&false.into(), &"ok".into())
    );
    assert_eq!(json["problems"][0]["code"], "not_media");
    let token = format!("Bearer {OWNER}");
    let etag = all.header("etag").unwrap().to_owned();
    let again = [
        ("Authorization", token.as_str()),
        ("If-None-Match", etag.as_str()),
    ];
    assert_eq!(
        bed.send("GET", "/ether/api/library", &again, "")
            .await
            .status
            .as_u16(),
        304
    );
    let page = bed.owner("GET", "/ether/api/library?limit=1", "").await.json();
    assert_eq!(
        (page["items"].as_array().unwrap().len(), &page["next"]),
        (1, &FILM.into())
    );
    let next = bed
        .owner("GET", &format!("/ether/api/library?limit=1&after={FILM}"), "")
        .await
        .json();
    assert_eq!(next["items"][0]["id"], "film1");
    assert_eq!(
        bed.owner("GET", "/ether/api/library?limit=0", "")
            .await
            .status
            .as_u16(),
        400
    );
    bed.library.broken.store(true, Ordering::SeqCst);
    let broken = bed.owner("GET", "/ether/api/library", "").await;
    assert_eq!(
        (broken.status.as_u16(), broken.header("retry-after")),
        (503, Some("2"))
    );
}

#[tokio::test]
async fn an_item_tells_its_streams_keeps_its_place_and_has_a_picture() {
    let bed = Bed::new().await;
    let item = bed.owner("GET", "/ether/api/items/film0", "").await.json();
    assert_eq!(
        (&item["container"], &item["size"]),
        (&"mp4".into(), &1_000.into())
    );
    assert_eq!(
        (&item["streams"][0]["kind"], &item["streams"][1]["channels"]),
        (&"video".into(), &2.into())
    );
    let token = format!("Bearer {OWNER}");
    let direct = item["direct"].as_str().unwrap();
    let file = bed.send("GET", direct, &[("Authorization", &token)], "").await;
    assert_eq!((file.status.as_u16(), file.body.len()), (200, 1_000));
    let put = |body: &'static str| bed.owner("PUT", "/ether/api/items/film0/position", body);
    assert_eq!(
        put(r#"{"positionMs":1500,"finished":true}"#)
            .await
            .status
            .as_u16(),
        204
    );
    let kept = bed.library.positions.lock().unwrap()[&bed.film_id()];
    assert_eq!((kept.position_ms, kept.finished), (1_500, Some(true)));
    assert_eq!(put(r#"{"positionMs":-1}"#).await.status.as_u16(), 400);
    assert_eq!(
        bed.owner("PUT", "/ether/api/items/none/position", r#"{"positionMs":1}"#)
            .await
            .status
            .as_u16(),
        404
    );
    let picture = bed.owner("GET", "/ether/api/items/film0/picture", "").await;
    assert_eq!(
        (picture.header("content-type"), picture.body.as_slice()),
        (Some("image/jpeg"), &b"a picture"[..])
    );
    bed.library
        .items
        .lock()
        .unwrap()
        .get_mut(&bed.film_id())
        .unwrap()
        .summary
        .has_picture = false;
    assert_eq!(
        bed.owner("GET", "/ether/api/items/film0/picture", "")
            .await
            .code(),
        "no_picture"
    );
}

#[tokio::test]
async fn dash_has_a_manifest_and_representations_and_no_playlist() {
    let bed = Bed::new().await;
    let body = r#"{"item":"film0","protocol":"dash","video":"encode","ladder":true}"#;
    let reply = bed.owner("POST", "/ether/api/sessions", body).await;
    assert_eq!(reply.status.as_u16(), 201, "{}", reply.text());
    let session = reply.json();
    let decision = &session["decision"];
    assert_eq!(
        (&decision["protocol"], &decision["container"]),
        (&"dash".into(), &"fmp4".into())
    );
    let (qualities, sounds) = (
        decision["qualities"].as_array().unwrap(),
        decision["sounds"].as_array().unwrap(),
    );
    assert!(qualities.len() > 1 && sounds.len() == 1, "{decision:#}");
    assert_eq!(qualities[0]["height"], decision["video"]["height"]);
    let url = session["url"].as_str().unwrap();
    let manifest = bed.get(url).await;
    assert_eq!(manifest.header("content-type"), Some("application/dash+xml"));
    assert_eq!(manifest.header("cache-control"), Some("no-store"));
    let (before, grant) = url.split_once("/start.mpd").unwrap();
    let id = before.rsplit('/').next().unwrap();
    let media = |rest: &str| format!("/sessions/media/{id}/{rest}{grant}");
    let last = qualities.len();
    let head = bed.send("HEAD", &media(&format!("{last}/0.m4s")), &[], "").await;
    assert_eq!(
        (head.status.as_u16(), head.header("content-type")),
        (200, Some("audio/mp4"))
    );
    for absent in [
        "index.m3u8".to_owned(),
        "0/index.m3u8".to_owned(),
        format!("{}/0.m4s", last + 1),
        "00/0.m4s".to_owned(),
    ] {
        assert_eq!(bed.get(&media(&absent)).await.status.as_u16(), 404, "{absent}");
    }
    assert_eq!(bed.encoder.started(), 0, "looking starts nothing");
    assert_eq!(bed.get(&media("1/header")).await.status.as_u16(), 200);
}

#[tokio::test]
async fn a_small_machine_makes_one_quality_where_it_cannot_make_several() {
    let body = r#"{"item":"film0","video":"encode","ladder":true}"#;
    let qualities = async |bed: &Bed| {
        let reply = bed.owner("POST", "/ether/api/sessions", body).await;
        assert_eq!(reply.status.as_u16(), 201, "{}", reply.text());
        reply.json()["decision"]["qualities"].as_array().unwrap().len()
    };
    let large = Bed::new().await;
    assert!(qualities(&large).await > 1);
    let one = r#"{"item":"film0","video":"encode"}"#;
    let created = large.owner("POST", "/ether/api/sessions", one).await.json();
    assert_eq!(created["decision"]["qualities"].as_array().unwrap().len(), 1);
    // What one quality of the film is charged, and not a bit more.
    let film = large
        .library
        .items
        .lock()
        .unwrap()
        .values()
        .next()
        .unwrap()
        .clone();
    let wishes = ether_media::decision::Wishes {
        video: ether_media::decision::Force::Encode,
        ..Default::default()
    };
    let decision = ether_media::decision::decide(&film.facts, &Default::default(), &wishes).unwrap();
    let charged = crate::cost::Costs::of(&film.facts, &decision).units(ether_encoder::Share::Nothing);
    let small = Bed::with(|setup| setup.capacity.milli_slots = charged.milli_slots).await;
    assert_eq!(qualities(&small).await, 1);
}
