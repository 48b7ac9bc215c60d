//! `ether serve`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_node::{DataDirError, HardwareWish, Options, ReadyLine, Standalone, StartError};
use ether_process::{Spawner, Spec};
use ether_types::{Clock, SystemClock};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::{Hardware, ServeArgs};
use crate::status::Status;
use crate::{log, progress};

/// What a program needs to know of the desktop in order to open a window on it.
const DESKTOP: [&str; 7] = [
    "PATH",
    "HOME",
    "DISPLAY",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Serves until a signal ends it.
pub(crate) fn run(args: ServeArgs) -> Status {
    log::start();
    // Everything that the server writes is its owner's alone, in a directory of whatever mode.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    raise_file_limit();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("ether: {error}");
            return Status::Failed;
        }
    };
    let status = runtime.block_on(serve(args));
    // Reads of slow disks may hang on the blocking pool; nothing that they hold matters any more.
    runtime.shutdown_timeout(Duration::from_secs(1));
    status
}

async fn serve(args: ServeArgs) -> Status {
    let Some(data_dir) = args.place.data_dir.clone().or_else(ether_node::default_data_dir) else {
        eprintln!("ether: neither XDG_DATA_HOME nor HOME is set: name a data directory with --data-dir");
        return Status::Storage;
    };
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        eprintln!("ether: signals cannot be caught");
        return Status::Failed;
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let open = args.open;
    let started = tokio::select! {
        started = Standalone::start(options(args, data_dir), clock) => started,
        () = either(&mut terminate, &mut interrupt) => return Status::Done,
    };
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            eprintln!("ether: {error}");
            return status_of(&error);
        }
    };
    let terminal = std::io::stdout().is_terminal();
    let code = if terminal || open {
        server.sign_in_code()
    } else {
        None
    };
    let mut ready = ReadyLine {
        address: server.address(),
        code,
    };
    let url = ready.url();
    if !terminal {
        ready.code = None;
    }
    println!("{ready}");
    let background = async {
        tokio::join!(progress::show(server.library()), async {
            if open {
                open_browser(&url, server.spawner()).await;
            }
        });
    };
    tokio::select! {
        () = background => either(&mut terminate, &mut interrupt).await,
        () = either(&mut terminate, &mut interrupt) => {}
    }
    tracing::info!("stopping; a second signal stops at once");
    tokio::select! {
        stopped = server.stop() => {
            let unproved = stopped.playbacks.unproved;
            if unproved == 0 {
                return Status::Done;
            }
            eprintln!("ether: the end of {unproved} encoder(s) is not proved");
            Status::Unproved
        }
        () = either(&mut terminate, &mut interrupt) => {
            // The guardian ends every child process when this one is gone.
            std::process::exit(Status::Interrupted as i32)
        }
    }
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

fn options(args: ServeArgs, data_dir: PathBuf) -> Options {
    let processors =
        std::thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(u16::MAX));
    Options {
        media: folders(args.media),
        data_dir,
        listen: args.place.listen,
        ffmpeg: args.place.ffmpeg,
        ffprobe: args.place.ffprobe,
        capacity: args.capacity.unwrap_or(processors.clamp(1, 4096)),
        scratch_mib: args.scratch,
        segment_cache_mib: args.segment_cache,
        scratch_dir: args.place.scratch_dir,
        hosts: args.hosts,
        origins: args.origins,
        hardware: match args.hwaccel {
            Hardware::Auto => HardwareWish::Auto,
            Hardware::Off => HardwareWish::Off,
            Hardware::Vaapi => HardwareWish::Vaapi,
            Hardware::Nvenc => HardwareWish::Nvenc,
            Hardware::Qsv => HardwareWish::Qsv,
        },
    }
}

/// The folders to serve. Those of the variable stand in one text, separated as in `PATH`.
pub(crate) fn folders(media: Vec<PathBuf>) -> Vec<PathBuf> {
    match (std::env::var_os(crate::cli::MEDIA_VARIABLE), media.as_slice()) {
        (Some(text), [only]) if only.as_os_str() == text => std::env::split_paths(&text).collect(),
        _ => media,
    }
}

fn status_of(error: &StartError) -> Status {
    match error {
        StartError::DataDir(DataDirError::Locked { .. }) => Status::Locked,
        StartError::DataDir(_)
        | StartError::Open(_)
        | StartError::Migrate(_)
        | StartError::Scratch { .. } => Status::Storage,
        StartError::AddressInUse { .. } | StartError::Bind { .. } => Status::Address,
        StartError::Inventory(_) | StartError::NoFfprobe { .. } => Status::Ffmpeg,
        StartError::NoSuchFolder { .. } | StartError::NotAFolder { .. } => Status::Media,
        StartError::Library(_) | StartError::Processes(_) => Status::Failed,
    }
}

/// Every connection and every film being read takes a descriptor; the soft limit is often 1,024.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        tracing::warn!("the limit on open files stays as it is");
    }
}

/// Asks the desktop to open `url`. Where there is no desktop, the line with the address is enough.
///
/// The browser is the viewer's and not ours: it leaves our process group, so that it stays when the server ends.
/// What made it leave waits for it (`-w`): a group is killed when its leader ends, and a browser that had not left
/// yet would go with it.
async fn open_browser(url: &str, spawner: Spawner) {
    let mut spec = Spec::new(Path::new("setsid"));
    spec.args([
        "-w",
        "sh",
        "-c",
        "exec xdg-open \"$0\" </dev/null >/dev/null 2>&1",
    ])
    .arg(url);
    for name in DESKTOP {
        spec.pass_env(name);
    }
    match spawner.spawn(spec).await {
        Ok(child) => {
            child.exited().await;
        }
        Err(error) => tracing::warn!(%error, "the page cannot be opened from here"),
    }
}
