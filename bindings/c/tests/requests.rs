//! The conformance suite for requests, through the C interface.
//!
//! ```text
//! Draft ─► mf_range, mf_shape_2d, ... ─► mf_submit_* ─ mf_wait ─► mf_completion ─► Served ─ oracle
//! ```

#![allow(unsafe_code, reason = "the C interface takes pointers")]

use std::ptr::null;

use memferry_c::*;
use memferry_conformance::requests::{self, Draft, RequestFixture, Served, request_suite};
use memferry_transfer::{Count2d, Failure, Lists, Operation, Pattern, Plane, Segment, Side};

const NO_TICKET: mf_ticket = mf_ticket { tag: 0, queue: 0 };

/// A C program that the suite drives.
struct Program {
    frames: Vec<mf_frame>,
    queue: mf_queue,
    /// Every other request has a deadline, so that a worker serves it however short it is.
    submissions: u32,
}

fn last_message() -> String {
    // SAFETY: the thread's own string, copied at once.
    unsafe { std::ffi::CStr::from_ptr(mf_last_message()) }.to_str().unwrap().to_owned()
}

fn succeeded(error: mf_error) {
    assert_eq!(error, mf_error::None, "{}", last_message());
}

impl Program {
    fn open() -> Self {
        let mut client = mf_client::default();
        let mut queue = mf_queue::default();
        let mut frames = vec![mf_frame::default(); requests::FRAMES];
        // SAFETY: results go to variables of these types.
        unsafe {
            succeeded(mf_embed(&mut client));
            for frame in &mut frames {
                succeeded(mf_frame_allocate(client, requests::FRAME_BYTES, frame));
            }
            succeeded(mf_queue_open(client, 8, &mut queue));
        }
        succeeded(mf_disconnect(client));
        Self { frames, queue, submissions: 0 }
    }

    fn range(&self, place: &(usize, u64), length: u64) -> mf_range {
        mf_range { frame: self.frames[place.0], offset: place.1, length }
    }

    fn list(&self, segments: &[Segment<(usize, u64)>]) -> Vec<mf_range> {
        segments.iter().map(|segment| self.range(&segment.place, segment.length)).collect()
    }

    fn submit(&self, draft: &Draft, terms: *const mf_terms, ticket: &mut mf_ticket) -> mf_error {
        let range = |place, length| self.range(place, length);
        let queue = self.queue;
        // SAFETY: ranges, shapes and lists are variables of these types; `terms` is null or the caller's.
        unsafe {
            match draft {
                Operation::Nop => mf_submit_nop(queue, terms, ticket),
                Operation::Copy { source, destination, length } => {
                    mf_submit_copy(queue, range(source, *length), range(destination, *length), terms, ticket)
                }
                Operation::Fill { destination, length, pattern } => {
                    let (value, width) = pattern_parts(*pattern);
                    mf_submit_fill(queue, range(destination, *length), value, width, terms, ticket)
                }
                Operation::Copy2d { source, destination, shape } => {
                    let color = shape.transparent.map(|color| color.value());
                    let shape = flat(&shape.count, shape.source, shape.destination, color);
                    mf_submit_copy_2d(queue, range(source, 0), range(destination, 0), &shape, terms, ticket)
                }
                Operation::Fill2d { destination, shape } => {
                    let color = Some(shape.color.value());
                    let shape = flat(&shape.count, shape.destination, shape.destination, color);
                    mf_submit_fill_2d(queue, range(destination, 0), &shape, terms, ticket)
                }
                Operation::ScatterGather { lists } => self.submit_lists(lists, terms, ticket),
                Operation::Xor { .. }
                | Operation::Compare { .. }
                | Operation::Crc { .. }
                | Operation::CopyCrc { .. }
                | Operation::DualCopy { .. }
                | Operation::Synchronized { .. } => self.submit_computation(draft, terms, ticket),
            }
        }
    }

    fn submit_lists(
        &self,
        lists: &Lists<(usize, u64)>,
        terms: *const mf_terms,
        ticket: &mut mf_ticket,
    ) -> mf_error {
        let from = self.list(&lists.source);
        let to = self.list(&lists.destination);
        // SAFETY: arrays with their lengths; `terms` is null or the caller's.
        unsafe {
            mf_submit_scatter_gather(
                self.queue,
                from.as_ptr(),
                from.len(),
                to.as_ptr(),
                to.len(),
                terms,
                ticket,
            )
        }
    }

    fn submit_computation(&self, draft: &Draft, terms: *const mf_terms, ticket: &mut mf_ticket) -> mf_error {
        let range = |place, length| self.range(place, length);
        let queue = self.queue;
        // SAFETY: ranges and lists are variables of these types; `terms` is null or the caller's.
        unsafe {
            match draft {
                Operation::Xor { sources, destination, length } => {
                    let from: Vec<_> = sources.iter().map(|source| range(source, *length)).collect();
                    let to = range(destination, *length);
                    mf_submit_xor(queue, from.as_ptr(), from.len(), to, terms, ticket)
                }
                Operation::Compare { first, second, length } => {
                    mf_submit_compare(queue, range(first, *length), range(second, *length), terms, ticket)
                }
                Operation::Crc { source, length, seed } => {
                    mf_submit_crc32c(queue, range(source, *length), *seed, terms, ticket)
                }
                Operation::CopyCrc { source, destination, length, seed } => {
                    let from = range(source, *length);
                    let to = range(destination, *length);
                    mf_submit_copy_crc32c(queue, from, to, *seed, terms, ticket)
                }
                Operation::DualCopy { source, destinations: [one, other], length } => {
                    let one = range(one, *length);
                    let other = range(other, *length);
                    mf_submit_dual_copy(queue, range(source, *length), one, other, terms, ticket)
                }
                _ => unreachable!("{draft:?} is submitted elsewhere or has no C function"),
            }
        }
    }
}

/// Value and width of a pattern.
fn pattern_parts(pattern: Pattern) -> (u32, u32) {
    match pattern {
        Pattern::Byte(value) => (value.into(), 1),
        Pattern::Half(value) => (value.into(), 2),
        Pattern::Word(value) => (value, 4),
        Pattern::Color(color) => (color.value(), 4),
    }
}

fn flat(count: &Count2d, source: Plane, destination: Plane, color: Option<u32>) -> mf_shape_2d {
    let plane = |plane: Plane| mf_plane { start: plane.start, x_step: plane.x_step, y_step: plane.y_step };
    mf_shape_2d {
        pixel_bytes: count.pixel.bytes() as u32,
        x_count: count.x_count,
        y_count: count.y_count,
        transparent: color.is_some().into(),
        color: color.unwrap_or(0),
        reserved: 0,
        source: plane(source),
        destination: plane(destination),
    }
}

/// The outcome in a completion, for the failures that the suite provokes.
fn outcome(done: &mf_completion) -> Result<(), Failure> {
    let side = match done.side {
        mf_side::Destination => Side::Destination,
        mf_side::Source | mf_side::None => Side::Source,
    };
    match done.error {
        mf_error::None => Ok(()),
        mf_error::OutOfBounds => Err(Failure::OutOfBounds { side, available: done.detail }),
        mf_error::Overlap => Err(Failure::Overlap { operand: done.detail }),
        error => panic!("{error:?}: {}", last_message()),
    }
}

impl RequestFixture for Program {
    fn run(&mut self, draft: &Draft) -> Served {
        self.submissions += 1;
        let within_ns = 60_000_000_000;
        let size = size_of::<mf_terms>() as u32;
        let terms = mf_terms { size, flags: 0, hint: 0, priority: 0, within_ns };
        let terms = if self.submissions.is_multiple_of(2) { null() } else { &raw const terms };
        let mut ticket = NO_TICKET;
        let submitted = self.submit(draft, terms, &mut ticket);
        if submitted == mf_error::Length
            && let Operation::ScatterGather { lists } = draft
        {
            // The library refuses what the service would refuse.
            let outcome = Err(Failure::SegmentTotals { source_bytes: lists.total_bytes(Side::Source) });
            return Served { outcome, bytes_done: 0, value: 0 };
        }
        succeeded(submitted);
        let mut done = std::mem::MaybeUninit::<mf_completion>::uninit();
        // SAFETY: the result goes to a variable of its type.
        let ended = unsafe { mf_wait(self.queue, ticket, 20_000_000_000, done.as_mut_ptr()) };
        assert!(ended as i32 == 0 || ended as i32 >= 100, "{}", last_message());
        // SAFETY: filled whenever the transfer has ended, as checked above.
        let done = unsafe { done.assume_init() };
        assert_eq!((done.error, done.ticket), (ended, ticket));
        Served { outcome: outcome(&done), bytes_done: done.bytes_done, value: done.value }
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        // SAFETY: bytes with their length.
        succeeded(unsafe { mf_frame_write(self.frames[frame], 0, bytes.as_ptr().cast(), bytes.len()) });
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        let mut bytes = vec![0; requests::FRAME_BYTES as usize];
        // SAFETY: bytes with their length.
        succeeded(unsafe { mf_frame_read(self.frames[frame], 0, bytes.as_mut_ptr().cast(), bytes.len()) });
        bytes
    }
}

#[test]
fn c_requests_match_the_oracle() {
    request_suite(Program::open(), 200);
}
