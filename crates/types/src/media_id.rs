//! Identities that appear in public URLs: opaque, random, and safe in a path segment.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::{InvalidId, check, random_hex, text_id};

fn url_safe(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')
}

text_id! {
    /// One film or song of the library. Random, so that it tells nothing about its path.
    ItemId, "item id", max 64, "letters, digits, '-' and '_'", url_safe
}
text_id! {
    /// What one viewer watches (D16); the only identity of a playback in public URLs (D1).
    PlaybackId, "session id", max 128, "letters, digits, '-' and '_'", url_safe
}

impl ItemId {
    /// A fresh identity of 128 random bits.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_hex()?.into()))
    }
}

impl PlaybackId {
    /// A fresh identity of 128 random bits.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_hex()?.into()))
    }
}
