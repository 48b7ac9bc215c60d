//! One HTTP request over one fresh connection, as plain as a player's.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long any answer may take; a held segment is answered after eight seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The word that an error is known by.
    pub(crate) fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Fails the test where the answer is another one.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        self
    }
}

/// Sends one request and reads the answer. Cancelling closes the connection.
pub(crate) async fn ask(
    address: SocketAddr,
    method: Method,
    target: &str,
    headers: &[(&str, &str)],
    body: Option<&Value>,
) -> Answer {
    let exchange = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        let driver = tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(target);
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request = request.header("host", address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = body.map(|value| value.to_string()).unwrap_or_default();
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        let answer = sender
            .send_request(request.body(Full::new(Bytes::from(body))).unwrap())
            .await
            .unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.expect("the whole answer").to_bytes();
        driver.abort();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    };
    match timeout(PATIENCE, exchange).await {
        Ok(answer) => answer,
        Err(_) => panic!("no answer to {target} in {PATIENCE:?}"),
    }
}
