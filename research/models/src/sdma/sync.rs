//! Hardware-synchronized channels: a request moves an element, a frame, a packet or a block.
//!
//! ```text
//! request line ──► enabled channel of that request ── credit of elements ──► reads or writes ──► served
//!                        └── the one before is not served ──► drop error
//! ```
//!
//! The credit counts elements on the side that makes the requests. A source-synchronized channel reads within it; with
//! buffering it may keep less than a burst until the next request, without buffering it writes all data before the
//! request counts as served. A destination-synchronized channel writes within it and reads no more than it will write,
//! or, with prefetch, as much as its FIFO holds.

use super::Sdma;
use super::channel::{Block, Run, State};
use super::complaint::Reason;
use super::setup::{Operation, Unit};
use crate::Bus;
use memferry_registers::sdma::{CHANNELS, Csr, REQUESTS, Register};

impl Run {
    /// Elements that requests allow to be read now.
    pub(super) fn may_read(&self, block: &Block) -> u64 {
        match block.setup.sync {
            None => u64::MAX,
            Some(sync) if sync.by_source => self.credit,
            Some(sync) if sync.prefetch => u64::MAX,
            Some(_) => self.credit.saturating_sub(u64::from(block.fifo.used() / block.setup.size)),
        }
    }

    /// Elements that requests allow to be written now.
    pub(super) fn may_write(&self, block: &Block) -> u64 {
        match block.setup.sync {
            Some(_) if counts_writes(block) => self.credit,
            _ => u64::MAX,
        }
    }

    /// Whether a disabled channel completes its request and writes the data already read.
    pub(super) fn drains(&self) -> bool {
        let candidate = self.block.as_ref().is_some_and(|block| {
            let sync = block.setup.sync.is_some_and(|sync| sync.by_source && sync.buffering);
            sync && block.setup.operation == Operation::Copy
        });
        candidate && matches!(self.state, State::Active | State::Draining)
    }

    /// Whether the current request has moved all its elements.
    fn has_served(&self) -> bool {
        let Some((block, sync)) = self.block.as_ref().and_then(|block| Some((block, block.setup.sync?)))
        else {
            return false;
        };
        let written = self.writes == 0;
        let moved = match counts_writes(block) {
            true => written,
            false => self.reads == 0 && (sync.buffering || (block.fifo.used() == 0 && written)),
        };
        self.granted && self.credit == 0 && moved
    }
}

/// Whether requests count the elements written; a fill reads none.
pub(super) fn counts_writes(block: &Block) -> bool {
    block.setup.sync.is_some_and(|sync| !sync.by_source) || block.setup.operation == Operation::Fill
}

impl<B: Bus> Sdma<B> {
    /// Signals DMA request line `line` (from 0). Returns whether an enabled channel accepted it.
    pub fn request(&mut self, line: usize) -> bool {
        if line >= REQUESTS {
            return false;
        }
        let wanted = line as u8 + 1;
        let channel = (0..CHANNELS).find(|channel| {
            let registers = &self.channels[*channel].registers;
            registers.ccr().enable() && registers.ccr().request() == wanted
        });
        let Some(channel) = channel else {
            return false;
        };
        let Some(run) = self.channels[channel].run.as_mut() else {
            return false;
        };
        if run.pending {
            self.report(channel, Csr::new().with_drop(true));
            return false;
        }
        run.pending = true;
        self.grant(channel);
        self.schedule();
        true
    }

    /// Gives the pending request of `channel` its elements. A request before the block starts, or after its last element
    /// was issued, gets them when the next block starts.
    pub(super) fn grant(&mut self, channel: usize) {
        let Some(run) = self.channels[channel].run.as_mut().filter(|run| run.pending && !run.granted) else {
            return;
        };
        let Some(block) = run.block.as_ref().filter(|_| run.state == State::Active) else {
            return;
        };
        let Some(sync) = block.setup.sync else {
            return;
        };
        let walk = if counts_writes(block) { &block.setup.destination } else { &block.setup.source };
        run.credit = match sync.unit {
            Unit::Element => walk.left().min(1),
            Unit::Frame => u64::from(walk.left_in_frame()),
            Unit::Packet(elements) => walk.left().min(u64::from(elements)),
            Unit::Block => walk.left(),
        };
        run.granted = run.credit > 0;
    }

    /// Ends a request that has moved all its elements.
    pub(super) fn settle_request(&mut self, channel: usize) {
        if let Some(run) = self.channels[channel].run.as_mut().filter(|run| run.has_served()) {
            run.pending = false;
            run.granted = false;
        }
    }

    /// Complains if another enabled channel uses the request line of `channel`.
    pub(super) fn check_request_shared(&mut self, channel: usize) {
        let wanted = self.channels[channel].registers.ccr().request();
        let shared = (0..CHANNELS).filter(|other| *other != channel).any(|other| {
            let ccr = self.channels[other].registers.ccr();
            ccr.enable() && ccr.request() == wanted
        });
        if wanted != 0 && shared {
            self.complain(channel, Register::Ccr, Reason::RequestShared);
        }
    }
}
