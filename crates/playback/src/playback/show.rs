//! The stream of a playback that has no segments.
//!
//! An execution gives its stream once, so each viewer who opens it gets an execution of their own, and whoever
//! had the stream before loses it: one playback has one encoder. When the stream is over, however it ended, the
//! execution is given up at once, so that its capacity does not wait for the viewer to count as idle.

use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{ByteStream, Execution, ServeError};

use super::{Command, MediaError, Playback, REBUILDS};

/// A stream that is being sent. Dropping it ends its encoder and gives its capacity back.
pub(crate) struct Show {
    // Before the lease, so that the encoder ends first.
    pub(crate) stream: ByteStream,
    _lease: Lease,
}

/// An execution that is used up once this is dropped.
struct Lease {
    playback: Arc<Playback>,
    execution: Arc<dyn Execution>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let execution = Arc::clone(&self.execution);
        // Where the task is too busy to be told, the viewer's idleness tells it a minute later.
        let _ = self.playback.commands.try_send(Command::Broken(execution));
    }
}

impl Playback {
    /// Begins the stream, ending the one that was sent before. Waits for capacity at most `patience`; how long
    /// the encoder may take to its first bytes is its own affair, and bounded there.
    ///
    /// Cancelling ends what was begun.
    ///
    /// # Errors
    /// [`MediaError`], as of [`Playback::media`].
    pub(crate) async fn show(this: &Arc<Self>, patience: Duration) -> Result<Show, MediaError> {
        let until = this.clock.monotonic().saturating_add(patience);
        this.rests(None)?;
        for attempt in 0..REBUILDS {
            let execution = this.execution(until, attempt == 0).await?;
            let lease = Lease {
                playback: Arc::clone(this),
                execution: Arc::clone(&execution),
            };
            match execution.stream().await {
                Ok(stream) => {
                    this.shared().failures.served(None);
                    return Ok(Show {
                        stream,
                        _lease: lease,
                    });
                }
                // Its one stream was given to somebody: the next is another's.
                Err(ServeError::Retired) => this.lost(execution).await,
                // Nothing of it was sent yet: another device may make the same (case 31).
                Err(ServeError::Refused { refusal, .. }) if this.falls_back(&execution, &refusal) => {
                    this.lost(execution).await;
                }
                Err(error) => return Err(this.explain(error, None, execution).await),
            }
        }
        Err(MediaError::NotReady)
    }
}
