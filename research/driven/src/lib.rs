//! Engines that consist of a driver in front of a device or its model.
//!
//! ```text
//! Descriptor of bus addresses ─► sdma   OMAP4 SDMA (Wicki 2014, 3.4)    ─┬─► registers of the device or its model,
//!                             ─► ioat   I/OAT (Papa 2014)                │   shared by engine, driver and clock
//!                             ─► dsa    DSA, the engine of today's Xeons ─┘
//! ```
//!
//! Single-threaded, in the device's time: `poll` passes the current time.

mod copies;
mod device;
mod dsa;
mod ioat;
mod memory;
mod sdma;

use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, EngineCapabilities, EngineCompletion, EngineKind, Failure, Outcome, Ticket,
};

pub use device::Shared;
pub use dsa::{DSA_SLOTS, DsaEngine, DsaOptions, Pages, Present};
pub use ioat::{Completion, IoatEngine, IoatInitError, IoatOptions};
pub use memory::{BusMemory, ListMemory, RequestLines};
pub use sdma::{SdmaEngine, SdmaOptions};

/// Admits a descriptor: returns its channel's slot and its plan, or the reason for the refusal.
fn admit<'a, Slot, Plan, Planless>(
    descriptor: &Descriptor<BusMemory>,
    announced: &EngineCapabilities,
    slot: Option<&'a mut Slot>,
    busy: impl Fn(&Slot) -> bool,
    plan: Result<Plan, Planless>,
) -> Result<(&'a mut Slot, Plan), RefusalReason> {
    let number = descriptor.channel();
    let operation = descriptor.operation();
    let slot = slot.ok_or(RefusalReason::NoSuchChannel(number))?;
    if busy(slot) {
        return Err(RefusalReason::Busy(number));
    }
    let performs =
        announced.operations.contains(operation.kind()) && operation.total_bytes() <= announced.longest_bytes;
    let plan = plan.ok().filter(|_| performs).ok_or(RefusalReason::Unsupported)?;
    Ok((slot, plan))
}

/// The completion of a job posted on `channel` with `serial`.
fn completion(
    (channel, serial): (u32, u32),
    result: Result<(), Failure>,
    bytes_done: u64,
) -> EngineCompletion {
    let ticket = Ticket { channel, serial };
    EngineCompletion {
        ticket,
        outcome: Outcome { result, bytes_done, value: 0, engine: EngineKind::Simulated },
    }
}
