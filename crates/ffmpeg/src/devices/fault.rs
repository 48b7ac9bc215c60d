//! What FFmpeg's last words say about the device that was to encode.
//!
//! The texts are those of FFmpeg's encoders (`nvenc.c`, `vaapi_encode.c`, `qsvenc.c`), with the numbers of the
//! interfaces behind them, which change less than words do.

use ether_encoder::Device;

use crate::inventory::deciding;

/// How a device did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It takes no further session: its capacity is used up.
    Full,
    /// It does not work, by its own words.
    Failed {
        /// The deciding one of FFmpeg's last words.
        said: String,
    },
    /// The run came to nothing, and whether by the device, the film or the disk nobody said.
    Unclear {
        /// What there is to say about it.
        said: String,
    },
}

/// Answers of NVENC to one session more than a card takes: out of memory, and since 2023 a key that does not
/// fit.
const NVENC_FULL: [&str; 2] = [
    "OpenEncodeSessionEx failed: out of memory (10)",
    "OpenEncodeSessionEx failed: incompatible client key (21)",
];
/// VA-API's numbers for: no resources, more than its greatest number, busy.
const VAAPI_FULL: [&str; 3] = [
    "Failed to create encode pipeline context: 2 (",
    "Failed to create encode pipeline context: 11 (",
    "Failed to create encode pipeline context: 34 (",
];
/// Quick Sync's number for no memory, which on a card stands for all its resources.
const QSV_FULL: [&str; 1] = ["Error initializing the encoder: failed to allocate memory (-4)"];

/// Words that only a device's own failure brings.
const OF_DEVICES: [&str; 16] = [
    "_nvenc @",
    "_vaapi @",
    "_qsv @",
    "AVHWDeviceContext",
    "AVHWFramesContext",
    "Device creation failed",
    "No device available",
    "hwupload",
    "_cuda",
    "libcuda",
    "Error initializing an internal MFX session",
    "Failed to end picture encode",
    "Failed to sync",
    "device lost",
    "device failed",
    "No capable devices found",
];

impl Fault {
    /// What the last words of a failed run of `device` mean; nothing where they are about something else, such
    /// as the film. A run that made nothing at all may have failed by the device whatever it says: the same film is
    /// then encoded by the processor, which will say what it is.
    pub(crate) fn of(device: Device, lines: &[String], made_something: bool) -> Option<Self> {
        let full: &[&str] = match device {
            Device::Software => return None,
            Device::Nvenc { .. } => &NVENC_FULL,
            Device::Vaapi { .. } => &VAAPI_FULL,
            Device::Qsv { .. } => &QSV_FULL,
        };
        let has = |words: &[&str]| {
            lines
                .iter()
                .any(|line| words.iter().any(|word| line.contains(word)))
        };
        if has(full) {
            return Some(Self::Full);
        }
        let said = deciding(lines);
        if has(&OF_DEVICES) {
            return Some(Self::Failed { said });
        }
        (!made_something).then_some(Self::Unclear { said })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(device: Device, line: &str, made: bool) -> Option<Fault> {
        Fault::of(device, &[line.to_owned(), "Conversion failed!".to_owned()], made)
    }

    const NVENC: Device = Device::Nvenc { gpu: 0 };
    const VAAPI: Device = Device::Vaapi { node: 128 };
    const QSV: Device = Device::Qsv { node: 128 };

    /// As FFmpeg 5.1 and 9.0 print them.
    #[test]
    fn one_session_too_many_is_want_of_capacity() {
        for (device, line) in [
            (
                NVENC,
                "[h264_nvenc @ 0x55d] OpenEncodeSessionEx failed: out of memory (10): (no details)",
            ),
            (
                NVENC,
                "[hevc_nvenc @ 0x55d] OpenEncodeSessionEx failed: incompatible client key (21): (no details)",
            ),
            (
                VAAPI,
                "[h264_vaapi @ 0x55d] Failed to create encode pipeline context: 2 (resource allocation failed).",
            ),
            (
                VAAPI,
                "[h264_vaapi @ 0x55d] Failed to create encode pipeline context: 34 (HW busy now).",
            ),
            (
                QSV,
                "[h264_qsv @ 0x55d] Error initializing the encoder: failed to allocate memory (-4)",
            ),
        ] {
            assert_eq!(fault(device, line, false), Some(Fault::Full), "{line}");
            assert_eq!(fault(Device::Software, line, false), None);
        }
    }

    #[test]
    fn a_device_that_does_not_work_is_told_from_a_film_that_does_not() {
        for (device, line) in [
            (
                NVENC,
                "[h264_nvenc @ 0x1] OpenEncodeSessionEx failed: unsupported device (2): (no details)",
            ),
            (NVENC, "[AVHWDeviceContext @ 0x1] Cannot load libcuda.so.1"),
            (
                VAAPI,
                "[h264_vaapi @ 0x1] Failed to end picture encode issue: 24 (internal encoding error).",
            ),
            (VAAPI, "Device creation failed: -22."),
            (QSV, "[h264_qsv @ 0x1] Error during encoding: device failed (-17)"),
        ] {
            let Some(Fault::Failed { said }) = fault(device, line, true) else {
                panic!("{line}")
            };
            assert!(line.starts_with(&said[..5]) && !said.contains("0x1"), "{said}");
        }
        let film = "[matroska,webm @ 0x1] Read error";
        assert_eq!(fault(VAAPI, film, true), None);
        assert!(matches!(fault(VAAPI, film, false), Some(Fault::Unclear { .. })));
    }
}
