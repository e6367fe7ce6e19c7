//! Fuzz target `bulk_receiver`: a bulk connection's receiver and sender against a hostile other end.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::bulk_receiver`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::bulk_receiver(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::bulk_receiver)
}
