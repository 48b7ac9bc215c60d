//! From a decision to everything that one playback needs: the encoder's request, what it is charged, and the
//! text of its playlists.

use std::sync::Arc;

use bytes::Bytes;
use ether_encoder::{
    AudioCodec, AudioEncode, AudioTrack, Capabilities, Device, Input, Protocol, Request, Rung,
    SegmentContainer, Unsupported, VideoCodec, VideoEncode, VideoTrack,
};
use ether_media::decision::{
    self, AudioAction, AudioDecision, CannotPlay, Client, Decision, SegmentKind, VideoAction, VideoDecision,
    Wishes,
};
use ether_media::{MasteringKind, Ticks};

use crate::cost;
use crate::playlist::{self, Packaging, Presentation, Shown};
use crate::ports::{ItemDetail, Units};

/// What a container adds to the bits of its streams: so many parts of a hundred, and so many bits a second
/// for every stream, however thin it is (headers of samples, whole packets of 188 bytes).
const OVERHEAD_FMP4: (u64, u64) = (3, 16_000);
const OVERHEAD_TS: (u64, u64) = (10, 80_000);

/// What is done for one playback, fixed when it is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How the file reaches the viewer, and why.
    pub decision: Decision,
    /// Where the viewer begins.
    pub start: Ticks,
    /// What has to be made; absent when the file itself is handed over.
    pub making: Option<Making>,
}

/// What an encoder is asked for.
#[derive(Clone, Debug)]
pub struct Making {
    /// The request.
    pub request: Arc<Request>,
    /// Where the bytes are.
    pub input: Input,
    /// What it is charged.
    pub units: Units,
    /// The segment that the viewer begins with.
    pub first: u32,
}

/// The playlists of a playback, as they are sent.
#[derive(Clone, Debug)]
pub struct Playlists {
    /// The multivariant playlist.
    pub multivariant: Bytes,
    /// The media playlist of the one representation.
    pub media: Bytes,
}

/// Why nothing can be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Nothing can be played, for anybody.
    #[error(transparent)]
    CannotPlay(#[from] CannotPlay),
    /// The viewer is to begin at or after the end.
    #[error("the session is to begin at {start} s and the presentation ends at {end} s")]
    StartPastEnd {
        /// Where it is to begin.
        start: Ticks,
        /// Where the presentation ends.
        end: Ticks,
    },
    /// The picture is HDR, the player is not, and no encoder here maps one to the other.
    #[error(
        "the picture is HDR and this player cannot show it as it is; this server cannot convert HDR pictures yet"
    )]
    ToneMappingMissing,
    /// The encoder cannot do it.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl Plan {
    /// Plans a playback of `item` for `client`, to begin at `start`.
    ///
    /// # Errors
    /// [`PlanError`] without the encoder's own word on it, which is [`ether_encoder::Encoder::supports`].
    pub fn new(
        item: &ItemDetail,
        client: &Client,
        wishes: &Wishes,
        start: Ticks,
        capabilities: Capabilities,
    ) -> Result<Self, PlanError> {
        let decision = decision::decide(&item.facts, client, wishes)?;
        let end = decision.timeline.end();
        if start >= end {
            return Err(PlanError::StartPastEnd { start, end });
        }
        let making = match decision.segments {
            None => None,
            Some(segments) => Some(making(item, &decision, segments, start, capabilities)?),
        };
        Ok(Self {
            decision,
            start,
            making,
        })
    }

    /// How many segments there are; none when the file itself is handed over.
    pub fn segments(&self) -> usize {
        self.decision.segments.map_or(0, |_| self.decision.timeline.len())
    }

    /// The text of its playlists, whose child addresses carry `grant`; none when the file itself is handed
    /// over.
    pub fn playlists(&self, grant: &str) -> Option<Playlists> {
        let container = packaging(self.decision.segments?);
        let (video, audio) = (self.decision.video.as_ref(), self.decision.audio.as_ref());
        let (percent, each) = match container {
            Packaging::Fmp4 => OVERHEAD_FMP4,
            Packaging::MpegTs => OVERHEAD_TS,
        };
        let streams = u64::from(video.is_some()) + u64::from(audio.is_some());
        let total = |of_video: fn(&VideoDecision) -> u64, of_audio: fn(&AudioDecision) -> u64| {
            let bits = video
                .map_or(0, of_video)
                .saturating_add(audio.map_or(0, of_audio));
            bits.saturating_add(bits / 100 * percent)
                .saturating_add(each * streams)
        };
        let codecs = [
            video.and_then(|v| v.codec_string.clone()),
            audio.and_then(|a| a.codec_string.clone()),
        ];
        let presentation = Presentation {
            timeline: &self.decision.timeline,
            container,
            // Encoded pictures begin every segment with an IDR picture and look back at none; of copied ones
            // the index says where keyframes are and not whether pictures after them look back (T15).
            independent: video.is_none_or(|v| matches!(v.action, VideoAction::Encode(_))),
            codecs: codecs.into_iter().flatten().collect(),
            peak: total(|v| v.rate.peak, |a| a.rate.peak),
            average: total(|v| v.rate.average, |a| a.rate.average),
            picture: video.map(|v| Shown {
                width: v.shown.0,
                height: v.shown.1,
                frame_rate: v.frame_rate,
                range: v.range,
            }),
            start: Some(self.start),
            grant,
        };
        Some(Playlists {
            multivariant: playlist::multivariant(&presentation).into(),
            media: playlist::media(&presentation).into(),
        })
    }

    /// The container of segments; absent when the file itself is handed over.
    pub fn packaging(&self) -> Option<Packaging> {
        self.decision.segments.map(packaging)
    }
}

fn packaging(segments: SegmentKind) -> Packaging {
    match segments {
        SegmentKind::Fmp4 => Packaging::Fmp4,
        SegmentKind::MpegTs => Packaging::MpegTs,
    }
}

fn making(
    item: &ItemDetail,
    decision: &Decision,
    segments: SegmentKind,
    start: Ticks,
    capabilities: Capabilities,
) -> Result<Making, PlanError> {
    let container = match segments {
        SegmentKind::Fmp4 => SegmentContainer::Fmp4,
        SegmentKind::MpegTs => SegmentContainer::MpegTs,
    };
    let request = Request {
        facts: Arc::clone(&item.facts),
        protocol: Protocol::Hls { container },
        timeline: Arc::new(decision.timeline.clone()),
        video: decision.video.as_ref().map(video_track).transpose()?,
        audio: Vec::from_iter(decision.audio.as_ref().map(audio_track)),
        subtitle: None,
    };
    ether_encoder::supports_request(&request, capabilities)?;
    let input = Input::File {
        path: item.path.clone(),
        revision: item.revision,
    };
    Ok(Making {
        units: cost::units(&item.facts, decision),
        first: u32::try_from(decision.timeline.segment_at(start)).unwrap_or(0),
        request: Arc::new(request),
        input,
    })
}

fn video_track(video: &VideoDecision) -> Result<VideoTrack, PlanError> {
    let action = match &video.action {
        VideoAction::Copy => ether_encoder::VideoAction::Copy,
        // A request has no words for it, so it is refused here rather than shown in wrong colours.
        VideoAction::Encode(target) if target.tone_map => return Err(PlanError::ToneMappingMissing),
        VideoAction::Encode(target) => ether_encoder::VideoAction::Encode(VideoEncode {
            codec: VideoCodec::H264,
            device: Device::Software,
            rungs: vec![Rung {
                width: target.width,
                height: target.height,
                max_bit_rate: target.max_bit_rate,
                level: target.level,
            }],
            frame_rate: video.frame_rate.map(Into::into),
            deinterlace: target.deinterlace,
            range: MasteringKind::Sdr,
            burn: None,
        }),
    };
    Ok(VideoTrack {
        stream: video.stream,
        action,
    })
}

fn audio_track(audio: &AudioDecision) -> AudioTrack {
    let action = match &audio.action {
        AudioAction::Copy => ether_encoder::AudioAction::Copy,
        AudioAction::Encode(target) => ether_encoder::AudioAction::Encode(AudioEncode {
            codec: AudioCodec::Aac,
            channels: target.channels,
            sample_rate: target.sample_rate,
            bit_rate: target.bit_rate,
        }),
    };
    AudioTrack {
        stream: audio.stream,
        action,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ether_media::decision::Force;
    use ether_media::{Cut, VideoFacts};

    use super::*;
    use crate::testing::{MemoryLibrary, facts, film_picture};

    fn planned(picture: VideoFacts, wishes: &Wishes) -> Plan {
        let library = MemoryLibrary::default();
        let id = library.add("film", PathBuf::from("/films/film.mp4"), facts(picture, 60));
        let item = library.items.lock().unwrap()[&id].clone();
        let capabilities = Capabilities {
            keyframes: true,
            ..Capabilities::default()
        };
        Plan::new(&item, &Client::default(), wishes, Ticks::ZERO, capabilities).unwrap()
    }

    fn text(plan: &Plan) -> String {
        String::from_utf8(plan.playlists("g").unwrap().multivariant.to_vec()).unwrap()
    }

    fn number(text: &str, name: &str) -> u64 {
        let rest = text.split(name).nth(1).unwrap();
        rest.chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>()
            .parse()
            .unwrap()
    }

    #[test]
    fn what_the_playlist_announces_is_what_the_encoder_is_told_to_give() {
        let encode = Wishes {
            video: Force::Encode,
            ..Wishes::default()
        };
        let plan = planned(film_picture(1920, 1080), &encode);
        let making = plan.making.as_ref().unwrap();
        let Some(VideoTrack {
            action: ether_encoder::VideoAction::Encode(video),
            ..
        }) = &making.request.video
        else {
            panic!("copied")
        };
        let text = text(&plan);
        let rung = &video.rungs[0];
        assert!(
            text.contains(&format!("CODECS=\"avc1.6400{:02x},", rung.level)),
            "{text}"
        );
        assert!(text.contains(&format!("RESOLUTION={}x{}", rung.width, rung.height)));
        assert!(
            number(&text, ":BANDWIDTH=") > rung.max_bit_rate,
            "the container adds to it"
        );
        assert!(matches!(making.request.timeline.cut(), Cut::Grid { .. }));
        assert_eq!(making.request.timeline.len(), plan.segments());
    }

    /// A copied picture may look back over a keyframe; a player that was told otherwise would show garbage.
    #[test]
    fn only_encoded_pictures_are_announced_to_begin_every_segment_anew() {
        let encode = Wishes {
            video: Force::Encode,
            ..Wishes::default()
        };
        let tag = "EXT-X-INDEPENDENT-SEGMENTS";
        assert!(text(&planned(film_picture(640, 360), &encode)).contains(tag));
        assert!(!text(&planned(film_picture(640, 360), &Wishes::default())).contains(tag));
    }

    #[test]
    fn thin_streams_are_announced_with_what_their_container_adds() {
        let transport = Wishes {
            segments: SegmentKind::MpegTs,
            ..Wishes::default()
        };
        let mut thin = film_picture(640, 360);
        thin.level = Some(30);
        // A megabyte a minute is 133 kbit/s; a packet of 188 bytes for each picture and frame of sound is as
        // much again.
        let announced = number(&text(&planned(thin, &transport)), ":BANDWIDTH=");
        assert!(announced > 133_000 + 150_000, "{announced}");
    }
}
