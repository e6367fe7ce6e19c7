//! Group `engine`: what the CPU engine promises on one thread and on two, against glibc in the same run.
//!
//! ```text
//! parts: cold    copies of what no cache holds                        again   copies of large buffers, again and again
//!        sizes   every size, hot and cold: the least ratio            fills   zeros, and other bytes, every size
//!        others  xor, compare, CRC-32C, copy with CRC-32C             two     a copy that two cores share
//!        pages   the cold copies on ordinary pages, reported
//! ```
//!
//! Ratios are glibc's time over ours. The bytes are random and on huge pages, but where a row says otherwise. This thread is on
//! CPU 0, the worker on CPU 1. Memory that a service takes over comes from glibc's allocator, which asks for huge pages when it
//! was told so before the program started: `./x bench` does that (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`).

pub(crate) mod arena;
mod copies;
mod fills;
mod others;
pub(crate) mod sides;
mod two;

use arena::{Field, Pages, on_huge_pages};

use crate::BenchError;
use crate::placement::Kept;
use crate::rows::Row;
use crate::run::Run;

/// Parts in one large field.
type Part = (&'static str, fn(&Run, &mut Field) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 4] =
    [("cold", copies::cold), ("again", copies::again), ("sizes", copies::sizes), ("fills", fills::measure)];
/// Parts with memory of their own.
const OTHER_PARTS: [&str; 3] = ["pages", "others", "two"];

/// Says so where less than these bytes are on huge pages.
fn look_at_pages(run: &Run, bytes: usize) -> Result<(), BenchError> {
    let huge = on_huge_pages()?;
    if huge < bytes {
        let [huge, all] = [huge, bytes].map(|bytes| bytes >> 20);
        let remedy = "start it by ./x bench, or with GLIBC_TUNABLES=glibc.malloc.hugetlb=1";
        run.say(&format!("only {huge} of {all} MiB of what rows call huge pages are on such: {remedy}"));
    }
    Ok(())
}

/// Bytes of a side: many times what caches hold.
pub(crate) fn field_bytes(run: &Run) -> usize {
    if run.quick() { 256 << 20 } else { 1 << 30 }
}

/// Measures the group, or the parts of it that were asked for.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, _)| *name).chain(OTHER_PARTS))?;
    let mut rows = Vec::new();
    if PARTS.iter().any(|(name, _)| run.wants(name)) {
        let _kept = Kept::to(0)?;
        run.part("memory", 1);
        let mut field = Field::new(field_bytes(run), Pages::Huge)?;
        look_at_pages(run, 2 * field.length())?;
        for (_, part) in PARTS.iter().filter(|(name, _)| run.wants(name)) {
            rows.extend(part(run, &mut field)?);
        }
    }
    if run.wants("pages") {
        let _kept = Kept::to(0)?;
        rows.extend(copies::ordinary_pages(run)?);
    }
    if run.wants("others") {
        let _kept = Kept::to(0)?;
        rows.extend(others::measure(run)?);
    }
    if run.wants("two") {
        rows.extend(two::measure(run)?);
    }
    Ok(rows)
}
