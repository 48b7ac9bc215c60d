//! A cluster's certificate authority for tests, and the boots that it certifies.

#![allow(
    clippy::expect_used,
    reason = "a fixture that cannot be set up fails its test, here and now"
)]

use std::sync::Arc;

use ether_tls::{Authority, Credentials, Issue as _, Lifetime, Member, Published};
use ether_types::{BootId, Clock, ClusterId, NodeId};

/// One cluster, by one clock.
pub struct House {
    /// What every certificate's time is measured by.
    pub clock: Arc<dyn Clock>,
    authority: Authority,
}

impl House {
    /// A cluster that is founded now.
    ///
    /// # Panics
    /// The cryptography failed.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (certificate, key) = Authority::generate("ether test", clock.now()).expect("an authority");
        let authority = Authority::from_der(certificate, &key, Lifetime::DEFAULT).expect("its own key");
        Self { clock, authority }
    }

    /// What `member` shows, and whom it trusts.
    ///
    /// # Panics
    /// The authority is over by the house's clock.
    pub fn published(&self, member: &Member) -> Published {
        self.published_by(member, &self.clock)
    }

    /// The same for a member whose clock is another one.
    ///
    /// # Panics
    /// The certificate is not valid by that clock.
    pub fn published_by(&self, member: &Member, clock: &Arc<dyn Clock>) -> Published {
        let issued = self
            .authority
            .issue(member, None, self.clock.now())
            .expect("an authority that is valid");
        let roots = self.authority.roots();
        let credentials =
            Credentials::validate(member.clone(), issued, &roots, clock).expect("a fresh certificate");
        Published::new(credentials, Arc::clone(clock))
    }
}

/// A boot of a node of the cluster `home`.
///
/// # Panics
/// The names are no identities.
pub fn member(node: &str, boot: &str) -> Member {
    Member {
        cluster: ClusterId::new("home").expect("an identity"),
        node: NodeId::new(node).expect("an identity"),
        boot: BootId::new(boot).expect("an identity"),
    }
}
