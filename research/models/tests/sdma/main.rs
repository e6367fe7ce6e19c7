//! Tests of the SDMA model through its registers, one module for each part of the paper's section 2.3.2.2.
//!
//! ```text
//! registers written ──► steps until nothing is due ──► memory, CSR, lines, complaints
//! ```
//!
//! No driver takes part: the tests write what the manual requires or forbids.

mod addressing;
mod channels;
mod errors;
mod events;
mod linked_lists;
mod properties;
mod registers;
mod support;
mod synchronized;
mod writes;
