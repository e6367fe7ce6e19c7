//! Intel's I/OAT DMA engine (QuickData, "Crystal Beach"), versions 2.0 to 3.3. Each channel follows a chain of descriptors.
//!
//! ```text
//! offset ── offset::locate ──► Location ──► name, width, access, bits that exist
//! value ── Chansts, Chanerr, ... ──► typed fields ──► Display
//! memory ── descriptor::Descriptor ──► 64 bytes of a chain
//! driver, model ── RegisterIo, NarrowIo ──► registers
//! ```
//!
//! The driver and a model of the device share this crate and nothing else. It holds no state and accesses no device.
//!
//! Sources: the register chapters of the Xeon E5 v2 and E7 v2 datasheets (volume 2: "Crystal Beach DMA", "Quick Data
//! DMA"), the C5500/C3500 datasheet (volume 1, features), and the definitions in Linux's driver of the device. Intel's
//! architecture specification is not public. Comments say "unsure" where none of the sources confirms a statement.
//!
//! The Intel 5000X of Papa's measurements (2014) has version 1.2: some of its registers have other offsets, commands start
//! it instead of a count, and it can only copy. Fills and XOR, which Papa names as future work, came with version 3.x.
//! The registers of direct cache access beyond DCACTRL, interrupt delay, CRC, P+Q and PCI configuration space are not covered.

#![no_std]

pub mod descriptor;
pub mod flags;
pub mod offset;

mod channel;
mod describe;
mod general;
mod io;

pub use channel::{Chancmd, Chanctrl, Chanerr, Chansts, Dcactrl, DmaComp, TransferState};
pub use describe::{Description, describe};
pub use general::{Cbver, Chancnt, DmaCapability, Genctrl, Intrctrl, Xfercap};
pub use io::{Device, NarrowIo, RegisterIo};
pub use offset::{Access, General, Location, Register};

/// Channels of the 5000X and of the model (paper, "Intel's I/O Acceleration Technology"). A device reports its own number
/// in CHANCNT.
pub const CHANNELS: usize = 4;

/// Interrupt lines: PCI's INTx. Message-signalled interrupts belong to PCI, except for the bit in [`Intrctrl`] that gives each channel
/// its own.
pub const LINES: usize = 1;

/// Size and alignment of a descriptor, in bytes.
pub const DESCRIPTOR_BYTES: u64 = 64;

/// Alignment of the completion address, in bytes.
pub const COMPLETION_ALIGNMENT: u64 = 8;
