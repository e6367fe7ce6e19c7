//! What every implementation of a memferry contract must do, as suites that run over any of them.
//!
//! ```text
//! EngineFixture ──► engine_suite ──► same bytes as the oracle, one Finished per ticket, or a panic that says where
//! oracle            what an operation does to memory, one byte or pixel at a time
//! FakeEngine        an engine in virtual time with injectable faults, for tests of what stands above engines
//! LaneModel         a CPU lane in virtual time that moves by turns, for tests of policies
//! ```
//!
//! A suite needs contracts only: it knows no engine by name. An implementation runs one from its own tests, in one
//! line. Nothing here is meant for a program that moves bytes.

pub mod engine;
pub mod fake;
pub mod lane_model;
pub mod oracle;
pub mod requests;

pub use engine::{EngineFixture, EngineSetup, engine_suite};
pub use fake::{FakeEngine, Fault, SimMemory, Timing};
pub use lane_model::LaneModel;

/// Bytes that look random: of a length and a seed they are always the same.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}
