//! Fuzz target `geometry`: computes the byte ranges of 2-D walks.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::geometry`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::geometry(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::geometry)
}
