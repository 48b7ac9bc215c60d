//! FFmpeg's lists of what it was built with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::time::Duration;

use ether_process::{Bounds, RunError, SpawnError, Spawner, Spec};
use serde::{Deserialize, Serialize};

use super::InventoryError;

/// Time that one question may take, and bytes that one answer may have (T22).
pub(super) const QUESTION: Duration = Duration::from_secs(3);
pub(super) const ANSWER: usize = 1 << 20;
/// How often the first question is asked where it is not answered in time: a disk that slept has woken by then.
const TRIES: u32 = 2;

/// A kind of thing that FFmpeg has or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An encoder.
    Encoder,
    /// A decoder, by its name or by the codec it decodes.
    Decoder,
    /// A filter.
    Filter,
    /// A writer of containers.
    Muxer,
    /// A reader of containers.
    Demuxer,
    /// A filter of packets.
    BitstreamFilter,
    /// A way to bytes.
    Protocol,
    /// A kind of device.
    Hwaccel,
    /// A format of samples of pictures.
    PixelFormat,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Encoder,
        Kind::Decoder,
        Kind::Filter,
        Kind::Muxer,
        Kind::Demuxer,
        Kind::BitstreamFilter,
        Kind::Protocol,
        Kind::Hwaccel,
        Kind::PixelFormat,
    ];

    fn question(self) -> &'static str {
        match self {
            Kind::Encoder => "-encoders",
            Kind::Decoder => "-decoders",
            Kind::Filter => "-filters",
            Kind::Muxer => "-muxers",
            Kind::Demuxer => "-demuxers",
            Kind::BitstreamFilter => "-bsfs",
            Kind::Protocol => "-protocols",
            Kind::Hwaccel => "-hwaccels",
            Kind::PixelFormat => "-pix_fmts",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Encoder => "encoder",
            Kind::Decoder => "decoder",
            Kind::Filter => "filter",
            Kind::Muxer => "muxer",
            Kind::Demuxer => "demuxer",
            Kind::BitstreamFilter => "bitstream filter",
            Kind::Protocol => "protocol",
            Kind::Hwaccel => "hardware acceleration",
            Kind::PixelFormat => "pixel format",
        })
    }
}

/// Whether FFmpeg has a thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It says so.
    Present,
    /// It lists everything of the kind, and not this.
    Absent,
    /// The question failed or took too long.
    Unknown,
}

/// What each question was answered with; a kind without an answer is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Lists(BTreeMap<Kind, BTreeSet<String>>);

impl Lists {
    pub(super) fn presence(&self, kind: Kind, name: &str) -> Presence {
        match self.0.get(&kind) {
            None => Presence::Unknown,
            Some(names) if names.contains(name) => Presence::Present,
            Some(_) => Presence::Absent,
        }
    }

    pub(super) fn unanswered(&self) -> Vec<Kind> {
        let lacks = |kind: &Kind| !self.0.contains_key(kind);
        Kind::ALL.into_iter().filter(lacks).collect()
    }

    #[cfg(test)]
    pub(super) fn add(&mut self, kind: Kind, name: &str) {
        self.0.entry(kind).or_default().insert(name.to_owned());
    }

    #[cfg(test)]
    pub(super) fn remove(&mut self, kind: Kind, name: &str) {
        assert!(
            self.0.get_mut(&kind).unwrap().remove(name),
            "there is a {kind} {name}"
        );
    }

    /// Takes in an answer. One without any name is none: no FFmpeg has none of a kind, except of devices.
    pub(super) fn fill(&mut self, kind: Kind, text: &str) {
        let names = read(kind, text);
        if !names.is_empty() || kind == Kind::Hwaccel {
            self.0.insert(kind, names);
        }
    }
}

/// The names in one of FFmpeg's lists.
fn read(kind: Kind, text: &str) -> BTreeSet<String> {
    match kind {
        Kind::BitstreamFilter | Kind::Protocol | Kind::Hwaccel => bare(text),
        Kind::Muxer | Kind::Demuxer => marked(text)
            .flat_map(|(name, _)| name.split(','))
            .map(str::to_owned)
            .collect(),
        Kind::Decoder => {
            let mut names = BTreeSet::new();
            for (name, rest) in marked(text) {
                names.insert(name.to_owned());
                // What a decoder is named and what it decodes differ for some: `libdav1d … (codec av1)`.
                let codec = rest
                    .rsplit_once("(codec ")
                    .and_then(|(_, codec)| codec.strip_suffix(')'));
                names.extend(codec.map(str::to_owned));
            }
            names
        }
        _ => marked(text).map(|(name, _)| name.to_owned()).collect(),
    }
}

/// Names that stand alone in their lines, below a heading that ends in a colon.
fn bare(text: &str) -> BTreeSet<String> {
    let words = text.lines().map(str::trim);
    let name = |line: &&str| !line.is_empty() && !line.ends_with(':') && !line.contains(' ');
    words.filter(name).map(str::to_owned).collect()
}

/// The second words of lines that begin with marks, and what follows them. The explanations of the marks have
/// `=` there. How many marks there are, and whether they are set off, differs between versions and lists.
fn marked(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mark = |word: &str| word.bytes().all(|b| b == b'.' || b.is_ascii_uppercase());
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        let (marks, rest) = line.split_once(char::is_whitespace)?;
        let rest = rest.trim_start();
        // Newer versions set the mark of devices off: ` D d lavfi`.
        let rest = rest.strip_prefix("d ").map_or(rest, str::trim_start);
        let (name, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        (mark(marks) && !name.is_empty() && name != "=").then_some((name, rest.trim()))
    })
}

/// The first line of FFmpeg about itself.
pub(super) async fn version(spawner: &Spawner, program: &Path) -> Result<String, InventoryError> {
    let program = program.to_owned();
    for _ in 0..TRIES {
        let mut spec = Spec::new(&program);
        spec.arg("-version").stdout_pipe();
        match spawner.run_bounded(spec, bounds()).await {
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stdout);
                return Ok(text.lines().next().unwrap_or_default().to_owned());
            }
            Err(RunError::Spawn(SpawnError::NotFound { .. } | SpawnError::NotExecutable { .. })) => {
                return Err(InventoryError::Missing { program });
            }
            Err(RunError::DeadlineExceeded { .. }) => {}
            Err(_) => return Err(InventoryError::NoAnswer { program }),
        }
    }
    Err(InventoryError::Slow { program })
}

/// What FFmpeg lists of `kind`; nothing where it does not answer in time.
pub(super) async fn answer(spawner: &Spawner, program: &Path, kind: Kind) -> Option<String> {
    let mut spec = Spec::new(program);
    spec.args(["-hide_banner", kind.question()]).stdout_pipe();
    match spawner.run_bounded(spec, bounds()).await {
        Ok(output) => Some(String::from_utf8_lossy(&output.stdout).into_owned()),
        Err(error) => {
            tracing::warn!(%error, %kind, "FFmpeg does not say what it has");
            None
        }
    }
}

fn bounds() -> Bounds {
    Bounds {
        stdin: None,
        max_output: ANSWER,
        deadline: QUESTION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn devices_are_read_whether_their_mark_is_set_off_or_not() {
        for list in [
            "Demuxers:\n  D. = Demuxing supported\n --\n D  lavfi  Virtual input\n D  mov,mp4  QuickTime\n",
            "Demuxers:\n  D.. = Demuxing supported\n  ..d = Is a device\n ---\n D d lavfi  Virtual input\n D   mov,mp4  x\n",
        ] {
            let names: Vec<&str> = marked(list).map(|(name, _)| name).collect();
            assert_eq!(names, ["lavfi", "mov,mp4"]);
        }
    }

    #[test]
    fn lists_of_either_form_are_read() {
        let list = "Filters:\n  T.. = Timeline support\n  | = Source or sink filter\n ... trim  V->V  Pick.\n T.C gblur V->V x\n";
        assert_eq!(read(Kind::Filter, list), set(["gblur", "trim"]));
        let newer = "Filters:\n  T.. = Timeline\n  ------\n TS aap  AA->A  Apply.\n .. trim  V->V  Pick.\n";
        assert_eq!(read(Kind::Filter, newer), set(["aap", "trim"]));
        let encoders = "Encoders:\n V..... = Video\n ------\n V....D libx264  H.264\n A....D aac  AAC\n";
        assert_eq!(read(Kind::Encoder, encoders), set(["aac", "libx264"]));
    }

    #[test]
    fn other_lists_have_forms_of_their_own() {
        let demuxers = "File formats:\n D. = Demuxing supported\n --\n D  matroska,webm   Matroska / WebM\n D  mpegts  TS\n";
        assert_eq!(read(Kind::Demuxer, demuxers), set(["matroska", "mpegts", "webm"]));
        let decoders = "Decoders:\n V..... = Video\n ------\n V....D libdav1d  dav1d decoder (codec av1)\n A....D dca  DCA (DTS) (codec dts)\n";
        assert_eq!(
            read(Kind::Decoder, decoders),
            set(["av1", "dca", "dts", "libdav1d"])
        );
        let protocols = "Supported file protocols:\nInput:\n  file\n  pipe\nOutput:\n  file\n";
        assert_eq!(read(Kind::Protocol, protocols), set(["file", "pipe"]));
        let formats = "Pixel formats:\nI.... = Supported Input\nFLAGS NAME NB\n-----\nIO... yuv420p  3  12  8-8-8\n..H.. vaapi 0 0 0\n";
        let read = read(Kind::PixelFormat, formats);
        assert!(read.contains("yuv420p") && read.contains("vaapi"), "{read:?}");
    }

    #[test]
    fn an_answer_without_names_is_no_answer() {
        let mut lists = Lists::default();
        lists.fill(Kind::Encoder, "an error that looks like nothing\n");
        assert_eq!(lists.presence(Kind::Encoder, "libx264"), Presence::Unknown);
        lists.fill(Kind::Hwaccel, "Hardware acceleration methods:\n\n");
        assert_eq!(lists.presence(Kind::Hwaccel, "vaapi"), Presence::Absent);
    }
}
