//! The system DMA (SDMA) of the OMAP4430 and OMAP4460: 32 logical channels, four interrupt lines.
//!
//! ```text
//! offset ── offset::locate ──► Location ──► name, access, bits that exist
//! value ── Ccr, Csdp, ... ──► typed fields ──► Display
//! memory ── descriptor::Descriptor ──► words of a linked list
//! ```
//!
//! Sources: OMAP4460 technical reference manual ("manual"), chapter 16 (section 16.4 for the behaviour, 16.6 for the
//! registers), and sections 2.3 and 3.2 of Wicki's thesis ("paper"), which describes the same device. The layout of the
//! linked list comes from section 16.4; the OMAP36xx manual (11.4.19.3) has the same.

pub mod descriptor;
pub mod offset;

mod channel;
mod describe;
mod fields;
mod global;

pub use channel::{Ccr, Cdp, Cen, Cfn, Cicr, ClnkCtrl, Cndp, Color, Csdp, Csr};
pub use describe::{Description, describe};
pub use fields::{
    AddressSource, AddressingMode, BurstSize, DataType, DescriptorType, FifoBudget, MidleMode, SidleMode,
    ThreadReservation, TransferMode, WriteMode,
};
pub use global::{Caps0, Caps2, Caps3, Caps4, Gcr, OcpSysconfig, SysStatus};
pub use offset::{Access, Location, Register};

/// Base address of the device on the L4 interconnect of OMAP4430 and OMAP4460 (manual, section 16.6).
pub const BASE: u32 = 0x4A05_6000;

/// Logical channels of the device (paper, section 2.3.1).
pub const CHANNELS: usize = 32;

/// Interrupt lines of the device (paper, section 2.3.2.2, "interrupt generation").
pub const LINES: usize = 4;

/// DMA request lines that can synchronize a channel (manual, section 16.6, SYNCHRO_CONTROL of CCR).
pub const REQUESTS: usize = 127;
