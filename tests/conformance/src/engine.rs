//! The suite for engines: what [`memferry_transfer::Engine`] promises, checked over any implementation.
//!
//! ```text
//! EngineSetup ──make──► EngineFixture ──Bench──► post, ring, poll in virtual time ──► completions + memory
//!                                                                                        │
//!                      oracle on copies of the same memory ───────────────── equal? ◄────┘
//! ```
//!
//! Timing is not judged, and neither is how far a transfer gets before a cancel is honoured; how far it says it got is.

mod bench;
mod lifecycle;
mod operations;
mod random;

use memferry_clock::Instant;
use memferry_transfer::{Engine, Memory};

/// Channels that every engine has.
pub const LEAST_CHANNELS: u32 = 4;

/// What the suite wants of an engine.
#[derive(Clone, Copy, Debug)]
pub struct EngineSetup {
    /// Channels, at least as many; all that there are where a device has fewer, but not less than [`LEAST_CHANNELS`].
    pub channels: u32,
    /// Bytes after which an engine that works in chunks should look up; others ignore it.
    pub chunk_bytes: u64,
}

/// An engine under test and the memory it moves.
pub trait EngineFixture {
    /// Memory as the engine addresses it.
    type Memory: Memory;
    type Engine: Engine<Memory = Self::Memory>;

    /// The engine; always the same one.
    fn engine(&mut self) -> &mut Self::Engine;

    /// Memory of exactly `bytes.len()` bytes (never none) that holds `bytes`.
    fn allocate(&mut self, bytes: &[u8]) -> Self::Memory;

    /// What the memory holds. Called while no transfer runs.
    fn contents(&self, memory: &Self::Memory) -> Vec<u8>;

    /// Whether both are clones of one memory.
    fn is_same(&self, one: &Self::Memory, other: &Self::Memory) -> bool;

    /// The instant of the next poll, when the engine said at `now` that there is nothing to do before `next_wake`.
    ///
    /// An engine that works by itself waits here for its interrupt.
    ///
    /// # Panics
    /// When that is never: transfers are outstanding whenever this is called.
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
/// When the engine breaks the contract; the captured output names the test.
pub fn engine_suite<X: EngineFixture>(make: impl Fn(EngineSetup) -> X) {
    let make = &make;
    let tests: [(&str, &dyn Fn()); 17] = [
        ("every operation equals the oracle", &|| operations::every_operation_equals_the_oracle(make)),
        ("overlapping copies are memmoves", &|| operations::overlapping_copies_are_memmoves(make)),
        ("operations of no bytes finish", &|| operations::operations_of_no_bytes_finish(make)),
        ("refusals give the descriptor back", &|| lifecycle::refusals_give_the_descriptor_back(make)),
        ("nothing starts before the doorbell", &|| lifecycle::nothing_starts_before_the_doorbell(make)),
        ("cancelled before the start", &|| lifecycle::cancelled_before_the_start_moves_nothing(make)),
        ("cancelled on its way", &|| lifecycle::cancelled_on_its_way_tells_how_far_it_got(make)),
        ("stale cancels are ignored", &|| lifecycle::stale_and_unknown_cancels_are_ignored(make)),
        ("all channels at once", &|| lifecycle::all_channels_finish_once_each(make)),
        ("a channel serves again and again", &|| lifecycle::tickets_of_a_channel_differ(make)),
        ("suspended channels rest", &|| lifecycle::suspended_channels_move_nothing(make)),
        ("reports are appended", &|| lifecycle::finished_reports_are_appended(make)),
        ("short ones at once", &|| lifecycle::short_operations_are_done_at_once_or_not_at_all(make)),
        ("unannounced kinds", &|| lifecycle::kinds_that_are_not_announced_are_refused(make)),
        ("watermarks", &|| lifecycle::watermarks_cover_what_is_final(make)),
        ("random operations equal the oracle", &|| random::random_operations_equal_the_oracle(make)),
        ("random cancels leave a true prefix", &|| random::random_cancels_leave_a_true_prefix(make)),
    ];
    for (name, test) in tests {
        eprintln!("engine suite: {name}");
        test();
    }
}
