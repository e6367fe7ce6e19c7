//! The SDMA driver on the device model; they share only the register definitions.
//!
//! ```text
//! Sdma (driver) ── RegisterIo, Clock ──► Machine ──► Sdma (model) ──► Ram
//! ```
//!
//! The model must never complain about the driver, and memory must equal the result of a loop over single elements. Each
//! register access takes virtual time, so that waits end.

mod faults;
mod lists;
mod machine;
mod shapes;
mod synchronized;
