//! A film of another node, as an encoder finds it: behind a gateway of this node (T3, T19).

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use ether_transfer::Revision;

/// Characters that a gateway's path may have at most.
const PATH: usize = 512;

/// What a gateway gives out at one address. It stays with whoever opened it; an encoder reads and never seals.
pub trait GatewayRead: Send + Sync {
    /// Where the film is read.
    fn url(&self) -> &str;

    /// The state of the film that is read there, and no other.
    fn revision(&self) -> Revision;

    /// The first thing that kept a reader from its bytes. An encoder sees only a connection that broke.
    fn failure(&self) -> Option<SourceFailure>;
}

/// Why a gateway has no bytes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFailure {
    /// The film is in another state.
    Changed,
    /// It is not to be had: its owner is gone, or its grant has ended.
    Lost,
}

/// An address that no gateway of this node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a gateway's address is http://<literal loopback address>:<port>/<path of 1 to {PATH} letters and digits>"
)]
pub struct NotAGateway;

/// A gateway's address, found to be one. Clones are the same.
#[derive(Clone)]
pub struct Gateway(Arc<dyn GatewayRead>);

impl Gateway {
    /// Takes `read` if its address is a literal loopback address with a port and a plain path: no name that a resolver
    /// would be asked about, nothing that another program could read in two ways.
    ///
    /// # Errors
    /// [`NotAGateway`].
    pub fn new(read: Arc<dyn GatewayRead>) -> Result<Self, NotAGateway> {
        let url = read.url();
        let (authority, path) = url
            .strip_prefix("http://")
            .and_then(|rest| rest.split_once('/'))
            .ok_or(NotAGateway)?;
        let address: SocketAddr = authority.parse().map_err(|_| NotAGateway)?;
        let plain = (1..=PATH).contains(&path.len()) && path.bytes().all(|b| b.is_ascii_alphanumeric());
        // Written back, so that no other spelling of an address passes.
        if plain && address.ip().is_loopback() && address.port() != 0 && address.to_string() == authority {
            return Ok(Self(read));
        }
        Err(NotAGateway)
    }

    /// Where the film is read. It is a secret of this node.
    pub fn url(&self) -> &str {
        self.0.url()
    }

    /// The state of the film.
    pub fn revision(&self) -> Revision {
        self.0.revision()
    }

    /// Why there are no bytes any more.
    pub fn failure(&self) -> Option<SourceFailure> {
        self.0.failure()
    }
}

impl PartialEq for Gateway {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Gateway {}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway")
            .field("revision", &self.revision())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(&'static str);

    impl GatewayRead for At {
        fn url(&self) -> &str {
            self.0
        }

        fn revision(&self) -> Revision {
            Revision {
                size: 1,
                modified_nanos: 0,
                inode: 0,
                device: 0,
            }
        }

        fn failure(&self) -> Option<SourceFailure> {
            None
        }
    }

    #[test]
    fn only_a_literal_loopback_address_with_a_plain_path_is_a_gateways() {
        for good in [
            "http://127.0.0.1:4000/0a1b",
            "http://[::1]:4000/x",
            "http://127.8.9.1:1/Y",
        ] {
            let gateway = Gateway::new(Arc::new(At(good)));
            assert!(gateway.is_ok(), "{good}");
            assert!(!format!("{gateway:?}").contains("http"));
        }
        for bad in [
            "http://localhost:4000/x",
            "http://192.168.0.1:4000/x",
            "https://127.0.0.1:4000/x",
            "http://127.0.0.1/x",
            "http://127.0.0.1:0/x",
            "http://127.0.0.1:4000/",
            "http://127.0.0.1:4000",
            "http://127.1:4000/x",
            "http://0x7f000001:4000/x",
            "http://user@127.0.0.1:4000/x",
            "http://127.0.0.1:4000@example.org:80/x",
            "http://127.0.0.1:04000/x",
            "http://[::ffff:127.0.0.1]:4000/x",
            "http://127.0.0.1:4000/x/../y",
            "http://127.0.0.1:4000/x?y",
            "http://127.0.0.1:4000/x#y",
            "http://127.0.0.1:4000/%78",
            "http://127.0.0.1:4000/x y",
            "file:/etc/passwd",
            "concat:http://127.0.0.1:4000/x",
            "",
        ] {
            assert!(Gateway::new(Arc::new(At(bad))).is_err(), "{bad}");
        }
    }
}
