//! Fuzz target `bulk_relay`: the relay between a hostile client and a hostile link of another node.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::bulk_relay`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::bulk_relay(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::bulk_relay)
}
