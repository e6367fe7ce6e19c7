//! Group `initiation`: what it takes to start a transfer here, beside table 1 of Markatos and others (TR 182, 1997).
//!
//! ```text
//! round: 1,000 starts to alternating addresses (4.3) ─┬─ by the ring: submit; completions outside of the time
//!                                                     ├─ by a system call: process_vm_readv of as many bytes
//!                                                     └─ by a request over the service's socket, and its answer
//! rows, ratios ──► bars on one logarithmic axis with the four of table 1
//! ```
//!
//! The service runs in a process of its own, its worker awake. The system call also moves its 64 bytes before it returns; the
//! socket's request is a command that is refused at once, so that only the way there and back is timed.

use std::hint::black_box;
use std::io::IoSliceMut;
use std::path::Path;
use std::time::Instant;

use memferry::{Client, Handle, Transfer};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use plotters::prelude::*;

use crate::BenchError;
use crate::children::Service;
use crate::placement::{Class, Kept};
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::service::pair::Pair;
use crate::timing::{each_ns, median, random_bytes, since_ns};

const ROUNDS: usize = 41;
/// Starts of a round, as in section 4.3.
const STARTS: u64 = 1000;
/// Submissions before completions are taken.
const BURST: u64 = 50;
/// Requests over the socket of a round; they take long.
const REQUESTS: usize = 100;
const BYTES: u64 = 64;
/// Addresses that the starts alternate between.
const PLACES: u64 = 16;
/// Table 1, microseconds.
const TABLE_1: [(&str, f64); 4] = [
    ("1997: kernel-level DMA", 25.1),
    ("1997: repeated passing", 4.6),
    ("1997: key-based DMA", 4.4),
    ("1997: extended shadow addressing", 1.5),
];
/// The least of the ratios of table 1: kernel-level against repeated passing.
const LEAST_RATIO: f64 = 5.5;

/// What a round measured, nanoseconds of a start.
struct Measured {
    ring: f64,
    call: f64,
    socket: f64,
}

/// By the ring: the mean over [`STARTS`].
fn by_ring(pair: &mut Pair) -> Result<f64, BenchError> {
    let mut spent = 0.0;
    for burst in 0..STARTS / BURST {
        pair.wake()?;
        let started = Instant::now();
        for start in 0..BURST {
            let at = (burst * BURST + start) % PLACES * BYTES;
            let source = pair.source.range(at, BYTES);
            let destination = pair.destination.range(at, BYTES);
            pair.queue.submit(Transfer::copy(&source, &destination)?)?;
        }
        spent += since_ns(started);
        while pair.queue.outstanding() > 0 {
            black_box(pair.queue.poll());
        }
    }
    Ok(spent / STARTS as f64)
}

/// By a system call that moves as many bytes between as many addresses of this process.
fn by_call(source: &[u8], destination: &mut [u8]) -> Result<f64, BenchError> {
    let mut next = 0;
    each_ns(STARTS as usize, || {
        let at = (next % PLACES * BYTES) as usize;
        next += 1;
        let from = RemoteIoVec { base: source.as_ptr() as usize + at, len: BYTES as usize };
        let to = &mut destination[at..at + BYTES as usize];
        process_vm_readv(Pid::this(), &mut [IoSliceMut::new(to)], &[from])?;
        Ok(())
    })
}

pub(crate) fn measure(run: &Run, _class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("initiation", ROUNDS);
    let service = Service::start(run)?;
    let _kept = Kept::to(0)?;
    let mut pair = Pair::new(Client::connect(service.socket())?, BYTES * PLACES)?;
    let source = random_bytes((BYTES * PLACES) as usize, 3);
    let mut destination = vec![0; source.len()];
    let mut measured = Vec::new();
    for _ in 0..rounds {
        measured.push(Measured {
            ring: by_ring(&mut pair)?,
            call: by_call(&source, &mut destination)?,
            socket: each_ns(REQUESTS, || {
                let _ = black_box(pair.client.revoke(Handle::from_bits(0)));
                Ok(())
            })?,
        });
        run.round_done();
    }
    let of = |value: fn(&Measured) -> f64| measured.iter().map(value).collect::<Vec<_>>();
    let live = [
        ("here: a request over a socket", median(&of(|m| m.socket)) / 1e3),
        ("here: a system call", median(&of(|m| m.call)) / 1e3),
        ("here: memferry's ring", median(&of(|m| m.ring)) / 1e3),
    ];
    run.picture("initiation", |path| draw(path, &[&TABLE_1[..], &live[..]].concat()))?;
    let mut rows: Vec<Row> = TABLE_1
        .iter()
        .map(|(name, us)| Row::new(format!("{name} (TR 182, table 1)"), "ns", Target::None, &[us * 1e3]))
        .collect();
    rows.extend([
        Row::new("a request over the socket, and its answer", "ns", Target::None, &of(|m| m.socket)),
        Row::new("a system call that moves 64 B", "ns", Target::None, &of(|m| m.call)),
        Row::new("memferry's ring: submit of a copy of 64 B", "ns", Target::None, &of(|m| m.ring)),
        Row::new(
            "the system call against the ring",
            "ratio",
            Target::AtLeast(LEAST_RATIO),
            &of(|m| m.call / m.ring),
        ),
        Row::new(
            "the socket against the ring",
            "ratio",
            Target::AtLeast(LEAST_RATIO),
            &of(|m| m.socket / m.ring),
        ),
    ]);
    Ok(rows)
}

/// Draws bars of microseconds on a logarithmic axis, the first at the top.
fn draw(path: &Path, bars: &[(&str, f64)]) -> Result<(), BenchError> {
    let text = svg(bars).map_err(|error| format!("cannot draw the initiations: {error}"))?;
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

fn svg(bars: &[(&str, f64)]) -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (960, 360)).into_drawing_area();
    root.fill(&WHITE)?;
    let title = "Starting a transfer: 1997 as published, here as measured";
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(10)
        .build_cartesian_2d((0.001..100.0).log_scale(), 0.0..bars.len() as f64)?;
    chart.configure_mesh().disable_y_mesh().disable_y_axis().x_desc("microseconds").draw()?;
    for (place, (name, us)) in bars.iter().rev().enumerate() {
        let low = place as f64;
        let colour = if name.starts_with("here") { 114 } else { 190 };
        let bar = [(0.001, low + 0.15), (*us, low + 0.85)];
        chart.draw_series([Rectangle::new(bar, RGBColor(0, colour, 178).mix(0.5).filled())])?;
        let label = format!("{name}: {us:.3} us");
        chart.draw_series([Text::new(label, (0.0012, low + 0.65), ("sans-serif", 14))])?;
    }
    root.present()?;
    drop(chart);
    drop(root);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_names_each_bar_with_its_figure() {
        let text = svg(&[("1997: a", 25.1), ("here: b", 0.05)]).unwrap();
        for word in ["<svg", "1997: a: 25.100 us", "here: b: 0.050 us", "microseconds"] {
            assert!(text.contains(word), "{word} is missing");
        }
    }
}
