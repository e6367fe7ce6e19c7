//! Experiments on Markatos and Katevenis (TR 182, 1997): starting a transfer from user level.
//!
//! ```text
//! protocols in scenes ──► every interleaving ──► judges of the safety claims
//! the prototype in virtual time ──► table 1, bus speeds, the verification of 4.4 ──► judges of the figures
//! ```
//!
//! `docs/initiation.md` describes the topic.

pub mod diagram;
pub mod explore;
pub mod live;
pub mod machine;
pub mod progress;
pub mod protocols;
pub mod replay;
pub mod safety;
pub mod scenes;
pub mod state_machine;
pub mod story;
pub mod timing;
pub mod two_cpus;
pub mod verification;
pub mod world;

use crate::paper::{Paper, Runner};

pub const PAPER: Paper = Paper {
    name: "markatos1997",
    title: "E. P. Markatos, M. G. H. Katevenis and others, 1997: \
            Issues in the Design and Implementation of User-Level DMA (ICS-FORTH TR 182)",
    plans: &[
        include_str!("../plans/markatos-table-1.toml"),
        include_str!("../plans/markatos-verification.toml"),
        include_str!("../plans/markatos-remote-stores.toml"),
    ],
    parameters: include_str!("../parameters/markatos.toml"),
    runners: &RUNNERS,
    judges: &[&safety::JUDGES, &[two_cpus::JUDGE], &timing::JUDGES, &[verification::JUDGE], &[live::JUDGE]],
    fits: &[],
};

const RUNNERS: [Runner; 3] = [timing::RUNNERS[0], timing::RUNNERS[1], verification::RUNNER];
