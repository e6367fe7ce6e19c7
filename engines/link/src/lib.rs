//! The link of a node to others: its users' grants reach users there, and theirs reach users here.
//!
//! ```text
//! here                                                          there
//! client ─ request ─► service ─► engine: Requests ─ Access ─►  Owner: a client of its service, which checks and moves the bytes
//!                                  local frames   ◄─ Done ──    into memory of the link
//!        Config: peers, keys ─► Connections: Noise over TCP ─► messages, and bytes where encryption is asked for
//!                                                   Ucx ─────► bytes, in clear text
//! ```
//!
//! The process is an engine of its service and a client of it at once. As an engine it has the frames of users that its service shows it; as a
//! client it has what was granted to users of other nodes, and nothing else. A link believes nothing that another sends, but which of
//! that node's users asks.
//!
//! All of this is done by one thread; channels between clients have another one (`channels`). It waits for nothing but answers of its own service: to one grant of each peer that is taken up, and a few
//! that are given back, in a turn. Other threads open connections, encrypt and decrypt.

mod backlog;
mod channels;
mod config;
mod connections;
mod direct;
mod divide;
mod engine;
mod frames;
mod links;
pub mod message;
mod node;
mod owner;
mod packet;
mod report;
mod requests;
mod rests;
mod secure;
mod status;
mod strangers;
mod threads;
mod traffic;
mod turns;
mod ucx;

#[doc(hidden)]
pub use channels::Stage;
pub use config::{Config, ConfigError, KeyPair, Peer};
pub use connections::{Greeting, UcxPeer};
pub use engine::{Arguments, Error, Options, Task, execute, run};
// What a peer needs, also for tests that play a hostile one.
pub use owner::share;
pub use secure::{HandshakeError, PROTOCOL, Reader, Secured, Writer, accept, open};
pub use status::{StatusError, StatusOptions, ask, show};
pub use traffic::{PeerStatus, Requests, Snapshot, TransferStatus, Transport};
pub use ucx::LIBRARY;
