//! Grants: what stands in a media URL instead of a token.
//!
//! A grant lets its holder read the media of one playback and nothing else. It binds the playback, the
//! protocol surface it was made for, what may be read, and the timeline's epoch (D1); it names no session and
//! no generation, so a fail-over keeps it valid. Whether the playback still lives is asked of the playback,
//! not of the grant: stopping one ends its grants at once.
//!
//! The text is base64url without padding, so it needs no escaping in a URL, a playlist or a manifest.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ether_types::{PlaybackId, Timestamp};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

const VERSION: u8 = 1;
const MAC_LEN: usize = 32;
/// Version, key id, surface, scope, epoch, expiry, length of the playback id.
const HEAD_LEN: usize = 1 + 4 + 1 + 1 + 4 + 8 + 1;
/// No grant is longer: the head, the longest playback id and the code, in base64.
const MAX_TEXT: usize = (HEAD_LEN + PlaybackId::MAX_LEN + MAC_LEN).div_ceil(3) * 4;

/// The protocol that a playback was asked for through. A grant of one opens nothing on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Surface {
    /// ether's own API.
    Native,
    /// Plex-style routes.
    Plex,
    /// Jellyfin and Emby aliases.
    Jellyfin,
}

/// What may be read. Reading means GET and HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GrantScope {
    /// Playlists, initialization segments and segments of every representation of the playback.
    Media,
    /// The file itself, which the playback was decided to hand over.
    File,
}

/// What a grant says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Whose media it opens.
    pub playback: PlaybackId,
    /// The surface it was made for.
    pub surface: Surface,
    /// What it opens.
    pub scope: GrantScope,
    /// Which of the playback's timelines.
    pub epoch: u32,
    /// Until when.
    pub expires_at: Timestamp,
}

/// Why a text is not a grant that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// It was not made by any key that is known here, or was changed since.
    #[error("the grant is not genuine")]
    NotGenuine,
    /// Its time is over.
    #[error("the grant has expired")]
    Expired,
}

/// One signing key: 32 secret bytes and the number that grants name it by.
#[derive(Clone)]
pub struct GrantKey {
    id: u32,
    secret: [u8; 32],
}

impl GrantKey {
    /// Key number `id`.
    pub fn new(id: u32, secret: [u8; 32]) -> Self {
        Self { id, secret }
    }
}

impl fmt::Debug for GrantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantKey({})", self.id)
    }
}

/// The key that signs, and those before it that still count. Every node that serves media has the same ones.
#[derive(Clone, Debug)]
pub struct GrantKeys {
    current: GrantKey,
    former: Vec<GrantKey>,
}

impl GrantKeys {
    /// Signs with `current` and accepts `former` too.
    pub fn new(current: GrantKey, former: Vec<GrantKey>) -> Self {
        Self { current, former }
    }

    /// The grant as the text that stands in URLs.
    pub fn sign(&self, grant: &Grant) -> String {
        let id = grant.playback.as_str();
        let mut bytes = Vec::with_capacity(HEAD_LEN + id.len() + MAC_LEN);
        bytes.push(VERSION);
        bytes.extend(self.current.id.to_be_bytes());
        bytes.push(match grant.surface {
            Surface::Native => 0,
            Surface::Plex => 1,
            Surface::Jellyfin => 2,
        });
        bytes.push(match grant.scope {
            GrantScope::Media => 0,
            GrantScope::File => 1,
        });
        bytes.extend(grant.epoch.to_be_bytes());
        bytes.extend(grant.expires_at.as_micros().to_be_bytes());
        // A playback id has at most 128 bytes, kept by its constructor.
        bytes.push(u8::try_from(id.len()).unwrap_or(u8::MAX));
        bytes.extend(id.as_bytes());
        let code = code(&self.current, &bytes);
        bytes.extend(code);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a text that came with a request.
    ///
    /// # Errors
    /// [`GrantError`]; how much of a forged grant was right does not show in the time this takes.
    pub fn verify(&self, text: &str, now: Timestamp) -> Result<Grant, GrantError> {
        let grant = self.read(text).ok_or(GrantError::NotGenuine)?;
        if now >= grant.expires_at {
            return Err(GrantError::Expired);
        }
        Ok(grant)
    }

    fn read(&self, text: &str) -> Option<Grant> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let signed = bytes.len().checked_sub(MAC_LEN).filter(|len| *len > HEAD_LEN)?;
        let (signed, claimed) = bytes.split_at(signed);
        let key_id = u32::from_be_bytes(signed.get(1..5)?.try_into().ok()?);
        let key = std::iter::once(&self.current)
            .chain(&self.former)
            .find(|key| key.id == key_id)?;
        if !bool::from(code(key, signed).as_slice().ct_eq(claimed)) {
            return None;
        }
        // From here on the bytes are our own.
        if signed[0] != VERSION {
            return None;
        }
        let surface = match signed.get(5)? {
            0 => Surface::Native,
            1 => Surface::Plex,
            2 => Surface::Jellyfin,
            _ => return None,
        };
        let scope = match signed.get(6)? {
            0 => GrantScope::Media,
            1 => GrantScope::File,
            _ => return None,
        };
        let epoch = u32::from_be_bytes(signed.get(7..11)?.try_into().ok()?);
        let expires_at = i64::from_be_bytes(signed.get(11..19)?.try_into().ok()?);
        let id = signed.get(HEAD_LEN..)?;
        if id.len() != usize::from(*signed.get(19)?) {
            return None;
        }
        Some(Grant {
            playback: PlaybackId::new(std::str::from_utf8(id).ok()?).ok()?,
            surface,
            scope,
            epoch,
            expires_at: Timestamp::from_micros(expires_at),
        })
    }
}

fn code(key: &GrantKey, bytes: &[u8]) -> [u8; MAC_LEN] {
    #[allow(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.secret).expect("a key of any length is taken");
    // What is signed is a grant and nothing else that the same key might ever sign.
    mac.update(b"ether grant\0");
    mac.update(bytes);
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn keys() -> GrantKeys {
        GrantKeys::new(GrantKey::new(7, [9; 32]), vec![GrantKey::new(6, [8; 32])])
    }

    fn grant() -> Grant {
        Grant {
            playback: PlaybackId::new("0123456789abcdef").unwrap(),
            surface: Surface::Native,
            scope: GrantScope::Media,
            epoch: 3,
            expires_at: Timestamp::from_micros(2_000_000),
        }
    }

    #[test]
    fn a_grant_reads_back_until_it_expires() {
        let text = keys().sign(&grant());
        assert!(
            text.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        );
        assert_eq!(keys().verify(&text, NOW), Ok(grant()));
        let end = grant().expires_at;
        assert_eq!(keys().verify(&text, end), Err(GrantError::Expired));
    }

    #[test]
    fn keys_rotate_by_their_number() {
        let old = GrantKeys::new(GrantKey::new(6, [8; 32]), vec![]).sign(&grant());
        assert_eq!(keys().verify(&old, NOW), Ok(grant()));
        let gone = GrantKeys::new(GrantKey::new(5, [8; 32]), vec![]).sign(&grant());
        assert_eq!(keys().verify(&gone, NOW), Err(GrantError::NotGenuine));
        let other = GrantKeys::new(GrantKey::new(7, [1; 32]), vec![]).sign(&grant());
        assert_eq!(keys().verify(&other, NOW), Err(GrantError::NotGenuine));
    }

    #[test]
    fn the_longest_playback_id_fits() {
        let long = Grant {
            playback: PlaybackId::new("x".repeat(PlaybackId::MAX_LEN)).unwrap(),
            ..grant()
        };
        assert_eq!(keys().verify(&keys().sign(&long), NOW), Ok(long));
    }

    proptest! {
        #[test]
        fn any_change_makes_it_worthless(at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut bytes = URL_SAFE_NO_PAD.decode(keys().sign(&grant())).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            let text = URL_SAFE_NO_PAD.encode(bytes);
            prop_assert_eq!(keys().verify(&text, NOW), Err(GrantError::NotGenuine));
        }

        #[test]
        fn any_text_is_refused_without_a_panic(text in "[A-Za-z0-9_-]{0,400}|\\PC{0,60}") {
            prop_assert_eq!(keys().verify(&text, NOW), Err(GrantError::NotGenuine));
        }
    }
}
