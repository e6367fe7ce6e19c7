//! Configuration, control, status and command registers.

use bitfield_struct::bitfield;
use core::fmt;

/// General configuration (9.2.8); writable while the device is disabled.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gencfg {
    pub read_buffer_limit: u8,
    #[bits(4)]
    __: u8,
    /// User-mode descriptors may request interrupts.
    pub user_interrupts: bool,
    pub event_log: bool,
    #[bits(18)]
    __: u32,
}

/// Interrupt enables (9.2.9).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Genctrl {
    pub software_error: bool,
    pub halt: bool,
    pub event_log: bool,
    #[bits(29)]
    __: u32,
}

/// State of the device (9.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DeviceState {
    #[default]
    Disabled,
    Enabled,
    /// A Disable Device or Reset Device command is in progress.
    Draining,
    /// Halted by an error; only a reset helps (5.7).
    Halted,
}

impl DeviceState {
    /// Every value of the two bits has a state.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Disabled,
            1 => Self::Enabled,
            2 => Self::Draining,
            _ => Self::Halted,
        }
    }

    pub const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// The least reset that ends the halt (9.2.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ResetType {
    /// The Reset Device command.
    #[default]
    Software,
    FunctionLevel,
    Warm,
    Cold,
}

impl ResetType {
    /// Every value of the two bits has a type.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 3 {
            0 => Self::Software,
            1 => Self::FunctionLevel,
            2 => Self::Warm,
            _ => Self::Cold,
        }
    }

    pub const fn into_bits(self) -> u8 {
        self as u8
    }
}

/// General status (9.2.10), read only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Gensts {
    #[bits(2)]
    pub state: DeviceState,
    #[bits(2)]
    pub reset: ResetType,
    #[bits(28)]
    __: u32,
}

/// Why interrupt 0 was raised (9.2.11); a one clears its bit.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Intcause {
    pub software_error: bool,
    pub command: bool,
    pub occupancy: bool,
    pub counter_overflow: bool,
    pub halt: bool,
    pub event_log: bool,
    #[bits(25)]
    __: u32,
    pub handles_revoked: bool,
}

/// The command register (9.2.12), write only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmd {
    #[bits(20)]
    pub operand: u32,
    #[bits(5)]
    pub code: u8,
    #[bits(6)]
    pub reserved: u8,
    /// Raises interrupt 0 when the command is complete.
    pub interrupt: bool,
}

/// An administrative command and its operand (3.15, table 9-5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    EnableDevice,
    DisableDevice,
    DrainAll,
    AbortAll,
    ResetDevice,
    EnableQueue(u8),
    DisableQueues(QueueSet),
    DrainQueues(QueueSet),
    AbortQueues(QueueSet),
    ResetQueues(QueueSet),
    DrainPasid(u32),
    AbortPasid(u32),
}

/// Up to 16 work queues of one block of 16, as commands name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSet {
    /// Bits 7 to 4 of the queues' numbers.
    pub block: u8,
    /// A bit for each queue of the block.
    pub bits: u16,
}

impl QueueSet {
    /// The set of one queue.
    pub const fn one(queue: u8) -> Self {
        Self { block: queue / 16, bits: 1 << (queue % 16) }
    }

    /// The numbers of its queues.
    pub fn queues(self) -> impl Iterator<Item = usize> {
        let first = usize::from(self.block) * 16;
        (0..16).filter(move |bit| self.bits >> bit & 1 == 1).map(move |bit| first + bit)
    }

    const fn operand(self) -> u32 {
        (self.block as u32 & 0xF) << 16 | self.bits as u32
    }

    const fn of_operand(operand: u32) -> Self {
        Self { block: (operand >> 16 & 0xF) as u8, bits: operand as u16 }
    }
}

/// Why CMD holds no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoCommand {
    /// The code is undefined, or of a command that this crate does not cover.
    Code(u8),
    /// A reserved field is not zero.
    Reserved,
}

impl Command {
    /// Codes of all commands, as bits: CMDCAP of a device that has these commands (9.2.14).
    pub const ALL: u64 = 0x1FFE;

    /// The code of table 9-5.
    pub const fn code(self) -> u8 {
        match self {
            Self::EnableDevice => 1,
            Self::DisableDevice => 2,
            Self::DrainAll => 3,
            Self::AbortAll => 4,
            Self::ResetDevice => 5,
            Self::EnableQueue(_) => 6,
            Self::DisableQueues(_) => 7,
            Self::DrainQueues(_) => 8,
            Self::AbortQueues(_) => 9,
            Self::ResetQueues(_) => 10,
            Self::DrainPasid(_) => 11,
            Self::AbortPasid(_) => 12,
        }
    }

    /// The value for CMD.
    pub const fn encode(self, interrupt: bool) -> Cmd {
        let operand = match self {
            Self::EnableQueue(queue) => queue as u32,
            Self::DisableQueues(set)
            | Self::DrainQueues(set)
            | Self::AbortQueues(set)
            | Self::ResetQueues(set) => set.operand(),
            Self::DrainPasid(pasid) | Self::AbortPasid(pasid) => pasid & 0xF_FFFF,
            _ => 0,
        };
        Cmd::new().with_code(self.code()).with_operand(operand).with_interrupt(interrupt)
    }

    /// The command that a value of CMD asks for.
    ///
    /// # Errors
    /// [`NoCommand`].
    pub const fn decode(cmd: Cmd) -> Result<Self, NoCommand> {
        let operand = cmd.operand();
        let queues = QueueSet::of_operand(operand);
        let (command, used) = match cmd.code() {
            1 => (Self::EnableDevice, 0),
            2 => (Self::DisableDevice, 0),
            3 => (Self::DrainAll, 0),
            4 => (Self::AbortAll, 0),
            5 => (Self::ResetDevice, 0),
            6 => (Self::EnableQueue(operand as u8), 0xFF),
            7 => (Self::DisableQueues(queues), 0xF_FFFF),
            8 => (Self::DrainQueues(queues), 0xF_FFFF),
            9 => (Self::AbortQueues(queues), 0xF_FFFF),
            10 => (Self::ResetQueues(queues), 0xF_FFFF),
            11 => (Self::DrainPasid(operand), 0xF_FFFF),
            12 => (Self::AbortPasid(operand), 0xF_FFFF),
            code => return Err(NoCommand::Code(code)),
        };
        if operand & !used != 0 || cmd.reserved() != 0 { Err(NoCommand::Reserved) } else { Ok(command) }
    }
}

/// Status of the last command (9.2.13), read only.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cmdsts {
    /// 0: the command succeeded; else see [`CommandError`]. Unspecified while active.
    pub error: u8,
    pub result: u16,
    #[bits(7)]
    __: u8,
    pub active: bool,
}

/// Why a command failed (5.8.3, table 5-8, and 9.2.13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommandError {
    UnknownCommand,
    NoSuchQueue,
    Hardware,
    ReservedField,
    HaltedDevice,
    DeviceNotDisabled,
    Configuration,
    NoBusMaster,
    PageRequests,
    QueueSizes,
    GroupIncomplete,
    GroupQueues,
    GroupEngines,
    ReadBuffers,
    EventLog,
    DeviceNotEnabled,
    QueueNotDisabled,
    QueueEmpty,
    QueuePriority,
    QueueMode,
    QueueBlockOnFault,
    QueuePasid,
    QueueBatch,
    QueueTransfer,
    QueuePrivilege,
    QueueOccupancy,
    QueueOperations,
    DisableDeviceNotEnabled,
    QueueNotEnabled,
    /// A code that this crate does not know.
    Other(u8),
}

/// Codes, errors, and words for people.
const COMMAND_ERRORS: [(u8, CommandError, &str); 29] = [
    (0x01, CommandError::UnknownCommand, "the command is undefined or not supported"),
    (0x02, CommandError::NoSuchQueue, "there is no such work queue"),
    (0x03, CommandError::Hardware, "a hardware error"),
    (0x04, CommandError::ReservedField, "a reserved field of the command is not zero"),
    (0x05, CommandError::HaltedDevice, "the device is halted"),
    (0x10, CommandError::DeviceNotDisabled, "the device is not disabled"),
    (0x11, CommandError::Configuration, "an error in the configuration"),
    (0x12, CommandError::NoBusMaster, "the device is not bus master"),
    (0x13, CommandError::PageRequests, "the number of page requests is not supported"),
    (0x14, CommandError::QueueSizes, "the work queues are larger than the device"),
    (0x15, CommandError::GroupIncomplete, "a group has engines and no work queues, or the reverse"),
    (0x16, CommandError::GroupQueues, "a work queue is in several groups, or an active one is in none"),
    (0x17, CommandError::GroupEngines, "an engine is in several groups, or does not exist"),
    (0x18, CommandError::ReadBuffers, "the limits of read buffers are out of range"),
    (0x19, CommandError::EventLog, "the configuration of the event log is invalid"),
    (0x20, CommandError::DeviceNotEnabled, "the device is not enabled"),
    (0x21, CommandError::QueueNotDisabled, "the work queue is not disabled"),
    (0x22, CommandError::QueueEmpty, "the work queue has no entries"),
    (0x23, CommandError::QueuePriority, "the work queue's priority is 0"),
    (0x24, CommandError::QueueMode, "the work queue's mode is not supported"),
    (0x25, CommandError::QueueBlockOnFault, "block on fault is not available"),
    (0x26, CommandError::QueuePasid, "a shared work queue needs PASID, and PASID needs the PCI capability"),
    (0x27, CommandError::QueueBatch, "the work queue's largest batch is out of range"),
    (0x28, CommandError::QueueTransfer, "the work queue's largest transfer is out of range"),
    (0x2A, CommandError::QueuePrivilege, "the work queue is privileged and the PCI capability is not"),
    (0x2B, CommandError::QueueOccupancy, "the work queue's occupancy interrupt is invalid"),
    (0x2D, CommandError::QueueOperations, "the work queue allows operations that the device lacks"),
    (0x31, CommandError::DisableDeviceNotEnabled, "the device was not enabled"),
    (0x32, CommandError::QueueNotEnabled, "a work queue was not enabled"),
];

impl CommandError {
    /// The error of a code; `None` for 0, success.
    pub fn from_code(code: u8) -> Option<Self> {
        if code == 0 {
            return None;
        }
        let known = COMMAND_ERRORS.iter().find(|(known, ..)| *known == code);
        Some(known.map_or(Self::Other(code), |(_, error, _)| *error))
    }

    /// The code of CMDSTATUS.
    pub fn code(self) -> u8 {
        match self {
            Self::Other(code) => code,
            _ => COMMAND_ERRORS.iter().find(|(_, error, _)| *error == self).map_or(0x03, |(code, ..)| *code),
        }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match COMMAND_ERRORS.iter().find(|(_, error, _)| error == self) {
            Some((code, _, words)) => write!(f, "{words} (command error {code:#04x})"),
            None => write!(f, "command error {:#04x}", self.code()),
        }
    }
}

impl core::error::Error for CommandError {}
