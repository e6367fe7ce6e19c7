//! One scatter-gather request compared with one request for each frame (thesis, 5.3: it expects the first to cost less).
//!
//! ```text
//! n frames ─┬─ one call that names all ─► driver ─► one linked list of the device ─► one interrupt ─► one reply
//!           └─ n calls, one after the other, or all outstanding ─► n transfers     ─► n interrupts  ─► n replies
//! ```
//!
//! The device loads the list's descriptors itself. With free calls only what the list saves the driver is left: registers
//! and interrupts of all frames but one, for descriptors in memory. There the list is compared with the same request moved
//! frame by frame, so that the claim fails if the list itself does not help.

use super::board;
use super::clients::{Call, DeviceTimes, Outcome, Work, serve, serve_by_parts};
use super::host::Host;
use super::service::ServiceError;
use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

pub(super) const JUDGES: [Judge; 1] =
    [Judge { claim: "wicki-scatter-gather", place: Place::Simulated, judge }];

/// Number of frames of a request, and bytes of each frame.
const CASES: [(usize, u64); 6] =
    [(2, 4096), (8, 4096), (32, 4096), (2, 256 << 10), (8, 256 << 10), (32, 256 << 10)];
const SEED: u64 = 1;

/// Milliseconds of a request's ways.
struct Times {
    list: f64,
    by_parts: f64,
    in_sequence: f64,
    at_once: f64,
}

impl Times {
    fn of(host: &Host, device: &DeviceTimes, (frames, length): (usize, u64)) -> Result<Self, ServiceError> {
        let plain = Work { transfers: frames, frames, ..Work::once(1, Call::Simple, length) };
        let listed = Work { frames, ..Work::once(1, Call::ScatterGather, length) };
        let milliseconds = |outcome: Outcome| outcome.elapsed as f64 / 1e9;
        Ok(Self {
            list: milliseconds(serve(host, device, &listed)?),
            by_parts: milliseconds(serve_by_parts(host, device, &listed)?),
            in_sequence: milliseconds(serve(host, device, &plain)?),
            at_once: milliseconds(serve(host, device, &Work { outstanding: frames, ..plain })?),
        })
    }
}

/// Words for the cases in which something does not hold.
fn verdict_on(what: &str, broken: &[String]) -> String {
    match broken.is_empty() {
        true => format!("{what} in all cases"),
        false => format!("{what}, but not at {}", broken.join(", ")),
    }
}

fn judge(case: &Case<'_>) -> Result<Verdict, RunError> {
    let board = board(case.parameters, SEED)?;
    let failed = |error: ServiceError| case.failed(error);
    let mut finding = Finding::of(case.claim);
    let mut slower = Vec::new();
    let mut helpless = Vec::new();
    let mut costly = Vec::new();
    for (frames, length) in CASES {
        let name = format!("{frames} frames of {} KiB", length >> 10);
        let of = |host: &Host| Times::of(host, &board.device, (frames, length)).map_err(failed);
        let times = of(&board.host)?;
        finding.figure(format!("{name}: one request, ms"), times.list);
        finding.figure(format!("{name}: one after the other, ms"), times.in_sequence);
        finding.figure(format!("{name}: all outstanding, ms"), times.at_once);
        if times.list >= times.in_sequence.min(times.at_once) {
            slower.push(name.clone());
        }
        let direct = of(&board.host.direct())?;
        finding.figure(format!("{name}: with free calls, one list, ms"), direct.list);
        finding.figure(format!("{name}: with free calls, frame by frame, ms"), direct.by_parts);
        if direct.list >= direct.by_parts {
            helpless.push(name.clone());
        }
        let free = of(&board.host.free())?;
        if free.list >= free.by_parts {
            costly.push(name);
        }
    }
    finding.check(
        slower.is_empty(),
        verdict_on(
            "one request completes sooner than one for each frame, one after the other or all outstanding",
            &slower,
        ),
    );
    finding.check(
        helpless.is_empty(),
        verdict_on(
            "with free calls the device's list takes less time than the same frames one by one",
            &helpless,
        ),
    );
    let words = "with a processor that takes no time the list is faster than frames one by one";
    finding.check(true, verdict_on(words, &costly));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Parameters;

    #[test]
    fn a_list_that_saves_nothing_does_not_win() {
        let parameters = Parameters::parse(super::super::PAPER.parameters).expect("checked");
        let board = board(&parameters, SEED).expect("complete");
        let of = |host: &Host, device: &DeviceTimes| Times::of(host, device, (8, 4096)).expect("fits");
        let direct = of(&board.host.direct(), &board.device);
        assert!(direct.list < direct.by_parts, "registers and interrupts of seven frames");
        let mut slow = board.device;
        slow.config.timing.descriptor = 1_000_000_000;
        let dear = of(&board.host.direct(), &slow);
        assert!(dear.list > dear.by_parts, "a descriptor that takes a millisecond");
    }
}
