//! Parts `idle` and `clients`: many queues, of which one or all are used.
//!
//! ```text
//! round, for each number of idle queues: a client of a service without any ─ a client of the service with them
//! round, for each number of clients: one client submits as many requests, then takes them ─ each client submits one, then each
//!                                    takes its completion
//! ```
//!
//! Both sides of `clients` make the same calls with as many requests outstanding, so the difference is that of queues and sessions.

use memferry::{Client, Queue, nop};

use super::{Probe, ROUNDS, Times, beside, grouped, take};
use crate::BenchError;
use crate::children::Service;
use crate::pair::poll_for;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::each_ns;

const IDLE: [usize; 6] = [1, 63, 255, 511, 1023, 2047];
const CLIENTS: [usize; 4] = [8, 64, 256, 512];
/// Most that idle queues may cost, and many clients each.
const LIMIT: f64 = 1.5;
/// Requests of a round of all clients together.
const REQUESTS: usize = 4096;

/// Empty requests beside queues that nobody uses.
pub(super) fn idle(run: &Run) -> Result<Vec<Row>, BenchError> {
    let empty = Service::start_roomy(run, "empty")?;
    let crowded = Service::start_roomy(run, "crowded")?;
    let _pinned = Pinned::to(0)?;
    let mut little = Probe::of(&empty)?;
    let mut much = Probe::of(&crowded)?;
    let mut queues: Vec<Queue> = Vec::new();
    let mut rows = Vec::new();
    let mut last = Vec::new();
    for count in IDLE {
        while queues.len() < count {
            queues.push(much.client.queue(16)?);
        }
        last = alternate(run, &mut little, &mut much)?;
        let what = format!("beside {} idle queues, against none", grouped(count));
        rows.extend(beside(&what, LIMIT, &last));
    }
    for (index, how) in ["round trip", "in batches of 32"].into_iter().enumerate() {
        for (what, value) in [("no idle queue", 0), ("2,047 idle queues", 1)] {
            let values: Vec<f64> =
                last.iter().map(|round| if value == 0 { round.0[index] } else { round.1[index] }).collect();
            rows.push(Row::new(format!("NOP, {how}, beside {what}"), "ns", Target::None, &values));
        }
    }
    drop(queues);
    // The service answers commands in order, so this one comes after the closing.
    much.client.status()?;
    let closed = alternate(run, &mut little, &mut much)?;
    rows.extend(beside("after 2,047 idle queues were closed, against none", LIMIT, &closed));
    Ok(rows)
}

/// Times of both probes, alternating.
fn alternate(run: &Run, little: &mut Probe, much: &mut Probe) -> Result<Vec<(Times, Times)>, BenchError> {
    let rounds = run.part("idle", ROUNDS);
    let mut measured = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        measured.push((little.times()?, much.times()?));
        run.round_done();
    }
    Ok(measured)
}

/// Clients, each a session, that all have requests.
pub(super) fn clients(run: &Run) -> Result<Vec<Row>, BenchError> {
    let one = Service::start_roomy(run, "one")?;
    let many = Service::start_roomy(run, "many")?;
    let _pinned = Pinned::to(0)?;
    let mut little = Probe::of(&one)?;
    let mut queue = little.client.queue(CLIENTS.iter().map(|count| *count as u32).max().unwrap_or(1))?;
    let mut clients: Vec<Probe> = Vec::new();
    let mut rows = Vec::new();
    for count in CLIENTS {
        while clients.len() < count {
            let client = Client::connect(many.socket())?;
            let queue = client.queue(16)?;
            clients.push(Probe { client, queue });
        }
        let rounds = run.part("clients", ROUNDS);
        let mut ratios = Vec::new();
        let mut times = Vec::new();
        turn(&mut clients)?;
        for _ in 0..rounds {
            little.wake()?;
            let alone = each_ns(REQUESTS / count, || together(&mut queue, count))? / count as f64;
            turn(&mut clients)?;
            let each = each_ns(REQUESTS / count, || turn(&mut clients))? / count as f64;
            ratios.push(each / alone);
            times.push(each);
            run.round_done();
        }
        let name = format!("{count} clients, a NOP outstanding each");
        rows.push(Row::new(format!("{name}: each"), "ns", Target::None, &times));
        rows.push(Row::new(
            format!("{name}: each, against as many of one client"),
            "ratio",
            Target::AtMost(LIMIT),
            &ratios,
        ));
    }
    Ok(rows)
}

/// So many requests of one queue.
fn together(queue: &mut Queue, count: usize) -> Result<(), BenchError> {
    for _ in 0..count {
        let _taken = queue.submit(nop())?;
    }
    take(queue, count)
}

/// One request of each client.
fn turn(clients: &mut [Probe]) -> Result<(), BenchError> {
    let tickets =
        clients.iter_mut().map(|client| client.queue.submit(nop())).collect::<Result<Vec<_>, _>>()?;
    for (client, ticket) in clients.iter_mut().zip(tickets) {
        poll_for(&mut client.queue, ticket)?;
    }
    Ok(())
}
