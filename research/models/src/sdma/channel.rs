//! A logical channel: its registers, and the block that it moves.
//!
//! ```text
//! Loading ──► Active ──► (block ends) ──► Loading, or nothing
//!    └► Paused ─┘ └──► Draining or Aborting ──► nothing
//! ```
//!
//! The state has no behaviour of its own: transfers, requests and lists are moved on by the device.

use super::fifo::Fifo;
use super::setup::{Operation, Setup};
use memferry_registers::sdma::{Ccr, Cdp, Cicr, Csr, Register, TransferMode};

const REGISTERS: usize = Register::ALL.len();

/// The registers of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registers([u32; REGISTERS]);

impl Registers {
    /// After a reset: zero where the manual gives a value, `undefined` where it gives none.
    pub(super) fn reset(undefined: u32) -> Self {
        let mut registers = Self([0; REGISTERS]);
        for register in [
            Register::Cen,
            Register::Cfn,
            Register::Cssa,
            Register::Cdsa,
            Register::Csei,
            Register::Csfi,
            Register::Cdei,
            Register::Cdfi,
            Register::Csac,
            Register::Cdac,
            Register::Ccen,
            Register::Ccfn,
            Register::Color,
            Register::Cndp,
        ] {
            registers.set(register, undefined);
        }
        registers
    }

    pub(super) const fn get(&self, register: Register) -> u32 {
        self.0[register as usize]
    }

    /// Stores the bits that exist.
    pub(super) const fn set(&mut self, register: Register, value: u32) {
        self.0[register as usize] = value & register.implemented();
    }

    pub(super) const fn ccr(&self) -> Ccr {
        Ccr::from_bits(self.get(Register::Ccr))
    }

    pub(super) const fn csr(&self) -> Csr {
        Csr::from_bits(self.get(Register::Csr))
    }

    pub(super) const fn cicr(&self) -> Cicr {
        Cicr::from_bits(self.get(Register::Cicr))
    }

    pub(super) const fn cdp(&self) -> Cdp {
        Cdp::from_bits(self.get(Register::Cdp))
    }

    pub(super) fn set_enable(&mut self, enable: bool) {
        let ccr = self.ccr().with_enable(enable);
        self.set(Register::Ccr, ccr.into_bits());
    }
}

/// Where a running channel stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A descriptor is on its way, or has just arrived.
    Loading,
    /// The list stands still until software clears the pause.
    Paused,
    /// The block is moved.
    Active,
    /// Disabled; what was read is still written.
    Draining,
    /// Disabled; what is on its way is waited for.
    Aborting,
}

/// The block that a channel moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) setup: Setup,
    pub(super) fifo: Fifo,
    /// Elements written of the current frame and of the current packet, and frames written.
    pub(super) written: u32,
    pub(super) written_of_packet: u32,
    pub(super) frames_written: u32,
    pub(super) last_frame_begun: bool,
}

impl Block {
    pub(super) const fn new(setup: Setup) -> Self {
        let fifo = Fifo::new(setup.fifo);
        Self { setup, fifo, written: 0, written_of_packet: 0, frames_written: 0, last_frame_begun: false }
    }

    pub(super) fn is_fill(&self) -> bool {
        self.setup.operation == Operation::Fill
    }

    /// No read is left to issue.
    pub(super) fn is_read(&self) -> bool {
        self.is_fill() || self.setup.source.is_done()
    }

    /// Elements of the block.
    pub(super) const fn total(&self) -> u64 {
        self.setup.elements as u64 * self.setup.frames as u64
    }

    /// Elements that wait in the FIFO.
    pub(super) fn waiting(&self) -> u32 {
        self.fifo.len() / self.setup.size
    }
}

/// What goes on in a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) state: State,
    pub(super) block: Option<Block>,
    /// A descriptor is being read.
    pub(super) loading: bool,
    /// Transactions of the current turn on a read thread and on a write thread that have not ended.
    pub(super) reads: u32,
    pub(super) writes: u32,
    /// A request is being served, or waits for the next block.
    pub(super) pending: bool,
    /// The pending request has got its elements.
    pub(super) granted: bool,
    /// Elements that the request still moves.
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
            pending: false,
            granted: false,
            credit: 0,
        }
    }

    /// The channel is on the read port: a descriptor or data is on its way, or is to be read without another request.
    pub(super) fn is_reading(&self) -> bool {
        let to_read = self.block.as_ref().is_some_and(|block| !block.is_read() && self.may_read(block) > 0);
        let moves = matches!(self.state, State::Active | State::Draining);
        self.loading || self.reads > 0 || (moves && to_read)
    }

    /// The channel is on the write port: it has begun to write, and not ended what it may write without another request.
    pub(super) fn is_writing(&self) -> bool {
        let to_write = self.block.as_ref().is_some_and(|block| {
            let begun = block.setup.destination.left() < block.total() && self.state == State::Active;
            let without_request = block.setup.sync.is_none() && !block.setup.destination.is_done();
            block.waiting() > 0 || (begun && without_request)
        });
        self.writes > 0 || to_write
    }

    /// Nothing is on its way.
    pub(super) const fn is_quiet(&self) -> bool {
        !self.loading && self.reads == 0 && self.writes == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Channel {
    pub(super) registers: Registers,
    pub(super) run: Option<Run>,
    /// A link left the list in its middle; the next start goes on with the next descriptor.
    pub(super) resumes_list: bool,
    /// Where the last block ended: source and destination.
    pub(super) ended: (u32, u32),
    /// When it last had a turn on the read port and on the write port, in turns of the device.
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

    /// Shows how far the block is in the registers that software watches.
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
