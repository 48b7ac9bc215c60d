//! Which device encodes a picture, and why that one and no other (E7).

use serde::{Deserialize, Serialize};

use crate::request::Device;

/// What encodes a picture, and what spoke for it and against the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The device.
    pub device: Device,
    /// What of the picture's work it does.
    pub share: Share,
    /// Why, the deciding reason last.
    pub reasons: Vec<ChoiceReason>,
}

/// What of the work on a picture a device does; the processor does the rest. What each costs is charged to whoever
/// does it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// None of it.
    #[default]
    Nothing,
    /// It encodes.
    Encoding,
    /// It decodes, filters and encodes.
    Everything,
}

/// How often an encoder used which devices, and how often that did not work, since its start: what a falling back
/// costs an owner in all, where a session says why it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceCounts {
    /// Executions that a device was to encode for.
    pub hardware: u64,
    /// Executions that the processor was to encode for.
    pub software: u64,
    /// Of those, how many had a device passed over that has proved itself before.
    pub fallbacks: u64,
    /// Runs that a device took no session for.
    pub full: u64,
    /// Runs that a device failed.
    pub failed: u64,
}

/// One thing that spoke for or against a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum ChoiceReason {
    /// Nothing of the picture is encoded.
    NothingToEncode,
    /// The owner wants no hardware.
    HardwareOff,
    /// This machine has no device that encodes, or none of the kind that the owner wants.
    NoDevice,
    /// A device was passed over.
    Rejected {
        /// The device.
        rejected: Device,
        /// Why.
        why: Rejection,
    },
    /// The device has proved that it can do what is asked.
    Proved,
    /// The processor always can.
    Software,
}

impl std::fmt::Display for ChoiceReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NothingToEncode => f.write_str("the picture is not encoded"),
            Self::HardwareOff => f.write_str("hardware encoding is turned off"),
            Self::NoDevice => f.write_str("this machine has no encoding device that could be used"),
            Self::Rejected { rejected, why } => write!(f, "{rejected} was passed over: {why}"),
            Self::Proved => f.write_str("the device has proved that it can"),
            Self::Software => f.write_str("the processor encodes"),
        }
    }
}

/// Why a device is not used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case", tag = "why")]
pub enum Rejection {
    /// FFmpeg lacks something that the plan needs.
    #[error("FFmpeg lacks {what}")]
    Lacks {
        /// FFmpeg's name of it, such as `encoder h264_vaapi`.
        what: String,
    },
    /// A trial encode failed.
    #[error("a trial failed: {said}")]
    Trial {
        /// The deciding one of FFmpeg's last words.
        said: String,
    },
    /// The device was never tried, or the trial took too long: nothing is known of it.
    #[error("it could not be tried")]
    Unknown,
    /// What it gives is not what a playlist announces (D2).
    #[error("it gives another profile or level than it is told")]
    OtherConfiguration,
    /// It failed while it was used and has not proved since that it works, or failed several films.
    #[error("it failed while it was used: {said}")]
    Lost {
        /// The deciding one of FFmpeg's last words.
        said: String,
    },
    /// It did not get on with this film a while ago, and has proved since that it works.
    #[error("it failed with this film: {said}")]
    Film {
        /// The deciding one of FFmpeg's last words, or what else there was to say.
        said: String,
    },
    /// It took no further session a moment ago.
    #[error("it takes no further session")]
    Full,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Software => f.write_str("the processor"),
            Self::Vaapi { node } => write!(f, "VA-API on renderD{node}"),
            Self::Nvenc { gpu } => write!(f, "NVENC on card {gpu}"),
            Self::Qsv { node } => write!(f, "Quick Sync on renderD{node}"),
        }
    }
}

impl Device {
    /// Whether it is anything but the processor.
    pub fn is_hardware(self) -> bool {
        self != Self::Software
    }
}
