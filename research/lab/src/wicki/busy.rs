//! Live experiments of the thesis: all engine channels busy, and alternating frames (3.4, 4.3).
//!
//! ```text
//! endless transfers on every channel ─► refused, or waiting until they are cancelled
//! memferry-bench service --only turns ─► copies of one frame and of eight by turns, one and eight outstanding
//! ```
//!
//! The orders are judged; the rates themselves are reported, since they depend on this machine and its load.

use memferry::{Client, Color24, Failure, Frame, ServiceConfig, Transfer, copy, fill_2d};
use memferry_transfer::{Count2d, Fill2d, PixelSize, Plane};

use super::beds::BedError;
use super::crowd::{Crowd, shift};
use crate::claims::Place;
use crate::live::{Rows, ordered};
use crate::paper::{Case, Judge, RunError};
use crate::verdict::Verdict;

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-bulk-alternating", place: Place::Live, judge: alternating }];

fn message(error: impl ToString) -> BedError {
    error.to_string()
}

/// A fill that touches one byte for minutes unless it is cancelled.
fn endless(frame: &Frame) -> Result<Transfer, BedError> {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(7).ok_or("a colour of 24 bits")?;
    Ok(fill_2d(frame, Fill2d { count, destination, color }))
}

/// Bytes of a request's frame. Shorter ones need no engine channel: the worker moves them at once.
const SHIFTED: usize = 64 << 10;

fn contents(frame: &Frame) -> Result<Vec<u8>, BedError> {
    let mut found = vec![0; SHIFTED];
    frame.read(0, &mut found).map_err(message)?;
    Ok(found)
}

/// More requests than the live worker has engine channels.
pub(super) fn crowd_live() -> Result<Crowd, BedError> {
    const CHANNELS: u32 = 4;
    const REQUESTS: u64 = 8;
    let config = ServiceConfig { workers: 1, channels_per_worker: CHANNELS, ..ServiceConfig::default() };
    let client = Client::embedded_with(config).map_err(message)?;
    let mut queue = client.queue(64).map_err(message)?;
    let busy = client.frame(64).alloc().map_err(message)?;
    let mut running = Vec::new();
    for _ in 0..CHANNELS {
        running.push(queue.submit(endless(&busy)?).map_err(message)?);
    }
    let mut crowd = Crowd { refused: 0, waited: 0, wrong: 0 };
    let mut asked = Vec::new();
    for tag in 0..REQUESTS {
        let frame = client.frame(SHIFTED as u64).alloc().map_err(message)?;
        frame.write(0, &shift(tag, SHIFTED)[0]).map_err(message)?;
        let length = SHIFTED as u64 - 1;
        let copy = copy(frame.slice(..length), frame.slice(1..1 + length));
        let copy = if tag % 2 == 0 { copy } else { copy.refuse_when_busy() };
        asked.push((queue.submit(copy).map_err(message)?, frame));
    }
    // The requests that refuse to wait complete while all channels are busy; then the channels are freed.
    let (waiting, refused): (Vec<_>, Vec<_>) = (0..).zip(asked).partition(|(tag, _)| tag % 2 == 0);
    for (tag, (ticket, frame)) in refused {
        let outcome = queue.wait(ticket).map_err(|error| error.failure);
        let kept = contents(&frame)? == shift(tag, SHIFTED)[0];
        let is_busy = matches!(outcome, Err(Failure::ChannelsBusy { .. }));
        *(if kept && is_busy { &mut crowd.refused } else { &mut crowd.wrong }) += 1;
    }
    running.into_iter().try_for_each(|ticket| queue.cancel(ticket).map_err(message))?;
    for (tag, (ticket, frame)) in waiting {
        let outcome = queue.wait(ticket);
        let once = contents(&frame)? == shift(tag, SHIFTED)[1];
        *(if once && outcome.is_ok() { &mut crowd.waited } else { &mut crowd.wrong }) += 1;
    }
    Ok(crowd)
}

/// Names of the figures, with the rows of the benchmark.
const FIGURES: [(&str, &str); 4] = [
    ("cpu, same frame", "256 KiB by the CPU, one buffer again and again"),
    ("cpu, eight frames", "256 KiB by the CPU, eight buffers by turns"),
    ("one", "256 KiB by the service, eight frames by turns, one outstanding"),
    ("eight", "256 KiB by the service, eight frames by turns, eight outstanding"),
];

fn alternating(case: &Case<'_>) -> Result<Verdict, RunError> {
    let figures = Rows::measured("service", Some("turns")).and_then(|rows| rows.values(&FIGURES));
    ordered(case, "MB/s", figures, |finding, of| {
        let rate = |name: &str| of.get(name).copied().unwrap_or_default();
        let [same, turns] = ["cpu, same frame", "cpu, eight frames"].map(rate);
        let [one, eight] = ["one", "eight"].map(rate);
        let words = format!(
            "copies of 256 KiB by the CPU: {same:.0} MB/s of one frame, {turns:.0} of eight by turns"
        );
        finding.check(turns < same, words);
        let words = format!(
            "by the service, eight frames by turns: {eight:.0} MB/s with eight outstanding, {one:.0} with one"
        );
        finding.check(eight > one, words);
    })
}
