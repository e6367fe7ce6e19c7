//! Fuzz target `link_channel`: the thread of channels between hostile clients and hostile links of other nodes.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::link_channel`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::link_channel(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::link_channel)
}
