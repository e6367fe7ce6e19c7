//! The thesis's questions to this machine: all channels busy, and frames that alternate (3.4, 4.3). Measured, not simulated.
//!
//! ```text
//! endless transfers on every channel ─► refused, or waiting until they are cancelled
//! copies of one frame again and again, or of eight by turns ─► by the CPU, by the service one and eight at a time
//! ```
//!
//! What is measured here is reported, never asserted: it is this machine's and of this moment.

use std::time::Instant;

use memferry::{Client, Color24, Failure, Frame, Queue, ServiceConfig, Transfer};
use memferry_transfer::{Count2d, Fill2d, PixelSize, Plane};

use super::beds::BedError;
use super::safety::{Crowd, SHIFTED, shift};
use crate::claims::Place;
use crate::experiments::{Case, Judge, RunError};
use crate::judging::Finding;
use crate::verdict::{Basis, Status, Verdict};

/// What is judged here.
pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-bulk-alternating", place: Place::Live, judge: alternating }];

fn said(error: impl ToString) -> BedError {
    error.to_string()
}

/// A fill that touches one byte for minutes unless it is cancelled.
fn endless(frame: &Frame) -> Result<Transfer, BedError> {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(7).ok_or("a colour of 24 bits")?;
    Ok(Transfer::fill_2d(&frame.all(), Fill2d { count, destination, color }))
}

fn contents(frame: &Frame) -> Result<Vec<u8>, BedError> {
    let mut found = vec![0; SHIFTED];
    frame.read(0, &mut found).map_err(said)?;
    Ok(found)
}

/// More requests than a live lane has channels.
pub(super) fn crowd_live() -> Result<Crowd, BedError> {
    const CHANNELS: u32 = 4;
    const REQUESTS: u64 = 8;
    let config = ServiceConfig { workers: 1, channels_per_worker: CHANNELS, ..ServiceConfig::default() };
    let client = Client::embedded_with(config).map_err(said)?;
    let mut queue = client.queue(64).map_err(said)?;
    let busy = client.allocate(64).map_err(said)?;
    let mut running = Vec::new();
    for _ in 0..CHANNELS {
        running.push(queue.submit(endless(&busy)?).map_err(said)?);
    }
    let mut crowd = Crowd { refused: 0, waited: 0, wrong: 0 };
    let mut asked = Vec::new();
    for tag in 0..REQUESTS {
        let frame = client.allocate(SHIFTED as u64).map_err(said)?;
        frame.write(0, &shift(tag)[0]).map_err(said)?;
        let length = SHIFTED as u64 - 1;
        let copy = Transfer::copy(&frame.range(0, length), &frame.range(1, length)).map_err(said)?;
        let copy = if tag % 2 == 0 { copy } else { copy.refuse_when_busy() };
        asked.push((queue.submit(copy).map_err(said)?, frame));
    }
    // Those that would not wait have their answer while all channels are busy; then these are freed.
    let (waiting, refused): (Vec<_>, Vec<_>) = (0..).zip(asked).partition(|(tag, _)| tag % 2 == 0);
    for (tag, (ticket, frame)) in refused {
        let outcome = queue.wait(ticket, None).map_err(said)?.outcome;
        let kept = contents(&frame)? == shift(tag)[0];
        let is_busy = matches!(outcome, Err(Failure::ChannelsBusy { .. }));
        *(if kept && is_busy { &mut crowd.refused } else { &mut crowd.wrong }) += 1;
    }
    running.into_iter().try_for_each(|ticket| queue.cancel(ticket).map_err(said))?;
    for (tag, (ticket, frame)) in waiting {
        let outcome = queue.wait(ticket, None).map_err(said)?.outcome;
        let once = contents(&frame)? == shift(tag)[1];
        *(if once && outcome.is_ok() { &mut crowd.waited } else { &mut crowd.wrong }) += 1;
    }
    Ok(crowd)
}

/// Frames that alternate, and bytes of each: with their destinations more than the caches of any core.
const FRAMES: usize = 8;
const FRAME_BYTES: usize = 24 << 20;
/// Bytes of a request, which a second cache holds.
const PAYLOAD: usize = 256 << 10;
const REQUESTS: usize = 512;

/// Eight frames of each side, with the bytes that this process copies by itself.
struct Frames {
    queue: Queue,
    sides: Vec<[Frame; 2]>,
    own: Vec<[Vec<u8>; 2]>,
}

impl Frames {
    fn new() -> Result<Self, BedError> {
        let client =
            Client::embedded_with(ServiceConfig { workers: 1, ..ServiceConfig::default() }).map_err(said)?;
        let noise = |seed: usize| {
            let byte = move |at: usize| ((at + seed).wrapping_mul(0x9e37_79b9) >> 13) as u8;
            (0..FRAME_BYTES).map(byte).collect::<Vec<u8>>()
        };
        let mut sides = Vec::new();
        let mut own = Vec::new();
        for index in 0..FRAMES {
            let side = [client.allocate(FRAME_BYTES as u64), client.allocate(FRAME_BYTES as u64)];
            let [source, destination] = side.map(|frame| frame.map_err(said));
            let source = source?;
            let destination = destination?;
            let bytes = noise(index);
            source.write(0, &bytes).map_err(said)?;
            destination.write(0, &bytes).map_err(said)?;
            sides.push([source, destination]);
            own.push([bytes, noise(index + FRAMES)]);
        }
        Ok(Self { queue: client.queue(64).map_err(said)?, sides, own })
    }

    /// The frame of a request and where in it: one place again and again, or everything by turns.
    fn place(request: usize, alternates: bool) -> (usize, usize) {
        let turn = request / FRAMES;
        if alternates { (request % FRAMES, turn * PAYLOAD % (FRAME_BYTES - PAYLOAD)) } else { (0, 0) }
    }

    /// MB/s of the CPU's own copies.
    fn by_cpu(&mut self, alternates: bool) -> f64 {
        let begun = Instant::now();
        for request in 0..REQUESTS {
            let (frame, at) = Self::place(request, alternates);
            let [source, destination] = &mut self.own[frame];
            destination[at..at + PAYLOAD].copy_from_slice(&source[at..at + PAYLOAD]);
            std::hint::black_box(destination);
        }
        rate(begun)
    }

    /// MB/s of the service's copies of alternating frames, so many outstanding.
    fn offloaded(&mut self, outstanding: usize) -> Result<f64, BedError> {
        let begun = Instant::now();
        let mut tickets = std::collections::VecDeque::new();
        for request in 0..REQUESTS {
            if tickets.len() == outstanding
                && let Some(ticket) = tickets.pop_front()
            {
                self.queue.wait(ticket, None).map_err(said)?;
            }
            let (frame, at) = Self::place(request, true);
            let [source, destination] = &self.sides[frame];
            let range = |frame: &Frame| frame.range(at as u64, PAYLOAD as u64);
            let copy = Transfer::copy(&range(source), &range(destination)).map_err(said)?;
            tickets.push_back(self.queue.submit(copy).map_err(said)?);
        }
        for ticket in tickets {
            self.queue.wait(ticket, None).map_err(said)?;
        }
        Ok(rate(begun))
    }
}

fn rate(begun: Instant) -> f64 {
    (REQUESTS * PAYLOAD) as f64 / begun.elapsed().as_secs_f64() / 1e6
}

fn alternating(case: &Case<'_>) -> Result<Verdict, RunError> {
    let failed = |message: String| case.failed(message);
    let mut frames = Frames::new().map_err(failed)?;
    // Once for the caches and the pages, once for the figures.
    let mut figures = [0.0; 4];
    for _ in 0..2 {
        figures = [
            frames.by_cpu(false),
            frames.by_cpu(true),
            frames.offloaded(1).map_err(failed)?,
            frames.offloaded(FRAMES).map_err(failed)?,
        ];
    }
    let [same, by_turns, one, eight] = figures;
    let mut finding = Finding::of(case.claim);
    for (name, value) in
        [("cpu, same frame", same), ("cpu, eight frames", by_turns), ("one", one), ("eight", eight)]
    {
        finding.figure(name, value.round());
    }
    finding.check(
        true,
        format!(
            "copies of 256 KiB in MB/s: the CPU {same:.0} of one frame, {by_turns:.0} of eight; a lane {one:.0} with \
             one outstanding, {eight:.0} with eight"
        ),
    );
    let verdict = finding.verdict(Place::Live, Basis::Measured);
    Ok(Verdict { status: Status::Reported, unit: Some("MB/s".to_owned()), ..verdict })
}
