//! The one line that says where to look.

use std::fmt;
use std::net::SocketAddr;

/// `ether is ready: http://…/`, with a one-use sign-in code in the fragment where a person reads it: a fragment
/// is never sent to a server, and a log never gets one.
#[derive(Clone, Debug)]
pub struct ReadyLine {
    /// Where the server listens.
    pub address: SocketAddr,
    /// A one-use code, for a terminal alone.
    pub code: Option<String>,
}

impl ReadyLine {
    /// The address to open. A server that listens on every address is reached through the loopback one.
    pub fn url(&self) -> String {
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let loopback = match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            address.set_ip(loopback);
        }
        match &self.code {
            Some(code) => format!("http://{address}/#code={code}"),
            None => format!("http://{address}/"),
        }
    }
}

impl fmt::Display for ReadyLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ether is ready: {}", self.url())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_an_address_that_can_be_opened() {
        let line = |address: &str, code: Option<&str>| {
            ReadyLine {
                address: address.parse().unwrap(),
                code: code.map(str::to_owned),
            }
            .to_string()
        };
        assert_eq!(
            line("127.0.0.1:32400", None),
            "ether is ready: http://127.0.0.1:32400/"
        );
        assert_eq!(
            line("0.0.0.0:80", Some("ab")),
            "ether is ready: http://127.0.0.1:80/#code=ab"
        );
        assert_eq!(line("[::]:80", None), "ether is ready: http://[::1]:80/");
    }
}
