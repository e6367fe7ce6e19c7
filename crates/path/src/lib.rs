//! The path of a request as pure steps, one module for each stage: no thread, no clock, no system call, no unsafe code.
//!
//! ```text
//! Request ─admit─► Admitted ─place─► Placed ─post─► Posted ─engine─► EngineCompletion ─settle─► QueueCompletion
//!      capability  order   policy, channel        completion                      (exactly one)
//! ```
//!
//! Each stage's output has private fields, so only that stage makes it and no stage can be skipped. [`Path`] joins the stages for
//! one engine; live workers and simulations drive the same steps with their own clocks. The caller fetches requests from rings
//! and notifies clients.
//!
//! ```
//! use memferry_clock::Instant;
//! use memferry_conformance::{FakeEngine, SimMemory, Timing};
//! use memferry_path::{Capabilities, Path, PathLimits, PolicyKind};
//! use memferry_transfer::{Failure, Pattern, Request, Rights, SessionId, Side, Span};
//!
//! let engine = FakeEngine::new(1, Timing { latency_ps: 0, ps_per_byte: 10, preemption_bytes: None });
//! let mut path = Path::new(engine, PolicyKind::Shared.build(), PathLimits { waiting_per_user: 8 });
//! let mut capabilities = Capabilities::new(16);
//! let session = SessionId(1);
//! let memory = SimMemory::new(vec![0; 4]);
//! let frame = capabilities.register(session, memory.clone(), Rights::WRITE)?;
//! let queue = path.open_queue(session, 0);
//!
//! let mut now = Instant::ORIGIN;
//! for (tag, length) in [(1, 4), (2, 5)] {
//!     let reservation = path.reserve(queue, 8).expect("room for a completion");
//!     let request = Request::fill(Span::new(frame, 0), length, Pattern::Byte(7));
//!     path.submit(now, reservation, tag, &request, &mut capabilities);
//! }
//! path.ring_doorbell();
//! while !path.idle() {
//!     path.run(now);
//!     path.settle(now, &mut capabilities);
//!     now = path.next_wake().unwrap_or(now);
//! }
//! let results: Vec<_> = path.take_completions().map(|done| done.completion.outcome.result).collect();
//! let outside = Failure::OutOfBounds { side: Side::Destination, available: 4 };
//! assert_eq!((results, memory.contents()), (vec![Err(outside), Ok(())], vec![7; 4]));
//! # Ok::<(), memferry_path::CapabilityError>(())
//! ```
//!
//! # What does not compile
//!
//! An engine takes descriptors over regions, and only admission turns a client's spans into regions:
//!
//! ```compile_fail,E0308
//! use memferry_conformance::SimMemory;
//! use memferry_transfer::{Descriptor, Operation, Span};
//!
//! fn skip_admission(operation: Operation<Span>) -> Descriptor<SimMemory> {
//!     Descriptor::new(0, operation).unwrap()
//! }
//! ```
//!
//! A request admitted for one session cannot move to another session, nor reach an engine without a channel:
//!
//! ```compile_fail,E0451
//! fn steal<M>(admitted: memferry_path::Admitted<M>) -> memferry_path::Admitted<M> {
//!     memferry_path::Admitted { session: memferry_transfer::SessionId(7), ..admitted }
//! }
//! ```
//!
//! ```compile_fail,E0624
//! fn skip_placement<M>(admitted: memferry_path::Admitted<M>) {
//!     let (operation, claims) = admitted.into_parts();
//! }
//! ```
//!
//! A request placed on one channel cannot move to another, and only [`Path`] can post it:
//!
//! ```compile_fail,E0451
//! fn move_over<M>(placed: memferry_path::Placed<M>) -> memferry_path::Placed<M> {
//!     memferry_path::Placed { channel: 7, ..placed }
//! }
//! ```
//!
//! ```compile_fail,E0624
//! fn post_elsewhere<M>(placed: memferry_path::Placed<M>) {
//!     let unfolded = placed.unfold();
//! }
//! ```
//!
//! Only [`Path::reserve`] reserves room for a completion, and a reservation is good for one request:
//!
//! ```compile_fail,E0451
//! let forged = memferry_path::Reservation { queue: memferry_path::QueueKey(0) };
//! ```
//!
//! ```compile_fail,E0382
//! use memferry_conformance::FakeEngine;
//! use memferry_path::{Path, Reservation};
//! use memferry_transfer::Failure;
//!
//! fn complete_twice(path: &mut Path<FakeEngine>, reservation: Reservation) {
//!     path.refuse(reservation, 1, false, Failure::Cancelled);
//!     path.refuse(reservation, 1, false, Failure::Cancelled);
//! }
//! ```

pub mod capability;
pub mod channel;
pub mod immediate;
mod order;
pub mod policy;
mod request;
mod steps;

pub use capability::{Accepted, Admitted, Capabilities, CapabilityError, Grantee, Mirror, RevocationId};
pub use channel::Placed;
pub use immediate::{ClaimedTransfer, Immediate};
pub use policy::{
    Acts, AllOutstanding, Ask, ChannelState, Choice, Outstanding, Policy, PolicyError, PolicyKind,
    PolicySettings, SliceCounts, Slices,
};
pub use request::{QueueCompletion, QueueKey};
pub use steps::{AtOnce, Path, PathLimits, Reservation};

#[cfg(test)]
mod tests;
