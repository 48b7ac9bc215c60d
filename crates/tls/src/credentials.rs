//! A boot's own certificate with the roots it trusts, tried before anyone sees them.

use std::fmt;
use std::sync::Arc;

use ether_types::{Clock, Timestamp};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, SupportedCipherSuite,
};

use crate::authority::Issued;
use crate::certificate;
use crate::member::{Member, NotAMember};

/// Roots that may be trusted at once: a rotation needs two.
const MOST_ROOTS: usize = 8;

/// AES-GCM first: processors do it in hardware, and media between nodes is mostly that.
const SUITES: [SupportedCipherSuite; 3] = [
    aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256,
    aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
    aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Why material may not be published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCredentials {
    /// There are no roots, or too many.
    #[error("there must be 1 to {MOST_ROOTS} trusted roots, not {0}")]
    Roots(usize),
    /// A root cannot be read, or is not a certificate authority's.
    #[error("trusted root {0} is not the certificate of a certificate authority")]
    Root(usize),
    /// There is no certificate, or it cannot be read.
    #[error("the own certificate cannot be read")]
    Unreadable,
    /// The certificate names nobody, or somebody else.
    #[error("the own certificate is not this boot's: {0}")]
    NotAMember(#[from] NotAMember),
    /// The certificate is another boot's.
    #[error("the own certificate is that of {0}")]
    OtherMember(Box<Member>),
    /// The certificate's time has not come, or is over.
    #[error("the own certificate is valid from {not_before} until {not_after} microseconds, and it is {now}")]
    Time {
        /// Its first instant.
        not_before: Timestamp,
        /// The instant at which it is over.
        not_after: Timestamp,
        /// The instant of the check.
        now: Timestamp,
    },
    /// The key does not fit the certificate, or cannot be read.
    #[error("the key does not belong to the own certificate")]
    Key,
    /// A peer with the same roots would refuse it.
    #[error("a peer would refuse the own certificate: {0}")]
    Refused(String),
}

/// A boot's certificate, key and roots, which were found to work with each other.
pub struct Credentials {
    member: Member,
    not_before: Timestamp,
    not_after: Timestamp,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("member", &self.member)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Takes what was issued for `member`, to be trusted together with `roots`, if a peer with the same roots would
    /// accept it now, as a server's and as a client's.
    ///
    /// The last check is a whole handshake with itself in memory: the very verifiers that will be used decide.
    ///
    /// # Errors
    /// [`InvalidCredentials`] says what is wrong. Nothing is kept.
    pub fn validate(
        member: Member,
        issued: Issued,
        roots: &[CertificateDer<'static>],
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, InvalidCredentials> {
        let leaf = issued.chain.first().ok_or(InvalidCredentials::Unreadable)?;
        let facts = certificate::facts(leaf).ok_or(InvalidCredentials::Unreadable)?;
        let named = certificate::member(leaf)?;
        if named != member {
            return Err(InvalidCredentials::OtherMember(Box::new(named)));
        }
        let now = clock.now();
        if now < facts.not_before || now >= facts.not_after {
            return Err(InvalidCredentials::Time {
                not_before: facts.not_before,
                not_after: facts.not_after,
                now,
            });
        }
        let roots = Arc::new(store(roots, now)?);
        let provider = Arc::new(CryptoProvider {
            cipher_suites: SUITES.to_vec(),
            ..aws_lc_rs::default_provider()
        });
        let time: Arc<dyn TimeProvider> = Arc::new(Time(Arc::clone(clock)));
        let server = server(&issued, &roots, &provider, &time)?;
        let client = client(&issued, &roots, &provider, &time)?;
        let credentials = Self {
            member,
            not_before: facts.not_before,
            not_after: facts.not_after,
            server: Arc::new(server),
            client: Arc::new(client),
        };
        credentials.greet_oneself()?;
        Ok(credentials)
    }

    /// Whose they are.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// The first instant at which peers accept them.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// The instant from which peers refuse them.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Goes through a handshake with itself.
    fn greet_oneself(&self) -> Result<(), InvalidCredentials> {
        let refused = |error: rustls::Error| InvalidCredentials::Refused(error.to_string());
        let mut client =
            ClientConnection::new(Arc::clone(&self.client), self.member.server_name()?).map_err(refused)?;
        let mut server = ServerConnection::new(Arc::clone(&self.server)).map_err(refused)?;
        let mut wire = Vec::new();
        // TLS 1.3 takes two flights each way; anything longer is not going to end.
        for _ in 0..8 {
            while client.wants_write() {
                wire.clear();
                let copied = client
                    .write_tls(&mut wire)
                    .and_then(|_| server.read_tls(&mut &wire[..]));
                copied.map_err(|error| InvalidCredentials::Refused(error.to_string()))?;
                server.process_new_packets().map_err(refused)?;
            }
            while server.wants_write() {
                wire.clear();
                let copied = server
                    .write_tls(&mut wire)
                    .and_then(|_| client.read_tls(&mut &wire[..]));
                copied.map_err(|error| InvalidCredentials::Refused(error.to_string()))?;
                client.process_new_packets().map_err(refused)?;
            }
            if !client.is_handshaking() && !server.is_handshaking() {
                return Ok(());
            }
        }
        Err(InvalidCredentials::Refused("the handshake does not end".into()))
    }
}

/// The roots, each of which must be a certificate authority's. One that has expired is left out: the verifiers would
/// go on trusting it, since they take a trust anchor's own dates for granted.
fn store(roots: &[CertificateDer<'static>], now: Timestamp) -> Result<RootCertStore, InvalidCredentials> {
    if roots.is_empty() || roots.len() > MOST_ROOTS {
        return Err(InvalidCredentials::Roots(roots.len()));
    }
    let mut store = RootCertStore::empty();
    for (n, root) in roots.iter().enumerate() {
        let facts = certificate::facts(root)
            .filter(|facts| facts.is_authority)
            .ok_or(InvalidCredentials::Root(n))?;
        if now < facts.not_after {
            store.add(root.clone()).map_err(|_| InvalidCredentials::Root(n))?;
        }
    }
    if store.is_empty() {
        return Err(InvalidCredentials::Roots(0));
    }
    Ok(store)
}

fn server(
    issued: &Issued,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    time: &Arc<dyn TimeProvider>,
) -> Result<ServerConfig, InvalidCredentials> {
    let peers = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
        .build()
        .map_err(|error| InvalidCredentials::Refused(error.to_string()))?;
    let mut config = ServerConfig::builder_with_details(Arc::clone(provider), Arc::clone(time))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| InvalidCredentials::Refused(error.to_string()))?
        .with_client_cert_verifier(peers)
        .with_single_cert(issued.chain.clone(), issued.key())
        .map_err(|_| InvalidCredentials::Key)?;
    // Whoever comes back shows its certificate again: a ticket would outlive the boot it was given to.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(config)
}

fn client(
    issued: &Issued,
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    time: &Arc<dyn TimeProvider>,
) -> Result<ClientConfig, InvalidCredentials> {
    let mut config = ClientConfig::builder_with_details(Arc::clone(provider), Arc::clone(time))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| InvalidCredentials::Refused(error.to_string()))?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(issued.chain.clone(), issued.key())
        .map_err(|_| InvalidCredentials::Key)?;
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_early_data = false;
    // The name that is asked for is a boot's; a listener on the way has no need to read it.
    config.enable_sni = false;
    Ok(config)
}

/// The injected clock, as the verifiers ask it.
struct Time(Arc<dyn Clock>);

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Time")
    }
}

impl TimeProvider for Time {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.now().as_micros().div_euclid(1_000_000);
        let since = std::time::Duration::from_secs(u64::try_from(seconds).ok()?);
        Some(UnixTime::since_unix_epoch(since))
    }
}
