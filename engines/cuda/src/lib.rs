//! The copy engines of NVIDIA GPUs, over the CUDA driver API.
//!
//! ```text
//! Driver ─► Device ─┬─ VramPool ─► Vram ────┐
//!                   ├─ HostMemory (pinned) ─┴─► Place ─► Job ─┐
//!                   └─ Stream ◄──────────────────── submit ───┘ ─► poll: Completion
//! ```
//!
//! [`run`] is the engine process over these. It follows what frames clients have, and makes jobs of their requests.
//!
//! The driver is loaded when the program runs; building needs no CUDA toolkit. Nothing here was run on a GPU so far: the tests use a
//! fake of the driver (`tests/fake-cuda`), so they show that calls are made as the documentation says, not that a driver agrees,
//! and nothing about speed. The gather kernel's PTX is assembled, but never ran.
//!
//! A lost context (an error of the GPU) ends all jobs with [`JobError::Lost`]. The process must end then, because only that ends the
//! device's access to its memory; a new process starts afresh.

mod device;
mod driver;
mod engine;
mod frames;
mod gather;
mod host;
mod job;
mod parts;
mod pieces;
mod pinnings;
mod place;
mod stream;
mod vram;

pub use device::{Abilities, Device, DeviceError};
pub use driver::{CUDA_VERSION, CallError, Code, DeviceAddress, Driver, LIBRARY, LoadError};
pub use engine::{Options, run};
pub use host::HostMemory;
pub use job::{Job, JobError, Rows};
pub use pieces::Pieces;
pub use pinnings::NotPinned;
pub use place::Place;
pub use stream::{Completion, Counts, Settings, Stream, Ticket};
pub use vram::{Vram, VramError, VramPool};
