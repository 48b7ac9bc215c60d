//! What `ether doctor` looks at: each finding with its mend. Nothing is changed.

mod media;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{Device, VideoCodec};
use ether_ffmpeg::inventory::{Kind, OLDEST_MAJOR, Presence, Trial, Verdict};
use ether_ffmpeg::{Inventory, InventoryError};
use ether_process::{Bounds, Config, Processes, RunError, Spawner, Spec, find_runnable};
use ether_types::Clock;
use rustix::fs::Access;
use serde::Serialize;

use crate::data_dir::{DataDir, DataDirError};

/// Free space below which a film that is encoded may not fit, in MiB.
const SCRATCH_WARNING_MIB: u64 = 2_048;
/// Free space below which nothing is encoded: what the lightest film is charged with a little to spare, and the
/// least that the server takes for `--scratch`.
const SCRATCH_LEAST_MIB: u64 = 64;
/// Watches below which a large library cannot be watched whole.
const WATCHES_WARNING: u64 = 65_536;
const WATCHES_MEND: &str = "sysctl fs.inotify.max_user_watches=524288 fs.inotify.max_user_instances=512";

/// Time that a program has to say what it is, and bytes that it may take for it.
const QUESTION: Duration = Duration::from_secs(3);
const ANSWER: usize = 64 * 1024;

/// What is looked at.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Folders of films; none where only the machine is to be looked at.
    pub media: Vec<PathBuf>,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The directory for scratch files, where it is not inside the data directory.
    pub scratch_dir: Option<PathBuf>,
    /// Where the server would listen.
    pub listen: SocketAddr,
    /// The FFmpeg program.
    pub ffmpeg: PathBuf,
    /// The ffprobe program.
    pub ffprobe: PathBuf,
}

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// It works, and something will not.
    Warning,
    /// The server does not start, or encodes nothing.
    Failure,
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Area {
    /// Whether child processes can be guarded.
    Processes,
    /// The FFmpeg program.
    Ffmpeg,
    /// Its encoders.
    Encoders,
    /// What else it needs for some films.
    Parts,
    /// Devices that encode.
    Hardware,
    /// The ffprobe program.
    Ffprobe,
    /// The data directory.
    #[serde(rename = "data directory")]
    DataDirectory,
    /// The place of scratch files.
    Scratch,
    /// Folders of films.
    Media,
    /// The address to listen on.
    Port,
    /// How many folders can be watched.
    Watches,
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Processes => "processes",
            Self::Ffmpeg => "ffmpeg",
            Self::Encoders => "encoders",
            Self::Parts => "parts",
            Self::Hardware => "hardware",
            Self::Ffprobe => "ffprobe",
            Self::DataDirectory => "data directory",
            Self::Scratch => "scratch",
            Self::Media => "media",
            Self::Port => "port",
            Self::Watches => "watches",
        })
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: Area,
    /// How grave it is.
    pub grade: Grade,
    /// What was found.
    pub found: String,
    /// What to do about it; empty where nothing need be done.
    pub mend: String,
}

impl Finding {
    fn ok(subject: Area, found: impl Into<String>) -> Self {
        Self {
            subject,
            grade: Grade::Ok,
            found: found.into(),
            mend: String::new(),
        }
    }

    fn warning(subject: Area, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            subject,
            grade: Grade::Warning,
            found: found.into(),
            mend: mend.into(),
        }
    }

    fn failure(subject: Area, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            subject,
            grade: Grade::Failure,
            found: found.into(),
            mend: mend.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.grade {
            Grade::Ok => "ok  ",
            Grade::Warning => "warn",
            Grade::Failure => "FAIL",
        };
        write!(f, "{mark}  {:<14} {}", self.subject, self.found)?;
        if self.mend.is_empty() {
            Ok(())
        } else {
            write!(f, "\n      {:<14} -> {}", "", self.mend)
        }
    }
}

/// Looks at everything, in the order in which a start would need it.
pub async fn examine(subject: &Subject, clock: Arc<dyn Clock>) -> Vec<Finding> {
    let mut findings = programs(subject, clock.clone()).await;
    findings.push(data_dir(&subject.data_dir));
    findings.push(scratch(subject));
    findings.extend(media::folders(&subject.media, &*clock).await);
    findings.push(port(subject.listen));
    findings.extend(limits());
    findings
}

async fn programs(subject: &Subject, clock: Arc<dyn Clock>) -> Vec<Finding> {
    let processes = match Processes::start(Config::guarded(clock.clone())) {
        Ok(processes) => processes,
        Err(error) => {
            let mend = "check the limits on processes (`ulimit -u`)";
            return vec![Finding::failure(Area::Processes, error.to_string(), mend)];
        }
    };
    let mut findings = ffmpeg(&subject.ffmpeg, &processes.spawner(), &*clock).await;
    findings.push(ffprobe(&subject.ffprobe, &processes.spawner()).await);
    processes.shutdown().await;
    findings
}

async fn ffmpeg(program: &Path, spawner: &Spawner, clock: &dyn Clock) -> Vec<Finding> {
    // Asked anew: a doctor does not trust what was remembered.
    let nowhere = Path::new("/dev/null/none");
    let inventory = match Inventory::load(spawner, clock, program, nowhere).await {
        Ok(inventory) => inventory,
        Err(error) => {
            let mend = match error {
                InventoryError::Slow { .. } => format!(
                    "see whether `{} -version` answers; look again when this machine and its disk are less busy, or \
                     name another with --ffmpeg",
                    program.display()
                ),
                _ => format!(
                    "Debian: apt install ffmpeg (version {OLDEST_MAJOR}.1 or later); or name one with --ffmpeg"
                ),
            };
            return vec![Finding::failure(Area::Ffmpeg, error.to_string(), mend)];
        }
    };
    let mut findings = vec![Finding::ok(Area::Ffmpeg, inventory.version.clone())];
    let lacks = ["libx264", "aac"]
        .into_iter()
        .filter(|name| inventory.presence(Kind::Encoder, name) == Presence::Absent);
    let lacks: Vec<&str> = lacks.collect();
    findings.push(if lacks.is_empty() {
        Finding::ok(Area::Encoders, "libx264 and aac")
    } else {
        let found = format!("this FFmpeg lacks {}", lacks.join(" and "));
        let mend = "install an FFmpeg that was built with them, or name one with --ffmpeg";
        Finding::failure(Area::Encoders, found, mend)
    });
    findings.extend(parts(&inventory));
    findings.extend(hardware(&inventory.trials));
    findings
}

/// What some films need, and what goes without it.
const PARTS: [(Kind, &str, &str); 8] = [
    (
        Kind::Encoder,
        "libx265",
        "HDR pictures that are encoded become SDR",
    ),
    (Kind::Encoder, "libopus", "no sound is encoded to Opus"),
    (Kind::Filter, "bwdif", "interlaced pictures cannot be encoded"),
    (
        Kind::Filter,
        "zscale",
        "HDR pictures cannot be shown by players without HDR",
    ),
    (
        Kind::Filter,
        "tonemap",
        "HDR pictures cannot be shown by players without HDR",
    ),
    (
        Kind::Filter,
        "subtitles",
        "text subtitles cannot be drawn into pictures",
    ),
    (
        Kind::Filter,
        "overlay",
        "picture subtitles cannot be drawn into pictures",
    ),
    (
        Kind::Decoder,
        "av1",
        "AV1 films cannot be encoded for players without it",
    ),
];

fn parts(inventory: &Inventory) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (kind, name, without) in PARTS {
        if inventory.presence(kind, name) == Presence::Absent {
            let found = format!("this FFmpeg has no {kind} {name}: {without}");
            let mend = "install an FFmpeg that was built with it, or name one with --ffmpeg";
            findings.push(Finding::warning(Area::Parts, found, mend));
        }
    }
    let unanswered: Vec<String> = inventory.unanswered().iter().map(ToString::to_string).collect();
    if !unanswered.is_empty() {
        let found = format!(
            "FFmpeg did not say in time what it has of: {}",
            unanswered.join(", ")
        );
        let mend = "look again when this machine is less busy; until then films are tried, and work from other machines is refused";
        findings.push(Finding::warning(Area::Parts, found, mend));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(Area::Parts, "everything that films may need"));
    }
    findings
}

/// What became of each device that is there.
fn hardware(trials: &[Trial]) -> Vec<Finding> {
    if trials.is_empty() {
        let found = "no encoding device is there: the processor encodes";
        return vec![Finding::ok(Area::Hardware, found)];
    }
    trials.iter().map(tried).collect()
}

fn tried(trial: &Trial) -> Finding {
    let codec = match trial.codec {
        VideoCodec::H264 => "H.264",
        VideoCodec::Hevc => "HEVC",
    };
    let what = format!("{} and {codec}", trial.device);
    match &trial.verdict {
        Verdict::Works => Finding::ok(Area::Hardware, format!("{what}: works")),
        Verdict::Failed { said } => {
            let found = format!("{what}: {said}");
            Finding::warning(Area::Hardware, found, device_mend(trial.device, said))
        }
        Verdict::OtherConfiguration => {
            let found = format!("{what}: it gives another profile or level than it is told");
            let mend = "nothing, it is not used; a newer driver may do better";
            Finding::warning(Area::Hardware, found, mend)
        }
        Verdict::Full => {
            let found = format!("{what}: others use all that it has, so it could not be tried");
            let mend = "look again when less is encoded on it; until it could be tried it is not used";
            Finding::warning(Area::Hardware, found, mend)
        }
        Verdict::Unknown => {
            let found = format!("{what}: it could not be tried in time");
            Finding::warning(Area::Hardware, found, "look again when this machine is less busy")
        }
    }
}

/// What makes a device work that does not.
fn device_mend(device: Device, said: &str) -> String {
    if said.starts_with("this FFmpeg has no") {
        return "install an FFmpeg that was built with it, or name one with --ffmpeg".to_owned();
    }
    match device {
        Device::Vaapi { node } | Device::Qsv { node } if said.contains("Permission denied") => {
            format!("let the server's user open /dev/dri/renderD{node} (on Debian: the group render)")
        }
        Device::Vaapi { node } => format!(
            "install the card's VA-API driver (Debian: mesa-va-drivers or intel-media-va-driver) and let the \
             server's user open /dev/dri/renderD{node}; nothing, if the card does not encode this codec"
        ),
        Device::Qsv { .. } => {
            "install Intel's runtime (Debian: libmfx-gen1.2); nothing, where VA-API works on the same card".to_owned()
        }
        Device::Nvenc { .. } => {
            "install NVIDIA's driver with its encoding library (Debian: libnvidia-encode1) at the version of the \
             kernel's module; nothing, if the card does not encode this codec"
                .to_owned()
        }
        Device::Software => String::new(),
    }
}

async fn ffprobe(program: &Path, spawner: &Spawner) -> Finding {
    let mend = "it comes with FFmpeg; or name it with --ffprobe";
    let Some(path) = find_runnable(program) else {
        let found = format!("{} is not there or cannot be run", program.display());
        return Finding::failure(Area::Ffprobe, found, mend);
    };
    let mut spec = Spec::new(&path);
    spec.arg("-version").stdout_pipe();
    let bounds = Bounds {
        stdin: None,
        max_output: ANSWER,
        deadline: QUESTION,
    };
    match spawner.run_bounded(spec, bounds).await {
        Ok(output) if output.stdout.starts_with(b"ffprobe version ") => {
            Finding::ok(Area::Ffprobe, path.display().to_string())
        }
        Err(RunError::DeadlineExceeded { .. }) => {
            let found = format!(
                "{} does not answer within {} s",
                path.display(),
                QUESTION.as_secs()
            );
            let mend =
                "look again when this machine and its disk are less busy, or name another with --ffprobe";
            Finding::failure(Area::Ffprobe, found, mend)
        }
        _ => {
            let found = format!("{} does not answer as ffprobe does", path.display());
            Finding::failure(Area::Ffprobe, found, mend)
        }
    }
}

fn data_dir(path: &Path) -> Finding {
    let shown = path.display();
    if !path.exists() {
        return Finding::ok(
            Area::DataDirectory,
            format!("{shown} will be made at the first start"),
        );
    }
    match DataDir::open(path).and_then(|dir| dir.owner_token()) {
        Ok(_) => Finding::ok(Area::DataDirectory, shown.to_string()),
        Err(error @ DataDirError::Locked { .. }) => {
            let mend = "nothing, if that is the server you mean to examine";
            Finding::warning(Area::DataDirectory, error.to_string(), mend)
        }
        Err(error) => Finding::failure(Area::DataDirectory, error.to_string(), "as the finding says"),
    }
}

fn scratch(subject: &Subject) -> Finding {
    let wanted = subject
        .scratch_dir
        .clone()
        .unwrap_or_else(|| subject.data_dir.clone());
    // The server makes its data directory with all that leads to it, and of a directory that was named the last
    // part alone: a disk that is not mounted is not to be filled in its mount point's place.
    let above = match subject.scratch_dir {
        Some(_) => 2,
        None => usize::MAX,
    };
    let Some(place) = wanted.ancestors().take(above).find(|dir| dir.is_dir()) else {
        return Finding::failure(
            Area::Scratch,
            format!(
                "{} cannot be made: what it is to lie in is not there",
                wanted.display()
            ),
            "make that, mount its disk, or name another --scratch-dir",
        );
    };
    if let Err(error) = rustix::fs::access(place, Access::WRITE_OK | Access::EXEC_OK) {
        return Finding::failure(
            Area::Scratch,
            format!("{} cannot be written: {error}", place.display()),
            "let the user that the server runs under write there, or name another --scratch-dir",
        );
    }
    let space = match rustix::fs::statvfs(place) {
        Ok(space) => space.f_bavail.saturating_mul(space.f_frsize) >> 20,
        Err(error) => {
            return Finding::failure(
                Area::Scratch,
                format!("{}: {error}", place.display()),
                "name another --scratch-dir",
            );
        }
    };
    let found = format!("{space} MiB free at {}", place.display());
    let mend = "free some space, or name a larger disk with --scratch-dir";
    match space {
        0..SCRATCH_LEAST_MIB => {
            let found = format!("{found}: nothing can be encoded with less than {SCRATCH_LEAST_MIB}");
            Finding::failure(Area::Scratch, found, mend)
        }
        SCRATCH_LEAST_MIB..SCRATCH_WARNING_MIB => Finding::warning(Area::Scratch, found, mend),
        _ => Finding::ok(Area::Scratch, found),
    }
}

fn port(listen: SocketAddr) -> Finding {
    match TcpListener::bind(listen) {
        Ok(_) => Finding::ok(Area::Port, format!("{listen} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let mend = "nothing, if a running ether has it; else choose another with --listen";
            Finding::warning(Area::Port, format!("{listen} is in use"), mend)
        }
        Err(error) => Finding::failure(
            Area::Port,
            format!("{listen}: {error}"),
            "choose another address with --listen",
        ),
    }
}

fn limits() -> Vec<Finding> {
    let read = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let mut findings = Vec::new();
    if let Some(watches) = read("/proc/sys/fs/inotify/max_user_watches") {
        findings.push(if watches < WATCHES_WARNING {
            let found = format!("{watches} folders can be watched; beyond that, scans find changes later");
            Finding::warning(Area::Watches, found, WATCHES_MEND)
        } else {
            Finding::ok(Area::Watches, format!("{watches} folders can be watched"))
        });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_that_does_not_work_has_its_mend() {
        let trial = |device, verdict| Trial {
            device,
            codec: VideoCodec::H264,
            verdict,
            tried_at: ether_types::Timestamp::from_micros(0),
        };
        let failed = |said: &str| Verdict::Failed {
            said: said.to_owned(),
        };
        let found = hardware(&[
            trial(Device::Nvenc { gpu: 0 }, Verdict::Works),
            trial(
                Device::Vaapi { node: 128 },
                failed("No VA display found: Permission denied"),
            ),
            trial(Device::Qsv { node: 128 }, failed("unsupported (-3)")),
            trial(Device::Nvenc { gpu: 1 }, failed("Cannot load libcuda.so.1")),
            trial(Device::Vaapi { node: 129 }, Verdict::OtherConfiguration),
            trial(Device::Vaapi { node: 130 }, Verdict::Unknown),
            trial(Device::Nvenc { gpu: 2 }, Verdict::Full),
        ]);
        assert_eq!(found[0].grade, Grade::Ok);
        for finding in &found[1..] {
            assert_eq!(finding.grade, Grade::Warning);
            assert!(!finding.mend.is_empty(), "{finding}");
        }
        assert!(found[1].mend.contains("renderD128"), "{}", found[1]);
        assert_eq!(hardware(&[])[0].grade, Grade::Ok);
    }
}
