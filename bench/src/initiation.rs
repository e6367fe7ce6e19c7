//! Group `initiation`: the cost of starting a transfer, beside table 1 of Markatos and others (TR 182, 1997).
//!
//! ```text
//! round: 1,000 starts to alternating addresses (4.3) ─┬─ by the ring: submit; completions are untimed
//!                                                     ├─ by a system call: process_vm_readv of the same size
//!                                                     └─ by a request over the service's socket, and its answer
//! rows, ratios ──► a chart with a logarithmic axis, beside the four of table 1
//! ```
//!
//! The service runs in its own process, its worker awake. The system call also moves its 64 bytes; the
//! socket's request is a command that is refused at once, so only the round trip is timed.

use std::io::IoSliceMut;
use std::time::Instant;

use memferry::{Client, copy};
use memferry_charts::{DrawError, Group, Scale, Value};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::children::Service;
use crate::pair::{Pair, ask_over_socket, drain};
use crate::placement::{Class, Pinned};
use crate::plots::range;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{each_ns, random_bytes, since_ns};
use crate::{BenchError, plots};

const ROUNDS: usize = 41;
/// Starts per round, as in section 4.3.
const STARTS: u64 = 1000;
/// Submissions before completions are taken.
const BURST: u64 = 50;
/// Requests over the socket per round; fewer, because they take long.
const REQUESTS: usize = 100;
const BYTES: u64 = 64;
/// Number of addresses that the starts cycle through.
const PLACES: u64 = 16;
const TABLE_1_US: [(&str, f64); 4] = [
    ("kernel-level DMA", 25.1),
    ("repeated passing", 4.6),
    ("key-based DMA", 4.4),
    ("extended shadow addressing", 1.5),
];
/// Lowest ratio in table 1: kernel-level against repeated passing.
const MIN_RATIO: f64 = 5.5;

/// Nanoseconds per start in a round.
struct Measured {
    ring: f64,
    call: f64,
    socket: f64,
}

/// By the ring: mean over [`STARTS`].
fn by_ring(pair: &mut Pair) -> Result<f64, BenchError> {
    let mut spent = 0.0;
    for burst in 0..STARTS / BURST {
        pair.wake()?;
        let started = Instant::now();
        for start in 0..BURST {
            let at = (burst * BURST + start) % PLACES * BYTES;
            let source = pair.source.slice(at..at + BYTES);
            let destination = pair.destination.slice(at..at + BYTES);
            let _polled = pair.queue.submit(copy(&source, &destination))?;
        }
        spent += since_ns(started);
        drain(&mut pair.queue)?;
    }
    Ok(spent / STARTS as f64)
}

/// By a system call that moves the same bytes between the same number of addresses.
fn by_call(source: &[u8], destination: &mut [u8]) -> Result<f64, BenchError> {
    let mut next = 0;
    each_ns(STARTS as usize, || {
        let at = (next % PLACES * BYTES) as usize;
        next += 1;
        let from = RemoteIoVec { base: source.as_ptr() as usize + at, len: BYTES as usize };
        let to = &mut destination[at..at + BYTES as usize];
        match process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &[from])? as u64 {
            BYTES => Ok(()),
            fewer => Err(format!("process_vm_readv read {fewer} of {BYTES} bytes").into()),
        }
    })
}

pub(crate) fn measure(run: &Run, _class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("initiation", ROUNDS);
    let service = Service::start(run)?;
    let _pinned = Pinned::to(0)?;
    let mut pair = Pair::new(Client::connect(service.socket())?, BYTES * PLACES)?;
    let source = random_bytes((BYTES * PLACES) as usize, 3);
    let mut destination = vec![0; source.len()];
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(Measured {
            ring: by_ring(&mut pair)?,
            call: by_call(&source, &mut destination)?,
            socket: each_ns(REQUESTS, || ask_over_socket(&pair.client))?,
        });
        run.round_done();
    }
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let here = [
        ("a request over a socket", range(&of(|m| m.socket / 1e3))),
        ("a system call", range(&of(|m| m.call / 1e3))),
        ("memferry's ring", range(&of(|m| m.ring / 1e3))),
    ];
    run.picture("initiation", || draw(here))?;
    let mut rows: Vec<Row> = TABLE_1_US
        .iter()
        .map(|(name, us)| {
            Row::new(format!("1997: {name} (TR 182, table 1)"), "ns", Target::None, &[us * 1e3])
        })
        .collect();
    rows.extend([
        Row::new("a request over the socket, and its answer", "ns", Target::None, &of(|m| m.socket)),
        Row::new("a system call that moves 64 B", "ns", Target::None, &of(|m| m.call)),
        Row::new("memferry's ring: submit of a copy of 64 B", "ns", Target::None, &of(|m| m.ring)),
        Row::new(
            "the system call against the ring",
            "ratio",
            Target::AtLeast(MIN_RATIO),
            &of(|m| m.call / m.ring),
        ),
        Row::new(
            "the socket against the ring",
            "ratio",
            Target::AtLeast(MIN_RATIO),
            &of(|m| m.socket / m.ring),
        ),
    ]);
    Ok(rows)
}

/// Draws table 1 and the measured values as bars, in microseconds.
fn draw(here: [(&str, Option<Value>); 3]) -> Result<String, DrawError> {
    let then = TABLE_1_US.map(|(name, us)| (name, vec![Some(Value::from(us)), None]));
    let here = here.map(|(name, value)| (name, vec![None, value]));
    let groups: Vec<Group> =
        (then.into_iter().chain(here)).map(|(name, bars)| Group { name: name.to_owned(), bars }).collect();
    let title = "Starting a transfer: 1997 as published, here as measured";
    plots::bars(title, ("microseconds", Scale::Log10), &["1997", "here"], &groups)
}
