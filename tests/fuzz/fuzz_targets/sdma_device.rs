//! Fuzz target `sdma_device`: the SDMA model with any register written.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::sdma_device`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::sdma_device(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::sdma_device)
}
