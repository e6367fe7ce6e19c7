//! Group `engine`: the CPU engine on one thread and on two, against glibc in the same run.
//!
//! ```text
//! parts: cold    copies between uncached places                       again   repeated copies of large buffers
//!        sizes   every size, hot and cold: the lowest ratio           fills   zeros, and other bytes, every size
//!        others  xor, compare, CRC-32C, copy with CRC-32C             two     a copy shared by two cores
//!        pages   the cold copies on ordinary pages, without targets
//! ```
//!
//! Ratios are glibc's time over ours. Bytes are random and on huge pages unless a row says otherwise. This thread runs on
//! CPU 0, the worker on CPU 1. Memory that a service adopts comes from glibc's allocator, which uses huge pages only if
//! requested before the program starts: `./x bench` does that (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`).

pub(crate) mod arena;
mod copies;
mod fills;
mod others;
pub(crate) mod sides;
mod two;

use arena::{Field, Pages, on_huge_pages};

use crate::BenchError;
use crate::placement::Pinned;
use crate::rows::Row;
use crate::run::Run;

/// Parts that share one large field.
type Part = (&'static str, fn(&Run, &mut Field) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 4] =
    [("cold", copies::cold), ("again", copies::again), ("sizes", copies::sizes), ("fills", fills::measure)];
/// Parts with their own memory.
const OTHER_PARTS: [&str; 3] = ["pages", "others", "two"];

/// Prints a warning if fewer than `bytes` are on huge pages.
fn warn_about_pages(run: &Run, bytes: usize) -> Result<(), BenchError> {
    let huge = on_huge_pages()?;
    if huge < bytes {
        let [huge, all] = [huge, bytes].map(|bytes| bytes >> 20);
        let remedy = "start it by ./x bench, or with GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
        run.say(&format!("only {huge} of {all} MiB that rows call huge pages are on huge pages: {remedy}"));
    }
    Ok(())
}

/// Bytes of each side: many times the size of the caches.
pub(crate) fn field_bytes(run: &Run) -> usize {
    if run.quick() { 256 << 20 } else { 1 << 30 }
}

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, _)| *name).chain(OTHER_PARTS))?;
    let mut rows = Vec::new();
    if PARTS.iter().any(|(name, _)| run.wants(name)) {
        let _pinned = Pinned::to(0)?;
        run.part("memory", 1);
        let mut field = Field::new(field_bytes(run), Pages::Huge)?;
        warn_about_pages(run, 2 * field.length())?;
        for (_, part) in PARTS.iter().filter(|(name, _)| run.wants(name)) {
            rows.extend(part(run, &mut field)?);
        }
    }
    if run.wants("pages") {
        let _pinned = Pinned::to(0)?;
        rows.extend(copies::ordinary_pages(run)?);
    }
    if run.wants("others") {
        let _pinned = Pinned::to(0)?;
        rows.extend(others::measure(run)?);
    }
    if run.wants("two") {
        rows.extend(two::measure(run)?);
    }
    Ok(rows)
}
