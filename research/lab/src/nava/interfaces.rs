//! The three interfaces of section 3 on a machine with a limited DMA controller, explored.
//!
//! ```text
//! every mapping × start × length × interface ──► kernel: does it qualify? ─ yes ─► controller writes it
//!                                                  └ no: kernel buffer, copied (complete-knowledge: refused, then copied)
//! ──► memory is right everywhere, and a qualifying buffer was not copied
//! ```
//!
//! The machine is small: pages of 256 bytes; the controller reaches the lower half of memory, drops the low and the high bits
//! of an address, and knows no page tables (the paper: the first 8, 16 or 24 MB, aligned to 64 bytes). Without the kernel's
//! check the same exploration finds destroyed memory. The project's interfaces are tried live, on a file.

use std::io::Write;

use memferry_pool::{Direct, DirectError, Pool, Way};

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
/// Pages of a buffer's mapping.
const MAPPED: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    Zero,
    Complete,
    Pool,
}

/// The course of a read.
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
        let fits =
            first.is_multiple_of(ALIGN) && self.length.is_multiple_of(ALIGN) && first + self.length <= REACH;
        (is_one && fits).then_some(first)
    }
}

/// The controller: writes to the address on its pins.
fn transfer(memory: &mut [u8], address: usize, data: &[u8]) {
    let address = address / ALIGN * ALIGN % REACH;
    for (byte, value) in data.iter().enumerate() {
        memory[(address + byte) % REACH] = *value;
    }
}

/// The disk's content at a byte.
fn content(byte: usize) -> u8 {
    (byte % 251) as u8 | 0x80
}

/// Reads into a buffer. Returns the course, and whether memory is right everywhere. With `checks` the kernel checks first.
fn read(interface: Interface, mut buffer: Buffer, checks: bool) -> (Went, bool) {
    let mut memory = vec![0; PAGE * PAGES];
    let data: Vec<u8> = (0..buffer.length).map(content).collect();
    let suitable = if checks { buffer.qualifies() } else { buffer.place(0) };
    let went = match (suitable, interface) {
        (Some(address), _) => {
            transfer(&mut memory, address, &data);
            Went::Directly
        }
        (None, interface) => {
            // The copy faults absent pages in, from the free ones.
            let mut free = (0..PAGES).filter(|page| !buffer.pages.contains(&Some(*page))).collect::<Vec<_>>();
            for page in &mut buffer.pages {
                *page = page.or_else(|| free.pop());
            }
            for (byte, value) in data.iter().enumerate() {
                if let Some(place) = buffer.place(byte) {
                    memory[place] = *value;
                }
            }
            if interface == Interface::Complete { Went::RefusedThenCopied } else { Went::Copied }
        }
    };
    let mut wanted = vec![0; PAGE * PAGES];
    for (byte, value) in data.iter().enumerate() {
        if let Some(place) = buffer.place(byte) {
            wanted[place] = *value;
        }
    }
    (went, memory == wanted)
}

/// Every mapping of pages, some of them absent, with every start and length in steps of half the alignment.
fn buffers() -> Vec<Buffer> {
    let page = |of: usize| (of < PAGES).then_some(of);
    let mut all = Vec::new();
    for map in 0..(PAGES + 1).pow(MAPPED as u32) {
        let numbers = [0, 1, 2].map(|place| map / (PAGES + 1).pow(place) % (PAGES + 1));
        let pages = numbers.map(page);
        let twice = |a: usize, b: usize| pages[a].is_some() && pages[a] == pages[b];
        if twice(0, 1) || twice(0, 2) || twice(1, 2) {
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

/// Buffers of a pool: contiguous pages within reach, chosen by the kernel.
fn pooled() -> Vec<Buffer> {
    let lengths = (ALIGN..=MAPPED * PAGE).step_by(ALIGN);
    lengths.map(|length| Buffer { pages: [Some(0), Some(1), Some(2)], start: 0, length }).collect()
}

fn explored(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    for (name, interface) in
        [("zero-knowledge", Interface::Zero), ("complete-knowledge", Interface::Complete)]
    {
        let mut direct = 0;
        let mut copied = 0;
        let mut wrong = 0;
        for buffer in buffers() {
            let (went, is_right) = read(interface, buffer, true);
            let skips = (went == Went::Directly) == buffer.qualifies().is_some();
            wrong += usize::from(!is_right || !skips);
            direct += usize::from(went == Went::Directly);
            copied += usize::from(went != Went::Directly);
        }
        finding.figure(format!("{name}, without a copy"), direct as f64);
        finding.figure(format!("{name}, copied"), copied as f64);
        finding.check(
            wrong == 0 && direct > 0 && copied > 0,
            format!("{name}: {direct} buffers qualify and skip the copy, {copied} are read by copying, {wrong} wrongly"),
        );
    }
    let from_pool = pooled();
    let good = from_pool
        .iter()
        .filter(|buffer| read(Interface::Pool, **buffer, true) == (Went::Directly, true))
        .count();
    finding
        .check(good == from_pool.len(), format!("pool: {good} of {} buffers skip the copy", from_pool.len()));
    let destroyed = buffers().into_iter().filter(|buffer| buffer.pages[0].is_some());
    let destroyed = destroyed.filter(|buffer| !read(Interface::Zero, *buffer, false).1).count();
    finding.check(
        destroyed > 0,
        format!("without the kernel's check {destroyed} of the same reads destroy memory"),
    );
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
    let opened =
        file.write_all(&content).and_then(|()| file.sync_all()).and_then(|()| std::fs::File::open(&path));
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
    let pool =
        Pool::new(memferry_pool::Options { buffer_bytes: BYTES, ..memferry_pool::Options::default() })?;
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
    Ok(())
}

fn way(way: Way) -> &'static str {
    match way {
        Way::Direct => "no copy",
        Way::Copied(_) => "copied",
    }
}
