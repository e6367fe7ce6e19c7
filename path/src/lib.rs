//! The path of a request, one stage a module, as pure steps: no thread, no clock, no system call, no unsafe code.
//!
//! ```text
//! Request ─admit─► Admitted ─place─► Placed ─post─► Posted ─engine─► Finished ─settle─► Completion
//!      capability        policy, channel         completion                      (exactly one)
//! ```
//!
//! Each stage's output has private fields, so only that stage makes it and none can be skipped. [`Path`] joins them for
//! one engine; the live lane and the simulations drive the same steps with their own clock. Fetching requests from rings
//! and telling clients is the caller's.

pub mod capability;
pub mod channel;
pub mod completion;
pub mod policy;
mod steps;

pub use capability::{Accepted, Admitted, Capabilities, CapabilityError, Recipient, RevocationId};
pub use channel::{ChannelState, Placed};
pub use completion::{Delivery, QueueKey, Reservation};
pub use policy::{Choice, Policy, PolicyKind};
pub use steps::{Path, PathLimits};

#[cfg(test)]
mod path_tests;
