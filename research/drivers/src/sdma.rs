//! The driver of the OMAP4's system DMA (SDMA).
//!
//! ```text
//! size or 2-D walk ── linear, plane, rotation ──► Piece ── ChannelConfig::with_piece ──► ChannelConfig
//! Sdma::allocate ──► Channel ── Sdma::configure (validate, write) ── Sdma::enable ──► the device runs
//! interrupt line ──► Sdma::handle_interrupt ──► Event { channel, causes } to the caller
//! Sdma::stop ──► bounded drain ──► Progress, or the channel is quarantined until a reset
//! ```
//!
//! The driver follows sections 2.3 and 3.2 of Wicki's thesis (2014; "paper" in comments). It adds features that section
//! 3.4.1 of the thesis leaves out: scatter-gather by linked lists (`list`), linked channels (`chain`), high priority for
//! holders of [`Trusted`], hardware-synchronized transfers, and cache maintenance. The rules of
//! [`ChannelConfig::validate`] follow the device's manual (OMAP4460 technical reference manual, chapter 16). The driver
//! does not queue requests or assign channels to clients.

mod cache;
mod cause;
mod chain;
mod channels;
mod config;
mod device;
mod interrupt;
mod linear;
mod list;
mod plane;
mod rotation;
mod stop;
mod validate;

pub use cache::{CacheMaintenance, NonCacheable};
pub use cause::{Cause, Interrupts};
pub use chain::{ChainEnd, ChainError};
pub use channels::{AllChannelsBusy, Channel, ChannelTaken};
pub use config::{
    Addressing, ChannelConfig, Element, Operation, Piece, Port, Priority, Side, SyncUnit, Synchronization,
    TransferSize, Trusted,
};
pub use device::{ConfigureError, EnableError, InitError, Sdma, Settings};
pub use interrupt::{Event, Handled, Line};
pub use linear::{Block, Blocks, LinearError, LinearPieces, split};
pub use list::{LinkedList, ListError, ListOptions, Segment};
pub use plane::{Grid, PlaneError, PlanePieces, Walk, any_order_will_do, index_of_modify};
pub use rotation::{Picture, QuarterTurns, RotationError, rotate};
pub use stop::{Progress, StopError};
pub use validate::ConfigError;
