//! Who gets in, through which door, and what strangers learn.

use std::time::Duration;

use ether_types::{PlaybackId, Timestamp};

use super::bed::{Bed, FILM, NOW, OWNER, Socket, resource};
use crate::grant::{Grant, GrantKey, GrantKeys, GrantScope, Surface};

#[tokio::test]
async fn where_folders_lie_is_the_owners_alone_to_know() {
    let bed = Bed::new().await;
    let owners = bed.owner("GET", "/ether/api/library", "").await;
    assert_eq!(owners.json()["folders"][0]["path"], "/films");
    let token = format!("Bearer {}", bed.viewer().await);
    let headers = [("Authorization", token.as_str())];
    for target in ["/ether/api/library", "/ether/api/items/film0"] {
        let seen = bed.send("GET", target, &headers, "").await;
        assert_eq!(seen.status.as_u16(), 200);
        assert!(!seen.text().contains("/films"), "{}", seen.text());
    }
    let seen = bed.send("GET", "/ether/api/library", &headers, "").await.json();
    assert_eq!(
        (&seen["folders"][0]["name"], &seen["items"][0]["folder"]),
        (&"films".into(), &"films".into())
    );
}

#[tokio::test]
async fn strangers_get_the_same_answer_for_what_is_there_and_what_is_not() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    let id = session["id"].as_str().unwrap();
    let there = [
        format!("/ether/api/items/{FILM}"),
        format!("/ether/api/items/{FILM}/picture"),
        format!("/ether/api/sessions/{id}"),
        format!("/library/parts/{FILM}/x/film.mp4"),
        "/ether/api/library".to_owned(),
        "/ether/api/sessions".to_owned(),
    ];
    let absent = [
        "/ether/api/items/none",
        "/ether/api/sessions/none",
        "/library/parts/none/x/film.mp4",
    ];
    let one = bed.get(&there[0]).await;
    assert_eq!(one.header("www-authenticate"), Some("Bearer realm=\"ether\""));
    for (headers, code) in [
        (&[][..], "unauthorized"),
        (&[("Authorization", "Bearer wrong")][..], "token_unknown"),
    ] {
        let one = bed.send("GET", &there[0], headers, "").await;
        assert_eq!(one.code(), code);
        for path in there.iter().map(String::as_str).chain(absent) {
            let reply = bed.send("GET", path, headers, "").await;
            assert_eq!((reply.status.as_u16(), &reply.body), (401, &one.body), "{path}");
        }
    }
}

#[tokio::test]
async fn a_code_signs_a_device_in_and_the_device_is_not_the_owner() {
    let bed = Bed::new().await;
    let code = bed.auth.issue_code().unwrap();
    let body = format!("{{\"code\":\"{}\"}}", code.expose());
    let signed_in = bed.send("POST", "/ether/api/sign-in", &[], &body).await;
    assert_eq!(signed_in.status.as_u16(), 200);
    let bearer = format!("Bearer {}", signed_in.json()["token"].as_str().unwrap());
    let viewer = [("Authorization", bearer.as_str())];
    assert_eq!(
        bed.send("GET", "/ether/api/library", &viewer, "")
            .await
            .status
            .as_u16(),
        200
    );
    let scan = bed.send("POST", "/ether/api/library/scan", &viewer, "").await;
    assert_eq!((scan.status.as_u16(), scan.code()), (403, "owner_only".into()));
    assert_eq!(
        bed.owner("POST", "/ether/api/library/scan", "")
            .await
            .status
            .as_u16(),
        202
    );
    let again = bed.send("POST", "/ether/api/sign-in", &[], &body).await;
    assert_eq!((again.status.as_u16(), again.code()), (401, "wrong_code".into()));
    assert_eq!(
        bed.send("DELETE", "/ether/api/sign-in", &viewer, "")
            .await
            .status
            .as_u16(),
        204
    );
    assert_eq!(
        bed.send("GET", "/ether/api/library", &viewer, "")
            .await
            .status
            .as_u16(),
        401
    );
    for _ in 0..8 {
        bed.send("POST", "/ether/api/sign-in", &[], r#"{"code":"guess"}"#)
            .await;
    }
    let slow = bed
        .send("POST", "/ether/api/sign-in", &[], r#"{"code":"guess"}"#)
        .await;
    assert_eq!(
        (slow.status.as_u16(), slow.header("retry-after")),
        (429, Some("60"))
    );
}

#[tokio::test]
async fn viewers_see_their_own_sessions_and_the_owner_sees_all() {
    let bed = Bed::new().await;
    let owners = bed.session("").await;
    let bearer = format!("Bearer {}", bed.viewer().await);
    let viewer = [("Authorization", bearer.as_str())];
    let path = format!("/ether/api/sessions/{}", owners["id"].as_str().unwrap());
    for (method, path) in [
        ("GET", path.clone()),
        ("DELETE", path.clone()),
        ("POST", format!("{path}/state")),
    ] {
        let reply = bed.send(method, &path, &viewer, r#"{"state":"stopped"}"#).await;
        assert_eq!(reply.status.as_u16(), 404, "{method}");
    }
    let body = format!("{{\"item\":\"{FILM}\"}}");
    let own = bed.send("POST", "/ether/api/sessions", &viewer, &body).await;
    assert_eq!(own.status.as_u16(), 201);
    let seen = |reply: super::bed::Reply| reply.json()["sessions"].as_array().unwrap().len();
    assert_eq!(seen(bed.send("GET", "/ether/api/sessions", &viewer, "").await), 1);
    assert_eq!(seen(bed.owner("GET", "/ether/api/sessions", "").await), 2);
}

#[tokio::test]
async fn a_grant_opens_its_own_playback_on_its_own_surface_and_nothing_else() {
    let bed = Bed::new().await;
    let (mine, other) = (bed.session("").await, bed.session("").await);
    let grant = |url: &str| url.split_once("grant=").unwrap().1.to_owned();
    let media = resource(&mine, "0.m4s");
    let plain = media.split('?').next().unwrap();
    let with = async |grant: &str| bed.get(&format!("{plain}?grant={grant}")).await;
    assert_eq!(bed.get(plain).await.status.as_u16(), 401);
    assert_eq!(with("").await.status.as_u16(), 401);
    assert_eq!(with(OWNER).await.status.as_u16(), 401, "a token is no grant");
    assert_eq!(
        with(&grant(other["url"].as_str().unwrap())).await.code(),
        "wrong_scope"
    );
    let own = Grant {
        playback: PlaybackId::new(mine["id"].as_str().unwrap()).unwrap(),
        surface: Surface::Native,
        scope: GrantScope::Media,
        epoch: 0,
        expires_at: Timestamp::from_micros(NOW + 60_000_000),
    };
    let keys = GrantKeys::new(GrantKey::new(1, [7; 32]), vec![]);
    let signed = async |change: fn(&mut Grant)| {
        let mut grant = own.clone();
        change(&mut grant);
        with(&keys.sign(&grant)).await.status.as_u16()
    };
    assert_eq!(signed(|_| {}).await, 200);
    assert_eq!(signed(|g| g.surface = Surface::Jellyfin).await, 403);
    assert_eq!(signed(|g| g.surface = Surface::Plex).await, 403);
    assert_eq!(signed(|g| g.scope = GrantScope::File).await, 403);
    assert_eq!(signed(|g| g.epoch = 1).await, 410);
    assert_eq!(signed(|g| g.expires_at = Timestamp::from_micros(NOW)).await, 401);
    let forged = GrantKeys::new(GrantKey::new(1, [8; 32]), vec![]).sign(&own);
    assert_eq!(with(&forged).await.status.as_u16(), 401);
    let of_another_boot = Grant {
        playback: PlaybackId::new("gone").unwrap(),
        ..own.clone()
    };
    let gone = bed
        .get(&format!(
            "/sessions/media/gone/0/header?grant={}",
            keys.sign(&of_another_boot)
        ))
        .await;
    assert_eq!(
        gone.status.as_u16(),
        410,
        "a genuine grant of a playback that is gone"
    );
    let file = format!("/library/parts/{FILM}/x/f.mp4?grant={}", keys.sign(&own));
    assert_eq!(bed.get(&file).await.status.as_u16(), 403);
}

#[tokio::test]
async fn foreign_names_are_misdirected_before_anything_else() {
    let bed = Bed::new().await;
    for host in [
        "evil.example",
        "evil.example:32400",
        "127.0.0.1.evil.example",
        "10.0.0.1",
    ] {
        for path in ["/", "/ether/api/library", "/nothing"] {
            let reply = bed.send("GET", path, &[("Host", host)], "").await;
            assert_eq!(
                (reply.status.as_u16(), reply.code()),
                (421, "foreign_host".into()),
                "{host} {path}"
            );
            let said = reply.json()["message"].as_str().unwrap_or_default().to_owned();
            assert!(said.contains("--host"), "it says what to do: {said}");
        }
    }
    for host in ["localhost", "films.example", "127.0.0.1:1"] {
        assert_eq!(
            bed.send("GET", "/", &[("Host", host)], "").await.status.as_u16(),
            200,
            "{host}"
        );
    }
    let absolute = bed
        .send("GET", "http://evil.example/", &[("Host", "localhost")], "")
        .await;
    assert_eq!(absolute.status.as_u16(), 421);
    let twice = [("Host", "localhost"), ("Host", "evil.example")];
    assert_eq!(bed.send("GET", "/", &twice, "").await.status.as_u16(), 400);
}

#[tokio::test]
async fn other_sites_may_neither_read_nor_change_anything() {
    let bed = Bed::new().await;
    let token = format!("Bearer {OWNER}");
    for site in ["cross-site", "same-site"] {
        let forged = [("Authorization", token.as_str()), ("Sec-Fetch-Site", site)];
        let reply = bed.send("POST", "/ether/api/library/scan", &forged, "").await;
        assert_eq!((reply.status.as_u16(), reply.code()), (403, "cross_site".into()));
    }
    for site in ["same-origin", "none"] {
        let own = [("Authorization", token.as_str()), ("Sec-Fetch-Site", site)];
        assert_eq!(
            bed.send("POST", "/ether/api/library/scan", &own, "")
                .await
                .status
                .as_u16(),
            202
        );
    }
    // A browser that says nothing of where a request comes from still says the origin of its page.
    let here = format!("http://{}", bed.addr);
    for (origin, wanted) in [
        (here.as_str(), 401),
        ("http://127.0.0.1:3000", 403),
        ("https://tv.example", 403),
        ("null", 403),
    ] {
        let guess = bed
            .send(
                "POST",
                "/ether/api/sign-in",
                &[("Origin", origin)],
                r#"{"code":"x"}"#,
            )
            .await;
        assert_eq!(guess.status.as_u16(), wanted, "{origin}");
        if wanted == 403 {
            assert_eq!(guess.code(), "cross_site");
            assert!(guess.json()["message"].as_str().unwrap().contains("--origin"));
        }
    }
    // A browser's own word counts more: behind a proxy the name that was asked for may be another.
    let proxied = [
        ("Origin", "https://films.example"),
        ("Sec-Fetch-Site", "same-origin"),
    ];
    let guess = bed
        .send("POST", "/ether/api/sign-in", &proxied, r#"{"code":"x"}"#)
        .await;
    assert_eq!(guess.status.as_u16(), 401);
    let foreign = [("Origin", "https://tv.example")];
    let reply = bed.send("GET", "/", &foreign, "").await;
    assert_eq!(reply.header("access-control-allow-origin"), None);
    assert_eq!(reply.header("cross-origin-resource-policy"), Some("same-origin"));
    let preflight = [foreign[0], ("Access-Control-Request-Method", "POST")];
    assert_eq!(
        bed.send("OPTIONS", "/ether/api/sessions", &preflight, "")
            .await
            .status
            .as_u16(),
        405
    );
}

#[tokio::test]
async fn a_listed_site_may_do_both_and_only_that_one() {
    let bed = Bed::with(|setup| setup.origins = vec!["https://tv.example".into()]).await;
    let ask = [
        ("Origin", "https://tv.example"),
        ("Access-Control-Request-Method", "GET"),
    ];
    let session = bed.session("").await;
    let url = resource(&session, "0.m4s");
    let preflight = bed.send("OPTIONS", &url, &ask, "").await;
    assert_eq!(preflight.status.as_u16(), 204);
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        Some("https://tv.example")
    );
    assert!(
        preflight
            .header("access-control-allow-headers")
            .unwrap()
            .contains("Range")
    );
    let reply = bed.send("GET", &url, &ask[..1], "").await;
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://tv.example")
    );
    assert_eq!(reply.header("vary"), Some("Origin"));
    let exposed = reply.header("access-control-expose-headers").unwrap();
    for name in ["Content-Range", "Content-Length", "Accept-Ranges", "ETag"] {
        assert!(exposed.contains(name));
    }
    assert_eq!(reply.header("access-control-allow-credentials"), None);
    for near in [
        "https://tv.example.evil",
        "http://tv.example",
        "https://tv.example:444",
        "null",
    ] {
        let reply = bed.send("GET", &url, &[("Origin", near)], "").await;
        assert_eq!(reply.header("access-control-allow-origin"), None, "{near}");
        assert_eq!(
            reply.header("vary"),
            Some("Origin"),
            "or a cache would mix the two up"
        );
    }
    let token = format!("Bearer {OWNER}");
    let change = [
        ask[0],
        ("Sec-Fetch-Site", "cross-site"),
        ("Authorization", token.as_str()),
    ];
    assert_eq!(
        bed.send("POST", "/ether/api/library/scan", &change, "")
            .await
            .status
            .as_u16(),
        202
    );
}

#[tokio::test]
async fn every_answer_carries_the_headers_that_keep_it_in_its_place() {
    let bed = Bed::new().await;
    let session = bed.session("").await;
    for path in [
        "/",
        "/nothing",
        "/ether/api/library",
        &resource(&session, "0.m4s"),
        &resource(&session, "999.m4s"),
    ] {
        let reply = bed.get(path).await;
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"), "{path}");
        assert!(
            reply
                .header("content-security-policy")
                .unwrap()
                .contains("frame-ancestors 'none'")
        );
        assert!(reply.header("cache-control").is_some(), "{path}");
        assert_eq!(reply.header("set-cookie"), None);
        assert_eq!(reply.header("server"), None);
    }
}

#[tokio::test]
async fn requests_have_bounds() {
    let bed = Bed::new().await;
    let large = format!("{{\"item\":\"{}\"}}", "x".repeat(70_000));
    let reply = bed.owner("POST", "/ether/api/sessions", &large).await;
    assert_eq!((reply.status.as_u16(), reply.code()), (413, "too_large".into()));
    let wide = "y".repeat(40_000);
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", "/", &[("X-Wide", &wide)], "").await;
    assert_eq!(socket.read("GET").await.status.as_u16(), 431);
    let many: Vec<(String, String)> = (0..200).map(|n| (format!("X-{n}"), "1".to_owned())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    assert_eq!(bed.send("GET", "/", &many, "").await.status.as_u16(), 431);
    // A body that never comes is not waited for.
    let mut slow = Socket::open(bed.addr).await;
    let token = format!("Bearer {OWNER}");
    let head = format!(
        "POST /ether/api/sessions HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\r\nContent-Length: 10\r\n\r\n{{"
    );
    tokio::io::AsyncWriteExt::write_all(&mut slow.stream, head.as_bytes())
        .await
        .unwrap();
    let late = bed.as_time_passes(slow.read("POST")).await;
    assert_eq!((late.status.as_u16(), late.code()), (408, "too_slow".into()));
}

/// A connection from another address of this machine.
async fn from(address: &str, bed: &Bed) -> Socket {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
    Socket::over(socket.connect(bed.addr).await.unwrap(), bed.addr)
}

#[tokio::test]
async fn connections_that_ask_for_nothing_keep_nobody_out() {
    let bed = Bed::with(|setup| setup.server.connections = 8).await;
    let mut used = Socket::open(bed.addr).await;
    assert_eq!(used.ask("GET", "/", &[], "").await.status.as_u16(), 200);
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(Socket::open(bed.addr).await);
        // Half a head is no request either.
        let half = b"GET / HTTP/1.1\r\nHost: loc";
        tokio::io::AsyncWriteExt::write_all(&mut idle.last_mut().unwrap().stream, half)
            .await
            .unwrap();
    }
    let mut viewer = from("127.0.0.9", &bed).await;
    assert_eq!(viewer.ask("GET", "/", &[], "").await.status.as_u16(), 200);
    // Whoever asked before is asked to go after those who never did.
    assert_eq!(used.ask("GET", "/", &[], "").await.status.as_u16(), 200);
    assert_eq!(viewer.ask("GET", "/", &[], "").await.status.as_u16(), 200);
    assert!(
        idle[0].fill().await.is_none(),
        "the first that never asked made room"
    );
}

#[tokio::test]
async fn where_every_connection_is_busy_another_waits_its_turn() {
    let bed = Bed::with(|setup| {
        setup.server.connections = 1;
        setup.encoder.eager = false;
    })
    .await;
    let session = bed.session("").await;
    let mut busy = Socket::open(bed.addr).await;
    busy.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    bed.until("the segment is asked for", || bed.encoder.started() == 1)
        .await;
    let mut second = Socket::open(bed.addr).await;
    second.write("GET", "/", &[], "").await;
    let early = tokio::time::timeout(Duration::from_millis(50), second.read("GET")).await;
    assert!(early.is_err(), "the only place is taken");
    // Held as long as a request is held, then answered: the other's turn, with nobody having left.
    let late = bed.as_time_passes(busy.read("GET")).await;
    assert_eq!(late.code(), "not_ready");
    assert_eq!(second.read("GET").await.status.as_u16(), 200);
}

#[tokio::test]
async fn an_address_whose_connections_are_all_busy_is_turned_away_and_others_are_not() {
    let bed = Bed::with(|setup| {
        setup.server.connections_each = 1;
        setup.encoder.eager = false;
    })
    .await;
    let session = bed.session("").await;
    let mut busy = from("127.0.0.9", &bed).await;
    busy.write("GET", &resource(&session, "0.m4s"), &[], "").await;
    bed.until("the segment is asked for", || bed.encoder.started() == 1)
        .await;
    let away = from("127.0.0.9", &bed).await.read("GET").await;
    assert_eq!(
        (away.status.as_u16(), away.code(), away.header("retry-after")),
        (503, "too_many_connections".into(), Some("1"))
    );
    let mut other = from("127.0.0.10", &bed).await;
    assert_eq!(other.ask("GET", "/", &[], "").await.status.as_u16(), 200);
}

#[tokio::test]
async fn an_idle_connection_and_a_slow_head_are_closed() {
    let bed = Bed::with(|setup| setup.server.head = Duration::from_millis(50)).await;
    let mut idle = Socket::open(bed.addr).await;
    assert!(idle.fill().await.is_none(), "nothing was asked");
    let mut slow = Socket::open(bed.addr).await;
    tokio::io::AsyncWriteExt::write_all(&mut slow.stream, b"GET / HTTP/1.1\r\nHost: loc")
        .await
        .unwrap();
    while slow.fill().await.is_some() {}
}
