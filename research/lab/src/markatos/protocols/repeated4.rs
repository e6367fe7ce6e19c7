//! Repeated passing with four accesses, the obvious extension of three (TR 182, 3.3 and figure 6).
//!
//! ```text
//! STORE size TO shadow(destination) ─► LOAD shadow(source) ─► both again, the same: start
//! ```
//!
//! A process that may read the source can issue the last access, and the owner sees a rejection although the transfer starts:
//! figure 6.

use super::repeated::{Passes, Repeated};

/// The obvious extension to four.
pub const FOUR: Repeated =
    Repeated { sequence: &[Passes::Destination, Passes::Source, Passes::Destination, Passes::Source] };
