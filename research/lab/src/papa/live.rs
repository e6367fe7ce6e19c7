//! Live experiments of the slides: suspended channels under the priority policy (`./x bench policy`), and the effect of copies on
//! a victim in level 2 (`./x bench pollution`).
//!
//! Exclusive and shared channels run only in virtual time, since they need several clients.

use crate::claims::Place;
use crate::judging::Finding;
use crate::live::{LiveError, Rows, not_run, ordered};
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

use super::pollution::MEASURABLE;

pub(super) const JUDGES: [Judge; 2] = [
    Judge { claim: "papa-policies", place: Place::Live, judge: silent },
    Judge { claim: "papa-pollution", place: Place::Live, judge: polluted },
];

/// Number of slices, bytes of suspended requests in them, and bytes of the low class relative to a policy without slices.
fn under_priority() -> Result<[f64; 3], LiveError> {
    let rows = Rows::measured("policy", Some("latencies"))?;
    Ok([
        rows.value("priority: slices that began")?,
        rows.value("priority: bytes of suspended requests that moved in a slice")?,
        rows.value("bytes of the low class, priority / shared (a slice is 3/4 of a period)")?,
    ])
}

fn silent(case: &Case<'_>) -> Result<Verdict, RunError> {
    let [slices, strayed, low] = match under_priority() {
        Ok(found) => found,
        Err(error) => return not_run(case, error),
    };
    let mut finding = Finding::of(case.claim);
    finding.figure("slices", slices);
    finding.figure("bytes of suspended requests in them", strayed);
    let words = format!(
        "priority, slices of 9 ms in every 12 on a worker of the CPU: in {slices} slices {strayed} bytes of suspended \
                 requests moved, and between them {low:.2} times the bytes of the low class that a shared policy moves. Exclusive \
                 and shared channels run only in virtual time"
    );
    finding.check(strayed == 0.0 && slices > 0.0 && low > 0.0, words);
    Ok(finding.verdict(Place::Live, Basis::Measured))
}

/// Names of the figures, with the rows of the benchmark.
const WALKS: [(&str, &str); 7] = [
    ("alone", "walk over 768 KiB after 16 pieces of 16,064 B by none"),
    ("after read()", "walk over 768 KiB after 16 pieces of 16,064 B by read()"),
    ("after libc", "walk over 768 KiB after 16 pieces of 16,064 B by libc"),
    ("after streamed", "walk over 768 KiB after 16 pieces of 16,064 B by memferry, stream"),
    (
        "beside a worker that moved nothing",
        "walk over 768 KiB after 16 pieces of 16,064 B by the worker moving nothing",
    ),
    ("after offloaded", "walk over 768 KiB after 16 pieces of 16,064 B by the worker"),
    ("after offloaded, streamed", "walk over 768 KiB after 16 pieces of 16,064 B by the worker, stream"),
];

fn polluted(case: &Case<'_>) -> Result<Verdict, RunError> {
    let figures = Rows::measured("pollution", Some("pieces")).and_then(|rows| rows.values(&WALKS));
    ordered(case, "us", figures, |finding, of| {
        let walk = |name: &str| of.get(name).copied().unwrap_or(f64::NAN);
        let [alone, read, offloaded] = ["alone", "after read()", "after offloaded"].map(walk);
        let faster = (1.0 - offloaded / read) * 100.0;
        let words = format!(
            "a victim of 768 KiB in level 2 takes {offloaded:.1} us after 16 pieces of 16,064 bytes copied by a worker on another CPU, \
             {read:.1} us after read() of them, {alone:.1} us alone: {faster:.1} % faster when offloaded, where {MEASURABLE} % is \
             read as measurable; medians; the machine also runs other programs"
        );
        finding.check(faster >= MEASURABLE, words);
        if faster < MEASURABLE {
            let [idle, streamed] =
                ["beside a worker that moved nothing", "after offloaded, streamed"].map(walk);
            finding.because(format!(
                "read() adds {:.1} us to the walk alone; the worker's copies add {:.1} us to a walk beside an idle worker, and its \
                 streamed ones {:.1} us: who has to keep a victim's cache asks for streamed copies, and where those add as much \
                 the copies should stay with read()",
                read - alone,
                offloaded - idle,
                streamed - idle
            ));
        }
    })
}
