//! The bodies of memferry's fuzz targets: each feeds bytes to one trust boundary and panics if a guarantee is broken.
//!
//! ```text
//! a client       request_slot       decoders of both slot kinds       decoded values survive another round trip
//!                ring_reader        ServiceEnd over hostile memory     slots as written, each position once
//!                geometry           Plane::extent                      the bytes that a literal walk touches
//!                control_message    decoders of the socket             decoded values survive another round trip
//!                ninep_message      codec of the file server           decoded messages encode to the same bytes
//! a service      client_answer      Client over a played service       believes only what was said; texts are clean, descriptors closed
//!                client_completion  Queue over hostile memory          each transfer ends once, by words that were written
//! another end    bulk_receiver      Receiver and Sender                messages as a second reading has them, no unread slot overwritten
//!                bulk_relay         relay of a link                    slots as a second reading has them, never more than is under way
//!                bulk_request       requests to a link                 taken if a second reading takes them
//!                provider_wire      provider for libfabric             messages as a second reading has them, each once
//! another node   link_message       messages                           within the limits, and another round trip
//!                link_secure        handshake, encrypted connection    no stranger is a peer; messages as sent, in order, no others
//!                link_channel       thread of channels                 slots as a second reading has them, within the credit
//!                link_status        its status                         whole lines, labels and numbers
//! an engine      engine_process     ExternalEngine                     each job once, none before the engine let go
//! a guest        pci_device         PCI shell and I/OAT model          whole replies, no byte outside the windows
//!                pci_socket         its socket, messages in pieces     the messages of the whole stream, replies in order
//!                dsa_device         the DSA model                      it comes to rest, no byte changes that was not named
//!                sdma_device        the SDMA model                     blocks as a literal loop moves them; at rest after a reset
//! a file         fault_schedule     faults of devices                  mistakes have a place in the text
//!                service_config     memferry.toml                      what has no mistakes starts a service, and reads the same again
//!                link_config        link.toml, keys                    the rules hold, and another round trip
//!                doctor_files       sysfs and procfs                   clean lines; the report is diagnosed as the machine was
//!                doctor_report      reports                            the same
//! ```
//!
//! libFuzzer calls them through `fuzz_targets/`; `tests/corpus.rs` replays the committed seeds on stable Rust. A body accepts
//! any input: missing bytes are zero. Most use no file, process or socket. Memory is of memfds where the code under test wants that; the targets
//! of clients, links, provider_wire and pci_socket have sockets of their own, and doctor_files a folder in the temporary one.

mod bulk_receiver;
mod bulk_relay;
mod bulk_request;
mod bulk_slot;
mod client_answer;
mod client_completion;
mod control_message;
#[allow(dead_code, reason = "the command uses all of it")]
mod doctor;
mod dsa_device;
mod engine_process;
mod fault_schedule;
mod geometry;
mod honest;
mod input;
mod link_channel;
mod link_config;
mod link_message;
mod link_secure;
mod link_status;
mod ninep_message;
mod pci_device;
mod pci_socket;
mod played_service;
mod provider_wire;
mod request_slot;
mod ring_reader;
mod sdma_device;
#[allow(dead_code, reason = "the command uses all of it")]
mod service_config;

pub use bulk_receiver::bulk_receiver;
pub use bulk_relay::bulk_relay;
pub use bulk_request::bulk_request;
pub use client_answer::client_answer;
pub use client_completion::client_completion;
pub use control_message::control_message;
pub use doctor::{doctor_files, doctor_report, is_doctor_report};
pub use dsa_device::dsa_device;
pub use engine_process::engine_process;
pub use fault_schedule::fault_schedule;
pub use geometry::geometry;
pub use link_channel::link_channel;
pub use link_config::{is_link_config, link_config};
pub use link_message::link_message;
pub use link_secure::link_secure;
pub use link_status::link_status;
pub use ninep_message::ninep_message;
pub use pci_device::pci_device;
pub use pci_socket::pci_socket;
pub use provider_wire::provider_wire;
pub use request_slot::request_slot;
pub use ring_reader::ring_reader;
pub use sdma_device::sdma_device;
pub use service_config::{is_service_config, service_config};

/// Modules of the command that the readers of its files use.
#[allow(dead_code, unused_imports, unused_macros, reason = "the command uses all of it")]
#[path = "../../../crates/cli/src/output.rs"]
mod output;
#[allow(dead_code, reason = "the command uses all of it")]
#[path = "../../../crates/cli/src/socket.rs"]
mod socket;

/// What the command's modules name as their error.
type CommandError = Box<dyn std::error::Error>;

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
