//! A fake of the CUDA driver API: `libcuda.so.1` for tests on machines without a GPU.
//!
//! ```text
//! VRAM ───────────► memfds, mapped into reserved address ranges; exported and imported as POSIX descriptors
//! device address ─► CPU address with a bit that no CPU address has: mixing them up is refused, not overlooked
//! stream ─────────► a thread that runs commands in order
//! kernel ─────────► a twin in Rust, found by its name
//! ```
//!
//! It has the calls that the engine and the Python package use, and the later version of one with other operands, which the engine must not get. Exported
//! names, versions, structures and result codes are those of NVIDIA's public documentation. Where CUDA leaves a misuse undefined, the fake refuses it: overlapping copies, operands of a batch that
//! are not pinned, work on memory that was unmapped before it ran. A batch runs in reverse, so that a dependency between its
//! copies shows. It says nothing about the speed of a GPU, and nothing about a real driver's faults.
//!
//! Each loaded copy of the library is a driver with a state of its own. Faults: [`faults`].

#![expect(
    unsafe_code,
    reason = "exported C functions, and the memory that their callers name: a test's own process"
)]
#![allow(non_snake_case, reason = "the exported names are those of the driver API")]

pub mod faults;

mod codes;
mod commands;
mod context;
mod copies;
mod memory;
mod modules;
mod space;
mod streams;
mod symbols;
