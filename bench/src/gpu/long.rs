//! Parts `long` and `first`: single copies.

use std::path::Path;
use std::time::Instant;

use memferry::{EngineKind, Frame, Queue, copy};

use super::twin::Twin;
use super::{Direction, Stage, frames};
use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 31;
/// Lengths, with a target for the time of the service over that of the driver alone.
const LENGTHS: [(&str, u64, Target); 3] = [
    ("64 MiB", 64 << 20, Target::AtMost(1.05)),
    ("1 MiB", 1 << 20, Target::None),
    ("64 KiB", 64 << 10, Target::None),
];
/// Bytes of a new client's first copy.
const FIRST_BYTES: u64 = 1 << 20;

/// Single copies by the service, and by the driver alone.
pub(super) fn measure(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let stage = Stage::start(run, library)?;
    let client = stage.client()?;
    let (near, far) = frames(&client, LENGTHS[0].1)?;
    let mut queue = client.queue(4)?;
    let mut twin = Twin::start(run, library)?;
    let mut rows = Vec::new();
    for (name, bytes, target) in LENGTHS {
        let mut columns: [[Vec<f64>; 3]; 2] = Default::default();
        for round in 0..=run.part("long", ROUNDS) {
            for (direction, values) in Direction::BOTH.into_iter().zip(&mut columns) {
                let ours = by_service(&mut queue, direction, (&near, &far), bytes)?;
                let twin = twin.copy(direction, bytes)?;
                // The first one warms up.
                if round > 0 {
                    values[0].push(ours / twin.pinned);
                    values[1].push(ours / twin.registered);
                    values[2].push(bytes as f64 / ours * 1e-9);
                }
            }
            run.round_done();
        }
        for (direction, [pinned, registered, rate]) in Direction::BOTH.into_iter().zip(&columns) {
            let what = format!("{name} {}", direction.name());
            rows.push(Row::new(format!("{what}: time / driver alone, pinned memory"), "x", target, pinned));
            rows.push(Row::new(
                format!("{what}: time / driver alone, registered pages"),
                "x",
                Target::None,
                registered,
            ));
            rows.push(Row::new(what, "GB/s", Target::None, rate));
        }
    }
    check(&mut queue, &near, &far)?;
    Ok(rows)
}

fn by_service(
    queue: &mut Queue,
    direction: Direction,
    (near, far): (&Frame, &Frame),
    bytes: u64,
) -> Result<f64, BenchError> {
    let (from, to) = direction.ends(near, far);
    let began = Instant::now();
    let ticket = queue.submit(copy(from.slice(..bytes), to.slice(..bytes)))?;
    let done = queue.wait(ticket)?;
    let seconds = began.elapsed().as_secs_f64();
    if done.engine != EngineKind::External {
        return Err("a copy did not go to the engine".into());
    }
    Ok(seconds)
}

/// Copies all there and back: the bytes must be those of before.
fn check(queue: &mut Queue, near: &Frame, far: &Frame) -> Result<(), BenchError> {
    let mut before = vec![0; near.length() as usize];
    near.read(0, &mut before)?;
    queue.run(copy(near, far))?;
    near.write(0, &vec![0; before.len()])?;
    queue.run(copy(far, near))?;
    let mut after = vec![0; before.len()];
    near.read(0, &mut after)?;
    if before == after { Ok(()) } else { Err("the GPU gave other bytes back".into()) }
}

/// From the connection of a new client to the end of its first copy, whose frames are new.
pub(super) fn first(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let stage = Stage::start(run, library)?;
    let other = stage.client()?;
    let far_before = other.frame(FIRST_BYTES).home(super::ENGINE).alloc()?;
    let mut whole = Vec::new();
    let mut host_only = Vec::new();
    for _ in 0..run.part("first", ROUNDS) {
        let began = Instant::now();
        let client = stage.client()?;
        let near = client.frame(FIRST_BYTES).alloc()?;
        let connected = began.elapsed();
        let far = client.frame(FIRST_BYTES).home(super::ENGINE).alloc()?;
        let allocated = began.elapsed();
        let mut queue = client.queue(4)?;
        queue.run(copy(&near, &far))?;
        let ended = began.elapsed();
        whole.push(ended.as_secs_f64() * 1e3);
        host_only.push((ended - (allocated - connected)).as_secs_f64() * 1e3);
        run.round_done();
    }
    drop(far_before);
    let name = "a new client's first copy of 1 MiB, with its connection, frames and queue";
    Ok(vec![
        Row::new(name, "ms", Target::AtMost(5.0), &whole),
        Row::new("the same without the frame in the GPU", "ms", Target::None, &host_only),
    ])
}
