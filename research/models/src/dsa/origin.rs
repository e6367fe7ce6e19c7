//! Where descriptors come from.

/// Where a descriptor came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) queue: usize,
    /// Counts the descriptors that the device has accepted.
    pub(super) order: u64,
    /// Its address space and privilege: the queue's, or those of the descriptor in a shared queue (8.1.1).
    pub(super) pasid: u32,
    pub(super) privileged: bool,
    /// Interrupts come from the interrupt message storage, which the device does not have.
    pub(super) ims: bool,
}
