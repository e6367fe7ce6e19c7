//! The device: asked once what it can do, then channels are taken and opened one by one.
//!
//! ```text
//! Ioat::new ──► initialize: version, channels, limits, interrupts on ──► take ──► open: reset, ring, armed ──► write
//! ```
//!
//! Other channels are left alone: they may be somebody else's. Memory ordering is the register access's and the memory's: an
//! implementation must not let a register write overtake writes to memory.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_registers::NarrowIo;
use memferry_registers::ioat::descriptor::WORDS;
use memferry_registers::ioat::offset::channel as offset_of;
use memferry_registers::ioat::{
    CHANNELS, Cbver, Chancmd, Chancnt, Chanctrl, Chansts, DmaCapability, General, Intrctrl, Register,
    TransferState, Xfercap,
};
use thiserror::Error;

use super::channels::{Channel, State, States, TakeError};
use super::memory::DmaMemory;
use super::request::RingConfig;
use super::stop::StopError;
use super::validate::{Limits, RingError};

/// Why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    /// Its registers are those of version 1.
    #[error("the device is of version {major}.{minor}: this driver needs 2.0, check the base address")]
    TooOld { major: u8, minor: u8 },
    /// It has no channels.
    #[error("the device says that it has no channels: check its set-up and the base address")]
    NoChannels,
    /// Its descriptors move next to nothing.
    #[error("the device moves {bytes} bytes with a descriptor at most: check the base address")]
    TransfersTooShort { bytes: u64 },
}

/// Why a channel was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The ring breaks a rule; nothing was written.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The channel did not end its reset.
    #[error(transparent)]
    Stop(#[from] StopError),
}

/// The driver of one device. No register is touched before [`Ioat::initialize`].
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
    /// A driver of the device behind `io`, whose rings are in `memory`.
    ///
    /// The clock bounds every wait, so it must advance while the driver polls: a simulation moves it on each look.
    pub fn new(io: Io, memory: M, clock: C) -> Self {
        let limits = Limits { longest: 0, fills: false, xor: false };
        Self { io, memory, clock, states: [State::default(); CHANNELS], channels: 0, limits }
    }

    /// Asks the device what it can do, and lets its line rise.
    ///
    /// # Errors
    /// [`InitError`]; then no channel is given.
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
        // The descriptor's field has 32 bits.
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

    /// Channels that the device has, as far as the driver knows them; none before it is initialized.
    pub const fn channels(&self) -> u8 {
        self.channels
    }

    /// What the device can do.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Takes the channel with this number, and marks it in use.
    ///
    /// # Errors
    /// [`TakeError`]; nothing changed then.
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

    /// Gives a channel back that is not at work. One that is quarantined stays so, and is not given again.
    ///
    /// # Errors
    /// The channel itself when it is at work: suspend or recover it first.
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

    /// Resets a channel and gives it a ring, whose descriptors are linked here once.
    ///
    /// # Errors
    /// [`OpenError`]; a channel whose reset does not end in `timeout` is quarantined.
    pub fn open(&mut self, channel: &Channel, ring: RingConfig, timeout: Duration) -> Result<(), OpenError> {
        ring.validate()?;
        self.state_mut(channel).ring = Some(ring);
        self.recover(channel, timeout)?;
        Ok(())
    }

    /// Control bits of a channel at work; the bit that arms the interrupt is among them.
    pub(super) const fn run_control() -> Chanctrl {
        Chanctrl::new()
            .with_in_use(true)
            .with_interrupt_disable(true)
            .with_error_completion_enable(true)
            .with_any_error_abort_enable(true)
            .with_error_interrupt_enable(true)
    }

    /// Writes all that a reset may have cleared, and the chain.
    pub(super) fn set_up(&mut self, channel: &Channel) {
        let Some(ring) = self.state(channel).ring else { return };
        self.write_half(channel, Register::Chancmp, ring.completion);
        self.io.write16(at(channel, Register::Chanctrl), Self::run_control().into_bits());
        self.give_chain(channel, &ring);
    }

    /// Tells the device where the chain begins; its count is zero then.
    pub(super) fn give_chain(&mut self, channel: &Channel, ring: &RingConfig) {
        let state = self.state_mut(channel);
        *state = State { ring: state.ring, taken: state.taken, ..State::default() };
        self.memory.write(ring.completion, 0);
        self.write_half(channel, Register::Chainaddr, ring.ring);
    }

    /// The lower half first: the upper one counts.
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

    /// What CHANSTS says now. The lower half first: it latches the upper.
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

    /// Polls until `done` or the time is over; looks once more after that, since this thread may have been delayed.
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
