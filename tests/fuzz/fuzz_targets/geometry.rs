//! Fuzz target `geometry`: 2-D walks, to the check that says which bytes they touch.
//!
//! Under `cargo fuzz` libFuzzer calls the body, [`memferry_fuzz::geometry`]; built otherwise, this program replays the files
//! that it is given. It decides nothing itself.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::geometry(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::geometry)
}
