//! Experiments on Papa's slides (2014): kernel-user copies by the I/OAT engine of an Intel 5000X.
//!
//! ```text
//! plans/papa-*.toml ──► runners: copy_to_user by CPU and by engine, in virtual time ──► judges of the papa-* claims
//! ```
//!
//! `docs/policies.md` describes the topic.

pub mod cftu;
pub mod chipset;
pub mod host;

mod cache_state;
mod channels;
mod crossing;
mod live;
mod policies;
mod pollution;
mod threshold;
mod victims;
mod volume;

use crate::paper::Paper;

pub const PAPER: Paper = Paper {
    name: "papa2014",
    title: "A. Papa, 2014: \
            Data Transfers between User and Kernel Memory via Dedicated DMA Engine (slides)",
    plans: &[
        include_str!("../plans/papa-hot.toml"),
        include_str!("../plans/papa-cold.toml"),
        include_str!("../plans/papa-crossing.toml"),
        include_str!("../plans/papa-channels.toml"),
        include_str!("../plans/papa-priority.toml"),
        include_str!("../plans/papa-states.toml"),
        include_str!("../plans/papa-snoop.toml"),
        include_str!("../plans/papa-durations.toml"),
        include_str!("../plans/papa-pollution.toml"),
        include_str!("../plans/papa-threshold.toml"),
        include_str!("../plans/papa-threshold-cost.toml"),
        include_str!("../plans/papa-set-xor.toml"),
        include_str!("../plans/papa-cpu-time.toml"),
    ],
    parameters: include_str!("../parameters/papa.toml"),
    runners: &[
        crossing::BANDWIDTH,
        crossing::CROSSING,
        channels::CHANNELS,
        cache_state::STATES,
        cache_state::DURATIONS,
        pollution::POLLUTION,
        threshold::THRESHOLD,
    ],
    judges: &[
        &crossing::JUDGES,
        &channels::JUDGES,
        &cache_state::JUDGES,
        &pollution::JUDGES,
        &policies::JUDGES,
        &live::JUDGES,
        &[volume::JUDGE],
    ],
    fits: &[&crossing::FITS, &channels::FITS],
};
