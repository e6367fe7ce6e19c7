//! Fuzz target `ring_reader`: the service's reads of a hostile client's memory.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::ring_reader`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::ring_reader(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::ring_reader)
}
