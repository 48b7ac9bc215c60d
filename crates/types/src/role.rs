//! The roles a node can take.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::InvalidId;

/// What a node does for the cluster; see C3 for the sets that a node may combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// API, pages and broker.
    Server,
    /// Files, probing and grants.
    Source,
    /// Representations to viewers.
    Delivery,
    /// Encoders.
    Transcode,
    /// Library scan, and membership to ledger targets.
    Control,
}

impl Role {
    /// Every role, in a fixed order.
    pub const ALL: [Role; 5] = [
        Role::Server,
        Role::Source,
        Role::Delivery,
        Role::Transcode,
        Role::Control,
    ];

    /// The role's one spelling in documents, wire and database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Server => "server",
            Role::Source => "source",
            Role::Delivery => "delivery",
            Role::Transcode => "transcode",
            Role::Control => "control",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or(InvalidId::Form {
                what: "role",
                form: "server, source, delivery, transcode or control",
            })
    }
}
