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
//! The driver is loaded when the program runs; building needs no CUDA toolkit. The tests use a fake of the driver (`tests/fake-cuda`), or a
//! real one that `MEMFERRY_TEST_CUDA_LIBRARY` names. Faults, such as lost contexts, have been seen on the fake only.
//!
//! A lost context (an error of the GPU) ends all jobs with [`JobError::Lost`]. The process must end then, because only that ends the
//! device's access to its memory; a new process starts afresh.

mod checks;
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

pub use checks::JobError;
pub use device::{Abilities, Device, DeviceError};
pub use driver::{CUDA_VERSION, CallError, Code, DeviceAddress, Driver, LIBRARY, LoadError};
pub use engine::{Options, run};
pub use host::HostMemory;
pub use job::{Job, Rows};
pub use pieces::Pieces;
pub use pinnings::NotPinned;
pub use place::Place;
pub use stream::{Completion, Counts, Settings, Stream, Ticket};
pub use vram::{Vram, VramError, VramPool};
