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
use memferry_registers::ioat::descriptor::{Body, Descriptor, MAX_SOURCES};
use memferry_registers::ioat::{Chanctrl, Chanerr, Chansts, Dcactrl, TransferState};

use super::faults::Planned;

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
    /// What it reads: the operation's sources, and what a check compares them with.
    reads: [u64; MAX_SOURCES + 1],
    read_count: usize,
    /// An injected fault that takes effect when the descriptors before it have completed.
    pub(super) gate: Option<Gate>,
    pub(super) loses_completion: bool,
    pub(super) loses_interrupt: bool,
}

/// What keeps a descriptor from its execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Fault(Planned),
    Until(Instant),
}

impl Work {
    /// A descriptor without any access so far. No read is issued yet: `sources_read` describes the burst that was started last.
    pub(super) fn new(serial: u64, address: u64, descriptor: Descriptor) -> Self {
        let mut reads = [0; MAX_SOURCES + 1];
        let (operands, checked) = match &descriptor.body {
            Body::Null | Body::Fill { .. } => (&[][..], None),
            Body::Copy { source, .. } => (core::slice::from_ref(source), None),
            Body::Xor { sources, .. } => (sources.addresses(), None),
            Body::XorCheck { sources, expected } => (sources.addresses(), Some(expected)),
        };
        let mut read_count = 0;
        for (read, operand) in reads.iter_mut().zip(operands.iter().chain(checked)) {
            *read = *operand;
            read_count += 1;
        }
        Self {
            serial,
            address,
            descriptor,
            bytes_started: 0,
            sources_read: read_count,
            bursts: VecDeque::new(),
            failure: None,
            reads,
            read_count,
            gate: None,
            loses_completion: false,
            loses_interrupt: false,
        }
    }

    pub(super) fn length(&self) -> u64 {
        match self.descriptor.body {
            Body::Null => 0,
            _ => u64::from(self.descriptor.size),
        }
    }

    pub(super) fn sources(&self) -> &[u64] {
        &self.reads[..self.read_count]
    }

    /// Whether its data is compared rather than written.
    pub(super) fn is_check(&self) -> bool {
        matches!(self.descriptor.body, Body::XorCheck { .. })
    }

    pub(super) fn destination(&self) -> u64 {
        match &self.descriptor.body {
            Body::Null => 0,
            Body::Copy { destination, .. }
            | Body::Fill { destination, .. }
            | Body::Xor { destination, .. }
            | Body::XorCheck { expected: destination, .. } => *destination,
        }
    }

    /// Whether all reads were issued.
    pub(super) fn has_issued_reads(&self) -> bool {
        self.bytes_started == self.length() && self.sources_read == self.sources().len()
    }

    /// Whether all data is in memory, or the descriptor failed.
    pub(super) fn is_over(&self) -> bool {
        let done = self.bytes_started == self.length() && self.bursts.is_empty();
        self.failure.is_some() || (done && self.gate.is_none())
    }

    fn is_started(&self) -> bool {
        self.bytes_started > 0 || (self.length() == 0 && self.gate.is_none()) || self.failure.is_some()
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
    pub(super) dca: Dcactrl,
    /// An interrupt was requested while it was not armed, and the configuration holds such ones.
    pub(super) held: bool,
    /// Descriptors that were put in flight since power-up.
    pub(super) ordinal: u64,
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
            dca: Dcactrl::new(),
            held: false,
            ordinal: 0,
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
        let ordinal = self.ordinal;
        *self = Self { epoch, serial, control, error, mask, ordinal, ..Self::new() };
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
        self.ordinal = self.ordinal.saturating_sub((self.in_flight.len() - kept) as u64);
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
