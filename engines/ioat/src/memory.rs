//! Memory as the device addresses it: frames, and the rings of its channels, whose words the processor has as `DeviceWords`.

use memferry_driven_engines::DeviceMemory;
use memferry_transfer::{EngineKind, Memory};

/// Memory that is mapped for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reached {
    pub(crate) iova: u64,
    pub(crate) bytes: u64,
}

impl Memory for Reached {
    fn length(&self) -> u64 {
        self.bytes
    }
}

impl DeviceMemory for Reached {
    /// As much as a service submits.
    const LONGEST_BYTES: u64 = 1 << 40;
    const KIND: EngineKind = EngineKind::External;

    fn device_address(&self) -> u64 {
        self.iova
    }
}
