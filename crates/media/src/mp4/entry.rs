//! Sample entries: which codec a track has and what its configuration says.

use super::boxes::{Boxes, Kind, full};
use crate::bits::{be16, be32};
use crate::facts::{AudioFacts, Codec, Color, FieldOrder, StreamKind, SubtitleFacts, VideoFacts};
use crate::picture::{Picture, color_code, matrix_code, ratio};
use crate::sound::{Sound, plain_layout};
use crate::{av1, h264, hevc, mpeg2, sound, vpx};

/// What the first sample entry of a track says.
pub(super) struct Entry {
    pub(super) codec: Codec,
    pub(super) codec_string: Option<String>,
    pub(super) kind: StreamKind,
    /// The codec's configuration was there and could be read, or the codec needs none.
    pub(super) configured: bool,
    pub(super) bit_rate: Option<u64>,
}

/// Reads the first entry of an `stsd` body for a track with handler type `handler`.
pub(super) fn read(stsd: &[u8], handler: &Kind) -> Entry {
    let first = full(stsd).and_then(|(_, _, rest)| Boxes::new(rest.get(4..)?).next());
    let Some((kind, body)) = first else {
        return unknown();
    };
    let kind = original_format(&kind, body).unwrap_or(kind);
    match handler {
        b"vide" => video(&kind, body).unwrap_or_else(unknown),
        b"soun" => audio(&kind, body).unwrap_or_else(unknown),
        _ => subtitle(&kind, handler),
    }
}

fn unknown() -> Entry {
    Entry {
        codec: Codec::Other("unknown".into()),
        codec_string: None,
        kind: StreamKind::Data,
        configured: true,
        bit_rate: None,
    }
}

/// Encrypted entries hide their format in `sinf`.
fn original_format(kind: &Kind, body: &[u8]) -> Option<Kind> {
    let children = match kind {
        b"encv" => body.get(78..)?,
        b"enca" => body.get(28..)?,
        _ => return None,
    };
    let sinf = Boxes::new(children).body(b"sinf")?;
    Boxes::new(sinf).body(b"frma")?.get(..4)?.try_into().ok()
}

fn subtitle(kind: &Kind, handler: &Kind) -> Entry {
    let (name, text) = match kind {
        b"tx3g" | b"text" => ("mov_text", true),
        b"wvtt" => ("webvtt", true),
        b"stpp" | b"dfxp" => ("ttml", true),
        b"c608" => ("eia_608", true),
        b"mp4s" => ("dvd_subtitle", false),
        _ => {
            let mut entry = unknown();
            if matches!(handler, b"subp" | b"clcp" | b"sbtl" | b"subt") {
                entry.kind = StreamKind::Subtitle(SubtitleFacts::default());
            }
            return entry;
        }
    };
    Entry {
        codec: Codec::Other(name.into()),
        codec_string: None,
        kind: StreamKind::Subtitle(SubtitleFacts {
            text,
            hearing_impaired: name == "eia_608",
        }),
        configured: true,
        bit_rate: None,
    }
}

fn video(kind: &Kind, body: &[u8]) -> Option<Entry> {
    let mut facts = VideoFacts {
        width: u32::from(be16(body, 24)?),
        height: u32::from(be16(body, 26)?),
        ..VideoFacts::default()
    };
    let children = Boxes::new(body.get(78..).unwrap_or(&[]));
    let esds = children.body(b"esds").and_then(Descriptor::parse);
    let codec = video_codec(kind, esds.as_ref());
    let mut codec_string = None;
    let picture = configuration(&codec, kind, &children, esds.as_ref());
    let mut configured = picture.is_some();
    if let Some(aspect) = children.body(b"pasp") {
        facts.sample_aspect = ratio(u64::from(be32(aspect, 0)?), u64::from(be32(aspect, 4)?));
    }
    if let Some(color) = children.body(b"colr") {
        facts.color = colr(color).unwrap_or_default();
    }
    facts.field_order = children.body(b"fiel").and_then(fiel);
    for record in [b"dvcC", b"dvvC", b"dvwC"] {
        if let Some(record) = children.body(record) {
            facts.dolby_vision = record.get(2).map(|b| b >> 1);
        }
    }
    if let Some(picture) = picture {
        picture.lay_over(&mut facts);
        codec_string = picture.codec_string;
    } else if matches!(codec, Codec::Vp8) {
        configured = true;
        codec_string = Some("vp8".into());
    }
    if children.body(b"sinf").is_some() {
        configured = false;
    }
    Some(Entry {
        codec,
        codec_string,
        kind: StreamKind::Video(facts),
        configured,
        bit_rate: None,
    })
}

fn video_codec(kind: &Kind, esds: Option<&Descriptor<'_>>) -> Codec {
    let other = |name: &str| Codec::Other(name.into());
    match kind {
        b"avc1" | b"avc2" | b"avc3" | b"avc4" | b"dva1" | b"dvav" => Codec::H264,
        b"hvc1" | b"hev1" | b"dvh1" | b"dvhe" => Codec::Hevc,
        b"av01" | b"dav1" => Codec::Av1,
        b"vp08" => Codec::Vp8,
        b"vp09" => Codec::Vp9,
        b"mp2v" | b"m2v1" | b"mpg2" => Codec::Mpeg2Video,
        [b'h', b'd', b'v', _] | [b'x', b'd', b'v', _] | [b'm', b'x', _, b'p' | b'n'] => Codec::Mpeg2Video,
        b"s263" | b"h263" | b"H263" => other("h263"),
        b"jpeg" | b"mjpa" | b"AVDJ" => other("mjpeg"),
        b"png " => other("png"),
        [b'a', b'p', b'c' | b'4', _] => other("prores"),
        b"vc-1" => other("vc1"),
        b"mp4v" => match esds.map(|d| d.object) {
            Some(0x20) => other("mpeg4"),
            Some(0x60..=0x65) => Codec::Mpeg2Video,
            Some(0x6a) => other("mpeg1video"),
            Some(0x6c) => other("mjpeg"),
            Some(0x6d) => other("png"),
            _ => other("mpeg4"),
        },
        _ => other("unknown"),
    }
}

fn configuration(
    codec: &Codec,
    kind: &Kind,
    children: &Boxes<'_>,
    esds: Option<&Descriptor<'_>>,
) -> Option<Picture> {
    match codec {
        Codec::H264 => h264::from_record(children.body(b"avcC")?),
        Codec::Hevc => {
            let name = if matches!(kind, b"hev1" | b"dvhe") {
                "hev1"
            } else {
                "hvc1"
            };
            hevc::from_record(children.body(b"hvcC")?, name)
        }
        Codec::Av1 => av1::from_record(children.body(b"av1C")?),
        Codec::Vp9 => vpx::vp9_record(children.body(b"vpcC")?),
        Codec::Mpeg2Video => mpeg2::from_stream(esds?.config?).map(|s| s.picture),
        _ => None,
    }
}

fn colr(body: &[u8]) -> Option<Color> {
    let kind = body.get(..4)?;
    if kind != b"nclx" && kind != b"nclc" {
        return None;
    }
    Some(Color {
        primaries: color_code(u32::from(be16(body, 4)?)),
        transfer: color_code(u32::from(be16(body, 6)?)),
        matrix: matrix_code(u32::from(be16(body, 8)?)).filter(|m| *m > 0 || kind == b"nclx"),
        full_range: (kind == b"nclx")
            .then(|| body.get(10).map(|b| b >> 7 == 1))
            .flatten(),
    })
}

fn fiel(body: &[u8]) -> Option<FieldOrder> {
    match (body.first()?, body.get(1)?) {
        (1, _) => Some(FieldOrder::Progressive),
        // Stored apart (1 and 6) or line by line (9 and 14), the earlier field named first.
        (2, 1 | 9) => Some(FieldOrder::TopFirst),
        (2, 6 | 14) => Some(FieldOrder::BottomFirst),
        (2, _) => Some(FieldOrder::Unknown),
        _ => None,
    }
}

fn audio(kind: &Kind, body: &[u8]) -> Option<Entry> {
    let version = be16(body, 8)?;
    let mut channels = be16(body, 16)?;
    let mut rate = be32(body, 24)? >> 16;
    let children_at = match version {
        1 => 44,
        2 => {
            let bits = crate::bits::be64(body, 32)?;
            rate = f64::from_bits(bits) as u32;
            channels = u16::try_from(be32(body, 40)?).ok()?;
            64
        }
        _ => 28,
    };
    let children = Boxes::new(body.get(children_at..).unwrap_or(&[]));
    let wave = children.body(b"wave").map(Boxes::new);
    let find = |kind: &Kind| {
        children
            .body(kind)
            .or_else(|| wave.as_ref().and_then(|w| w.body(kind)))
    };
    let esds = find(b"esds").and_then(Descriptor::parse);
    let codec = audio_codec(kind, esds.as_ref(), be16(body, 18)?);
    let found = sound_configuration(&codec, &find, esds.as_ref());
    let needs = matches!(
        codec,
        Codec::Aac | Codec::Ac3 | Codec::Eac3 | Codec::Opus | Codec::Flac | Codec::Vorbis
    );
    let mut facts = AudioFacts {
        sample_rate: (rate > 0).then_some(rate),
        channels: (channels > 0).then_some(channels),
        layout: plain_layout(channels).map(str::to_owned),
        profile: None,
    };
    if matches!(&codec, Codec::Other(name) if name == "amr_nb") {
        facts = AudioFacts {
            sample_rate: Some(8_000),
            channels: Some(1),
            layout: Some("mono".into()),
            profile: None,
        };
    }
    let configured = (found.is_some() || !needs) && codec.as_str() != "unknown";
    let mut codec_string = match codec {
        Codec::Mp3 => Some("mp4a.40.34".to_owned()),
        Codec::Dts => Some("dtsc".to_owned()),
        _ => None,
    };
    let mut bit_rate = esds.as_ref().map(|d| u64::from(d.average)).filter(|r| *r > 0);
    if let Some(found) = found {
        found.lay_over(&mut facts);
        codec_string = found.codec_string.or(codec_string);
        bit_rate = found.bit_rate.or(bit_rate);
    }
    Some(Entry {
        codec,
        codec_string,
        kind: StreamKind::Audio(facts),
        configured: configured && children.body(b"sinf").is_none(),
        bit_rate,
    })
}

fn audio_codec(kind: &Kind, esds: Option<&Descriptor<'_>>, bits: u16) -> Codec {
    let other = |name: &str| Codec::Other(name.into());
    match kind {
        b"mp4a" => match esds.map(|d| d.object) {
            Some(0x40 | 0x66..=0x68) => Codec::Aac,
            Some(0x69 | 0x6b) => Codec::Mp3,
            Some(0xa5) => Codec::Ac3,
            Some(0xa6) => Codec::Eac3,
            Some(0xa9) => Codec::Dts,
            Some(0xad) => Codec::Opus,
            Some(0xdd) => Codec::Vorbis,
            _ => Codec::Aac,
        },
        b"ac-3" | b"sac3" => Codec::Ac3,
        b"ec-3" => Codec::Eac3,
        b"Opus" => Codec::Opus,
        b"fLaC" => Codec::Flac,
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" | b"DTS " => Codec::Dts,
        b".mp3" | b"mp3 " | b"ms\0U" => Codec::Mp3,
        b"alac" => other("alac"),
        b"samr" => other("amr_nb"),
        b"sawb" => other("amr_wb"),
        b"mlpa" => other("truehd"),
        b"sowt" => other(if bits == 8 { "pcm_s8" } else { "pcm_s16le" }),
        b"twos" => other(if bits == 8 { "pcm_s8" } else { "pcm_s16be" }),
        b"in24" => other("pcm_s24be"),
        b"in32" => other("pcm_s32be"),
        b"fl32" => other("pcm_f32be"),
        b"ulaw" => other("pcm_mulaw"),
        b"alaw" => other("pcm_alaw"),
        _ => other("unknown"),
    }
}

fn sound_configuration<'a>(
    codec: &Codec,
    find: &impl Fn(&Kind) -> Option<&'a [u8]>,
    esds: Option<&Descriptor<'a>>,
) -> Option<Sound> {
    match codec {
        Codec::Aac => sound::aac_config(esds?.config?),
        Codec::Ac3 => sound::ac3_record(find(b"dac3")?, false),
        Codec::Eac3 => sound::ac3_record(find(b"dec3")?, true),
        Codec::Opus => sound::opus_head(find(b"dOps")?),
        Codec::Flac => sound::flac_info(full(find(b"dfLa")?)?.2),
        Codec::Vorbis => sound::vorbis_private(esds?.config?),
        _ => None,
    }
}

/// An MPEG-4 elementary stream descriptor.
struct Descriptor<'a> {
    object: u8,
    average: u32,
    config: Option<&'a [u8]>,
}

impl<'a> Descriptor<'a> {
    fn parse(esds: &'a [u8]) -> Option<Self> {
        let (_, _, rest) = full(esds)?;
        let (tag, body, _) = element(rest)?;
        let decoder = if tag == 3 {
            let flags = *body.get(2)?;
            let mut at = 3;
            if flags & 0x80 != 0 {
                at += 2;
            }
            if flags & 0x40 != 0 {
                at += 1 + usize::from(*body.get(at)?);
            }
            if flags & 0x20 != 0 {
                at += 2;
            }
            let (tag, decoder, _) = element(body.get(at..)?)?;
            (tag == 4).then_some(decoder)?
        } else if tag == 4 {
            body
        } else {
            return None;
        };
        let config = decoder
            .get(13..)
            .and_then(element)
            .and_then(|(tag, config, _)| (tag == 5).then_some(config));
        Some(Self {
            object: *decoder.first()?,
            average: be32(decoder, 9)?,
            config,
        })
    }
}

/// One descriptor: its tag, its body and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let tag = *bytes.first()?;
    let mut len = 0_usize;
    let mut at = 1;
    for _ in 0..4 {
        let byte = *bytes.get(at)?;
        at += 1;
        len = len << 7 | usize::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            break;
        }
    }
    let rest = bytes.get(at..)?;
    let len = len.min(rest.len());
    Some((tag, &rest[..len], &rest[len..]))
}
