//! A study of memferry-link with very many nodes, in virtual time: what breaks first.
//!
//! ```text
//! readers of one frame ── accesses, at most AHEAD each ──► the owner's link: one thread, 32 slots ─► its service
//!          ▲                                                  │ copies, answers
//!          └──────────────── wire ◄───────────────────────────┘
//! revocation, new grants, connections after a restart, and what each peer takes
//! ```
//!
//! The rules are those of `engines/link`, rewritten for virtual time: the product's program is bound to threads, sockets and the machine's
//! clock. A test compares every limit with the source. Costs come from measurements where there are any (`parameters/nodes.toml`).

mod connections;
pub mod costs;
mod fan_in;
mod limits;
mod lines;

use crate::paper::{Paper, Runner};

pub const STUDY: Paper = Paper {
    name: "nodes",
    title: "memferry-link with 2 to 10,000 nodes: what breaks first (simulated)",
    plans: &[
        include_str!("../plans/nodes-cut-off.toml"),
        include_str!("../plans/nodes-useful.toml"),
        include_str!("../plans/nodes-memory.toml"),
        include_str!("../plans/nodes-revocation.toml"),
        include_str!("../plans/nodes-reconnect.toml"),
        include_str!("../plans/nodes-limits.toml"),
    ],
    parameters: include_str!("../parameters/nodes.toml"),
    runners: &RUNNERS,
    judges: &[],
    fits: &[],
};

const RUNNERS: [Runner; 4] = [
    Runner { name: "nodes-fan-in", run: lines::fan_in },
    Runner { name: "nodes-revocation", run: lines::revocation },
    Runner { name: "nodes-reconnect", run: lines::reconnect },
    Runner { name: "nodes-limits", run: limits::line },
];

#[cfg(test)]
mod tests;
