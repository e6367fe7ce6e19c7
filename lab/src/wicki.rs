//! Experiments on Wicki's thesis (2014): a user-level driver of the OMAP4's system DMA.
//!
//! ```text
//! plans/wicki-*.toml ──► runners: driver on the SDMA's model, in virtual time ──► judges of the wicki-* claims
//! ```
//!
//! Figures 3 to 12 measure the device from the kernel (section 4.1).

pub mod service;
pub mod synchronized;

use crate::claims::Place;
use crate::experiments::{Judge, Paper};

/// All of them.
pub const PAPER: Paper = Paper {
    plans: &[],
    parameters: include_str!("../parameters/wicki.toml"),
    runners: &[],
    judges: &[Judge { claim: "wicki-hardware-sync", place: Place::Simulated, judge: synchronized::judge }],
};
