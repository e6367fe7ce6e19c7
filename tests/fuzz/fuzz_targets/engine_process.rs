//! Fuzz target `engine_process`: the worker's end of a hostile engine process.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::engine_process`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::engine_process(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::engine_process)
}
