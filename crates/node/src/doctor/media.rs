//! What the doctor finds about a folder of films: whether it is there, can be read, and tells of changes.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_types::Clock;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{Dir, Mode, OFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::{Area, Finding, WATCHES_MEND};

/// How long a folder may take to be looked at; a share whose server is gone never answers.
const PATIENCE: Duration = Duration::from_secs(5);

/// File systems on which other machines make changes that the kernel here hears nothing of.
const REMOTE: [(u64, &str); 6] = [
    (0x6969, "NFS"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB"),
    (0x517B, "SMB"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
];

/// Looks at each folder by itself, and gives up on one that does not answer.
pub(super) async fn folders(folders: &[PathBuf], clock: &dyn Clock) -> Vec<Finding> {
    let mut findings = Vec::with_capacity(folders.len());
    for folder in folders {
        let path = Arc::new(folder.clone());
        let look = tokio::task::spawn_blocking({
            let path = Arc::clone(&path);
            move || look(&path)
        });
        findings.push(tokio::select! {
            biased;
            found = look => found.unwrap_or_else(|error| {
                Finding::failure(Area::Media, format!("{}: {error}", path.display()), "report this defect")
            }),
            () = clock.sleep(PATIENCE) => {
                let found = format!("{} does not answer within {} s", path.display(), PATIENCE.as_secs());
                let mend = "see that its disk spins and that the server of its share is up; mount it again";
                Finding::warning(Area::Media, found, mend)
            }
        });
    }
    findings
}

fn look(path: &Path) -> Finding {
    let shown = path.display();
    let failure = |found: String, mend: &str| Finding::failure(Area::Media, found, mend);
    let warning = |found: String, mend: &str| Finding::warning(Area::Media, found, mend);
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => {
            return failure(
                format!("{shown} is not a folder"),
                "--media takes folders of films: name the one that it lies in",
            );
        }
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return failure(
                format!("{shown} does not exist"),
                "check the path given with --media, or mount its disk or share",
            );
        }
        Err(error) => return warning(format!("{shown}: {error}"), READABLE),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let entries = rustix::fs::open(path, flags, Mode::empty()).and_then(|fd| {
        // One entry is enough to know that there is something, and that it can be listed.
        let entries = Dir::read_from(&fd)?.filter_map(Result::ok);
        let own = |name: &[u8]| name != b"." && name != b"..";
        Ok((
            fd,
            entries
                .filter(|entry| own(entry.file_name().to_bytes()))
                .take(1)
                .count(),
        ))
    });
    let (fd, entries) = match entries {
        Ok(found) => found,
        Err(error) => return warning(format!("{shown} cannot be read: {error}"), READABLE),
    };
    if entries == 0 {
        return warning(
            format!("{shown} is empty"),
            "put films into it, or mount the disk or share whose place it is",
        );
    }
    if let Err(error) = watch(path) {
        return warning(
            format!("{shown} cannot be watched ({error}): changes are found by the next scan"),
            WATCHES_MEND,
        );
    }
    let mut notes = vec!["can be read and watched"];
    let mounted = rustix::fs::fstatvfs(&fd);
    if mounted.is_ok_and(|mounted| mounted.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        notes.push("is mounted read-only, which is enough");
    }
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_sign_loss,
        reason = "the type of the field differs between platforms"
    )]
    let kind = rustix::fs::fstatfs(&fd).map(|fs| fs.f_type as u64 & 0xFFFF_FFFF);
    let remote = kind
        .ok()
        .and_then(|kind| REMOTE.iter().find(|(magic, _)| *magic == kind));
    let remote =
        remote.map(|(_, name)| format!("; it is {name}, where changes by other machines are found by scans"));
    Finding::ok(
        Area::Media,
        format!("{shown} {}{}", notes.join(" and "), remote.unwrap_or_default()),
    )
}

const READABLE: &str = "let the user that the server runs under read and enter it, and every folder above it (chmod, chown, setfacl)";

fn watch(path: &Path) -> Result<(), Errno> {
    let watcher = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watcher, path, WatchFlags::CREATE | WatchFlags::ONLYDIR).map(|_| ())
}
