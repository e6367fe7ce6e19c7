//! Fuzz target `client_answer`: a client's calls against a service that answers anything.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::client_answer`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::client_answer(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::client_answer)
}
