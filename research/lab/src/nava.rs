//! Experiments on Nava and Kummerfeld (1996): user-mode DMA for user-mode file servers.
//!
//! ```text
//! parameters ──► Magnum 3000s, Ethernet, disk ──► raw reads (table 2), file servers (tables 1 and 3), the parts of the 17 ms
//!                                                    └──► judges of the nava-* claims; interfaces and a server live
//! ```
//!
//! `docs/fileserver.md` describes the topic.

mod disk;
mod interfaces;
mod judges;
mod live;
mod machine;
mod raw;
mod serving;
mod tables;

use crate::paper::{Paper, Runner};

pub const PAPER: Paper = Paper {
    name: "nava1996",
    title: "A. Nava, 1996: User-Mode DMA (for file servers on Plan 9)",
    plans: &[
        include_str!("../plans/nava-table-1.toml"),
        include_str!("../plans/nava-delay.toml"),
        include_str!("../plans/nava-processor.toml"),
        include_str!("../plans/nava-local.toml"),
        include_str!("../plans/nava-parts.toml"),
        include_str!("../plans/nava-table-2.toml"),
        include_str!("../plans/nava-track.toml"),
        include_str!("../plans/nava-access.toml"),
    ],
    parameters: include_str!("../parameters/nava.toml"),
    runners: &RUNNERS,
    judges: &[&judges::JUDGES, &interfaces::JUDGES, &live::JUDGES],
    fits: &[],
};

const RUNNERS: [Runner; 3] = [raw::RUNNER, tables::RUNNERS[0], tables::RUNNERS[1]];
