//! A proxy in front of a real PostgreSQL that cuts the connection at a chosen message.
//!
//! It understands just enough of the protocol to count what the client asks (a simple query, or the Sync that
//! ends an extended one) and what the server answers to each statement of it (CommandComplete), and to know when it
//! has answered all (ReadyForQuery).

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// Before a request reaches the server.
    Asked,
    /// After the server has answered a request, of which the client gets nothing.
    Answered,
    /// In the middle of an answer: the client gets it up to where the server says that a statement is done.
    Torn,
}

#[derive(Debug)]
struct Control {
    /// Requests, or statements that are done, until the cut; negative while none is wanted.
    left: AtomicI64,
    moment: Mutex<Moment>,
    hit: AtomicBool,
}

impl Control {
    /// Whether this is where a cut that was wanted at `moments` is due.
    fn is_next(&self, moments: &[Moment]) -> Option<Moment> {
        let moment = *self.moment.lock().unwrap();
        let counts = moments.contains(&moment) && self.left.load(Ordering::SeqCst) >= 0;
        let next = counts && self.left.fetch_sub(1, Ordering::SeqCst) == 0;
        if next {
            self.hit.store(true, Ordering::SeqCst);
        }
        next.then_some(moment)
    }
}

pub(super) struct Proxy {
    control: Arc<Control>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(super) async fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let control = Arc::new(Control {
            left: AtomicI64::new(-1),
            moment: Mutex::new(Moment::Asked),
            hit: AtomicBool::new(false),
        });
        let shared = Arc::clone(&control);
        let task = tokio::spawn(async move {
            let mut open = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (socket, control) = (socket.clone(), Arc::clone(&shared));
                open.spawn(async move {
                    let Ok(server) = UnixStream::connect(socket).await else {
                        return;
                    };
                    let _ = client.set_nodelay(true);
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    // Whichever side ends first takes both connections with it: that is the cut.
                    let held = AtomicBool::new(false);
                    tokio::select! {
                        _ = asks(from_client, to_server, &control, &held) => {}
                        _ = answers(from_server, to_client, &control, &held) => {}
                    }
                });
            }
        });
        Self { control, port, task }
    }

    /// The same database as `url` through this proxy.
    pub(super) fn url(&self, url: &str) -> String {
        let options = url.split_once("&options").unwrap().1;
        format!(
            "postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable&options{options}",
            self.port
        )
    }

    /// Cuts at the `nth` request, or statement that is done, from now.
    pub(super) fn arm(&self, nth: u32, moment: Moment) {
        *self.control.moment.lock().unwrap() = moment;
        self.control.left.store(i64::from(nth), Ordering::SeqCst);
    }

    /// Takes the cut back; tells whether it had happened.
    pub(super) fn disarm(&self) -> bool {
        self.control.left.store(-1, Ordering::SeqCst);
        self.control.hit.swap(false, Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn asks(
    mut client: impl AsyncRead + Unpin,
    mut server: impl AsyncWrite + Unpin,
    control: &Control,
    held: &AtomicBool,
) -> io::Result<()> {
    // The first message has a length and no type.
    let length = client.read_u32().await?;
    let mut body = vec![0; length as usize - 4];
    client.read_exact(&mut body).await?;
    server.write_u32(length).await?;
    server.write_all(&body).await?;
    loop {
        let (kind, message) = message(&mut client).await?;
        if matches!(kind, b'Q' | b'S') {
            match control.is_next(&[Moment::Asked, Moment::Answered]) {
                Some(Moment::Asked) => return Ok(()),
                // The other half keeps the answer back, and ends both when it is complete.
                Some(_) => held.store(true, Ordering::SeqCst),
                None => {}
            }
        }
        server.write_all(&message).await?;
    }
}

async fn answers(
    mut server: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    control: &Control,
    held: &AtomicBool,
) -> io::Result<()> {
    loop {
        let (kind, message) = message(&mut server).await?;
        if kind == b'C' && control.is_next(&[Moment::Torn]).is_some() {
            held.store(true, Ordering::SeqCst);
        }
        if held.load(Ordering::SeqCst) {
            if kind == b'Z' {
                return Ok(());
            }
            continue;
        }
        client.write_all(&message).await?;
    }
}

async fn message(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    let kind = from.read_u8().await?;
    let length = from.read_u32().await?;
    let mut message = vec![0; length as usize + 1];
    message[0] = kind;
    message[1..5].copy_from_slice(&length.to_be_bytes());
    from.read_exact(&mut message[5..]).await?;
    Ok((kind, message))
}
