//! Short tools whose whole output is wanted: run within bounds, and joined before the answer.

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use crate::child::ExitEvidence;
use crate::error::SpawnError;
use crate::spawner::Spawner;
use crate::spec::{Spec, Stdout};

/// What a tool may use.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// What it reads from standard input; `/dev/null` where there is nothing.
    pub stdin: Option<Vec<u8>>,
    /// The most bytes of standard output.
    pub max_output: usize,
    /// How long it may take from its start.
    pub deadline: Duration,
}

/// What a tool that succeeded wrote.
#[derive(Debug)]
pub struct Output {
    /// All of its standard output.
    pub stdout: Vec<u8>,
    /// The tail of its error output, redacted as the spec says.
    pub stderr: Vec<String>,
    /// Proof that it has ended.
    pub evidence: ExitEvidence,
}

/// Why a tool gave no output to use. Nothing of it runs any more.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was not started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It wrote more than was allowed, and was killed.
    #[error("the program wrote more than {limit} bytes")]
    TooMuchOutput {
        /// The most that was allowed, in bytes.
        limit: usize,
        /// Proof that it has ended.
        evidence: ExitEvidence,
    },
    /// It took longer than was allowed, and was killed.
    #[error("the program was not done after {deadline:?}")]
    DeadlineExceeded {
        /// What was allowed.
        deadline: Duration,
        /// The tail of its error output.
        stderr: Vec<String>,
        /// Proof that it has ended.
        evidence: ExitEvidence,
    },
    /// It ended by itself, and not with success.
    #[error("the program failed ({status})")]
    Failed {
        /// How it ended.
        status: ExitStatus,
        /// What it wrote all the same.
        stdout: Vec<u8>,
        /// The tail of its error output.
        stderr: Vec<String>,
        /// Proof that it has ended.
        evidence: ExitEvidence,
    },
}

impl Spawner {
    /// Runs a program to its end and returns what it wrote.
    ///
    /// It returns only when everything of the program is gone, however it ended; killing one that is stuck in the
    /// kernel can take longer than the deadline. Cancelling kills it, and leaves the rest to its keeper.
    pub async fn run_bounded(&self, mut spec: Spec, bounds: Bounds) -> Result<Output, RunError> {
        spec.stdout = Stdout::Collect(bounds.max_output);
        spec.stdin = bounds.stdin;
        let clock = Arc::clone(&self.clock);
        let mut child = self.spawn(spec).await?;
        let timely = tokio::select! {
            biased;
            _ = child.exited() => true,
            () = clock.sleep(bounds.deadline) => {
                child.kill();
                false
            }
        };
        let evidence = child.retired().await;
        let collected = child.shared.take_collected();
        let stderr = child.stderr_lines();
        if collected.too_much {
            return Err(RunError::TooMuchOutput {
                limit: bounds.max_output,
                evidence,
            });
        }
        if !timely {
            return Err(RunError::DeadlineExceeded {
                deadline: bounds.deadline,
                stderr,
                evidence,
            });
        }
        let status = evidence.status();
        if !status.success() {
            return Err(RunError::Failed {
                status,
                stdout: collected.bytes,
                stderr,
                evidence,
            });
        }
        Ok(Output {
            stdout: collected.bytes,
            stderr,
            evidence,
        })
    }
}
