//! Fuzz target `bulk_request`: requests of clients to the link of their node.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::bulk_request`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::bulk_request(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::bulk_request)
}
