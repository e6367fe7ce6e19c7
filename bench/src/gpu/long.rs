//! Parts `long` and `first`: copies of one piece.

use std::path::Path;
use std::time::Instant;

use memferry::{EngineKind, Frame, Queue, copy};

use super::twin::Twin;
use super::{Direction, Stage, frames};
use crate::BenchError;
use crate::children::ENGINE;
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 31;
/// As long as the driver alone takes for pinned memory, and a twentieth.
const TARGET: Target = Target::AtMost(1.05);
const LENGTHS: [(&str, u64); 3] = [("64 MiB", 64 << 20), ("1 MiB", 1 << 20), ("64 KiB", 64 << 10)];
/// Before a copy that finds everybody awake.
const WAKING_BYTES: u64 = 64 << 10;
/// Copies that are submitted at once.
const MANY: usize = 8;

/// What is measured with each length.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Copies one behind the other, all submitted at once: what the path sustains.
    Many,
    /// A copy that nobody waits with, just after another one.
    Awake,
    /// The same when service and engine sleep.
    Asleep,
}

impl Way {
    const ALL: [Self; 3] = [Self::Many, Self::Awake, Self::Asleep];

    fn name(self) -> &'static str {
        match self {
            Self::Many => "8 at once, while all are awake",
            Self::Awake => "one, while all are awake",
            Self::Asleep => "one, while service and engine sleep",
        }
    }

    fn count(self) -> usize {
        if self == Self::Many { MANY } else { 1 }
    }
}

/// Long enough for the service and the engine to sleep.
const REST: std::time::Duration = std::time::Duration::from_millis(2);
/// Bytes of a new client's first copy.
const FIRST_BYTES: u64 = 1 << 20;

/// Copies by the service, and by the driver alone.
pub(super) fn measure(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let stage = Stage::start(run, library)?;
    let client = stage.client()?;
    let (near, far) = frames(&client, LENGTHS[0].1)?;
    let mut queue = client.queue(16)?;
    let mut twin = Twin::start(run, library)?;
    let mut rows = Vec::new();
    for (name, bytes) in LENGTHS {
        for direction in Direction::BOTH {
            let rounds = run.part("long", ROUNDS);
            let mut columns: [[Vec<f64>; 3]; 3] = Default::default();
            for round in 0..=rounds {
                for (way, values) in Way::ALL.into_iter().zip(&mut columns) {
                    let twin_turn =
                        |twin: &mut Twin| twin.copy(direction, bytes, way.count(), way != Way::Asleep);
                    let twin_first = if round % 2 == 0 { Some(twin_turn(&mut twin)?) } else { None };
                    let ours = by_service(&mut queue, direction, (&near, &far), bytes, way)?;
                    let twin = twin_first.map_or_else(|| twin_turn(&mut twin), Ok)?;
                    // The first one warms up.
                    if round > 0 {
                        values[0].push(ours / twin.pinned);
                        values[1].push(ours / twin.registered);
                        values[2].push(bytes as f64 * way.count() as f64 / ours * 1e-9);
                    }
                }
                run.round_done();
            }
            for (way, [pinned, registered, rate]) in Way::ALL.into_iter().zip(&columns) {
                let what = format!("{name} {}, {}", direction.name(), way.name());
                let target = if bytes == LENGTHS[0].1 { TARGET } else { Target::None };
                rows.push(Row::new(format!("{what}: time / driver alone, pinned"), "x", target, pinned));
                let registered_name = format!("{what}: time / driver alone, registered");
                rows.push(Row::new(registered_name, "x", Target::None, registered));
                rows.push(Row::new(what, "GB/s", Target::None, rate));
            }
        }
    }
    check(&mut queue, &near, &far)?;
    Ok(rows)
}

/// Seconds of the copies.
fn by_service(
    queue: &mut Queue,
    direction: Direction,
    (near, far): (&Frame, &Frame),
    bytes: u64,
    way: Way,
) -> Result<f64, BenchError> {
    let (from, to) = direction.ends(near, far);
    match way {
        Way::Asleep => std::thread::sleep(REST),
        Way::Many | Way::Awake => {
            _ = queue.run(copy(from.slice(..WAKING_BYTES), to.slice(..WAKING_BYTES)))?
        }
    }
    let began = Instant::now();
    let copies = (0..way.count()).map(|_| copy(from.slice(..bytes), to.slice(..bytes)));
    for ticket in queue.submit_batch(copies)? {
        if queue.wait(ticket)?.engine != EngineKind::External {
            return Err("a copy did not go to the engine".into());
        }
    }
    Ok(began.elapsed().as_secs_f64())
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
    let far_before = other.frame(FIRST_BYTES).home(ENGINE).alloc()?;
    let mut whole = Vec::new();
    let mut host_only = Vec::new();
    for _ in 0..run.part("first", ROUNDS) {
        let began = Instant::now();
        let client = stage.client()?;
        let near = client.frame(FIRST_BYTES).alloc()?;
        let connected = began.elapsed();
        let far = client.frame(FIRST_BYTES).home(ENGINE).alloc()?;
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
