//! Cache maintenance before and after each transfer.
//!
//! ```text
//! start ─► prepare ─ clean sources, clean and invalidate destinations ─► enabled ... ended or stopped ─► finish ─ invalidate
//! ```
//!
//! The device bypasses the caches (Wicki 2014, 4.3.2 and 5.1). The caller's [`CacheMaintenance`] provides the
//! instructions; uncached or coherent memory needs none.

use core::fmt;

use memferry_drivers::sdma::{CacheMaintenance, ChannelConfig, LinkedList, NonCacheable, Segment};

/// The caller's cache maintenance.
pub(super) struct Caches(Box<dyn CacheMaintenance>);

impl Caches {
    pub(super) fn new(maintenance: Box<dyn CacheMaintenance>) -> Self {
        Self(maintenance)
    }
}

impl Default for Caches {
    fn default() -> Self {
        Self(Box::new(NonCacheable))
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Caches")
    }
}

impl CacheMaintenance for Caches {
    fn clean(&mut self, address: u64, length_bytes: u64) {
        self.0.clean(address, length_bytes);
    }

    fn clean_and_invalidate(&mut self, address: u64, length_bytes: u64) {
        self.0.clean_and_invalidate(address, length_bytes);
    }

    fn invalidate(&mut self, address: u64, length_bytes: u64) {
        self.0.invalidate(address, length_bytes);
    }
}

/// The configuration of a channel.
#[derive(Debug)]
pub(super) enum Configured {
    Transfer(Box<ChannelConfig>),
    List(LinkedList, Vec<Segment>),
}

impl Configured {
    /// Maintenance before the channel is enabled.
    pub(super) fn prepare(&self, caches: &mut Caches) {
        match self {
            Self::Transfer(config) => config.prepare_caches(caches),
            Self::List(list, segments) => list.prepare_caches(segments, caches),
        }
    }

    /// Maintenance after the end, before the processor reads the result.
    pub(super) fn finish(&self, caches: &mut Caches) {
        match self {
            Self::Transfer(config) => config.finish_caches(caches),
            Self::List(list, segments) => list.finish_caches(segments, caches),
        }
    }
}
