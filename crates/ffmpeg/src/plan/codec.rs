//! How each encoder is told what to make, and how pictures reach it.
//!
//! Whatever encodes, the output keeps the same promises: the profile and level that a playlist announces (D2),
//! an IDR picture and a closed group at every forced keyframe, at most two pictures of reordering, and a bit
//! rate below the rung's bound over one second. `docs/encoding.md` says which published practice the numbers
//! follow.

use ether_encoder::{Device, Rung, Share, VideoCodec, VideoEncode};
use ether_media::decision::average_bit_rate;
use ether_media::{ChromaSampling, Codec, MasteringKind, Rotation};

use super::Arguments;
use crate::strand::{RungSet, Strand};

/// Keyframes come where they are forced, so this only has to be longer than any segment. Quick Sync keeps it
/// in sixteen bits.
const LONG_GROUP: &str = "9999";
/// Surfaces beyond those of the encoder that uploaded pictures may occupy at once.
const EXTRA_SURFACES: &str = "64";

/// FFmpeg's name of the encoder of `codec` on `device`.
pub(crate) fn encoder_name(codec: VideoCodec, device: Device) -> &'static str {
    match (codec, device) {
        (VideoCodec::H264, Device::Software) => "libx264",
        (VideoCodec::H264, Device::Vaapi { .. }) => "h264_vaapi",
        (VideoCodec::H264, Device::Nvenc { .. }) => "h264_nvenc",
        (VideoCodec::H264, Device::Qsv { .. }) => "h264_qsv",
        (VideoCodec::Hevc, Device::Software) => "libx265",
        (VideoCodec::Hevc, Device::Vaapi { .. }) => "hevc_vaapi",
        (VideoCodec::Hevc, Device::Nvenc { .. }) => "hevc_nvenc",
        (VideoCodec::Hevc, Device::Qsv { .. }) => "hevc_qsv",
    }
}

/// Arguments that make a device ready, before the input.
pub(crate) fn device_arguments(args: &mut Arguments, device: Device) {
    match device {
        Device::Software => return,
        Device::Vaapi { node } => {
            args.add("-init_hw_device");
            args.one(format!("vaapi=gpu:{}", render_node(node)));
        }
        Device::Nvenc { gpu } => {
            args.add("-init_hw_device");
            args.one(format!("cuda=gpu:{gpu}"));
        }
        // Quick Sync picks a card by itself unless it is derived from one.
        Device::Qsv { node } => {
            args.add("-init_hw_device");
            args.one(format!("vaapi=card:{}", render_node(node)));
            args.add("-init_hw_device qsv=gpu@card");
        }
    }
    args.add("-filter_hw_device gpu");
}

/// The device file of a render node.
pub(crate) fn render_node(node: u16) -> String {
    format!("/dev/dri/renderD{node}")
}

/// Arguments that let the device decode, before the input. What it cannot decode is decoded by the processor
/// in the same run: the filters take either.
pub(super) fn decoder_arguments(args: &mut Arguments, strand: &Strand) {
    let Some(encode) = strand.encode() else { return };
    let method = match Chain::of(strand, encode) {
        Some(Chain::Vaapi) => "vaapi",
        Some(Chain::Cuda) => "cuda",
        None => return,
    };
    args.add("-hwaccel");
    args.one(method);
    args.add("-hwaccel_device gpu -hwaccel_output_format");
    args.one(method);
}

/// What the device of `strand` does of the work on its picture.
pub(crate) fn share(strand: &Strand) -> Share {
    match strand.encode() {
        Some(encode) if encode.device.is_hardware() => match Chain::of(strand, encode) {
            Some(_) => Share::Everything,
            None => Share::Encoding,
        },
        _ => Share::Nothing,
    }
}

/// The filters of a picture that stays on the device from its decoder to its encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chain {
    Vaapi,
    Cuda,
}

impl Chain {
    /// The chain for `strand`, where the device can do all that is asked. Turning, mapping of a wide range and
    /// drawn subtitles are done by the processor, and the result is uploaded. Quick Sync's decoders are chosen
    /// by name and take no other's place where one refuses a film, so with it the processor decodes.
    pub(super) fn of(strand: &Strand, encode: &VideoEncode) -> Option<Self> {
        let stream = strand.video.as_ref().map(|video| video.stream)?;
        let stream = strand.facts.stream(stream)?;
        let picture = stream.video()?;
        let decodable = matches!(
            stream.codec,
            Codec::H264 | Codec::Hevc | Codec::Av1 | Codec::Vp9 | Codec::Mpeg2Video
        ) && matches!(picture.chroma, None | Some(ChromaSampling::Yuv420));
        let plain = picture.rotation == Rotation::default()
            && super::color::is_kept(picture, encode)
            && picture.dolby_vision.is_none()
            && encode.burn.is_none();
        match encode.device {
            _ if !(decodable && plain) => None,
            Device::Vaapi { .. } => Some(Self::Vaapi),
            Device::Nvenc { .. } => Some(Self::Cuda),
            Device::Qsv { .. } | Device::Software => None,
        }
    }

    /// What all qualities share, after the cut at the run's start.
    pub(super) fn shared(self, encode: &VideoEncode) -> Vec<String> {
        let mut filters = self.entered(encode.codec);
        if encode.deinterlace {
            filters.push(match self {
                Self::Vaapi => "deinterlace_vaapi=rate=frame:auto=1".to_owned(),
                Self::Cuda => "yadif_cuda=mode=send_frame:deint=interlaced".to_owned(),
            });
        }
        filters
    }

    /// Pictures that the processor decoded are uploaded here; those of the device pass.
    fn entered(self, codec: VideoCodec) -> Vec<String> {
        let surface = match self {
            Self::Vaapi => "vaapi",
            Self::Cuda => "cuda",
        };
        vec![
            format!("format={}|{surface}", samples(codec)),
            "hwupload".to_owned(),
        ]
    }

    /// What makes one quality.
    pub(super) fn quality(self, encode: &VideoEncode, rung: &Rung) -> Vec<String> {
        let scale = match self {
            Self::Vaapi => "scale_vaapi",
            Self::Cuda => "scale_cuda",
        };
        vec![
            format!(
                "{scale}=w={}:h={}:format={}",
                rung.width,
                rung.height,
                surface_samples(encode.codec)
            ),
            "setsar=1".to_owned(),
        ]
    }
}

/// The last filters of pictures that the processor worked on: the sample format that the encoder takes, and the
/// way to its device.
pub(super) fn delivered(encode: &VideoEncode) -> Vec<String> {
    let format = match (encode.device, encode.codec) {
        (Device::Software, VideoCodec::H264) => "yuv420p",
        (Device::Software, VideoCodec::Hevc) => "yuv420p10le",
        (_, codec) => samples(codec),
    };
    let mut filters = vec![format!("format={format}")];
    match encode.device {
        // NVENC uploads by itself.
        Device::Software | Device::Nvenc { .. } => {}
        Device::Vaapi { .. } => filters.push("hwupload".to_owned()),
        Device::Qsv { .. } => filters.push(format!("hwupload=extra_hw_frames={EXTRA_SURFACES}")),
    }
    filters
}

/// The filters of a trial: pictures of the processor that are uploaded, scaled on the device where plans do that,
/// and encoded.
pub(crate) fn tried(encode: &VideoEncode) -> Vec<String> {
    let chain = match encode.device {
        Device::Vaapi { .. } => Chain::Vaapi,
        Device::Nvenc { .. } => Chain::Cuda,
        Device::Qsv { .. } | Device::Software => return delivered(encode),
    };
    let mut filters = chain.entered(encode.codec);
    filters.extend(
        encode
            .rungs
            .iter()
            .take(1)
            .flat_map(|rung| chain.quality(encode, rung)),
    );
    filters
}

/// The format of samples that devices take.
fn samples(codec: VideoCodec) -> &'static str {
    match codec {
        VideoCodec::H264 => "nv12",
        VideoCodec::Hevc => "p010le",
    }
}

/// The same, as filters on the device name it.
fn surface_samples(codec: VideoCodec) -> &'static str {
    match codec {
        VideoCodec::H264 => "nv12",
        VideoCodec::Hevc => "p010",
    }
}

/// Settings of the picture's encoder for each quality in `rungs`, in the order of the outputs.
pub(crate) fn video_arguments(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    args.add("-c:v");
    args.add(encoder_name(encode.codec, encode.device));
    match (encode.device, encode.codec) {
        (Device::Software, VideoCodec::H264) => x264(args, encode, rungs),
        (Device::Software, VideoCodec::Hevc) => x265(args, encode, rungs),
        (Device::Vaapi { .. }, _) => {
            args.add("-rc_mode VBR -bf 0");
            device(args, encode, rungs);
        }
        (Device::Nvenc { gpu }, codec) => {
            args.add("-gpu");
            args.one(gpu.to_string());
            args.add("-preset p4 -tune hq -rc vbr -rc-lookahead 0 -forced-idr 1");
            args.add(match codec {
                VideoCodec::H264 => "-bf 2 -b_ref_mode disabled",
                // Cards before Turing have no B-frames in HEVC.
                VideoCodec::Hevc => "-bf 0 -tier main",
            });
            device(args, encode, rungs);
        }
        (Device::Qsv { .. }, codec) => {
            args.add("-preset medium -bf 0 -forced_idr 1");
            if codec == VideoCodec::H264 {
                args.add("-look_ahead 0");
            }
            device(args, encode, rungs);
        }
    }
    if encode.self_describing {
        args.add("-bsf:v dump_extra=freq=keyframe");
    }
}

/// When each quality in `rungs` has its keyframes. Each is told for itself: newer FFmpegs take a list apart as they read
/// it, and leave the first time of it to the outputs that share it.
pub(super) fn keyframe_arguments(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet, times: &str) {
    for (n, _) in outputs(encode, rungs) {
        args.one(format!("-force_key_frames:v:{n}"));
        args.one(times);
    }
}

/// Each rung of `rungs`, with its place among the outputs.
fn outputs(encode: &VideoEncode, rungs: RungSet) -> impl Iterator<Item = (usize, &Rung)> {
    rungs.iter().filter_map(|n| encode.rungs.get(n)).enumerate()
}

/// `veryfast` with a constant quality of 21 under the plan's ceiling, one second of buffer. The closed groups
/// start where a segment does; x264 may add keyframes between at a change of scene.
fn x264(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    args.add("-preset veryfast -profile:v high -crf 21");
    for (n, rung) in outputs(encode, rungs) {
        args.one(format!("-level:v:{n}"));
        args.one(dotted(u32::from(rung.level)));
        ceiling(args, n, rung);
    }
    args.add("-g 100000 -keyint_min 1 -forced-idr 1");
}

/// Main 10, with a constant quality that corresponds to x264's under the same ceiling. x265 has its own words
/// for the level and for colours, and its own log.
fn x265(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    args.add("-preset veryfast -profile:v main10 -crf 26");
    for (n, rung) in outputs(encode, rungs) {
        ceiling(args, n, rung);
        args.one(format!("-x265-params:v:{n}"));
        let mut words = format!(
            "level-idc={}:high-tier=0:open-gop=0:repeat-headers=0:info=0:log-level=warning",
            dotted(u32::from(rung.level) / 3)
        );
        match encode.range {
            MasteringKind::Sdr => {}
            MasteringKind::Pq => {
                words.push_str(":colorprim=bt2020:transfer=smpte2084:colormatrix=bt2020nc:range=limited")
            }
            MasteringKind::Hlg => {
                words.push_str(":colorprim=bt2020:transfer=arib-std-b67:colormatrix=bt2020nc:range=limited");
            }
        }
        args.one(words);
    }
    args.add("-g 100000 -keyint_min 1 -forced-idr 1");
}

/// What all devices are told alike: the profile, and for each output its level, the published average of its
/// size and the ceiling.
fn device(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    args.add(match encode.codec {
        VideoCodec::H264 => "-profile:v high",
        VideoCodec::Hevc => "-profile:v main10",
    });
    for (n, rung) in outputs(encode, rungs) {
        args.one(format!("-level:v:{n}"));
        let level = match (encode.device, encode.codec) {
            // Quick Sync counts levels of HEVC as people do, and not as the bit stream does.
            (Device::Qsv { .. }, VideoCodec::Hevc) => rung.level / 3,
            _ => rung.level,
        };
        args.one(level.to_string());
        args.one(format!("-b:v:{n}"));
        args.one(average(encode, rung).to_string());
        ceiling(args, n, rung);
    }
    args.add("-g");
    args.add(LONG_GROUP);
}

/// The average bit rate of a quality on a device, which has no constant quality that all kinds share.
fn average(encode: &VideoEncode, rung: &Rung) -> u64 {
    let rate = encode.frame_rate.map(Into::into);
    average_bit_rate(rung.width, rung.height, rate).min(rung.max_bit_rate / 10 * 9)
}

/// The bound of one quality: no second of it has more bits.
fn ceiling(args: &mut Arguments, n: usize, rung: &Rung) {
    for option in ["maxrate", "bufsize"] {
        args.one(format!("-{option}:v:{n}"));
        args.one(rung.max_bit_rate.to_string());
    }
}

/// A level as people write it: 31 is `3.1`.
fn dotted(level: u32) -> String {
    format!("{}.{}", level / 10, level % 10)
}
