//! A channel: its registers, the descriptors in flight, and how it suspends.
//!
//! ```text
//! halted ── CHAINADDR ──► armed ── DMACOUNT ──► active ◄──► idle
//!    ▲                                           │  ▲
//!    └── error, abort, reset ────────────────────┤  └── resume ── suspended ◄── the started descriptors finish
//!                                                └── suspend ────────┘
//! ```
//!
//! The engine performs the memory accesses.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use memferry_clock::Instant;
use memferry_registers::ioat::descriptor::{Body, Descriptor};
use memferry_registers::ioat::{Chanctrl, Chanerr, Chansts, TransferState};

/// Part of a descriptor's data on its way from the sources to the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    /// Offset from the descriptor's first byte.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
    /// Sources whose data has not arrived.
    pub(super) awaited: usize,
    pub(super) writing: bool,
}

/// A descriptor in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Identifies the descriptor within its channel.
    pub(super) serial: u64,
    pub(super) address: u64,
    pub(super) descriptor: Descriptor,
    /// Bytes whose bursts were started.
    pub(super) bytes_started: u64,
    /// Sources of the last burst whose reads were issued.
    pub(super) sources_read: usize,
    pub(super) bursts: VecDeque<Burst>,
    pub(super) failure: Option<Chanerr>,
}

impl Work {
    pub(super) fn length(&self) -> u64 {
        match self.descriptor.body {
            Body::Null => 0,
            _ => u64::from(self.descriptor.size),
        }
    }

    pub(super) fn sources(&self) -> &[u64] {
        match &self.descriptor.body {
            Body::Null | Body::Fill { .. } => &[],
            Body::Copy { source, .. } => core::slice::from_ref(source),
            Body::Xor { sources, .. } => sources.addresses(),
        }
    }

    pub(super) fn destination(&self) -> u64 {
        match &self.descriptor.body {
            Body::Null => 0,
            Body::Copy { destination, .. }
            | Body::Fill { destination, .. }
            | Body::Xor { destination, .. } => *destination,
        }
    }

    /// Whether all reads were issued.
    pub(super) fn has_issued_reads(&self) -> bool {
        self.bytes_started == self.length() && self.sources_read == self.sources().len()
    }

    /// Whether all data is in memory, or the descriptor failed.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || (self.bytes_started == self.length() && self.bursts.is_empty())
    }

    fn is_started(&self) -> bool {
        self.bytes_started > 0 || self.length() == 0 || self.failure.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) address: u64,
    /// If it fetches an extension: the base descriptor and its address.
    pub(super) extends: Option<(Descriptor, u64)>,
    pub(super) under_way: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) control: Chanctrl,
    pub(super) chain: u64,
    pub(super) completion: u64,
    pub(super) error: Chanerr,
    pub(super) mask: Chanerr,
    /// DMACOUNT, and the descriptors fetched and completed since CHAINADDR was written.
    pub(super) count: u16,
    pub(super) fetched: u16,
    pub(super) processed: u16,
    pub(super) state: TransferState,
    pub(super) completed: u64,
    pub(super) latched: u32,
    /// Address of the next descriptor to put in flight; of the base descriptor if it has an extension.
    pub(super) next: u64,
    pub(super) begins: Instant,
    pub(super) suspending: bool,
    pub(super) resetting: bool,
    /// Completion writes in flight.
    pub(super) completing: u32,
    /// Incremented to invalidate all pending events of the channel.
    pub(super) epoch: u32,
    pub(super) serial: u64,
    pub(super) fetch: Option<Fetch>,
    pub(super) fetch_failure: Option<Chanerr>,
    pub(super) in_flight: VecDeque<Work>,
}

impl Channel {
    pub(super) const fn new() -> Self {
        Self {
            control: Chanctrl::new(),
            chain: 0,
            completion: 0,
            error: Chanerr::new(),
            mask: Chanerr::new(),
            count: 0,
            fetched: 0,
            processed: 0,
            state: TransferState::Halted,
            completed: 0,
            latched: 0,
            next: 0,
            begins: Instant::ORIGIN,
            suspending: false,
            resetting: false,
            completing: 0,
            epoch: 0,
            serial: 0,
            fetch: None,
            fetch_failure: None,
            in_flight: VecDeque::new(),
        }
    }

    pub(super) fn status(&self) -> Chansts {
        let soft = self.error.into_bits() & self.mask.into_bits() != 0;
        Chansts::new().with_state(self.state).with_soft_error(soft).with_completed(self.completed)
    }

    /// Drops all that is in flight; pending events become stale.
    pub(super) fn drop_all(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.in_flight.clear();
        (self.fetch, self.fetch_failure, self.suspending, self.completing) = (None, None, false, 0);
    }

    /// Resets the channel. Errors, their mask and the in-use mark stay. The datasheets leave open whether the rest is
    /// cleared; clearing it is the harder case for a driver.
    pub(super) fn reset(&mut self) {
        let epoch = self.epoch;
        let serial = self.serial;
        let control = Chanctrl::new().with_in_use(self.control.in_use());
        let error = self.error;
        let mask = self.mask;
        *self = Self { epoch, serial, control, error, mask, ..Self::new() };
    }

    /// Takes a new chain address.
    pub(super) fn arm(&mut self, chain: u64) {
        self.drop_all();
        (self.chain, self.next) = (chain, chain);
        (self.count, self.fetched, self.processed, self.completed) = (0, 0, 0, 0);
        self.state = TransferState::Armed;
    }

    /// Starts to suspend: drops descriptors that were not started; they are fetched again later.
    pub(super) fn suspend(&mut self) {
        self.suspending = true;
        (self.fetch, self.fetch_failure) = (None, None);
        let kept = self.in_flight.iter().take_while(|work| work.is_started()).count();
        if let Some(first) = self.in_flight.get(kept) {
            self.next = first.address;
        }
        self.in_flight.truncate(kept);
        self.fetched =
            self.processed.wrapping_add(self.in_flight.iter().map(|work| work.descriptor.slots()).sum());
        self.settle();
    }

    pub(super) fn resume(&mut self) {
        self.suspending = false;
        if self.state == TransferState::Suspended {
            self.state = TransferState::Active;
        }
        self.settle();
    }

    /// Updates the state when no descriptor is in flight.
    pub(super) fn settle(&mut self) {
        if matches!(self.state, TransferState::Halted) || !self.in_flight.is_empty() {
            return;
        }
        if self.suspending && self.completing == 0 {
            (self.suspending, self.state) = (false, TransferState::Suspended);
        } else if self.state == TransferState::Active && self.processed == self.count {
            self.state = TransferState::Idle;
        }
    }

    /// Valid descriptors that were not fetched.
    pub(super) const fn unfetched(&self) -> u16 {
        self.count.wrapping_sub(self.fetched)
    }
}
