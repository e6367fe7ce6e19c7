//! What every implementation of a memferry contract must do, as suites that run over any of them.
//!
//! ```text
//! EngineFixture ──► engine_suite ──► same bytes as the oracle, one completion per ticket, or a panic that says where
//! oracle            what an operation does to memory, one byte or pixel at a time
//! FakeEngine        an engine in virtual time with injectable faults, for tests of what stands above engines
//! WorkerModel         a CPU in virtual time that moves by turns, for tests of policies
//! ```
//!
//! A suite needs contracts only: it knows no engine by name. An implementation runs one from its own tests, in one
//! line. Nothing here is meant for a program that moves bytes.

pub mod engine;
pub mod fake;
pub mod oracle;
pub mod requests;
pub mod worker_model;

pub use engine::{EngineFixture, EngineSetup, engine_suite};
pub use fake::{FakeEngine, Fault, SimMemory, Timing};
pub use worker_model::WorkerModel;

/// Bytes that look random: of a length and a seed they are always the same.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
