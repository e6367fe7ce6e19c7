//! Register reads and writes.
//!
//! ```text
//! offset, width ── locate ──► registers covered ── access rules ──► value, or effect and complaints
//! ```
//!
//! Reserved bits read as zero; writes to them are ignored. A read may have any width and reads each register that it
//! covers. A write must have the register's width, or cover one half of a 64-bit register. No access panics, whatever
//! its offset and value.

use super::complaint::{Complaint, Reason};
use super::faults::Until;
use super::{Event, Ioat};
use crate::Bus;
use memferry_registers::ioat::offset::{Access, General, Location, Register, locate};
use memferry_registers::ioat::{
    Chancmd, Chancnt, Chanctrl, Chanerr, Dcactrl, DmaComp, Genctrl, Intrctrl, TransferState, Xfercap,
};
use memferry_registers::{NarrowIo, RegisterIo};

impl<B: Bus> RegisterIo for Ioat<B> {
    fn read(&mut self, offset: u32) -> u32 {
        self.read_bytes(offset, 4)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.write_bytes(offset, 4, value);
    }
}

impl<B: Bus> NarrowIo for Ioat<B> {
    fn read8(&mut self, offset: u32) -> u8 {
        self.read_bytes(offset, 1) as u8
    }

    fn write8(&mut self, offset: u32, value: u8) {
        self.write_bytes(offset, 1, value.into());
    }

    fn read16(&mut self, offset: u32) -> u16 {
        self.read_bytes(offset, 2) as u16
    }

    fn write16(&mut self, offset: u32, value: u16) {
        self.write_bytes(offset, 2, value.into());
    }
}

impl<B: Bus> Ioat<B> {
    fn complain(&mut self, offset: u32, value: u64, reason: Reason) {
        self.complaints.push(Complaint { at: self.now, offset, value, reason });
    }

    pub(super) fn no_completion_address(&mut self, channel: usize) {
        let offset = Location::Channel(channel, Register::Chancmp).offset();
        self.complain(offset, 0, Reason::NoCompletionAddress);
    }

    /// The register at an offset, if the device has it.
    fn locate(&self, offset: u32) -> Option<(Location, u32)> {
        let exists = |location| !matches!(location, Location::Channel(channel, _) if channel >= self.config.channels());
        locate(offset).filter(|(location, _)| exists(*location))
    }

    fn read_bytes(&mut self, offset: u32, width: u32) -> u32 {
        let mut value = 0;
        let mut byte = 0;
        let mut found = false;
        while byte < width {
            let Some((location, within)) = offset.checked_add(byte).and_then(|at| self.locate(at)) else {
                byte += 1;
                continue;
            };
            found = true;
            let covered = (location.bytes() - within).min(width - byte);
            let bits = self.read_register(location, within) >> (8 * within) & ((1 << (8 * covered)) - 1);
            value |= (bits as u32) << (8 * byte);
            byte += covered;
        }
        if !found {
            self.complain(offset, 0, Reason::NoSuchRegister);
        }
        value
    }

    /// Reads a register, starting at its byte `within`.
    fn read_register(&mut self, location: Location, within: u32) -> u64 {
        match location {
            Location::General(register) => self.read_general(register),
            Location::Channel(channel, register) => self.read_channel(channel, register, within),
        }
    }

    fn read_general(&mut self, register: General) -> u64 {
        match register {
            General::Chancnt => Chancnt::new().with_channels(self.config.channels() as u8).into_bits().into(),
            General::Xfercap => {
                let log2 = self.config.longest().trailing_zeros() as u8;
                Xfercap::new().with_log2(log2).into_bits().into()
            }
            General::Genctrl => self.genctrl.into_bits().into(),
            General::Intrctrl => {
                let status = self.attention != 0;
                let high = status && self.intrctrl.master_enable();
                let value = self.intrctrl.with_status(status).with_interrupt(high);
                self.intrctrl.set_master_enable(false);
                value.into_bits().into()
            }
            General::Attnstatus => core::mem::take(&mut self.attention).into(),
            General::Cbver => self.config.version.into_bits().into(),
            General::Dmacapability => self.config.capability.into_bits().into(),
        }
    }

    fn read_channel(&mut self, channel: usize, register: Register, within: u32) -> u64 {
        let state = &mut self.channels[channel];
        match register {
            Register::Chanctrl => {
                let control = state.control;
                state.control.set_in_use(true);
                control.into_bits().into()
            }
            Register::DmaComp => DmaComp::new().with_version_2(true).with_version_3(true).into_bits().into(),
            Register::Chancmd => Chancmd::new().with_reset(state.resetting).into_bits().into(),
            Register::Dmacount => state.count.into(),
            Register::Chansts if within < 4 => {
                let status = state.status().into_bits();
                state.latched = (status >> 32) as u32;
                status
            }
            Register::Chansts => u64::from(state.latched) << 32,
            Register::Chainaddr => state.chain,
            Register::Chancmp => state.completion,
            Register::Cdar => state.in_flight.front().map_or(state.next, |work| work.address),
            Register::Chanerr => state.error.into_bits().into(),
            Register::ChanerrMask => state.mask.into_bits().into(),
            Register::Dcactrl => state.dca.into_bits().into(),
        }
    }

    fn write_bytes(&mut self, offset: u32, width: u32, value: u32) {
        let Some((location, within)) = self.locate(offset) else {
            return self.complain(offset, value.into(), Reason::NoSuchRegister);
        };
        let half = location.bytes() == 8 && width == 4 && within.is_multiple_of(4);
        if !half && (location.bytes() != width || within != 0) {
            return self.complain(offset, value.into(), Reason::WrongWidth);
        }
        if location.access() == Access::ReadOnly {
            return self.complain(offset, value.into(), Reason::ReadOnly);
        }
        let implemented = (location.implemented() >> (8 * within)) as u32;
        if value & !implemented != 0 {
            self.complain(offset, value.into(), Reason::ReservedBits);
        }
        let value = value & implemented;
        match location {
            Location::General(General::Genctrl) => self.genctrl = Genctrl::from_bits(value as u8),
            Location::General(General::Intrctrl) => {
                self.intrctrl = Intrctrl::from_bits(value as u8).with_status(false).with_interrupt(false);
            }
            Location::General(_) => {}
            Location::Channel(channel, _) if self.channels[channel].resetting => {
                let again = matches!(location, Location::Channel(_, Register::Chancmd));
                if again && Chancmd::from_bits(value as u8).reset() {
                    return self.reset(channel);
                }
                self.complain(offset, value.into(), Reason::DuringReset);
            }
            Location::Channel(channel, register) => self.write_channel(channel, register, (within, value)),
        }
        self.schedule();
    }

    fn write_channel(&mut self, channel: usize, register: Register, (within, value): (u32, u32)) {
        let state = &mut self.channels[channel];
        match register {
            Register::Chanctrl => {
                let written = Chanctrl::from_bits(value as u16);
                let raised = state.control.interrupt_disable() && !written.interrupt_disable();
                state.control = written.with_interrupt_disable(raised);
                if !raised && core::mem::take(&mut state.held) {
                    self.interrupt(channel);
                }
            }
            Register::Chancmd => self.command(channel, Chancmd::from_bits(value as u8)),
            Register::Dmacount => self.count(channel, value as u16),
            Register::Chainaddr => self.chain(channel, within, value),
            Register::Chancmp => {
                if state.state == TransferState::Active || state.completing > 0 {
                    let offset = Location::Channel(channel, register).offset() + within;
                    return self.complain(offset, value.into(), Reason::WhileActive);
                }
                state.completion = half(state.completion, within, value);
            }
            Register::Chanerr => {
                state.error = Chanerr::from_bits(state.error.into_bits() & !value);
            }
            Register::ChanerrMask => state.mask = Chanerr::from_bits(value),
            Register::Dcactrl => state.dca = Dcactrl::from_bits(value),
            Register::DmaComp | Register::Chansts | Register::Cdar => {}
        }
    }

    /// Writes one half of CHAINADDR; the upper half arms the channel.
    fn chain(&mut self, channel: usize, within: u32, value: u32) {
        let state = &mut self.channels[channel];
        let offset = Location::Channel(channel, Register::Chainaddr).offset() + within;
        let unmasked = state.error.into_bits() & !state.mask.into_bits();
        if state.state == TransferState::Active || state.suspending {
            return self.complain(offset, value.into(), Reason::WhileActive);
        }
        if unmasked != 0 {
            return self.complain(offset, value.into(), Reason::ErrorsNotCleared);
        }
        let chain = half(state.chain, within, value);
        state.chain = chain;
        if within == 4 {
            let completed = state.completed;
            state.arm(chain);
            if self.config.keeps_completed {
                state.completed = completed;
            }
        }
    }

    fn count(&mut self, channel: usize, count: u16) {
        let now = self.now;
        let start = self.config.timing.start;
        let state = &mut self.channels[channel];
        let offset = Location::Channel(channel, Register::Dmacount).offset();
        let back = count.wrapping_sub(state.count) > u16::MAX / 2;
        if state.state == TransferState::Halted {
            return self.complain(offset, count.into(), Reason::NoChain);
        }
        if back {
            return self.complain(offset, count.into(), Reason::CountWentBack);
        }
        state.count = count;
        let rests = matches!(state.state, TransferState::Armed | TransferState::Idle);
        if rests && count != state.processed {
            state.state = TransferState::Active;
            state.begins = now.after_picoseconds(self.config.timing.picoseconds(start));
            self.after(start, channel, Event::Free);
        }
    }

    fn command(&mut self, channel: usize, command: Chancmd) {
        let offset = Location::Channel(channel, Register::Chancmd).offset();
        let value = u64::from(command.into_bits());
        let state = &mut self.channels[channel];
        match command.commands() {
            0 => {}
            1 if command.reset() => self.reset(channel),
            // A stuck channel ignores all other commands.
            1 if self.faults.is_stuck(channel) => {}
            1 if command.abort() => {
                state.drop_all();
                state.state = TransferState::Halted;
            }
            1 if command.suspend() && state.state == TransferState::Halted => {
                self.complain(offset, value, Reason::NothingToSuspend);
            }
            1 if command.suspend() => state.suspend(),
            1 if command.resume() && (state.suspending || state.state == TransferState::Suspended) => {
                state.resume();
            }
            1 if command.resume() => self.complain(offset, value, Reason::NothingToResume),
            1 => self.complain(offset, value, Reason::OldCommand),
            _ => {
                self.complain(offset, value, Reason::SeveralCommands);
                self.halt(channel, Chanerr::new().with_command(true));
            }
        }
    }

    /// Starts a reset: the channel stops at once and drops all that is in flight.
    fn reset(&mut self, channel: usize) {
        let state = &mut self.channels[channel];
        state.drop_all();
        state.resetting = true;
        self.faults.unstick(channel, |until| until == Until::Reset);
        if !self.faults.is_wedged(channel) {
            self.after(self.config.timing.reset, channel, Event::Reset);
        }
    }
}

/// `whole` with the 32-bit half at byte `within` replaced by `value`.
const fn half(whole: u64, within: u32, value: u32) -> u64 {
    match within {
        0 => whole & !0xFFFF_FFFF | value as u64,
        _ => whole & 0xFFFF_FFFF | (value as u64) << 32,
    }
}
