//! The port itself.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ether_media::Ticks;
use ether_transfer::Revision;

use crate::capabilities::{Capabilities, Unsupported};
use crate::choice::{Choice, ChoiceReason, DeviceCounts, Share};
use crate::gateway::Gateway;
use crate::media::{ByteStream, Served};
use crate::observation::{Ended, Observation};
use crate::request::{Request, Resource};

/// A boxed future, so that the port can be used behind a pointer.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Something that turns a source into representations.
pub trait Encoder: Send + Sync {
    /// What it promises.
    fn capabilities(&self) -> Capabilities;

    /// Whether it can take `request`. Opens no source, starts no process (T22).
    ///
    /// # Errors
    /// The first thing that stands in the way.
    fn supports(&self, request: &Request) -> Result<(), Unsupported>;

    /// What would encode the picture of `request` now, and why (E7). Pure over what is known; opens no source
    /// and starts no process. Whoever creates an execution puts the device into its request.
    fn choose(&self, request: &Request) -> Choice {
        Choice {
            device: request.device(),
            share: Share::Nothing,
            reasons: vec![ChoiceReason::Software],
        }
    }

    /// How often devices were used and how often that did not work; `None` of an encoder that counts none.
    fn device_counts(&self) -> Option<DeviceCounts> {
        None
    }

    /// Creates an execution. No encoder process runs until media is asked of it.
    ///
    /// The responsibility is in the answer even when the outcome is uncertain (T9). Cancelling the future
    /// before it completes creates nothing.
    fn start(&self, start: Start) -> BoxFuture<'_, Started>;

    /// `resource` of `request`, if an earlier execution made it from the same state of the same input and it
    /// was kept (D20). Starts nothing. An encoder that keeps nothing answers `None`.
    fn kept(&self, request: &Request, input: &Input, resource: Resource) -> Option<Served> {
        let _ = (request, input, resource);
        None
    }
}

/// What creates an execution.
#[derive(Clone, Debug)]
pub struct Start {
    /// What to make.
    pub request: Arc<Request>,
    /// Where the bytes are. Local to the node; never on a wire (T4).
    pub input: Input,
    /// Bytes of scratch that were booked for it: a hard bound.
    pub scratch: u64,
    /// The segment that the viewer is expected to begin with: where an encoder starts that is asked for the
    /// initialization segment first.
    pub first: u32,
}

/// Where an encoder finds its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A file of this node, and the revision that was promised.
    File {
        /// The file.
        path: PathBuf,
        /// What its size, times and identity were when its facts were read.
        revision: Revision,
    },
    /// A film of another node, behind a gateway of this one.
    Gateway(Gateway),
}

/// The answer to a start: the responsibility first, the outcome second.
pub struct Started {
    /// The execution, to be retired by whoever asked for it.
    pub execution: Arc<dyn Execution>,
    /// Whether it can be used.
    pub outcome: Result<(), StartError>,
}

/// Why an execution cannot be used. It still has to be retired.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The encoder cannot take the request.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// Scratch space cannot be had.
    #[error("no scratch space can be had: {kind}")]
    Scratch {
        /// The kind of failure.
        kind: std::io::ErrorKind,
    },
    /// Whether it started is not known.
    #[error("whether the encoder started is not known")]
    Uncertain,
}

/// One request being served: at most one encoder process at a time, restarted wherever the viewer seeks.
pub trait Execution: Send + Sync {
    /// Waits until `resource` is finished and pins it, starting or moving the encoder if that is needed.
    ///
    /// Waits as long as the caller does; callers bound it. Cancelling forgets the wait: an encoder that was
    /// started for it goes on within the hold-back rules.
    ///
    /// # Errors
    /// [`ServeError`] says whether asking again can help.
    fn serve(&self, resource: Resource) -> BoxFuture<'_, Result<Served, ServeError>>;

    /// `resource` if it is finished already. Starts nothing and moves nothing.
    fn finished(&self, resource: Resource) -> Option<Served>;

    /// Whether `resource` is finished, being made, or next to be made: whether it can be had without taking
    /// the encoder away from what other viewers of this execution watch.
    fn reaches(&self, resource: Resource) -> bool;

    /// The progressive stream, from the start that the request says; starts the encoder. Each execution gives
    /// it once: a viewer who lost it asks for a new execution. Dropping the stream ends the encoder.
    ///
    /// # Errors
    /// [`ServeError::OtherProtocol`] where the request's protocol is another, [`ServeError::Retired`] for a
    /// second call.
    fn stream(&self) -> BoxFuture<'_, Result<ByteStream, ServeError>>;

    /// Applies a control.
    ///
    /// # Errors
    /// Whether the control took effect is not known; it is never retried here (T16).
    fn control(&self, control: Control) -> BoxFuture<'_, Result<(), StartError>>;

    /// A sample of what it is doing.
    fn observe(&self) -> Observation;

    /// Seals the execution against further work and waits until every process is proved gone and every
    /// file of its scratch is removed. May be called again, by several callers; each gets the same answer.
    /// Cancelling the future cancels the wait and not the retirement.
    ///
    /// # Errors
    /// [`RetireError`] keeps the responsibility with the caller.
    fn retire(&self) -> BoxFuture<'_, Result<Retirement, RetireError>>;
}

/// What the viewer's side tells an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Somebody still watches.
    Touch,
    /// The viewer plays.
    Playing,
    /// The viewer paused; the place is kept.
    Paused,
    /// The viewer stopped.
    Stopped,
}

/// Why a resource cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// There is no such resource in the plan.
    #[error("there is no resource {resource}")]
    NoSuchResource {
        /// What was asked for.
        resource: Resource,
    },
    /// The request's protocol does not give this.
    #[error("the protocol of the request does not give this")]
    OtherProtocol,
    /// The presentation ended before this resource: the source is shorter than it says.
    #[error("the source ends at {at} s, before this segment")]
    SourceEnded {
        /// Media time of the last picture or sound.
        at: Ticks,
    },
    /// The encoder cannot make it, and asking again will not help.
    #[error("the encoder ended before this segment")]
    Ended {
        /// How it ended.
        ended: Ended,
    },
    /// There is no room for it now.
    #[error("refused for now: {refusal}")]
    Refused {
        /// The reason.
        refusal: Refusal,
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// The execution was told to end.
    #[error("the execution has ended")]
    Retired,
}

/// Why work is refused for now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Every encoder is taken.
    #[error("all encoders are taken")]
    Encoders,
    /// Scratch space is taken.
    #[error("scratch space is taken")]
    Scratch,
    /// The encoder device takes no further session (a device's own limit).
    #[error("the encoding device takes no further session")]
    Device,
    /// The encoder device failed; another one can make the same, and a new choice will not name this one.
    #[error("the encoding device failed")]
    DeviceLost,
}

/// Proof that an execution has ended: made only by the encoder that ran it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retirement {
    /// How many encoder processes were run and proved gone.
    pub runs: u32,
}

/// Why an execution is not proved ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetireError {
    /// Its end was asked for and is not proved yet.
    #[error("the encoder's end is not proved yet")]
    Pending,
    /// Whether the request arrived is not known.
    #[error("whether the encoder ends is not known")]
    Uncertain,
    /// Its end cannot be proved; the charge stays.
    #[error("the encoder's end cannot be proved")]
    Unprovable,
}
