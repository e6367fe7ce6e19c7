//! Tests of the I/OAT model through its registers.
//!
//! ```text
//! descriptors in memory, registers written ──► steps until nothing is due ──► memory, CHANSTS, line, complaints
//! ```
//!
//! No driver takes part: the tests write what the documentation requires or forbids.

mod bandwidth;
mod chains;
mod errors;
mod linux;
mod properties;
mod registers;
mod support;
