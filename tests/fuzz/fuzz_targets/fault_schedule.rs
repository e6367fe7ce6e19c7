//! Fuzz target `fault_schedule`: the text of a schedule of faults.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::fault_schedule`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::fault_schedule(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::fault_schedule)
}
