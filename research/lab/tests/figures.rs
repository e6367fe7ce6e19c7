//! Computes one small figure twice and compares the bytes.
//!
//! ```text
//! plan, seed ──► Tables ──► CSV and SVG ──► compared with the second time
//! ```

use memferry_lab::claims::Claims;
use memferry_lab::experiments;
use memferry_lab::figures::{csv, svg};

fn made() -> Vec<(String, String)> {
    let claims = Claims::built_in().expect("checked");
    let only = ["wicki-fig-04".to_owned()];
    let papers = experiments::prepare(&claims, &only).expect("checked");
    let mut files = Vec::new();
    for paper in papers {
        let paper = paper.reduced(|_| true);
        let outcome = paper.run(&claims).expect("runs");
        files.extend(outcome.tables.iter().map(|table| (csv(table), svg(table).expect("drawn"))));
    }
    files
}

#[test]
fn equal_plans_give_equal_bytes() {
    let first = made();
    assert_eq!(first.len(), 1);
    assert!(first[0].0.starts_with("series,\"transfer size (bytes)\",\"throughput (MiB/s), simulated\"\n"));
    assert!(first[0].1.contains("simulated"));
    assert_eq!(first, made());
}
