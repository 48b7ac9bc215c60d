//! What may be asked of an encoder on another machine (T14): one pure predicate, before anything is reserved.
//!
//! Most of what must not cross has no field to be written into. A [`Request`] holds no address, header, lease,
//! filter expression or file beside the film (T4, D11): sound is one of a closed list of actions, and every stream is
//! an index into the facts of one complete source. A live source or a slate cannot be written either, for a timeline
//! has an end. Enhancement has a status of its own ([`EnhancementStatus::inert`](crate::EnhancementStatus::inert)).
//! What is left to look at is here.

use ether_media::{StreamKind, Ticks};

use crate::capabilities::{Capabilities, Offer, Unsupported, supports_request};
use crate::request::Request;

/// Most points of a keyframe index that can travel to another machine (T24).
pub const MOST_POINTS: usize = 8_192;

/// Whether `request` may be put to an encoder on another machine that has `capabilities`. Pure.
///
/// Facts that carry a keyframe index are refused by an encoder that takes none, whatever happens to the picture:
/// an index travels whole or not at all, so whoever has the picture encoded there leaves it out of the facts.
///
/// # Errors
/// [`Unsupported`] with the first thing that stands in the way.
pub fn admits_remote(request: &Request, capabilities: Capabilities) -> Result<(), Unsupported> {
    // Pictures are drawn in where the fonts and the other files of the film are.
    if request.drawn().is_some() {
        let what = Offer::BurnedSubtitles;
        return Err(Unsupported::LocalOnly { what });
    }
    supports_request(request, capabilities)?;
    if let Some(stream) = request.subtitle {
        let kind = request.facts.stream(stream).map(|stream| &stream.kind);
        if !matches!(kind, Some(StreamKind::Subtitle(subtitle)) if subtitle.text) {
            return Err(Unsupported::NotText { stream });
        }
    }
    if let Some(index) = &request.facts.keyframes {
        if !capabilities.keyframes {
            return Err(Unsupported::Keyframes);
        }
        let times = &index.times;
        let negative = times.first().is_some_and(|first| *first < Ticks::ZERO);
        if times.len() > MOST_POINTS || negative || !times.is_sorted() {
            return Err(Unsupported::IndexNotCarried {
                stream: index.stream,
                points: times.len(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
