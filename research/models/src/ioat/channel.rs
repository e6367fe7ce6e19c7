//! A channel: its registers, the descriptors it works on, and how it stands still.
//!
//! ```text
//! halted ── CHAINADDR ──► armed ── DMACOUNT ──► active ◄──► idle
//!    ▲                                           │  ▲
//!    └── error, abort, reset ────────────────────┤  └── resume ── suspended ◄── the descriptor at work ends
//!                                                └── suspend ────────┘
//! ```
//!
//! What an access does to memory is the engine's business.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use memferry_clock::Instant;
use memferry_registers::ioat::descriptor::{Body, Descriptor};
use memferry_registers::ioat::{Chanctrl, Chanerr, Chansts, TransferState};

/// A part of a descriptor's bytes on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Burst {
    /// From the descriptor's first byte.
    pub(super) offset: u64,
    pub(super) data: Vec<u8>,
    /// Sources that have not arrived.
    pub(super) awaited: usize,
    pub(super) writing: bool,
}

/// A descriptor at work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Work {
    /// Tells the descriptors of a channel apart.
    pub(super) serial: u64,
    pub(super) address: u64,
    pub(super) descriptor: Descriptor,
    /// Bytes whose bursts were begun.
    pub(super) begun: u64,
    /// Sources of the last burst that were asked for.
    pub(super) asked: usize,
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

    /// Whether all that it reads was asked for.
    pub(super) fn has_asked_all(&self) -> bool {
        self.begun == self.length() && self.asked == self.sources().len()
    }

    /// Whether all is in memory, or nothing more will be.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() || (self.begun == self.length() && self.bursts.is_empty())
    }

    fn is_begun(&self) -> bool {
        self.begun > 0 || self.length() == 0 || self.failure.is_some()
    }
}

/// A descriptor that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fetch {
    pub(super) address: u64,
    /// The one whose extension it is, and that one's address.
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
    /// DMACOUNT, and how many descriptors were fetched and done since CHAINADDR's write.
    pub(super) count: u16,
    pub(super) fetched: u16,
    pub(super) processed: u16,
    pub(super) state: TransferState,
    pub(super) completed: u64,
    pub(super) latched: u32,
    /// The next descriptor that is not at work; where it has an extension, the first of the two.
    pub(super) next: u64,
    pub(super) begins: Instant,
    pub(super) suspending: bool,
    pub(super) resetting: bool,
    /// Completion writes on their way.
    pub(super) completing: u32,
    /// Counts what ends all that is on its way.
    pub(super) epoch: u32,
    pub(super) serial: u64,
    pub(super) fetch: Option<Fetch>,
    pub(super) fetch_failure: Option<Chanerr>,
    pub(super) works: VecDeque<Work>,
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
            works: VecDeque::new(),
        }
    }

    pub(super) fn status(&self) -> Chansts {
        let soft = self.error.into_bits() & self.mask.into_bits() != 0;
        Chansts::new().with_state(self.state).with_soft_error(soft).with_completed(self.completed)
    }

    /// Nothing that is on its way arrives any more.
    pub(super) fn drop_all(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.works.clear();
        (self.fetch, self.fetch_failure, self.suspending, self.completing) = (None, None, false, 0);
    }

    /// What a reset leaves. Errors, their mask and the owner's mark stay; that the rest goes is the harsher of two guesses.
    pub(super) fn reset(&mut self) {
        let epoch = self.epoch;
        let serial = self.serial;
        let control = Chanctrl::new().with_in_use(self.control.in_use());
        let error = self.error;
        let mask = self.mask;
        *self = Self { epoch, serial, control, error, mask, ..Self::new() };
    }

    /// Takes up a chain.
    pub(super) fn arm(&mut self, chain: u64) {
        self.drop_all();
        (self.chain, self.next) = (chain, chain);
        (self.count, self.fetched, self.processed, self.completed) = (0, 0, 0, 0);
        self.state = TransferState::Armed;
    }

    /// Begins to stand still: descriptors that nothing was done for are fetched again later.
    pub(super) fn suspend(&mut self) {
        self.suspending = true;
        (self.fetch, self.fetch_failure) = (None, None);
        let kept = self.works.iter().take_while(|work| work.is_begun()).count();
        if let Some(first) = self.works.get(kept) {
            self.next = first.address;
        }
        self.works.truncate(kept);
        self.fetched =
            self.processed.wrapping_add(self.works.iter().map(|work| work.descriptor.slots()).sum());
        self.settle();
    }

    pub(super) fn resume(&mut self) {
        self.suspending = false;
        if self.state == TransferState::Suspended {
            self.state = TransferState::Active;
        }
        self.settle();
    }

    /// What the state is when nothing is at work.
    pub(super) fn settle(&mut self) {
        if matches!(self.state, TransferState::Halted) || !self.works.is_empty() {
            return;
        }
        if self.suspending && self.completing == 0 {
            (self.suspending, self.state) = (false, TransferState::Suspended);
        } else if self.state == TransferState::Active && self.processed == self.count {
            self.state = TransferState::Idle;
        }
    }

    /// Descriptors that are valid and were not fetched.
    pub(super) const fn unfetched(&self) -> u16 {
        self.count.wrapping_sub(self.fetched)
    }
}
