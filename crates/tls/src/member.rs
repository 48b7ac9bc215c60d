//! The identity that a certificate carries: one boot of one node in one cluster.

use std::fmt;

use ether_types::{BootId, ClusterId, InvalidId, NodeId};
use rustls::pki_types::{DnsName, ServerName};
use sha2::{Digest, Sha256};

/// How the identity is written in a certificate's subject alternative names, as a URI.
const SCHEME: &str = "ether://";
/// The name space of the DNS form, which no resolver is ever asked about.
const DOMAIN: &str = "boot.ether.internal";
/// Bytes of the hash in the DNS form: as hexadecimal digits they fit a label of 63.
const HASHED: usize = 30;

/// One process start of a node, as its peers know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The shared authority that both ends belong to.
    pub cluster: ClusterId,
    /// The installation.
    pub node: NodeId,
    /// Its process start.
    pub boot: BootId,
}

/// Why a certificate, though signed by a trusted root, names no member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAMember {
    /// It cannot be read.
    #[error("the certificate cannot be read")]
    Unreadable,
    /// It carries no identity, or several.
    #[error("a member's certificate has exactly one name that begins with {SCHEME}, this one has {found}")]
    Names {
        /// How many it has.
        found: usize,
    },
    /// The identity does not have the form `ether://<cluster>/<node>/<boot>`.
    #[error("the certificate's identity must have the form {SCHEME}<cluster>/<node>/<boot>")]
    Form,
    /// A part of the identity leaves its bounds.
    #[error("in the certificate's identity: {0}")]
    Part(#[from] InvalidId),
    /// The DNS form, by which a peer is told apart while it is dialled, names another boot than the URI.
    #[error("the certificate's two names are not those of the same boot")]
    TwoBoots,
}

impl Member {
    /// The identity as a certificate carries it: `ether://<cluster>/<node>/<boot>`.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}/{}", self.cluster, self.node, self.boot)
    }

    /// The name that a certificate must be valid for to be this boot's: a hash of all three parts, since they may be
    /// longer than a DNS label and differ by case alone.
    pub(crate) fn dns(&self) -> String {
        let hash = Sha256::digest(self.uri().as_bytes());
        let label: String = hash.iter().take(HASHED).map(|b| format!("{b:02x}")).collect();
        format!("{label}.{DOMAIN}")
    }

    /// What is asked for when this boot is dialled.
    pub(crate) fn server_name(&self) -> Result<ServerName<'static>, NotAMember> {
        let name = DnsName::try_from(self.dns()).map_err(|_| NotAMember::Form)?;
        Ok(ServerName::DnsName(name))
    }

    /// The member that these names of a verified certificate are of.
    pub(crate) fn of_names(uris: &[&str], dns: &[&str]) -> Result<Self, NotAMember> {
        let own: Vec<&str> = uris.iter().filter_map(|uri| uri.strip_prefix(SCHEME)).collect();
        let [own] = own[..] else {
            return Err(NotAMember::Names { found: own.len() });
        };
        let parts: Vec<&str> = own.split('/').collect();
        let [cluster, node, boot] = parts[..] else {
            return Err(NotAMember::Form);
        };
        let member = Self {
            cluster: ClusterId::new(cluster)?,
            node: NodeId::new(node)?,
            boot: BootId::new(boot)?,
        };
        // Further names of the domain would let one certificate pass for several boots when dialled.
        let dialled: Vec<&str> = dns.iter().copied().filter(|name| in_domain(name)).collect();
        if dialled[..] != [member.dns().as_str()] {
            return Err(NotAMember::TwoBoots);
        }
        Ok(member)
    }
}

/// Whether a DNS name, wildcards included, could match one of the domain's.
fn in_domain(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.strip_suffix('.').unwrap_or(&name).ends_with(DOMAIN) || name.starts_with('*')
}

impl fmt::Display for Member {
    /// `<node> (boot <boot>)`: within a cluster, its name says nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (boot {})", self.node, self.boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Member {
        Member {
            cluster: ClusterId::new("home").unwrap(),
            node: NodeId::new("attic.1").unwrap(),
            boot: BootId::new("b".repeat(64)).unwrap(),
        }
    }

    #[test]
    fn names_of_every_length_fit_a_dns_label_and_read_back() {
        let member = member();
        let (uri, dns) = (member.uri(), member.dns());
        assert!(dns.split('.').all(|label| label.len() <= 63), "{dns}");
        assert_eq!(
            Member::of_names(&[&uri, "https://else.where/"], &[&dns, "attic.lan"]),
            Ok(member.clone())
        );
        member.server_name().unwrap();
    }

    #[test]
    fn a_certificate_of_two_boots_or_of_none_is_no_members() {
        let member = member();
        let other = Member {
            boot: BootId::new("B".repeat(64)).unwrap(),
            ..member.clone()
        };
        let (uri, dns) = (member.uri(), member.dns());
        assert_ne!(dns, other.dns(), "boots may differ by case alone");
        let names = |uris: &[&str], dns: &[&str]| Member::of_names(uris, dns).unwrap_err();
        assert_eq!(names(&[], &[&dns]), NotAMember::Names { found: 0 });
        assert_eq!(
            names(&[&uri, &other.uri()], &[&dns]),
            NotAMember::Names { found: 2 }
        );
        assert_eq!(names(&[&uri], &[&other.dns()]), NotAMember::TwoBoots);
        assert_eq!(names(&[&uri], &[&dns, &other.dns()]), NotAMember::TwoBoots);
        assert_eq!(
            names(&[&uri], &[&dns, "*.boot.ether.internal"]),
            NotAMember::TwoBoots
        );
        assert_eq!(names(&[&uri], &[]), NotAMember::TwoBoots);
        assert_eq!(names(&["ether://home/attic.1"], &[&dns]), NotAMember::Form);
        assert_eq!(names(&["ether://home/a/b/c"], &[&dns]), NotAMember::Form);
        assert!(matches!(
            names(&["ether://home//c"], &[&dns]),
            NotAMember::Part(_)
        ));
    }
}
