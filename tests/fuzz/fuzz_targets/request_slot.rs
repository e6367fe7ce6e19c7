//! Fuzz target `request_slot`: decodes the ring slots of submissions and completions.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::request_slot`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::request_slot(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::request_slot)
}
