//! The SDMA's driver meets the model of the device: neither knows the other, both know the registers.
//!
//! ```text
//! Sdma (driver) ── RegisterIo, Clock ──► Machine ──► Sdma (model) ──► Ram
//! ```
//!
//! Whatever the driver does, the model must have nothing to complain about, and memory must hold what a loop over
//! single elements would have left. Each register access takes virtual time, which is what lets waits end.

mod faults;
mod lists;
mod machine;
mod shapes;
mod synchronized;
