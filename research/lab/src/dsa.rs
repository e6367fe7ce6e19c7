//! A study of Intel's DSA in virtual time: where batches pay against a core that copies, and several tenants of one device.
//!
//! ```text
//! one core ── submits, waits ──► driver ─► model of the device        throughput over sizes, batches and depth; crossovers
//! tenants ─┬─ each with a driver of its own ──► model                 shares and latencies without the service
//!          └─ Path: policy ─► DsaEngine ─► driver ─► model            and behind it
//! ```
//!
//! No paper's claim is decided here, and no such machine was available: every line is simulated. The published numbers beside the lines
//! (`tables.toml`) are those of LightDSA's artifact; they say of each cell whether the model was fitted to it.

mod crossover;
mod machine;
mod tenants;

use crate::paper::{Paper, Runner};

pub const STUDY: Paper = Paper {
    name: "dsa",
    title: "Intel DSA: batches, a core that copies, and several tenants (simulated, no silicon)",
    plans: &[
        include_str!("../plans/dsa-throughput.toml"),
        include_str!("../plans/dsa-batch.toml"),
        include_str!("../plans/dsa-depth.toml"),
        include_str!("../plans/dsa-crossover.toml"),
        include_str!("../plans/dsa-tenants-share.toml"),
        include_str!("../plans/dsa-tenants-latency.toml"),
    ],
    parameters: include_str!("../parameters/dsa.toml"),
    runners: &RUNNERS,
    judges: &[],
    fits: &[],
};

const RUNNERS: [Runner; 5] = [
    Runner { name: "dsa-throughput", run: crossover::throughput },
    Runner { name: "dsa-batch", run: crossover::by_batch },
    Runner { name: "dsa-depth", run: crossover::by_depth },
    Runner { name: "dsa-crossover", run: crossover::crossovers },
    Runner { name: "dsa-tenants", run: tenants::line },
];
