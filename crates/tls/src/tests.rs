//! Real handshakes, between peers that fit and peers that do not.

use std::sync::Arc;
use std::time::Duration;

use ether_types::{BootId, Clock, ClusterId, ManualClock, NodeId, Timestamp};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ED25519, SanType};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use zeroize::Zeroizing;

use super::*;

const NOON: i64 = 1_700_000_000_000_000;
const HOUR: Duration = Duration::from_secs(3_600);

/// A cluster's authority, and a clock that only the test moves.
struct House {
    clock: ManualClock,
    authority: Authority,
}

impl House {
    fn new() -> Self {
        let clock = ManualClock::at(Timestamp::from_micros(NOON));
        let authority = authority(clock.now());
        Self { clock, authority }
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(self.clock.clone())
    }

    fn credentials(&self, member: &Member) -> Credentials {
        self.trusting(member, &self.authority, &self.authority.roots())
            .unwrap()
    }

    fn trusting(
        &self,
        member: &Member,
        issuer: &dyn Issue,
        roots: &[CertificateDer<'static>],
    ) -> Result<Credentials, InvalidCredentials> {
        let issued = issuer.issue(member, Some("127.0.0.1"), self.clock.now()).unwrap();
        Credentials::validate(member.clone(), issued, roots, &self.clock())
    }

    fn published(&self, member: &Member) -> Published {
        Published::new(self.credentials(member), self.clock())
    }
}

fn authority(now: Timestamp) -> Authority {
    let (certificate, key) = Authority::generate("ether home", now).unwrap();
    Authority::from_der(certificate, &key, Lifetime::DEFAULT).unwrap()
}

fn member(node: &str, boot: &str) -> Member {
    Member {
        cluster: ClusterId::new("home").unwrap(),
        node: NodeId::new(node).unwrap(),
        boot: BootId::new(boot).unwrap(),
    }
}

/// Both ends of a handshake, and what the client made of the first byte that the server sent.
async fn greet(
    client: &Published,
    server: &Published,
    to: &Member,
) -> (
    Result<Secured<DuplexStream>, HandshakeError>,
    Result<Secured<DuplexStream>, HandshakeError>,
) {
    let (near, far) = duplex(64 * 1024);
    tokio::join!(client.connect(near, to), server.accept(far))
}

#[tokio::test]
async fn both_ends_know_which_boot_they_talk_to() {
    let house = House::new();
    let (a, b) = (member("attic", "boot-1"), member("cellar", "boot-9"));
    let (client, server) = (house.published(&a), house.published(&b));
    let (client, server) = greet(&client, &server, &b).await;
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    assert_eq!((client.peer(), server.peer()), (&b, &a));
    let ends = house.clock.now().as_micros() + 12 * 3_600_000_000;
    assert_eq!(client.until().as_micros(), ends);
    client.write_all(b"ping").await.unwrap();
    client.flush().await.unwrap();
    let mut heard = [0; 4];
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"ping");
    // Nothing that could be used to come back without a certificate.
    server.write_all(b"pong").await.unwrap();
    server.shutdown().await.unwrap();
    client.read_exact(&mut heard).await.unwrap();
    assert_eq!(client.read(&mut heard).await.unwrap(), 0);
}

#[tokio::test]
async fn another_boot_of_the_same_node_is_not_who_was_dialled() {
    let house = House::new();
    let (old, new) = (member("cellar", "boot-1"), member("cellar", "boot-2"));
    let (client, server) = (house.published(&member("attic", "x")), house.published(&new));
    let (client, server) = greet(&client, &server, &old).await;
    assert!(matches!(client, Err(HandshakeError::OtherBoot)), "{client:?}");
    assert!(matches!(server, Err(HandshakeError::Refused(_))), "{server:?}");
}

#[tokio::test]
async fn the_same_names_under_another_authority_are_refused_on_both_sides() {
    let house = House::new();
    let stranger = authority(house.clock.now());
    let (a, b) = (member("attic", "1"), member("cellar", "1"));
    let forged = house.trusting(&a, &stranger, &stranger.roots()).unwrap();
    let forged = Published::new(forged, house.clock());
    let honest = house.published(&b);
    let (client, server) = greet(&forged, &honest, &b).await;
    assert!(matches!(client, Err(HandshakeError::Untrusted)), "{client:?}");
    assert!(matches!(server, Err(HandshakeError::Refused(_))), "{server:?}");
    let (client, server) = greet(&honest, &forged, &a).await;
    assert!(matches!(client, Err(HandshakeError::Untrusted)), "{client:?}");
    assert!(matches!(server, Err(HandshakeError::Refused(_))), "{server:?}");
    // One that trusts the cluster but shows a stranger's leaf: what the cluster's peer refuses.
    let both = [stranger.roots(), house.authority.roots()].concat();
    let naive = Published::new(house.trusting(&a, &stranger, &both).unwrap(), house.clock());
    let (client, server) = greet(&naive, &honest, &b).await;
    assert!(matches!(server, Err(HandshakeError::Untrusted)), "{server:?}");
    let mut byte = [0];
    let heard = client.unwrap().read(&mut byte).await;
    assert!(heard.is_err(), "the refusal shows with the first byte: {heard:?}");
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let house = House::new();
    let b = member("cellar", "1");
    let server = house.published(&b);
    let mut roots = rustls::RootCertStore::empty();
    for root in house.authority.roots() {
        roots.add(root).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let bare = rustls::ClientConfig::builder_with_details(provider, Arc::new(At(NOON)))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (near, far) = duplex(64 * 1024);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(bare));
    let (_client, server) = tokio::join!(
        connector.connect(b.server_name().unwrap(), near),
        server.accept(far)
    );
    assert!(matches!(server, Err(HandshakeError::NoCertificate)), "{server:?}");
}

#[derive(Debug)]
struct At(i64);

impl rustls::time_provider::TimeProvider for At {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        let since = Duration::from_micros(self.0.unsigned_abs());
        Some(rustls::pki_types::UnixTime::since_unix_epoch(since))
    }
}

#[tokio::test]
async fn an_expired_certificate_is_shown_by_nobody_and_accepted_by_nobody() {
    let house = House::new();
    let (a, b) = (member("attic", "1"), member("cellar", "1"));
    let early = house.published(&a);
    house.clock.advance(HOUR);
    let late = house.published(&b);
    // `early` ends an hour before `late` does.
    house.clock.advance(11 * HOUR);
    let (client, _) = greet(&early, &late, &b).await;
    assert!(matches!(client, Err(HandshakeError::OwnExpired)), "{client:?}");
    // A peer whose clock is behind goes on showing it; the other end's clock decides.
    let behind = ManualClock::at(Timestamp::from_micros(NOON));
    let issued = house.authority.issue(&a, None, behind.now()).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(behind.clone());
    let shown = Credentials::validate(a.clone(), issued, &house.authority.roots(), &clock).unwrap();
    let shown = Published::new(shown, clock);
    behind.advance(11 * HOUR);
    for _ in 0..2 {
        let (_, server) = greet(&shown, &late, &b).await;
        assert!(matches!(server, Err(HandshakeError::Expired)), "{server:?}");
        // First at the very instant, then past the second that the verifier itself lets pass.
        house.clock.advance(Duration::from_secs(1));
    }
    let (client, _) = greet(&late, &shown, &a).await;
    assert!(matches!(client, Err(HandshakeError::Expired)), "{client:?}");
}

#[tokio::test]
async fn a_certificate_that_names_no_boot_or_another_cluster_is_refused_though_a_trusted_root_signed_it() {
    let house = House::new();
    let b = member("cellar", "1");
    let server = house.published(&b);
    let foreign = Member {
        cluster: ClusterId::new("neighbours").unwrap(),
        ..member("attic", "1")
    };
    let of_another_cluster = house.published(&foreign);
    let (client, _) = greet(&of_another_cluster, &server, &b).await;
    assert!(matches!(client, Err(HandshakeError::OtherCluster)), "{client:?}");
    let (near, far) = duplex(64 * 1024);
    let connector = tokio_rustls::TlsConnector::from(Arc::clone(&of_another_cluster.current().client));
    let (_client, refused) = tokio::join!(
        connector.connect(b.server_name().unwrap(), near),
        server.accept(far)
    );
    assert!(
        matches!(refused, Err(HandshakeError::OtherCluster)),
        "{refused:?}"
    );

    let (certificate, key) = Authority::generate("ether home", house.clock.now()).unwrap();
    let root = certificate.clone();
    let pkcs8 = rustls::pki_types::PrivatePkcs8KeyDer::from(key.as_slice());
    let signer = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_der(&certificate, signer).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "a printer");
    params.is_ca = IsCa::NoCa;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![SanType::DnsName("printer.lan".try_into().unwrap())];
    let printer = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let leaf = params.signed_by(&printer, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    roots.add(house.authority.roots().remove(0)).unwrap();
    let shown = rustls::ClientConfig::builder_with_details(provider, Arc::new(At(NOON)))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![leaf.der().clone()],
            rustls::pki_types::PrivatePkcs8KeyDer::from(printer.serialize_der()).into(),
        )
        .unwrap();
    let both = [house.authority.roots(), vec![root]].concat();
    let server = house.trusting(&b, &house.authority, &both).unwrap();
    let server = Published::new(server, house.clock());
    let (near, far) = duplex(64 * 1024);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(shown));
    let (_client, refused) = tokio::join!(
        connector.connect(b.server_name().unwrap(), near),
        server.accept(far)
    );
    assert!(
        matches!(
            refused,
            Err(HandshakeError::NotAMember(NotAMember::Names { found: 0 }))
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_peer_that_says_nothing_or_nonsense_does_not_stay() {
    let house = House::new();
    let server = house.published(&member("cellar", "1"));
    let (_silent, far) = duplex(64);
    let waiting = {
        let server = server.clone();
        tokio::spawn(async move { server.accept(far).await })
    };
    while house.clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    house.clock.advance(Duration::from_secs(10));
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(HandshakeError::TimedOut)), "{ended:?}");
    let (mut near, far) = duplex(4_096);
    near.write_all(b"GET / HTTP/1.1\r\nHost: cellar\r\n\r\n")
        .await
        .unwrap();
    let ended = server.accept(far).await;
    assert!(matches!(ended, Err(HandshakeError::Protocol(_))), "{ended:?}");
}

#[tokio::test]
async fn roots_are_exchanged_while_connections_are_open() {
    let house = House::new();
    let (a, b) = (member("attic", "1"), member("cellar", "1"));
    let (client, server) = (house.published(&a), house.published(&b));
    let (open, far) = greet(&client, &server, &b).await;
    let (mut open, mut far) = (open.unwrap(), far.unwrap());
    house.clock.advance(HOUR);
    let next = authority(house.clock.now());
    let both = [house.authority.roots(), next.roots()].concat();
    // First everyone trusts both; then each shows a leaf of the new one; then the old one goes.
    for (issuer, roots) in [
        (&house.authority, &both[..]),
        (&next, &both[..]),
        (&next, &next.roots()[..]),
    ] {
        for (published, member) in [(&client, &a), (&server, &b)] {
            published
                .publish(house.trusting(member, issuer, roots).unwrap())
                .unwrap();
            let (one, other) = greet(&client, &server, &b).await;
            assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
            let (one, other) = greet(&server, &client, &a).await;
            assert!(one.is_ok() && other.is_ok(), "{one:?} {other:?}");
        }
    }
    open.write_all(b"on").await.unwrap();
    open.flush().await.unwrap();
    let mut heard = [0; 2];
    far.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"on");
}

#[tokio::test]
async fn what_does_not_fit_is_kept_out_and_what_was_published_stays() {
    let house = House::new();
    let (a, b) = (member("attic", "1"), member("attic", "2"));
    let published = house.published(&a);
    let refused = |result: Result<Credentials, InvalidCredentials>| result.map(|_| ()).unwrap_err();
    let stranger = authority(house.clock.now());
    let roots = house.authority.roots();

    assert!(matches!(
        refused(house.trusting(&a, &stranger, &roots)),
        InvalidCredentials::Refused(_)
    ));
    let issue = |member: &Member| house.authority.issue(member, None, house.clock.now()).unwrap();
    let validate = |member: &Member, issued, roots: &[CertificateDer<'static>]| {
        refused(Credentials::validate(
            member.clone(),
            issued,
            roots,
            &house.clock(),
        ))
    };
    assert_eq!(
        validate(&b, issue(&a), &roots),
        InvalidCredentials::OtherMember(Box::new(a.clone()))
    );
    let (one, other) = (issue(&a), issue(&a));
    let swapped = Issued::new(one.chain.clone(), other.key.clone());
    assert_eq!(validate(&a, swapped, &roots), InvalidCredentials::Key);
    assert_eq!(validate(&a, issue(&a), &[]), InvalidCredentials::Roots(0));
    let leaf = issue(&a).chain.remove(0);
    assert_eq!(validate(&a, issue(&a), &[leaf]), InvalidCredentials::Root(0));
    let empty = Issued::new(Vec::new(), Zeroizing::new(Vec::new()));
    assert_eq!(validate(&a, empty, &roots), InvalidCredentials::Unreadable);
    let later = issue(&a);
    house.clock.advance(12 * HOUR);
    let late = refused(Credentials::validate(a.clone(), later, &roots, &house.clock()));
    assert!(matches!(late, InvalidCredentials::Time { .. }), "{late:?}");

    let before = published.current().not_after();
    let theirs = published.publish(house.credentials(&b));
    assert_eq!(theirs, Err(PublishError::OtherMember(Box::new(b))));
    house.clock.step_wall(-(12 * 3_600 + 60) * 1_000_000);
    let shorter = published.publish(house.credentials(&a));
    assert_eq!(shorter, Err(PublishError::EndsEarlier));
    assert_eq!(published.current().not_after(), before);
}

#[test]
fn an_authority_is_its_own_certificate_and_its_own_key() {
    let now = Timestamp::from_micros(NOON);
    let (certificate, key) = Authority::generate("ether home", now).unwrap();
    let (_, other) = Authority::generate("ether home", now).unwrap();
    let made = |certificate, key: &Zeroizing<Vec<u8>>| {
        Authority::from_der(certificate, key, Lifetime::DEFAULT).map(|_| ())
    };
    assert_eq!(made(certificate.clone(), &key), Ok(()));
    assert_eq!(made(certificate.clone(), &other), Err(AuthorityError::Mismatch));
    assert_eq!(
        made(certificate.clone(), &Zeroizing::new(b"no key".to_vec())),
        Err(AuthorityError::Key)
    );
    let authority = Authority::from_der(certificate, &key, Lifetime::DEFAULT).unwrap();
    let member = member("attic", "1");
    let leaf = authority.issue(&member, None, now).unwrap().chain.remove(0);
    assert_eq!(made(leaf, &key), Err(AuthorityError::NotAnAuthority));
    let later = Timestamp::from_micros(NOON + 11 * 365 * 86_400_000_000);
    assert_eq!(
        authority.issue(&member, None, later).map(|_| ()),
        Err(IssueError::AuthorityExpired)
    );
    for host in ["*.lan", "a..b", "", "-a", "x.ether.internal", "a b"] {
        let refused = authority.issue(&member, Some(host), now).map(|_| ());
        assert_eq!(refused, Err(IssueError::Host), "{host:?}");
    }
}

#[test]
fn nothing_that_is_printed_shows_a_key() {
    let house = House::new();
    let member = member("attic", "1");
    let issued = house.authority.issue(&member, None, house.clock.now()).unwrap();
    let key: Vec<String> = issued.key.iter().map(|byte| byte.to_string()).collect();
    let text = format!(
        "{issued:?} {:?} {:?} {:?}",
        house.authority,
        house.credentials(&member),
        house.published(&member)
    );
    assert!(!text.contains(&key[16..24].join(", ")), "{text}");
    assert!(text.len() < 2_000, "{text}");
}
