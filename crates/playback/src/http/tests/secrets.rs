//! Tokens, codes and grants stand where they have to and nowhere else.

use std::io;
use std::sync::{Arc, Mutex};

use super::bed::{Bed, FILM, OWNER, resource};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_answer_and_no_line_of_the_log_holds_a_token_a_grant_or_an_address() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let bed = Bed::new().await;
    let viewer = bed.viewer().await;
    let session = bed.session("").await;
    let id = session["id"].as_str().unwrap().to_owned();
    let url = session["url"].as_str().unwrap().to_owned();
    let grant = url.split_once("grant=").unwrap().1.to_owned();
    let bearer = format!("Bearer {viewer}");
    let auth = [("Authorization", bearer.as_str())];
    let mut replies = Vec::new();
    for (method, path, body) in [
        ("GET", format!("/ether/api/library?token={viewer}"), ""),
        ("GET", format!("/{viewer}"), ""),
        ("GET", format!("/ether/api/items/{viewer}"), ""),
        ("POST", "/ether/api/sessions".to_owned(), "{}"),
        ("GET", "/ether/api/sessions".to_owned(), ""),
        ("GET", format!("/library/parts/{FILM}/{viewer}/x"), ""),
        (
            "POST",
            "/ether/api/sign-in".to_owned(),
            &format!("{{\"code\":\"{viewer}\"}}"),
        ),
        (
            "POST",
            "/ether/api/sessions".to_owned(),
            &format!("{{\"item\":{{\"{viewer}\":\"{OWNER}\"}}}}"),
        ),
        (
            "GET",
            format!("{}&token={viewer}", resource(&session, "0.m4s")),
            "",
        ),
        (
            "GET",
            format!("{}&token={viewer}", resource(&session, "index.m3u8")),
            "",
        ),
        (
            "GET",
            format!("/sessions/media/{id}/index.m3u8?X-Plex-Token={viewer}"),
            "",
        ),
        ("TRACE", "/".to_owned(), ""),
    ] {
        let reply = bed.send(method, &path, &auth, body).await;
        replies.push((path, reply));
    }
    for (path, reply) in &replies {
        let text = format!("{}{}", reply.head, String::from_utf8_lossy(&reply.body));
        for secret in [viewer.as_str(), OWNER] {
            assert!(!text.contains(secret), "{path} says a token: {text}");
        }
        assert!(!reply.head.contains(&grant), "{path} says a grant in its head");
    }
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("/sessions/media/{sid}/{representation}/{resource}"),
        "the route is logged: {log}"
    );
    for secret in [viewer.as_str(), OWNER, &grant, &id, "grant=", "X-Plex-Token"] {
        assert!(!log.contains(secret), "the log says {secret}");
    }
}
