//! Submitting: one function for each kind of transfer.
//!
//! ```text
//! mf_range, ... ─► FrameRange, ... ─► Transfer ─ terms ─► Queue::submit, or stage ─► mf_ticket
//! ```
//!
//! Frames are held by the transfer until its completion was taken. Where a partial overlap has no defined result (xor, dual copy)
//! it is refused here; who names one frame by two handles is not found out.

use memferry::{FrameRange, Pattern, Transfer, turned_copy};

use crate::boundary::{Out, array, call, input};
use crate::error::{Fault, mf_error};
use crate::queue::with;
use crate::table::range;
use crate::types::{color, mf_image, mf_queue, mf_range, mf_shape_2d, mf_terms, mf_ticket, turn};

/// Segments of one list, or sources of one xor, that are read from C's memory at most.
const MOST: usize = 1024;

fn submit(
    queue: mf_queue,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
    describe: impl FnOnce() -> Result<Transfer, Fault>,
) -> mf_error {
    call(|| {
        let to = Out::optional("ticket", ticket)?;
        let terms = if terms.is_null() { mf_terms::PLAIN } else { input("terms", terms)? };
        let ticket = with(queue, |queue| {
            let transfer = terms.apply(describe()?)?;
            let submitted = if terms.staged() { queue.stage(transfer) } else { queue.submit(transfer) };
            submitted.map_err(|error| error.reason.into())
        })?;
        if let Some(to) = to {
            to.store(mf_ticket::of(queue, ticket));
        }
        Ok(())
    })
}

/// Whether two ranges have some bytes in common but are not the same.
fn refuse_partial_overlap(one: &FrameRange, other: &FrameRange) -> Result<(), Fault> {
    let same_frame = one.frame().handle() == other.frame().handle();
    let end = |range: &FrameRange| range.offset().saturating_add(range.length());
    let apart = one.offset() >= end(other) || other.offset() >= end(one);
    if !same_frame || apart || one.offset() == other.offset() {
        return Ok(());
    }
    let message = format!(
        "{} bytes at {} and {} at {} of one frame overlap in part; the result would be undefined",
        one.length(),
        one.offset(),
        other.length(),
        other.offset()
    );
    Err(Fault::new(mf_error::Overlap, message))
}

fn ranges(what: &str, list: *const mf_range, count: usize) -> Result<Vec<FrameRange>, Fault> {
    array(what, list, count, MOST)?.into_iter().map(range).collect()
}

/// Submits what moves nothing. With MF_FLAG_FENCED it is the end of all that came before.
///
/// For this and every mf_submit_ function: `terms` may be null, `ticket` may be null for who takes completions by mf_poll. What is
/// outside its frame or lacks a right is told by the completion. MF_ERROR_BAD_HANDLE, MF_ERROR_QUEUE_FULL,
/// MF_ERROR_FOREIGN_FRAME, MF_ERROR_IN_USE, MF_ERROR_SERVICE_LOST, MF_ERROR_FORKED, MF_ERROR_VERSION (terms of another size),
/// MF_ERROR_ARGUMENT (terms that there are not), MF_ERROR_OUT_OF_RANGE (MF_TO_END from beyond the end). One thread at a time in a
/// queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_nop(
    queue: mf_queue,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::nop()))
}

/// Submits a copy of the whole source to the start of the destination; they may overlap, as with memmove.
///
/// MF_ERROR_LENGTH when the destination is shorter, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_copy(
    queue: mf_queue,
    source: mf_range,
    destination: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::copy(&range(source)?, &range(destination)?)?))
}

/// Submits a fill of the destination with a pattern of `pattern_bytes` 1, 2 or 4, little-endian, which must divide its length.
///
/// MF_ERROR_ARGUMENT for another width or a pattern too large for it, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_fill(
    queue: mf_queue,
    destination: mf_range,
    pattern: u32,
    pattern_bytes: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let pattern = match (pattern_bytes, u8::try_from(pattern), u16::try_from(pattern)) {
            (1, Ok(byte), _) => Pattern::Byte(byte),
            (2, _, Ok(half)) => Pattern::Half(half),
            (4, ..) => Pattern::Word(pattern),
            _ => {
                let message =
                    format!("{pattern:#x} is no pattern of {pattern_bytes} bytes; these are 1, 2 or 4");
                return Err(Fault::new(mf_error::Argument, message));
            }
        };
        Ok(Transfer::fill(&range(destination)?, pattern))
    })
}

/// Submits a move of pixels (mem_copy_2d of Wicki 2014, listing 4). The walks' starts count from the ranges' offsets, and the walks
/// have to stay in the frames; the ranges' lengths are not looked at.
///
/// MF_ERROR_ARGUMENT, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_copy_2d(
    queue: mf_queue,
    source: mf_range,
    destination: mf_range,
    shape: *const mf_shape_2d,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let shape = input("shape", shape)?.copy()?;
        Ok(Transfer::copy_2d(&range(source)?, &range(destination)?, shape))
    })
}

/// Submits a fill of pixels with one colour (mem_fill_2d of Wicki 2014, listing 4), as mf_submit_copy_2d.
///
/// As mf_submit_copy_2d. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_fill_2d(
    queue: mf_queue,
    destination: mf_range,
    shape: *const mf_shape_2d,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let shape = input("shape", shape)?;
        let count = shape.count()?;
        let color = color(shape.color)?;
        let fill = memferry::Fill2d { count, destination: shape.destination.plane(), color };
        Ok(Transfer::fill_2d(&range(destination)?, fill))
    })
}

/// Submits a copy of a picture, turned by one of mf_turn. With `transparent` not 0, source pixels of `color` are left out. The
/// destination has to have the size that the turn gives. The pictures count from the ranges' offsets and have to stay in the frames;
/// the ranges' lengths are not looked at.
///
/// MF_ERROR_ARGUMENT, MF_ERROR_LENGTH, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_turn(
    queue: mf_queue,
    source: mf_range,
    source_image: *const mf_image,
    turn: u32,
    destination: mf_range,
    destination_image: *const mf_image,
    transparent: u32,
    color: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let from = input("source_image", source_image)?.image()?;
        let to = input("destination_image", destination_image)?.image()?;
        let key = if transparent == 0 { None } else { Some(self::color(color)?) };
        let shape = turned_copy(&from, self::turn(turn)?, &to, key)?;
        Ok(Transfer::copy_2d(&range(source)?, &range(destination)?, shape))
    })
}

/// Submits a move of the bytes of the source's ranges, in order, to those of the destination, in order. The lists may be cut
/// differently and hold equally many bytes; up to 1024 ranges each.
///
/// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_scatter_gather(
    queue: mf_queue,
    sources: *const mf_range,
    source_count: usize,
    destinations: *const mf_range,
    destination_count: usize,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let from = ranges("sources", sources, source_count)?;
        let to = ranges("destinations", destinations, destination_count)?;
        Ok(Transfer::scatter_gather(&from, &to)?)
    })
}

/// Submits, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination, which may be one of them.
///
/// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, MF_ERROR_OVERLAP, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_xor(
    queue: mf_queue,
    sources: *const mf_range,
    source_count: usize,
    destination: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let from = ranges("sources", sources, source_count)?;
        let to = range(destination)?;
        from.iter().try_for_each(|source| refuse_partial_overlap(source, &to))?;
        Ok(Transfer::xor(&from, &to)?)
    })
}

/// Submits a comparison. The completion's value is the offset of the first byte that differs, or the length.
///
/// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_compare(
    queue: mf_queue,
    one: mf_range,
    other: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::compare(&range(one)?, &range(other)?)?))
}

/// Submits a CRC-32C of the source, going on from `seed`, the CRC of what came before, 0 to begin. It is the completion's value.
///
/// As mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_crc32c(
    queue: mf_queue,
    source: mf_range,
    seed: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::crc32c(&range(source)?, seed)))
}

/// Submits a copy with the CRC-32C of the bytes as they were written.
///
/// As mf_submit_copy. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_copy_crc32c(
    queue: mf_queue,
    source: mf_range,
    destination: mf_range,
    seed: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::copy_crc32c(&range(source)?, &range(destination)?, seed)?))
}

/// Submits a copy of one source to the start of two destinations, none of which may overlap another in part.
///
/// MF_ERROR_LENGTH, MF_ERROR_OVERLAP, and as mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_dual_copy(
    queue: mf_queue,
    source: mf_range,
    first: mf_range,
    second: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || {
        let from = range(source)?;
        let one = range(first)?;
        let other = range(second)?;
        let written = |to: &FrameRange| to.frame().range(to.offset(), from.length());
        let pairs = [
            (from.clone(), written(&one)),
            (from.clone(), written(&other)),
            (written(&one), written(&other)),
        ];
        pairs.iter().try_for_each(|(left, right)| refuse_partial_overlap(left, right))?;
        Ok(Transfer::dual_copy(&from, [&one, &other])?)
    })
}

/// Begins a loop over the linked transfers submitted next, up to the first that is not linked: `rounds` times, or until mf_stop
/// when 0. All end when the loop has ended; the value of this one's completion is the number of whole rounds.
///
/// As mf_submit_nop. One thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_repeat(
    queue: mf_queue,
    rounds: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(Transfer::repeat(rounds)))
}
