//! Fuzz target `dsa_device`: the model of a DSA with a hostile guest.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::dsa_device`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::dsa_device(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::dsa_device)
}
