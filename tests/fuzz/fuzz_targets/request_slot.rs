//! Fuzz target `request_slot`: ring slots, submissions and completions, to the decoders.
//!
//! Under `cargo fuzz` libFuzzer calls the body, [`memferry_fuzz::request_slot`]; built otherwise, this program replays the files
//! that it is given. It decides nothing itself.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::request_slot(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::request_slot)
}
