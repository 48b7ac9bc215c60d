//! What the numbers of a picture mean, and how they come to mean what is promised.
//!
//! The source's meaning is taken from the facts of the file and set on every frame, so that it does not depend
//! on where a run began to read nor on the version of FFmpeg. What a file leaves open is filled in by the rule
//! that players use: pictures of at most 576 lines are BT.601, larger ones BT.709.
//!
//! A wide dynamic range becomes BT.709 thus (BT.2408): linear light in units of 203 cd/m², the level of white
//! paper in both HDR10 and HLG; primaries of BT.709; a curve that leaves everything up to 0.3 of that as it is
//! and bends what is brighter towards the peak (`mobius`: faces and shadows keep their levels, which `hable`
//! darkens and `reinhard` flattens); the display's gamma. The peak is that of the transfer function itself, not
//! of the file's metadata: where they are read depends on where a run begins. Integers of RGB in between clip
//! what BT.709 cannot show; FFmpeg 5.1 would wrap it into other colours.

use ether_encoder::VideoEncode;
use ether_media::{Color, MasteringKind, VideoFacts};

/// Light of white paper in cd/m².
const PAPER: f64 = 203.0;
/// The brightest that PQ can say, and the nominal peak of HLG, in cd/m².
const PQ_PEAK: f64 = 10_000.0;
const HLG_PEAK: f64 = 1_000.0;

const BT709: u8 = 1;
const BT601_625: u8 = 5;
const BT601_525: u8 = 6;
const BT2020: u8 = 9;
const RGB: u8 = 0;

/// What happens to the colours of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conversion {
    /// They stay what they are.
    Keep,
    /// The same, of RGB: only the encoder's sampling makes them BT.709.
    FromRgb,
    /// Primaries, transfer and matrix become those of BT.709.
    ToBt709,
    /// A wide dynamic range is mapped into that of BT.709.
    ToneMap(MasteringKind),
}

/// What the numbers of a source mean, nothing left open but the range of its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    primaries: u8,
    transfer: u8,
    matrix: u8,
    full_range: Option<bool>,
}

impl Meaning {
    pub(super) fn of(video: &VideoFacts) -> Self {
        let Color {
            primaries,
            transfer,
            matrix,
            full_range,
        } = video.color;
        // A number that nobody has a name for says nothing.
        let primaries = primaries.filter(|code| primaries_name(*code).is_some());
        let transfer = transfer.filter(|code| transfer_name(*code).is_some());
        let matrix = matrix.filter(|code| matrix_name(*code).is_some());
        let wide = matches!(transfer, Some(16 | 18));
        let small = video.width.min(video.height) <= 576 && video.width.max(video.height) <= 1_024;
        let matrix = matrix.unwrap_or(match primaries {
            Some(BT2020) => BT2020,
            Some(BT601_625 | BT601_525) => BT601_525,
            None if wide => BT2020,
            None if small => BT601_525,
            _ => BT709,
        });
        let primaries = primaries.unwrap_or(match matrix {
            BT2020 | 10 => BT2020,
            BT601_625 => BT601_625,
            BT601_525 if matches!(video.height, 288 | 576) => BT601_625,
            BT601_525 => BT601_525,
            _ => BT709,
        });
        Self {
            primaries,
            transfer: transfer.unwrap_or(BT709),
            matrix,
            full_range,
        }
    }

    /// What has to be done for `encode`.
    pub(super) fn conversion(self, encode: &VideoEncode) -> Conversion {
        let range = self.mastering();
        if range != MasteringKind::Sdr {
            return match encode.range {
                MasteringKind::Sdr => Conversion::ToneMap(range),
                _ => Conversion::Keep,
            };
        }
        let usual = |code| matches!(code, BT709 | BT601_625 | BT601_525);
        match self.matrix {
            RGB if usual(self.primaries) => Conversion::FromRgb,
            // Linear and logarithmic light is for editing.
            matrix if usual(matrix) && usual(self.primaries) && !matches!(self.transfer, 8..=10) => {
                Conversion::Keep
            }
            _ => Conversion::ToBt709,
        }
    }

    fn mastering(self) -> MasteringKind {
        match self.transfer {
            16 => MasteringKind::Pq,
            18 => MasteringKind::Hlg,
            _ => MasteringKind::Sdr,
        }
    }

    /// The filter that sets this meaning on the source's frames.
    pub(super) fn marked(self) -> String {
        let range = match self.full_range {
            Some(true) => ":range=full",
            Some(false) => ":range=limited",
            // Some pixel formats say it themselves.
            None => "",
        };
        let names = [
            ("color_primaries", primaries_name(self.primaries)),
            ("color_trc", transfer_name(self.transfer)),
            // RGB pixel formats say it themselves.
            (
                "colorspace",
                matrix_name(self.matrix).filter(|_| self.matrix != RGB),
            ),
        ];
        let named = names
            .iter()
            .filter_map(|(key, name)| Some(format!("{key}={}", (*name)?)));
        format!("setparams={}{range}", named.collect::<Vec<_>>().join(":"))
    }

    /// The scaler's name of the matrix.
    pub(super) fn scaler_matrix(self) -> &'static str {
        match self.matrix {
            BT601_625 | BT601_525 => "smpte170m",
            BT2020 | 10 => "bt2020",
            _ => "bt709",
        }
    }

    /// How bright white paper is among its numbers, of one.
    pub(super) fn paper(self) -> f64 {
        match self.mastering() {
            MasteringKind::Sdr => 1.0,
            MasteringKind::Pq => 0.58,
            MasteringKind::Hlg => 0.75,
        }
    }

    /// The meaning of what comes out of `conversion`.
    pub(super) fn after(self, conversion: Conversion) -> Self {
        let full_range = Some(false);
        match conversion {
            Conversion::Keep => Self { full_range, ..self },
            Conversion::FromRgb => Self {
                matrix: BT709,
                full_range,
                ..self
            },
            Conversion::ToBt709 | Conversion::ToneMap(_) => Self {
                primaries: BT709,
                transfer: BT709,
                matrix: BT709,
                full_range,
            },
        }
    }
}

impl Conversion {
    /// The filters that do it, up to RGB; none where nothing is to be done before scaling.
    pub(super) fn filters(self) -> Vec<String> {
        let to_display = "zscale=p=bt709:t=bt709:m=gbr:r=full,format=gbrp10le";
        match self {
            Self::Keep | Self::FromRgb => Vec::new(),
            Self::ToBt709 => vec![to_display.to_owned()],
            Self::ToneMap(range) => {
                let peak = match range {
                    MasteringKind::Hlg => HLG_PEAK,
                    _ => PQ_PEAK,
                };
                vec![
                    // Newer versions of FFmpeg would describe the result with them.
                    "sidedata=mode=delete:type=MASTERING_DISPLAY_METADATA".to_owned(),
                    "sidedata=mode=delete:type=CONTENT_LIGHT_LEVEL".to_owned(),
                    format!("zscale=p=bt709:t=linear:m=gbr:npl={PAPER},format=gbrpf32le"),
                    format!(
                        "tonemap=tonemap=mobius:param=0.3:desat=0:peak={:.4}",
                        peak / PAPER
                    ),
                    to_display.to_owned(),
                ]
            }
        }
    }

    /// What the scaler has to be told besides the size, to come to limited YUV.
    pub(super) fn scaling(self) -> &'static str {
        match self {
            Self::Keep => "out_range=limited",
            _ => "out_color_matrix=bt709:out_range=limited",
        }
    }

    /// Whether it is dear enough to be done at the size of the best quality instead of the source's.
    pub(super) fn is_dear(self) -> bool {
        matches!(self, Self::ToBt709 | Self::ToneMap(_))
    }
}

/// Whether nothing has to be done about the colours of `video`.
pub(super) fn is_kept(video: &VideoFacts, encode: &VideoEncode) -> bool {
    let meaning = Meaning::of(video);
    meaning.conversion(encode) == Conversion::Keep && meaning.full_range != Some(true)
}

fn primaries_name(code: u8) -> Option<&'static str> {
    Some(match code {
        1 => "bt709",
        4 => "bt470m",
        5 => "bt470bg",
        6 => "smpte170m",
        7 => "smpte240m",
        8 => "film",
        9 => "bt2020",
        10 => "smpte428",
        11 => "smpte431",
        12 => "smpte432",
        _ => return None,
    })
}

fn transfer_name(code: u8) -> Option<&'static str> {
    Some(match code {
        1 => "bt709",
        4 => "bt470m",
        5 => "bt470bg",
        6 => "smpte170m",
        7 => "smpte240m",
        8 => "linear",
        9 => "log100",
        10 => "log316",
        11 => "iec61966-2-4",
        13 => "iec61966-2-1",
        14 => "bt2020-10",
        15 => "bt2020-12",
        16 => "smpte2084",
        18 => "arib-std-b67",
        _ => return None,
    })
}

fn matrix_name(code: u8) -> Option<&'static str> {
    Some(match code {
        0 => "gbr",
        1 => "bt709",
        4 => "fcc",
        5 => "bt470bg",
        6 => "smpte170m",
        7 => "smpte240m",
        8 => "ycgco",
        9 => "bt2020nc",
        10 => "bt2020c",
        _ => return None,
    })
}
