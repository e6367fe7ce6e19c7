//! Copies of an embedded client, against process_vm_readv.
//!
//! ```text
//! round, for each size: inline_copy, frame to frame, in this process ─ process_vm_readv of the same size from another
//! ```
//!
//! The same buffers every time on both sides, so small ones are cached. Neither side reads what it copied.

use memferry::{Client, Queue, Region, copy};

use crate::BenchError;
use crate::pair::Pair;
use crate::peer::Peer;
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::each_ns;

const ROUNDS: usize = 21;

/// Bytes, name, copies per round, and required ratio to process_vm_readv.
const SIZES: [(u64, &str, usize, f64); 3] =
    [(4 << 10, "4 KiB", 1000, 20.0), (1 << 20, "1 MiB", 20, 3.4), (16 << 20, "16 MiB", 2, 2.9)];

/// Copies by an embedded client, on this thread if the client can.
pub(super) fn inline_copy(
    queue: &mut Queue,
    source: &Region,
    destination: impl Into<Region>,
) -> Result<(), BenchError> {
    queue.run(copy(source, destination))?;
    Ok(())
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("embedded", ROUNDS);
    let most = SIZES[SIZES.len() - 1].0;
    let mut peer = Peer::start(usize::try_from(most)?)?;
    let client = Client::embedded()?;
    let _pinned = Pinned::to(0)?;
    let mut pair = Pair::new(client, most)?;
    if let Err(error) = peer.read(4096) {
        let reason = format!("process_vm_readv is refused here: {error}");
        return Ok(SIZES.iter().map(|(_, name, ..)| Row::not_measured(&title(name), &reason)).collect());
    }
    let mut ratios = [const { Vec::new() }; SIZES.len()];
    let mut times = [const { Vec::new() }; SIZES.len()];
    for _ in 0..rounds {
        for (index, (bytes, _, count, _)) in SIZES.into_iter().enumerate() {
            let (source, destination) = pair.ranges(bytes);
            let mut ours = || inline_copy(&mut pair.queue, &source, &destination);
            ours()?;
            let copy = each_ns(count, ours)?;
            let length = usize::try_from(bytes)?;
            peer.read(length)?;
            let call = each_ns(count, || peer.read(length))?;
            ratios[index].push(call / copy);
            times[index].push(copy / 1000.0);
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ((_, name, _, target), (ratios, times)) in SIZES.into_iter().zip(ratios.iter().zip(&times)) {
        rows.push(Row::new(format!("{name}, embedded copy"), "us", Target::None, times));
        rows.push(Row::new(title(name), "ratio", Target::AtLeast(target), ratios));
    }
    Ok(rows)
}

fn title(size: &str) -> String {
    format!("{size}, process_vm_readv against an embedded copy")
}
