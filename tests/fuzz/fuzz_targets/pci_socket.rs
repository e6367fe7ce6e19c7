//! Fuzz target `pci_socket`: the socket of a PCI device with a hostile client.
//!
//! Under `cargo fuzz`, libFuzzer calls the body, [`memferry_fuzz::pci_socket`]. In other builds this program replays the
//! files given as arguments.

#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| memferry_fuzz::pci_socket(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    memferry_fuzz::replay_files(memferry_fuzz::pci_socket)
}
