//! What is made for a playback, on which device, and what it fell back from.
//!
//! A device that does not work is left for another. Two devices never describe their pictures to a decoder in
//! the same bytes, so once a player has one's initialization segment the other's pictures repeat their own at
//! every keyframe, and whoever reads the playlists from then on is told of a new epoch (D2).

use std::collections::BTreeMap;

use ether_encoder::{Choice, Device, Encoder, Refusal};
use ether_types::Timestamp;
use serde::Serialize;

use crate::plan::Making;
use crate::works::Identity;

/// Devices that are remembered to have been left, newest last.
const REMEMBERED: usize = 8;

/// What is made, and on what.
pub(crate) struct Encoding {
    pub(crate) making: Making,
    /// What is made from what, where others may share it.
    pub(crate) identity: Option<Identity>,
    /// MiB of scratch that the server has for everything.
    most_scratch: u32,
    choice: Choice,
    fallbacks: Vec<Fallback>,
    /// The entity tags of the initialization segments of pictures that players have, by their representation.
    given: BTreeMap<u32, String>,
}

/// What leaving a device means for players.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Nothing: none has a description of its pictures, or it was left before.
    Unseen,
    /// They have the description of a device that is used no longer: a new epoch begins.
    Described,
}

/// One device that was left for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Fallback {
    /// When.
    pub at: Timestamp,
    /// What was left.
    pub from: String,
    /// Why: a short word for programs.
    pub code: &'static str,
    /// The reason, for people.
    pub message: String,
}

/// What encodes a playback's picture, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EncodingView {
    /// The device, for programs.
    #[serde(flatten)]
    pub device: Device,
    /// The device, for people.
    pub name: String,
    /// What spoke for it and against the others, the deciding reason last.
    pub reasons: Vec<String>,
    /// Devices that were left, newest last.
    pub fallbacks: Vec<Fallback>,
}

impl Encoding {
    /// Lets `encoder` choose what encodes `making`, on a server that has `most_scratch` MiB of scratch.
    pub(crate) fn new(making: Making, most_scratch: u32, encoder: &dyn Encoder) -> Self {
        let mut encoding = Self {
            identity: None,
            most_scratch,
            choice: Choice::default(),
            fallbacks: Vec::new(),
            given: BTreeMap::new(),
            making,
        };
        encoding.choose(encoder);
        encoding
    }

    fn choose(&mut self, encoder: &dyn Encoder) {
        self.choice = encoder.choose(&self.making.request);
        if self.choice.device != self.making.request.device() {
            self.making.request = self.making.request.on(self.choice.device).into();
        }
        self.making.units = self.making.costs.units(self.choice.share);
        self.identity = Identity::of(&self.making);
    }

    /// Books four times the scratch for what is begun next; false where the server has no more than was booked.
    pub(crate) fn book_more(&mut self) -> bool {
        let booked = self.making.units.scratch_mib;
        let more = booked.saturating_mul(4).min(self.most_scratch);
        self.making.units.scratch_mib = more.max(booked);
        more > booked
    }

    /// A player got the initialization segment of `representation` with this entity tag.
    pub(crate) fn gave_description(&mut self, representation: u32, etag: &str) {
        if self.describes_pictures(representation) {
            self.given
                .entry(representation)
                .or_insert_with(|| etag.to_owned());
        }
    }

    /// Whether the initialization segment of `representation` is about pictures.
    fn describes_pictures(&self, representation: u32) -> bool {
        let all = self.making.request.representations();
        let index = usize::try_from(representation).unwrap_or(usize::MAX);
        all.get(index).is_some_and(|held| held.video.is_some())
    }

    /// Takes in that pictures of `representation` come with the initialization segment `etag`. Where players have
    /// another, they are to describe themselves from now on; true if they did not yet.
    pub(crate) fn describe(&mut self, representation: u32, etag: &str) -> bool {
        if self.given.get(&representation).is_none_or(|given| given == etag) {
            return false;
        }
        self.describe_themselves()
    }

    /// Lets pictures describe themselves; false where they do, or are copied and cannot.
    fn describe_themselves(&mut self) -> bool {
        let request = self.making.request.self_describing();
        let new = request != *self.making.request;
        if new {
            self.making.request = request.into();
            self.identity = Identity::of(&self.making);
        }
        new
    }

    /// Leaves the device `failed`, which answered `refusal`, for another; none where there is no other.
    pub(crate) fn fall_back(
        &mut self,
        encoder: &dyn Encoder,
        failed: Device,
        refusal: &Refusal,
        at: Timestamp,
    ) -> Option<Left> {
        // Another request of the same player may have been told before.
        if self.choice.device != failed {
            return Some(Left::Unseen);
        }
        self.choose(encoder);
        if self.choice.device == failed {
            return None;
        }
        let described = !self.given.is_empty();
        if described {
            self.describe_themselves();
        }
        if self.fallbacks.len() >= REMEMBERED {
            self.fallbacks.remove(0);
        }
        self.fallbacks.push(Fallback {
            at,
            from: failed.to_string(),
            code: super::encoder_code(refusal),
            message: refusal.to_string(),
        });
        Some(if described { Left::Described } else { Left::Unseen })
    }

    pub(crate) fn view(&self) -> EncodingView {
        EncodingView {
            device: self.choice.device,
            name: self.choice.device.to_string(),
            reasons: self.choice.reasons.iter().map(ToString::to_string).collect(),
            fallbacks: self.fallbacks.clone(),
        }
    }
}
