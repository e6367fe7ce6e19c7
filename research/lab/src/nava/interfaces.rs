//! The three interfaces of section 3 on a machine with a limited DMA controller, explored.
//!
//! ```text
//! every mapping × start × length × interface × read or write ──► kernel: does it qualify? ─ yes ─► controller moves it
//!       │ zero-knowledge may remap pages first: frames that the controller reaches       └ no: kernel buffer, copied
//!       │ pool: buffers of the project's pool; no frames until the first fault             (complete-knowledge: refused,
//!       └─────────────────────────────────────────────────────────────────────────────────── then copied)
//! ──► memory and disk are right everywhere, and a qualifying buffer was not copied
//! ```
//!
//! The rule of alignment by which the kernel decides, and the buffers of the pool with their addresses, are the project's own
//! code ([`Alignments::check`], [`Pool`]); frames, page tables, controller and disk are the model, and what the controller does
//! to memory is what decides. An error in the rule, or a pool that hands out an uneven buffer, therefore fails the claim.
//!
//! The machine is small: pages of 256 bytes; the controller reaches the lower half of memory, drops the low and the high bits
//! of an address, and knows no page tables (the paper: the first 8, 16 or 24 MB, aligned to 64 bytes). Without the kernel's
//! check the same exploration finds destroyed memory. The project's own pool and interfaces are tried live, on a file.

use std::io::Write;

use memferry_pool::{Alignments, Buffer as Pooled, Direct, DirectError, Options, Pool, PoolError, Way};

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

pub(super) const JUDGES: [Judge; 2] = [
    Judge { claim: "nava-interfaces", place: Place::Simulated, judge: explored },
    Judge { claim: "nava-interfaces", place: Place::Live, judge: live },
];

const PAGE: usize = 256;
const PAGES: usize = 8;
/// Bytes that the controller reaches.
const REACH: usize = PAGE * PAGES / 2;
/// Alignment of the controller's addresses.
const ALIGN: usize = 64;
/// What the controller requires of a transfer.
const REQUIRED: Alignments = Alignments { memory: ALIGN, offset: ALIGN };
/// Pages of a buffer's mapping.
const MAPPED: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    Zero,
    /// Zero-knowledge; the kernel first moves pages into frames that the controller reaches, if enough are free.
    Remapping,
    Complete,
    Pool,
}

/// Whose bytes move: the disk's into the buffer, or the buffer's onto the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// The course of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Went {
    Directly,
    Copied,
    /// Refused with the reason, and then read by the ordinary interface.
    RefusedThenCopied,
}

/// A buffer of a process: pages in address order, each present or absent.
#[derive(Clone, Copy, Debug)]
struct Buffer {
    pages: [Option<usize>; MAPPED],
    start: usize,
    length: usize,
}

impl Buffer {
    /// The position of a byte in memory, if all pages are present.
    fn place(&self, byte: usize) -> Option<usize> {
        let at = self.start + byte;
        self.pages[at / PAGE].map(|page| page * PAGE + at % PAGE)
    }

    /// The address for the controller, if the buffer is contiguous, present, aligned and within reach.
    fn qualifies(&self) -> Option<usize> {
        let first = self.place(0)?;
        let is_one = (0..self.length).all(|byte| self.place(byte) == Some(first + byte));
        let fits = REQUIRED.check(first, self.length, 0).is_ok() && first + self.length <= REACH;
        (is_one && fits).then_some(first)
    }
}

/// The bytes that the controller touches for the address on its pins.
fn reached(address: usize, length: usize) -> impl Iterator<Item = usize> {
    let address = address / ALIGN * ALIGN % REACH;
    (0..length).map(move |byte| (address + byte) % REACH)
}

/// The content of the disk, or what a process wants to write, at a byte.
fn content(byte: usize) -> u8 {
    (byte % 251) as u8 | 0x80
}

/// What else a page of a process holds: a transfer must leave it alone.
fn other(page: usize, byte: usize) -> u8 {
    (page * 31 + byte) as u8 & 0x7F
}

/// Memory, the disk's block, and what both should be in the end.
struct Machine {
    memory: Vec<u8>,
    disk: Vec<u8>,
    buffer: Buffer,
}

impl Machine {
    /// Each page of the buffer, by its place in the mapping, holds bytes of its own; a write's bytes are in the buffer.
    fn new(buffer: Buffer, direction: Direction) -> Self {
        let mut machine = Self { memory: vec![0; PAGE * PAGES], disk: vec![0; buffer.length], buffer };
        for (place, page) in buffer.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            for byte in 0..PAGE {
                machine.memory[page * PAGE + byte] = other(place, byte);
            }
        }
        match direction {
            Direction::Read => machine.disk = (0..buffer.length).map(content).collect(),
            Direction::Write => machine.copy_in(),
        }
        machine
    }

    /// The process stores its bytes where pages are present.
    fn copy_in(&mut self) {
        for byte in 0..self.buffer.length {
            if let Some(place) = self.buffer.place(byte) {
                self.memory[place] = content(byte);
            }
        }
    }

    fn free(&self) -> Vec<usize> {
        (0..PAGES).filter(|page| !self.buffer.pages.contains(&Some(*page))).collect()
    }

    /// Moves the pages to frames in a row within reach, if so many are free. The contents go with them.
    fn remap(&mut self) {
        let free = self.free();
        let wanted = (self.buffer.start + self.buffer.length).div_ceil(PAGE);
        let is_free = |first: usize| (first..first + wanted).all(|page| free.contains(&page));
        let Some(first) = (0..=(REACH / PAGE).saturating_sub(wanted)).find(|first| is_free(*first)) else {
            return;
        };
        for (place, page) in self.buffer.pages.iter_mut().take(wanted).enumerate() {
            let to = first + place;
            if let Some(from) = page.replace(to) {
                self.memory.copy_within(from * PAGE..(from + 1) * PAGE, to * PAGE);
                self.memory[from * PAGE..(from + 1) * PAGE].fill(0);
            } else {
                (0..PAGE).for_each(|byte| self.memory[to * PAGE + byte] = other(place, byte));
            }
        }
    }

    /// Gives absent pages frames, as the faults of a copy do.
    fn fault_in(&mut self) {
        let mut free = self.free();
        for (place, page) in self.buffer.pages.iter_mut().enumerate() {
            if page.is_none()
                && let Some(frame) = free.pop()
            {
                (0..PAGE).for_each(|byte| self.memory[frame * PAGE + byte] = other(place, byte));
                *page = Some(frame);
            }
        }
    }

    /// The controller moves the block at the address on its pins.
    fn transfer(&mut self, address: usize, direction: Direction) {
        for (byte, place) in reached(address, self.buffer.length).enumerate() {
            match direction {
                Direction::Read => self.memory[place] = self.disk[byte],
                Direction::Write => self.disk[byte] = self.memory[place],
            }
        }
    }

    /// The kernel moves the block through a buffer of its own.
    fn copy(&mut self, direction: Direction) {
        for byte in 0..self.buffer.length {
            let Some(place) = self.buffer.place(byte) else { continue };
            match direction {
                Direction::Read => self.memory[place] = self.disk[byte],
                Direction::Write => self.disk[byte] = self.memory[place],
            }
        }
    }

    /// Whether the process finds the block in its buffer and its other bytes beside it, and the disk has the block.
    fn is_right(&self) -> bool {
        let Buffer { pages, start, length } = self.buffer;
        let is_kept = |place: usize, page: usize| {
            (0..PAGE).all(|byte| {
                let within = (place * PAGE + byte).checked_sub(start).filter(|at| *at < length);
                let wanted = within.map_or_else(|| other(place, byte), content);
                self.memory[page * PAGE + byte] == wanted
            })
        };
        let pages_are =
            pages.iter().enumerate().all(|(place, page)| page.is_none_or(|page| is_kept(place, page)));
        // No byte of the block may be in another's frame.
        let rest = (0..PAGES).filter(|page| !pages.contains(&Some(*page)));
        let strays = rest.flat_map(|page| (0..PAGE).map(move |byte| page * PAGE + byte));
        let strays = strays.filter(|place| self.memory[*place] & 0x80 != 0).count();
        pages_are && strays == 0 && self.disk.iter().enumerate().all(|(byte, value)| *value == content(byte))
    }
}

/// Moves a block. Returns the course, and whether memory and disk are right everywhere. With `checks` the kernel checks first.
fn moved(interface: Interface, buffer: Buffer, direction: Direction, checks: bool) -> (Went, bool) {
    let mut machine = Machine::new(buffer, direction);
    if interface == Interface::Pool {
        // The first fault gives the segment all its frames; a write's bytes are stored then.
        machine.remap();
        if direction == Direction::Write {
            machine.copy_in();
        }
    } else if direction == Direction::Write {
        // Bytes that were stored are in pages that are present.
        machine.fault_in();
        machine.copy_in();
    }
    if interface == Interface::Remapping && machine.buffer.qualifies().is_none() {
        machine.remap();
    }
    let suitable = if checks { machine.buffer.qualifies() } else { machine.buffer.place(0) };
    let went = match (suitable, interface) {
        (Some(address), _) => {
            machine.transfer(address, direction);
            Went::Directly
        }
        (None, interface) => {
            machine.fault_in();
            machine.copy(direction);
            if interface == Interface::Complete { Went::RefusedThenCopied } else { Went::Copied }
        }
    };
    (went, machine.is_right())
}

/// Every mapping of pages, some of them absent, with every start and length in steps of half the alignment.
fn buffers() -> Vec<Buffer> {
    let page = |of: usize| (of < PAGES).then_some(of);
    let mut all = Vec::new();
    for map in 0..(PAGES + 1).pow(MAPPED as u32) {
        let pages = [0, 1].map(|place| page(map / (PAGES + 1).pow(place) % (PAGES + 1)));
        if pages[0].is_some() && pages[0] == pages[1] {
            continue;
        }
        for start in (0..PAGE).step_by(ALIGN / 2) {
            for length in (ALIGN / 2..=MAPPED * PAGE - start).step_by(ALIGN / 2) {
                all.push(Buffer { pages, start, length });
            }
        }
    }
    all
}

/// Buffers of the project's pool that are tried.
const POOLED: usize = 8;

/// What the project's pool hands out, and how many segments it had before the first one.
struct Handed {
    buffers: Vec<Pooled>,
    segments: [u64; 2],
}

fn handed() -> Result<Handed, PoolError> {
    let pool = Pool::new(Options { buffer_bytes: MAPPED * PAGE, ..Options::default() })?;
    let before = pool.statistics().segments;
    let buffers = (0..POOLED).map(|_| pool.take()).collect::<Result<_, _>>()?;
    Ok(Handed { buffers, segments: [before, pool.statistics().segments] })
}

/// Blocks in buffers at these addresses, before their first fault: no page has a frame. Every second length is uneven.
fn pooled(addresses: impl Iterator<Item = usize>) -> Vec<Buffer> {
    let starts = addresses.map(|address| address % PAGE);
    let blocks = |start: usize| {
        let lengths = (ALIGN / 2..=MAPPED * PAGE - start).step_by(ALIGN / 2);
        lengths.map(move |length| Buffer { pages: [None; MAPPED], start, length })
    };
    starts.flat_map(blocks).collect()
}

/// Tries the pool in one direction: even blocks are moved without a copy, uneven ones are copied, and all are right.
fn try_pool(finding: &mut Finding<'_>, (name, direction): (&str, Direction), buffers: &[Buffer]) {
    let (even, uneven): (Vec<Buffer>, Vec<Buffer>) =
        buffers.iter().partition(|buffer| buffer.length.is_multiple_of(ALIGN));
    let [even, uneven] = [even, uneven].map(|buffers| counted(Interface::Pool, direction, &buffers));
    finding.figure(format!("pool, {name} without a copy"), even.direct as f64);
    finding.figure(format!("pool, {name} by copying"), uneven.copied as f64);
    let words = format!(
        "pool: {} blocks of its buffers are {name} without a copy from their first fault on, {} of uneven length by copying",
        even.direct, uneven.copied
    );
    let is_right = even.wrong == 0 && even.copied == 0 && uneven.wrong == 0 && uneven.direct == 0;
    finding.check(is_right && even.direct > 0 && uneven.copied > 0, words);
}

/// The courses of all buffers by one interface, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    direct: usize,
    copied: usize,
    wrong: usize,
}

fn counted(interface: Interface, direction: Direction, buffers: &[Buffer]) -> Count {
    let mut count = Count::default();
    for buffer in buffers {
        let (went, is_right) = moved(interface, *buffer, direction, true);
        // A buffer with absent pages gets its frames from the process's own stores before a write.
        let skips = went == Went::Directly || buffer.qualifies().is_none();
        count.wrong += usize::from(!is_right || !skips);
        count.direct += usize::from(went == Went::Directly);
        count.copied += usize::from(went != Went::Directly);
    }
    count
}

fn explored(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let all = buffers();
    let Handed { buffers: taken, segments } = handed().map_err(|error| case.failed(error))?;
    let words = format!(
        "the project's pool has {} segments before its first buffer is taken, and {} with {POOLED} in use",
        segments[0], segments[1]
    );
    finding.check(segments == [0, 1], words);
    let from_pool = pooled(taken.iter().map(|buffer| buffer.pointer().addr()));
    for (name, direction) in [("read", Direction::Read), ("written", Direction::Write)] {
        let of = |interface| counted(interface, direction, &all);
        let zero = of(Interface::Zero);
        for (interface, count) in [
            ("zero-knowledge", zero),
            ("zero-knowledge with pages moved", of(Interface::Remapping)),
            ("complete-knowledge", of(Interface::Complete)),
        ] {
            finding.figure(format!("{interface}, {name} without a copy"), count.direct as f64);
            finding.figure(format!("{interface}, {name} by copying"), count.copied as f64);
            let words = format!(
                "{interface}: {} buffers are {name} without a copy, {} by copying, {} wrongly",
                count.direct, count.copied, count.wrong
            );
            finding.check(count.wrong == 0 && count.direct > 0 && count.copied > 0, words);
        }
        let moving = of(Interface::Remapping);
        let uneven = all
            .iter()
            .filter(|buffer| !buffer.start.is_multiple_of(ALIGN) || !buffer.length.is_multiple_of(ALIGN));
        let words =
            format!("moving pages helps {} more, and none that is not aligned", moving.direct - zero.direct);
        let helps = uneven
            .filter(|buffer| moved(Interface::Remapping, **buffer, direction, true).0 == Went::Directly);
        finding.check(moving.direct > zero.direct && helps.count() == 0, words);
        try_pool(&mut finding, (name, direction), &from_pool);
        let present = all.iter().filter(|buffer| buffer.pages[0].is_some());
        let destroyed =
            present.filter(|buffer| !moved(Interface::Zero, **buffer, direction, false).1).count();
        finding.check(destroyed > 0, format!("without the kernel's check {destroyed} are {name} wrongly"));
    }
    Ok(finding.verdict(Place::Simulated, Basis::Explored))
}

fn live(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    match try_live(&mut finding) {
        Ok(()) => Ok(finding.verdict(Place::Live, Basis::Measured)),
        Err(error) => Ok(Verdict {
            why: format!("the experiment could not run on this machine: {error}"),
            ..Verdict::not_run(case.claim, Place::Live)
        }),
    }
}

/// Tries the project's interfaces on a file.
fn try_live(finding: &mut Finding<'_>) -> Result<(), Box<dyn std::error::Error>> {
    const BYTES: usize = 64 << 10;
    let content: Vec<u8> =
        (0..BYTES as u32 * 2).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = std::env::temp_dir().join(format!("memferry-lab-interfaces-{}", std::process::id()));
    let mut file = std::fs::File::create_new(&path)?;
    let reopened = || std::fs::File::options().read(true).write(true).open(&path);
    let opened = file.write_all(&content).and_then(|()| file.sync_all()).and_then(|()| reopened());
    std::fs::remove_file(&path)?;
    let file = Direct::new(opened?);
    let (align, _) =
        file.alignments().ok_or("the file system of temporary files does not support O_DIRECT")?;
    let mut memory = vec![0; BYTES + 2 * align];
    let even = memory.as_ptr().align_offset(align);
    for (name, at, wanted) in [("aligned", even, true), ("one byte further", even + 1, false)] {
        let bytes = &mut memory[at..at + BYTES];
        let moved = file.read(bytes, 0)?;
        let is_right = moved.bytes == BYTES && *bytes == content[..BYTES];
        let words = format!("zero-knowledge, {name}: {}", way(moved.way));
        finding.check(is_right && (moved.way == Way::Direct) == wanted, words);
        bytes.fill(0);
        match file.read_aligned(bytes, 0) {
            Ok(moved) => {
                let is_right = moved.bytes == BYTES && *bytes == content[..BYTES];
                finding.check(is_right && wanted, format!("complete-knowledge, {name}: {}", way(moved.way)));
            }
            Err(DirectError::Unsuitable(_)) => {
                let untouched = bytes.iter().all(|byte| *byte == 0);
                finding.check(
                    untouched && !wanted,
                    format!("complete-knowledge, {name}: refused with the reason"),
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    let pool = Pool::new(Options { buffer_bytes: BYTES, ..Options::default() })?;
    let mut buffer = pool.take()?;
    for (name, offset, wanted) in [("an even place", 0, true), ("an odd place", 1, false)] {
        let moved = file.read_buffer(&mut buffer, 0, BYTES, offset)?;
        let mut bytes = vec![0; BYTES];
        buffer.read(0, &mut bytes)?;
        let is_right = moved.bytes == BYTES && bytes == content[offset as usize..offset as usize + BYTES];
        finding.check(
            is_right && (moved.way == Way::Direct) == wanted,
            format!("pool, {name}: {}", way(moved.way)),
        );
    }
    try_writes(finding, &file, (&mut memory[..], even), &mut buffer)
}

/// Tries the same with writes, as the paper's driver of the disk does (section 4).
fn try_writes(
    finding: &mut Finding<'_>,
    file: &Direct,
    (memory, even): (&mut [u8], usize),
    buffer: &mut Pooled,
) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = buffer.length().min(memory.len() - even - 1) & !0xFFFF;
    let mut found = vec![0; bytes];
    let mut round = 0x5A_u8;
    let mut fresh = || {
        round = round.wrapping_add(1);
        (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ round).collect::<Vec<u8>>()
    };
    for (name, at, wanted) in [("aligned", even, true), ("one byte further", even + 1, false)] {
        let own = &mut memory[at..at + bytes];
        own.copy_from_slice(&fresh());
        let moved = file.write(own, 0)?;
        file.read(&mut found, 0)?;
        let words = format!("zero-knowledge, written, {name}: {}", way(moved.way));
        finding.check(found == *own && (moved.way == Way::Direct) == wanted, words);
        own.copy_from_slice(&fresh());
        let refused = matches!(file.write_aligned(own, 0), Err(DirectError::Unsuitable(_)));
        file.read(&mut found, 0)?;
        let words =
            format!("complete-knowledge, written, {name}: {}", if refused { "refused" } else { "no copy" });
        finding.check(refused != wanted && (found == *own) == wanted, words);
    }
    for (name, offset, wanted) in [("an even place", 0, true), ("an odd place", 1, false)] {
        let wrote = fresh();
        buffer.write(0, &wrote)?;
        let moved = file.write_buffer(buffer, 0, bytes, offset)?;
        file.read(&mut found, offset)?;
        let words = format!("pool, written at {name}: {}", way(moved.way));
        finding.check(found == wrote && (moved.way == Way::Direct) == wanted, words);
    }
    Ok(())
}

fn way(way: Way) -> &'static str {
    match way {
        Way::Direct => "no copy",
        Way::Copied(_) => "copied",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(pages: [Option<usize>; MAPPED], start: usize, length: usize) -> Buffer {
        Buffer { pages, start, length }
    }

    #[test]
    fn pages_beyond_reach_are_moved_and_uneven_ones_copied() {
        let far = buffer([Some(6), Some(5)], ALIGN, PAGE);
        let uneven = buffer([Some(0), Some(1)], ALIGN / 2, PAGE);
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(moved(Interface::Zero, far, direction, true), (Went::Copied, true));
            assert_eq!(moved(Interface::Remapping, far, direction, true), (Went::Directly, true));
            assert_eq!(moved(Interface::Remapping, uneven, direction, true), (Went::Copied, true));
            assert_eq!(moved(Interface::Complete, uneven, direction, true), (Went::RefusedThenCopied, true));
            assert!(!moved(Interface::Zero, uneven, direction, false).1, "the controller drops the low bits");
        }
    }

    #[test]
    fn a_pool_has_frames_from_its_first_fault_on() {
        let fresh = buffer([None; MAPPED], 0, PAGE + ALIGN);
        for direction in [Direction::Read, Direction::Write] {
            assert_eq!(moved(Interface::Pool, fresh, direction, true), (Went::Directly, true));
            assert!(moved(Interface::Zero, fresh, direction, true).1);
        }
    }

    /// A pool that hands out uneven buffers would fail the claim.
    #[test]
    fn an_uneven_buffer_of_a_pool_is_found() {
        let claims = crate::claims::Claims::built_in().expect("checked");
        let of = |address: usize| {
            let mut finding = Finding::of(claims.find("nava-interfaces").expect("listed"));
            try_pool(&mut finding, ("read", Direction::Read), &pooled([address].into_iter()));
            finding.verdict(Place::Simulated, Basis::Explored).status
        };
        assert_eq!(of(8192), crate::verdict::Status::Pass);
        assert_eq!(of(8192 + ALIGN / 2), crate::verdict::Status::Fail);
    }
}
