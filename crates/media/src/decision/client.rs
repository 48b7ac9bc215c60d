//! What a player says it can play.
//!
//! Players name codecs by RFC 6381 strings, as `MediaSource.isTypeSupported` takes them. A string vouches for
//! the profile and level in it and for everything below; a name that is not known here vouches for nothing.

use crate::facts::{Codec, Container};

/// One player.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Pictures that it plays.
    pub video: Vec<VideoSupport>,
    /// Sounds that it plays.
    pub audio: Vec<AudioSupport>,
    /// Containers that it plays as a file.
    pub containers: Vec<Container>,
    /// Whether it shows a wide dynamic range.
    pub hdr: bool,
    /// Greatest height that it shows.
    pub max_height: Option<u32>,
    /// Channels that sound is encoded to at most; copied sound may have more.
    pub audio_channels: u16,
}

/// A picture codec up to a profile and level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoSupport {
    /// The codec.
    pub codec: Codec,
    /// The codec's own number of the profile.
    pub profile: u32,
    /// The codec's own number of the highest level; absent when any is played.
    pub level: Option<u32>,
    /// Most bits a sample.
    pub bit_depth: u8,
}

/// What players call uncompressed samples; FFmpeg has a name for each form of them.
const PCM: &str = "pcm";

/// A sound codec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudioSupport {
    /// The codec.
    pub codec: Codec,
}

impl Default for Client {
    /// A browser that said nothing: H.264 High up to level 5.2, AAC and MP3, in segments only.
    fn default() -> Self {
        let h264 = VideoSupport {
            codec: Codec::H264,
            profile: 100,
            level: Some(52),
            bit_depth: 8,
        };
        Self {
            video: vec![h264],
            audio: vec![
                AudioSupport { codec: Codec::Aac },
                AudioSupport { codec: Codec::Mp3 },
            ],
            containers: Vec::new(),
            hdr: false,
            max_height: None,
            audio_channels: 2,
        }
    }
}

impl Client {
    /// Whether it plays files in `container`.
    pub fn plays_container(&self, container: &Container) -> bool {
        self.containers.contains(container)
    }

    /// A container by the name that players use for it.
    pub fn container(name: &str) -> Container {
        match name.trim().to_ascii_lowercase().as_str() {
            "mp4" | "mov" | "m4v" | "m4a" => Container::Mp4,
            "matroska" | "mkv" => Container::Matroska,
            "webm" => Container::Webm,
            "mpegts" | "ts" | "m2ts" => Container::MpegTs,
            other => Container::Other(other.to_owned()),
        }
    }
}

impl VideoSupport {
    /// Reads an RFC 6381 string; `None` where it names no picture codec that ether knows.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let mut parts = text.split('.');
        let name = parts.next()?.to_ascii_lowercase();
        let rest: Vec<&str> = parts.collect();
        match name.as_str() {
            "avc1" | "avc3" | "h264" => Some(h264(&rest)),
            "hvc1" | "hev1" | "hevc" | "h265" => Some(hevc(&rest)),
            "av01" | "av1" => Some(av1(&rest)),
            "vp09" | "vp9" => Some(vp9(&rest)),
            "vp8" | "vp08" => Some(Self {
                codec: Codec::Vp8,
                profile: 0,
                level: None,
                bit_depth: 8,
            }),
            "mpeg2video" | "mpeg2" | "mp2v" => Some(Self {
                codec: Codec::Mpeg2Video,
                profile: 4,
                level: None,
                bit_depth: 8,
            }),
            _ => None,
        }
    }
}

impl AudioSupport {
    /// Whether it plays sound of `codec`: uncompressed samples in any form are one codec to players.
    pub fn plays(&self, codec: &Codec) -> bool {
        match (&self.codec, codec) {
            (Codec::Other(listed), Codec::Other(name)) if listed == PCM => name.starts_with("pcm_"),
            (listed, codec) => listed == codec,
        }
    }

    /// Reads an RFC 6381 string; `None` where it names no sound codec that ether knows.
    pub fn parse(text: &str) -> Option<Self> {
        let codec = match text.trim().to_ascii_lowercase().as_str() {
            "mp4a.40.34" | "mp4a.6b" | "mp4a.69" | "mp3" => Codec::Mp3,
            "ac-3" | "mp4a.a5" | "ac3" => Codec::Ac3,
            "ec-3" | "mp4a.a6" | "eac3" => Codec::Eac3,
            "opus" => Codec::Opus,
            "flac" => Codec::Flac,
            "vorbis" => Codec::Vorbis,
            "dts" | "dca" | "dtsc" | "dtse" | "dtsh" | "dtsl" | "mp4a.a9" | "mp4a.aa" => Codec::Dts,
            "pcm" | "lpcm" => Codec::Other(PCM.to_owned()),
            text if text == "mp4a" || text == "aac" || text.starts_with("mp4a.40") => Codec::Aac,
            text if text.starts_with("mp4a.67") || text.starts_with("mp4a.66") => Codec::Aac,
            _ => return None,
        };
        Some(Self { codec })
    }
}

/// `avc1.PPCCLL`: profile, constraints and level as hexadecimal bytes.
fn h264(rest: &[&str]) -> VideoSupport {
    let byte = |at: usize| {
        let text = rest.first()?.get(at..at + 2)?;
        u32::from_str_radix(text, 16).ok()
    };
    let profile = byte(0).unwrap_or(100);
    VideoSupport {
        codec: Codec::H264,
        profile,
        level: byte(4),
        bit_depth: match profile {
            110 | 122 => 10,
            244 => 14,
            _ => 8,
        },
    }
}

/// `hvc1.P.compatibility.LLLL.constraints`, the level with its tier in front.
fn hevc(rest: &[&str]) -> VideoSupport {
    let profile = rest.first().and_then(|text| {
        text.trim_start_matches(|c: char| c.is_ascii_alphabetic())
            .parse()
            .ok()
    });
    let profile = profile.unwrap_or(1);
    let level = rest.get(2).and_then(|text| text.get(1..)?.parse().ok());
    VideoSupport {
        codec: Codec::Hevc,
        profile,
        level,
        bit_depth: match profile {
            2 => 10,
            4 => 12,
            _ => 8,
        },
    }
}

/// `av01.P.LLT.DD`.
fn av1(rest: &[&str]) -> VideoSupport {
    let number = |text: &&str| text.parse::<u32>().ok();
    VideoSupport {
        codec: Codec::Av1,
        profile: rest.first().and_then(number).unwrap_or(0),
        level: rest.get(1).and_then(|text| text.get(..2)?.parse().ok()),
        bit_depth: rest.get(2).and_then(|text| text.parse().ok()).unwrap_or(8),
    }
}

/// `vp09.PP.LL.DD`.
fn vp9(rest: &[&str]) -> VideoSupport {
    let number = |text: &&str| text.parse::<u32>().ok();
    VideoSupport {
        codec: Codec::Vp9,
        profile: rest.first().and_then(number).unwrap_or(0),
        level: rest.get(1).and_then(number),
        bit_depth: rest.get(2).and_then(|text| text.parse().ok()).unwrap_or(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> (Codec, u32, Option<u32>, u8) {
        let support = VideoSupport::parse(text).unwrap();
        (support.codec, support.profile, support.level, support.bit_depth)
    }

    #[test]
    fn codec_strings_say_profile_level_and_depth() {
        assert_eq!(read("avc1.640033"), (Codec::H264, 100, Some(51), 8));
        assert_eq!(read("avc1.6e0032"), (Codec::H264, 110, Some(50), 10));
        assert_eq!(read("hvc1.2.4.L153.B0"), (Codec::Hevc, 2, Some(153), 10));
        assert_eq!(read("hev1.A1.6.H120.90"), (Codec::Hevc, 1, Some(120), 8));
        assert_eq!(read("hvc1"), (Codec::Hevc, 1, None, 8));
        assert_eq!(read("av01.0.08M.10"), (Codec::Av1, 0, Some(8), 10));
        assert_eq!(read("vp09.02.51.10"), (Codec::Vp9, 2, Some(51), 10));
        assert_eq!(read("vp9"), (Codec::Vp9, 0, None, 8));
        let audio = |text| AudioSupport::parse(text).map(|a| a.codec);
        assert_eq!(audio("mp4a.40.2"), Some(Codec::Aac));
        assert_eq!(audio("mp4a.40.34"), Some(Codec::Mp3));
        assert_eq!(audio("EC-3"), Some(Codec::Eac3));
        assert_eq!(audio("theora"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "\\PC{0,40}", head in "(avc1|hvc1|av01|vp09|mp4a)?") {
            let text = format!("{head}.{text}");
            let _ = VideoSupport::parse(&text);
            let _ = AudioSupport::parse(&text);
        }
    }
}
