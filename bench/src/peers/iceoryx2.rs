//! Bytes handed to another process: through the service, and copied into a sample of iceoryx2 and sent; every byte is read.
//!
//! ```text
//! iceoryx2: ping on CPU 0 ═ own bytes ─► sample ═► pong on CPU 1 ═ own bytes ─► sample ═► ...; half of a round trip
//! memferry: submit ─► worker on CPU 1 copies from the other process's frame ─► complete, read
//! ```
//!
//! A program that produces its bytes in a sample needs no copy with iceoryx2, at any size; that is not measured.

use std::path::Path;

use memferry::Client;

use super::other::Other;
use super::{missing, subject, unpacked};
use crate::BenchError;
use crate::children::Service;
use crate::pair::{Pair, Reader};
use crate::placement::{Class, Pinned};
use crate::rows::{Better, Row, Subject, Target};
use crate::run::Run;
use crate::timing::each_ns;

pub(super) const SECTION: &str = "iceoryx2";
const ROUNDS: usize = 21;
const PROGRAM: &str = "iceoryx2/release/memferry-peer-iceoryx2";
/// The version that its Cargo.lock has.
const PEER: &str = "iceoryx2 0.10.0";

/// Bytes, name, and round trips per round.
type Size = (u64, &'static str, usize);

const SIZES: [Size; 3] = [(4 << 10, "4 KiB", 500), (64 << 10, "64 KiB", 100), (1 << 20, "1 MiB", 20)];

/// Both ends of it for messages of one size.
struct Ends {
    _pong: Other,
    ping: Other,
}

impl Ends {
    fn start(program: &Path, bytes: u64) -> Result<Self, BenchError> {
        let name = format!("memferry-bench-{}-{bytes}", std::process::id());
        let start = |role: &str, cpu: usize| -> Result<Other, BenchError> {
            let _pinned = Pinned::to(cpu)?;
            let words = [&program.display().to_string(), role, &name, &bytes.to_string()].map(String::from);
            Other::start(&words, &[])
        };
        let ready = |end: &Other, said: String| {
            if said == "ready" { Ok(()) } else { Err(format!("{} said {said}", end.process())) }
        };
        let pong = start("pong", 1)?;
        ready(&pong, pong.answer()?)?;
        let ping = start("ping", 0)?;
        ready(&ping, ping.answer()?)?;
        Ok(Self { _pong: pong, ping })
    }

    /// Nanoseconds of one way. Between the calls, the other end polls, so there is only one pair at a time.
    fn one_way_ns(&mut self, count: usize) -> Result<f64, BenchError> {
        Ok(self.ping.ask(&count.to_string())?.parse()?)
    }
}

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part(SECTION, ROUNDS);
    let Some(program) = unpacked(PROGRAM) else {
        return Ok(vec![Row::not_compared(&about("messages", class), &missing("the program built on it"))]);
    };
    let service = Service::start(run)?;
    let mut pair = Pair::new(Client::connect(service.socket())?, SIZES[SIZES.len() - 1].0)?;
    let mut reader = Reader::new();
    let mut sides = [const { Vec::new() }; SIZES.len()];
    for _ in 0..rounds {
        for ((bytes, _, count), sides) in SIZES.into_iter().zip(&mut sides) {
            let theirs = Ends::start(&program, bytes)?.one_way_ns(count)?;
            let _pinned = Pinned::to(0)?;
            pair.wake()?;
            let ours = each_ns(count, || {
                pair.copy(bytes)?;
                reader.frame(&pair.destination, bytes)
            })?;
            sides.push((ours / 1e3, theirs / 1e3));
        }
        run.round_done();
    }
    let row = |((_, size, _), sides): (Size, &Vec<(f64, f64)>)| {
        Row::against(
            &about(&format!("{size} copied for another process, every byte read"), class),
            ("us", Better::Lower),
            Target::None,
            sides,
        )
    };
    Ok(SIZES.into_iter().zip(&sides).map(row).collect())
}

fn about(what: &str, class: Class) -> Subject {
    subject(SECTION, what, PEER, class)
}
