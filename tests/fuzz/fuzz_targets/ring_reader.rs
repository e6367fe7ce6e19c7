//! Fuzz target `ring_reader`: a hostile client's memory, as the service reads it.
//!
//! Under `cargo fuzz` libFuzzer calls the body, [`memferry_fuzz::ring_reader`]; built otherwise, this program replays the files
//! that it is given. It decides nothing itself.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::ring_reader(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::ring_reader)
}
