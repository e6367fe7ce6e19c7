//! Initializes the device, then takes and opens channels one by one.
//!
//! ```text
//! Ioat::new ──► initialize: version, channels, limits, interrupts on ──► take ──► open: reset, ring, armed ──► write
//! ```
//!
//! The driver does not touch channels that it has not taken, since another driver may own them; the only user of a device says so by
//! [`Ioat::seize`]. The implementations of register access and memory must keep memory writes ahead of a later register write.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_ioat_registers::NarrowIo;
use memferry_ioat_registers::descriptor::WORDS;
use memferry_ioat_registers::offset::channel as offset_of;
use memferry_ioat_registers::{
    CHANNELS, Cbver, Chancmd, Chancnt, Chanctrl, Chansts, DmaCapability, General, Intrctrl, Register,
    TransferState, Xfercap,
};
use thiserror::Error;

use super::channels::{Channel, State, States, StopError, TakeError};
use super::memory::DmaMemory;
use super::request::RingConfig;
use super::validate::{Limits, RingError};

/// Reason why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    /// The device has the register layout of version 1.
    #[error("the device has version {major}.{minor}, the driver needs at least 2.0: check the base address")]
    TooOld { major: u8, minor: u8 },
    #[error("the device reports no channels: check its set-up and the base address")]
    NoChannels,
    /// A descriptor moves fewer than 64 bytes.
    #[error("the device moves at most {bytes} bytes per descriptor, fewer than 64: check the base address")]
    TransfersTooShort { bytes: u64 },
}

/// Reason why a channel was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The ring breaks a rule; nothing was written.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The channel's reset failed.
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// The driver of one device. [`Ioat::initialize`] makes the first register access.
#[derive(Debug)]
pub struct Ioat<Io, M, C> {
    pub(super) io: Io,
    pub(super) memory: M,
    pub(super) clock: C,
    pub(super) states: States,
    channels: u8,
    limits: Limits,
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Makes a driver of the device behind `io`, with its rings in `memory`.
    ///
    /// The clock bounds every wait, so it must advance while the driver polls; a simulated clock advances on each read.
    pub fn new(io: Io, memory: M, clock: C) -> Self {
        let limits = Limits { longest: 0, fills: false, xor: false };
        Self { io, memory, clock, states: [State::default(); CHANNELS], channels: 0, limits }
    }

    /// Reads the device's version and capabilities, and enables its interrupt line.
    ///
    /// # Errors
    /// [`InitError`]; no channel can be taken then.
    pub fn initialize(&mut self) -> Result<(), InitError> {
        self.channels = 0;
        let version = Cbver::from_bits(self.io.read8(General::Cbver.offset()));
        if version.major() < 2 {
            return Err(InitError::TooOld { major: version.major(), minor: version.minor() });
        }
        let channels = Chancnt::from_bits(self.io.read8(General::Chancnt.offset())).channels();
        if channels == 0 {
            return Err(InitError::NoChannels);
        }
        let capacity = Xfercap::from_bits(self.io.read8(General::Xfercap.offset())).bytes();
        if capacity < 64 {
            return Err(InitError::TransfersTooShort { bytes: capacity });
        }
        let capability = DmaCapability::from_bits(self.io.read(General::Dmacapability.offset()));
        // The size field of a descriptor has 32 bits.
        let longest = capacity.min(u64::from(u32::MAX));
        self.limits = Limits { longest, fills: capability.block_fill(), xor: capability.xor() };
        self.channels = channels.min(CHANNELS as u8);
        self.enable_interrupts();
        Ok(())
    }

    pub(super) fn enable_interrupts(&mut self) {
        let enabled = Intrctrl::new().with_master_enable(true);
        self.io.write8(General::Intrctrl.offset(), enabled.into_bits());
    }

    /// Number of usable channels, at most [`CHANNELS`]; zero before the device is initialized.
    pub const fn channels(&self) -> u8 {
        self.channels
    }

    /// Limits and operations of the device.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Takes channel `index`. The read of CHANCTRL marks it as in use on the device.
    ///
    /// # Errors
    /// [`TakeError`]; nothing has changed then.
    pub fn take(&mut self, index: u8) -> Result<Channel, TakeError> {
        let channels = self.channels;
        if channels == 0 {
            return Err(TakeError::NotInitialized);
        }
        if index >= channels {
            return Err(TakeError::NoSuchChannel { index, channels });
        }
        if self.states[usize::from(index)].taken {
            return Err(TakeError::Taken { index });
        }
        let channel = Channel { index };
        let control = self.io.read16(at(&channel, Register::Chanctrl));
        if Chanctrl::from_bits(control).in_use() {
            return Err(TakeError::InUse { index });
        }
        self.states[usize::from(index)].taken = true;
        Ok(channel)
    }

    /// Gives back a channel that is not working. A quarantined channel stays quarantined and cannot be taken again.
    ///
    /// # Errors
    /// The channel itself while it is working: suspend or recover it first.
    pub fn release(&mut self, channel: Channel) -> Result<(), Channel> {
        if self.state(&channel).quarantined {
            return Ok(());
        }
        if self.status(&channel).state() == TransferState::Active {
            return Err(channel);
        }
        self.io.write16(at(&channel, Register::Chanctrl), 0);
        *self.state_mut(&channel) = State::default();
        Ok(())
    }

    /// Resets a channel and gives it an empty ring.
    ///
    /// # Errors
    /// [`OpenError`]; a channel whose reset does not end within `timeout` is quarantined.
    pub fn open(&mut self, channel: &Channel, ring: RingConfig, timeout: Duration) -> Result<(), OpenError> {
        ring.validate()?;
        self.state_mut(channel).ring = Some(ring);
        self.recover(channel, timeout)?;
        Ok(())
    }

    /// CHANCTRL of an open channel. Writing `interrupt_disable` as one rearms the interrupt.
    pub(super) const fn run_control() -> Chanctrl {
        Chanctrl::new()
            .with_in_use(true)
            .with_interrupt_disable(true)
            .with_error_completion_enable(true)
            .with_any_error_abort_enable(true)
            .with_error_interrupt_enable(true)
    }

    /// Writes the registers that a reset may have cleared, and starts an empty chain.
    pub(super) fn set_up(&mut self, channel: &Channel) {
        let Some(ring) = self.state(channel).ring else { return };
        self.write_half(channel, Register::Chancmp, ring.completion);
        self.io.write16(at(channel, Register::Chanctrl), Self::run_control().into_bits());
        self.give_chain(channel, &ring);
    }

    /// Writes the chain's address to the device, which also sets the device's count to zero.
    pub(super) fn give_chain(&mut self, channel: &Channel, ring: &RingConfig) {
        let state = self.state_mut(channel);
        *state = State { ring: state.ring, taken: state.taken, ..State::default() };
        self.memory.write(ring.completion, 0);
        self.write_half(channel, Register::Chainaddr, ring.ring);
        // Unsure whether the register forgets the chain before. No descriptor is announced yet, so it shows none of this one.
        self.state_mut(channel).stale = self.status(channel).completed();
    }

    /// Writes the lower half first: the write of the upper half takes effect.
    fn write_half(&mut self, channel: &Channel, register: Register, value: u64) {
        let offset = at(channel, register);
        self.io.write(offset, value as u32);
        self.io.write(offset + 4, (value >> 32) as u32);
    }

    pub(super) fn write_descriptor(&mut self, address: u64, words: &[u64; WORDS]) {
        for (place, word) in (address..).step_by(8).zip(words) {
            self.memory.write(place, *word);
        }
    }

    pub(super) fn command(&mut self, channel: &Channel, command: Chancmd) {
        self.io.write8(at(channel, Register::Chancmd), command.into_bits());
    }

    /// Reads CHANSTS, the lower half first because it latches the upper half.
    pub fn status(&mut self, channel: &Channel) -> Chansts {
        let offset = at(channel, Register::Chansts);
        let low = u64::from(self.io.read(offset));
        Chansts::from_bits(low | u64::from(self.io.read(offset + 4)) << 32)
    }

    pub(super) fn state(&self, channel: &Channel) -> &State {
        &self.states[usize::from(channel.index)]
    }

    pub(super) fn state_mut(&mut self, channel: &Channel) -> &mut State {
        &mut self.states[usize::from(channel.index)]
    }

    /// Polls until `done` or `timeout`. Checks once more after the deadline, since the thread may have been delayed.
    pub(super) fn wait(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<(), ()> {
        let deadline = self.clock.now().after(timeout);
        while self.clock.now() < deadline {
            if done(self) {
                return Ok(());
            }
        }
        if done(self) { Ok(()) } else { Err(()) }
    }
}

/// Offset of a channel's register.
pub(super) const fn at(channel: &Channel, register: Register) -> u32 {
    offset_of(channel.index as usize, register)
}
