//! The cluster's certificate authority, and the leaf certificates that it gives its boots (C7).

use std::net::IpAddr;
use std::time::Duration;

use ether_types::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::certificate;
use crate::member::Member;

/// How far back a certificate's first instant lies: peers' clocks may be behind by as much.
const BACKDATED: Duration = Duration::from_secs(300);
/// How long an authority that is made here lasts.
const AUTHORITY_LASTS: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How long a leaf is valid from the moment that it is issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime(Duration);

impl Lifetime {
    /// Twelve hours, renewed hourly (C7): an issuer may be gone for most of a day.
    pub const DEFAULT: Self = Self(Duration::from_secs(12 * 3_600));

    /// A lifetime of 1 second to 30 days; `None` outside.
    pub const fn new(lasts: Duration) -> Option<Self> {
        let seconds = lasts.as_secs();
        if seconds >= 1 && seconds <= 30 * 86_400 {
            Some(Self(lasts))
        } else {
            None
        }
    }
}

/// A fresh leaf and its key, which has been nowhere else.
pub struct Issued {
    pub(crate) chain: Vec<CertificateDer<'static>>,
    pub(crate) key: Zeroizing<Vec<u8>>,
}

impl Issued {
    /// A leaf with what links it to a root, leaf first, and its private key as PKCS#8.
    pub fn new(chain: Vec<CertificateDer<'static>>, key: Zeroizing<Vec<u8>>) -> Self {
        Self { chain, key }
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.to_vec()))
    }
}

impl std::fmt::Debug for Issued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issued")
            .field("certificates", &self.chain.len())
            .finish_non_exhaustive()
    }
}

/// Why no leaf was issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssueError {
    /// The authority itself has expired or is not valid yet.
    #[error("the cluster's certificate authority is not valid now")]
    AuthorityExpired,
    /// The host name cannot stand in a certificate.
    #[error("the host must be a DNS name or an IP address")]
    Host,
    /// The cryptography failed.
    #[error("the certificate could not be signed")]
    Signing,
}

/// Whoever gives leaves: the authority in this process, or another program's that holds its key.
pub trait Issue: Send + Sync {
    /// A leaf for `member`, which other programs may also reach as `host` (a DNS name or an IP address).
    ///
    /// # Errors
    /// [`IssueError`]; nothing was issued.
    fn issue(&self, member: &Member, host: Option<&str>, now: Timestamp) -> Result<Issued, IssueError>;

    /// The roots that peers' leaves must lead to, DER. While roots overlap there are several.
    fn roots(&self) -> Vec<CertificateDer<'static>>;
}

/// Why material is no certificate authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate cannot be read, or is not one of an authority.
    #[error("the certificate is not that of a certificate authority")]
    NotAnAuthority,
    /// The key is no Ed25519 key in PKCS#8.
    #[error("the key must be an Ed25519 key in PKCS#8")]
    Key,
    /// The key belongs to another certificate.
    #[error("the key does not belong to the certificate")]
    Mismatch,
    /// The cryptography failed.
    #[error("a certificate authority could not be made")]
    Making,
}

/// A certificate authority whose key is in this process. Its key is cleared when it is dropped.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    lifetime: Lifetime,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .field("lifetime", &self.lifetime)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// The authority of `certificate` (DER) and its Ed25519 `key` (PKCS#8 DER).
    ///
    /// # Errors
    /// [`AuthorityError`] says which of the two is not what it should be; a key that belongs to another certificate is
    /// found here, not when the first peer refuses.
    pub fn from_der(
        certificate: CertificateDer<'static>,
        key: &Zeroizing<Vec<u8>>,
        lifetime: Lifetime,
    ) -> Result<Self, AuthorityError> {
        let facts = certificate::facts(&certificate)
            .filter(|facts| facts.is_authority)
            .ok_or(AuthorityError::NotAnAuthority)?;
        let pkcs8 = PrivatePkcs8KeyDer::from(key.as_slice());
        let key =
            KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519).map_err(|_| AuthorityError::Key)?;
        let own = certificate::public_key(&certificate).ok_or(AuthorityError::NotAnAuthority)?;
        if own != key.subject_public_key_info() {
            return Err(AuthorityError::Mismatch);
        }
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|_| AuthorityError::NotAnAuthority)?;
        Ok(Self {
            issuer,
            certificate,
            not_before: facts.not_before,
            not_after: facts.not_after,
            lifetime,
        })
    }

    /// A new authority with a new key, valid for ten years from `now`: its certificate and key, to be kept by whoever
    /// founds the cluster, and used through [`Authority::from_der`].
    ///
    /// # Errors
    /// [`AuthorityError::Making`].
    pub fn generate(
        name: &str,
        now: Timestamp,
    ) -> Result<(CertificateDer<'static>, Zeroizing<Vec<u8>>), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|_| AuthorityError::Making)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) =
            validity(now, AUTHORITY_LASTS).ok_or(AuthorityError::Making)?;
        let certificate = params.self_signed(&key).map_err(|_| AuthorityError::Making)?;
        Ok((certificate.der().clone(), Zeroizing::new(key.serialize_der())))
    }
}

impl Issue for Authority {
    fn issue(&self, member: &Member, host: Option<&str>, now: Timestamp) -> Result<Issued, IssueError> {
        if now < self.not_before || now >= self.not_after {
            return Err(IssueError::AuthorityExpired);
        }
        let key = KeyPair::generate_for(&PKCS_ED25519).map_err(|_| IssueError::Signing)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ether node");
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Each node is a server to its peers and a client of them.
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let text = |text: String| text.try_into().map_err(|_| IssueError::Host);
        params.subject_alt_names = vec![
            SanType::URI(text(member.uri())?),
            SanType::DnsName(text(member.dns())?),
        ];
        if let Some(host) = host {
            params.subject_alt_names.push(match host.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(text(checked(host)?.to_owned())?),
            });
        }
        (params.not_before, params.not_after) = validity(now, self.lifetime.0).ok_or(IssueError::Signing)?;
        let leaf = params
            .signed_by(&key, &self.issuer)
            .map_err(|_| IssueError::Signing)?;
        Ok(Issued {
            chain: vec![leaf.der().clone()],
            key: Zeroizing::new(key.serialize_der()),
        })
    }

    fn roots(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }
}

/// A host name as certificates carry them; wildcards and the domain of boots are nobody's.
fn checked(host: &str) -> Result<&str, IssueError> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let fits = (1..=253).contains(&host.len()) && host.split('.').all(label);
    if fits && !host.to_ascii_lowercase().ends_with("ether.internal") {
        Ok(host)
    } else {
        Err(IssueError::Host)
    }
}

fn validity(now: Timestamp, lasts: Duration) -> Option<(OffsetDateTime, OffsetDateTime)> {
    let seconds = now.as_micros().div_euclid(1_000_000);
    let back = i64::try_from(BACKDATED.as_secs()).ok()?;
    let lasts = i64::try_from(lasts.as_secs()).ok()?;
    let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(seconds).ok();
    Some((at(seconds.checked_sub(back)?)?, at(seconds.checked_add(lasts)?)?))
}
