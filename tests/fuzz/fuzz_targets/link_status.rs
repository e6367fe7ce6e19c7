//! Fuzz target `link_status`: what a link says of itself, as its reader shows it.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::link_status`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::link_status(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::link_status)
}
