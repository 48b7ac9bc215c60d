//! Track entries: what each track is, before any block of it is seen.

use super::ebml::{Elements, float, text, uint};
use crate::facts::{AudioFacts, Codec, Color, FieldOrder, Rotation, StreamKind, SubtitleFacts, VideoFacts};
use crate::picture::{Picture, color_code, matrix_code, ratio};
use crate::sound::{Sound, plain_layout};
use crate::{av1, h264, hevc, mpeg2, sound, vpx};

/// Longest text kept of a title.
const TITLE: usize = 512;

/// One track.
pub(super) struct Track {
    pub(super) number: u64,
    pub(super) uid: u64,
    pub(super) codec: Codec,
    pub(super) codec_string: Option<String>,
    pub(super) kind: StreamKind,
    pub(super) language: Option<String>,
    pub(super) title: Option<String>,
    pub(super) default: bool,
    pub(super) forced: bool,
    /// Nanoseconds of one frame, where the track states it or the codec fixes it.
    pub(super) frame: Option<u64>,
    /// Nanoseconds that decoding starts before presentation.
    pub(super) delay: u64,
    /// Bytes taken off the front of every block's data.
    pub(super) stripped: Vec<u8>,
    /// Block data cannot be looked into (compressed or encrypted).
    pub(super) opaque: bool,
    /// The codec's configuration was read, or it needs none.
    pub(super) configured: bool,
    pub(super) bit_rate: Option<u64>,
}

#[derive(Default)]
struct Entry<'a> {
    number: u64,
    uid: u64,
    kind: u64,
    codec_id: String,
    private: &'a [u8],
    video: &'a [u8],
    audio: &'a [u8],
    language: Option<String>,
    language_tag: Option<String>,
    title: Option<String>,
    not_default: bool,
    forced: bool,
    hearing_impaired: bool,
    frame: u64,
    delay: u64,
    dolby_vision: Option<u8>,
    stripped: &'a [u8],
    opaque: bool,
}

impl Track {
    /// Reads a `TrackEntry` body. `None` for kinds of track that FFmpeg gives no stream.
    pub(super) fn parse(body: &[u8]) -> Option<Self> {
        let entry = Entry::parse(body);
        let mut track = Self {
            number: entry.number,
            uid: entry.uid,
            codec: Codec::Other("unknown".into()),
            codec_string: None,
            kind: StreamKind::Data,
            language: entry.language(),
            title: entry.title.clone().filter(|t| !t.is_empty()),
            default: !entry.not_default,
            forced: entry.forced,
            frame: (entry.frame > 0).then_some(entry.frame),
            delay: entry.delay,
            stripped: entry.stripped.to_vec(),
            opaque: entry.opaque,
            configured: true,
            bit_rate: None,
        };
        match entry.kind {
            1 => track.video(&entry),
            2 => track.audio(&entry),
            0x11 | 0x21 => track.subtitle(&entry),
            _ => return None,
        }
        Some(track)
    }

    fn video(&mut self, entry: &Entry<'_>) {
        let video = Elements::new(entry.video);
        let mut facts = video_facts(&video, self.frame);
        facts.dolby_vision = entry.dolby_vision;
        let vfw = entry.codec_id == "V_MS/VFW/FOURCC";
        self.codec = if vfw {
            fourcc(entry.private)
        } else {
            video_codec(&entry.codec_id)
        };
        let private = if vfw {
            entry.private.get(40..).unwrap_or(&[])
        } else {
            entry.private
        };
        let picture = picture(&self.codec, private);
        // VP8 and VP9 say it all in their first frame.
        self.configured = picture.is_some() || matches!(self.codec, Codec::Vp8 | Codec::Vp9);
        if let Some(picture) = picture {
            picture.lay_over(&mut facts);
            self.codec_string = picture.codec_string;
        }
        if self.codec == Codec::Vp9 {
            let (profile, level) = vpx::vp9_private(private);
            facts.profile = facts.profile.or(profile.map(u32::from));
            facts.level = facts.level.or(level.map(u32::from));
        }
        self.kind = StreamKind::Video(facts);
    }

    fn audio(&mut self, entry: &Entry<'_>) {
        let audio = Elements::new(entry.audio);
        let rate = audio.body(0xb5).and_then(float).unwrap_or(8_000.0);
        let rate = audio.body(0x78b5).and_then(float).unwrap_or(rate);
        let channels = audio.body(0x9f).map_or(1, uint);
        let channels = u16::try_from(channels).unwrap_or(0);
        let depth = audio.body(0x6264).map_or(0, uint);
        let mut facts = AudioFacts {
            sample_rate: (1.0..1e9).contains(&rate).then_some(rate as u32),
            channels: (channels > 0).then_some(channels),
            layout: plain_layout(channels).map(str::to_owned),
            profile: None,
        };
        self.codec = audio_codec(&entry.codec_id, depth, entry.private);
        self.codec_string = match self.codec {
            Codec::Mp3 => Some("mp4a.40.34".into()),
            Codec::Ac3 => Some("ac-3".into()),
            Codec::Eac3 => Some("ec-3".into()),
            Codec::Dts => Some("dtsc".into()),
            Codec::Aac if entry.private.is_empty() => Some("mp4a.40.2".into()),
            _ => None,
        };
        let found = configuration(&self.codec, entry.private);
        let needs = matches!(self.codec, Codec::Aac | Codec::Opus | Codec::Flac | Codec::Vorbis);
        let named = self.codec.as_str() != "unknown";
        self.configured = named && (found.is_some() || !needs || entry.codec_id.starts_with("A_AAC/"));
        if let Some(found) = found {
            self.lay_sound(&found, &mut facts);
        }
        self.kind = StreamKind::Audio(facts);
    }

    fn lay_sound(&mut self, found: &Sound, facts: &mut AudioFacts) {
        found.lay_over(facts);
        if let (Some(samples), Some(rate)) = (found.frame_samples, found.facts.sample_rate) {
            let nanos = u64::from(samples) * 1_000_000_000 / u64::from(rate);
            self.frame = self.frame.or(Some(nanos).filter(|n| *n > 0));
        }
        self.codec_string = found.codec_string.clone().or(self.codec_string.take());
        self.bit_rate = found.bit_rate.or(self.bit_rate);
        if let Some(codec) = &found.codec {
            self.codec = codec.clone();
        }
    }

    fn subtitle(&mut self, entry: &Entry<'_>) {
        let (name, text) = match entry.codec_id.as_str() {
            "S_TEXT/UTF8" => ("subrip", true),
            "S_TEXT/ASCII" => ("text", true),
            "S_TEXT/ASS" | "S_ASS" | "S_TEXT/SSA" | "S_SSA" => ("ass", true),
            "S_TEXT/WEBVTT" | "D_WEBVTT/SUBTITLES" | "D_WEBVTT/CAPTIONS" | "D_WEBVTT/DESCRIPTIONS" => {
                ("webvtt", true)
            }
            "S_VOBSUB" => ("dvd_subtitle", false),
            "S_HDMV/PGS" => ("hdmv_pgs_subtitle", false),
            "S_HDMV/TEXTST" => ("hdmv_text_subtitle", false),
            "S_DVBSUB" => ("dvb_subtitle", false),
            "S_ARIBSUB" => ("arib_caption", false),
            _ => ("unknown", false),
        };
        self.codec = Codec::Other(name.into());
        self.kind = StreamKind::Subtitle(SubtitleFacts {
            text,
            hearing_impaired: entry.hearing_impaired,
        });
    }

    /// Completes what the track entry left open with the data of the track's first block.
    pub(super) fn see_first_block(&mut self, data: &[u8]) {
        if self.opaque {
            return;
        }
        let whole;
        let data = if self.stripped.is_empty() {
            data
        } else {
            whole = [self.stripped.as_slice(), data].concat();
            &whole
        };
        match &mut self.kind {
            StreamKind::Video(facts) => {
                let picture = match self.codec {
                    Codec::Vp8 => vpx::vp8_frame(data),
                    Codec::Vp9 => vpx::vp9_frame(data),
                    Codec::Mpeg2Video => mpeg2::from_stream(data).map(|s| s.picture),
                    Codec::Av1 if !self.configured => av1::from_obus(data),
                    Codec::H264 if !self.configured => h264::from_stream(data),
                    Codec::Hevc if !self.configured => hevc::from_stream(data),
                    _ => None,
                };
                if let Some(picture) = picture {
                    picture.lay_over(facts);
                    self.codec_string = picture.codec_string.or(self.codec_string.take());
                    self.configured = true;
                }
                if self.codec == Codec::Vp9 && self.codec_string.is_none() {
                    let fps = facts.frame_rate.map_or(30.0, |r| r.as_f64());
                    let level = facts
                        .level
                        .and_then(|l| u8::try_from(l).ok())
                        .unwrap_or_else(|| vpx::vp9_level(facts.width, facts.height, fps));
                    let profile = facts.profile.unwrap_or(0) as u8;
                    self.codec_string = Some(vpx::vp9_string(profile, level, facts.bit_depth.unwrap_or(8)));
                }
            }
            StreamKind::Audio(facts) => {
                if let Some(found) = sound::from_frame(&self.codec, data) {
                    let mut facts = facts.clone();
                    self.lay_sound(&found, &mut facts);
                    self.kind = StreamKind::Audio(facts);
                }
            }
            _ => {}
        }
    }
}

impl<'a> Entry<'a> {
    fn parse(body: &'a [u8]) -> Self {
        let mut entry = Self::default();
        for (id, body) in Elements::new(body) {
            match id {
                0xd7 => entry.number = uint(body),
                0x73c5 => entry.uid = uint(body),
                0x83 => entry.kind = uint(body),
                0x86 => entry.codec_id = text(body, 64),
                0x63a2 => entry.private = body,
                0xe0 => entry.video = body,
                0xe1 => entry.audio = body,
                0x22_b59c => entry.language = Some(text(body, 16)),
                0x22_b59d => entry.language_tag = Some(text(body, 64)),
                0x536e => entry.title = Some(text(body, TITLE)),
                0x88 => entry.not_default = uint(body) == 0,
                0x55aa => entry.forced = uint(body) != 0,
                0x55ab => entry.hearing_impaired = uint(body) != 0,
                0x23_e383 => entry.frame = uint(body),
                0x56aa => entry.delay = uint(body),
                0x41e4 => {
                    let mapping = Elements::new(body);
                    let kind = mapping.body(0x41e7).map(uint);
                    // "dvcC", "dvvC" and "dvwC" as numbers.
                    if matches!(kind, Some(0x6476_6343 | 0x6476_7643 | 0x6476_7743)) {
                        entry.dolby_vision = mapping.body(0x41ed).and_then(|r| r.get(2)).map(|b| b >> 1);
                    }
                }
                0x6d80 => entry.encodings(body),
                _ => {}
            }
        }
        entry
    }

    fn encodings(&mut self, body: &'a [u8]) {
        for (id, encoding) in Elements::new(body) {
            if id != 0x6240 {
                continue;
            }
            let encoding = Elements::new(encoding);
            let compression = encoding.body(0x5034).map(Elements::new);
            let encrypted = encoding.body(0x5033).map_or(0, uint) != 0;
            match compression {
                Some(compression) if !encrypted && compression.body(0x4254).map(uint) == Some(3) => {
                    self.stripped = compression.body(0x4255).unwrap_or(&[]);
                }
                _ => self.opaque = true,
            }
        }
    }

    fn language(&self) -> Option<String> {
        // The element's default is English.
        let language = self.language.as_deref().unwrap_or("eng");
        let language = match &self.language_tag {
            Some(tag) if !tag.is_empty() => tag,
            _ => language,
        };
        (language != "und" && !language.is_empty()).then(|| language.to_owned())
    }
}

fn video_facts(video: &Elements<'_>, frame: Option<u64>) -> VideoFacts {
    let number = |id: u32| video.body(id).map_or(0, uint);
    let (width, height) = (number(0xb0).min(1 << 16), number(0xba).min(1 << 16));
    let mut facts = VideoFacts {
        width: width as u32,
        height: height as u32,
        ..VideoFacts::default()
    };
    let (display_width, display_height) = (number(0x54b0), number(0x54ba));
    // Units: pixels, centimetres, inches and an aspect ratio all give a ratio; "unknown" does not.
    if number(0x54b2) <= 3 && display_width > 0 && display_height > 0 {
        facts.sample_aspect = approximate(
            height.saturating_mul(display_width),
            width.saturating_mul(display_height),
            255,
        );
    }
    facts.field_order = match (number(0x9a), video.body(0x9d).map_or(2, uint)) {
        (2, _) => Some(FieldOrder::Progressive),
        (1, 0) => Some(FieldOrder::Progressive),
        // Stored apart (1 and 6) or line by line (9 and 14).
        (1, 1 | 9) => Some(FieldOrder::TopFirst),
        (1, 6 | 14) => Some(FieldOrder::BottomFirst),
        (1, _) => Some(FieldOrder::Unknown),
        _ => None,
    };
    facts.frame_rate = frame.and_then(|ns| approximate(1_000_000_000, ns, 30_000));
    if let Some(color) = video.body(0x55b0).map(Elements::new) {
        let code = |id: u32| color.body(id).map_or(2, |b| uint(b).min(256) as u32);
        facts.color = Color {
            primaries: color_code(code(0x55bb)),
            transfer: color_code(code(0x55ba)),
            matrix: matrix_code(code(0x55b1)),
            full_range: match color.body(0x55b9).map(uint) {
                Some(1) => Some(false),
                Some(2) => Some(true),
                _ => None,
            },
        };
    }
    if let Some(projection) = video.body(0x7670).map(Elements::new)
        && projection.body(0x7671).map_or(0, uint) == 0
        && let Some(roll) = projection.body(0x7675).and_then(float)
    {
        // The roll is counter-clockwise.
        let quarter = (-roll / 90.0).round() as i64;
        facts.rotation = Rotation {
            degrees: u16::try_from(quarter.rem_euclid(4) * 90).unwrap_or(0),
            mirrored: false,
        };
    }
    facts
}

/// The fraction nearest to `num / den` with no part over `max`.
fn approximate(num: u64, den: u64, max: u64) -> Option<crate::facts::Rational> {
    let exact = ratio(num, den);
    if let Some(exact) = exact
        && u64::from(exact.num) <= max
        && u64::from(exact.den) <= max
    {
        return Some(exact);
    }
    let (mut n, mut d) = (u128::from(num), u128::from(den));
    let (mut a, mut b) = ((0_u128, 1_u128), (1_u128, 0_u128));
    let max = u128::from(max);
    // Convergents of the continued fraction; each turn shrinks the remainder.
    while d != 0 {
        let x = n / d;
        let rest = n - d * x;
        let next = (x * b.0 + a.0, x * b.1 + a.1);
        if next.0 > max || next.1 > max {
            // The largest step that still fits may be nearer than the last convergent.
            let fits = |old: u128, last: u128| (max - old).checked_div(last).unwrap_or(x);
            let step = x.min(fits(a.0, b.0)).min(fits(a.1, b.1));
            if d * (2 * step * b.1 + a.1) > n * b.1 {
                b = (step * b.0 + a.0, step * b.1 + a.1);
            }
            break;
        }
        (a, b) = (b, next);
        (n, d) = (d, rest);
    }
    ratio(u64::try_from(b.0).ok()?, u64::try_from(b.1).ok()?)
}

fn video_codec(id: &str) -> Codec {
    let other = |name: &str| Codec::Other(name.into());
    match id {
        "V_MPEG4/ISO/AVC" => Codec::H264,
        "V_MPEGH/ISO/HEVC" => Codec::Hevc,
        "V_AV1" => Codec::Av1,
        "V_VP8" => Codec::Vp8,
        "V_VP9" => Codec::Vp9,
        "V_MPEG2" => Codec::Mpeg2Video,
        "V_MPEG1" => other("mpeg1video"),
        "V_MPEG4/ISO/SP" | "V_MPEG4/ISO/ASP" | "V_MPEG4/ISO/AP" => other("mpeg4"),
        "V_MPEG4/MS/V3" => other("msmpeg4v3"),
        "V_MJPEG" => other("mjpeg"),
        "V_PRORES" => other("prores"),
        "V_FFV1" => other("ffv1"),
        "V_THEORA" => other("theora"),
        "V_UNCOMPRESSED" => other("rawvideo"),
        _ => other("unknown"),
    }
}

/// The codec of a Windows BITMAPINFOHEADER.
fn fourcc(header: &[u8]) -> Codec {
    let other = |name: &str| Codec::Other(name.into());
    let Some(code) = header.get(16..20).map(<[u8]>::to_ascii_uppercase) else {
        return other("unknown");
    };
    match code.as_slice() {
        b"H264" | b"X264" | b"AVC1" => Codec::H264,
        b"HEVC" | b"HVC1" => Codec::Hevc,
        b"XVID" | b"DIVX" | b"DX50" | b"MP4V" | b"FMP4" => other("mpeg4"),
        b"DIV3" | b"MP43" => other("msmpeg4v3"),
        b"MJPG" => other("mjpeg"),
        b"WVC1" => other("vc1"),
        b"MPG2" => Codec::Mpeg2Video,
        _ => other("unknown"),
    }
}

fn picture(codec: &Codec, private: &[u8]) -> Option<Picture> {
    match codec {
        Codec::H264 => h264::from_record(private),
        Codec::Hevc => hevc::from_record(private, "hvc1"),
        Codec::Av1 => av1::from_record(private),
        Codec::Mpeg2Video => mpeg2::from_stream(private).map(|s| s.picture),
        _ => None,
    }
}

fn audio_codec(id: &str, depth: u64, private: &[u8]) -> Codec {
    let other = |name: &str| Codec::Other(name.into());
    match id {
        "A_AC3" | "A_AC3/BSID9" | "A_AC3/BSID10" => Codec::Ac3,
        "A_EAC3" => Codec::Eac3,
        "A_DTS" | "A_DTS/EXPRESS" | "A_DTS/LOSSLESS" => Codec::Dts,
        "A_MPEG/L3" => Codec::Mp3,
        "A_MPEG/L2" => other("mp2"),
        "A_MPEG/L1" => other("mp1"),
        "A_OPUS" | "A_OPUS/EXPERIMENTAL" => Codec::Opus,
        "A_VORBIS" => Codec::Vorbis,
        "A_FLAC" => Codec::Flac,
        "A_TRUEHD" => other("truehd"),
        "A_MLP" => other("mlp"),
        "A_ALAC" => other("alac"),
        "A_TTA1" => other("tta"),
        "A_WAVPACK4" => other("wavpack"),
        "A_PCM/INT/LIT" => other(match depth {
            8 => "pcm_u8",
            24 => "pcm_s24le",
            32 => "pcm_s32le",
            _ => "pcm_s16le",
        }),
        "A_PCM/INT/BIG" => other(match depth {
            8 => "pcm_u8",
            24 => "pcm_s24be",
            32 => "pcm_s32be",
            _ => "pcm_s16be",
        }),
        "A_PCM/FLOAT/IEEE" => other(if depth == 64 { "pcm_f64le" } else { "pcm_f32le" }),
        "A_MS/ACM" => match private.get(..2) {
            Some([0x01, 0]) => other("pcm_s16le"),
            Some([0x50, 0]) => other("mp2"),
            Some([0x55, 0]) => Codec::Mp3,
            Some([0x00, 0x20]) => Codec::Ac3,
            Some([0x01, 0x20]) => Codec::Dts,
            Some([0xff, 0]) => Codec::Aac,
            _ => other("unknown"),
        },
        _ if id == "A_AAC" || id.starts_with("A_AAC/") => Codec::Aac,
        _ => other("unknown"),
    }
}

fn configuration(codec: &Codec, private: &[u8]) -> Option<Sound> {
    match codec {
        Codec::Aac => sound::aac_config(private),
        Codec::Opus => sound::opus_head(private.strip_prefix(b"OpusHead").map(|_| private)?),
        Codec::Flac => sound::flac_info(private),
        Codec::Vorbis => sound::vorbis_private(private),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_durations_name_the_broadcast_rates() {
        let rate = approximate(1_000_000_000, 41_708_333, 30_000).unwrap();
        assert_eq!((rate.num, rate.den), (24_000, 1_001));
        let rate = approximate(1_000_000_000, 40_000_000, 30_000).unwrap();
        assert_eq!((rate.num, rate.den), (25, 1));
    }

    #[test]
    fn display_sizes_name_the_usual_aspects() {
        let aspect = approximate(480 * 853, 720 * 480, 255).unwrap();
        assert!((aspect.as_f64() - 853.0 / 720.0).abs() < 0.001, "{aspect:?}");
        assert!(aspect.num <= 255 && aspect.den <= 255);
    }
}
