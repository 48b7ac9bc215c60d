//! Stories about real files, hostile ones, and programs that misbehave.

mod damaged;
mod oracle;
mod pictures;
mod prober;
mod server;
mod variants;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_process::{Bounds, Config, Processes, Spec};
use ether_types::{Clock, ManualClock, Timestamp};

use crate::{Prober, ProberOptions};

/// A prober with its own processes.
pub(crate) struct House {
    pub(crate) processes: Processes,
    pub(crate) prober: Prober,
}

/// Its clock stands still, so that no deadline depends on how busy this machine is.
pub(crate) fn house() -> House {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    house_with(ProberOptions::default(), Arc::new(clock))
}

pub(crate) fn house_with(options: ProberOptions, clock: Arc<dyn Clock>) -> House {
    let processes = Processes::start(Config::unguarded(Arc::clone(&clock))).unwrap();
    let prober = Prober::new(options, processes.spawner(), clock);
    House { processes, prober }
}

pub(crate) fn open(path: &Path) -> Arc<File> {
    Arc::new(File::open(path).unwrap())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The real files, or none where this machine does not have them.
pub(crate) fn real_files() -> Vec<PathBuf> {
    let dir =
        std::env::var_os("ETHER_MEDIA").map_or_else(|| repository().join("../shared/media"), PathBuf::from);
    media_in(&dir)
}

/// The synthetic clips, or none where they were not made.
pub(crate) fn clips() -> Vec<PathBuf> {
    media_in(&repository().join("target/clips"))
}

pub(crate) fn named(files: &[PathBuf], name: &str) -> Option<PathBuf> {
    let found = files
        .iter()
        .find(|f| f.file_name().is_some_and(|n| n == name))
        .cloned();
    if found.is_none() {
        eprintln!("skipped: {name} is not here");
    }
    found
}

fn media_in(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        eprintln!("skipped: {} is not here", dir.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let media = path
                .extension()
                .and_then(|e| e.to_str())
                .is_some_and(|e| matches!(e, "mp4" | "mkv" | "webm" | "ts" | "3gp" | "avi" | "flac"));
            // Clips that are being made at this moment have another name.
            media
                && !path
                    .file_name()
                    .is_some_and(|n| n.to_string_lossy().starts_with("part."))
        })
        .collect();
    files.sort();
    files
}

/// Runs a tool on this machine for a test's own knowledge.
pub(crate) async fn tool(house: &House, program: &str, args: &[&str]) -> Vec<u8> {
    let mut spec = Spec::new(program);
    spec.args(args);
    let bounds = Bounds {
        stdin: None,
        max_output: 64 << 20,
        deadline: Duration::from_secs(120),
    };
    house
        .processes
        .spawner()
        .run_bounded(spec, bounds)
        .await
        .unwrap()
        .stdout
}
