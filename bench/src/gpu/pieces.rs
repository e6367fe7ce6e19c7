//! Part `pieces`: lists whose pieces lie anywhere on both sides, as those of a cache of keys and values do.

use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;
use memferry::{EngineKind, Frame, Queue, SubmitError, SubmitReason, scatter_gather};
use rustix::time::{ClockId, clock_gettime};

use super::{Direction, Stage, frames};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 15;
const PIECE: u64 = 8 << 10;
const PIECES: usize = 1024;
/// How many requests are outstanding.
const DEPTH: usize = 6;
const REQUESTS: usize = 96;
const FRAME_BYTES: u64 = 64 << 20;

struct Round {
    seconds: f64,
    /// Time of this thread's CPU.
    cpu: Duration,
    /// The part of it that was spent on describing and submitting.
    submitting: Duration,
}

/// Lists in both directions.
pub(super) fn measure(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let stage = Stage::start(run, library)?;
    let client = stage.client()?;
    let (near, far) = frames(&client, FRAME_BYTES)?;
    let mut queue = client.queue(64)?;
    let mut random = Rng::with_seed(48434);
    let mut columns: [[Vec<f64>; 3]; 2] = Default::default();
    for round in 0..=run.part("pieces", ROUNDS) {
        for (direction, values) in Direction::BOTH.into_iter().zip(&mut columns) {
            let lists = (0..DEPTH).map(|_| [order(&mut random), order(&mut random)]).collect::<Vec<_>>();
            let measured = one_round(&mut queue, direction, (&near, &far), &lists)?;
            // The first one warms up.
            if round > 0 {
                let pieces = (REQUESTS * PIECES) as f64;
                values[0].push(pieces * PIECE as f64 / measured.seconds * 1e-9);
                values[1].push(measured.cpu.as_secs_f64() / pieces * 1e9);
                values[2].push(measured.submitting.as_secs_f64() / pieces * 1e9);
            }
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for (direction, [rate, cpu, submitting]) in Direction::BOTH.into_iter().zip(&columns) {
        let what = format!("scattered pieces of 8 KiB {}", direction.name());
        rows.push(Row::new(&what, "GB/s", Target::AtLeast(45.0), rate));
        rows.push(Row::new(format!("{what}: client's CPU for each"), "ns", Target::AtMost(25.0), cpu));
        rows.push(Row::new(format!("{what}: of it, submitting"), "ns", Target::None, submitting));
    }
    Ok(rows)
}

/// Places of a frame's pieces, in any order, as many as a request has.
fn order(random: &mut Rng) -> Vec<u64> {
    let mut places: Vec<u64> = (0..FRAME_BYTES / PIECE).map(|number| number * PIECE).collect();
    random.shuffle(&mut places);
    places.truncate(PIECES);
    places
}

fn one_round(
    queue: &mut Queue,
    direction: Direction,
    (near, far): (&Frame, &Frame),
    lists: &[[Vec<u64>; 2]],
) -> Result<Round, BenchError> {
    let began = Instant::now();
    let cpu_began = thread_time();
    let mut submitting = Duration::ZERO;
    let mut outstanding = 0;
    for request in 0..REQUESTS {
        if outstanding == DEPTH {
            end_one(queue)?;
            outstanding -= 1;
        }
        let [here, there] = &lists[request % lists.len()];
        let before = thread_time();
        let mut waiting = Duration::ZERO;
        let host = here.iter().map(|at| near.piece(*at..at + PIECE));
        let device = there.iter().map(|at| far.piece(*at..at + PIECE));
        let mut transfer = match direction {
            Direction::Up => scatter_gather(host, device),
            Direction::Down => scatter_gather(device, host),
        };
        // The queue has room for the lists of few such requests that the service has not taken yet.
        while let Err(SubmitError { reason, transfer: again }) = queue.submit(transfer) {
            let SubmitReason::Full { .. } = reason else { return Err(reason.into()) };
            transfer = *again;
            let began = thread_time();
            end_one(queue)?;
            waiting += thread_time() - began;
            outstanding -= 1;
        }
        submitting += thread_time() - before - waiting;
        outstanding += 1;
    }
    for _ in 0..outstanding {
        end_one(queue)?;
    }
    Ok(Round { seconds: began.elapsed().as_secs_f64(), cpu: thread_time() - cpu_began, submitting })
}

fn end_one(queue: &mut Queue) -> Result<(), BenchError> {
    let done = queue.wait_any().transpose().ok_or("a transfer was lost")??;
    if done.engine == EngineKind::External { Ok(()) } else { Err("a list did not go to the engine".into()) }
}

fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
