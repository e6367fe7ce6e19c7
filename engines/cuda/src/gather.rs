//! The kernel that copies many small pieces in one go, in PTX.
//!
//! Copy engines need a command for each piece. The kernel reads a table of pieces and moves them with all the device's processors,
//! which also reach pinned host memory. It takes these from other work on the GPU, so it is for pieces below a size that is tuned.
//!
//! The tests assemble the text with `ptxas` where that is there, and run a twin of it; on a machine with a GPU, itself.

use std::ffi::CStr;

use crate::driver::{DeviceAddress, PinnedWords};

pub(crate) const NAME: &CStr = c"memferry_gather";

pub(crate) const PTX: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("gather.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the PTX has a NUL"),
    };

/// Pieces of one table.
pub(crate) const TABLE_PIECES: usize = 1024;
/// Words of a piece in the table: source, destination and length, of 64 bits each.
const PIECE_WORDS: usize = 6;
/// Words of a table.
pub(crate) const TABLE_WORDS: usize = TABLE_PIECES * PIECE_WORDS;
/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

/// Writes a piece into a table that begins at `first_word`.
pub(crate) fn write_piece(
    words: &PinnedWords,
    first_word: usize,
    index: usize,
    (from, to, length): (DeviceAddress, DeviceAddress, u64),
) {
    let at = first_word + index * PIECE_WORDS;
    words.store64(at, from.0);
    words.store64(at + 2, to.0);
    words.store64(at + 4, length);
}

/// Blocks for so many pieces: two for each processor keep it busy while one waits for memory.
pub(crate) fn blocks(pieces: usize, multiprocessors: u32) -> u32 {
    u32::try_from(pieces).unwrap_or(u32::MAX).clamp(1, 2 * multiprocessors.max(1))
}
