//! The engine suite: tests any implementation of [`memferry_transfer::Engine`] against the trait's contract.
//!
//! ```text
//! EngineSetup ──make──► EngineFixture ──Bench──► post, ring, poll in virtual time ──► completions + memory
//!                                                                                        │
//!                      oracle on copies of the same memory ───────────────── equal? ◄────┘
//! ```
//!
//! Neither timing nor the promptness of a cancel is tested; the number of bytes that a completion reports is.

mod bench;
mod lifecycle;
mod operations;
mod random;

use memferry_clock::Instant;
use memferry_transfer::{Engine, Memory};

/// Minimum number of channels of an engine under test.
pub const MIN_CHANNELS: u32 = 4;

/// Configuration of the engine under test.
#[derive(Clone, Copy, Debug)]
pub struct EngineSetup {
    /// Minimum number of channels; an engine whose device has fewer provides all, at least [`MIN_CHANNELS`].
    pub channels: u32,
    /// Chunk size for engines that split transfers; others ignore it.
    pub chunk_bytes: u64,
}

/// An engine under test and the memory it moves.
pub trait EngineFixture {
    /// Memory as the engine addresses it.
    type Memory: Memory;
    type Engine: Engine<Memory = Self::Memory>;

    /// The engine; every call returns the same one.
    fn engine(&mut self) -> &mut Self::Engine;

    /// Allocates memory of exactly `bytes.len()` bytes (never zero) with this content.
    fn allocate(&mut self, bytes: &[u8]) -> Self::Memory;

    /// The memory's content. Called only while no transfer runs.
    fn contents(&self, memory: &Self::Memory) -> Vec<u8>;

    /// Whether both handles denote the same memory.
    fn is_same(&self, one: &Self::Memory, other: &Self::Memory) -> bool;

    /// Time of the next poll, after the engine reported at `now` that it has nothing to do before `next_wake`.
    ///
    /// An engine on real hardware waits here for its interrupt.
    ///
    /// # Panics
    /// If `next_wake` is `None`: whenever this is called, transfers are outstanding.
    fn wait(&mut self, now: Instant, next_wake: Option<Instant>) -> Instant {
        next_wake.map_or_else(
            || panic!("transfers are outstanding, but the engine wants no further poll"),
            |at| at.max(now),
        )
    }
}

/// Runs every test of the suite.
///
/// # Panics
/// If the engine breaks the contract; the captured output names the test.
pub fn engine_suite<X: EngineFixture>(make: impl Fn(EngineSetup) -> X) {
    let make = &make;
    let tests: [(&str, &dyn Fn()); 17] = [
        ("every operation equals the oracle", &|| operations::every_operation_equals_the_oracle(make)),
        ("overlapping copies are memmoves", &|| operations::overlapping_copies_are_memmoves(make)),
        ("empty operations finish", &|| operations::empty_operations_finish(make)),
        ("refusals return the descriptor", &|| lifecycle::refusals_return_the_descriptor(make)),
        ("nothing starts before the doorbell", &|| lifecycle::nothing_starts_before_the_doorbell(make)),
        ("cancelled before the start", &|| lifecycle::early_cancels_move_nothing(make)),
        ("cancelled while running", &|| lifecycle::running_cancels_report_bytes_done(make)),
        ("stale cancels are ignored", &|| lifecycle::stale_cancels_are_ignored(make)),
        ("all channels at once", &|| lifecycle::all_channels_finish_once_each(make)),
        ("tickets of a channel differ", &|| lifecycle::tickets_of_a_channel_differ(make)),
        ("suspended channels rest", &|| lifecycle::suspended_channels_move_nothing(make)),
        ("reports are appended", &|| lifecycle::finished_reports_are_appended(make)),
        ("immediate operations", &|| lifecycle::immediate_operations_equal_the_oracle(make)),
        ("unannounced kinds", &|| lifecycle::unannounced_kinds_are_refused(make)),
        ("watermarks", &|| lifecycle::watermarks_cover_final_bytes(make)),
        ("random operations equal the oracle", &|| random::random_operations_equal_the_oracle(make)),
        ("random cancels leave a prefix", &|| random::random_cancels_leave_a_prefix(make)),
    ];
    for (name, test) in tests {
        eprintln!("engine suite: {name}");
        test();
    }
}
