//! Hardware-synchronized transfers through the service, with a device frame (Wicki 2014, 2.3.2.2 and 5.3).
//!
//! ```text
//! peripheral ── request line ──► SDMA model ── one unit ──► memory       every unit × direction × shape, one request at a time
//! client that drives it ── device frame ──► Service      any other client ──► refused; cannot be granted the frame
//! ```
//!
//! The thesis left these transfers to others. A model of a peripheral with one data register is on the bus. A client needs a
//! capability for the register to wait for its request lines, and that capability cannot be granted.

use core::time::Duration;

use memferry_driven::{RequestLines, SdmaOptions};
use memferry_models::sdma::{Config, Sdma};
use memferry_models::{Ram, WithRegister};
use memferry_path::{CapabilityError, Grantee};
use memferry_transfer::{
    Completion, Failure, Handle, Operation, PixelSize, SessionId, Side, Span, SyncUnit, Synchronized, Terms,
};

use super::service::{Service, ServiceError};
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

const MEMORY: u32 = 0x8000_0000;
const MEMORY_BYTES: usize = 4096;
const REGISTER: u32 = 0x4806_0000;
/// Request lines of the peripheral.
const READABLE: u8 = 35;
const WRITABLE: u8 = 34;
const DRIVER: SessionId = SessionId(1);
const STRANGER: SessionId = SessionId(2);
/// Longer than any unit takes; after this time nothing moves without a request.
const SETTLED: Duration = Duration::from_micros(100);

type Board = WithRegister<Ram>;

/// The service, the peripheral, and two clients, one of which drives the peripheral.
struct Bench {
    service: Service<Board>,
    register: Handle,
    memory: Handle,
}

impl Bench {
    fn new() -> Result<Self, ServiceError> {
        let board = WithRegister::new(Ram::new(MEMORY.into(), vec![0; MEMORY_BYTES]), REGISTER);
        let device = Sdma::new(Config::default(), board);
        let mut service = Service::new(device, 4, SdmaOptions::default())?;
        let lines = RequestLines { readable: Some(READABLE), writable: Some(WRITABLE) };
        let register = service.device_frame(DRIVER, REGISTER, 4, lines)?;
        let memory = service.frame(DRIVER, MEMORY, MEMORY_BYTES as u64)?;
        Ok(Self { service, register, memory })
    }

    fn submit(&mut self, shape: Synchronized, terms: Terms) -> Result<(), ServiceError> {
        let register = Span::new(self.register, 0);
        let memory = Span::new(self.memory, 0);
        let (source, destination) = match shape.device {
            Side::Source => (register, memory),
            Side::Destination => (memory, register),
        };
        let operation = Operation::Synchronized { source, destination, shape };
        self.service.submit(DRIVER, 1, operation, terms)
    }

    /// Raises the request line `times` times at once and runs everything that follows. Returns the number of requests taken.
    fn raise_requests(&mut self, device: Side, times: u32) -> u32 {
        let line = if device == Side::Source { READABLE } else { WRITABLE };
        let taken = self
            .service
            .with_device(|device| (0..times).filter(|_| device.request(usize::from(line))).count() as u32);
        self.settle();
        taken
    }

    fn settle(&mut self) {
        self.service.turn();
        self.service.pass(SETTLED.as_nanos() as u64 * 1000);
        self.service.turn();
    }

    /// Bytes moved through the register so far.
    fn moved(&self, device: Side, received: usize) -> usize {
        self.service.with_device(|sdma| match device {
            Side::Source => received - sdma.bus().unread(),
            Side::Destination => sdma.bus().sent().len(),
        })
    }

    fn ended(&mut self) -> Option<Completion> {
        self.service.take_completions().first().map(|completed| completed.completion)
    }
}

/// Results for all shapes.
#[derive(Default)]
struct Tally {
    shapes: u32,
    requests: u32,
    wrong: Vec<String>,
}

/// Elements of the unit that is moved by the request after `done` elements.
fn unit_elements(shape: &Synchronized, done: u32) -> u32 {
    let total = shape.elements * shape.frames;
    let wanted = match shape.unit {
        SyncUnit::Element => 1,
        SyncUnit::Frame => shape.elements - done % shape.elements,
        SyncUnit::Packet { elements } => elements.into(),
        SyncUnit::Block => total,
    };
    wanted.min(total - done)
}

/// Runs one shape to its end, request by request.
fn run_shape(shape: Synchronized, tally: &mut Tally) -> Result<(), ServiceError> {
    let mut bench = Bench::new()?;
    let total = shape.elements * shape.frames;
    let size = shape.element.bytes() as usize;
    let data: Vec<u8> = (0..total as usize * size).map(|at| (at * 7 + 1) as u8).collect();
    bench.service.with_device(|device| match shape.device {
        Side::Source => device.bus_mut().receive(&data),
        Side::Destination => device.bus_mut().bus_mut().bytes_mut()[..data.len()].copy_from_slice(&data),
    });
    bench.submit(shape, Terms::default())?;
    bench.settle();
    let mut done = 0;
    let mut wrong = false;
    while done < total && !wrong {
        wrong = bench.moved(shape.device, data.len()) != done as usize * size || bench.ended().is_some();
        tally.requests += bench.raise_requests(shape.device, 1);
        done += unit_elements(&shape, done);
    }
    let end = bench.ended();
    let right =
        end.is_some_and(|end| end.outcome.result.is_ok() && end.outcome.bytes_done == data.len() as u64);
    let arrived = bench.service.with_device(|device| {
        let board = device.bus();
        let found = if shape.device == Side::Source { board.bus().bytes() } else { board.sent() };
        found.get(..data.len()) == Some(&data[..])
            && device.complaints().is_empty()
            && board.underflows() == 0
    });
    tally.shapes += 1;
    if wrong || !right || !arrived {
        tally.wrong.push(format!("{shape:?} moved other data"));
    }
    Ok(())
}

fn every_shape() -> impl Iterator<Item = Synchronized> {
    let units = [
        SyncUnit::Element,
        SyncUnit::Frame,
        SyncUnit::Packet { elements: 2 },
        SyncUnit::Packet { elements: 5 },
        SyncUnit::Block,
    ];
    let pixels = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32];
    let counts = [(1, 1), (1, 4), (4, 1), (3, 3), (5, 2)];
    let shapes = move |device| {
        units.into_iter().flat_map(move |unit| {
            pixels.into_iter().flat_map(move |element| {
                counts.map(|(elements, frames)| Synchronized { device, element, elements, frames, unit })
            })
        })
    };
    [Side::Source, Side::Destination].into_iter().flat_map(shapes)
}

const SMALL: Synchronized = Synchronized {
    device: Side::Source,
    element: PixelSize::Bits32,
    elements: 4,
    frames: 2,
    unit: SyncUnit::Frame,
};

/// Whether a request that comes before the last one was served ends the transfer, and the client sees it.
fn early_request_fails() -> Result<bool, ServiceError> {
    let mut bench = Bench::new()?;
    bench.service.with_device(|device| device.bus_mut().receive(&[9; 32]));
    bench.submit(SMALL, Terms::default())?;
    bench.settle();
    let taken = bench.raise_requests(Side::Source, 2);
    let end = bench.ended();
    Ok(taken == 1 && end.is_some_and(|end| end.outcome.result == Err(Failure::RequestDropped)))
}

/// Whether a client that does not drive the peripheral can neither use its frame nor be granted it.
fn others_are_refused() -> Result<bool, ServiceError> {
    let mut bench = Bench::new()?;
    let own = bench.service.frame(STRANGER, MEMORY, 64)?;
    let source = Span::new(bench.register, 0);
    let destination = Span::new(own, 0);
    let stolen = Operation::Synchronized { source, destination, shape: SMALL };
    bench.service.submit(STRANGER, 2, stolen, Terms::default())?;
    bench.settle();
    let refused = bench.ended().map(|end| end.outcome.result);
    let granted = bench.service.grant(DRIVER, bench.register, Grantee::Session(STRANGER));
    let unknown = Failure::UnknownHandle { side: Side::Source, handle: bench.register };
    Ok(refused == Some(Err(unknown))
        && granted == Err(CapabilityError::NotGrantable(bench.register))
        && bench.raise_requests(Side::Source, 1) == 0)
}

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-hardware-sync", place: Place::Simulated, judge }];

/// Judges all shapes, and the refusals.
fn judge(case: &Case<'_>) -> Result<Verdict, RunError> {
    let failed = |error: ServiceError| case.failed(error);
    let mut tally = Tally::default();
    for shape in every_shape() {
        run_shape(shape, &mut tally).map_err(failed)?;
    }
    let mut finding = Finding::of(case.claim);
    finding.figure("shapes", f64::from(tally.shapes)).figure("requests", f64::from(tally.requests));
    let words = match tally.wrong.first() {
        None => format!(
            "{} shapes, {} requests, each moved exactly its unit and nothing moved without one",
            tally.shapes, tally.requests
        ),
        Some(first) => format!("{} of {} shapes: {first}", tally.wrong.len(), tally.shapes),
    };
    finding.check(tally.wrong.is_empty(), words);
    finding.check(
        early_request_fails().map_err(failed)?,
        "a request before the previous one was served ended the transfer as dropped",
    );
    finding.check(
        others_are_refused().map_err(failed)?,
        "a client without the device frame was refused, and the frame could not be granted",
    );
    Ok(finding.verdict(Place::Simulated, Basis::Explored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use memferry_clock::Instant;

    #[test]
    fn one_request_moves_one_unit() {
        let mut tally = Tally::default();
        for shape in every_shape() {
            run_shape(shape, &mut tally).expect("the service runs");
        }
        assert_eq!((tally.shapes, tally.wrong), (150, vec![]));
    }

    #[test]
    fn early_requests_and_strangers_are_refused() {
        assert_eq!((early_request_fails(), others_are_refused()), (Ok(true), Ok(true)));
    }

    #[test]
    fn a_deadline_ends_the_wait_for_a_device() {
        let mut bench = Bench::new().expect("the service runs");
        bench.service.with_device(|device| device.bus_mut().receive(&[9; 32]));
        let deadline = Some(Instant::ORIGIN.after(Duration::from_millis(5)));
        bench.submit(SMALL, Terms { deadline, ..Terms::default() }).expect("the queue is open");
        bench.settle();
        assert_eq!(bench.raise_requests(Side::Source, 1), 1);
        assert_eq!(bench.ended(), None, "one of two frames has moved");
        bench.service.pass(Duration::from_millis(6).as_nanos() as u64 * 1000);
        bench.settle();
        let end = bench.ended().expect("the deadline ends it");
        assert_eq!((end.outcome.result, end.outcome.bytes_done), (Err(Failure::DeadlineExceeded), 16));
    }
}
