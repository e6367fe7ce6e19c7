//! Wicki's thesis (2014): a user-level driver of the OMAP4's SDMA, and what it is good for.
//!
//! ```text
//! service ─ the path on the device's model ─► clients ─ one core, one event loop ─► bulk ─ against the CPU's copy
//! ```

pub mod service;
