//! Judges of the claims on what was measured in 1996.
//!
//! ```text
//! tables 1 to 3, the parts, orders of access ──► Finding ──► rows
//! ```
//!
//! What is expected is in the claims' list. Nothing is run here.

use std::collections::BTreeMap;

use crate::claims::Place;
use crate::experiments::{Case, Judge, RunError};
use crate::judging::Finding;
use crate::verdict::{Basis, Verdict};

use super::machine::BLOCK;
use super::tables::PARTS;

/// What decides them.
pub(super) const JUDGES: [Judge; 4] = [
    Judge { claim: "nava-standalone-vs-user", place: Place::Simulated, judge: standalone },
    Judge { claim: "nava-cat", place: Place::Simulated, judge: cat },
    Judge { claim: "nava-file-server", place: Place::Simulated, judge: file_server },
    Judge { claim: "nava-same-block", place: Place::Simulated, judge: same_block },
];

const BANDWIDTH: &str = "nava-table-1";
const DELAY: &str = "nava-delay";
const PROCESSOR: &str = "nava-processor";
/// What the lines of another disk are called.
const FINISHES: &str = ", disk finishes reading ahead";

fn standalone(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let mut found = BTreeMap::new();
    for server in ["mfs", "umfs"] {
        for clients in [1.0, 2.0] {
            let bandwidth = case.tables.value(BANDWIDTH, server, clients)?;
            found.insert(format!("{server}-{clients}"), bandwidth);
            found.insert(format!("{server}-{clients}-delay"), case.tables.value(DELAY, server, clients)?);
        }
    }
    finding.numbers(&found);
    let other = |server: &str| case.tables.value(BANDWIDTH, &format!("{server}{FINISHES}"), 2.0);
    finding.because(format!(
        "with two clients each read ends the disk's reading ahead for the other client, so that half of the blocks wait for the \
         platter; a disk that finished reading ahead would give {:.2} and {:.2} Mbit/s. The paper's own figures for two clients \
         of umfs leave little room: 64 KiB in 176 ms are 2.98 Mbit/s, not 2.7",
        other("mfs")?,
        other("umfs")?
    ));
    let steps = case.tables.line("nava-parts", "delay")?;
    let mut parts = Vec::new();
    for ((name, _), pair) in PARTS.iter().skip(1).zip(steps.points.windows(2)) {
        if let [(_, before), (_, after)] = pair {
            finding.figure(format!("part: {name}, ms"), before - after);
            parts.push(format!("{name} {:.1}", before - after));
        }
    }
    let whole = steps.points.first().map_or(0.0, |(_, delay)| *delay) - steps.last();
    let words = format!(
        "the network code of mfs is calibrated to mfs-1, the rest of the row is predicted; umfs takes {whole:.1} ms longer than mfs \
         with one client: {}",
        parts.join(", ")
    );
    finding.check(whole > 0.0, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn cat(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let at = |label: &str| case.tables.value("nava-table-2", label, BLOCK as f64);
    let (cat, ucat, theory) = (at("cat")?, at("ucat")?, at("theory")?);
    finding.number(cat - ucat);
    for (name, value) in [("cat, ms", cat), ("ucat, ms", ucat), ("theory, ms", theory)] {
        finding.figure(name, value);
    }
    let words = format!(
        "a read in {cat:.2} ms waits for the copy, one in {ucat:.2} ms for the platter, which would have to turn faster for {theory:.2}"
    );
    finding.check(cat - ucat < cat - theory, words);
    let wide = case.tables.line("nava-track", "cat")?;
    let saved = wide
        .points
        .iter()
        .map(|(sectors, cat)| Ok((sectors, cat - case.tables.value("nava-track", "ucat", *sectors)?)));
    let saved: Vec<(&f64, f64)> = saved.collect::<Result<_, RunError>>()?;
    for (sectors, saved) in saved {
        finding.figure(format!("saved with {sectors} sectors, ms"), saved);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Calibrated))
}

fn file_server(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let segment = case.parameters.get("disk-segment")?;
    let gain = |fast: f64, slow: f64| (fast / slow - 1.0) * 100.0;
    let local = |at: f64| -> Result<f64, RunError> {
        let value = |server| case.tables.value("nava-local", server, at);
        Ok(gain(value("dmafs")?, value("umfs")?))
    };
    let mut found = BTreeMap::from([("local".to_owned(), local(segment)?)]);
    let mut others = Vec::new();
    for clients in [1.0, 2.0] {
        let value = |server: &str| case.tables.value(BANDWIDTH, server, clients);
        let (mfs, dmafs, umfs) = (value("mfs")?, value("dmafs")?, value("umfs")?);
        found.insert(format!("remote-{clients}"), gain(dmafs, umfs));
        finding.figure(format!("mfs above dmafs, {clients} remote, %"), gain(mfs, dmafs));
        let words = format!(
            "with {clients} remote, the standalone server is {:.0} % ahead of dmafs",
            gain(mfs, dmafs)
        );
        finding.check(mfs > dmafs, words);
        others.push(gain(value(&format!("dmafs{FINISHES}"))?, value(&format!("umfs{FINISHES}"))?));
    }
    finding.numbers(&found);
    finding.figure("local with 48 KiB of buffer, %", local(49152.0)?);
    finding.because(format!(
        "a local client leaves the disk time to read a whole block ahead, so that all of the copy is gained, and with two remote ones \
         the platter takes back what the copy left: a disk that finished reading ahead would give {:.1} %",
        others.last().copied().unwrap_or_default()
    ));
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn same_block(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let copy = case.parameters.get("copy-block")?;
    let segment = case.parameters.get("disk-segment")?;
    for order in ["sequential", "random", "fixed"] {
        for (buffer, bytes) in [("no", 0.0), ("a", segment)] {
            let value = |label: &str| case.tables.value("nava-access", label, bytes);
            let saved = value(order)? - value(&format!("{order}, user-mode DMA"))?;
            finding.figure(format!("{order}, {buffer} buffer, ms saved"), saved);
            if order == "fixed" && bytes == 0.0 {
                // "Almost no" is read as a tenth of the copy at most.
                finding
                    .check(saved.abs() <= copy / 10.0, format!("the same block comes {saved:.2} ms sooner"));
            }
        }
    }
    for clients in [1.0, 2.0] {
        let value = |server| case.tables.value(PROCESSOR, server, clients);
        let saved = value("umfs")? - value("dmafs")?;
        finding.figure(format!("processor, {clients} clients, ms saved"), saved);
        let words =
            format!("with {clients} clients the processor works {saved:.2} ms less for each block of each");
        finding.check((saved / copy - 1.0).abs() <= 0.05, words);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}
