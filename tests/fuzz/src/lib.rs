//! The bodies of memferry's fuzz targets: each feeds bytes to one trust boundary and panics if a guarantee is broken.
//!
//! ```text
//! bytes ──► Input ──► request_slot   decoders of both slot kinds     decoded values survive another round trip
//!                ├──► ring_reader    ServiceEnd over hostile memory  slots as written, each position once
//!                ├──► engine_process  ExternalEngine over hostile memory  each job once, none before the engine let go
//!                ├──► pci_device     PCI shell and I/OAT model         whole replies, no byte outside the windows
//!                ├──► pci_socket     its socket, messages in pieces   the messages of the whole stream, replies in order
//!                ├──► dsa_device     the DSA model                     it comes to rest, no byte changes that was not named
//!                ├──► geometry       Plane::extent                   the bytes that a literal walk touches
//! bytes ─────────┼──► fault_schedule   parser of faults             mistakes have a place in the text
//! bytes ─────────┼──► control_message  decoders of the socket        decoded values survive another round trip
//! bytes ─────────┼──► ninep_message    codec of the file server      decoded messages encode to the same bytes
//! bytes ─────────┴──► link_message     messages of another node      within the limits, and another round trip
//! ```
//!
//! libFuzzer calls them through `fuzz_targets/`; `tests/corpus.rs` replays the committed seeds on stable Rust. A body accepts
//! any input: missing bytes are zero. It uses no file, process or socket, except that engine_process and pci_device take their memory from
//! memfds, and that pci_socket has a pair of sockets and a pipe.

mod control_message;
mod dsa_device;
mod engine_process;
mod fault_schedule;
mod geometry;
mod input;
mod link_message;
mod ninep_message;
mod pci_device;
mod pci_socket;
mod request_slot;
mod ring_reader;

pub use control_message::control_message;
pub use dsa_device::dsa_device;
pub use engine_process::engine_process;
pub use fault_schedule::fault_schedule;
pub use geometry::geometry;
pub use link_message::link_message;
pub use ninep_message::ninep_message;
pub use pci_device::pci_device;
pub use pci_socket::pci_socket;
pub use request_slot::request_slot;
pub use ring_reader::ring_reader;

/// Runs `body` on each file named on the command line.
///
/// # Errors
/// A file that cannot be read.
pub fn replay_files(body: fn(&[u8])) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1).map(std::path::PathBuf::from) {
        body(&std::fs::read(&path)?);
        println!("{}: passed", path.display());
    }
    Ok(())
}
