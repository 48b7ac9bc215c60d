//! The words every other crate shares: identities, boots, generations, fences, leases and time.
//!
//! Nothing here does IO. Text enters the system through the constructors of these types, which bound its
//! length and alphabet once (P21); past that border the rest of ether trusts them.

pub mod budget;
pub mod clock;
pub mod fence;
pub mod id;
pub mod media_id;
pub mod role;
pub mod time;

pub use budget::{Budget, BudgetView, Remembered, Warning};
pub use clock::{Clock, ManualClock, SystemClock};
pub use fence::{ExecutionId, Fence, FenceHash, FenceRef, Generation, InvalidFenceHash, InvalidGeneration};
pub use id::{BootId, ClusterId, InvalidId, NodeId, OperationId, ScopeName, SessionId, TargetId};
pub use media_id::{ItemId, PlaybackId};
pub use role::Role;
pub use time::{Monotonic, Timestamp};
