//! Pre-mapped frames, against a frame made for each request.
//!
//! ```text
//! pre-mapped:           copy ─ copy ─ copy ...                        the same two frames every time
//! mapped each request:  allocate the destination ─ copy ─ drop it     memory allocated, mapped, registered, written, revoked
//! ```
//!
//! Only the destination is new: a source without content would be pages of zeros. A frame cannot be registered twice as a
//! destination, because registering seals it against further writable mappings. So its memory is new as well, and allocating and
//! zeroing pages is part of the cost. Embedded and through the service; the client polls.

use memferry::{Client, copy};

use super::embedded::inline_copy;
use crate::BenchError;
use crate::children::Service;
use crate::pair::{Pair, poll_for};
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::each_ns;

const ROUNDS: usize = 11;

/// A row: bytes, name, copies per round (pre-mapped, mapped each time), and the required ratio.
struct Case {
    bytes: u64,
    name: &'static str,
    counts: (usize, usize),
    target: f64,
}

const EMBEDDED: Case = Case { bytes: 4 << 10, name: "4 KiB, embedded", counts: (2000, 50), target: 60.0 };

const THROUGH_SERVICE: [Case; 5] = [
    Case { bytes: 4 << 10, name: "4 KiB", counts: (1000, 30), target: 8.0 },
    Case { bytes: 64 << 10, name: "64 KiB", counts: (200, 30), target: 5.0 },
    Case { bytes: 1 << 20, name: "1 MiB", counts: (20, 10), target: 3.0 },
    Case { bytes: 4 << 20, name: "4 MiB", counts: (8, 4), target: 3.0 },
    Case { bytes: 32 << 20, name: "32 MiB", counts: (2, 2), target: 1.9 },
];

/// Nanoseconds of a copy between pre-mapped frames, and of one to a new frame.
fn embedded_round(pair: &mut Pair, case: &Case) -> Result<(f64, f64), BenchError> {
    let (source, destination) = pair.ranges(case.bytes);
    inline_copy(&mut pair.queue, &source, &destination)?;
    let mapped_before = each_ns(case.counts.0, || inline_copy(&mut pair.queue, &source, &destination))?;
    let mapped_each = each_ns(case.counts.1, || {
        let frame = pair.client.frame(case.bytes).alloc()?;
        inline_copy(&mut pair.queue, &source, &frame)
    })?;
    Ok((mapped_before, mapped_each))
}

/// The same through the service.
fn service_round(pair: &mut Pair, case: &Case) -> Result<(f64, f64), BenchError> {
    pair.wake()?;
    pair.copy(case.bytes)?;
    let mapped_before = each_ns(case.counts.0, || pair.copy(case.bytes))?;
    let source = pair.source.slice(..case.bytes);
    let mapped_each = each_ns(case.counts.1, || {
        let frame = pair.client.frame(case.bytes).alloc()?;
        let ticket = pair.queue.submit(copy(&source, &frame))?;
        poll_for(&mut pair.queue, ticket)
    })?;
    Ok((mapped_before, mapped_each))
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("mapping", ROUNDS);
    let service = Service::start(run)?;
    let embedded = Client::embedded()?;
    let _pinned = Pinned::to(0)?;
    let most = THROUGH_SERVICE.iter().map(|case| case.bytes).max().unwrap_or(0);
    let mut inside = Pair::new(embedded, EMBEDDED.bytes)?;
    let mut outside = Pair::new(Client::connect(service.socket())?, most)?;
    let mut first = Vec::new();
    let mut others = [const { Vec::new() }; THROUGH_SERVICE.len()];
    for _ in 0..rounds {
        first.push(embedded_round(&mut inside, &EMBEDDED)?);
        for (case, times) in THROUGH_SERVICE.iter().zip(&mut others) {
            times.push(service_round(&mut outside, case)?);
        }
        run.round_done();
    }
    let mut rows = vec![row(&EMBEDDED, &first)];
    rows.extend(THROUGH_SERVICE.iter().zip(&others).map(|(case, times)| row(case, times)));
    Ok(rows)
}

fn row(case: &Case, times: &[(f64, f64)]) -> Row {
    let ratios: Vec<f64> = times.iter().map(|(before, each)| each / before).collect();
    let title = format!("{}, mapped each request against pre-mapped", case.name);
    Row::new(title, "ratio", Target::AtLeast(case.target), &ratios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_the_ratio_of_the_two_times() {
        let row =
            serde_json::to_value(row(&THROUGH_SERVICE[0], &[(1.0, 8.0), (2.0, 20.0), (1.0, 7.0)])).unwrap();
        assert_eq!((&row["value"], &row["min"], &row["max"]), (&8.0.into(), &7.0.into(), &10.0.into()));
        assert_eq!(row["holds"], serde_json::Value::Bool(true));
    }
}
