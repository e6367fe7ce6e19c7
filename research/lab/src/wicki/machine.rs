//! The machine of the thesis: the SDMA with its driver and memory with timing.
//!
//! ```text
//! Machine ── driver ── Registers (each access takes time) ──► SDMA's model ── Beside ── Dram ── Folded memory
//!    ▲                                                           │             └ a program of the core, if one reads too
//!    └── interrupt: line, entry of the handler ◄─────────────────┘
//! ```
//!
//! As in section 4.1 there is no operating system: configure, enable, and wait for the interrupt. The gigabyte of memory is
//! folded into a few MiB, since its contents do not affect the time; tests check contents where nothing is folded.

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::{Clock, Instant};
use memferry_drivers::sdma::{
    AllChannelsBusy, Cause, Channel, ChannelConfig, ConfigureError, EnableError, InitError, Line,
    Sdma as Driver, Settings, Trusted,
};
use memferry_models::sdma::{Complaint, Config, Reason, Sdma as Model, Timing};
use memferry_models::{Bus, BusError, Dram, DramTiming};
use memferry_registers::{Device, RegisterIo};

use super::beside::{Beside, Reader};
use crate::parameters::{Parameters, ParametersError};

/// Why a machine could not run its transfers.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(super) enum MachineError {
    /// A parameter is missing.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// The device did not initialize.
    #[error(transparent)]
    Init(#[from] InitError),
    /// More transfers than channels.
    #[error(transparent)]
    Busy(#[from] AllChannelsBusy),
    /// The driver refused the configuration of a transfer.
    #[error(transparent)]
    Configure(#[from] ConfigureError),
    /// The driver did not start a transfer.
    #[error(transparent)]
    Enable(#[from] EnableError),
    #[error("the device reports {cause:?}")]
    Reported { cause: Cause },
    /// The device's model found that the driver broke a rule.
    #[error("the device complains: {complaint}")]
    Complaint { complaint: Complaint },
    /// No event is pending, and no interrupt came.
    #[error("the device has no pending events and raised no interrupt")]
    Standstill,
}

/// Start of the board's memory.
pub(super) const MEMORY: u64 = 0x8000_0000;

/// Bytes of storage; a power of two.
const KEPT: usize = 1 << 22;

/// Memory whose addresses repeat after [`KEPT`] bytes.
#[derive(Clone, Debug)]
pub(super) struct Folded(Vec<u8>);

/// Fresh storage; its contents matter only where a transparent copy compares them.
pub(super) fn folded() -> Folded {
    Folded(vec![0; KEPT])
}

impl Folded {
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    fn place(address: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let begin = address as usize & (KEPT - 1);
        (begin + length <= KEPT).then_some(begin..begin + length)
    }
}

impl Bus for Folded {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let place = Self::place(address, bytes.len()).ok_or(BusError)?;
        bytes.copy_from_slice(self.0.get(place).ok_or(BusError)?);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        let place = Self::place(address, bytes.len()).ok_or(BusError)?;
        self.0.get_mut(place).ok_or(BusError)?.copy_from_slice(bytes);
        Ok(())
    }
}

type Board = Model<Beside<Dram<Folded>>>;

/// The registers behind the configuration port; each access takes time, in which the device continues.
#[derive(Clone, Debug)]
struct Registers {
    device: Rc<RefCell<Board>>,
    access: u64,
}

impl Registers {
    fn pass(&self, picoseconds: u64) {
        let mut device = self.device.borrow_mut();
        let until = device.now().after_picoseconds(picoseconds.into());
        device.step(until);
    }
}

impl RegisterIo for Registers {
    fn read(&mut self, offset: u32) -> u32 {
        self.pass(self.access);
        self.device.borrow_mut().read(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.pass(self.access);
        self.device.borrow_mut().write(offset, value);
    }
}

impl Clock for Registers {
    fn now(&self) -> Instant {
        self.device.borrow().now()
    }
}

/// A transfer, and the picoseconds that pass before it starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) config: ChannelConfig,
    pub(super) pause: u64,
}

/// Board, device and driver.
#[derive(Debug)]
pub(super) struct Machine {
    registers: Registers,
    driver: Driver<Registers, Registers>,
    trusted: Trusted,
    interrupt: u64,
}

/// The device's model with the paper's parameters.
///
/// # Errors
/// A missing parameter.
pub(super) fn device_config(parameters: &Parameters) -> Result<Config, ParametersError> {
    let time = |name: &str| parameters.get(name).map(|value| value.round() as u64);
    let count = |name: &str| parameters.get(name).map(|value| value.round() as u32);
    let timing = Timing {
        cycle: time("l3-cycle")?,
        port_bytes: count("port-width")?,
        transaction: time("transaction")?,
        turn: time("turn")?,
        read_latency: time("read-latency")?,
        write_latency: time("write-latency")?,
        channel_reads: count("channel-reads")?,
        channel_writes: count("channel-writes")?,
        ..Timing::default()
    };
    Ok(Config { timing, fifo_entry_bytes: count("fifo-entry")?, ..Config::default() })
}

///
/// # Errors
/// A missing parameter.
pub(super) fn memory_timing(parameters: &Parameters) -> Result<DramTiming, ParametersError> {
    let time = |name: &str| parameters.get(name).map(|value| value.round() as u64);
    let count = |name: &str| parameters.get(name).map(|value| value.round() as u32);
    Ok(DramTiming {
        channels: count("dram-channels")?,
        interleave_bytes: count("dram-interleave")?,
        banks: count("dram-banks")?,
        row_bytes: count("dram-row")?,
        burst_bytes: count("dram-burst-bytes")?,
        burst: time("dram-burst")?,
        activate: time("dram-activate")?,
        precharge: time("dram-precharge")?,
        read: time("dram-read")?,
        write: time("dram-write")?,
        row_active: time("dram-row-active")?,
        write_recovery: time("dram-write-recovery")?,
        read_to_write: time("dram-read-to-write")?,
        write_to_read: time("dram-write-to-read")?,
        held_writes: count("dram-held-writes")?,
        held_words: count("dram-held-words")?,
        reads_first: count("dram-reads-first")?,
        refresh_every: time("dram-refresh-interval")?,
        refresh: time("dram-refresh")?,
    })
}

/// The FIFO depth that the thesis's driver sets.
///
/// # Errors
/// A missing parameter.
pub(super) fn fifo_depth(parameters: &Parameters) -> Result<u8, ParametersError> {
    parameters.get("fifo-depth").map(|value| value.round() as u8)
}

impl Machine {
    /// A machine whose driver has initialized the device with this FIFO depth.
    ///
    /// # Errors
    /// A missing parameter, or a device that does not initialize.
    pub(super) fn new(parameters: &Parameters, fifo_depth: u8) -> Result<Self, MachineError> {
        Self::with(parameters, &Settings { fifo_depth, ..Settings::default() })
    }

    /// A machine whose driver has initialized the device with these settings.
    ///
    /// # Errors
    /// A missing parameter, or a device that does not initialize.
    pub(super) fn with(parameters: &Parameters, settings: &Settings) -> Result<Self, MachineError> {
        let config = device_config(parameters)?;
        let memory = memory_timing(parameters)?;
        let access = parameters.get("register-access")?.round() as u64;
        let interrupt = parameters.get("interrupt-entry")?.round() as u64;
        let device = Model::new(config, Beside::new(Dram::new(memory, folded())));
        let registers = Registers { device: Rc::new(RefCell::new(device)), access };
        let (mut driver, trusted) = Driver::new(registers.clone(), registers.clone());
        driver.initialize(settings)?;
        Ok(Self { registers, driver, trusted, interrupt })
    }

    /// Accesses the memory's bytes, from [`MEMORY`].
    pub(super) fn memory<R>(&mut self, access: impl FnOnce(&mut [u8]) -> R) -> R {
        access(self.registers.device.borrow_mut().bus_mut().bus_mut().bus_mut().bytes_mut())
    }

    /// Lets a program of the core read the same memory from now on.
    pub(super) fn let_read(&mut self, reader: Reader) {
        self.registers.device.borrow_mut().bus_mut().let_read(reader);
    }

    /// Lets time pass before anything starts.
    pub(super) fn wait(&mut self, picoseconds: u64) {
        self.registers.pass(picoseconds);
    }

    /// Picoseconds since the machine was made.
    pub(super) fn elapsed(&self) -> u128 {
        self.registers.now().picoseconds()
    }

    /// The lines that the program has got by now.
    pub(super) fn lines_read(&mut self) -> u64 {
        let mut device = self.registers.device.borrow_mut();
        let now = device.now();
        device.bus_mut().lines_until(now)
    }

    /// Runs transfers at once, each on its own channel, after a pause of its own. Returns for each the picoseconds from the
    /// configuration of the first channel to its own completion in the interrupt handler; the first pause is before that.
    ///
    /// # Errors
    /// An error of the driver or of the device, or a rule broken by the driver.
    pub(super) fn run(&mut self, transfers: &[Start]) -> Result<Vec<u128>, MachineError> {
        let channels = self.channels(transfers.len())?;
        self.registers.pass(transfers.first().map_or(0, |first| first.pause));
        let begin = self.registers.now();
        for (channel, transfer) in channels.iter().zip(transfers) {
            self.driver.configure(channel, &transfer.config, None)?;
        }
        for (place, (channel, transfer)) in channels.iter().zip(transfers).enumerate() {
            if place > 0 {
                self.registers.pass(transfer.pause);
            }
            self.driver.enable(channel)?;
        }
        self.finish(&channels, begin)
    }

    /// Runs transfers at once that may have high priority, like [`Machine::run`], without pauses.
    ///
    /// # Errors
    /// See [`Machine::run`].
    pub(super) fn run_trusted(&mut self, configs: &[ChannelConfig]) -> Result<Vec<u128>, MachineError> {
        let channels = self.channels(configs.len())?;
        let begin = self.registers.now();
        for (channel, config) in channels.iter().zip(configs) {
            self.driver.configure(channel, config, Some(&self.trusted))?;
        }
        for channel in &channels {
            self.driver.enable(channel)?;
        }
        self.finish(&channels, begin)
    }

    /// Runs transfers one after the other: as a chain of linked channels, of which only the last interrupts, or started by the
    /// interrupt handler. Returns the picoseconds from the start of the first to the end of the last; the channels are configured
    /// before.
    ///
    /// # Errors
    /// See [`Machine::run`].
    pub(super) fn run_in_turn(
        &mut self,
        configs: &[ChannelConfig],
        linked: bool,
    ) -> Result<u128, MachineError> {
        let channels = self.channels(configs.len())?;
        for (place, (channel, config)) in channels.iter().zip(configs).enumerate() {
            let next = channels.get(place + 1).filter(|_| linked).map(Channel::index);
            let interrupts = match next {
                Some(_) => config.interrupts.without(Cause::EndOfBlock),
                None => config.interrupts,
            };
            self.driver.configure(channel, &ChannelConfig { link: next, interrupts, ..*config }, None)?;
        }
        let begin = self.registers.now();
        if !linked {
            for channel in &channels {
                self.driver.enable(channel)?;
                self.finish(std::slice::from_ref(channel), begin)?;
            }
        } else if let (Some(first), Some(last)) = (channels.first(), channels.last()) {
            self.driver.enable(first)?;
            self.finish(std::slice::from_ref(last), begin)?;
        }
        Ok(self.registers.now().picoseconds() - begin.picoseconds())
    }

    fn channels(&mut self, count: usize) -> Result<Vec<Channel>, MachineError> {
        let mut channels = Vec::new();
        for _ in 0..count {
            let channel = self.driver.allocate()?;
            self.driver.set_line(&channel, Line::L0, true);
            channels.push(channel);
        }
        Ok(channels)
    }

    /// Waits until all of these channels have ended and returns the picoseconds of each.
    fn finish(&mut self, channels: &[Channel], begin: Instant) -> Result<Vec<u128>, MachineError> {
        let mut ends = vec![None; channels.len()];
        while ends.contains(&None) {
            self.wait_for_interrupt()?;
            self.registers.pass(self.interrupt);
            let now = self.registers.now();
            let mut failed = None;
            self.driver.handle_interrupt(Line::L0, |event| {
                failed = failed.or(event.error());
                let place = channels.iter().position(|channel| channel.index() == event.channel);
                if let Some(end) = place.and_then(|place| ends.get_mut(place)) {
                    *end = Some(now.picoseconds() - begin.picoseconds());
                }
            });
            if let Some(cause) = failed {
                return Err(MachineError::Reported { cause });
            }
        }
        let device = self.registers.device.borrow();
        // Bursts above the FIFO's room are part of the experiments.
        let matters = |complaint: &&Complaint| complaint.reason != Reason::BurstAboveFifo;
        if let Some(complaint) = device.complaints().iter().find(matters) {
            return Err(MachineError::Complaint { complaint: *complaint });
        }
        Ok(ends.into_iter().flatten().collect())
    }

    fn wait_for_interrupt(&self) -> Result<(), MachineError> {
        let mut device = self.registers.device.borrow_mut();
        while !device.is_high(Line::L0.index()) {
            let next = Device::next_wake(&*device).ok_or(MachineError::Standstill)?;
            device.step(next);
        }
        Ok(())
    }
}
