//! What the caches need around each thing the device is given, kept until it has ended.
//!
//! ```text
//! start ─► Given::prepare ─ clean sources, clean and drop destinations ─► enabled ... ended or stopped ─► Given::finish ─ drop again
//! ```
//!
//! Wicki 2014, 4.3.2 and 5.1: the device goes past the caches. Which instructions that takes is the caller's
//! [`CacheMaintenance`]; memory that is not cached, or kept coherent, needs none.

use core::fmt;

use memferry_drivers::sdma::{CacheMaintenance, ChannelConfig, LinkedList, NonCacheable, Segment};

/// The maintenance that the engine was given.
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

/// What a channel was configured with.
#[derive(Debug)]
pub(super) enum Given {
    Transfer(Box<ChannelConfig>),
    List(LinkedList, Vec<Segment>),
}

impl Given {
    /// Before the channel is enabled.
    pub(super) fn prepare(&self, caches: &mut Caches) {
        match self {
            Self::Transfer(config) => config.prepare_caches(caches),
            Self::List(list, segments) => list.prepare_caches(segments, caches),
        }
    }

    /// After its end, before anybody reads what it wrote.
    pub(super) fn finish(&self, caches: &mut Caches) {
        match self {
            Self::Transfer(config) => config.finish_caches(caches),
            Self::List(list, segments) => list.finish_caches(segments, caches),
        }
    }
}
