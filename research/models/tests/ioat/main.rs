//! The I/OAT engine's model through its registers.
//!
//! ```text
//! descriptors in memory, registers written ──► steps until nothing is due ──► memory, CHANSTS, line, complaints
//! ```
//!
//! No driver takes part: what is written is what the documentation asks for, or forbids.

mod bandwidth;
mod chains;
mod errors;
mod properties;
mod registers;
mod support;
