//! Test fixture: a device with memory, a log of its accesses, and shortcuts to program a channel.
//!
//! ```text
//! Board ── Sdma ──► Recorder ──► Ram
//! ```
//!
//! The expected effect of a transfer is not computed here.

use memferry_clock::Instant;
use memferry_models::sdma::{Config, Reason, Sdma};
use memferry_models::{Bus, BusError, Ram};
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{self, Register};
use memferry_registers::sdma::{AddressingMode, Ccr, Cicr, Cndp, Csdp, Csr, DataType, SysStatus};

/// Address and size of memory.
pub(crate) const BASE: u32 = 0x8000_0000;
pub(crate) const SIZE: usize = 0x1_0000;

/// An access that reached the bus: address, length, and whether it was a write.
pub(crate) type Access = (u32, usize, bool);

#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) ram: Ram,
    pub(crate) log: Vec<Access>,
}

impl Bus for Recorder {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        self.log.push((address as u32, bytes.len(), false));
        self.ram.read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.log.push((address as u32, bytes.len(), true));
        self.ram.write(address, bytes)
    }
}

/// Memory content in which neighbouring bytes differ.
pub(crate) fn pattern() -> Vec<u8> {
    (0..SIZE).map(|at| (at ^ (at >> 8).wrapping_mul(37) ^ 0x5A) as u8).collect()
}

pub(crate) struct Board {
    pub(crate) sdma: Sdma<Recorder>,
}

impl Board {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        let ram = Ram::new(BASE.into(), pattern());
        Self { sdma: Sdma::new(config, Recorder { ram, log: Vec::new() }) }
    }

    pub(crate) fn set(&mut self, channel: usize, register: Register, value: u32) {
        self.sdma.write(offset::channel(channel, register), value);
    }

    pub(crate) fn get(&mut self, channel: usize, register: Register) -> u32 {
        self.sdma.read(offset::channel(channel, register))
    }

    pub(crate) fn csr(&mut self, channel: usize) -> Csr {
        Csr::from_bits(self.get(channel, Register::Csr))
    }

    pub(crate) fn ccr(&mut self, channel: usize) -> Ccr {
        Ccr::from_bits(self.get(channel, Register::Ccr))
    }

    /// Programs all registers of a channel for `block` with all events enabled; the channel stays disabled.
    pub(crate) fn program(&mut self, channel: usize, block: Block) {
        for (register, value) in [
            (Register::Csdp, block.csdp.into_bits()),
            (Register::Cen, block.elements),
            (Register::Cfn, block.frames),
            (Register::Cssa, block.source),
            (Register::Cdsa, block.destination),
            (Register::Csei, block.source_index.0 as u16 as u32),
            (Register::Csfi, block.source_index.1 as u32),
            (Register::Cdei, block.destination_index.0 as u16 as u32),
            (Register::Cdfi, block.destination_index.1 as u32),
            (Register::Color, block.color),
            (Register::ClnkCtrl, 0),
            (Register::Cdp, 0),
            (Register::Cndp, Cndp::END.into_bits()),
            (Register::Cicr, Cicr::ALL.into_bits()),
            (Register::Csr, Csr::ALL.into_bits()),
            (Register::Ccr, block.ccr.into_bits()),
        ] {
            self.set(channel, register, value);
        }
    }

    pub(crate) fn enable(&mut self, channel: usize) {
        let ccr = self.ccr(channel).with_enable(true);
        self.set(channel, Register::Ccr, ccr.into_bits());
    }

    pub(crate) fn disable(&mut self, channel: usize) {
        let ccr = self.ccr(channel).with_enable(false);
        self.set(channel, Register::Ccr, ccr.into_bits());
    }

    /// Programs and enables a channel, runs to the end, and returns its status.
    pub(crate) fn transfer(&mut self, channel: usize, block: Block) -> Csr {
        self.program(channel, block);
        self.enable(channel);
        self.run();
        self.csr(channel)
    }

    /// Steps until nothing is due and returns the time.
    pub(crate) fn run(&mut self) -> Instant {
        let mut wake = self.sdma.next_wake();
        for _ in 0..1_000_000 {
            match wake {
                Some(due) => wake = self.sdma.step(due),
                None => return self.sdma.now(),
            }
        }
        panic!("the device still has events after 1,000,000 steps");
    }

    /// Steps to the next event; returns whether there was one.
    pub(crate) fn step(&mut self) -> bool {
        match self.sdma.next_wake() {
            Some(due) => {
                self.sdma.step(due);
                true
            }
            None => false,
        }
    }

    pub(crate) fn reasons(&self) -> Vec<Reason> {
        self.sdma.complaints().iter().map(|complaint| complaint.reason).collect()
    }

    pub(crate) fn memory(&self, address: u32, length: usize) -> &[u8] {
        let begin = (address - BASE) as usize;
        &self.sdma.bus().ram.bytes()[begin..begin + length]
    }

    pub(crate) fn reset_done(&mut self) -> bool {
        SysStatus::from_bits(self.sdma.read(offset::SYSSTATUS)).reset_done()
    }

    /// Lengths of the writes or reads that reached the bus.
    pub(crate) fn lengths(&self, writes: bool) -> Vec<usize> {
        self.sdma.bus().log.iter().filter(|access| access.2 == writes).map(|access| access.1).collect()
    }
}

/// A block to program, with the registers' units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) source: u32,
    pub(crate) destination: u32,
    pub(crate) elements: u32,
    pub(crate) frames: u32,
    pub(crate) ccr: Ccr,
    pub(crate) csdp: Csdp,
    pub(crate) color: u32,
    /// Element index and frame index.
    pub(crate) source_index: (i16, i32),
    pub(crate) destination_index: (i16, i32),
}

/// Post-increment on both sides, 32-bit elements, from `BASE + 0x1000` to `BASE + 0x8000`.
pub(crate) fn copy(elements: u32, frames: u32) -> Block {
    Block {
        source: BASE + 0x1000,
        destination: BASE + 0x8000,
        elements,
        frames,
        ccr: Ccr::new()
            .with_source_addressing(AddressingMode::PostIncrement)
            .with_destination_addressing(AddressingMode::PostIncrement),
        csdp: Csdp::new().with_data_type(DataType::Bits32),
        color: 0,
        source_index: (1, 1),
        destination_index: (1, 1),
    }
}
