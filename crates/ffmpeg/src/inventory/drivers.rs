//! The encoding devices of this machine, and what tells one state of their drivers from another.
//!
//! A device counts as there when its file is: `/dev/dri/renderD<n>` and `/dev/nvidia<n>`. Beside those names the
//! identity is made of the running kernel's release, the versions that the kernel's modules state, NVIDIA's own
//! statement, size and time of the libraries through which FFmpeg reaches a device, and who may open what: owner and
//! permissions of every device file, whether this process may read and write it, and as whom it runs.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ether_encoder::{Device, Revision, VideoCodec};
use rustix::fs::Access;
use rustix::process::{getegid, geteuid, getgroups};
use serde::{Deserialize, Serialize};

/// Files whose text tells one driver from another.
const STATED: [&str; 9] = [
    "proc/sys/kernel/osrelease",
    "proc/driver/nvidia/version",
    "sys/module/nvidia/version",
    "sys/module/i915/srcversion",
    "sys/module/xe/srcversion",
    "sys/module/amdgpu/srcversion",
    "sys/module/amdgpu/version",
    "sys/module/nouveau/srcversion",
    "sys/module/radeon/srcversion",
];
/// Where libraries lie, their directories by architecture included.
const LIBRARIES: [&str; 6] = [
    "usr/lib",
    "usr/lib64",
    "usr/local/lib",
    "lib64",
    "usr/lib/wsl/lib",
    "opt/intel/lib",
];
/// How the names of the libraries begin that FFmpeg reaches devices through.
const REACHED: [&str; 7] = [
    "libva.so",
    "libva-drm.so",
    "libcuda.so",
    "libnvidia-encode.so",
    "libmfx-gen.so",
    "libmfxhw64.so",
    "libvpl.so",
];
/// Most devices of one kind that are looked at.
const MOST: usize = 16;

/// Where a machine's devices and drivers are looked for.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
}

impl Default for Machine {
    fn default() -> Self {
        Self::at("/")
    }
}

impl Machine {
    /// A machine whose files lie below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Its devices and drivers as they are now. Reads a few small files and directories.
    pub(super) fn drivers(&self) -> Drivers {
        let nodes = numbered(&self.root.join("dev/dri"), "renderD");
        let cards = numbered(&self.root.join("dev"), "nvidia");
        let mut marks = BTreeMap::new();
        if !nodes.is_empty() || !cards.is_empty() {
            self.stated(&mut marks);
            self.libraries(&mut marks);
            self.permissions(&mut marks);
        }
        Drivers { nodes, cards, marks }
    }

    fn stated(&self, marks: &mut BTreeMap<String, String>) {
        for name in STATED {
            if let Ok(text) = std::fs::read_to_string(self.root.join(name)) {
                marks.insert(name.to_owned(), text.trim().chars().take(200).collect());
            }
        }
    }

    /// Whoever joins the group `render`, or is given a device by a rule or a container, may open it from then on.
    fn permissions(&self, marks: &mut BTreeMap<String, String>) {
        let files = entries(&self.root.join("dev/dri")).into_iter().chain(
            entries(&self.root.join("dev"))
                .into_iter()
                .filter(|path| starts(path, "nvidia")),
        );
        for path in files {
            if let Ok(metadata) = std::fs::metadata(&path) {
                // Access lists do not show in the mode, hence the question.
                let open = rustix::fs::access(&path, Access::READ_OK | Access::WRITE_OK).is_ok();
                let (mode, number) = (metadata.mode(), metadata.rdev());
                let (owner, group) = (metadata.uid(), metadata.gid());
                marks.insert(
                    path.display().to_string(),
                    format!("{mode:o} {owner} {group} {number:x} {open}"),
                );
            }
        }
        let groups = getgroups().unwrap_or_default();
        let mut groups: Vec<u32> = groups.into_iter().map(rustix::process::Gid::as_raw).collect();
        groups.sort_unstable();
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        marks.insert("user".to_owned(), format!("{user} {group} {groups:?}"));
    }

    fn libraries(&self, marks: &mut BTreeMap<String, String>) {
        let directories = LIBRARIES.iter().flat_map(|name| {
            let dir = self.root.join(name);
            let inner = entries(&dir).into_iter().filter(|path| path.is_dir());
            let inner: Vec<PathBuf> = inner.filter(|path| has(path, "-linux-gnu")).collect();
            std::iter::once(dir).chain(inner)
        });
        for dir in directories {
            for path in entries(&dir) {
                if REACHED.iter().any(|start| starts(&path, start)) {
                    mark(marks, &path);
                }
            }
            for path in entries(&dir.join("dri")) {
                if has(&path, "_drv_video.so") {
                    mark(marks, &path);
                }
            }
        }
    }
}

/// Devices that are there, and the state of their drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Drivers {
    /// Numbers of render nodes.
    nodes: Vec<u16>,
    /// Numbers of NVIDIA's cards.
    cards: Vec<u16>,
    /// What tells one state from another, by where it was found.
    marks: BTreeMap<String, String>,
}

impl Drivers {
    /// What is tried, in the order in which it would be chosen: NVENC has the most throughput of its own,
    /// VA-API decodes whatever the card can, Quick Sync is for machines on which VA-API does not encode.
    pub(super) fn candidates(&self) -> Vec<(Device, VideoCodec)> {
        let card = |n: &u16| u8::try_from(*n).ok().map(|gpu| Device::Nvenc { gpu });
        let cards = self.cards.iter().filter_map(card);
        let vaapi = self.nodes.iter().map(|node| Device::Vaapi { node: *node });
        let qsv = self.nodes.iter().map(|node| Device::Qsv { node: *node });
        let both = |device| [VideoCodec::H264, VideoCodec::Hevc].map(|codec| (device, codec));
        cards.chain(vaapi).chain(qsv).flat_map(both).collect()
    }
}

/// The numbers of the entries of `dir` that are `prefix` and a number.
fn numbered(dir: &Path, prefix: &str) -> Vec<u16> {
    let number = |path: PathBuf| {
        let digits = path.file_name()?.to_str()?.strip_prefix(prefix)?;
        digits.parse().ok()
    };
    let mut numbers: Vec<u16> = entries(dir).into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.truncate(MOST);
    numbers
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let read = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = read.map(|entry| entry.path()).collect();
    paths.sort_unstable();
    paths
}

fn starts(path: &Path, with: &str) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with(with))
}

fn has(path: &Path, part: &str) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .is_some_and(|name| name.contains(part))
}

fn mark(marks: &mut BTreeMap<String, String>, path: &Path) {
    if let Ok(metadata) = std::fs::metadata(path) {
        let revision = Revision::of_metadata(&metadata);
        marks.insert(
            path.display().to_string(),
            format!("{} {}", revision.size, revision.modified_nanos),
        );
    }
}
