//! Fuzz target `provider_wire`: hostile peers of a process with the provider for libfabric.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::provider_wire`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::provider_wire(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::provider_wire)
}
