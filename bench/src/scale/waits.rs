//! Part `waits`: tickets awaited in order and in the opposite order.
//!
//! ```text
//! round, for each number: submit so many ─ wait for the first ... the last ─ submit again ─ wait for the last ... the first
//! ```

use std::time::Instant;

use memferry::{Queue, nop};

use super::{Probe, ROUNDS, grouped};
use crate::BenchError;
use crate::children::Service;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

const COUNTS: [usize; 4] = [16, 64, 512, 4096];
const LIMIT: f64 = 2.0;

/// Nanoseconds of each of `count` empty requests until all were awaited.
fn each_ns(queue: &mut Queue, count: usize, is_backward: bool) -> Result<f64, BenchError> {
    let started = Instant::now();
    let mut tickets = queue.submit_batch((0..count).map(|_| nop()))?;
    if is_backward {
        tickets.reverse();
    }
    for ticket in tickets {
        queue.wait(ticket)?;
    }
    Ok(since_ns(started) / count as f64)
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("waits", ROUNDS);
    let service = Service::start_roomy(run, "waits")?;
    let _pinned = Pinned::to(0)?;
    let mut probe = Probe::of(&service)?;
    let mut queue = probe.client.queue(4096)?;
    let mut forward = [const { Vec::new() }; COUNTS.len()];
    let mut ratios = [const { Vec::new() }; COUNTS.len()];
    for _ in 0..rounds {
        for (index, count) in COUNTS.into_iter().enumerate() {
            probe.wake()?;
            let usual = each_ns(&mut queue, count, false)?;
            probe.wake()?;
            ratios[index].push(each_ns(&mut queue, count, true)? / usual);
            forward[index].push(usual);
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ((count, forward), ratios) in COUNTS.into_iter().zip(&forward).zip(&ratios) {
        let name = format!("waiting for {} NOPs", grouped(count));
        rows.push(Row::new(format!("{name} from the first to the last, each"), "ns", Target::None, forward));
        rows.push(Row::new(
            format!("{name} from the last to the first, against that"),
            "ratio",
            Target::AtMost(LIMIT),
            ratios,
        ));
    }
    Ok(rows)
}
