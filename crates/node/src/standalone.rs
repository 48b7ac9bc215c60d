//! A whole server on one machine: SQLite, local encoding, no configuration.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ether_encoder::Encoder;
use ether_ffmpeg::{HardwareWish, Inventory, InventoryError, LocalEncoder, LocalOptions};
use ether_library::{Library, ProbeReader};
use ether_playback::http::{Hosts, Origins, Server, ServerLimits, ServerReport, Surface, router};
use ether_playback::ports::Units;
use ether_playback::{Auth, GrantKey, GrantKeys, Limits, LocalCapacity, Playbacks, ShutdownReport};
use ether_probe::{Prober, ProberOptions};
use ether_process::{Config, Processes, Spawner, find_runnable};
use ether_store::{Location, MigrateError, OpenError, Store};
use ether_types::Clock;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::data_dir::{DataDir, DataDirError};
use crate::shelf::Shelf;
use crate::texts::NodeTexts;
use crate::tokens::{self, StoredTokens};

/// How a standalone server is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folders of films, in the order they are shown.
    pub media: Vec<PathBuf>,
    /// Where the server keeps what it knows.
    pub data_dir: PathBuf,
    /// Where it listens; port 0 takes any free one.
    pub listen: SocketAddr,
    /// The FFmpeg program: a path, or a name to be found as a shell would.
    pub ffmpeg: PathBuf,
    /// The ffprobe program.
    pub ffprobe: PathBuf,
    /// Encodes of 1080p in real time that this machine takes at once, 1 to 4,096.
    pub capacity: u16,
    /// MiB of scratch space for all playbacks together.
    pub scratch_mib: u32,
    /// MiB of encoded segments that are kept for later viewers, beside the scratch space.
    pub segment_cache_mib: u32,
    /// A directory on a local disk for scratch files; inside the data directory where absent.
    pub scratch_dir: Option<PathBuf>,
    /// Names besides `localhost` and the address itself that the server answers to.
    pub hosts: Vec<String>,
    /// Origins of other pages that may use it.
    pub origins: Vec<String>,
    /// Which devices may encode.
    pub hardware: HardwareWish,
}

/// Why a server does not start. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// FFmpeg.
    #[error(transparent)]
    Inventory(#[from] InventoryError),
    /// ffprobe.
    #[error("{} is not there or cannot be run: it comes with FFmpeg; name it with --ffprobe", program.display())]
    NoFfprobe {
        /// What was looked for.
        program: PathBuf,
    },
    /// A folder that was never seen does not exist.
    #[error("{} does not exist: check the path given with --media", path.display())]
    NoSuchFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A folder of films is not one.
    #[error("{} is not a folder: --media takes folders of films", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The address is taken.
    #[error("{address} is in use: stop what listens there, or choose another address with --listen")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("{address} cannot be listened on: {source}. Choose another with --listen")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The database.
    #[error("the database cannot be opened: {0}")]
    Open(#[from] OpenError),
    /// The database's tables.
    #[error("the database cannot be brought up to date: {0}")]
    Migrate(#[from] MigrateError),
    /// The library.
    #[error(transparent)]
    Library(#[from] ether_library::StartError),
    /// The guard of child processes.
    #[error("child processes cannot be guarded: {0}")]
    Processes(#[from] ether_process::StartError),
    /// The scratch directory.
    #[error(
        "{} cannot be used for scratch files: {source}. Make the directory that it is to lie in, mount its disk, or \
         name another with --scratch-dir",
        path.display()
    )]
    Scratch {
        /// The directory.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
}

/// A running server. Dropping it without [`Standalone::stop`] ends its processes and proves nothing.
pub struct Standalone {
    address: SocketAddr,
    server: tokio::sync::Mutex<Option<JoinHandle<ServerReport>>>,
    stop: CancellationToken,
    auth: Arc<Auth>,
    playbacks: Arc<Playbacks>,
    capacity: Arc<LocalCapacity>,
    encoder: Arc<LocalEncoder>,
    library: Arc<Library>,
    store: Store,
    processes: Processes,
    _data_dir: DataDir,
}

/// What a stop left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// What became of the playbacks.
    pub playbacks: ShutdownReport,
}

impl Standalone {
    /// Starts a server. It answers as soon as this returns; the scan of its folders goes on behind it.
    ///
    /// Cancelling ends what was started; the data directory keeps what was written.
    ///
    /// # Errors
    /// [`StartError`]; nothing keeps running.
    pub async fn start(options: Options, clock: Arc<dyn Clock>) -> Result<Self, StartError> {
        let guarded = Config::guarded(clock.clone());
        Self::start_with(options, guarded, clock).await
    }

    async fn start_with(
        options: Options,
        processes: Config,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let data_dir = DataDir::open(&options.data_dir)?;
        let listener = bind(options.listen).await?;
        let processes = Processes::start(processes)?;
        let spawner = processes.spawner();
        let inventory = Inventory::load(
            &spawner,
            &*clock,
            &options.ffmpeg,
            &data_dir.path().join("ffmpeg-inventory.json"),
        )
        .await?;
        let missing = StartError::NoFfprobe {
            program: options.ffprobe.clone(),
        };
        let ffprobe = find_runnable(&options.ffprobe).ok_or(missing)?;

        let location = Location::SqliteFile(data_dir.path().join("ether.db"));
        let store = Store::open(&location, ether_store::Options::default(), clock.clone()).await?;
        let tokens = StoredTokens(store.component(&tokens::COMPONENT).await?);
        let ffmpeg = inventory.program().to_owned();
        let prober = Prober::new(ProberOptions { ffprobe, ffmpeg }, spawner.clone(), clock.clone());
        let library = library(&options, &data_dir, &store, prober, clock.clone()).await?;

        let scratch = scratch_dir(&options, &data_dir)?;
        let local = LocalOptions {
            inventory,
            scratch,
            kept: u64::from(options.segment_cache_mib) << 20,
            spawner,
            clock: clock.clone(),
            hardware: options.hardware,
        };
        let encoder = Arc::new(LocalEncoder::new(local));
        let limit = Units {
            milli_slots: u32::from(options.capacity) * 1_000,
            // A device says itself when it is full, and the processor takes over.
            device_milli_slots: 0,
            scratch_mib: options.scratch_mib,
        };
        let capacity = Arc::new(LocalCapacity::new(limit, clock.clone()));
        let auth = Arc::new(Auth::new(
            &data_dir.owner_token()?,
            Arc::new(tokens),
            clock.clone(),
        ));
        let shelf = Arc::new(Shelf {
            library: library.clone(),
            clock: clock.clone(),
        });
        let playbacks = Arc::new(Playbacks::new(
            shelf.clone(),
            encoder.clone() as Arc<dyn Encoder>,
            capacity.clone(),
            GrantKeys::new(GrantKey::new(1, data_dir.grant_key()?), Vec::new()),
            Limits::default(),
            clock.clone(),
        ));
        let surface = Surface {
            playbacks: playbacks.clone(),
            library: shelf,
            texts: Arc::new(NodeTexts {
                subtitles: encoder.subtitles().clone(),
                library: library.clone(),
            }),
            auth: auth.clone(),
            hosts: Hosts::new(options.hosts),
            origins: Origins::new(options.origins),
            clock: clock.clone(),
        };
        let stop = CancellationToken::new();
        let server = Server::new(router(surface), ServerLimits::default(), clock);
        let (address, stopping) = (listener.local_addr().unwrap_or(options.listen), stop.clone());
        let serving = tokio::spawn(async move { server.serve(listener, stopping).await });
        Ok(Self {
            address,
            server: tokio::sync::Mutex::new(Some(serving)),
            stop,
            auth,
            playbacks,
            capacity,
            encoder,
            library,
            store,
            processes,
            _data_dir: data_dir,
        })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A one-use sign-in code, to be shown to the person at the terminal and to nobody else; `None` where the
    /// operating system gives no random numbers.
    pub fn sign_in_code(&self) -> Option<String> {
        self.auth.issue_code().ok().map(|code| code.expose().to_owned())
    }

    /// Starts programs that end with this server.
    pub fn spawner(&self) -> Spawner {
        self.processes.spawner()
    }

    /// How the library is doing, and every change of it.
    pub fn library(&self) -> watch::Receiver<ether_library::Status> {
        self.library.subscribe()
    }

    /// Stops admitting, ends every playback with proof, and joins everything.
    ///
    /// Cancelling leaves some of it running; call it again, or exit: no child process outlives this one.
    pub async fn stop(&self) -> Stopped {
        self.capacity.close();
        self.stop.cancel();
        let serving = self.server.lock().await.take();
        let joined = async {
            if let Some(serving) = serving {
                // A server task that panicked has nothing to report, and its connections are gone.
                let _ = serving.await;
            }
        };
        // Text that is being sent is told that there is no more of it, as media is.
        let texts = self.encoder.subtitles().shutdown();
        let (report, (), ()) = tokio::join!(self.playbacks.shutdown(), joined, texts);
        self.library.shutdown().await;
        self.encoder.join().await;
        self.processes.shutdown().await;
        self.store.close().await;
        Stopped { playbacks: report }
    }
}

async fn bind(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => StartError::AddressInUse { address },
            _ => StartError::Bind { address, source },
        })
}

async fn library(
    options: &Options,
    data_dir: &DataDir,
    store: &Store,
    prober: Prober,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Library>, StartError> {
    for folder in &options.media {
        if folder.exists() && !folder.is_dir() {
            return Err(StartError::NotAFolder { path: folder.clone() });
        }
    }
    let setup = ether_library::Options::new(
        data_dir.node_id()?,
        data_dir.path().to_owned(),
        options.media.clone(),
    );
    let library = Library::start(setup, store, Arc::new(ProbeReader::new(prober)), clock).await?;
    // An unmounted share comes back; a folder that was never seen is a slip of the pen.
    if let Some(path) = library
        .strangers()
        .iter()
        .find(|folder| !folder.exists())
        .cloned()
    {
        library.shutdown().await;
        return Err(StartError::NoSuchFolder { path });
    }
    Ok(Arc::new(library))
}

fn scratch_dir(options: &Options, data_dir: &DataDir) -> Result<PathBuf, StartError> {
    let Some(path) = &options.scratch_dir else {
        return Ok(data_dir.directory("scratch")?);
    };
    check_scratch(path).map_err(|source| StartError::Scratch {
        path: path.clone(),
        source,
    })?;
    Ok(path.clone())
}

fn check_scratch(path: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => tracing::info!(path = %path.display(), "the scratch directory was made"),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let probe = path.join(format!(".ether-{}", std::process::id()));
    std::fs::write(&probe, b"")?;
    std::fs::remove_file(&probe)
}

#[cfg(test)]
mod tests;
