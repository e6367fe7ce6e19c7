//! Repeated passing with three accesses, by Dubnicki (TR 182, 3.3 and figure 5).
//!
//! ```text
//! LOAD shadow(source) ─► STORE size TO shadow(destination) ─► LOAD shadow(source), the same: start
//! ```
//!
//! The destination is passed only once, so a store of one process fits between two loads of another: figure 5.

use super::repeated::{Passes, Repeated};

pub const THREE: Repeated = Repeated { sequence: &[Passes::Source, Passes::Destination, Passes::Source] };
