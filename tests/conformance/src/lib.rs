//! Test suites for every implementation of a memferry contract.
//!
//! ```text
//! EngineFixture ──► engine_suite ──► same bytes as the oracle, one completion per ticket, or a panic that names the test
//! oracle            reference semantics of operations, one byte or pixel at a time
//! FakeEngine        an engine in virtual time with injectable faults, for tests of the layers above engines
//! WorkerModel       a CPU in virtual time that serves channels in turns, for tests of policies
//! ```
//!
//! Suites depend on contracts only; an implementation runs a suite from its own tests. Nothing here is for production
//! use.

pub mod engine;
pub mod fake;
pub mod oracle;
pub mod requests;
mod tangled;
pub mod worker_model;

pub use engine::{EngineFixture, EngineSetup, engine_suite};
pub use fake::{FakeEngine, Fault, SimMemory, Timing};
pub use worker_model::WorkerModel;

/// Pseudo-random bytes, determined by length and seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}
