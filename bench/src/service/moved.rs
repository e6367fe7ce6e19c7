//! Copies through the service, read by the client, against process_vm_readv and reading.
//!
//! ```text
//! round, for each size: copy by the lane, poll, read every byte ─ process_vm_readv, read every byte in the same way
//! ```
//!
//! "Moved and touched" is the strict reading: the client reads every byte of the result, on both sides page by page into a
//! page of its own. Reading the first line of each page and the last line, and waiting instead of polling, are reported
//! beside it. The same buffers every time.

use memferry::{Client, Transfer};

use super::pair::{Pair, Reader, done};
use super::peer::Peer;
use crate::BenchError;
use crate::children::Service;
use crate::placement::{Class, Kept};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::each_ns;

const ROUNDS: usize = 21;

/// Bytes, their name, copies a round, and how many times cheaper than process_vm_readv they have to be.
const SIZES: [(u64, &str, usize, f64); 2] = [(4 << 10, "4 KiB", 500, 2.0), (1 << 20, "1 MiB", 20, 3.0)];

struct Sides {
    pair: Pair,
    peer: Peer,
    reader: Reader,
}

/// What a round measured of a size, ns.
struct Measured {
    moved: f64,
    waited: f64,
    read: f64,
    moved_lightly: f64,
    read_lightly: f64,
}

impl Sides {
    fn round(&mut self, bytes: u64, count: usize) -> Result<Measured, BenchError> {
        let Self { pair, peer, reader } = self;
        let length = usize::try_from(bytes)?;
        pair.wake()?;
        let moved = each_ns(count, || {
            pair.copy(bytes)?;
            reader.frame(&pair.destination, bytes)
        })?;
        let read = each_ns(count, || {
            peer.read(length)?;
            reader.buffer(&peer.buffer()[..length]);
            Ok(())
        })?;
        pair.wake()?;
        let moved_lightly = each_ns(count, || {
            pair.copy(bytes)?;
            reader.frame_lightly(&pair.destination, bytes)
        })?;
        let read_lightly = each_ns(count, || {
            peer.read(length)?;
            reader.buffer_lightly(&peer.buffer()[..length]);
            Ok(())
        })?;
        pair.wake()?;
        let waited = each_ns(count, || {
            let (source, destination) = pair.ranges(bytes);
            let ticket = pair.channel.submit(Transfer::copy(&source, &destination)?)?;
            done(pair.channel.wait(ticket, None)?)?;
            reader.frame(&pair.destination, bytes)
        })?;
        Ok(Measured { moved, waited, read, moved_lightly, read_lightly })
    }
}

/// Measures the part.
pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("moved", ROUNDS);
    let most = SIZES[SIZES.len() - 1].0;
    let service = Service::start(run)?;
    let mut peer = Peer::start(usize::try_from(most)?)?;
    let _kept = Kept::to(0)?;
    if let Err(error) = peer.read(4096) {
        let reason = format!("process_vm_readv is refused here: {error}");
        return Ok(SIZES.iter().map(|(_, name, ..)| Row::not_measured(&title(name), &reason)).collect());
    }
    let pair = Pair::new(Client::connect(service.socket())?, most)?;
    let mut sides = Sides { pair, peer, reader: Reader::new() };
    let mut measured = [const { Vec::new() }; SIZES.len()];
    for _ in 0..rounds {
        for ((bytes, _, count, _), measured) in SIZES.into_iter().zip(&mut measured) {
            measured.push(sides.round(bytes, count)?);
        }
        run.round_done();
    }
    let each = SIZES.into_iter().zip(&measured);
    Ok(each.flat_map(|((_, name, _, target), measured)| rows(name, target, measured)).collect())
}

fn title(size: &str) -> String {
    format!("{size}, process_vm_readv against through the service, every byte read")
}

fn rows(size: &str, target: f64, measured: &[Measured]) -> [Row; 4] {
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    [
        Row::new(
            format!("{size} through the service, every byte read"),
            "us",
            Target::None,
            &of(|m| m.moved / 1000.0),
        ),
        Row::new(title(size), "ratio", Target::AtLeast(target), &of(|m| m.read / m.moved)),
        Row::new(
            format!("{size}, the same, a line of each page read"),
            "ratio",
            Target::None,
            &of(|m| m.read_lightly / m.moved_lightly),
        ),
        Row::new(
            format!("{size}, the same, every byte read, waiting instead of polling"),
            "ratio",
            Target::None,
            &of(|m| m.read / m.waited),
        ),
    ]
}
