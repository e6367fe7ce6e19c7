//! Tests of the DSA model through its registers and portals.
//!
//! ```text
//! descriptors ── portal ──► steps until nothing is due ──► memory, completion records, messages, SWERROR, complaints
//! ```
//!
//! No driver takes part: the tests write what the specification requires or forbids.

mod batches;
mod descriptors;
mod properties;
mod queues;
mod rates;
mod registers;
mod spaces;
mod support;
