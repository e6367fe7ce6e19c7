//! Fuzz target `doctor_report`: reports that the doctor reads.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::doctor_report`]. In other builds this program replays
//! the files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::doctor_report(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::doctor_report)
}
