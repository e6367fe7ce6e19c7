//! The control half: finds out what the device can do, configures groups and work queues, and stops them.
//!
//! ```text
//! initialize (reset, capabilities) ──► configure ──► enable ──► enable_queue ──► descriptors
//!                                                                  └─ drain, abort, disable, reset ──► Stopped
//! interrupt 0 ──► handle_interrupt ──► command, software error, halt
//! ```
//!
//! Commands are given one at a time and polled until they end, bounded by the clock (3.15). The implementation of the clock must advance while
//! the driver polls.

use core::time::Duration;

use memferry_clock::Clock;
use memferry_dsa_registers::capability::{Engcap, Gencap, Grpcap, Offsets, Opcap, Version, Wqcap};
use memferry_dsa_registers::control::{
    Cmdsts, Command, CommandError, DeviceState, Genctrl, Gensts, Intcause, QueueSet, ResetType,
};
use memferry_dsa_registers::descriptor::opcode;
use memferry_dsa_registers::error::{SoftwareError, Swerr};
use memferry_dsa_registers::offset::{self, Tables};
use memferry_dsa_registers::table::{Grpflags, QueueLimits, QueueMode, word};
use memferry_dsa_registers::{MAX_QUEUES, RegisterIo};
use thiserror::Error;

use crate::request::Limits;

/// Bounds of fields of a work queue's configuration (9.2.16).
const HIGHEST_PRIORITY: u8 = 15;
const LARGEST_PASID: u32 = (1 << 20) - 1;

/// Why the device cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitError {
    #[error("the device has version {major}.{minor}; the driver knows 1 to 3: check the base address")]
    Version { major: u8, minor: u8 },
    #[error("the device is halted and needs a reset of type {0:?}")]
    Halted(ResetType),
    #[error("the device has no work queues, groups or engines: check the base address")]
    Nothing,
    #[error(transparent)]
    Command(#[from] CommandFailure),
}

/// Why a command did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommandFailure {
    #[error("command {code}: {error}")]
    Refused { code: u8, error: CommandError },
    /// It may still be carried out: nothing is stopped.
    #[error("command {code} did not end within {waited:?}: wait for the device, or reset the function")]
    TimedOut { code: u8, waited: Duration },
    /// An earlier command has not ended.
    #[error("an earlier command is still active: wait for it")]
    Active,
}

/// What the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    pub version: Version,
    pub general: Gencap,
    pub queues: Wqcap,
    pub groups: Grpcap,
    pub engines: Engcap,
    pub operations: Opcap,
    pub tables: Tables,
}

/// A group of work queues and engines. Any of its engines executes descriptors of any of its queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// A bit for each engine.
    pub engines: u64,
    /// Read buffers that only this group may use.
    pub read_buffers_reserved: u8,
    /// Read buffers that it may use at a time. `None`: as many as there are beside the reserved ones of other groups.
    pub read_buffers_allowed: Option<u8>,
}

/// A work queue's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQueue {
    /// Entries; their sum is limited.
    pub size: u16,
    /// Number of its group.
    pub group: u8,
    /// One client that counts the entries. Else shared: needs PASID.
    pub dedicated: bool,
    /// Entries that limited portals may fill, if it is shared.
    pub threshold: u16,
    /// 1 to 15, relative to the group's other queues.
    pub priority: u8,
    pub block_on_fault: bool,
    /// Base-2 logarithm of the longest transfer; `None`: as long as the device can.
    pub max_transfer: Option<u8>,
    /// Base-2 logarithm of the largest batch; `None`: as large as the device can.
    pub max_batch: Option<u8>,
    /// The address space of a dedicated queue, or that PASIDs are used in a shared one.
    pub pasid: Option<u32>,
}

/// Why a configuration was not written. The device checks more when it is enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigurationError {
    #[error("the device is not initialized: call initialize first")]
    NotInitialized,
    #[error("the device is {0:?}: disable or reset it first")]
    NotDisabled(DeviceState),
    #[error("the device's configuration is fixed")]
    Fixed,
    #[error("{count} groups; the device has {limit}")]
    TooManyGroups { count: usize, limit: u8 },
    #[error("{count} work queues; the device has {limit}")]
    TooManyQueues { count: usize, limit: u8 },
    #[error("work queue {queue}: group {group} is not configured")]
    NoSuchGroup { queue: usize, group: u8 },
    #[error("the work queues have {entries} entries; the device has {limit}")]
    TooManyEntries { entries: u32, limit: u16 },
    #[error(
        "work queue {queue} has priority {priority}: priorities are 1 to 15, and may be 0 for a queue of size 0"
    )]
    Priority { queue: usize, priority: u8 },
    #[error("work queue {queue}: PASID {pasid:#x} has more than 20 bits")]
    Pasid { queue: usize, pasid: u32 },
    #[error("work queue {queue}: the device has no such mode, or a shared queue has no PASID")]
    Mode { queue: usize },
    #[error("work queue {queue}: transfers or batches are larger than the device's")]
    Size { queue: usize },
    #[error("work queue {queue}: the device cannot block on faults")]
    BlockOnFault { queue: usize },
    #[error("group {group}: engines that the device does not have, or that another group has")]
    Engines { group: usize },
}

/// Proof that a work queue's earlier descriptors touch no memory any more; for [`Queue::stopped`](crate::Queue::stopped).
#[derive(Debug, PartialEq, Eq)]
pub struct Stopped(());

impl Stopped {
    /// The caller knows it in another way: as when the kernel has drained a work queue because its file was closed.
    pub const fn known_to_caller() -> Self {
        Self(())
    }
}

/// What interrupt 0 was about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Interrupt {
    pub command: bool,
    /// An error that no completion record could take.
    pub error: Option<SoftwareError>,
    /// The device is halted and needs this reset.
    pub halted: Option<ResetType>,
}

/// The driver of one device's registers. [`Dsa::initialize`] makes the first access.
#[derive(Debug)]
pub struct Dsa<Io, C> {
    io: Io,
    clock: C,
    capabilities: Option<Capabilities>,
}

impl<Io: RegisterIo, C: Clock> Dsa<Io, C> {
    pub const fn new(io: Io, clock: C) -> Self {
        Self { io, clock, capabilities: None }
    }

    /// Resets the device, reads what it has, and enables its interrupts for errors and halts.
    ///
    /// # Errors
    /// [`InitError`].
    pub fn initialize(&mut self, timeout: Duration) -> Result<Capabilities, InitError> {
        self.capabilities = None;
        let version = Version::from_bits(self.io.read32(offset::VERSION));
        if !(1..=3).contains(&version.major()) {
            return Err(InitError::Version { major: version.major(), minor: version.minor() });
        }
        let status = self.status();
        if status.state() == DeviceState::Halted && status.reset() != ResetType::Software {
            return Err(InitError::Halted(status.reset()));
        }
        self.command(Command::ResetDevice, timeout)?;
        let queues = Wqcap::from_bits(self.io.read64(offset::WQCAP));
        let offsets = Offsets::from_bits(self.io.read64(offset::OFFSETS));
        let operations = Opcap([0, 8, 16, 24].map(|at| self.io.read64(offset::OPCAP + at)));
        let capabilities = Capabilities {
            version,
            general: Gencap::from_bits(self.io.read64(offset::GENCAP)),
            queues,
            groups: Grpcap::from_bits(self.io.read64(offset::GRPCAP)),
            engines: Engcap::from_bits(self.io.read64(offset::ENGCAP)),
            operations,
            tables: Tables::new(offsets, queues.entry_bytes()),
        };
        let counts = [queues.queues(), capabilities.groups.groups(), capabilities.engines.engines()];
        if counts.contains(&0) || queues.total_size() == 0 {
            return Err(InitError::Nothing);
        }
        self.enable_interrupts();
        self.capabilities = Some(capabilities);
        Ok(capabilities)
    }

    /// The registers, for accesses that the driver does not make.
    pub const fn io_mut(&mut self) -> &mut Io {
        &mut self.io
    }

    fn enable_interrupts(&mut self) {
        let enabled = Genctrl::new().with_software_error(true).with_halt(true);
        self.io.write32(offset::GENCTRL, enabled.into_bits());
    }

    /// What the device has; `None` before it is initialized.
    pub const fn capabilities(&self) -> Option<&Capabilities> {
        self.capabilities.as_ref()
    }

    /// GENSTS: the state of the device, and which reset a halt needs.
    pub fn status(&mut self) -> Gensts {
        Gensts::from_bits(self.io.read32(offset::GENSTS))
    }

    /// Writes the configuration of a disabled device. Groups and queues that are not given get none.
    ///
    /// # Errors
    /// [`ConfigurationError`]; nothing was written then.
    pub fn configure(&mut self, groups: &[Group], queues: &[WorkQueue]) -> Result<(), ConfigurationError> {
        let capabilities = self.capabilities.ok_or(ConfigurationError::NotInitialized)?;
        let state = self.status().state();
        if state != DeviceState::Disabled {
            return Err(ConfigurationError::NotDisabled(state));
        }
        validate(&capabilities, groups, queues)?;
        let tables = capabilities.tables;
        for index in 0..u32::from(capabilities.groups.groups()) {
            let group = groups.get(index as usize);
            let words = group.map_or([0; 4], |_| members(queues, index));
            for (at, bits) in (0..).zip(words) {
                self.io.write64(tables.group_queues(index, at), bits);
            }
            self.io.write64(tables.group_engines(index), group.map_or(0, |group| group.engines));
            let flags = flags(&capabilities, groups, group);
            self.io.write64(tables.group_flags(index), flags.into_bits());
        }
        for index in 0..u32::from(capabilities.queues.queues()) {
            self.write_queue(&capabilities, index, queues.get(index as usize));
        }
        Ok(())
    }

    fn write_queue(&mut self, capabilities: &Capabilities, index: u32, queue: Option<&WorkQueue>) {
        let tables = capabilities.tables;
        let Some(queue) = queue else {
            return self.io.write32(tables.queue(index, word::SIZE), 0);
        };
        let general = capabilities.general;
        let mode = QueueMode::new()
            .with_dedicated(queue.dedicated)
            .with_block_on_fault(queue.block_on_fault)
            .with_priority(queue.priority)
            .with_pasid_enable(queue.pasid.is_some())
            .with_pasid(queue.pasid.unwrap_or(0));
        let limits = QueueLimits::new()
            .with_max_transfer(queue.max_transfer.unwrap_or(general.max_transfer()))
            .with_max_batch(queue.max_batch.unwrap_or(general.max_batch()));
        let words = [
            (word::SIZE, u32::from(queue.size)),
            (word::THRESHOLD, u32::from(queue.threshold)),
            (word::MODE, mode.into_bits()),
            (word::LIMITS, limits.into_bits()),
        ];
        for (at, value) in words {
            self.io.write32(tables.queue(index, at), value);
        }
    }

    /// What a work queue accepts, from its configuration; `None` before the device is initialized, or for a queue that it does not have.
    pub fn limits(&mut self, queue: u8) -> Option<Limits> {
        let capabilities = self.capabilities.filter(|have| queue < have.queues.queues())?;
        let general = capabilities.general;
        let tables = capabilities.tables;
        let mode = QueueMode::from_bits(self.io.read32(tables.queue(queue.into(), word::MODE)));
        let limits = QueueLimits::from_bits(self.io.read32(tables.queue(queue.into(), word::LIMITS)));
        let mut operations = capabilities.operations;
        if capabilities.queues.operations_control() {
            for (at, bits) in (word::OPERATIONS..).step_by(2).zip(&mut operations.0) {
                *bits &= self.io.read64(tables.queue(queue.into(), at));
            }
        }
        let batches = operations.contains(opcode::BATCH);
        Some(Limits {
            longest: 1 << limits.max_transfer(),
            largest_batch: if batches { 1 << limits.max_batch() } else { 0 },
            batch_of_one: general.batch_of_one(),
            operations,
            overlapping_moves: general.overlapping_copy(),
            cache_control: general.cache_control(),
            block_on_fault: mode.block_on_fault(),
            fault_info: general.fault_info(),
        })
    }

    /// Enables the device with its configuration.
    ///
    /// # Errors
    /// [`CommandFailure`]: the device says which part of the configuration it does not take.
    pub fn enable(&mut self, timeout: Duration) -> Result<(), CommandFailure> {
        self.command(Command::EnableDevice, timeout)
    }

    /// Waits for all descriptors and disables the device.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn disable(&mut self, timeout: Duration) -> Result<Stopped, CommandFailure> {
        self.command(Command::DisableDevice, timeout).map(|()| Stopped(()))
    }

    /// Lets a work queue take descriptors.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn enable_queue(&mut self, queue: u8, timeout: Duration) -> Result<(), CommandFailure> {
        self.command(Command::EnableQueue(queue), timeout)
    }

    /// Waits for the descriptors of a work queue, which takes no more.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn disable_queue(&mut self, queue: u8, timeout: Duration) -> Result<Stopped, CommandFailure> {
        self.command(Command::DisableQueues(QueueSet::one(queue)), timeout).map(|()| Stopped(()))
    }

    /// Waits for the descriptors that a work queue has. Nobody may submit to it meanwhile.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn drain_queue(&mut self, queue: u8, timeout: Duration) -> Result<Stopped, CommandFailure> {
        self.command(Command::DrainQueues(QueueSet::one(queue)), timeout).map(|()| Stopped(()))
    }

    /// Abandons the descriptors that a work queue has, or waits for them. Nobody may submit to it meanwhile.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn abort_queue(&mut self, queue: u8, timeout: Duration) -> Result<Stopped, CommandFailure> {
        self.command(Command::AbortQueues(QueueSet::one(queue)), timeout).map(|()| Stopped(()))
    }

    /// Abandons everything and clears the configuration. Also ends a halt, if the device needs no stronger reset.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn reset(&mut self, timeout: Duration) -> Result<Stopped, CommandFailure> {
        self.command(Command::ResetDevice, timeout)?;
        self.enable_interrupts();
        Ok(Stopped(()))
    }

    /// Gives a command and waits until it ends.
    ///
    /// # Errors
    /// [`CommandFailure`].
    pub fn command(&mut self, command: Command, timeout: Duration) -> Result<(), CommandFailure> {
        let code = command.code();
        if self.command_status().active() {
            return Err(CommandFailure::Active);
        }
        self.io.write32(offset::CMD, command.encode(false).into_bits());
        let deadline = self.clock.now().after(timeout);
        // Looks once more after the deadline, since the thread may have been delayed.
        let mut late = false;
        loop {
            let status = self.command_status();
            if !status.active() {
                let error = CommandError::from_code(status.error());
                return error.map_or(Ok(()), |error| Err(CommandFailure::Refused { code, error }));
            }
            if late {
                return Err(CommandFailure::TimedOut { code, waited: timeout });
            }
            late = self.clock.now() >= deadline;
        }
    }

    fn command_status(&mut self) -> Cmdsts {
        Cmdsts::from_bits(self.io.read32(offset::CMDSTS))
    }

    /// Finds out what interrupt 0 was about, and acknowledges it.
    pub fn handle_interrupt(&mut self) -> Interrupt {
        let cause = Intcause::from_bits(self.io.read32(offset::INTCAUSE));
        self.io.write32(offset::INTCAUSE, cause.into_bits());
        let error = cause.software_error().then(|| self.take_error()).flatten();
        let status = self.status();
        let halted = status.state() == DeviceState::Halted;
        Interrupt { command: cause.command(), error, halted: halted.then_some(status.reset()) }
    }

    /// Takes the recorded software error, if there is one.
    pub fn take_error(&mut self) -> Option<SoftwareError> {
        let words = [0, 8, 16, 24].map(|at| self.io.read64(offset::SWERR + at));
        let error = SoftwareError::from_words(words);
        let seen = Swerr::new().with_valid(error.status.valid()).with_overflow(error.status.overflow());
        self.io.write64(offset::SWERR, seen.into_bits());
        error.status.valid().then_some(error)
    }
}

/// Work queues of a group, a bit each.
fn members(queues: &[WorkQueue], group: u32) -> [u64; 4] {
    let mut words = [0; 4];
    for (index, queue) in queues.iter().enumerate().take(MAX_QUEUES) {
        if queue.size > 0 && u32::from(queue.group) == group {
            words[index / 64] |= 1 << (index % 64);
        }
    }
    words
}

/// Flags of a group, or of an unused one.
fn flags(capabilities: &Capabilities, groups: &[Group], group: Option<&Group>) -> Grpflags {
    let have = capabilities.groups;
    let Some(group) = group.filter(|_| have.read_buffer_control()) else {
        return Grpflags::new().with_read_buffers_allowed(have.read_buffers());
    };
    let reserved = groups.iter().fold(0_u8, |sum, group| sum.saturating_add(group.read_buffers_reserved));
    let most = have.read_buffers().saturating_sub(reserved).saturating_add(group.read_buffers_reserved);
    // As Linux's driver: class 1 before version 3. The specification leaves it to the platform (4.2).
    let class = u8::from(capabilities.version.major() < 3);
    Grpflags::new()
        .with_read_buffers_reserved(group.read_buffers_reserved)
        .with_read_buffers_allowed(group.read_buffers_allowed.unwrap_or(most))
        .with_traffic_class_a(class)
        .with_traffic_class_b(class)
}

fn validate(
    capabilities: &Capabilities,
    groups: &[Group],
    queues: &[WorkQueue],
) -> Result<(), ConfigurationError> {
    let have = &capabilities.queues;
    let general = capabilities.general;
    if !general.configurable() {
        return Err(ConfigurationError::Fixed);
    }
    let limit = capabilities.groups.groups();
    if groups.len() > usize::from(limit) {
        return Err(ConfigurationError::TooManyGroups { count: groups.len(), limit });
    }
    if queues.len() > usize::from(have.queues()) {
        return Err(ConfigurationError::TooManyQueues { count: queues.len(), limit: have.queues() });
    }
    let entries = queues.iter().map(|queue| u32::from(queue.size)).sum();
    if entries > u32::from(have.total_size()) {
        return Err(ConfigurationError::TooManyEntries { entries, limit: have.total_size() });
    }
    let engines = 1_u64.checked_shl(capabilities.engines.engines().into()).map_or(u64::MAX, |bit| bit - 1);
    let mut taken = !engines;
    for (index, group) in groups.iter().enumerate() {
        if group.engines & taken != 0 {
            return Err(ConfigurationError::Engines { group: index });
        }
        taken |= group.engines;
    }
    for (queue, config) in queues.iter().enumerate() {
        // Fields of queues without entries are written, too.
        let lowest = u8::from(config.size > 0);
        if !(lowest..=HIGHEST_PRIORITY).contains(&config.priority) {
            return Err(ConfigurationError::Priority { queue, priority: config.priority });
        }
        if let Some(pasid) = config.pasid.filter(|pasid| *pasid > LARGEST_PASID) {
            return Err(ConfigurationError::Pasid { queue, pasid });
        }
        let fits = |wanted: Option<u8>, most: u8| wanted.is_none_or(|wanted| wanted <= most);
        if !fits(config.max_transfer, general.max_transfer()) || !fits(config.max_batch, general.max_batch())
        {
            return Err(ConfigurationError::Size { queue });
        }
    }
    for (queue, config) in queues.iter().enumerate().filter(|(_, config)| config.size > 0) {
        if usize::from(config.group) >= groups.len() {
            return Err(ConfigurationError::NoSuchGroup { queue, group: config.group });
        }
        let supported =
            if config.dedicated { have.dedicated() } else { have.shared() && config.pasid.is_some() };
        if !supported {
            return Err(ConfigurationError::Mode { queue });
        }
        if config.block_on_fault && !general.block_on_fault() {
            return Err(ConfigurationError::BlockOnFault { queue });
        }
    }
    Ok(())
}
