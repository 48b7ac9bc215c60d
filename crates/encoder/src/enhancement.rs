//! What a client may say of picture enhancement, which ether does not have: only that it does nothing (T25).

use serde::{Deserialize, Serialize};

/// Most bytes of a backend's name.
pub const MOST_BACKEND: usize = 128;
/// Most bytes of a reason.
pub const MOST_REASON: usize = 1_024;

/// The state of an enhancement as it was told. It is passed on unchanged or refused, never rewritten.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnhancementStatus {
    /// What it does; empty where nothing was said.
    #[serde(default)]
    pub state: String,
    /// Width in pixels of what it makes; zero where it makes nothing.
    #[serde(default)]
    pub width: u32,
    /// Height in pixels of what it makes; zero where it makes nothing.
    #[serde(default)]
    pub height: u32,
    /// Its setting; zero where it makes nothing.
    #[serde(default)]
    pub quality: u32,
    /// The name of what would do it; at most [`MOST_BACKEND`] bytes.
    #[serde(default)]
    pub backend: String,
    /// Why it does nothing; at most [`MOST_REASON`] bytes.
    #[serde(default)]
    pub reason: String,
}

/// Why an enhancement is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInert {
    /// It works, or is in a state that nobody here knows.
    #[error("enhancement is not offered, and its state is not off")]
    Working,
    /// It is off and names what it makes.
    #[error("enhancement is off and has a size or a quality")]
    Acting,
    /// It says more than there is room for.
    #[error("the enhancement's {what} is longer than {most} bytes")]
    TooLong {
        /// `backend` or `reason`.
        what: &'static str,
        /// The most.
        most: usize,
    },
}

impl EnhancementStatus {
    /// Whether the status is one that only shows that nothing is done: nothing said at all, or off.
    ///
    /// # Errors
    /// The first thing that is not inert.
    pub fn inert(&self) -> Result<(), NotInert> {
        if *self == Self::default() {
            return Ok(());
        }
        if self.state != "off" {
            return Err(NotInert::Working);
        }
        if (self.width, self.height, self.quality) != (0, 0, 0) {
            return Err(NotInert::Acting);
        }
        let texts = [
            ("backend", &self.backend, MOST_BACKEND),
            ("reason", &self.reason, MOST_REASON),
        ];
        match texts.into_iter().find(|(_, text, most)| text.len() > *most) {
            Some((what, _, most)) => Err(NotInert::TooLong { what, most }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn off() -> EnhancementStatus {
        EnhancementStatus {
            state: "off".to_owned(),
            backend: "b".repeat(MOST_BACKEND),
            reason: "r".repeat(MOST_REASON),
            ..EnhancementStatus::default()
        }
    }

    #[test]
    fn what_does_nothing_passes_unchanged() {
        assert_eq!(EnhancementStatus::default().inert(), Ok(()));
        assert_eq!(off().inert(), Ok(()));
        let text = serde_json::to_string(&off()).unwrap();
        assert_eq!(serde_json::from_str::<EnhancementStatus>(&text).unwrap(), off());
    }

    #[test]
    fn whatever_works_or_might_is_refused() {
        for state in ["", "on", "Off", "active", "unknown"] {
            let status = EnhancementStatus {
                state: state.to_owned(),
                ..off()
            };
            assert_eq!(status.inert(), Err(NotInert::Working), "{state}");
        }
        for (width, height, quality) in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
            let status = EnhancementStatus {
                width,
                height,
                quality,
                ..off()
            };
            assert_eq!(status.inert(), Err(NotInert::Acting));
        }
        let mut long = off();
        long.backend.push('b');
        assert!(matches!(
            long.inert(),
            Err(NotInert::TooLong { what: "backend", .. })
        ));
        let mut long = off();
        long.reason.push('r');
        assert!(matches!(
            long.inert(),
            Err(NotInert::TooLong { what: "reason", .. })
        ));
        assert!(serde_json::from_str::<EnhancementStatus>(r#"{"state":"off","model":"x"}"#).is_err());
    }
}
