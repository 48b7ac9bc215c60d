//! The share of a request that one FFmpeg process at a time makes.
//!
//! All qualities of the picture are one strand, so that one process can make several of them from one decoding.
//! Every sound that comes apart from the picture is a strand of its own: choosing another language starts a
//! second process for sound and never a second one for the picture, and a sound that nobody hears costs nothing.

use std::sync::Arc;

use ether_encoder::{
    AudioAction, AudioTrack, Device, Protocol, Request, SegmentContainer, VideoAction, VideoEncode,
    VideoTrack,
};
use ether_media::{Facts, Gap, Timeline};
use serde::Serialize;

/// One strand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Strand {
    #[serde(skip)]
    pub(crate) facts: Arc<Facts>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) container: SegmentContainer,
    pub(crate) video: Option<VideoTrack>,
    pub(crate) audio: Option<AudioTrack>,
    /// Whether the presentation has a picture, made by this strand or by another: sound has to last as long.
    pub(crate) picture: bool,
    /// The request's numbers of the representations that it makes, in order: one, or one for each rung.
    #[serde(skip)]
    pub(crate) representations: Vec<u32>,
}

impl Strand {
    /// The strands of `request`, the one with the picture first where there is one.
    pub(crate) fn all(request: &Request) -> Vec<Strand> {
        let container = match request.protocol {
            Protocol::Hls { container } => container,
            Protocol::Dash | Protocol::Http { .. } => SegmentContainer::Fmp4,
        };
        let strand = |video: Option<VideoTrack>, audio: Option<AudioTrack>, representations| Strand {
            facts: request.facts.clone(),
            timeline: request.timeline.clone(),
            container,
            picture: request.video.is_some(),
            video,
            audio,
            representations,
        };
        if !request.apart() {
            return vec![strand(
                request.video.clone(),
                request.audio.first().cloned(),
                vec![0],
            )];
        }
        let rungs = request.rungs() as u32;
        let picture = request
            .video
            .iter()
            .map(|video| strand(Some(video.clone()), None, (0..rungs).collect()));
        let sounds = request
            .audio
            .iter()
            .zip(rungs..)
            .map(|(audio, number)| strand(None, Some(audio.clone()), vec![number]));
        picture.chain(sounds).collect()
    }

    /// How the picture is encoded, where it is.
    pub(crate) fn encode(&self) -> Option<&VideoEncode> {
        match &self.video.as_ref()?.action {
            VideoAction::Encode(encode) => Some(encode),
            VideoAction::Copy => None,
        }
    }

    /// What encodes the picture.
    pub(crate) fn device(&self) -> Device {
        self.encode().map(|encode| encode.device).unwrap_or_default()
    }

    /// Whether everything that it makes is the source's own packets.
    pub(crate) fn copies(&self) -> bool {
        let sound = self.audio.as_ref().map(|audio| &audio.action);
        self.encode().is_none() && matches!(sound, None | Some(AudioAction::Copy))
    }

    /// The position among its own of the request's `representation`.
    pub(crate) fn rung_of(&self, representation: u32) -> Option<usize> {
        self.representations
            .iter()
            .position(|number| *number == representation)
    }

    /// Whether the file ends before its own structure says it does.
    pub(crate) fn cut_short(&self) -> bool {
        self.facts
            .gaps
            .iter()
            .any(|gap| matches!(gap, Gap::Truncated { .. }))
    }
}

/// Which of a strand's rungs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RungSet(u8);

impl RungSet {
    /// One rung.
    pub(crate) fn one(rung: usize) -> Self {
        Self(1 << rung)
    }

    /// These and those.
    pub(crate) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn has(self, rung: usize) -> bool {
        rung < 8 && self.0 & (1 << rung) != 0
    }

    pub(crate) fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// From the best down.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> {
        (0..8).filter(move |rung| self.has(*rung))
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}
