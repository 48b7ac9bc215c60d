//! What an encoder promises, whoever keeps the promise.
//!
//! Local FFmpeg and a remote worker are two implementations of the same small port: [`Encoder`] says what it
//! supports and starts an [`Execution`]; the execution serves resources, takes controls, can be observed, and
//! is retired. Requests, resources and capabilities are data. Whoever started an execution is responsible for
//! it until its [`Retirement`] is proved; nothing else ends that responsibility, least of all silence.

pub mod capabilities;
pub mod choice;
pub mod enhancement;
pub mod freshness;
pub mod gateway;
pub mod media;
pub mod observation;
pub mod port;
pub mod remote;
pub mod request;

pub use capabilities::{Capabilities, Offer, Unsupported, supports_request};
pub use choice::{Choice, ChoiceReason, DeviceCounts, Rejection, Share};
pub use enhancement::{EnhancementStatus, NotInert};
pub use freshness::{Freshness, Moment, Received, Stale};
pub use gateway::{Gateway, GatewayRead, NotAGateway, SourceFailure};
pub use media::{ByteStream, Pieces, Served, ServedMedia};
pub use observation::{EncoderState, Ended, Observation, Treatment, Work, offers_samples};
pub use port::{
    BoxFuture, Control, Encoder, Execution, Input, Refusal, RetireError, Retirement, ServeError, Start,
    StartError, Started,
};
pub use remote::{MOST_POINTS, admits_remote};
pub use request::{
    AudioAction, AudioCodec, AudioEncode, AudioTrack, Device, MOST_RUNGS, MOST_SOUNDS, Protocol,
    RationalRate, Representation, Request, Resource, Rung, SegmentContainer, VideoAction, VideoCodec,
    VideoEncode, VideoTrack,
};

// Encoders make and send bytes of one state of a file: these words are theirs as much as the transfer's.
pub use ether_transfer::{BUFFER, Buffer, Revision};
