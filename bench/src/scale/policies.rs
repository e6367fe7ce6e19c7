//! Part `policies`: what each policy costs a request that is done at once.
//!
//! ```text
//! round: Client::set_policy(shared) ─ round trips, batches, copies of 64 B ─ the next policy ─ the same ...
//! ```
//!
//! Limits are generous enough that none holds a request back: only the policy's own work is measured.

use std::time::Instant;

use memferry::{Client, PolicyKind, PolicySettings, copy};

use super::{BATCH, Probe, ROUNDS, take};
use crate::BenchError;
use crate::children::Service;
use crate::pair::Pair;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{median, since_ns};

const LIMIT: f64 = 1.5;
const WAYS: [&str; 3] = ["NOP round trip", "NOP in batches of 32, each", "64 B in batches of 32, each"];

/// Times of the [`WAYS`] under a policy, ns.
fn times(probe: &mut Probe, pair: &mut Pair, kind: PolicyKind) -> Result<[f64; 3], BenchError> {
    let settings =
        PolicySettings { rate_bytes_per_second: 1 << 40, burst_bytes: 1 << 40, ..PolicySettings::of(kind) };
    probe.client.set_policy(settings)?;
    let [alone, batch] = probe.times()?;
    let (source, destination) = pair.ranges(64);
    let mut small = || {
        let started = Instant::now();
        pair.queue.submit_batch((0..BATCH).map(|_| copy(&source, &destination)))?;
        take(&mut pair.queue, BATCH)?;
        Ok(since_ns(started) / BATCH as f64)
    };
    let small = (0..30).map(|_| small()).collect::<Result<Vec<_>, BenchError>>()?;
    Ok([alone, batch, median(&small)])
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("policies", ROUNDS);
    let service = Service::start_roomy(run, "policies")?;
    let _pinned = Pinned::to(0)?;
    let mut probe = Probe::of(&service)?;
    let mut pair = Pair::new(Client::connect(service.socket())?, 4096)?;
    let others: Vec<_> = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Shared).collect();
    let mut shared = [const { Vec::new() }; WAYS.len()];
    let mut ratios: Vec<[Vec<f64>; WAYS.len()]> = others.iter().map(|_| Default::default()).collect();
    for _ in 0..rounds {
        for (kind, ratios) in others.iter().zip(&mut ratios) {
            let usual = times(&mut probe, &mut pair, PolicyKind::Shared)?;
            let paced = times(&mut probe, &mut pair, *kind)?;
            for way in 0..WAYS.len() {
                shared[way].push(usual[way]);
                ratios[way].push(paced[way] / usual[way]);
            }
        }
        run.round_done();
    }
    let mut rows: Vec<Row> = (WAYS.iter().zip(&shared))
        .map(|(way, times)| Row::new(format!("{way}, policy shared"), "ns", Target::None, times))
        .collect();
    for (kind, ratios) in others.iter().zip(&ratios) {
        for (way, ratios) in WAYS.iter().zip(ratios) {
            let name = format!("{way}, policy {}, against shared", kind.name());
            rows.push(Row::new(name, "ratio", Target::AtMost(LIMIT), ratios));
        }
    }
    Ok(rows)
}
