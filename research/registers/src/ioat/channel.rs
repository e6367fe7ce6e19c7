//! Values of the registers that every channel has.
//!
//! ```text
//! bits ── from_bits ──► Chanctrl, Chancmd, Chansts, Chanerr ── fields ──► words
//! Chansts ── the device writes it to the completion address too
//! ```
//!
//! DMACOUNT is a plain number: the descriptors of the chain that are valid, counted from the write of CHAINADDR, modulo 65536.
//! The addresses fill their registers and have no type here.

use super::general::words;
use bitfield_struct::bitfield;
use core::fmt;

#[bitfield(u16)]
#[derive(PartialEq, Eq)]
pub struct Chanctrl {
    /// The channel raised its interrupt and raises no other; a one that is written clears it and arms the next.
    pub interrupt_disable: bool,
    #[bits(1)]
    __: u8,
    /// An error writes the status to the completion address too.
    pub error_completion_enable: bool,
    /// Any error stops the channel.
    pub any_error_abort_enable: bool,
    /// An error raises the interrupt.
    pub error_interrupt_enable: bool,
    /// Descriptors are not in coherent memory and are not snooped for.
    pub descriptor_no_snoop: bool,
    #[bits(2)]
    __: u8,
    /// Somebody owns the channel: a read sets it and gives what it was; a zero that is written clears it.
    pub in_use: bool,
    /// Completion writes go to a CPU's cache.
    pub completion_dca_enable: bool,
    #[bits(2)]
    __: u8,
    /// Priority; in Linux's definitions only.
    #[bits(4)]
    pub priority: u8,
}

impl fmt::Display for Chanctrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.in_use() { "in use" } else { "free" })?;
        words(
            f,
            &[
                (self.interrupt_disable(), ", interrupt raised and not armed again"),
                (self.error_completion_enable(), ", errors are written to the completion address"),
                (self.any_error_abort_enable(), ", any error stops it"),
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
        words(f, &[(self.version_1(), " 1"), (self.version_2(), " 2"), (self.version_3(), " 3")])
    }
}

/// Channel command (CHANCMD). One bit at a time: several in one write are a fatal error of the channel. The device clears a bit when
/// the command has been carried out; that reset reads as one meanwhile is what drivers rely on, for the others it is unsure.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct Chancmd {
    /// Starts at the chain's address: version 1 only, later ones start by DMACOUNT.
    pub start: bool,
    /// The chain was extended: version 1 only.
    pub append: bool,
    /// Stands still at the end of the descriptor at work.
    pub suspend: bool,
    /// Stops within the descriptor; unsure how what was begun ends.
    pub abort: bool,
    /// Goes on after a suspend; the definitions name it and Linux does not use it: it writes CHAINADDR and DMACOUNT anew.
    pub resume: bool,
    /// Stops, and forgets the chain. An erratum of the Xeon E7 v2 (CF5) says that suspending or resetting a channel at an XOR
    /// may spoil copies of others there.
    pub reset: bool,
    #[bits(2)]
    __: u8,
}

impl Chancmd {
    /// Commands in the value.
    pub const fn commands(self) -> u32 {
        (self.into_bits() & 0x3F).count_ones()
    }
}

impl fmt::Display for Chancmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.commands() == 0 {
            return f.write_str("no command");
        }
        f.write_str("asked for:")?;
        words(
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

/// What a channel is doing (CHANSTS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransferState {
    /// It works on the chain.
    Active = 0,
    /// All descriptors that it was told of are done.
    Idle = 1,
    /// It stands still after a suspend.
    Suspended = 2,
    /// An error, an abort or a reset stopped it.
    Halted = 3,
    /// It has a chain's address, and no count yet.
    Armed = 4,
    Undefined5 = 5,
    Undefined6 = 6,
    Undefined7 = 7,
}

impl TransferState {
    pub const fn into_bits(self) -> u8 {
        self as u8
    }

    /// The variant of these bits; bits above the field are ignored.
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
            Self::Undefined5 | Self::Undefined6 | Self::Undefined7 => "in no state that is defined",
        })
    }
}

/// Channel status (CHANSTS, read only, 64 bits), and what the device writes to the completion address. Where it is read in two
/// halves the lower comes first: that read latches the upper.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Chansts {
    /// What the channel is doing.
    #[bits(3)]
    pub state: TransferState,
    /// An error that belongs to no descriptor.
    pub unaffiliated_error: bool,
    /// An error that did not stop the channel.
    pub soft_error: bool,
    #[bits(1)]
    __: u8,
    /// Upper bits of the address; see [`Chansts::completed`].
    #[bits(58)]
    pub completed_upper: u64,
}

impl Chansts {
    /// Address of the descriptor completed last, the first of two where it has an extension; zero when there was none.
    pub const fn completed(self) -> u64 {
        self.completed_upper() << 6
    }

    /// With that address; its lower six bits are dropped.
    pub const fn with_completed(self, address: u64) -> Self {
        self.with_completed_upper(address >> 6)
    }
}

impl fmt::Display for Chansts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, descriptor {:#x} completed", self.state(), self.completed())?;
        words(
            f,
            &[
                (self.unaffiliated_error(), ", an error of no descriptor"),
                (self.soft_error(), ", a soft error"),
            ],
        )
    }
}

/// Errors of a channel (CHANERR, and CHANERR_MASK with the same bits). A one that is written to CHANERR clears its error. They
/// survive a reset of the channel.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Chanerr {
    /// The source address is not one.
    pub source_address: bool,
    /// The destination address is not one.
    pub destination_address: bool,
    /// The next descriptor's address is not one.
    pub next_address: bool,
    /// The next descriptor is not aligned, or is none.
    pub descriptor: bool,
    /// CHAINADDR's value is not one.
    pub chain_address: bool,
    /// The command is not allowed.
    pub command: bool,
    /// The chipset found data damaged.
    pub chipset_integrity: bool,
    /// The engine found data damaged.
    pub engine_integrity: bool,
    /// The source could not be read.
    pub read_data: bool,
    /// The destination could not be written.
    pub write_data: bool,
    /// The descriptor's control word is wrong.
    pub control: bool,
    /// The descriptor's length is wrong.
    pub length: bool,
    /// The completion address is wrong, or could not be written.
    pub completion_address: bool,
    /// The interrupt is not configured.
    pub interrupt_configuration: bool,
    pub soft: bool,
    /// An error of no descriptor.
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

/// From bit 0.
const ERRORS: [&str; 19] = [
    "bad source address",
    "bad destination address",
    "bad address of the next descriptor",
    "bad descriptor",
    "bad chain address",
    "command not allowed",
    "data damaged in the chipset",
    "data damaged in the engine",
    "source could not be read",
    "destination could not be written",
    "bad control word",
    "bad length",
    "bad completion address",
    "interrupt not configured",
    "soft error",
    "error of no descriptor",
    "check of XOR, P or CRC failed",
    "check of Q failed",
    "bad descriptor count",
];
