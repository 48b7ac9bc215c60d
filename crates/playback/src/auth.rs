//! Who is asking: the owner, a viewer, or nobody.
//!
//! Tokens come in the `Authorization` header and nowhere else: no cookie, no address, so that no other site
//! can borrow them. They are 256 random bits; only their hashes are kept, and only hashes are compared.
//! A sign-in code stands in for typing a token: it works once, soon, and few times can be guessed at it.

mod codes;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ether_types::Clock;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::ports::{NewViewer, TokenHash, Tokens, TokensUnavailable, ViewerId};
use codes::Codes;

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    /// Whoever holds the owner's token.
    Owner,
    /// A signed-in device.
    Viewer(ViewerId),
}

impl Principal {
    /// Whether this is the owner.
    pub fn is_owner(&self) -> bool {
        *self == Self::Owner
    }
}

/// Why a request has no principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// No token came with it.
    #[error("a token is needed: send `Authorization: Bearer …`")]
    NoToken,
    /// The token that came is nobody's, or nobody's any more.
    #[error(
        "this token is not known: sign in anew, or use the content of owner-token in the server's data directory"
    )]
    UnknownToken,
    /// A media address came without its grant; a token is no substitute.
    #[error("a grant is needed: open the url of the session, whose addresses carry it")]
    NoGrant,
    /// Tokens cannot be checked now.
    #[error(transparent)]
    Unavailable(#[from] TokensUnavailable),
}

/// Why a sign-in failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignInError {
    /// The code is not one that waits to be used.
    #[error(
        "the code is wrong, was used or has expired; restart ether on a terminal for a new one, or sign in with the owner's token"
    )]
    WrongCode,
    /// Too many were tried.
    #[error("too many codes were tried")]
    TooMany {
        /// When the next may be tried.
        retry_after: Duration,
    },
    /// The token could not be kept.
    #[error(transparent)]
    Unavailable(#[from] TokensUnavailable),
    /// The operating system gives no random numbers.
    #[error("the operating system gives no random numbers")]
    NoRandomness,
}

/// The one place that knows tokens.
pub struct Auth {
    owner: TokenHash,
    tokens: Arc<dyn Tokens>,
    codes: Codes,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth")
    }
}

/// A secret that is written out on purpose and in one place only: it has no `Debug` of its own text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, to be handed to whoever it is for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Auth {
    /// Knows the owner by `owner_token`, which is hashed and forgotten, and viewers by `tokens`.
    pub fn new(owner_token: &str, tokens: Arc<dyn Tokens>, clock: Arc<dyn Clock>) -> Self {
        Self {
            owner: hash(owner_token),
            tokens,
            codes: Codes::default(),
            clock,
        }
    }

    /// Who sent `headers`.
    ///
    /// # Errors
    /// [`Unauthorized`].
    pub async fn principal(&self, headers: &HeaderMap) -> Result<Principal, Unauthorized> {
        let token = bearer(headers).ok_or(Unauthorized::NoToken)?;
        let hash = hash(token);
        if bool::from(hash.0.ct_eq(&self.owner.0)) {
            return Ok(Principal::Owner);
        }
        // Stored hashes are looked up by value: what an attacker could learn from the time of a lookup is a
        // hash, and no token follows from one.
        match self.tokens.find(hash).await? {
            Some(viewer) => Ok(Principal::Viewer(viewer)),
            None => Err(Unauthorized::UnknownToken),
        }
    }

    /// A fresh code that signs one device in within the next ten minutes. At most sixteen wait at a time;
    /// the oldest gives way.
    ///
    /// # Errors
    /// [`SignInError::NoRandomness`].
    pub fn issue_code(&self) -> Result<Secret, SignInError> {
        let code = random_text::<16>()?;
        self.codes.add(hash(code.expose()), self.clock.monotonic());
        Ok(code)
    }

    /// Takes `code` for a new viewer's token. `from` is the address that it came from.
    ///
    /// # Errors
    /// [`SignInError`]; a code that was right is used up even when the token could then not be kept.
    pub async fn sign_in(&self, code: &str, from: Option<IpAddr>) -> Result<Secret, SignInError> {
        let now = self.clock.monotonic();
        self.codes
            .attempt(from, now)
            .map_err(|retry_after| SignInError::TooMany { retry_after })?;
        if !self.codes.take(hash(code.trim()), now) {
            return Err(SignInError::WrongCode);
        }
        let token = random_text::<32>()?;
        let id = random_text::<16>()?;
        let viewer = NewViewer {
            id: ViewerId(id.0),
            hash: hash(token.expose()),
            created_at: self.clock.now(),
        };
        self.tokens.insert(viewer).await?;
        Ok(token)
    }

    /// Forgets the token of `viewer`.
    ///
    /// # Errors
    /// [`TokensUnavailable`].
    pub async fn sign_out(&self, viewer: ViewerId) -> Result<(), TokensUnavailable> {
        self.tokens.revoke(viewer).await
    }
}

/// The SHA-256 of a token's text.
pub fn hash(token: &str) -> TokenHash {
    TokenHash(Sha256::digest(token.as_bytes()).into())
}

/// `N` random bytes as text that fits a URL and a header.
///
/// # Errors
/// [`SignInError::NoRandomness`].
pub fn random_text<const N: usize>() -> Result<Secret, SignInError> {
    let mut bytes = [0_u8; N];
    getrandom::fill(&mut bytes).map_err(|_| SignInError::NoRandomness)?;
    Ok(Secret(URL_SAFE_NO_PAD.encode(bytes)))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests;
