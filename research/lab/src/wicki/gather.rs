//! One scatter-gather request compared with one request for each frame (thesis, 5.3: it expects the first to cost less).
//!
//! ```text
//! n frames ─┬─ one call that names all ─► driver ─► n transfers of the device ─► one reply
//!           └─ n calls, one after the other, or all outstanding                 ─► n replies
//! ```
//!
//! The model's memory holds no bytes and so no descriptors, so the path moves a list piece by piece. The saving is in calls,
//! replies and switches, not in interrupts.

use super::board;
use super::clients::{Call, Work, serve};
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

fn judge(case: &Case<'_>) -> Result<Verdict, RunError> {
    let board = board(case.parameters, SEED)?;
    let failed = |error: super::service::ServiceError| case.failed(error);
    let mut finding = Finding::of(case.claim);
    let mut slower = Vec::new();
    for (frames, length) in CASES {
        let plain = Work { transfers: frames, frames, ..Work::once(1, Call::Simple, length) };
        let listed = Work { frames, ..Work::once(1, Call::ScatterGather, length) };
        let time = |work: &Work| {
            Ok::<_, RunError>(serve(&board.host, &board.device, work).map_err(failed)?.elapsed as f64 / 1e9)
        };
        let list = time(&listed)?;
        let in_sequence = time(&plain)?;
        let at_once = time(&Work { outstanding: frames, ..plain })?;
        let name = format!("{frames} frames of {} KiB", length >> 10);
        finding.figure(format!("{name}: one request, ms"), list);
        finding.figure(format!("{name}: one after the other, ms"), in_sequence);
        finding.figure(format!("{name}: all outstanding, ms"), at_once);
        if list >= in_sequence.min(at_once) {
            slower.push(name);
        }
    }
    let words = match slower.is_empty() {
                true => "one request completed sooner than one request for each frame, sent one after the other or all outstanding"
            .to_owned(),
                false => format!("one request did not complete sooner at {}", slower.join(", ")),
    };
    finding.check(slower.is_empty(), words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}
