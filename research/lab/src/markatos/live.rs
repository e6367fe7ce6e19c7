//! The comparison of table 1 on the machine at hand: memferry's ring against a system call that starts the same transfer, as
//! `./x bench initiation` measures them.
//!
//! The system call also moves its 64 bytes before it returns, which is the least a call can do that starts a transfer; the
//! figure is no bound.

use crate::claims::Place;
use crate::live::{Rows, reported};
use crate::paper::{Case, Judge, RunError};
use crate::verdict::Verdict;

/// What decides the claim here.
pub const JUDGE: Judge = Judge { claim: "markatos-order-of-magnitude", place: Place::Live, judge: compared };

/// Figures, and the rows they come from.
const FIGURES: [(&str, &str); 3] = [
    ("ring", "memferry's ring: submit of a copy of 64 B"),
    ("system call", "a system call that moves 64 B"),
    ("ratio", "the system call against the ring"),
];

fn compared(case: &Case<'_>) -> Result<Verdict, RunError> {
    let figures = Rows::measured("initiation", None).and_then(|rows| rows.values(&FIGURES));
    reported(case, "ns", figures, |_| {
        "mean of 1,000 starts to alternating addresses, medians of the rounds, on a machine that does other things; the call \
         also moves the 64 bytes"
            .to_owned()
    })
}
