//! How each encoder is told what to make.

use ether_encoder::{Device, VideoCodec, VideoEncode};

use super::Arguments;
use crate::strand::RungSet;

/// Arguments that make a device ready, before the input.
pub(super) fn device_arguments(_args: &mut Arguments, _device: Device) {}

/// Settings of the picture's encoder for each quality in `rungs`, in the order of the outputs.
pub(super) fn video_arguments(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    let VideoCodec::H264 = encode.codec else { return };
    x264(args, encode, rungs);
}

/// `veryfast` with a constant quality of 21 under the plan's ceiling, one second of buffer. The closed groups
/// start where a segment does; x264 may add keyframes between at a change of scene.
fn x264(args: &mut Arguments, encode: &VideoEncode, rungs: RungSet) {
    args.add("-c:v libx264 -preset veryfast -profile:v high -crf 21");
    for (n, rung) in rungs.iter().filter_map(|n| encode.rungs.get(n)).enumerate() {
        args.one(format!("-level:v:{n}"));
        args.one(format!("{}.{}", rung.level / 10, rung.level % 10));
        for option in ["maxrate", "bufsize"] {
            args.one(format!("-{option}:v:{n}"));
            args.one(rung.max_bit_rate.to_string());
        }
    }
    args.add("-g 100000 -keyint_min 1 -forced-idr 1");
}
