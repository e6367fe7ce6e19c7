//! Register reads and writes.
//!
//! ```text
//! offset ── locate ──► Location ── access rules ──► value, or effect and complaints
//! ```
//!
//! Reserved bits read as zero; writes to them are ignored. Accesses through [`Sdma`] are privileged (supervisor), those
//! through [`Unprivileged`] are user accesses. No write panics, whatever its offset and value.

use super::Sdma;
use super::channel::{Run, State};
use super::complaint::{Complaint, Reason};
use crate::Bus;
use memferry_registers::RegisterIo;
use memferry_registers::sdma::offset::{Access, Location, Register, locate};
use memferry_registers::sdma::{
    CHANNELS, Caps0, Caps2, Caps3, Caps4, Ccr, Cdp, ClnkCtrl, Csr, Gcr, MidleMode, OcpSysconfig, SidleMode,
    SysStatus,
};

const CAPS_0: Caps0 =
    Caps0::new().with_transparent_copy(true).with_constant_fill(true).with_linked_list_types_123(true);
const CAPS_2: Caps2 = Caps2::from_bits(0x1FF);
const CAPS_3: Caps3 = Caps3::from_bits(0xF3);
const CAPS_4: Caps4 = Caps4::from_bits(Csr::ALL.into_bits());

/// User (unprivileged) access to the registers.
#[derive(Debug)]
pub struct Unprivileged<'a, B>(pub(super) &'a mut Sdma<B>);

impl<B: Bus> RegisterIo for Unprivileged<'_, B> {
    fn read(&mut self, offset: u32) -> u32 {
        self.0.read_as(offset, false)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.0.write_as(offset, value, false);
    }
}

impl<B: Bus> RegisterIo for Sdma<B> {
    fn read(&mut self, offset: u32) -> u32 {
        self.read_as(offset, true)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.write_as(offset, value, true);
    }
}

impl<B: Bus> Sdma<B> {
    /// The registers for user access.
    pub fn unprivileged(&mut self) -> Unprivileged<'_, B> {
        Unprivileged(self)
    }

    /// Files a complaint about the current value of `channel`'s `register`.
    pub(super) fn complain(&mut self, channel: usize, register: Register, reason: Reason) {
        let value = self.channels[channel].registers.get(register);
        self.complain_at(Location::Channel(channel, register).offset(), value, reason);
    }

    fn complain_at(&mut self, offset: u32, value: u32, reason: Reason) {
        self.complaints.push(Complaint { at: self.now, offset, value, reason });
    }

    /// Whether the access is allowed; a user access to a supervisor channel is also reported as an event.
    fn admits(&mut self, offset: u32, value: u32, location: Location, privileged: bool) -> bool {
        if self.reset_until.is_some() && location != Location::SysStatus {
            self.complain_at(offset, value, Reason::DuringReset);
            return false;
        }
        match location {
            Location::Channel(channel, _)
                if !privileged && self.channels[channel].registers.ccr().supervisor() =>
            {
                self.complain_at(offset, value, Reason::NotPrivileged);
                self.report(channel, Csr::new().with_supervisor_error(true));
                false
            }
            _ => true,
        }
    }

    fn read_as(&mut self, offset: u32, privileged: bool) -> u32 {
        let Some(location) = locate(offset) else {
            self.complain_at(offset, 0, Reason::NoSuchRegister);
            return 0;
        };
        if !self.admits(offset, 0, location, privileged) {
            return 0;
        }
        match location {
            Location::Revision => self.config.revision,
            Location::IrqStatus(line) => self.interrupts.status[line],
            Location::IrqEnable(line) => self.interrupts.enable[line],
            Location::SysStatus => SysStatus::new().with_reset_done(self.reset_until.is_none()).into_bits(),
            Location::OcpSysconfig => self.sysconfig.into_bits(),
            Location::Caps0 => CAPS_0.into_bits(),
            Location::Caps2 => CAPS_2.into_bits(),
            Location::Caps3 => CAPS_3.into_bits(),
            Location::Caps4 => CAPS_4.into_bits(),
            Location::Gcr => self.gcr.into_bits(),
            Location::Channel(channel, Register::Ccr) => self.read_ccr(channel),
            Location::Channel(channel, register) => self.channels[channel].registers.get(register),
        }
    }

    fn read_ccr(&self, channel: usize) -> u32 {
        let state = &self.channels[channel];
        let run = state.run.as_ref();
        let (reading, writing) = run.map_or((false, false), |run| (run.is_reading(), run.is_writing()));
        state.registers.ccr().with_read_active(reading).with_write_active(writing).into_bits()
    }

    fn write_as(&mut self, offset: u32, value: u32, privileged: bool) {
        let Some(location) = locate(offset) else {
            return self.complain_at(offset, value, Reason::NoSuchRegister);
        };
        if !self.admits(offset, value, location, privileged) {
            return;
        }
        if location.access() == Access::ReadOnly {
            return self.complain_at(offset, value, Reason::ReadOnly);
        }
        if value & !location.implemented() != 0 {
            self.complain_at(offset, value, Reason::ReservedBits);
        }
        let value = value & location.implemented();
        match location {
            Location::IrqStatus(line) => self.interrupts.clear(line, value),
            Location::IrqEnable(line) => self.interrupts.enable[line] = value,
            Location::OcpSysconfig => self.write_sysconfig(offset, OcpSysconfig::from_bits(value)),
            Location::Gcr => self.write_gcr(offset, Gcr::from_bits(value)),
            Location::Channel(channel, register) => self.write_channel(channel, register, value, privileged),
            _ => {}
        }
        self.schedule();
    }

    fn write_sysconfig(&mut self, offset: u32, sysconfig: OcpSysconfig) {
        let reserved =
            sysconfig.midle_mode() == MidleMode::Reserved || sysconfig.sidle_mode() == SidleMode::Reserved;
        if reserved {
            self.complain_at(offset, sysconfig.into_bits(), Reason::ReservedMode);
        }
        if sysconfig.soft_reset() {
            return self.reset();
        }
        self.sysconfig = sysconfig.with_clock_activity(0);
    }

    fn write_gcr(&mut self, offset: u32, gcr: Gcr) {
        let depth = match gcr.max_channel_fifo_depth() {
            0 => {
                self.complain_at(offset, gcr.into_bits(), Reason::FifoDepthZero);
                self.gcr.max_channel_fifo_depth()
            }
            depth => depth,
        };
        self.gcr = gcr.with_max_channel_fifo_depth(depth);
    }

    fn write_channel(&mut self, channel: usize, register: Register, value: u32, privileged: bool) {
        match register {
            Register::Ccr => return self.write_ccr(channel, Ccr::from_bits(value), privileged),
            Register::Cdp => return self.write_cdp(channel, Cdp::from_bits(value)),
            Register::Csr => {
                let left = self.channels[channel].registers.csr().into_bits() & !value;
                return self.channels[channel].registers.set(register, left);
            }
            Register::ClnkCtrl | Register::Cicr => {}
            _ => self.check_not_enabled(channel, register, value),
        }
        self.channels[channel].registers.set(register, value);
    }

    fn check_not_enabled(&mut self, channel: usize, register: Register, value: u32) {
        if self.channels[channel].registers.ccr().enable() {
            let offset = Location::Channel(channel, register).offset();
            self.complain_at(offset, value, Reason::WhileEnabled);
        }
    }

    fn write_ccr(&mut self, channel: usize, written: Ccr, privileged: bool) {
        let offset = Location::Channel(channel, Register::Ccr).offset();
        let mut ccr = written.with_read_active(false).with_write_active(false);
        if ccr.supervisor() && !privileged {
            self.complain_at(offset, written.into_bits(), Reason::NotPrivileged);
            self.report(channel, Csr::new().with_supervisor_error(true));
            ccr.set_supervisor(false);
        }
        let before = self.channels[channel].registers.ccr();
        let busy = self.channels[channel].run.is_some();
        if before.enable() && ccr.enable() && before != ccr {
            self.complain_at(offset, written.into_bits(), Reason::WhileEnabled);
        }
        let refused = !before.enable() && ccr.enable() && busy;
        if refused {
            self.complain_at(offset, written.into_bits(), Reason::StillActive);
            ccr.set_enable(false);
        }
        self.channels[channel].registers.set(Register::Ccr, ccr.into_bits());
        match (before.enable(), ccr.enable()) {
            (false, true) => self.enable(channel),
            (true, false) => {
                self.check_disabling(channel);
                self.disable(channel);
            }
            _ => {}
        }
    }

    fn check_disabling(&mut self, channel: usize) {
        let state = &self.channels[channel];
        let link = ClnkCtrl::from_bits(state.registers.get(Register::ClnkCtrl));
        let smart = self.sysconfig.midle_mode() == MidleMode::SmartStandby;
        let drains = smart && state.run.as_ref().is_some_and(Run::drains);
        if link.enable_link() {
            self.complain(channel, Register::ClnkCtrl, Reason::DisabledWhileLinked);
        }
        if drains {
            self.complain(channel, Register::Ccr, Reason::DrainInSmartStandby);
        }
    }

    fn enable(&mut self, channel: usize) {
        let bit = 1 << channel;
        let status = self.interrupts.status.iter().any(|status| status & bit != 0);
        if status || self.channels[channel].registers.csr().with_sync(false).into_bits() != 0 {
            self.complain(channel, Register::Csr, Reason::StatusNotCleared);
        }
        self.check_request_shared(channel);
        self.start(channel);
    }

    /// Software may only clear the pause; the other bits must not change while the channel runs.
    fn write_cdp(&mut self, channel: usize, written: Cdp) {
        let before = self.channels[channel].registers.cdp();
        let mut cdp = written;
        if cdp.pause() && !before.pause() {
            let offset = Location::Channel(channel, Register::Cdp).offset();
            self.complain_at(offset, written.into_bits(), Reason::PauseSet);
            cdp.set_pause(false);
        }
        if before.with_pause(cdp.pause()) != cdp {
            self.check_not_enabled(channel, Register::Cdp, written.into_bits());
        }
        self.channels[channel].registers.set(Register::Cdp, cdp.into_bits());
        if !cdp.pause() && self.channels[channel].state() == Some(State::Paused) {
            self.resume(channel);
        }
    }

    /// The debugger's suspend signal: while it is set, suspend-sensitive channels issue nothing, unless OCP_SYSCONFIG
    /// makes the device ignore it.
    pub fn set_suspend(&mut self, suspended: bool) {
        self.suspended = suspended;
        self.schedule();
    }

    /// Whether any channel is running.
    pub fn is_busy(&self) -> bool {
        (0..CHANNELS).any(|channel| self.channels[channel].run.is_some())
    }
}
