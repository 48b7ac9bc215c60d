//! What is done for every encoder process, whoever reads its output: how it is started so that its last words
//! give nothing away, when it counts as stalled, and what its end means.

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{Ended, Input, Refusal, VideoEncode};
use ether_media::Facts;
use ether_process::{Activity, ExitEvidence, Spec};
use ether_types::Monotonic;

use crate::devices::{Devices, Fault};
use crate::origin::{self, Origin};

/// How often a run's progress is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// How long an encoder that is not held back may neither make, nor read, nor compute anything before it counts as
/// stalled.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it may compute without reading or making anything: a group of pictures that is decoded slowly takes as
/// long, and one that spins takes for ever.
const COMPUTING: Duration = Duration::from_secs(2 * 60);
/// How long it may read without making anything: a seek in a film without an index, or far from its last keyframe,
/// reads all that lies before.
const READING: Duration = Duration::from_secs(10 * 60);
/// The least part of the time that an encoder computes which counts as computing, as a divisor.
const BUSY: u32 = 10;

/// Signals by which a driver ends the process that uses it.
const SIGILL: i32 = 4;
const SIGABRT: i32 = 6;
const SIGBUS: i32 = 7;
const SIGSEGV: i32 = 11;

/// FFmpeg with `args`, its output in a pipe, and whatever it says without the name of its source.
pub(crate) fn spec(program: &Path, args: &[OsString], origin: &Origin) -> Spec {
    let mut spec = Spec::new(program);
    spec.args(args).stdout_pipe();
    spec.redact(origin.redactor());
    spec
}

/// What the exit of a process that failed means: that of its source where this is the reason, by the file system or
/// by the process's last words, `lines`.
pub(crate) async fn failure(
    evidence: &ExitEvidence,
    lines: &[String],
    stalled: bool,
    origin: &Origin,
) -> Ended {
    match origin.check_apart().await {
        Err(ended) => ended,
        Ok(()) if stalled => Ended::Stalled,
        Ok(()) => source_lost(lines, origin).await.unwrap_or(Ended::Failed {
            status: evidence.status().code(),
            signal: evidence.status().signal(),
        }),
    }
}

/// What the system says of a disk or share that does not give what it has.
const UNREADABLE: [&str; 8] = [
    "Input/output error",
    "Remote I/O error",
    "Stale file handle",
    "Transport endpoint is not connected",
    "Connection timed out",
    "No such device",
    "No such device or address",
    "Host is down",
];

/// Whether a run ended because its source cannot be read, by its last words or because the system does not give the
/// file's ends: a demuxer that looks there for an index finds none, and says no more than that.
pub(crate) async fn source_lost(lines: &[String], origin: &Origin) -> Option<Ended> {
    let path = match origin.input() {
        Input::File { path, .. } => Some(path.clone()),
        // A gateway knows what kept its readers from their bytes.
        Input::Gateway(_) => match origin.check() {
            Err(ended) => return Some(ended),
            Ok(()) => None,
        },
    };
    if said_lost(lines) {
        return Some(Ended::SourceLost);
    }
    let path = path?;
    let look = move || origin::open(&path).and_then(|file| ends(&file, file.metadata()?.len()));
    // Whether it is there at all is another's question.
    let looked = tokio::task::spawn_blocking(look).await;
    let lost = matches!(looked, Ok(Err(error)) if error.kind() != ErrorKind::NotFound);
    lost.then_some(Ended::SourceLost)
}

/// Reads the first and the last bytes of a file of `len`.
fn ends(file: &File, len: u64) -> std::io::Result<()> {
    let mut bytes = [0; 4_096];
    let last = len.saturating_sub(bytes.len() as u64);
    file.read_at(&mut bytes, 0)?;
    file.read_at(&mut bytes, last)?;
    Ok(())
}

/// Whether FFmpeg's last words are that the source could not be read. It takes that for the source's end, makes what
/// it has, and exits as after a whole film: only the words tell the two apart.
fn said_lost(lines: &[String]) -> bool {
    lines.iter().any(|line| {
        // Of a device or an output it may say the same.
        let of_source = line.contains("<source>: ")
            || line.contains("Error during demuxing: ")
            || line.contains("Error opening input: ");
        of_source && UNREADABLE.iter().any(|words| line.trim_end().ends_with(words))
    })
}

/// What the end of a run means for the device that was to `encode` a film with these `facts`, where it was not the
/// processor: told to `devices`, and to whoever waits for the run. `made` says whether it made anything.
pub(crate) fn device_fault(
    devices: &Arc<Devices>,
    (encode, facts): (&VideoEncode, &Arc<Facts>),
    ended: &Ended,
    lines: &[String],
    made: bool,
) -> Option<Refusal> {
    let fault = match ended {
        _ if !encode.device.is_hardware() => return None,
        Ended::Failed {
            signal: None | Some(SIGILL | SIGABRT | SIGBUS | SIGSEGV),
            ..
        }
        | Ended::Unreadable => Fault::of(encode.device, lines, made)?,
        // A disk that does not answer stalls a run as a device does.
        Ended::Stalled => Fault::Unclear {
            said: "it made nothing for too long".to_owned(),
        },
        Ended::ConfigurationChanged => Fault::Failed {
            said: "it gives another configuration than was announced".to_owned(),
        },
        _ => return None,
    };
    Some(devices.failed(encode.device, encode.codec, facts, fault))
}

/// What shows at one look that a process gets on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sight {
    /// Changes as its media gets on.
    pub(crate) made: u64,
    /// What the kernel has counted of it, where it can be asked.
    pub(crate) activity: Option<Activity>,
    /// Whether it is not its turn.
    pub(crate) held: bool,
}

/// Watches what a process makes.
#[derive(Debug)]
pub(crate) struct Vigil {
    seen: Sight,
    seen_at: Monotonic,
    /// When it last made, read or computed something, or was held back.
    made_at: Monotonic,
    read_at: Monotonic,
    computed_at: Monotonic,
    next_look: Monotonic,
    stalled: bool,
}

impl Vigil {
    /// Begins at `now`, with nothing made.
    pub(crate) fn begin(now: Monotonic) -> Self {
        Self {
            seen: Sight::default(),
            seen_at: now,
            made_at: now,
            read_at: now,
            computed_at: now,
            next_look: now.saturating_add(LOOK),
            stalled: false,
        }
    }

    /// How long until the next look, however busy its owner is with viewers meanwhile.
    pub(crate) fn until_look(&self, now: Monotonic) -> Duration {
        self.next_look.saturating_since(now)
    }

    /// Looks at `now`. True once, when the process has to be ended because it lives and makes nothing. What it writes
    /// without its media getting on is no progress: an encoder that writes and never gets on is as stalled as a silent
    /// one. What it reads and computes earns it patience, and not for ever.
    pub(crate) fn look(&mut self, now: Monotonic, sight: Sight) -> bool {
        let before = self.seen.activity.unwrap_or_default();
        if sight.made != self.seen.made || sight.held {
            self.made_at = now;
        }
        if let Some(activity) = sight.activity {
            if activity.read > before.read {
                self.read_at = now;
            }
            let computed = activity.computed.saturating_sub(before.computed);
            if computed * BUSY > now.saturating_since(self.seen_at) {
                self.computed_at = now;
            }
        }
        self.seen = Sight {
            activity: sight.activity.or(self.seen.activity),
            ..sight
        };
        self.seen_at = now;
        self.next_look = now.saturating_add(LOOK);
        let read_at = self.read_at.max(self.made_at);
        let computed_at = self.computed_at.max(read_at);
        let since = |at| now.saturating_since(at);
        let stalled =
            since(self.made_at) >= READING || since(read_at) >= COMPUTING || since(computed_at) >= PATIENCE;
        let first = stalled && !self.stalled;
        self.stalled |= stalled;
        first
    }

    /// Whether it was found to be stalled.
    pub(crate) fn stalled(&self) -> bool {
        self.stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks every five seconds at a process of which `activity` says what it has read and computed by then; the
    /// second at which it is given up.
    fn given_up(activity: impl Fn(u64) -> (u64, Duration)) -> Option<u64> {
        let at = |second| Monotonic::from_origin(Duration::from_secs(second));
        let mut vigil = Vigil::begin(at(0));
        (1..=200).map(|n| n * 5).find(|second| {
            let (read, computed) = activity(*second);
            let sight = Sight {
                activity: Some(Activity { read, computed }),
                ..Sight::default()
            };
            vigil.look(at(*second), sight)
        })
    }

    #[test]
    fn what_reads_or_computes_is_given_time_and_not_for_ever() {
        let secs = Duration::from_secs;
        assert_eq!(given_up(|_| (0, secs(0))), Some(30), "it does nothing");
        // A seek through a film without an index, which then waits for a disk that is gone.
        assert_eq!(given_up(|now| (now.min(200) * 1_000, secs(0))), Some(230));
        // One that decodes a long group out of what it has read.
        assert_eq!(given_up(|now| (4_096, secs(now.min(60)))), Some(90));
        assert_eq!(given_up(|now| (0, secs(now))), Some(120), "it spins");
        assert_eq!(given_up(|now| (now, secs(now))), Some(600), "it reads for ever");
        // Waking up now and then is no work.
        let ticks = |now: u64| (0, Duration::from_millis(now * 20));
        assert_eq!(given_up(ticks), Some(30));
    }

    #[test]
    fn a_source_that_cannot_be_read_is_told_from_one_that_ends() {
        for (line, lost) in [
            ("file:<source>: Input/output error", true),
            (
                "[in#0/matroska,webm @ 0x1] Error during demuxing: Input/output error",
                true,
            ),
            ("[in#0 @ 0x1] Error opening input: Stale file handle", true),
            ("file:<source>: Invalid data found when processing input", false),
            ("[matroska,webm @ 0x1] File ended prematurely at pos. 7", false),
            (
                "[AVHWDeviceContext @ 0x1] Failed to open /dev/dri/renderD128: Input/output error",
                false,
            ),
            ("pipe:1: Input/output error", false),
        ] {
            assert_eq!(said_lost(&[line.to_owned()]), lost, "{line}");
        }
    }

    /// The system's own example of a file that is there and gives an error wherever it is read.
    #[tokio::test]
    async fn a_file_that_the_system_does_not_give_is_lost_without_words() {
        for (path, lost) in [
            ("/proc/self/mem", Some(Ended::SourceLost)),
            ("/proc/self/stat", None),
            ("/proc/self/nothing", None),
        ] {
            let file = std::fs::metadata("/proc/self/stat").unwrap();
            let origin = Origin::new(Input::File {
                path: path.into(),
                revision: ether_encoder::Revision::of_metadata(&file),
            });
            assert_eq!(source_lost(&[], &origin).await, lost, "{path}");
        }
    }
}
