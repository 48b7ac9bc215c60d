//! What audio codecs say of themselves: configuration records of containers and headers of first frames.

use crate::bits::{Bits, be16, be32};
use crate::facts::{AudioFacts, Codec};

/// Facts of an audio codec's own headers, with its codec string.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sound {
    pub(crate) facts: AudioFacts,
    pub(crate) codec_string: Option<String>,
    /// A codec that is more exact than the container's word, where the header shows one.
    pub(crate) codec: Option<Codec>,
    /// Bits a second, where the header states a constant rate.
    pub(crate) bit_rate: Option<u64>,
    /// Samples in one frame at `facts.sample_rate`, where fixed.
    pub(crate) frame_samples: Option<u32>,
    /// Bytes of the frame, where its header states them.
    pub(crate) frame_bytes: Option<usize>,
}

impl Sound {
    /// Lays these facts over those of the container: the decoder obeys its own headers.
    pub(crate) fn lay_over(&self, facts: &mut AudioFacts) {
        facts.sample_rate = self.facts.sample_rate.or(facts.sample_rate);
        facts.channels = self.facts.channels.or(facts.channels);
        facts.layout = self.facts.layout.clone().or(facts.layout.take());
        facts.profile = self.facts.profile.or(facts.profile);
    }
}

fn facts(sample_rate: u32, channels: u16, layout: Option<&str>) -> AudioFacts {
    AudioFacts {
        sample_rate: (sample_rate > 0).then_some(sample_rate),
        channels: (channels > 0).then_some(channels),
        layout: layout.map(str::to_owned),
        profile: None,
    }
}

/// The layout that a bare channel count has by convention: one or two channels leave no doubt.
pub(crate) fn plain_layout(channels: u16) -> Option<&'static str> {
    match channels {
        1 => Some("mono"),
        2 => Some("stereo"),
        _ => None,
    }
}

const AAC_RATES: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350,
];

fn aac_layout(configuration: u32) -> Option<(u16, &'static str)> {
    Some(match configuration {
        1 => (1, "mono"),
        2 => (2, "stereo"),
        3 => (3, "3.0"),
        4 => (4, "4.0"),
        5 => (5, "5.0"),
        6 => (6, "5.1"),
        // The standard puts two of these in front; files in the wild mean the usual arrangement.
        7 => (8, "7.1"),
        11 => (7, "6.1"),
        12 => (8, "7.1"),
        _ => return None,
    })
}

/// An MPEG-4 AudioSpecificConfig.
pub(crate) fn aac_config(config: &[u8]) -> Option<Sound> {
    let mut bits = Bits::new(config);
    let bits = &mut bits;
    let mut object = object_type(bits)?;
    let mut rate = sampling_rate(bits)?;
    let configuration = bits.u(4)?;
    let signalled = object;
    let mut extension = None;
    if matches!(object, 5 | 29) {
        extension = Some(sampling_rate(bits)?);
        object = object_type(bits)?;
    }
    let mut layout = aac_layout(configuration);
    let general = matches!(object, 1..=4 | 6 | 7 | 17 | 19..=23);
    let mut samples = 1024;
    if general {
        if bits.flag()? {
            samples = 960;
        }
        if bits.flag()? {
            bits.skip(14)?;
        }
        bits.flag()?;
        if configuration == 0 {
            layout = program_config(bits).map(|n| (n, plain_layout(n).unwrap_or("")));
        }
    }
    let mut profile = signalled;
    // Backward-compatible signalling behind the configuration.
    if extension.is_none() && bits.left() >= 16 && bits.clone().u(11) == Some(0x2b7) {
        bits.skip(11)?;
        if object_type(bits)? == 5 && bits.flag()? {
            extension = Some(sampling_rate(bits)?);
            profile = 5;
            if bits.left() >= 12 && bits.u(11) == Some(0x548) && bits.flag()? {
                profile = 29;
            }
        }
    }
    if let Some(extended) = extension {
        rate = extended;
        samples *= 2;
    }
    let (channels, name) = layout.unwrap_or((0, ""));
    // Parametric stereo makes two channels of one.
    let (channels, name) = if profile == 29 && channels == 1 {
        (2, "stereo")
    } else {
        (channels, name)
    };
    let mut facts = facts(rate, channels, Some(name).filter(|n| !n.is_empty()));
    facts.profile = Some(profile);
    Some(Sound {
        facts,
        codec_string: Some(format!("mp4a.40.{profile}")),
        frame_samples: general.then_some(samples),
        ..Sound::default()
    })
}

fn object_type(bits: &mut Bits<'_>) -> Option<u32> {
    match bits.u(5)? {
        31 => Some(32 + bits.u(6)?),
        object => Some(object),
    }
}

fn sampling_rate(bits: &mut Bits<'_>) -> Option<u32> {
    match bits.u(4)? {
        15 => bits.u(24),
        index => AAC_RATES.get(index as usize).copied(),
    }
}

/// Counts the channels of a program config element.
fn program_config(bits: &mut Bits<'_>) -> Option<u16> {
    bits.skip(4 + 2 + 4)?;
    let (front, side, back) = (bits.u(4)?, bits.u(4)?, bits.u(4)?);
    let (lfe, data, coupling) = (bits.u(2)?, bits.u(3)?, bits.u(4)?);
    for skip in [4, 4, 3] {
        if bits.flag()? {
            bits.skip(skip)?;
        }
    }
    let mut channels = lfe;
    for _ in 0..front + side + back {
        channels += if bits.flag()? { 2 } else { 1 };
        bits.skip(4)?;
    }
    bits.skip(4 * (lfe + data) as usize + 5 * coupling as usize)?;
    // The comment that follows ends what an extension may come after.
    let rest = (8 - bits.position() % 8) % 8;
    bits.skip(rest)?;
    let comment = bits.u(8)? as usize;
    bits.skip(8 * comment)?;
    u16::try_from(channels).ok()
}

/// An ADTS frame header.
pub(crate) fn adts(frame: &[u8]) -> Option<Sound> {
    let mut bits = Bits::new(frame);
    let bits = &mut bits;
    if bits.u(12)? != 0xfff {
        return None;
    }
    bits.flag()?;
    if bits.u(2)? != 0 {
        return None;
    }
    bits.flag()?;
    let object = bits.u(2)? + 1;
    let rate = *AAC_RATES.get(bits.u(4)? as usize)?;
    bits.flag()?;
    let (channels, name) = aac_layout(bits.u(3)?).unwrap_or((0, ""));
    let mut facts = facts(rate, channels, Some(name).filter(|n| !n.is_empty()));
    facts.profile = Some(object);
    Some(Sound {
        facts,
        codec_string: Some(format!("mp4a.40.{object}")),
        frame_samples: Some(1024),
        frame_bytes: adts_len(frame),
        ..Sound::default()
    })
}

fn ac3_layout(mode: u32, lfe: bool) -> (u16, &'static str) {
    match (mode, lfe) {
        (1, false) => (1, "mono"),
        (1, true) => (2, "1.1"),
        (3, false) => (3, "3.0"),
        (3, true) => (4, "3.1"),
        (4, false) => (3, "3.0(back)"),
        (4, true) => (4, ""),
        (5, false) => (4, "4.0"),
        (5, true) => (5, "4.1"),
        (6, false) => (4, "quad(side)"),
        (6, true) => (5, ""),
        (7, false) => (5, "5.0(side)"),
        (7, true) => (6, "5.1(side)"),
        (_, false) => (2, "stereo"),
        (_, true) => (3, "2.1"),
    }
}

/// An AC-3 or E-AC-3 frame header.
pub(crate) fn ac3(frame: &[u8]) -> Option<Sound> {
    let mut bits = Bits::new(frame);
    let bits = &mut bits;
    if bits.u(16)? != 0x0b77 {
        return None;
    }
    // Bits 40 to 44 hold the version in both syntaxes.
    let version = Bits::new(frame.get(5..6)?).u(5)?;
    const RATES: [u32; 3] = [48_000, 44_100, 32_000];
    if version > 10 {
        let dependent = bits.u(2)? == 1;
        bits.skip(3)?;
        let words = bits.u(11)? + 1;
        let rate_code = bits.u(2)?;
        let (rate, blocks) = if rate_code == 3 {
            (*RATES.get(bits.u(2)? as usize)? / 2, 6)
        } else {
            let blocks = [1, 2, 3, 6][bits.u(2)? as usize];
            (RATES[rate_code as usize], blocks)
        };
        let mode = bits.u(3)?;
        let (channels, name) = ac3_layout(mode, bits.flag()?);
        return Some(Sound {
            facts: facts(rate, channels, Some(name).filter(|n| !n.is_empty())),
            codec_string: Some("ec-3".into()),
            codec: Some(Codec::Eac3),
            bit_rate: Some(u64::from(words) * 16 * u64::from(rate) / (u64::from(blocks) * 256)),
            // A dependent frame adds channels to the one before it, and no time.
            frame_samples: Some(if dependent { 0 } else { blocks * 256 }),
            frame_bytes: Some(words as usize * 2),
        });
    }
    bits.skip(16)?;
    let full_rate = *RATES.get(bits.u(2)? as usize)?;
    let rate = full_rate >> version.saturating_sub(8);
    let size = bits.u(6)?;
    bits.skip(5 + 3)?;
    let mode = bits.u(3)?;
    if mode & 1 == 1 && mode != 1 {
        bits.skip(2)?;
    }
    if mode & 4 == 4 {
        bits.skip(2)?;
    }
    if mode == 2 {
        bits.skip(2)?;
    }
    let (channels, name) = ac3_layout(mode, bits.flag()?);
    const KBITS: [u64; 19] = [
        32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640,
    ];
    let kbits = *KBITS.get(size as usize / 2)?;
    // 1536 samples in 16-bit words; at 44.1 kHz every other frame is one word longer.
    let odd = u64::from(full_rate == 44_100 && size & 1 == 1);
    let words = kbits * 1000 * 1536 / 16 / u64::from(full_rate) + odd;
    Some(Sound {
        facts: facts(rate, channels, Some(name).filter(|n| !n.is_empty())),
        codec_string: Some("ac-3".into()),
        codec: Some(Codec::Ac3),
        bit_rate: Some((kbits * 1000) >> version.saturating_sub(8)),
        frame_samples: Some(1536),
        frame_bytes: usize::try_from(words * 2).ok(),
    })
}

/// The body of an MP4 `dac3` (AC-3) or `dec3` (E-AC-3) box.
pub(crate) fn ac3_record(record: &[u8], enhanced: bool) -> Option<Sound> {
    let mut bits = Bits::new(record);
    let bits = &mut bits;
    let (rate_code, mode, lfe, bit_rate);
    if enhanced {
        bit_rate = Some(u64::from(bits.u(13)?) * 1000);
        bits.u(3)?;
        rate_code = bits.u(2)?;
        bits.skip(5 + 1 + 1 + 3)?;
        mode = bits.u(3)?;
        lfe = bits.flag()?;
    } else {
        rate_code = bits.u(2)?;
        bits.skip(5 + 3)?;
        mode = bits.u(3)?;
        lfe = bits.flag()?;
        bit_rate = None;
    }
    let (channels, name) = ac3_layout(mode, lfe);
    let rate = *[48_000, 44_100, 32_000].get(rate_code as usize).unwrap_or(&0);
    Some(Sound {
        facts: facts(rate, channels, Some(name).filter(|n| !n.is_empty())),
        codec_string: Some(if enhanced { "ec-3" } else { "ac-3" }.into()),
        bit_rate: bit_rate.filter(|r| *r > 0),
        frame_samples: Some(1536),
        ..Sound::default()
    })
}

/// An MPEG audio frame header, of any layer.
pub(crate) fn mpeg_audio(frame: &[u8]) -> Option<Sound> {
    let word = be32(frame, 0)?;
    if word >> 21 != 0x7ff {
        return None;
    }
    let version = word >> 19 & 3;
    let layer = 4 - (word >> 17 & 3);
    let (rate_index, rate_code) = (word >> 12 & 15, word >> 10 & 3);
    if version == 1 || layer == 4 || rate_index == 15 || rate_code == 3 {
        return None;
    }
    let rate = [44_100, 48_000, 32_000][rate_code as usize]
        >> match version {
            3 => 0,
            2 => 1,
            _ => 2,
        };
    let channels = if word >> 6 & 3 == 3 { 1 } else { 2 };
    let full = version == 3;
    let kbits: [u64; 15] = match (full, layer) {
        (true, 1) => [
            0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448,
        ],
        (true, 2) => [0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
        (true, _) => [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
        (false, 1) => [0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
        (false, _) => [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    };
    let samples = match (layer, full) {
        (1, _) => 384,
        (3, false) => 576,
        _ => 1152,
    };
    let bit_rate = kbits[rate_index as usize] * 1000;
    Some(Sound {
        facts: facts(rate, channels, plain_layout(channels)),
        codec_string: (layer == 3).then(|| "mp4a.40.34".into()),
        codec: Some(match layer {
            1 => Codec::Other("mp1".into()),
            2 => Codec::Other("mp2".into()),
            _ => Codec::Mp3,
        }),
        bit_rate: Some(bit_rate).filter(|r| *r > 0),
        frame_samples: Some(samples),
        frame_bytes: (bit_rate > 0).then(|| {
            let padding = u64::from(word >> 9 & 1);
            let bytes = if layer == 1 {
                (12 * bit_rate / u64::from(rate) + padding) * 4
            } else {
                u64::from(samples) / 8 * bit_rate / u64::from(rate) + padding
            };
            bytes as usize
        }),
    })
}

fn surround_layout(channels: u16) -> Option<&'static str> {
    match channels {
        3 => Some("3.0"),
        4 => Some("quad"),
        5 => Some("5.0"),
        6 => Some("5.1"),
        7 => Some("6.1"),
        8 => Some("7.1"),
        _ => plain_layout(channels),
    }
}

/// Opus plays at one rate.
pub(crate) fn opus_facts(channels: u16) -> AudioFacts {
    facts(48_000, channels, surround_layout(channels))
}

/// The channel count of an Opus header, whose body begins after any magic (`OpusHead`).
pub(crate) fn opus_head(head: &[u8]) -> Option<Sound> {
    let body = head.strip_prefix(b"OpusHead").unwrap_or(head);
    let channels = u16::from(*body.get(1)?);
    Some(Sound {
        facts: opus_facts(channels),
        codec_string: Some("opus".into()),
        ..Sound::default()
    })
}

/// A FLAC STREAMINFO block, at the start of `info` or after a `fLaC` marker and block header.
pub(crate) fn flac_info(info: &[u8]) -> Option<Sound> {
    let info = info.strip_prefix(b"fLaC").unwrap_or(info);
    let body = if info.first()? & 0x7f == 0 && be32(info, 0)? & 0xff_ffff == 34 {
        info.get(4..)?
    } else {
        info
    };
    let mut bits = Bits::new(body.get(10..)?);
    let (rate, channels) = (bits.u(20)?, bits.u(3)? + 1);
    let channels = u16::try_from(channels).ok()?;
    Some(Sound {
        facts: facts(rate, channels, surround_layout(channels)),
        codec_string: Some("flac".into()),
        ..Sound::default()
    })
}

/// A Vorbis `CodecPrivate`: Xiph-laced headers, the identification header first.
pub(crate) fn vorbis_private(private: &[u8]) -> Option<Sound> {
    let at = private.windows(7).take(1024).position(|w| w == b"\x01vorbis")?;
    let head = private.get(at + 7..)?;
    let channels = u16::from(*head.get(4)?);
    let rate = u32::from_le_bytes(head.get(5..9)?.try_into().ok()?);
    Some(Sound {
        facts: facts(rate, channels, surround_layout(channels)),
        codec_string: Some("vorbis".into()),
        ..Sound::default()
    })
}

/// A DTS core frame header in its 16-bit big-endian form.
pub(crate) fn dts(frame: &[u8]) -> Option<Sound> {
    if be32(frame, 0)? != 0x7ffe_8001 {
        return None;
    }
    let mut bits = Bits::new(frame.get(4..)?);
    let bits = &mut bits;
    bits.skip(1 + 5 + 1)?;
    let blocks = bits.u(7)? + 1;
    let frame_bytes = bits.u(14)? as usize + 1;
    let mode = bits.u(6)?;
    const RATES: [u32; 16] = [
        0, 8_000, 16_000, 32_000, 0, 0, 11_025, 22_050, 44_100, 0, 0, 12_000, 24_000, 48_000, 96_000, 192_000,
    ];
    let rate = RATES[bits.u(4)? as usize];
    bits.skip(5 + 1 + 1 + 1 + 1 + 1 + 3 + 1 + 1)?;
    let lfe = bits.u(2)? > 0;
    let (channels, name) = match (mode, lfe) {
        (0, false) => (1, "mono"),
        (1..=4, false) => (2, "stereo"),
        (5, false) => (3, "3.0"),
        (5, true) => (4, "3.1"),
        (7, false) => (4, "4.0"),
        (7, true) => (5, "4.1"),
        (8, false) => (4, "quad(side)"),
        (9, false) => (5, "5.0(side)"),
        (9, true) => (6, "5.1(side)"),
        _ => (0, ""),
    };
    Some(Sound {
        facts: facts(rate, channels, Some(name).filter(|n| !n.is_empty())),
        codec_string: Some("dtsc".into()),
        frame_samples: Some(blocks * 32),
        frame_bytes: Some(frame_bytes),
        ..Sound::default()
    })
}

/// The header of a first frame, for a codec whose container gives no configuration.
pub(crate) fn from_frame(codec: &Codec, frame: &[u8]) -> Option<Sound> {
    match codec {
        Codec::Ac3 | Codec::Eac3 => ac3(frame),
        Codec::Aac => adts(frame),
        Codec::Mp3 => mpeg_audio(frame),
        Codec::Dts => dts(frame),
        Codec::Other(name) if name == "mp2" || name == "mp1" => mpeg_audio(frame),
        _ => None,
    }
}

/// The codec of sound that nothing names, where `bytes` are whole frames of one: where the first header says
/// its frame ends, a second one has to stand or nothing at all.
pub(crate) fn guess(bytes: &[u8]) -> Option<(Codec, Sound)> {
    for codec in [Codec::Aac, Codec::Ac3, Codec::Dts, Codec::Mp3] {
        let Some(found) = from_frame(&codec, bytes) else {
            continue;
        };
        let certain = match found.frame_bytes {
            Some(len) => bytes
                .get(len..)
                .is_some_and(|rest| rest.is_empty() || from_frame(&codec, rest).is_some()),
            None => false,
        };
        if certain {
            return Some((found.codec.clone().unwrap_or(codec), found));
        }
    }
    None
}

/// How long the frames at the start of `bytes` play, in 90 kHz; what follows the last whole header is not
/// counted, what a cut-off last frame has is.
pub(crate) fn length(codec: &Codec, bytes: &[u8]) -> Option<i64> {
    let mut at = 0;
    let mut samples = 0_u64;
    let mut rate = 0_u64;
    // Each turn passes one frame of at least a byte.
    while let Some(found) = bytes.get(at..).and_then(|rest| from_frame(codec, rest)) {
        samples += u64::from(found.frame_samples?);
        rate = u64::from(found.facts.sample_rate?);
        at += found.frame_bytes?.max(1);
    }
    (rate > 0).then(|| i64::try_from((samples * 90_000 + rate / 2) / rate).ok())?
}

/// Length in bytes of the ADTS frame at the start of `frame`.
fn adts_len(frame: &[u8]) -> Option<usize> {
    let (a, b) = (be16(frame, 3)?, *frame.get(5)?);
    let len = usize::from(a & 0x03ff) << 3 | usize::from(b >> 5);
    (len >= 7).then_some(len)
}
