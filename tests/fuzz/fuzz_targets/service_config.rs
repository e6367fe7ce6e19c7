//! Fuzz target `service_config`: the service's configuration file.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::service_config`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::service_config(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::service_config)
}
