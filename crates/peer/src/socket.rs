//! How the sockets between nodes are set up.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

/// Bytes that the kernel is asked to hold of a stream that its reader does not take. Left to itself it grows them to
/// tens of megabytes, and whoever sends would take what lies in them for read. The system's own limit may be lower
/// (`net.core.rmem_max`).
pub const WINDOW: usize = 1 << 20;

/// A silent peer is asked after this long whether it is still there, and so often again.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);
const BACKLOG: u32 = 1_024;

/// A socket that listens on `address`, to be served by a [`crate::Listener`].
///
/// # Errors
/// The system's own.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

pub(crate) async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = socket(address)?.connect(address).await?;
    tune(&stream)?;
    Ok(stream)
}

/// What a connected socket is given besides its buffers.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let (idle, interval, count) = KEEPALIVE;
    let fd = stream.as_fd();
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, idle)?;
    sockopt::set_tcp_keepintvl(fd, interval)?;
    sockopt::set_tcp_keepcnt(fd, count)?;
    Ok(())
}

/// The buffers are set before there is a connection: what a peer is told it may send is settled as it begins.
fn socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    let window = u32::try_from(WINDOW).unwrap_or(u32::MAX);
    socket.set_recv_buffer_size(window)?;
    socket.set_send_buffer_size(window)?;
    Ok(socket)
}
