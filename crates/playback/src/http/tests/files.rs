//! Everything that has bytes answers alike: the file itself, finished segments, initialization segments.

use super::bed::{Bed, FILM, OWNER, Reply, Socket, resource};

/// Addresses of 1,000 bytes each: a file and a segment.
async fn thousands(bed: &Bed) -> Vec<(String, &'static str)> {
    let direct = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    assert_eq!(direct["decision"]["mode"], "direct");
    let file = direct["url"].as_str().unwrap().to_owned();
    assert!(file.starts_with(&format!("/library/parts/{FILM}/")), "{file}");
    let session = bed.session("").await;
    vec![
        (file, "video/mp4"),
        (resource(&session, "3.m4s"), "video/mp4"),
        (resource(&session, "header"), "video/mp4"),
    ]
}

async fn get(bed: &Bed, url: &str, headers: &[(&str, &str)]) -> Reply {
    bed.send("GET", url, headers, "").await
}

#[tokio::test]
async fn a_whole_resource_comes_with_all_that_a_player_wants_to_know() {
    let bed = Bed::new().await;
    for (url, content_type) in thousands(&bed).await {
        let reply = bed.get(&url).await;
        assert_eq!((reply.status.as_u16(), reply.body.len()), (200, 1_000), "{url}");
        assert_eq!(reply.header("content-length"), Some("1000"));
        assert_eq!(reply.header("accept-ranges"), Some("bytes"));
        assert_eq!(reply.header("content-type"), Some(content_type));
        assert!(reply.header("etag").unwrap().starts_with('"'));
        assert!(reply.header("last-modified").unwrap().ends_with("GMT"));
        assert_eq!(reply.header("cache-control"), Some("private, no-cache"));
        assert_eq!(reply.header("content-encoding"), None);
        let zipped = get(&bed, &url, &[("Accept-Encoding", "gzip")]).await;
        assert_eq!(zipped.body, reply.body, "media is never packed");
    }
}

#[tokio::test]
async fn head_is_the_same_without_the_bytes() {
    let bed = Bed::new().await;
    for (url, _) in thousands(&bed).await {
        let whole = bed.get(&url).await;
        for headers in [&[][..], &[("Range", "bytes=0-9")][..]] {
            let head = bed.send("HEAD", &url, headers, "").await;
            assert_eq!(head.status.as_u16(), 200);
            for name in [
                "content-length",
                "content-type",
                "etag",
                "accept-ranges",
                "last-modified",
                "cache-control",
            ] {
                assert_eq!(head.header(name), whole.header(name), "{url} {name}");
            }
        }
    }
}

#[tokio::test]
async fn ranges_are_served_cut_refused_or_ignored() {
    let bed = Bed::new().await;
    for (url, _) in thousands(&bed).await {
        let whole = bed.get(&url).await.body;
        for (range, first, last) in [
            ("bytes=0-", 0, 999),
            ("bytes=100-199", 100, 199),
            ("bytes=-100", 900, 999),
            ("bytes=900-5000", 900, 999),
            ("bytes=-5000", 0, 999),
        ] {
            let reply = get(&bed, &url, &[("Range", range)]).await;
            assert_eq!(reply.status.as_u16(), 206, "{range}");
            let expected = format!("bytes {first}-{last}/1000");
            assert_eq!(reply.header("content-range"), Some(expected.as_str()));
            assert_eq!(reply.body, whole[first..=last], "{range}");
        }
        for range in ["bytes=1000-", "bytes=-0"] {
            let reply = get(&bed, &url, &[("Range", range)]).await;
            assert_eq!(reply.status.as_u16(), 416, "{range}");
            assert_eq!(reply.header("content-range"), Some("bytes */1000"));
            assert_eq!(reply.code(), "no_such_range");
            assert_eq!(reply.json()["allowed"], "bytes 0 to 999");
            assert_eq!(reply.header("cache-control"), Some("no-store"));
        }
        let thousand = format!("bytes={}", vec!["0-0"; 1_000].join(","));
        for range in ["bytes=5-2", "bytes=x", "items=0-1", "bytes=0-0,5-9", &thousand] {
            let reply = get(&bed, &url, &[("Range", range)]).await;
            assert_eq!((reply.status.as_u16(), reply.body.len()), (200, 1_000), "{range}");
        }
    }
}

#[tokio::test]
async fn conditions_are_kept() {
    let bed = Bed::new().await;
    for (url, _) in thousands(&bed).await {
        let etag = bed.get(&url).await.header("etag").unwrap().to_owned();
        let range = ("Range", "bytes=0-9");
        let weak = format!("W/{etag}");
        let status = async |headers: &[(&str, &str)]| get(&bed, &url, headers).await.status.as_u16();
        assert_eq!(status(&[range, ("If-Range", &etag)]).await, 206);
        assert_eq!(status(&[range, ("If-Range", "\"other\"")]).await, 200);
        assert_eq!(status(&[range, ("If-Range", &weak)]).await, 200);
        assert_eq!(status(&[("If-None-Match", &etag)]).await, 304);
        assert_eq!(status(&[range, ("If-None-Match", &etag)]).await, 304);
        assert_eq!(status(&[("If-Match", "\"other\"")]).await, 412);
        let same = get(&bed, &url, &[("If-None-Match", &etag)]).await;
        assert_eq!(same.header("etag"), Some(etag.as_str()));
    }
}

#[tokio::test]
async fn an_empty_file_has_no_range() {
    let bed = Bed::with(|setup| setup.file_bytes = 0).await;
    let direct = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    let url = direct["url"].as_str().unwrap();
    let reply = get(&bed, url, &[("Range", "bytes=0-")]).await;
    assert_eq!(
        (reply.status.as_u16(), reply.header("content-range")),
        (416, Some("bytes */0"))
    );
    assert_eq!(bed.get(url).await.status.as_u16(), 200);
}

#[tokio::test]
async fn media_is_only_read() {
    let bed = Bed::new().await;
    for (url, _) in thousands(&bed).await {
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            let reply = bed.send(method, &url, &[], "").await;
            assert_eq!(reply.status.as_u16(), 405, "{method}");
            let allow = reply.header("allow").unwrap();
            assert!(allow.contains("GET") && allow.contains("HEAD"), "{allow}");
        }
    }
}

#[tokio::test]
async fn a_connection_goes_on_after_answers_without_a_body() {
    let bed = Bed::new().await;
    let (url, _) = thousands(&bed).await.remove(0);
    let mut socket = Socket::open(bed.addr).await;
    let etag = socket
        .ask("GET", &url, &[], "")
        .await
        .header("etag")
        .unwrap()
        .to_owned();
    for (headers, status) in [
        (vec![("Range", "bytes=5000-")], 416),
        (vec![("If-None-Match", etag.as_str())], 304),
        (vec![("If-Match", "\"other\"")], 412),
        (vec![], 200),
    ] {
        let reply = socket.ask("GET", &url, &headers, "").await;
        assert_eq!(reply.status.as_u16(), status);
    }
    assert_eq!(socket.ask("HEAD", &url, &[], "").await.status.as_u16(), 200);
    assert_eq!(
        socket.ask("GET", "/nothing/here", &[], "").await.status.as_u16(),
        404
    );
    assert_eq!(
        socket.ask("GET", &url, &[("Range", "bytes=0-0")], "").await.body,
        [0]
    );
}

#[tokio::test]
async fn paths_that_hide_something_reach_no_file() {
    let bed = Bed::new().await;
    let token = format!("Bearer {OWNER}");
    for path in [
        "/library/parts/../../etc/passwd/x/y",
        "/library/parts/film0/%2e%2e/x",
        "/library/parts/film0/a%2fb/x",
        "/library/parts/film0/a/%00",
        "//library/parts/film0/a/b",
        "/assets/..%2f..%2fCargo.toml",
        "/assets/../lib.rs",
        "/assets/%2e%2e/Cargo.toml",
    ] {
        let reply = bed.send("GET", path, &[("Authorization", &token)], "").await;
        assert!(
            matches!(reply.status.as_u16(), 400 | 404),
            "{path}: {}",
            reply.status
        );
    }
    let absolute = format!("http://{}/ether/api/library", bed.addr);
    let reply = bed.send("GET", &absolute, &[("Authorization", &token)], "").await;
    assert_eq!(
        reply.status.as_u16(),
        200,
        "an absolute address of this server is one of its addresses"
    );
}

#[tokio::test]
async fn a_large_file_arrives_whole_and_a_download_has_a_name() {
    let bed = Bed::with(|setup| setup.file_bytes = 3_000_000).await;
    let direct = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    let url = direct["url"].as_str().unwrap();
    let reply = bed.get(url).await;
    assert_eq!(reply.body, std::fs::read(&bed.film).unwrap());
    let tail = get(&bed, url, &[("Range", "bytes=2000001-")]).await;
    assert_eq!(tail.body, &reply.body[2_000_001..]);
    assert_eq!(reply.header("content-disposition"), None);
    let saved = bed.get(&format!("{url}&download=1")).await;
    assert_eq!(
        saved.header("content-disposition"),
        Some("attachment; filename=\"A film #1.mp4\"; filename*=UTF-8''A%20film%20%231.mp4")
    );
}

#[tokio::test]
async fn a_replaced_file_is_never_mixed_with_the_old_one() {
    let bed = Bed::with(|setup| setup.file_bytes = 24_000_000).await;
    let direct = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    let url = direct["url"].as_str().unwrap();
    let mut socket = Socket::open(bed.addr).await;
    socket.write("GET", url, &[], "").await;
    assert!(socket.fill().await.is_some(), "it has begun");
    std::fs::write(&bed.film, vec![255; 24_000_000]).unwrap();
    let reply = socket.read("GET").await;
    assert!(!reply.whole, "the transfer is broken off");
    assert!(!reply.body.contains(&255), "and nothing of the new file came");
    let after = bed.get(url).await;
    assert_eq!(
        (after.status.as_u16(), after.code()),
        (404, "file_changed".into())
    );
}

#[tokio::test]
async fn a_vanished_file_and_a_pipe_in_its_place_are_said_to_be_gone() {
    let bed = Bed::new().await;
    let direct = bed
        .session(r#""client":{"video":["avc1.640034"],"containers":["mp4"]}"#)
        .await;
    let url = direct["url"].as_str().unwrap();
    std::fs::remove_file(&bed.film).unwrap();
    assert_eq!(bed.get(url).await.code(), "file_gone");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &bed.film,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert_eq!(bed.get(url).await.code(), "file_gone");
}

#[tokio::test]
async fn the_page_is_served_with_tags_and_types() {
    let bed = Bed::new().await;
    let page = bed.get("/").await;
    assert_eq!(page.status.as_u16(), 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'self'") && !policy.contains("unsafe"));
    let etag = page.header("etag").unwrap().to_owned();
    assert_eq!(
        get(&bed, "/", &[("If-None-Match", &etag)]).await.status.as_u16(),
        304
    );
    let script = bed.get("/assets/app.js").await;
    assert_eq!(
        script.header("content-type"),
        Some("text/javascript; charset=utf-8")
    );
    assert_eq!(bed.get("/assets/none.js").await.status.as_u16(), 404);
}
