//! An engine process that submits to work queues of Intel's Data Streaming Accelerator (DSA), which Linux's driver idxd gives to users.
//!
//! ```text
//! Engine::next ─► Server ─► DsaEngine, one for each work queue ─► portal: MOVDIR64B, ENQCMD, or write() on /dev/dsa/wqD.Q
//!    frames ─► Prefault                 └─ completion records: memory of this process
//! ```
//!
//! The device uses the addresses of this process (shared virtual memory), so a frame needs no mapping of its own: its pages are made
//! present ahead, and one that is absent all the same ends its descriptor early. The engine touches the page, and has the device go on.
//!
//! Invariant Q: a descriptor names only memory of a job that the engine holds, and the queue's own records and lists; a job is
//! completed when the device has nothing of it any more. If that cannot be known, the process ends, which takes its memory from the device.
//!
//! [`Kernel`] has what the kernel does. The program uses [`Linux`]; tests put a model of the device behind it. Only `linux` has unsafe code.
//! It never ran on silicon: no such machine was available.

mod engine;
mod error;
mod frames;
mod kernel;
mod linux;
mod memory;
mod name;
mod open;
mod server;
mod settings;

pub use engine::{Options, RunError, run, run_on};
pub use error::OpenError;
pub use kernel::{Kernel, Mode, NotMapped, QueueFile};
pub use linux::{Instructions, Linux, Mapped, OpenQueue};
pub use name::{BadName, QueueName};
pub use server::ServeError;
pub use settings::Settings;
