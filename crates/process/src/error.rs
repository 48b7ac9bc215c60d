//! Why a child, or the whole of process ownership, could not be started.

use std::io;
use std::path::PathBuf;

/// Why a program did not start. In every case nothing of it is running.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// There is no such program, or its interpreter or working directory does not exist.
    #[error("{} was not found", program.display())]
    NotFound {
        /// The program as it was asked for.
        program: PathBuf,
    },
    /// The file is there and may not be executed.
    #[error("{} may not be executed: {source}", program.display())]
    NotExecutable {
        /// The program as it was asked for.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system refused: too little memory, too many processes or open files, or a refused limit.
    #[error("{} could not be started: {source}", program.display())]
    Os {
        /// The program as it was asked for.
        program: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The guardian is gone and another could not be started: a child might outlive this process.
    #[error("the guardian that ends children with this process cannot be started: {source}")]
    GuardianLost {
        /// Why it could not be started.
        source: io::Error,
    },
    /// As many children live as were allowed.
    #[error("{limit} child processes are running, which is the limit")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// [`Processes::shutdown`](crate::Processes::shutdown) was called.
    #[error("no program is started any more: shutting down")]
    ShuttingDown,
}

/// Why process ownership could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The kernel lacks something that the promises rest on (pidfd, subreaper), or refused it.
    #[error("this system cannot own processes: {0}")]
    Unsupported(#[source] io::Error),
    /// The guardian did not come up.
    #[error("the guardian process did not start: {0}")]
    Guardian(#[source] io::Error),
    /// A thread could not be made.
    #[error("the spawning thread did not start: {0}")]
    Thread(#[source] io::Error),
}
