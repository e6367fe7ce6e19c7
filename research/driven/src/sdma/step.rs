//! A step: one thing that the device does without the processor, and its share of the operation.
//!
//! ```text
//! copy ─ chunks ─► Chunks ─ next_chunk ─► Step ─► Work: a hardware transfer or a linked list
//! ```
//!
//! `plan`, `lists` and `synchronized` create steps; the engine starts them.

use memferry_drivers::sdma::{self, ChannelConfig, Element, LinearPieces, Piece, Segment, TransferSize};
use memferry_transfer::PixelSize;

use memferry_driven_engines::copies::{Chunks, Part};

/// Work of the device for one step.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Transfer(Box<ChannelConfig>),
    /// A linked list of transfers.
    List(Vec<Segment>),
}

#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) work: Work,
    /// Bytes of the operation completed with this step, including those of earlier steps that belong to it.
    pub(super) bytes: u64,
    /// Whether the operation may end after this step.
    pub(super) whole: bool,
}

impl Step {
    pub(super) fn new(operation: sdma::Operation, piece: Piece, bytes: u64, whole: bool) -> Self {
        Self { work: Work::Transfer(Box::new(ChannelConfig::new(operation, piece))), bytes, whole }
    }
}

/// Makes a step of a copy's next chunk.
pub(super) fn next_chunk(chunks: &mut Chunks) -> Option<Step> {
    let part = chunks.next()?;
    let piece = LinearPieces::copy(part.source, part.destination, part.bytes).ok()?.next()?;
    // A size that does not factor takes several transfers: the next step continues where this one ends.
    let bytes = if chunks.is_down() { part.bytes } else { piece.size.bytes() };
    chunks.moved(bytes);
    Some(Step::new(sdma::Operation::Copy, piece, bytes, true))
}

/// Splits a copy. Downward, each chunk must be a single transfer, so it has at most as many bytes as a frame has elements.
pub(super) fn chunks(whole: Part, limit: u64) -> Chunks {
    Chunks::new(whole, limit, u64::from(TransferSize::ELEMENTS_LIMIT))
}

pub(super) fn element(size: PixelSize) -> Element {
    match size {
        PixelSize::Bits8 => Element::Bits8,
        PixelSize::Bits16 => Element::Bits16,
        PixelSize::Bits32 => Element::Bits32,
    }
}
