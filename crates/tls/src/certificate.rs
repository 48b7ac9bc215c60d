//! Reading what a certificate says. Nothing here decides whether it is to be believed.

use ether_types::Timestamp;
use rustls::pki_types::CertificateDer;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::member::{Member, NotAMember};

/// A certificate's facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
    pub(crate) is_authority: bool,
}

fn parsed<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

/// Times and kind of a certificate, or `None` where it cannot be read.
pub(crate) fn facts(der: &CertificateDer<'_>) -> Option<Facts> {
    let certificate = parsed(der)?;
    let at = |time: x509_parser::time::ASN1Time| {
        time.timestamp()
            .checked_mul(1_000_000)
            .map(Timestamp::from_micros)
    };
    let validity = certificate.validity();
    Some(Facts {
        not_before: at(validity.not_before)?,
        // The last second counts as a whole; what lives on it must be over when it begins.
        not_after: at(validity.not_after)?,
        is_authority: certificate.is_ca(),
    })
}

/// The public key that a certificate is for, as it stands in it.
pub(crate) fn public_key<'a>(der: &'a CertificateDer<'_>) -> Option<&'a [u8]> {
    Some(parsed(der)?.tbs_certificate.subject_pki.raw)
}

/// The member that a certificate names.
pub(crate) fn member(der: &CertificateDer<'_>) -> Result<Member, NotAMember> {
    let certificate = parsed(der).ok_or(NotAMember::Unreadable)?;
    let names = certificate
        .subject_alternative_name()
        .map_err(|_| NotAMember::Unreadable)?
        .ok_or(NotAMember::Names { found: 0 })?;
    let (mut uris, mut dns) = (Vec::new(), Vec::new());
    for name in &names.value.general_names {
        match name {
            GeneralName::URI(uri) => uris.push(*uri),
            GeneralName::DNSName(name) => dns.push(*name),
            GeneralName::Invalid(..) => return Err(NotAMember::Unreadable),
            _ => {}
        }
    }
    Member::of_names(&uris, &dns)
}
