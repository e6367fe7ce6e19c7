//! Copies through the service that the client then reads, against process_vm_readv and reading.
//!
//! ```text
//! round, for each size: copy by the worker, poll, read every byte ─ process_vm_readv, read every byte the same way
//! ```
//!
//! "Moved and touched" is measured in two ways, the same on both sides: the client reads every byte, page by page into a private
//! page, or one line of each page and the last line. 4 KiB has a target for the first, 1 MiB for reading behind the copy:
//! `wait_range` for each part, which is read while the next parts are moved. Without that 1 MiB has no target: a worker that copies
//! before the client reads cannot be three times as fast as a system call that leaves the bytes in the reader's cache. Also
//! measured: not reading, the hint that the destination is read soon, and waiting instead of polling. The same buffers every time.

use memferry::{CacheHint, Client, copy};

use crate::BenchError;
use crate::children::Service;
use crate::pair::{Pair, Reader, poll_for};
use crate::peer::Peer;
use crate::placement::{Class, Pinned};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::each_ns;

const ROUNDS: usize = 21;

/// Bytes, name, copies per round, and required ratios to process_vm_readv when every byte is read.
///
/// The first ratio is for reading after the copy, the second for reading behind it.
const SIZES: [(u64, &str, usize, [Target; 2]); 2] = [
    (4 << 10, "4 KiB", 500, [Target::AtLeast(2.4), Target::None]),
    (1 << 20, "1 MiB", 20, [Target::None, Target::AtLeast(2.0)]),
];
/// Bytes waited for and read at a time behind a copy.
const PART: u64 = 64 << 10;
const READINGS: [&str; 2] = ["every byte read", "a line of each page read"];

struct Sides {
    pair: Pair,
    peer: Peer,
    reader: Reader,
}

/// Times of a round for one size, ns.
struct Measured {
    moved: f64,
    unread: f64,
    kept: f64,
    waited: f64,
    behind: f64,
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
        let unread = each_ns(count, || pair.copy(bytes))?;
        let kept = each_ns(count, || {
            let (source, destination) = pair.ranges(bytes);
            let transfer = copy(&source, &destination).with_hint(CacheHint::Keep);
            let ticket = pair.queue.submit(transfer)?;
            poll_for(&mut pair.queue, ticket)?;
            reader.frame(&pair.destination, bytes)
        })?;
        let waited = each_ns(count, || {
            let (source, destination) = pair.ranges(bytes);
            let ticket = pair.queue.submit(copy(&source, &destination))?;
            pair.queue.wait(ticket)?;
            reader.frame(&pair.destination, bytes)
        })?;
        let behind = each_ns(count, || {
            let (source, destination) = pair.ranges(bytes);
            let ticket = pair.queue.submit(copy(&source, &destination))?;
            for at in (0..bytes).step_by(PART as usize) {
                let part = at..(at + PART).min(bytes);
                pair.queue.wait_range(ticket.id(), part.clone())?;
                reader.part(&pair.destination, part)?;
            }
            pair.queue.wait(ticket)?;
            Ok(())
        })?;
        Ok(Measured { moved, unread, kept, waited, behind, read, moved_lightly, read_lightly })
    }
}

pub(crate) fn measure(run: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("moved", ROUNDS);
    let most = SIZES[SIZES.len() - 1].0;
    let service = Service::start(run)?;
    let mut peer = Peer::start(usize::try_from(most)?)?;
    let _pinned = Pinned::to(0)?;
    if let Err(error) = peer.read(4096) {
        let reason = format!("process_vm_readv is refused here: {error}");
        let titles = SIZES.iter().flat_map(|(_, size, ..)| READINGS.map(|reading| title(size, reading)));
        return Ok(titles.map(|title| Row::not_measured(&title, &reason)).collect());
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
    Ok(each.flat_map(|((bytes, size, _, targets), measured)| rows(size, bytes, targets, measured)).collect())
}

fn title(size: &str, reading: &str) -> String {
    format!("{size}, process_vm_readv against through the service, {reading}")
}

fn rows(size: &str, bytes: u64, targets: [Target; 2], measured: &[Measured]) -> Vec<Row> {
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let us = |how: &str, value| {
        Row::new(format!("{size} through the service, {how}"), "us", Target::None, &of(value))
    };
    let ratio = |how: &str, target, value| Row::new(title(size, how), "ratio", target, &of(value));
    let [every, light] = READINGS;
    let mut rows = vec![
        us("not read", |m| m.unread / 1000.0),
        us(every, |m| m.moved / 1000.0),
        ratio(every, targets[0], |m| m.read / m.moved),
        ratio(light, Target::None, |m| m.read_lightly / m.moved_lightly),
        ratio("every byte read, hinted to stay in the caches", Target::None, |m| m.read / m.kept),
        ratio("every byte read, waiting instead of polling", Target::None, |m| m.read / m.waited),
    ];
    // A copy of one part has nothing to read before its end.
    if bytes > PART {
        rows.push(ratio("every byte read behind the copy by wait_range", targets[1], |m| m.read / m.behind));
    }
    rows
}
