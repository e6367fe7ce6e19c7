//! Live comparison of table 1: memferry's ring and a system call that starts the same transfer, as measured by `./x bench
//! initiation`.
//!
//! The ring is that of a service in another process. The system call also moves its 64 bytes before it returns, which is the
//! smallest work of a call that starts a transfer. "About" an order of magnitude is read as in the simulated row.

use crate::claims::Place;
use crate::live::{Rows, ordered};
use crate::paper::{Case, Judge, RunError};
use crate::verdict::Verdict;

use super::timing::is_about_ten;

pub const JUDGE: Judge = Judge { claim: "markatos-order-of-magnitude", place: Place::Live, judge: compared };

/// Names of the figures, with the rows of the benchmark.
const FIGURES: [(&str, &str); 3] = [
    ("ring", "memferry's ring: submit of a copy of 64 B"),
    ("system call", "a system call that moves 64 B"),
    ("ratio", "the system call against the ring"),
];

fn compared(case: &Case<'_>) -> Result<Verdict, RunError> {
    let figures = Rows::measured("initiation", None).and_then(|rows| rows.values(&FIGURES));
    ordered(case, "ns", figures, |finding, of| {
        let ratio = of.get("ratio").copied().unwrap_or_default();
        let words = format!(
            "the system call takes {ratio:.1} times as long as the ring; mean of 1,000 starts to alternating addresses, medians of the \
             rounds; the machine also runs other programs; the call also moves the 64 bytes"
        );
        finding.check(is_about_ten(ratio), words);
        if ratio > 10.0 && !is_about_ten(ratio) {
            finding.because(
                "the ring is cheaper by more than that: its submission is stores to memory that both processes share, where the paper's \
                 are accesses to a device on a bus, and a system call of today costs more of them",
            );
        }
    })
}
