//! Fuzz target `control_message`: messages over the socket, to the decoders of the protocol.
//!
//! Under `cargo fuzz` libFuzzer calls the body, [`memferry_fuzz::control_message`]; built otherwise, this program replays the files
//! that it is given. It decides nothing itself.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::control_message(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::control_message)
}
