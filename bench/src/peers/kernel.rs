//! Copies from another process against `process_vm_readv`, the kernel's own call, which needs no set-up; every byte is read.

use memferry::Client;

use super::subject;
use crate::BenchError;
use crate::children::Service;
use crate::pair::{Pair, Reader};
use crate::peer::Peer;
use crate::placement::{Class, Pinned};
use crate::rows::{Better, Row, Subject, Target};
use crate::run::Run;
use crate::timing::each_ns;

pub(super) const SECTION: &str = "kernel";
const ROUNDS: usize = 21;

/// Bytes, name, copies per round, and the gain that the documents claim.
type Size = (u64, &'static str, usize, f64);

const SIZES: [Size; 2] = [(4 << 10, "4 KiB", 500, 2.0), (1 << 20, "1 MiB", 20, 1.3)];

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part(SECTION, ROUNDS);
    let most = SIZES[SIZES.len() - 1].0;
    let service = Service::start(run)?;
    let mut peer = Peer::start(usize::try_from(most)?)?;
    let _pinned = Pinned::to(0)?;
    if let Err(error) = peer.read(4096) {
        let row = |(_, size, ..): Size| {
            Row::not_compared(
                &about(size, class),
                &format!("NOT RUN: process_vm_readv is refused here: {error}"),
            )
        };
        return Ok(SIZES.into_iter().map(row).collect());
    }
    let mut pair = Pair::new(Client::connect(service.socket())?, most)?;
    let mut reader = Reader::new();
    let mut sides = [const { Vec::new() }; SIZES.len()];
    for _ in 0..rounds {
        for ((bytes, _, count, _), sides) in SIZES.into_iter().zip(&mut sides) {
            let length = usize::try_from(bytes)?;
            pair.wake()?;
            let ours = each_ns(count, || {
                pair.copy(bytes)?;
                reader.frame(&pair.destination, bytes)
            })?;
            let theirs = each_ns(count, || {
                peer.read(length)?;
                reader.buffer(&peer.buffer()[..length]);
                Ok(())
            })?;
            sides.push((ours / 1e3, theirs / 1e3));
        }
        run.round_done();
    }
    let row = |((_, size, _, least), sides): (Size, &Vec<(f64, f64)>)| {
        Row::against(&about(size, class), ("us", Better::Lower), Target::AtLeast(least), sides)
    };
    Ok(SIZES.into_iter().zip(&sides).map(row).collect())
}

fn about(size: &str, class: Class) -> Subject {
    subject(SECTION, format!("{size} through the service, every byte read"), "process_vm_readv", class)
}
