//! Submitting: one function for each kind of transfer.
//!
//! ```text
//! mf_range, ... ─► Region, ... ─► Transfer ─ terms ─► Queue::submit, or stage ─► mf_ticket
//! ```
//!
//! A transfer keeps its frames until its completion was taken.

use memferry::{
    Fill2d, Pattern, Region, Transfer, compare, copy, copy_2d, copy_crc32c, crc32c, dual_copy, fill, fill_2d,
    nop, repeat, scatter_gather, turned_copy, xor,
};

use crate::boundary::{Out, array, call, input};
use crate::error::{Fault, mf_error};
use crate::queue::with;
use crate::table::region;
use crate::types::{color, mf_image, mf_queue, mf_range, mf_shape_2d, mf_terms, mf_ticket, turn};

/// Longest list of ranges that is read from C's memory.
const MAX_RANGES: usize = 1024;

fn submit<T>(
    queue: mf_queue,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
    describe: impl FnOnce() -> Result<Transfer<T>, Fault>,
) -> mf_error {
    call(|| {
        let to = Out::optional("ticket", ticket)?;
        let terms = if terms.is_null() { mf_terms::PLAIN } else { input("terms", terms)? };
        let id = with(queue, |open| {
            let transfer = terms.apply(describe()?)?;
            let submitted = if terms.staged() { open.stage(transfer) } else { open.submit(transfer) };
            submitted.map_err(|error| error.reason.into())
        })?
        .id();
        if let Some(to) = to {
            to.store(mf_ticket::of(queue, id));
        }
        Ok(())
    })
}

fn regions(what: &str, list: *const mf_range, count: usize) -> Result<Vec<Region>, Fault> {
    array(what, list, count, MAX_RANGES)?.into_iter().map(region).collect()
}

/// Submits a transfer that moves nothing. With MF_FLAG_FENCED it ends when all earlier ones have ended.
///
/// For this and every mf_submit_ function: `terms` may be null; `ticket` may be null in a program that takes completions by mf_poll.
/// The transfer keeps its frames until its completion was taken. The completion reports ranges outside their frames and missing
/// rights.
///
/// MF_ERROR_BAD_HANDLE, MF_ERROR_QUEUE_FULL,
/// MF_ERROR_FOREIGN_FRAME, MF_ERROR_IN_USE, MF_ERROR_SERVICE_LOST, MF_ERROR_FORKED, MF_ERROR_VERSION (terms of another size),
/// MF_ERROR_ARGUMENT (unknown terms), MF_ERROR_OUT_OF_RANGE (MF_TO_END from beyond the end); nothing was submitted. One thread at a
/// time in a queue.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_nop(
    queue: mf_queue,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(nop()))
}

/// Submits a copy of the whole source to the start of the destination; they may overlap, as with memmove.
///
/// MF_ERROR_LENGTH when the destination is shorter, and as mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_copy(
    queue: mf_queue,
    source: mf_range,
    destination: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(copy(region(source)?, region(destination)?)))
}

/// Submits a fill of the destination with a pattern of `pattern_bytes` 1, 2 or 4, little-endian, which must divide its length.
///
/// MF_ERROR_ARGUMENT for another width or a pattern too large for it, and as mf_submit_nop. One thread at a time.
#[must_use]
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
                    format!("{pattern:#x} does not fit a pattern of {pattern_bytes} bytes; take 1, 2 or 4");
                return Err(Fault::new(mf_error::Argument, message));
            }
        };
        Ok(fill(region(destination)?, pattern))
    })
}

/// Submits a move of pixels (mem_copy_2d of Wicki 2014, listing 4). The walks' starts count from the ranges' offsets, and the walks
/// have to stay in the frames; the ranges' lengths are ignored. A picture may be shifted over itself; if other walks have bytes in
/// common, the transfer fails with MF_ERROR_OVERLAP.
///
/// MF_ERROR_ARGUMENT, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
#[must_use]
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
        Ok(copy_2d(region(source)?, region(destination)?, shape))
    })
}

/// Submits a fill of pixels with one colour (mem_fill_2d of Wicki 2014, listing 4), as mf_submit_copy_2d.
///
/// As mf_submit_copy_2d. One thread at a time.
#[must_use]
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
        let filled = Fill2d { count, destination: shape.destination.plane(), color };
        Ok(fill_2d(region(destination)?, filled))
    })
}

/// Submits a copy of a picture, turned by one of mf_turn. With `transparent` not 0, source pixels of `color` are left out. The
/// destination must have the size that the turn gives. The pictures count from the ranges' offsets and have to stay in the frames;
/// the ranges' lengths are ignored. A picture that would be turned in its own place fails with MF_ERROR_OVERLAP.
///
/// MF_ERROR_ARGUMENT, MF_ERROR_LENGTH, MF_ERROR_OUT_OF_RANGE, and as mf_submit_nop. One thread at a time.
#[must_use]
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
        Ok(copy_2d(region(source)?, region(destination)?, shape))
    })
}

/// Submits a move of the bytes of the source ranges, in order, to the destination ranges, in order. The lists may be cut
/// differently and must hold equally many bytes; up to 1024 ranges each.
///
/// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
#[must_use]
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
        let from = regions("sources", sources, source_count)?;
        let to = regions("destinations", destinations, destination_count)?;
        Ok(scatter_gather(from, to))
    })
}

/// Submits, byte by byte, the exclusive or of 1 to 64 sources, all as long as the destination. The destination may be one of them;
/// where it overlaps one in part, the transfer fails with MF_ERROR_OVERLAP.
///
/// MF_ERROR_LENGTH, MF_ERROR_ARGUMENT, and as mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_xor(
    queue: mf_queue,
    sources: *const mf_range,
    source_count: usize,
    destination: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(xor(regions("sources", sources, source_count)?, region(destination)?)))
}

/// Submits a comparison. The completion's value is the offset of the first byte that differs, or the length.
///
/// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_compare(
    queue: mf_queue,
    one: mf_range,
    other: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(compare(region(one)?, region(other)?)))
}

/// Submits a CRC-32C of the source. `seed` is the CRC of the bytes before it, 0 for none. The CRC is the completion's value.
///
/// As mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_crc32c(
    queue: mf_queue,
    source: mf_range,
    seed: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(crc32c(region(source)?).seed(seed)))
}

/// Submits a copy that also computes the CRC-32C of the bytes written.
///
/// As mf_submit_copy. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_copy_crc32c(
    queue: mf_queue,
    source: mf_range,
    destination: mf_range,
    seed: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(copy_crc32c(region(source)?, region(destination)?).seed(seed)))
}

/// Submits a copy of one source to the start of two destinations. Where two of the three overlap in part, the transfer fails with
/// MF_ERROR_OVERLAP.
///
/// MF_ERROR_LENGTH, and as mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_dual_copy(
    queue: mf_queue,
    source: mf_range,
    first: mf_range,
    second: mf_range,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(dual_copy(region(source)?, [region(first)?, region(second)?])))
}

/// Begins a loop over the linked transfers submitted next, up to the first that is not linked: `rounds` times, or, when `rounds`
/// is 0, until mf_stop or a stop of the service. All end when the loop has ended; the value of the loop's own completion is the
/// number of whole rounds.
///
/// As mf_submit_nop. One thread at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mf_submit_repeat(
    queue: mf_queue,
    rounds: u32,
    terms: *const mf_terms,
    ticket: *mut mf_ticket,
) -> mf_error {
    submit(queue, terms, ticket, || Ok(repeat(rounds)))
}
