//! Experiments on Markatos and Katevenis (TR 182, 1997): starting a transfer from user level.
//!
//! ```text
//! protocols in scenes ──► every interleaving ──► judges of the safety claims
//! the prototype in virtual time ──► table 1, bus speeds, the verification of 4.4 ──► judges of the figures
//! ```
//!
//! The text of the topic is `docs/initiation.md`.

pub mod explore;
pub mod machine;
pub mod progress;
pub mod protocols;
pub mod safety;
pub mod scenes;
pub mod state_machine;
pub mod story;
pub mod two_cpus;
pub mod world;

use crate::experiments::{Judge, Paper};

/// All of them.
pub const PAPER: Paper = Paper {
    plans: &[],
    parameters: include_str!("../parameters/markatos.toml"),
    runners: &[],
    judges: &JUDGES,
};

/// The safety claims, then the figures.
const JUDGES: [Judge; 14] = {
    let mut judges = [two_cpus::JUDGE; 14];
    let mut at = 0;
    while at < safety::JUDGES.len() {
        judges[at] = safety::JUDGES[at];
        at += 1;
    }
    judges
};
