//! Test fixture: a device with memory, and shortcuts to write chains.
//!
//! ```text
//! Board ── descriptors ──► Ram ◄── Ioat ◄── registers
//! ```
//!
//! The expected effect of a transfer is not computed here.

use memferry_clock::Instant;
use memferry_models::ioat::{Config, Ioat, Reason};
use memferry_models::{Bus, Ram};
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor, Sources};
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{Chancmd, Chanctrl, Chanerr, Chansts, Register, TransferState};
use memferry_registers::{NarrowIo, RegisterIo};

pub(crate) const BASE: u64 = 0x8000_0000;
pub(crate) const SIZE: usize = 0x8_0000;
/// Each channel's ring and completion word are at the end of memory.
const RINGS: u64 = BASE + SIZE as u64 - 4 * RING_BYTES;
const RING_BYTES: u64 = 0x4000;

pub(crate) fn pattern() -> Vec<u8> {
    (0..SIZE as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect()
}

pub(crate) struct Board {
    pub(crate) ioat: Ioat<Ram>,
    /// Descriptors written per channel.
    pub(crate) written: [u16; 4],
}

impl Board {
    pub(crate) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(crate) fn with(config: Config) -> Self {
        Self { ioat: Ioat::new(config, Ram::new(BASE, pattern())), written: [0; 4] }
    }

    /// A board whose channels have a completion address and a chain.
    pub(crate) fn armed() -> Self {
        let mut board = Self::new();
        (0..4).for_each(|channel| board.arm(channel));
        board
    }

    pub(crate) fn arm(&mut self, channel: usize) {
        let errors = Chanctrl::new()
            .with_interrupt_disable(true)
            .with_error_completion_enable(true)
            .with_error_interrupt_enable(true);
        self.put(self.word(channel), &[0]);
        self.set64(channel, Register::Chancmp, self.word(channel));
        self.ioat.write16(offset(channel, Register::Chanctrl), errors.into_bits());
        self.set64(channel, Register::Chainaddr, self.slot(channel, 0));
        self.written[channel] = 0;
    }

    pub(crate) fn word(&self, channel: usize) -> u64 {
        RINGS + RING_BYTES * channel as u64
    }

    /// Address of descriptor `index` of a channel's chain.
    pub(crate) fn slot(&self, channel: usize, index: u16) -> u64 {
        self.word(channel) + 64 + 64 * u64::from(index % 250)
    }

    pub(crate) fn set64(&mut self, channel: usize, register: Register, value: u64) {
        self.ioat.write(offset(channel, register), value as u32);
        self.ioat.write(offset(channel, register) + 4, (value >> 32) as u32);
    }

    pub(crate) fn command(&mut self, channel: usize, command: Chancmd) {
        self.ioat.write8(offset(channel, Register::Chancmd), command.into_bits());
    }

    pub(crate) fn suspend(&mut self, channel: usize) {
        self.command(channel, Chancmd::new().with_suspend(true));
    }

    pub(crate) fn resume(&mut self, channel: usize) {
        self.command(channel, Chancmd::new().with_resume(true));
    }

    pub(crate) fn status(&mut self, channel: usize) -> Chansts {
        let low = self.ioat.read(offset(channel, Register::Chansts));
        let high = self.ioat.read(offset(channel, Register::Chansts) + 4);
        Chansts::from_bits(u64::from(high) << 32 | u64::from(low))
    }

    pub(crate) fn state(&mut self, channel: usize) -> TransferState {
        self.status(channel).state()
    }

    pub(crate) fn errors(&mut self, channel: usize) -> Chanerr {
        Chanerr::from_bits(self.ioat.read(offset(channel, Register::Chanerr)))
    }

    pub(crate) fn put(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.ioat.bus_mut().write(address, &bytes).expect("on the board");
    }

    /// Appends a descriptor to a channel's chain without updating DMACOUNT.
    pub(crate) fn chain(&mut self, channel: usize, size: u32, control: Control, body: Body) {
        let index = self.written[channel];
        let next = self.slot(channel, index + 1);
        let descriptor = Descriptor { size, control, next, body };
        self.put(self.slot(channel, index), &descriptor.encode());
        if let Some(words) = descriptor.encode_extension(self.slot(channel, index + 2)) {
            self.put(next, &words);
        }
        self.written[channel] += descriptor.slots();
    }

    pub(crate) fn count(&mut self, channel: usize) {
        self.ioat.write16(offset(channel, Register::Dmacount), self.written[channel]);
    }

    /// Steps until nothing is due and returns the time.
    pub(crate) fn run(&mut self) -> Instant {
        for _ in 0..10_000_000 {
            match self.ioat.next_wake() {
                Some(due) => self.ioat.step(due),
                None => return self.ioat.now(),
            };
        }
        panic!("the device still has events after 10,000,000 steps");
    }

    pub(crate) fn run_until(&mut self, nanoseconds: u64) {
        self.ioat.step(Instant::from_nanoseconds(nanoseconds));
    }

    pub(crate) fn memory(&self, address: u64, length: usize) -> &[u8] {
        &self.ioat.bus().bytes()[(address - BASE) as usize..][..length]
    }

    /// Content of the completion word.
    pub(crate) fn completion_word(&self, channel: usize) -> Chansts {
        let bytes = self.memory(self.word(channel), 8).try_into().expect("eight bytes");
        Chansts::from_bits(u64::from_le_bytes(bytes))
    }

    pub(crate) fn reasons(&mut self) -> Vec<Reason> {
        self.ioat.take_complaints().iter().map(|complaint| complaint.reason).collect()
    }
}

/// Control bits that request a completion write.
pub(crate) const COMPLETING: Control = Control::new().with_completion_write(true);

pub(crate) fn copy(from: u64, to: u64) -> Body {
    Body::Copy { source: BASE + from, destination: BASE + to }
}

pub(crate) fn xor(from: &[u64], to: u64) -> Body {
    let sources: Vec<u64> = from.iter().map(|from| BASE + from).collect();
    Body::Xor { sources: Sources::new(&sources).expect("2 to 8"), destination: BASE + to }
}
