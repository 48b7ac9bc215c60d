//! From a decision to everything that one playback needs: the encoder's request, what it is charged, and the
//! text of its playlists.

use std::sync::Arc;

use bytes::Bytes;
use ether_encoder::{
    AudioCodec, AudioEncode, AudioTrack, Capabilities, Device, Input, Protocol, Representation, Request,
    Rung, SegmentContainer, Share, Unsupported, VideoCodec, VideoEncode, VideoTrack,
};
use ether_media::decision::{
    self, AudioAction, AudioDecision, CannotPlay, Client, Decision, SegmentKind, VideoAction, VideoDecision,
    VideoTarget, Wishes,
};
use ether_media::{Codec, SoundGrid, Stream, StreamKind, Ticks};

use crate::cost::Costs;
use crate::ports::{ItemDetail, Units};
use crate::presentation::{Heard, Packaging, Presentation, Shown, Text};
use crate::{language, mpd, playlist, texts};

/// What is done for one playback, fixed when it is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How the file reaches the viewer, and why.
    pub decision: Decision,
    /// Where the viewer begins.
    pub start: Ticks,
    /// Text tracks that are offered beside it.
    pub texts: Vec<Text>,
    /// What has to be made; absent when the file itself is handed over.
    pub making: Option<Making>,
}

/// The subtitle track that is to be shown, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubtitleWish {
    /// The track, as the item lists it.
    pub stream: u32,
    /// Whether it is drawn into the picture; absent: one of pictures is, and one of text is offered beside it.
    pub drawn: Option<bool>,
}

/// What an encoder is asked for.
#[derive(Clone, Debug)]
pub struct Making {
    /// The request.
    pub request: Arc<Request>,
    /// Where the bytes are.
    pub input: Input,
    /// What it costs.
    pub costs: Costs,
    /// What of that is charged to whom, as long as the same device makes it.
    pub units: Units,
    /// The segment that the viewer begins with.
    pub first: u32,
}

/// What a player is told of a playback's segments, as it is sent.
#[derive(Clone, Debug)]
pub enum Playlists {
    /// HLS.
    Hls {
        /// The multivariant playlist.
        multivariant: Bytes,
        /// The media playlist of every representation: all have the same bounds and names.
        media: Bytes,
    },
    /// DASH.
    Dash {
        /// The manifest.
        manifest: Bytes,
    },
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
    /// A track of pictures is to be shown and not to be drawn: nothing but the picture can show it.
    #[error("subtitle stream {stream} has pictures and no text: nothing but the picture itself can show it")]
    OnlyDrawn {
        /// The track.
        stream: u32,
    },
    /// A file beside the film is to be drawn in: drawing reads the film alone.
    #[error(
        "subtitle {stream} is a file beside the film, and only tracks of the film itself can be drawn in"
    )]
    NeverDrawn {
        /// The track.
        stream: u32,
    },
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
        Self::with_subtitle(item, client, wishes, start, None, capabilities)
    }

    /// The same with the subtitle track that is to be shown, beside the picture as the one that is chosen, or drawn
    /// into it.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn with_subtitle(
        item: &ItemDetail,
        client: &Client,
        wishes: &Wishes,
        start: Ticks,
        subtitle: Option<SubtitleWish>,
        capabilities: Capabilities,
    ) -> Result<Self, PlanError> {
        let burn = subtitle.map(|wish| drawn(item, wish)).transpose()?.flatten();
        // What is drawn in is not to be shown a second time.
        let beside = subtitle.map(|wish| wish.stream).filter(|_| burn.is_none());
        let texts = texts::of(item, beside);
        let wishes = &match burn {
            Some(_) => Wishes {
                drawn: true,
                ..*wishes
            },
            None => *wishes,
        };
        let decision = decision::decide(&item.facts, client, wishes)?;
        let end = decision.timeline.end();
        if start >= end {
            return Err(PlanError::StartPastEnd { start, end });
        }
        let making = match decision.protocol {
            None => None,
            Some(protocol) => Some(making(item, &decision, protocol, start, burn, capabilities)?),
        };
        Ok(Self {
            decision,
            start,
            texts,
            making,
        })
    }

    /// How many segments there are; none when the file itself is handed over.
    pub fn segments(&self) -> usize {
        self.decision.segments.map_or(0, |_| self.decision.timeline.len())
    }

    /// What each representation holds, by its number; none when there are no segments.
    pub fn representations(&self) -> Vec<Representation> {
        let making = self.making.as_ref().filter(|_| self.decision.segments.is_some());
        making.map_or_else(Vec::new, |making| making.request.representations())
    }

    /// The text that tells a player of `session`, whose child addresses carry `grant`; none when there are no
    /// segments.
    pub fn playlists(&self, session: &str, grant: &str) -> Option<Playlists> {
        let request = &self.making.as_ref()?.request;
        let decision = &self.decision;
        let presentation = Presentation {
            timeline: &decision.timeline,
            container: packaging(decision.segments?),
            // Encoded pictures begin every segment with an IDR picture and look back at none; of copied ones
            // the index says where keyframes are and not whether pictures after them look back (T15).
            independent: decision
                .video
                .as_ref()
                .is_none_or(|v| matches!(v.action, VideoAction::Encode(_))),
            apart: request.apart(),
            pictures: pictures(decision),
            sounds: sounds(request, decision),
            texts: self.texts.clone(),
            start: Some(self.start),
            session,
            grant,
        };
        Some(match decision.protocol? {
            decision::Protocol::Dash => Playlists::Dash {
                manifest: mpd::manifest(&presentation).into(),
            },
            _ => Playlists::Hls {
                multivariant: playlist::multivariant(&presentation).into(),
                media: playlist::media(&presentation).into(),
            },
        })
    }

    /// The container of segments; absent when there are none.
    pub fn packaging(&self) -> Option<Packaging> {
        self.decision.segments.map(packaging)
    }
}

/// The stream that is drawn into the picture for `wish`, where one is.
fn drawn(item: &ItemDetail, wish: SubtitleWish) -> Result<Option<u32>, PlanError> {
    let SubtitleWish { stream, drawn } = wish;
    if item.sidecars.iter().any(|sidecar| sidecar.stream == stream) {
        return match drawn {
            Some(true) => Err(PlanError::NeverDrawn { stream }),
            _ => Ok(None),
        };
    }
    match item.facts.stream(stream).map(|stream| &stream.kind) {
        Some(StreamKind::Subtitle(subtitle)) => match drawn.unwrap_or(!subtitle.text) {
            true => Ok(Some(stream)),
            false if subtitle.text => Ok(None),
            false => Err(PlanError::OnlyDrawn { stream }),
        },
        _ => Err(PlanError::CannotPlay(CannotPlay::NoSuchStream {
            kind: "subtitle",
            stream,
        })),
    }
}

/// Every quality of the picture, as players are told of it.
fn pictures(decision: &Decision) -> Vec<Shown> {
    let Some(video) = &decision.video else {
        return Vec::new();
    };
    let best = Shown {
        codec: video.codec_string.clone().unwrap_or_default(),
        width: video.shown.0,
        height: video.shown.1,
        frame_rate: video.frame_rate,
        range: video.range,
        rate: video.rate,
    };
    let lower: Vec<Shown> = decision
        .lower
        .iter()
        .map(|quality| Shown {
            codec: quality.codec_string.clone(),
            width: quality.target.width,
            height: quality.target.height,
            rate: quality.rate,
            ..best.clone()
        })
        .collect();
    std::iter::once(best).chain(lower).collect()
}

/// Every sound that is offered, as players are told of it, each with a name of its own.
fn sounds(request: &Request, decision: &Decision) -> Vec<Heard> {
    let facts = &request.facts;
    let representations = request.representations();
    // What is made is in the file's order, and what is offered begins with what is played first.
    let number = |stream: u32| {
        let made = request.audio.iter().position(|track| track.stream == stream);
        let holds = |held: &Representation| held.audio.is_some() && held.audio == made;
        representations.iter().position(holds).unwrap_or(0)
    };
    let mut names = Names::default();
    let heard = |(n, audio): (usize, &AudioDecision)| {
        let stream = facts.stream(audio.stream);
        let source_rate = stream.and_then(|s| s.audio()).and_then(|a| a.sample_rate);
        let (sample_rate, grid) = match &audio.action {
            AudioAction::Copy => (source_rate, stream.and_then(SoundGrid::of)),
            AudioAction::Encode(target) => {
                let grid = match audio.codec {
                    Codec::Opus => SoundGrid::encoded_opus(&decision.timeline),
                    _ => SoundGrid::encoded_aac(target.sample_rate),
                };
                (Some(target.sample_rate), Some(grid))
            }
        };
        let language = stream.and_then(|s| s.language.as_deref()).and_then(language::tag);
        Heard {
            representation: number(audio.stream),
            codec: audio.codec_string.clone().unwrap_or_default(),
            name: names.name(stream, language.as_deref(), || format!("Sound {}", n + 1)),
            language,
            channels: audio.channels,
            rate: audio.rate,
            sample_rate,
            grid,
        }
    };
    decision.sounds().enumerate().map(heard).collect()
}

/// The longest name that a file can give a track.
const LONGEST_NAME: usize = 80;

/// Names of tracks: players tell tracks of one group apart by them.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    /// The name of the next track: its title, else its language, else what `otherwise` says; numbered where
    /// another has it already.
    pub(crate) fn name(
        &mut self,
        stream: Option<&Stream>,
        language: Option<&str>,
        otherwise: impl FnOnce() -> String,
    ) -> String {
        let title = stream.and_then(|s| s.title.as_deref()).map(str::trim);
        let title = title.filter(|title| !title.is_empty()).or(language);
        let base = title.map_or_else(otherwise, |title| title.chars().take(LONGEST_NAME).collect());
        let mut name = base.clone();
        let mut number = 2;
        while self.0.contains(&name) {
            name = format!("{base} ({number})");
            number += 1;
        }
        self.0.push(name.clone());
        name
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
    protocol: decision::Protocol,
    start: Ticks,
    burn: Option<u32>,
    capabilities: Capabilities,
) -> Result<Making, PlanError> {
    let protocol = match (protocol, decision.segments) {
        (decision::Protocol::Http, _) => Protocol::Http { start },
        (decision::Protocol::Dash, _) => Protocol::Dash,
        (decision::Protocol::Hls, Some(SegmentKind::MpegTs)) => Protocol::Hls {
            container: SegmentContainer::MpegTs,
        },
        (decision::Protocol::Hls, _) => Protocol::Hls {
            container: SegmentContainer::Fmp4,
        },
    };
    let video = decision.video.as_ref();
    let request = Request {
        facts: Arc::clone(&item.facts),
        protocol,
        timeline: Arc::new(decision.timeline.clone()),
        video: video.map(|video| video_track(decision, video, device(capabilities), burn)),
        audio: decision.made_sounds().into_iter().map(audio_track).collect(),
        subtitle: None,
    };
    ether_encoder::supports_request(&request, capabilities)?;
    let input = Input::File {
        path: item.path.clone(),
        revision: item.revision,
    };
    let costs = Costs::of(&item.facts, decision);
    Ok(Making {
        units: costs.units(Share::Nothing),
        costs,
        first: u32::try_from(decision.timeline.segment_at(start)).unwrap_or(0),
        request: Arc::new(request),
        input,
    })
}

/// What encodes pictures.
fn device(_: Capabilities) -> Device {
    Device::Software
}

fn video_track(decision: &Decision, video: &VideoDecision, device: Device, burn: Option<u32>) -> VideoTrack {
    let rung = |target: &VideoTarget| Rung {
        width: target.width,
        height: target.height,
        max_bit_rate: target.max_bit_rate,
        level: target.level,
    };
    let action = match &video.action {
        VideoAction::Copy => ether_encoder::VideoAction::Copy,
        VideoAction::Encode(target) => {
            let lower = decision.lower.iter().map(|quality| &quality.target);
            ether_encoder::VideoAction::Encode(VideoEncode {
                codec: match video.codec {
                    Codec::Hevc => VideoCodec::Hevc,
                    _ => VideoCodec::H264,
                },
                device,
                rungs: std::iter::once(target).chain(lower).map(rung).collect(),
                frame_rate: video.frame_rate.map(Into::into),
                deinterlace: target.deinterlace,
                range: video.range,
                burn,
                self_describing: false,
            })
        }
    };
    VideoTrack {
        stream: video.stream,
        action,
    }
}

fn audio_track(audio: &AudioDecision) -> AudioTrack {
    let action = match &audio.action {
        AudioAction::Copy => ether_encoder::AudioAction::Copy,
        AudioAction::Encode(target) => ether_encoder::AudioAction::Encode(AudioEncode {
            codec: match audio.codec {
                Codec::Opus => AudioCodec::Opus,
                _ => AudioCodec::Aac,
            },
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
            abr: true,
            dash: true,
            ..Capabilities::default()
        };
        Plan::new(&item, &Client::default(), wishes, Ticks::ZERO, capabilities).unwrap()
    }

    fn text(plan: &Plan) -> String {
        match plan.playlists("s", "g").unwrap() {
            Playlists::Hls { multivariant, .. } => String::from_utf8(multivariant.to_vec()).unwrap(),
            Playlists::Dash { manifest } => String::from_utf8(manifest.to_vec()).unwrap(),
        }
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
    fn a_ladder_is_asked_for_as_it_is_announced() {
        let ladder = Wishes {
            video: Force::Encode,
            ladder: true,
            ..Wishes::default()
        };
        let plan = planned(film_picture(1920, 1080), &ladder);
        assert_eq!(plan.representations().len(), 5 + 1, "five qualities and a sound");
        let text = text(&plan);
        let making = plan.making.as_ref().unwrap();
        let Some(ether_encoder::VideoAction::Encode(video)) =
            making.request.video.as_ref().map(|v| &v.action)
        else {
            panic!("copied")
        };
        for (n, rung) in video.rungs.iter().enumerate() {
            let said = format!("RESOLUTION={}x{}", rung.width, rung.height);
            let (line, address) = text
                .lines()
                .zip(text.lines().skip(1))
                .find(|(l, _)| l.contains(&said))
                .unwrap();
            assert!(
                line.contains(&format!("avc1.6400{:02x},mp4a.40.2\"", rung.level)),
                "{line}"
            );
            assert!(
                number(line, ":BANDWIDTH=") > rung.max_bit_rate,
                "the sound is in it"
            );
            assert_eq!(address, format!("{n}/index.m3u8?grant=g"));
        }
        assert!(text.contains("URI=\"5/index.m3u8?grant=g\""), "{text}");
    }

    #[test]
    fn tracks_of_one_name_are_told_apart() {
        let mut names = Names::default();
        let mut next = |language| names.name(None, language, || "Sound 9".into());
        let named = [
            next(Some("de")),
            next(Some("en")),
            next(Some("de")),
            next(None),
            next(Some("de")),
        ];
        assert_eq!(named, ["de", "en", "de (2)", "Sound 9", "de (3)"]);
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
