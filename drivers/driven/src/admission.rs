//! Admits descriptors to a device's channels, and makes completions.

use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, EngineCapabilities, EngineCompletion, EngineKind, Failure, Memory, Outcome, Ticket,
};

/// Admits a descriptor: returns its channel's slot and its plan.
///
/// # Errors
/// The reason for the refusal.
pub fn admit<'a, M: Memory, Slot, Plan, Planless>(
    descriptor: &Descriptor<M>,
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
pub fn completion(
    (channel, serial): (u32, u32),
    result: Result<(), Failure>,
    bytes_done: u64,
    engine: EngineKind,
) -> EngineCompletion {
    let ticket = Ticket { channel, serial };
    EngineCompletion { ticket, outcome: Outcome { result, bytes_done, value: 0, engine } }
}
