//! Bulk transfer and messages between two processes.
//!
//! ```no_run
//! use memferry::Client;
//! use memferry_bulk::{Content, Listener, Options, SharedFrame, connect};
//!
//! # fn consumer() -> Result<(), Box<dyn std::error::Error>> {
//! // One process receives:
//! let client = Client::connect("/run/memferry.sock")?;
//! let (_, mut receiver) = Listener::bind("/tmp/frames.sock")?.accept(&client, Options::default(), None)?;
//! let own = client.frame(1 << 20).alloc()?;
//! loop {
//!     match receiver.receive(None)?.content {
//!         Content::Bytes(text) => println!("{} bytes", text.len()),
//!         Content::Range(lent) => {
//!             receiver.pull(lent, &own)?; // the engine copies it
//!             println!("{} bytes copied", receiver.finish(None)?.length);
//!         }
//!     }
//! }
//! # }
//! # fn producer() -> Result<(), Box<dyn std::error::Error>> {
//! // The other process sends:
//! let client = Client::connect("/run/memferry.sock")?;
//! let (mut sender, _) = connect("/tmp/frames.sock", &client, Options::default())?;
//! let frame = SharedFrame::allocate(&client, 1 << 20)?;
//! sender.send(1, b"a picture follows", None)?;
//! frame.frame().write(0, b"...")?;
//! let loan = sender.lend(2, frame.frame(), None)?;
//! sender.settle(loan, None)?; // the frame may be written again
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//! connection  connects two processes through a socket ─► (Sender, Receiver) on each side
//! sender      sends bytes through shared memory; lends ranges of frames, granted or mapped
//! exports     registration cache: which memory the other end already has
//! receiver    receives bytes, or a LentFrame to pull by the engine or to copy with this CPU
//! remote      connects to a process of another node, through the links of both
//! relay       what a link does for that: it carries slots, bytes and counts between two ends
//! bulk        producer and consumer over a set of frames, in the modes of Wicki 2014, section 4.3
//! ```
//!
//! The other process is not trusted: its data is copied before it is checked, and it cannot write to this process's memory.
//!
//! # What the other process can delay
//!
//! No call waits for the other process beyond the call's own limit, but for two milliseconds while memory that it sent is
//! admitted (checked, sealed and mapped). The other process can hold that memory so that admitting it takes as long as it likes:
//! it then runs on a helper thread, and after [`Options::admission`] the connection ends with [`ReceiveError::Held`].
//! [`connect`], [`over`] and [`Listener::accept`] wait up to [`Options::handshake`] for the process that they connect to, so
//! accept on a thread of its own. A helper that is stuck is left behind and counted; a user whose memory holds eight of them is
//! refused. While one is stuck this process cannot end, not even by SIGKILL.
//!
//! A sender or a receiver may move to another thread but serves one thread at a time. A forked child can use neither. There is
//! no discovery and no encryption. The permissions of the socket's directory decide who may connect.

// Documentation examples must not ignore a `Result`.
#![doc(test(attr(deny(unused_must_use))))]

mod admission;
mod area;
mod buffer;
mod bulk;
mod closing;
mod connection;
mod error;
mod exports;
mod frames;
mod lent;
mod peer;
mod receiver;
pub mod relay;
mod remote;
mod retirement;
mod sender;
mod socket;
mod tally;
#[cfg(test)]
mod tests;
mod unrevoked;
mod wire;

pub use bulk::{Consumer, Mode, Producer, PutError, TakeError, Taken};
pub use connection::{Listener, Options, connect, over};
pub use error::{ConnectError, FinishError, LinkRefusal, PullReason, ReadError, ReceiveError, SendError};
pub use exports::ExportStatistics;
pub use frames::SharedFrame;
pub use lent::{LentFrame, PullError};
pub use peer::RemoteUser;
pub use receiver::{Content, Message, Pulled, Receiver};
pub use remote::{CHANNELS, RemoteListener, connect_remote};
pub use sender::{Loan, Sender};
pub use wire::Violation;

/// Runs the examples of docs/bulk.md as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/bulk.md")]
mod document {}
