//! Values of the registers that every channel has.
//!
//! ```text
//! bits ── from_bits ──► Chanctrl, Chancmd, Chansts, Chanerr ── Display ──► text
//! ```
//!
//! DMACOUNT is a plain number: the valid descriptors of the chain since CHAINADDR was written, modulo 65536. Addresses
//! are plain numbers too.

use crate::flags::write_set;
use bitfield_struct::bitfield;
use core::fmt;

#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Chanctrl {
    /// The channel raised its interrupt and raises no other one. Writing a one clears the bit and rearms the interrupt.
    pub interrupt_disable: bool,
    #[bits(1)]
    __: u8,
    /// An error also writes the status to the completion address.
    pub error_completion_enable: bool,
    /// Any error stops the channel.
    pub any_error_abort_enable: bool,
    /// An error raises the interrupt.
    pub error_interrupt_enable: bool,
    /// Descriptors lie outside coherent memory; reads of them are not snooped.
    pub descriptor_no_snoop: bool,
    #[bits(2)]
    __: u8,
    /// A driver owns the channel. A read returns the bit and then sets it; writing a zero clears it.
    pub in_use: bool,
    /// Completion writes go into a CPU's cache.
    pub completion_dca_enable: bool,
    #[bits(2)]
    __: u8,
    /// Priority. Only Linux's definitions have this field.
    #[bits(4)]
    pub priority: u8,
}

impl fmt::Display for Chanctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.in_use() { "in use" } else { "free" })?;
        write_set(
            f,
            &[
                (self.interrupt_disable(), ", interrupt raised and not rearmed"),
                (self.error_completion_enable(), ", errors are written to the completion address"),
                (self.any_error_abort_enable(), ", any error stops the channel"),
                (self.error_interrupt_enable(), ", errors interrupt"),
                (self.descriptor_no_snoop(), ", descriptors not snooped"),
                (self.completion_dca_enable(), ", completions into a cache"),
            ],
        )?;
        if self.priority() == 0 { Ok(()) } else { write!(f, ", priority {}", self.priority()) }
    }
}

/// Compatibility (DMA_COMP, read only).
#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct DmaComp {
    /// Behaves as version 1.
    pub version_1: bool,
    /// Behaves as version 2.
    pub version_2: bool,
    /// Behaves as version 3.
    pub version_3: bool,
    #[bits(13)]
    __: u16,
}

impl fmt::Display for DmaComp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("compatible with versions:")?;
        write_set(f, &[(self.version_1(), " 1"), (self.version_2(), " 2"), (self.version_3(), " 3")])
    }
}

/// Channel command (CHANCMD). A write sets one bit; a write that sets several is a fatal error of the channel. The device
/// clears the bit when it has carried out the command. Drivers rely on `reset` reading as one until then; unsure for the
/// other bits.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Chancmd {
    /// Starts at the address in CHAINADDR. Version 1 only; a write to DMACOUNT starts later versions.
    pub start: bool,
    /// Announces that the chain was extended. Version 1 only.
    pub append: bool,
    /// Suspends the channel at the end of the current descriptor.
    pub suspend: bool,
    /// Stops within the current descriptor; unsure how accesses in flight end.
    pub abort: bool,
    /// Continues after a suspend. Linux defines the bit and does not use it: it writes CHAINADDR and DMACOUNT again.
    pub resume: bool,
    /// Stops and drops the chain. By erratum CF5 of the Xeon E7 v2, suspending or resetting a channel during an XOR may
    /// corrupt copies of other channels.
    pub reset: bool,
    #[bits(2)]
    __: u8,
}

impl Chancmd {
    /// Number of commands in the value.
    pub const fn commands(self) -> u32 {
        (self.into_bits() & 0x3F).count_ones()
    }
}

impl fmt::Display for Chancmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.commands() == 0 {
            return f.write_str("no command");
        }
        f.write_str("requested:")?;
        write_set(
            f,
            &[
                (self.start(), " start"),
                (self.append(), " append"),
                (self.suspend(), " suspend"),
                (self.abort(), " abort"),
                (self.resume(), " resume"),
                (self.reset(), " reset"),
            ],
        )
    }
}

/// State of a channel (CHANSTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransferState {
    /// The channel works on the chain.
    Active = 0,
    /// All descriptors counted in DMACOUNT are done.
    Idle = 1,
    /// A suspend command stopped the channel.
    Suspended = 2,
    /// An error, an abort or a reset stopped the channel.
    Halted = 3,
    /// CHAINADDR is written and DMACOUNT is not yet.
    Armed = 4,
    Undefined5 = 5,
    Undefined6 = 6,
    Undefined7 = 7,
}

impl TransferState {
    pub const fn into_bits(self) -> u8 {
        self as u8
    }

    /// Decodes the field; ignores bits above it.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 7 {
            0 => Self::Active,
            1 => Self::Idle,
            2 => Self::Suspended,
            3 => Self::Halted,
            4 => Self::Armed,
            5 => Self::Undefined5,
            6 => Self::Undefined6,
            _ => Self::Undefined7,
        }
    }
}

impl fmt::Display for TransferState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Suspended => "suspended",
            Self::Halted => "halted",
            Self::Armed => "armed",
            Self::Undefined5 | Self::Undefined6 | Self::Undefined7 => "in an undefined state",
        })
    }
}

/// Channel status (CHANSTS, read only, 64 bits). The device also writes this value to the completion address.
///
/// A read in two halves begins with the lower half, which latches the upper one.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Chansts {
    #[bits(3)]
    pub state: TransferState,
    /// An error that belongs to no descriptor.
    pub unaffiliated_error: bool,
    /// An error that did not stop the channel.
    pub soft_error: bool,
    #[bits(1)]
    __: u8,
    /// Bits 63-6 of the address; see [`Chansts::completed`].
    #[bits(58)]
    pub completed_upper: u64,
}

impl Chansts {
    /// Address of the last completed descriptor, not of its extension; zero before the first completion.
    pub const fn completed(self) -> u64 {
        self.completed_upper() << 6
    }

    /// Sets the address of the last completed descriptor; drops its lower six bits.
    pub const fn with_completed(self, address: u64) -> Self {
        self.with_completed_upper(address >> 6)
    }
}

impl fmt::Display for Chansts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, descriptor {:#x} completed", self.state(), self.completed())?;
        write_set(
            f,
            &[
                (self.unaffiliated_error(), ", an error outside any descriptor"),
                (self.soft_error(), ", a soft error"),
            ],
        )
    }
}

/// Errors of a channel (CHANERR, and CHANERR_MASK with the same bits). Writing a one to CHANERR clears that error. Errors
/// survive a reset of the channel.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Chanerr {
    /// The source address is invalid.
    pub source_address: bool,
    /// The destination address is invalid.
    pub destination_address: bool,
    /// The next descriptor's address is invalid.
    pub next_address: bool,
    /// The next descriptor is misaligned or undecodable.
    pub descriptor: bool,
    /// CHAINADDR holds an invalid address.
    pub chain_address: bool,
    /// The command is not allowed.
    pub command: bool,
    /// The chipset found corrupt data.
    pub chipset_integrity: bool,
    /// The engine found corrupt data.
    pub engine_integrity: bool,
    /// A read of the source failed.
    pub read_data: bool,
    /// A write to the destination failed.
    pub write_data: bool,
    /// The descriptor's control word is invalid.
    pub control: bool,
    /// The descriptor's length is invalid.
    pub length: bool,
    /// The completion address is invalid, or a write to it failed.
    pub completion_address: bool,
    /// The interrupt is not configured.
    pub interrupt_configuration: bool,
    pub soft: bool,
    /// An error that belongs to no descriptor.
    pub unaffiliated: bool,
    /// A check of XOR, P or CRC failed.
    pub xor_p_or_crc: bool,
    /// A check of Q failed.
    pub xor_q: bool,
    /// The count of descriptors is wrong.
    pub descriptor_count: bool,
    #[bits(13)]
    __: u16,
}

impl fmt::Display for Chanerr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (_, words) in ERRORS.iter().enumerate().filter(|(bit, _)| self.into_bits() >> bit & 1 == 1) {
            write!(f, "{separator}{words}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("none") } else { Ok(()) }
    }
}

/// Direct cache access of the channel's completion writes (DCACTRL). Only Linux's definitions have this register.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Dcactrl {
    /// The APIC id of the CPU whose cache gets completion writes.
    pub target_cpu: u16,
    pub completion_enable: bool,
    #[bits(15)]
    __: u16,
}

impl fmt::Display for Dcactrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.completion_enable() {
            true => write!(f, "completions into the cache of CPU {}", self.target_cpu()),
            false => f.write_str("completions into memory"),
        }
    }
}

/// Text of each error bit, from bit 0 up.
const ERRORS: [&str; 19] = [
    "bad source address",
    "bad destination address",
    "bad address of the next descriptor",
    "bad descriptor",
    "bad chain address",
    "command not allowed",
    "corrupt data in the chipset",
    "corrupt data in the engine",
    "source could not be read",
    "destination could not be written",
    "bad control word",
    "bad length",
    "bad completion address",
    "interrupt not configured",
    "soft error",
    "error outside any descriptor",
    "check of XOR, P or CRC failed",
    "check of Q failed",
    "bad descriptor count",
];
