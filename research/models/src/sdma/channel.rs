//! State of a logical channel: the running block, pending request and transactions in flight.
//!
//! ```text
//! Loading ──► Active ──► (block ends) ──► Loading, or idle
//!    └► Paused ─┘ └──► Draining or Aborting ──► idle
//! ```
//!
//! This module holds state only; transfers, requests and lists are advanced by the device's other modules.

use super::fifo::Fifo;
use super::register_file::Registers;
use super::setup::{Operation, Setup};
use memferry_registers::sdma::{Register, TransferMode};

/// State of a running channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The next descriptor is being read.
    Loading,
    /// The list waits until software clears the pause.
    Paused,
    /// The block is being moved.
    Active,
    /// Disabled; data already read is still written.
    Draining,
    /// Disabled; waits for the transactions in flight.
    Aborting,
}

/// The block being moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) setup: Setup,
    pub(super) fifo: Fifo,
    /// Elements written of the current frame and of the current packet, and complete frames written.
    pub(super) written: u32,
    pub(super) written_of_packet: u32,
    pub(super) frames_written: u32,
    pub(super) last_frame_started: bool,
}

impl Block {
    pub(super) const fn new(setup: Setup) -> Self {
        let fifo = Fifo::new(setup.fifo);
        Self { setup, fifo, written: 0, written_of_packet: 0, frames_written: 0, last_frame_started: false }
    }

    pub(super) fn is_fill(&self) -> bool {
        self.setup.operation == Operation::Fill
    }

    /// Whether all reads were issued.
    pub(super) fn is_read(&self) -> bool {
        self.is_fill() || self.setup.source.is_done()
    }

    pub(super) const fn total(&self) -> u64 {
        self.setup.elements as u64 * self.setup.frames as u64
    }

    /// Elements in the FIFO.
    pub(super) fn waiting(&self) -> u32 {
        self.fifo.len() / self.setup.size
    }
}

/// Activity of an enabled channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) state: State,
    pub(super) block: Option<Block>,
    /// A descriptor read is in flight.
    pub(super) loading: bool,
    /// Reads and writes in flight.
    pub(super) reads: u32,
    pub(super) writes: u32,
    /// A non-posted write is in flight.
    pub(super) awaits_answer: bool,
    /// A request is being served, or waits for the next block.
    pub(super) pending: bool,
    /// The pending request was given its elements.
    pub(super) granted: bool,
    /// Elements that the request has left to move.
    pub(super) credit: u64,
}

impl Run {
    pub(super) const fn new(state: State) -> Self {
        Self {
            state,
            block: None,
            loading: false,
            reads: 0,
            writes: 0,
            awaits_answer: false,
            pending: false,
            granted: false,
            credit: 0,
        }
    }

    /// RD_ACTIVE: a descriptor or data is in flight, or can be read without another request.
    pub(super) fn is_reading(&self) -> bool {
        let to_read = self.block.as_ref().is_some_and(|block| !block.is_read() && self.may_read(block) > 0);
        let moves = matches!(self.state, State::Active | State::Draining);
        self.loading || self.reads > 0 || (moves && to_read)
    }

    /// WR_ACTIVE: writing has started, and more can be written without another request.
    pub(super) fn is_writing(&self) -> bool {
        let to_write = self.block.as_ref().is_some_and(|block| {
            let started = block.setup.destination.left() < block.total() && self.state == State::Active;
            let without_request = block.setup.sync.is_none() && !block.setup.destination.is_done();
            block.waiting() > 0 || (started && without_request)
        });
        self.writes > 0 || to_write
    }

    /// Whether no transaction is in flight.
    pub(super) const fn is_quiet(&self) -> bool {
        !self.loading && self.reads == 0 && self.writes == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) registers: Registers,
    pub(super) run: Option<Run>,
    /// A link left the list before its end; the next start continues with the next descriptor.
    pub(super) resumes_list: bool,
    /// Source and destination address at the end of the last block.
    pub(super) ended: (u32, u32),
    /// Sequence number of its last turn on the read port and on the write port.
    pub(super) last_turn: [u64; 2],
}

impl Channel {
    pub(super) fn reset(undefined: u32) -> Self {
        Self {
            registers: Registers::reset(undefined),
            run: None,
            resumes_list: false,
            ended: (0, 0),
            last_turn: [0; 2],
        }
    }

    pub(super) fn block(&self) -> Option<&Block> {
        self.run.as_ref()?.block.as_ref()
    }

    pub(super) fn state(&self) -> Option<State> {
        self.run.as_ref().map(|run| run.state)
    }

    pub(super) fn follows_list(&self) -> bool {
        self.registers.cdp().transfer_mode() == TransferMode::LinkedList
    }

    /// Updates the progress registers (CSAC, CDAC, CCEN, CCFN).
    pub(super) fn show_progress(&mut self) {
        let Some(block) = self.run.as_ref().and_then(|run| run.block.as_ref()) else {
            return;
        };
        let source = block.setup.source.address();
        let destination = block.setup.destination.address();
        let written = block.written;
        let frames = block.frames_written;
        if !block.is_fill() {
            self.registers.set(Register::Csac, source);
        }
        self.registers.set(Register::Cdac, destination);
        self.registers.set(Register::Ccen, written);
        self.registers.set(Register::Ccfn, frames);
    }
}
