//! Cache maintenance around a transfer, done by whoever knows the processor's caches.
//!
//! ```text
//! before: clean(source) ──► clean_and_invalidate(destination) ──► enable ──► ... end ──► after: invalidate(destination)
//! ```
//!
//! The device reads and writes memory behind the caches. The driver says which range needs what and when; it has no
//! cache instruction of its own. A device's registers are never cached and are left out.

use super::config::{ChannelConfig, Port};

/// Cache operations on physical ranges. Each returns when its effect is visible to the device.
pub trait CacheMaintenance {
    /// Writes dirty lines of the range back to memory: the device is about to read it.
    fn clean(&mut self, address: u64, length_bytes: u64);

    /// Writes dirty lines back and drops them: the device is about to write the range, and a dirty line written back
    /// later would overwrite its data.
    fn clean_and_invalidate(&mut self, address: u64, length_bytes: u64);

    /// Drops the range's lines, which may have been read ahead during the transfer: the processor is about to read
    /// what the device wrote. Lines that the range shares with other data must not lose that data.
    fn invalidate(&mut self, address: u64, length_bytes: u64);
}

/// Says that both sides are mapped without caching, or that the interconnect keeps caches coherent: nothing is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NonCacheable;

impl CacheMaintenance for NonCacheable {
    fn clean(&mut self, _address: u64, _length_bytes: u64) {}

    fn clean_and_invalidate(&mut self, _address: u64, _length_bytes: u64) {}

    fn invalidate(&mut self, _address: u64, _length_bytes: u64) {}
}

impl ChannelConfig {
    /// What the caches need before the channel is enabled.
    ///
    /// A transparent copy leaves elements of the destination alone, which is why the destination is cleaned too.
    pub fn prepare_caches(&self, caches: &mut impl CacheMaintenance) {
        if let Some((address, length)) = self.cached_range(Port::Source) {
            caches.clean(address, length);
        }
        if let Some((address, length)) = self.cached_range(Port::Destination) {
            caches.clean_and_invalidate(address, length);
        }
    }

    /// What the caches need after the end was reported and before the processor reads the destination.
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
    fn source_is_cleaned_before_and_destination_invalidated_after() {
        let walked =
            Side::indexed(0x1000, Addressing::DoubleIndex { element_index: -7, frame_index: 0x100 - 3 });
        let config = ChannelConfig::new(Operation::Copy, piece(walked, Side::memory(0x8000)));
        let mut log = Log::default();
        config.prepare_caches(&mut log);
        config.finish_caches(&mut log);
        // The walk goes down by 4 bytes three times, then up by 0x100, and down again.
        let source = ("clean", 0x1000 - 12, 0x100 - 12 + 12 + 4);
        assert_eq!(log.0, [source, ("clean and invalidate", 0x8000, 32), ("invalidate", 0x8000, 32)]);
    }

    #[test]
    fn devices_and_a_fills_source_are_left_alone() {
        let mut log = Log::default();
        let fill =
            ChannelConfig::new(Operation::fill_byte(1), piece(Side::memory(0), Side::device(0x4800_0000)));
        fill.prepare_caches(&mut log);
        fill.finish_caches(&mut log);
        fill.prepare_caches(&mut NonCacheable);
        assert_eq!(log.0, []);
    }
}
