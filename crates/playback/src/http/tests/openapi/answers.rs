//! Every answer that the contract promises, asked for once, and nothing else.

use std::time::Duration;

use ether_encoder::{Ended, ServeError};
use serde_json::Value;

use super::super::bed::{Bed, FILM, OWNER, Reply, Socket, resource};
use super::{Contract, SESSIONS};
use crate::ports::OpenError;

const ITEM: &str = "/ether/api/items/{id}";
const SESSION: &str = "/ether/api/sessions/{id}";
const MULTIVARIANT: &str = "/sessions/media/{sid}/index.m3u8";
const MANIFEST: &str = "/ether/api/sessions/{id}/start.mpd";
const STREAM: &str = "/ether/api/sessions/{id}/start.mkv";
const MEDIA: &str = "/sessions/media/{sid}/{representation}/{resource}";
const PART: &str = "/library/parts/{part}/{stamp}/{name}";

#[tokio::test]
async fn what_is_promised_is_answered_and_what_is_answered_is_promised() {
    let mut contract = Contract::read();
    let bed = Bed::with(|setup| {
        setup.encoder.eager = false;
        setup.file_bytes = 1_000;
    })
    .await;
    page(&mut contract, &bed).await;
    library(&mut contract, &bed).await;
    sessions(&mut contract, &bed).await;
    media(&mut contract, &bed).await;
    manifest(&mut contract, &bed).await;
    subtitles(&mut contract, &bed).await;
    stream(&mut contract, &bed).await;
    parts(&mut contract, &bed).await;
    sign_in(&mut contract, &bed).await;
    bed.library
        .broken
        .store(true, std::sync::atomic::Ordering::SeqCst);
    let broken = bed.owner("GET", "/ether/api/library", "").await;
    contract.hold("/ether/api/library", "GET", 503, &broken);
    let missing: Vec<_> = contract
        .promised()
        .difference(&contract.answered)
        .cloned()
        .collect();
    assert!(missing.is_empty(), "promised and never answered: {missing:?}");
}

async fn revalidated(bed: &Bed, path: &str, reply: &Reply) -> Reply {
    let token = format!("Bearer {OWNER}");
    let etag = reply.header("etag").unwrap();
    bed.send(
        "GET",
        path,
        &[("Authorization", &token), ("If-None-Match", etag)],
        "",
    )
    .await
}

async fn page(contract: &mut Contract, bed: &Bed) {
    for (route, path) in [
        ("/", "/"),
        ("/index.html", "/index.html"),
        ("/assets/{path}", "/assets/app.js"),
    ] {
        let reply = bed.get(path).await;
        contract.hold(route, "GET", 200, &reply);
        contract.hold(route, "GET", 304, &revalidated(bed, path, &reply).await);
    }
    contract.hold("/", "HEAD", 200, &bed.send("HEAD", "/", &[], "").await);
    contract.hold("/assets/{path}", "GET", 404, &bed.get("/assets/none.js").await);
}

async fn library(contract: &mut Contract, bed: &Bed) {
    let list = "/ether/api/library";
    let reply = bed.owner("GET", list, "").await;
    contract.hold(list, "GET", 200, &reply);
    contract.hold(list, "GET", 304, &revalidated(bed, list, &reply).await);
    contract.hold(
        list,
        "GET",
        400,
        &bed.owner("GET", "/ether/api/library?limit=x", "").await,
    );
    contract.hold(list, "GET", 401, &bed.get(list).await);
    let scan = "/ether/api/library/scan";
    let viewer = format!("Bearer {}", bed.viewer().await);
    contract.hold(scan, "POST", 202, &bed.owner("POST", scan, "").await);
    contract.hold(scan, "POST", 401, &bed.send("POST", scan, &[], "").await);
    contract.hold(
        scan,
        "POST",
        403,
        &bed.send("POST", scan, &[("Authorization", &viewer)], "").await,
    );
    let at = |id: &str, rest: &str| format!("/ether/api/items/{id}{rest}");
    contract.hold(ITEM, "GET", 200, &bed.owner("GET", &at(FILM, ""), "").await);
    contract.hold(ITEM, "GET", 401, &bed.get(&at(FILM, "")).await);
    contract.hold(ITEM, "GET", 404, &bed.owner("GET", &at("none", ""), "").await);
    let (route, path) = ("/ether/api/items/{id}/picture", at(FILM, "/picture"));
    let picture = bed.owner("GET", &path, "").await;
    contract.hold(route, "GET", 200, &picture);
    contract.hold(route, "GET", 304, &revalidated(bed, &path, &picture).await);
    contract.hold(route, "GET", 401, &bed.get(&path).await);
    contract.hold(
        route,
        "GET",
        404,
        &bed.owner("GET", &at("none", "/picture"), "").await,
    );
    let (route, path) = ("/ether/api/items/{id}/position", at(FILM, "/position"));
    contract.hold(
        route,
        "PUT",
        204,
        &bed.owner("PUT", &path, r#"{"positionMs":1}"#).await,
    );
    contract.hold(route, "PUT", 400, &bed.owner("PUT", &path, "{}").await);
    contract.hold(route, "PUT", 401, &bed.send("PUT", &path, &[], "{}").await);
    contract.hold(
        route,
        "PUT",
        404,
        &bed.owner("PUT", &at("none", "/position"), r#"{"positionMs":1}"#)
            .await,
    );
}

async fn sessions(contract: &mut Contract, bed: &Bed) {
    let token = format!("Bearer {OWNER}");
    let keyed = [("Authorization", token.as_str()), ("Idempotency-Key", "k")];
    let wish = r#"{"item":"film0"}"#;
    let created = bed.send("POST", SESSIONS, &keyed, wish).await;
    contract.hold(SESSIONS, "POST", 201, &created);
    let again = bed
        .send("POST", SESSIONS, &keyed, r#"{"item":"film0","maxHeight":100}"#)
        .await;
    contract.hold(SESSIONS, "POST", 409, &again);
    for (status, body) in [
        (201, r#"{"item":"film0","video":"encode","audio":-1}"#),
        (
            201,
            r#"{"item":"film0","client":{"video":["avc1.640034"],"containers":["mp4"]}}"#,
        ),
        (400, "nonsense"),
        (404, r#"{"item":"none"}"#),
        (422, r#"{"item":"film0","audio":9}"#),
        (422, r#"{"item":"film0","subtitle":2}"#),
    ] {
        contract.hold(SESSIONS, "POST", status, &bed.owner("POST", SESSIONS, body).await);
    }
    contract.hold(
        SESSIONS,
        "POST",
        401,
        &bed.send("POST", SESSIONS, &[], wish).await,
    );
    let poor = Bed::with(|setup| setup.capacity.milli_slots = 0).await;
    contract.hold(SESSIONS, "POST", 503, &poor.owner("POST", SESSIONS, wish).await);
    let full = Bed::with(|setup| setup.limits.sessions_each = 0).await;
    contract.hold(SESSIONS, "POST", 429, &full.owner("POST", SESSIONS, wish).await);
    contract.hold(SESSIONS, "GET", 200, &bed.owner("GET", SESSIONS, "").await);
    contract.hold(SESSIONS, "GET", 401, &bed.get(SESSIONS).await);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let (path, state) = (format!("{SESSIONS}/{id}"), format!("{SESSIONS}/{id}/state"));
    contract.hold(SESSION, "GET", 200, &bed.owner("GET", &path, "").await);
    contract.hold(SESSION, "GET", 401, &bed.get(&path).await);
    contract.hold(
        SESSION,
        "GET",
        404,
        &bed.owner("GET", "/ether/api/sessions/none", "").await,
    );
    let route = "/ether/api/sessions/{id}/state";
    let playing = r#"{"state":"playing"}"#;
    contract.hold(route, "POST", 204, &bed.owner("POST", &state, playing).await);
    contract.hold(
        route,
        "POST",
        400,
        &bed.owner("POST", &state, r#"{"state":"asleep"}"#).await,
    );
    contract.hold(route, "POST", 401, &bed.send("POST", &state, &[], playing).await);
    contract.hold(
        route,
        "POST",
        404,
        &bed.owner("POST", "/ether/api/sessions/none/state", playing).await,
    );
    contract.hold(SESSION, "DELETE", 204, &bed.owner("DELETE", &path, "").await);
    contract.hold(SESSION, "DELETE", 401, &bed.send("DELETE", &path, &[], "").await);
    contract.hold(
        SESSION,
        "DELETE",
        404,
        &bed.owner("DELETE", "/ether/api/sessions/none", "").await,
    );
    contract.hold(route, "POST", 410, &bed.owner("POST", &state, playing).await);
    contract.hold(
        SESSIONS,
        "POST",
        410,
        &bed.send("POST", SESSIONS, &keyed, wish).await,
    );
    contract.hold(SESSION, "GET", 200, &bed.owner("GET", &path, "").await);
}

async fn media(contract: &mut Contract, bed: &Bed) {
    let (session, other) = (bed.session("").await, bed.session("").await);
    let url = session["url"].as_str().unwrap();
    let foreign = other["url"].as_str().unwrap().split_once('?').unwrap().1;
    let bare = |url: &str| url.split_once('?').unwrap().0.to_owned();
    let ranged = [("Range", "bytes=0-9")];
    contract.hold(MULTIVARIANT, "GET", 200, &bed.get(url).await);
    contract.hold(MULTIVARIANT, "GET", 206, &bed.send("GET", url, &ranged, "").await);
    contract.hold(MULTIVARIANT, "GET", 401, &bed.get(&bare(url)).await);
    contract.hold(
        MULTIVARIANT,
        "GET",
        403,
        &bed.get(&format!("{}?{foreign}", bare(url))).await,
    );
    contract.hold(MULTIVARIANT, "HEAD", 200, &bed.send("HEAD", url, &[], "").await);
    let segment = resource(&session, "0.m4s");
    let mut late = Socket::open(bed.addr).await;
    late.write("GET", &segment, &[], "").await;
    bed.until("the encoder", || bed.encoder.started() == 1).await;
    contract.hold(MEDIA, "GET", 503, &bed.as_time_passes(late.read("GET")).await);
    let running = bed
        .owner(
            "GET",
            &format!("{SESSIONS}/{}", session["id"].as_str().unwrap()),
            "",
        )
        .await;
    contract.hold(SESSION, "GET", 200, &running);
    assert!(running.json()["encoder"].is_object());
    let puppet = bed.encoder.newest();
    puppet.set(|state| {
        state.error = Some(ServeError::Ended {
            ended: Ended::Stalled,
        })
    });
    contract.hold(MEDIA, "GET", 502, &bed.get(&segment).await);
    puppet.set(|state| state.eager = true);
    let whole = bed.get(&segment).await;
    contract.hold(MEDIA, "GET", 200, &whole);
    contract.hold(MEDIA, "GET", 200, &bed.get(&resource(&session, "header")).await);
    contract.hold(
        MEDIA,
        "GET",
        200,
        &bed.get(&resource(&session, "index.m3u8")).await,
    );
    contract.hold(MEDIA, "GET", 206, &bed.send("GET", &segment, &ranged, "").await);
    contract.hold(MEDIA, "GET", 304, &revalidated(bed, &segment, &whole).await);
    contract.hold(
        MEDIA,
        "GET",
        412,
        &bed.send("GET", &segment, &[("If-Match", "\"other\"")], "").await,
    );
    contract.hold(
        MEDIA,
        "GET",
        416,
        &bed.send("GET", &segment, &[("Range", "bytes=9999-")], "").await,
    );
    contract.hold(MEDIA, "HEAD", 200, &bed.send("HEAD", &segment, &[], "").await);
    contract.hold(MEDIA, "GET", 401, &bed.get(&bare(&segment)).await);
    contract.hold(
        MEDIA,
        "GET",
        403,
        &bed.get(&format!("{}?{foreign}", bare(&segment))).await,
    );
    contract.hold(MEDIA, "GET", 404, &bed.get(&resource(&session, "999.m4s")).await);
    bed.owner(
        "DELETE",
        &format!("{SESSIONS}/{}", session["id"].as_str().unwrap()),
        "",
    )
    .await;
    contract.hold(MEDIA, "GET", 410, &bed.get(&segment).await);
    contract.hold(MULTIVARIANT, "GET", 410, &bed.get(url).await);
}

/// What DASH has of its own, and what each protocol has not.
async fn manifest(contract: &mut Contract, bed: &Bed) {
    let dash = format!("{{\"item\":\"{FILM}\",\"protocol\":\"dash\"}}");
    let created = bed.owner("POST", SESSIONS, &dash).await;
    contract.hold(SESSIONS, "POST", 201, &created);
    let (session, other) = (created.json(), bed.session("").await);
    let url = session["url"].as_str().unwrap();
    let (bare, grant) = url.split_once('?').unwrap();
    let (playlist, foreign) = other["url"].as_str().unwrap().split_once('?').unwrap();
    contract.hold(MANIFEST, "GET", 200, &bed.get(url).await);
    let ranged = [("Range", "bytes=0-9")];
    contract.hold(MANIFEST, "GET", 206, &bed.send("GET", url, &ranged, "").await);
    contract.hold(MANIFEST, "HEAD", 200, &bed.send("HEAD", url, &[], "").await);
    contract.hold(MANIFEST, "GET", 401, &bed.get(bare).await);
    contract.hold(MANIFEST, "GET", 403, &bed.get(&format!("{bare}?{foreign}")).await);
    let id = |session: &Value| session["id"].as_str().unwrap().to_owned();
    let crossed = bare.replace(&id(&session), &id(&other));
    contract.hold(
        MANIFEST,
        "GET",
        404,
        &bed.get(&format!("{crossed}?{foreign}")).await,
    );
    let crossed = playlist.replace(&id(&other), &id(&session));
    contract.hold(
        MULTIVARIANT,
        "GET",
        404,
        &bed.get(&format!("{crossed}?{grant}")).await,
    );
    let sound = format!("/sessions/media/{}/1/0.m4s?{grant}", id(&session));
    contract.hold(MEDIA, "HEAD", 200, &bed.send("HEAD", &sound, &[], "").await);
    bed.owner("DELETE", &format!("{SESSIONS}/{}", id(&session)), "")
        .await;
    contract.hold(MANIFEST, "GET", 410, &bed.get(url).await);
}

/// The stream of a session without segments, and that others have none.
async fn stream(contract: &mut Contract, bed: &Bed) {
    let wish = format!("{{\"item\":\"{FILM}\",\"protocol\":\"http\"}}");
    let session = bed.owner("POST", SESSIONS, &wish).await.json();
    let other = bed.session("").await;
    let url = session["url"].as_str().unwrap();
    let (bare, grant) = url.split_once('?').unwrap();
    let foreign = other["url"].as_str().unwrap().split_once('?').unwrap().1;
    let id = |session: &Value| session["id"].as_str().unwrap().to_owned();
    let started = bed.encoder.started();
    contract.hold(STREAM, "HEAD", 200, &bed.send("HEAD", url, &[], "").await);
    contract.hold(STREAM, "GET", 401, &bed.get(bare).await);
    contract.hold(STREAM, "GET", 403, &bed.get(&format!("{bare}?{foreign}")).await);
    let crossed = bare.replace(&id(&session), &id(&other));
    contract.hold(
        STREAM,
        "GET",
        404,
        &bed.get(&format!("{crossed}?{foreign}")).await,
    );
    assert_eq!(bed.encoder.started(), started, "none of it starts anything");
    let refused = ServeError::Refused {
        refusal: ether_encoder::Refusal::Device,
        retry_after: Duration::from_secs(2),
    };
    let lost = ServeError::Ended {
        ended: Ended::SourceLost,
    };
    // Each is the answer of an execution of its own: the last one is used up.
    let answers = [(503, Some(refused)), (502, Some(lost)), (200, None)];
    for ((status, error), n) in answers.into_iter().zip(1..) {
        let mut socket = Socket::open(bed.addr).await;
        socket.write("GET", url, &[("Range", "bytes=0-")], "").await;
        bed.until("the encoder", || bed.encoder.started() == started + n)
            .await;
        bed.encoder.newest().set(|state| {
            state.eager = error.is_none();
            state.error = error;
        });
        let reply = socket.read("GET").await;
        contract.hold(STREAM, "GET", status, &reply);
        assert!(reply.whole);
    }
    let playlist = format!("/sessions/media/{}/index.m3u8?{grant}", id(&session));
    contract.hold(MULTIVARIANT, "GET", 404, &bed.get(&playlist).await);
    bed.owner("DELETE", &format!("{SESSIONS}/{}", id(&session)), "")
        .await;
    contract.hold(STREAM, "GET", 410, &bed.get(url).await);
}

async fn parts(contract: &mut Contract, bed: &Bed) {
    let session = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    let other = bed.session("").await;
    let url = session["url"].as_str().unwrap();
    let (bare, _) = url.split_once('?').unwrap();
    let foreign = other["url"].as_str().unwrap().split_once('?').unwrap().1;
    let whole = bed.get(url).await;
    contract.hold(PART, "GET", 200, &whole);
    contract.hold(
        PART,
        "GET",
        206,
        &bed.send("GET", url, &[("Range", "bytes=0-9")], "").await,
    );
    contract.hold(PART, "GET", 304, &revalidated(bed, url, &whole).await);
    contract.hold(PART, "GET", 401, &bed.get(bare).await);
    contract.hold(PART, "GET", 403, &bed.get(&format!("{bare}?{foreign}")).await);
    contract.hold(
        PART,
        "GET",
        404,
        &bed.owner("GET", &format!("/library/parts/{FILM}/old/a"), "")
            .await,
    );
    contract.hold(
        PART,
        "GET",
        412,
        &bed.send("GET", url, &[("If-Match", "\"other\"")], "").await,
    );
    contract.hold(
        PART,
        "GET",
        416,
        &bed.send("GET", url, &[("Range", "bytes=9999-")], "").await,
    );
    contract.hold(PART, "HEAD", 200, &bed.send("HEAD", url, &[], "").await);
    *bed.library.refuses.lock().unwrap() = Some(OpenError::Unreadable {
        file: "A film #1.mp4".into(),
        reason: "the disk does not answer".into(),
    });
    contract.hold(PART, "GET", 502, &bed.get(url).await);
    let wish = format!("{{\"item\":\"{FILM}\"}}");
    contract.hold(SESSIONS, "POST", 502, &bed.owner("POST", SESSIONS, &wish).await);
    *bed.library.refuses.lock().unwrap() = None;
    bed.owner(
        "DELETE",
        &format!("{SESSIONS}/{}", session["id"].as_str().unwrap()),
        "",
    )
    .await;
    contract.hold(PART, "GET", 410, &bed.get(url).await);
}

async fn sign_in(contract: &mut Contract, bed: &Bed) {
    let path = "/ether/api/sign-in";
    let code = bed.auth.issue_code().unwrap();
    let body = format!("{{\"code\":\"{}\"}}", code.expose());
    let signed_in = bed.send("POST", path, &[], &body).await;
    contract.hold(path, "POST", 200, &signed_in);
    let viewer = format!("Bearer {}", signed_in.json()["token"].as_str().unwrap());
    contract.hold(path, "POST", 400, &bed.send("POST", path, &[], "{}").await);
    contract.hold(path, "POST", 401, &bed.send("POST", path, &[], &body).await);
    contract.hold(
        path,
        "DELETE",
        204,
        &bed.send("DELETE", path, &[("Authorization", &viewer)], "").await,
    );
    contract.hold(
        path,
        "DELETE",
        401,
        &bed.send("DELETE", path, &[("Authorization", &viewer)], "").await,
    );
    contract.hold(path, "DELETE", 409, &bed.owner("DELETE", path, "").await);
    bed.clock.advance(Duration::from_secs(1));
    let mut reply = bed.send("POST", path, &[], &body).await;
    for _ in 0..20 {
        if reply.status.as_u16() == 429 {
            break;
        }
        reply = bed.send("POST", path, &[], &body).await;
    }
    contract.hold(path, "POST", 429, &reply);
}

/// The session of a film with every kind of track, and the address of a thing of its own.
async fn subtitles(contract: &mut Contract, bed: &Bed) {
    let ended = super::super::subtitles::film(bed).await;
    let session = super::super::subtitles::film(bed).await;
    let foreign = bed.session("").await;
    let foreign = foreign["url"]
        .as_str()
        .unwrap()
        .split_once('?')
        .unwrap()
        .1
        .to_owned();
    let id = |session: &serde_json::Value| session["id"].as_str().unwrap().to_owned();
    let grant = |session: &serde_json::Value| {
        let url = session["url"].as_str().unwrap().to_owned();
        url.split_once('?').unwrap().1.to_owned()
    };
    bed.owner("DELETE", &format!("{SESSIONS}/{}", id(&ended)), "")
        .await;
    for name in ["subtitles.vtt", "subtitles.ass", "subtitles.m3u8"] {
        let route = format!("/ether/api/sessions/{{id}}/{name}");
        let path = format!("{SESSIONS}/{}/{name}", id(&session));
        let at = |stream: u32| format!("{path}?stream={stream}&{}", grant(&session));
        let whole = bed.get(&at(3)).await;
        contract.hold(&route, "GET", 200, &whole);
        let ranged = bed.send("GET", &at(3), &[("Range", "bytes=0-4")], "").await;
        contract.hold(&route, "GET", 206, &ranged);
        contract.hold(&route, "HEAD", 200, &bed.send("HEAD", &at(3), &[], "").await);
        contract.hold(
            &route,
            "GET",
            400,
            &bed.get(&format!("{path}?{}", grant(&session))).await,
        );
        contract.hold(&route, "GET", 401, &bed.get(&format!("{path}?stream=3")).await);
        contract.hold(
            &route,
            "GET",
            403,
            &bed.get(&format!("{path}?stream=3&{foreign}")).await,
        );
        contract.hold(&route, "GET", 404, &bed.get(&at(99)).await);
        let gone = format!("{SESSIONS}/{}/{name}?stream=3&{}", id(&ended), grant(&ended));
        contract.hold(&route, "GET", 410, &bed.get(&gone).await);
        if name == "subtitles.m3u8" {
            continue;
        }
        contract.hold(&route, "GET", 304, &revalidated(bed, &at(3), &whole).await);
        contract.hold(&route, "GET", 415, &bed.get(&at(4)).await);
        contract.hold(&route, "GET", 502, &bed.get(&at(5)).await);
        contract.hold(&route, "GET", 503, &bed.get(&at(6)).await);
    }
    let route = "/ether/api/sessions/{id}/fonts/{number}";
    let at = |number: &str| format!("{SESSIONS}/{}/fonts/{number}?{}", id(&session), grant(&session));
    let whole = bed.get(&at("3")).await;
    contract.hold(route, "GET", 200, &whole);
    let ranged = bed.send("GET", &at("3"), &[("Range", "bytes=0-4")], "").await;
    contract.hold(route, "GET", 206, &ranged);
    contract.hold(route, "HEAD", 200, &bed.send("HEAD", &at("3"), &[], "").await);
    contract.hold(route, "GET", 304, &revalidated(bed, &at("3"), &whole).await);
    contract.hold(
        route,
        "GET",
        401,
        &bed.get(&format!("{SESSIONS}/{}/fonts/3", id(&session))).await,
    );
    let wrong = format!("{SESSIONS}/{}/fonts/3?{foreign}", id(&session));
    contract.hold(route, "GET", 403, &bed.get(&wrong).await);
    contract.hold(route, "GET", 404, &bed.get(&at("99")).await);
    let gone = format!("{SESSIONS}/{}/fonts/3?{}", id(&ended), grant(&ended));
    contract.hold(route, "GET", 410, &bed.get(&gone).await);
    contract.hold(route, "GET", 502, &bed.get(&at("5")).await);
    contract.hold(route, "GET", 503, &bed.get(&at("6")).await);
}
