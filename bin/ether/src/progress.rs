//! Shows how a scan comes along: one line that is rewritten on a terminal, a few lines in a log.

use std::io::{IsTerminal, Write};

use ether_library::Status;
use tokio::sync::watch;

/// Files between two lines in a log.
const LOG_EVERY: u64 = 500;

/// Shows progress until the library is gone. Cancel-safe: it owns nothing.
pub(crate) async fn show(mut library: watch::Receiver<Status>) {
    let terminal = std::io::stderr().is_terminal();
    let mut shown = Shown::default();
    loop {
        let status = library.borrow_and_update().clone();
        if terminal {
            shown.rewrite(&status)
        } else {
            shown.log(&status)
        }
        if library.changed().await.is_err() {
            return;
        }
    }
}

#[derive(Default)]
struct Shown {
    scanning: bool,
    logged: u64,
}

impl Shown {
    fn rewrite(&mut self, status: &Status) {
        let mut stderr = std::io::stderr();
        // A terminal that is gone is no reason to stop serving.
        let _ = match (status.scanning, self.scanning) {
            (true, _) => write!(
                stderr,
                "\r\x1b[Kscanning: {} of {} files",
                status.progress.done, status.progress.seen
            ),
            (false, true) => writeln!(stderr, "\r\x1b[Kscanned: {} files", status.progress.seen),
            (false, false) => Ok(()),
        };
        let _ = stderr.flush();
        self.scanning = status.scanning;
    }

    fn log(&mut self, status: &Status) {
        let done = status.progress.done;
        if status.scanning && done >= self.logged + LOG_EVERY {
            tracing::info!(done, seen = status.progress.seen, "scanning");
            self.logged = done;
        }
        if self.scanning && !status.scanning {
            tracing::info!(files = status.progress.seen, "scanned");
            self.logged = 0;
        }
        self.scanning = status.scanning;
    }
}
