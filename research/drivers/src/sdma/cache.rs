//! Cache maintenance before and after a transfer, through a trait that the platform implements.
//!
//! ```text
//! before: clean(source) ──► clean_and_invalidate(destination) ──► enable ──► ... end ──► after: invalidate(destination)
//! ```
//!
//! The device accesses memory without the processor's caches. The driver chooses the ranges, operations and times; the
//! platform's [`CacheMaintenance`] executes them. Device registers are never cached and need no maintenance.

use super::config::{ChannelConfig, Port};

/// Cache operations on physical ranges. Each returns when its effect is visible to the device.
pub trait CacheMaintenance {
    /// Writes dirty lines of the range back to memory, before the device reads the range.
    fn clean(&mut self, address: u64, length_bytes: u64);

    /// Writes dirty lines back and drops them, before the device writes the range. A dirty line written back later would
    /// overwrite the device's data.
    fn clean_and_invalidate(&mut self, address: u64, length_bytes: u64);

    /// Drops the lines of the range, before the processor reads the device's data; the processor may have prefetched
    /// lines during the transfer. Lines that the range shares with other data must not lose that data.
    fn invalidate(&mut self, address: u64, length_bytes: u64);
}

/// Does nothing, for uncached mappings and for coherent interconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NonCacheable;

impl CacheMaintenance for NonCacheable {
    fn clean(&mut self, _address: u64, _length_bytes: u64) {}

    fn clean_and_invalidate(&mut self, _address: u64, _length_bytes: u64) {}

    fn invalidate(&mut self, _address: u64, _length_bytes: u64) {}
}

impl ChannelConfig {
    /// Maintains the caches before the channel is enabled.
    ///
    /// The destination is also cleaned, because a transparent copy does not overwrite all of its elements.
    pub fn prepare_caches(&self, caches: &mut impl CacheMaintenance) {
        if let Some((address, length)) = self.cached_range(Port::Source) {
            caches.clean(address, length);
        }
        if let Some((address, length)) = self.cached_range(Port::Destination) {
            caches.clean_and_invalidate(address, length);
        }
    }

    /// Maintains the caches after the end of the transfer, before the processor reads the destination.
    pub fn finish_caches(&self, caches: &mut impl CacheMaintenance) {
        if let Some((address, length)) = self.cached_range(Port::Destination) {
            caches.invalidate(address, length);
        }
    }

    fn cached_range(&self, port: Port) -> Option<(u64, u64)> {
        if self.side(port).is_device { None } else { self.range(port) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::super::{Addressing, Element, Operation, Piece, Side, TransferSize};
    use super::*;
    use std::vec::Vec;

    #[derive(Default)]
    struct Log(Vec<(&'static str, u64, u64)>);

    impl CacheMaintenance for Log {
        fn clean(&mut self, address: u64, length: u64) {
            self.0.push(("clean", address, length));
        }
        fn clean_and_invalidate(&mut self, address: u64, length: u64) {
            self.0.push(("clean and invalidate", address, length));
        }
        fn invalidate(&mut self, address: u64, length: u64) {
            self.0.push(("invalidate", address, length));
        }
    }

    fn piece(source: Side, destination: Side) -> Piece {
        Piece { size: TransferSize { element: Element::Bits32, elements: 4, frames: 2 }, source, destination }
    }

    #[test]
    fn cleans_before_and_invalidates_after() {
        let walked =
            Side::indexed(0x1000, Addressing::DoubleIndex { element_index: -7, frame_index: 0x100 - 3 });
        let config = ChannelConfig::new(Operation::Copy, piece(walked, Side::memory(0x8000)));
        let mut log = Log::default();
        config.prepare_caches(&mut log);
        config.finish_caches(&mut log);
        // The walk steps down by 4 bytes three times, up by 0x100, and down again three times.
        let source = ("clean", 0x1000 - 12, 0x100 - 12 + 12 + 4);
        assert_eq!(log.0, [source, ("clean and invalidate", 0x8000, 32), ("invalidate", 0x8000, 32)]);
    }

    #[test]
    fn skips_devices_and_the_source_of_a_fill() {
        let mut log = Log::default();
        let fill =
            ChannelConfig::new(Operation::fill_byte(1), piece(Side::memory(0), Side::device(0x4800_0000)));
        fill.prepare_caches(&mut log);
        fill.finish_caches(&mut log);
        fill.prepare_caches(&mut NonCacheable);
        assert_eq!(log.0, []);
    }
}
