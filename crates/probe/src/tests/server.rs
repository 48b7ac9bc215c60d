//! The loopback server gives one file to whoever knows the path, and nothing else to anyone.

use std::io::Write;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::server::RangeServer;

async fn serve(content: &[u8]) -> RangeServer {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    RangeServer::start(Arc::new(file)).await.unwrap()
}

/// Status line with headers, and body.
async fn ask(
    server: &RangeServer,
    method: &str,
    path: Option<&str>,
    range: Option<&str>,
) -> (String, Vec<u8>) {
    let rest = server.url().strip_prefix("http://").unwrap();
    let (address, own) = rest.split_at(rest.find('/').unwrap());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let range = range.map_or(String::new(), |r| format!("Range: {r}\r\n"));
    let path = path.unwrap_or(own);
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{range}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let split = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    (
        String::from_utf8(answer[..split].to_vec())
            .unwrap()
            .to_ascii_lowercase(),
        answer[split + 4..].to_vec(),
    )
}

#[tokio::test]
async fn whole_files_and_ranges_come_back_byte_for_byte() {
    let content: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    let server = serve(&content).await;
    let (head, body) = ask(&server, "GET", None, None).await;
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert!(head.contains("accept-ranges: bytes"), "{head}");
    assert_eq!(body, content);
    let (head, body) = ask(&server, "GET", None, Some("bytes=300000-700000")).await;
    assert!(head.starts_with("http/1.1 206"), "{head}");
    assert!(
        head.contains("content-range: bytes 300000-700000/1000000"),
        "{head}"
    );
    assert_eq!(body, content[300_000..=700_000]);
    let (head, body) = ask(&server, "HEAD", None, None).await;
    assert!(head.contains("content-length: 1000000"), "{head}");
    assert!(body.is_empty());
    server.close().await;
}

#[tokio::test]
async fn other_paths_methods_and_ranges_are_refused() {
    let server = serve(b"secret").await;
    for path in ["/", "/0123456789abcdef0123456789abcdef", "/../etc/passwd"] {
        let (head, body) = ask(&server, "GET", Some(path), None).await;
        assert!(head.starts_with("http/1.1 404"), "{path}: {head}");
        assert!(body.is_empty());
    }
    let (head, _) = ask(&server, "POST", None, None).await;
    assert!(
        head.starts_with("http/1.1 405") && head.contains("allow: get, head"),
        "{head}"
    );
    let (head, _) = ask(&server, "GET", None, Some("bytes=6-")).await;
    assert!(
        head.starts_with("http/1.1 416") && head.contains("bytes */6"),
        "{head}"
    );
    server.close().await;
}

#[tokio::test]
async fn nothing_answers_once_it_is_closed() {
    let server = serve(b"secret").await;
    let address = server
        .url()
        .strip_prefix("http://")
        .unwrap()
        .split('/')
        .next()
        .unwrap()
        .to_owned();
    // A client that holds its connection open does not hold up the closing.
    let mut idle = TcpStream::connect(&address).await.unwrap();
    server.close().await;
    assert!(TcpStream::connect(&address).await.is_err());
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_told_from_one_that_is_damaged() {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 1_000_000]).unwrap();
    let file = Arc::new(file);
    let server = RangeServer::start(Arc::clone(&file)).await.unwrap();
    // The disk gives less than it promised: here by cutting the file, which reads the same as a lost block.
    file.set_len(300_000).unwrap();
    let (address, path) = server
        .url()
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // How much arrives before the connection breaks is a matter of buffers.
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.len() < 1_000_000);
    assert!(server.close().await.is_some());
}
