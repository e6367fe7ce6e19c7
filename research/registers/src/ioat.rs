//! Intel's I/OAT DMA engine (QuickData, "Crystal Beach"), versions 2.0 to 3.2: four channels that follow chains of descriptors.
//!
//! ```text
//! offset ── offset::locate ──► Location ──► name, width, access, bits that exist
//! value ── Chansts, Chanerr, ... ──► typed fields ──► Display
//! memory ── descriptor::Descriptor ──► 64 bytes of a chain
//! ```
//!
//! Sources, for facts and layouts: the register chapters of the Xeon E5 v2 and E7 v2 datasheets (volume 2: "Crystal Beach DMA", "Quick
//! Data DMA"), the C5500/C3500 datasheet (volume 1, features), and the definitions that Linux's driver of the device
//! publishes. Intel's architecture specification is not public. What none of them says is marked "unsure" where it stands.
//!
//! The Intel 5000X of Papa's measurements (2014) has version 1.2, whose registers lie elsewhere in part, which is started by
//! commands instead of a count, and which copies only. Fills and XOR, which he names as future work, came with 3.x. Direct
//! cache access, interrupt delay, CRC, P+Q and PCI configuration space are left out.

pub mod descriptor;
pub mod offset;

mod channel;
mod describe;
mod general;

pub use channel::{Chancmd, Chanctrl, Chanerr, Chansts, DmaComp, TransferState};
pub use describe::{Description, describe};
pub use general::{Cbver, Chancnt, DmaCapability, Genctrl, Intrctrl, Xfercap};
pub use offset::{Access, General, Location, Register};

/// Channels of the 5000X and of what is modelled (paper, "Intel's I/O Acceleration Technology"); CHANCNT says how many
/// a device has.
pub const CHANNELS: usize = 4;

/// Interrupt lines: the one that PCI calls INTx. Message-signalled interrupts are left out.
pub const LINES: usize = 1;

/// Bytes of a descriptor, and what its address is a multiple of.
pub const DESCRIPTOR_BYTES: u64 = 64;

/// What the completion address is a multiple of.
pub const COMPLETION_ALIGNMENT: u64 = 8;
