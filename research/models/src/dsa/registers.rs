//! BAR 0: reads and writes of registers (9.2).
//!
//! ```text
//! offset, width ── 32-bit words, a mask of the bytes ──► value, or effect and complaints
//! ```
//!
//! An access of 1, 2, 4 or 8 bytes is aligned to its width. One of eight bytes is two of four, the lower word first. No access panics.

use super::commands::tables;
use super::complaint::{Complaint, Reason};
use super::{Dsa, Event};
use crate::Bus;
use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::capability::Offsets;
use memferry_dsa_registers::control::{Cmd, Command, DeviceState, Gencfg, Genctrl, Intcause};
use memferry_dsa_registers::error::Swerr;
use memferry_dsa_registers::offset::{self, GROUP_BYTES, PERMISSION_BYTES, Tables};
use memferry_dsa_registers::table::{Grpflags, Msixperm, QueueState, QueueStatus, word};

/// A 32-bit word of BAR 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    /// Half of a read-only register of 64 bits.
    Fixed(u64, bool),
    Gencfg,
    Genctrl,
    Intcause,
    Cmd,
    Swerr,
    /// A word of the software error register that is read only.
    SwerrPart(usize),
    Permission(usize),
    /// Group, 64-bit register of it, upper half.
    Group(usize, usize, bool),
    Queue(usize, usize),
}

impl<B: Bus> Dsa<B> {
    /// Reads registers of BAR 0.
    pub fn read(&mut self, offset: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        if !self.is_aligned(offset, bytes.len()) {
            return;
        }
        let mut found = false;
        for (at, byte) in bytes.iter_mut().enumerate() {
            let address = offset + at as u64;
            if let Some(word) = self.locate(address & !3) {
                found = true;
                *byte = (self.read_word(word) >> (8 * (address & 3))) as u8;
            }
        }
        if !found {
            self.complain(offset, 0, Reason::NoSuchRegister);
        }
    }

    /// Writes registers of BAR 0.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        if !self.is_aligned(offset, bytes.len()) {
            return;
        }
        let mut at = 0;
        while at < bytes.len() {
            let address = offset + at as u64;
            let length = (bytes.len() - at).min(4 - (address & 3) as usize);
            let shift = 8 * (address & 3);
            let value =
                bytes[at..at + length].iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
            let mask = if length == 4 { u32::MAX } else { ((1_u32 << (8 * length)) - 1) << shift };
            self.write_word(address & !3, value << shift, mask);
            at += length;
        }
        self.events.push(self.now, Event::Wake);
    }

    fn is_aligned(&mut self, offset: u64, length: usize) -> bool {
        let aligned = matches!(length, 1 | 2 | 4 | 8) && offset.is_multiple_of(length as u64);
        if !aligned {
            self.complain(offset, length as u64, Reason::Misaligned);
        }
        aligned
    }

    fn complain(&mut self, offset: u64, value: u64, reason: Reason) {
        self.complaints.push(Complaint { at: self.now, bar: 0, offset, value, reason });
    }

    fn tables(&self) -> Tables {
        tables(self.config.queues.entry_bytes())
    }

    /// The word at a multiple of four.
    fn locate(&self, offset: u64) -> Option<Word> {
        let offset = u32::try_from(offset).ok()?;
        let upper = offset & 4 != 0;
        let tables = self.tables();
        let unit = Offsets::UNIT;
        let offsets = Offsets::new()
            .with_groups((tables.groups / unit) as u16)
            .with_queues((tables.queues / unit) as u16)
            .with_permissions((tables.permissions / unit) as u16);
        let commands = if self.config.general.command_capabilities() { Command::ALL } else { 0 };
        Some(match offset & !7 {
            offset::VERSION => Word::Fixed(self.config.version.into(), upper),
            offset::GENCAP => Word::Fixed(self.config.general.into_bits(), upper),
            offset::WQCAP => Word::Fixed(self.config.queues.into_bits(), upper),
            offset::GRPCAP => Word::Fixed(self.config.groups.into_bits(), upper),
            offset::ENGCAP => Word::Fixed(self.config.engines.into_bits(), upper),
            at @ offset::OPCAP..0x60 => {
                Word::Fixed(self.config.operations.0[((at - offset::OPCAP) / 8) as usize], upper)
            }
            offset::OFFSETS => Word::Fixed(offsets.into_bits(), upper),
            0x68 => Word::Fixed(0, upper),
            offset::GENCFG if !upper => Word::Gencfg,
            offset::GENCTRL if !upper => Word::Genctrl,
            offset::GENSTS => Word::Fixed(self.general_status().into_bits().into(), upper),
            offset::INTCAUSE if !upper => Word::Intcause,
            offset::CMD if !upper => Word::Cmd,
            offset::CMDSTS => Word::Fixed(self.control.cmdsts.into_bits().into(), upper),
            offset::CMDCAP => Word::Fixed(commands, upper),
            offset::SWERR if !upper => Word::Swerr,
            offset::SWERR..0xE0 => Word::SwerrPart(((offset - offset::SWERR) / 4) as usize),
            // Not modelled: GENCAP says that there is no event log.
            offset::EVLCFG..0xF8 => Word::Fixed(0, upper),
            // The upper half of a register of 32 bits.
            offset::GENCFG | offset::GENCTRL | offset::INTCAUSE | offset::CMD => Word::Fixed(0, true),
            _ => return self.locate_table(offset, tables),
        })
    }

    fn locate_table(&self, offset: u32, tables: Tables) -> Option<Word> {
        let within = |start: u32, stride: u32, count: usize| {
            let at = offset.checked_sub(start)?;
            let index = (at / stride) as usize;
            (index < count).then_some((index, at % stride))
        };
        if let Some((index, at)) = within(tables.permissions, PERMISSION_BYTES, self.permissions.len()) {
            return Some(if at == 0 { Word::Permission(index) } else { Word::Fixed(0, true) });
        }
        if let Some((index, at)) = within(tables.groups, GROUP_BYTES, self.groups.len()) {
            let upper = at & 4 != 0;
            let register = (at / 8) as usize;
            return Some(if register < 6 {
                Word::Group(index, register, upper)
            } else {
                Word::Fixed(0, upper)
            });
        }
        let (index, at) = within(tables.queues, tables.queue_bytes, self.queues.len())?;
        let place = (at / 4) as usize;
        Some(if place < word::COUNT as usize { Word::Queue(index, place) } else { Word::Fixed(0, true) })
    }

    fn read_word(&self, word: Word) -> u32 {
        let half = |value: u64, upper: bool| if upper { (value >> 32) as u32 } else { value as u32 };
        match word {
            Word::Fixed(value, upper) => half(value, upper),
            Word::Gencfg => self.control.gencfg.into_bits(),
            Word::Genctrl => self.control.genctrl.into_bits(),
            Word::Intcause => self.control.intcause.into_bits(),
            // Reading it returns unpredictable values.
            Word::Cmd => 0,
            Word::Swerr => self.control.error.status.into_bits() as u32,
            Word::SwerrPart(at) => half(self.control.error.into_words()[at / 2], at % 2 == 1),
            Word::Permission(index) => self.permissions[index].into_bits(),
            Word::Group(index, register, upper) => half(self.group_register(index, register), upper),
            Word::Queue(index, place) => self.queue_word(index, place),
        }
    }

    fn group_register(&self, index: usize, register: usize) -> u64 {
        let group = &self.groups[index];
        match register {
            0..=3 => group.queues[register],
            4 => group.engines,
            _ => group.flags.into_bits(),
        }
    }

    fn queue_word(&self, index: usize, place: usize) -> u32 {
        let queue = &self.queues[index];
        if place != word::STATUS as usize {
            return queue.words[place];
        }
        let occupancy = if self.config.queues.occupancy() { queue.occupancy() as u16 } else { 0 };
        QueueStatus::new().with_occupancy(occupancy).with_state(queue.state).into_bits()
    }

    /// Writes the bits of `mask` of the word at `offset`.
    fn write_word(&mut self, offset: u64, value: u32, mask: u32) {
        let Some(word) = self.locate(offset) else {
            return self.complain(offset, value.into(), Reason::NoSuchRegister);
        };
        let merged = self.read_word(word) & !mask | value & mask;
        let cleared = value & mask;
        let disabled = matches!(self.control.state, DeviceState::Disabled | DeviceState::Halted);
        let configurable = self.config.general.configurable();
        match word {
            Word::Gencfg if disabled && configurable => {
                // The event log does not exist.
                self.control.gencfg = Gencfg::from_bits(merged & 0x10FF);
            }
            Word::Genctrl => self.control.genctrl = Genctrl::from_bits(merged & 0b011),
            Word::Intcause => {
                let left = self.control.intcause.into_bits() & !cleared;
                self.control.intcause = Intcause::from_bits(left);
            }
            Word::Cmd => self.give_command(Cmd::from_bits(merged)),
            Word::Swerr => {
                let acknowledged = Swerr::from_bits(cleared.into());
                let status = &mut self.control.error.status;
                status.set_valid(status.valid() && !acknowledged.valid());
                status.set_overflow(status.overflow() && !acknowledged.overflow());
            }
            Word::Permission(index) => self.permissions[index] = Msixperm::from_bits(merged & 0xFFFF_F00C),
            Word::Group(index, register, upper) if disabled && configurable => {
                self.write_group(index, register, upper, merged);
            }
            Word::Queue(index, place) => self.write_queue_word(offset, (index, place), merged),
            _ => {
                // A driver that configures a second work queue writes again what its group holds.
                let changes = mask != 0 && self.read_word(word) != merged;
                if changes && value != 0 && !matches!(word, Word::SwerrPart(_)) {
                    self.complain(offset, value.into(), Reason::ReadOnly);
                }
            }
        }
    }

    fn write_group(&mut self, index: usize, register: usize, upper: bool, half: u32) {
        let old = self.group_register(index, register);
        let new = match upper {
            true => old & 0xFFFF_FFFF | u64::from(half) << 32,
            false => old & !0xFFFF_FFFF | u64::from(half),
        };
        let group = &mut self.groups[index];
        match register {
            0..=3 => group.queues[register] = new,
            4 => group.engines = new,
            _ => group.flags = Grpflags::from_bits(new),
        }
    }

    /// A work queue's entry: what is writable when (table 9-7).
    fn write_queue_word(&mut self, offset: u64, (index, place): (usize, usize), value: u32) {
        let configurable = self.config.general.configurable();
        let device_disabled = matches!(self.control.state, DeviceState::Disabled | DeviceState::Halted);
        let queue = &mut self.queues[index];
        let queue_disabled = queue.state == QueueState::Disabled;
        let (writable, implemented) = match place as u32 {
            word::SIZE => (device_disabled, 0xFFFF),
            word::THRESHOLD => (true, 0xFFFF),
            // Without controls of ATS and PRS for each queue.
            word::MODE => (queue_disabled, 0x3FFF_FFF3),
            word::LIMITS => (queue_disabled, 0x1FF),
            // There are no occupancy interrupts, so that their bits read as zero.
            word::OCCUPANCY_INTERRUPT | word::OCCUPANCY_LIMIT => (true, 0),
            word::STATUS => (true, 0),
            word::OPERATIONS.. => (queue_disabled, u32::MAX),
            _ => (true, 0),
        };
        if writable && configurable {
            if place as u32 != word::STATUS {
                queue.words[place] = value & implemented;
            }
        } else if queue.words[place] != value & implemented {
            self.complain(offset, value.into(), Reason::ReadOnly);
        }
    }
}

impl<B: Bus> memferry_registers::RegisterIo for Dsa<B> {
    fn read(&mut self, offset: u32) -> u32 {
        self.read32(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.write32(offset, value);
    }
}

impl<B: Bus> memferry_registers::Device for Dsa<B> {
    fn advance(&mut self, now: memferry_clock::Instant) {
        self.step(now);
    }

    fn now(&self) -> memferry_clock::Instant {
        Self::now(self)
    }

    fn next_wake(&self) -> Option<memferry_clock::Instant> {
        Self::next_wake(self)
    }

    /// There are no interrupt lines, only messages.
    fn is_high(&self, _line: usize) -> bool {
        false
    }
}

impl<B: Bus> RegisterIo for Dsa<B> {
    fn read32(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset.into(), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.write(offset.into(), &value.to_le_bytes());
    }
}
