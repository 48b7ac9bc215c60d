//! Bounded identities (P21). Each constructor states its alphabet and length; nothing else makes one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not the identity it was offered as.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is empty or longer than the identity allows.
    #[error("{what} must have 1 to {max} characters, not {len}")]
    Length {
        /// Which identity.
        what: &'static str,
        /// How many bytes the text has.
        len: usize,
        /// The largest number of bytes allowed.
        max: usize,
    },
    /// A character lies outside the identity's alphabet.
    #[error("{what} may contain {alphabet}; the character at byte {at} is not one of these")]
    Alphabet {
        /// Which identity.
        what: &'static str,
        /// The alphabet, in words.
        alphabet: &'static str,
        /// The byte offset of the first character that does not belong.
        at: usize,
    },
    /// The text has the right characters in the wrong form.
    #[error("{what} must have the form {form}")]
    Form {
        /// Which identity.
        what: &'static str,
        /// The form, in words.
        form: &'static str,
    },
}

pub(crate) fn check(
    what: &'static str,
    text: &str,
    max: usize,
    alphabet: &'static str,
    allowed: fn(u8) -> bool,
) -> Result<(), InvalidId> {
    if text.is_empty() || text.len() > max {
        return Err(InvalidId::Length {
            what,
            len: text.len(),
            max,
        });
    }
    match text.bytes().position(|b| !allowed(b)) {
        Some(at) => Err(InvalidId::Alphabet { what, alphabet, at }),
        None => Ok(()),
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, max $max:literal, $alphabet:literal, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The largest number of bytes this identity may have.
            pub const MAX_LEN: usize = $max;

            /// Accepts `text` when its length and alphabet fit.
            ///
            /// # Errors
            /// [`InvalidId`] names the identity, the bound and where the text leaves it.
            pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
                let text = text.as_ref();
                check($what, text, $max, $alphabet, $allowed)?;
                Ok(Self(text.into()))
            }

            /// The identity as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.as_ref().to_owned()
            }
        }
    };
}
pub(crate) use text_id;

fn token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

/// 128 random bits as 32 lower-case hexadecimal digits, from the operating system's generator.
///
/// # Errors
/// The operating system's generator is not available.
pub fn random_hex() -> Result<String, getrandom::Error> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

text_id! {
    /// One installation with its own data directory; durable.
    NodeId, "node id", max 64, "letters, digits, '-', '_' and '.'", token
}
text_id! {
    /// One process start of a node: fresh, unguessable and never reused.
    BootId, "boot id", max 64, "letters, digits, '-', '_' and '.'", token
}
text_id! {
    /// One cluster, that is one shared authority.
    ClusterId, "cluster id", max 64, "letters, digits, '-', '_' and '.'", token
}
text_id! {
    /// The caller's idempotency key.
    OperationId, "operation id", max 128, "letters, digits, '-', '_' and '.'", token
}
text_id! {
    /// A named physical budget.
    ScopeName, "scope", max 128, "letters, digits, '-', '_', '.', ':' and '/'",
    |b| token(b) || matches!(b, b':' | b'/')
}
text_id! {
    /// One encoding device of a node (D18): `<node>` or `<node>/<device>`.
    TargetId, "target", max 128, "letters, digits, '-', '_', '.' and '/'", |b| token(b) || b == b'/'
}

impl BootId {
    /// A fresh boot identity.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_hex()?.into()))
    }
}

impl NodeId {
    /// A fresh node identity.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_hex()?.into()))
    }
}

/// The ledger's logical identity of a running playback: a reusable slot of one controller,
/// written `<controller node>/<slot>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId {
    controller: NodeId,
    slot: u32,
}

impl SessionId {
    /// The largest number of bytes a session identity may have as text.
    pub const MAX_LEN: usize = NodeId::MAX_LEN + 1 + 10;

    /// Slot `slot` of `controller`.
    pub fn new(controller: NodeId, slot: u32) -> Self {
        Self { controller, slot }
    }

    /// The node whose slot this is.
    pub fn controller(&self) -> &NodeId {
        &self.controller
    }

    /// The slot's number.
    pub fn slot(&self) -> u32 {
        self.slot
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.controller, self.slot)
    }
}

impl FromStr for SessionId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        const FORM: InvalidId = InvalidId::Form {
            what: "session id",
            form: "<controller node>/<slot 0 to 4294967295>",
        };
        let (controller, slot) = text.rsplit_once('/').ok_or(FORM)?;
        let number: u32 = slot.parse().map_err(|_| FORM)?;
        // One text per identity: "+1" and "01" would otherwise name the slot of "1".
        if number.to_string() != slot {
            return Err(FORM);
        }
        Ok(Self {
            controller: NodeId::new(controller)?,
            slot: number,
        })
    }
}

impl TryFrom<String> for SessionId {
    type Error = InvalidId;
    fn try_from(text: String) -> Result<Self, InvalidId> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> String {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_text_outside_the_alphabet_is_named_with_its_place() {
        let error = NodeId::new("node one").unwrap_err();
        assert!(
            matches!(
                error,
                InvalidId::Alphabet {
                    what: "node id",
                    at: 4,
                    ..
                }
            ),
            "{error}"
        );
        assert!(matches!(
            NodeId::new(""),
            Err(InvalidId::Length { len: 0, max: 64, .. })
        ));
        assert!(matches!(
            NodeId::new("x".repeat(65)),
            Err(InvalidId::Length { len: 65, .. })
        ));
    }

    #[test]
    fn a_session_has_one_spelling() {
        assert!("n/+1".parse::<SessionId>().is_err());
        assert!("n/01".parse::<SessionId>().is_err());
        assert!("n/4294967296".parse::<SessionId>().is_err());
        assert!("n".parse::<SessionId>().is_err());
        assert_eq!("n/7".parse::<SessionId>().unwrap().slot(), 7);
    }

    proptest! {
        #[test]
        fn what_is_accepted_reads_back(text in "\\PC{0,80}") {
            if let Ok(id) = text.parse::<SessionId>() {
                prop_assert_eq!(id.to_string(), text.clone());
            }
            if let Ok(id) = ScopeName::new(&text) {
                prop_assert_eq!(id.as_str(), text.as_str());
            }
        }
    }
}
