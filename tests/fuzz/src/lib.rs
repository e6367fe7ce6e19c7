//! The bodies of memferry's fuzz targets: each reads bytes, drives one boundary with them, and panics on a broken promise.
//!
//! ```text
//! bytes ──► Input ──► request_slot   decoders of both slot kinds     what decodes encodes again, to an equal value
//!                ├──► ring_reader    ServiceEnd over hostile memory  slots as they lie there, each position once
//!                ├──► geometry       Plane::extent                   the bytes a literal walk touches
//! bytes ─────────┼──► control_message  decoders of the socket        what decodes encodes again, to an equal value
//! bytes ─────────┴──► ninep_message    codec of the file server        what decodes encodes again, to the same bytes
//! ```
//!
//! libFuzzer calls them through `fuzz_targets/`; `tests/corpus.rs` replays the committed seeds on stable. A body takes every
//! input: what is missing is zero. No file, process or socket is touched.

mod control_message;
mod geometry;
mod input;
mod ninep_message;
mod request_slot;
mod ring_reader;

pub use control_message::control_message;
pub use geometry::geometry;
pub use ninep_message::ninep_message;
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
