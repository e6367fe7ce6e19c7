//! The results: samples over time, what was done to processes, what was left out, and findings.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::process::Usage;

/// A line of the table.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Sample {
    /// Seconds since the start.
    pub(crate) at: f64,
    /// Checked completions per second since the last sample.
    pub(crate) completions: f64,
    /// Compared bytes per second.
    pub(crate) bytes: f64,
    pub(crate) clients: usize,
    /// Resources of the service.
    pub(crate) service: Option<Usage>,
    /// Resources of the file server.
    pub(crate) files: Option<Usage>,
}

/// Resources of a service after its clients were gone.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Settled {
    /// Seconds since the start.
    pub(crate) at: f64,
    /// Age of the process in seconds.
    pub(crate) age: f64,
    pub(crate) what: &'static str,
    pub(crate) before: Usage,
    pub(crate) after: Usage,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) ran: f64,
    /// Ended early by a signal.
    pub(crate) interrupted: bool,
    /// Total completions and bytes.
    pub(crate) completions: u64,
    pub(crate) bytes: u64,
    /// Completions of each kind of client.
    pub(crate) by_kind: BTreeMap<String, u64>,
    /// What was done to processes, and the errors that followed.
    pub(crate) events: BTreeMap<&'static str, u64>,
    pub(crate) samples: Vec<Sample>,
    pub(crate) settled: Vec<Settled>,
    /// What was left out, and why.
    pub(crate) not_run: Vec<String>,
    pub(crate) findings: Vec<String>,
}

impl Report {
    pub(crate) fn new(seed: u64, seconds: f64) -> Self {
        Self {
            seed,
            seconds,
            ran: 0.0,
            interrupted: false,
            completions: 0,
            bytes: 0,
            by_kind: BTreeMap::new(),
            events: BTreeMap::new(),
            samples: Vec::new(),
            settled: Vec::new(),
            not_run: Vec::new(),
            findings: Vec::new(),
        }
    }

    pub(crate) fn count(&mut self, event: &'static str) {
        *self.events.entry(event).or_default() += 1;
    }

    /// Adds a finding and prints it.
    pub(crate) fn find(&mut self, what: String) {
        println!("FINDING: {what}");
        self.findings.push(what);
    }

    /// The heading of the samples.
    pub(crate) fn print_head() {
        println!(
            "{:>7} {:>9} {:>9} {:>7}  service: MiB, descriptors, threads, frames",
            "seconds", "ends/s", "MiB/s", "clients"
        );
    }

    /// Adds a sample and prints it.
    pub(crate) fn sample(&mut self, sample: Sample) {
        let service = sample.service.map_or("none".to_owned(), |usage| {
            let Usage { resident_kib, descriptors, threads, frames } = usage;
            format!("{:.1} {descriptors} {threads} {frames}", resident_kib as f64 / 1024.0)
        });
        let megabytes = sample.bytes / f64::from(1 << 20);
        println!(
            "{:>7.1} {:>9.0} {megabytes:>9.1} {:>7}  {service}",
            sample.at, sample.completions, sample.clients
        );
        self.samples.push(sample);
    }

    pub(crate) fn print(&self) {
        println!("\nabuse and its effects:");
        for (event, count) in &self.events {
            println!("  {count:>7} {event}");
        }
        println!("completions checked, by kind of client:");
        for (kind, count) in &self.by_kind {
            println!("  {count:>9} {kind}");
        }
        println!("without clients, before and after (MiB, descriptors, threads, frames):");
        for Settled { at, age, what, before, after } in &self.settled {
            let show = |usage: &Usage| {
                let megabytes = usage.resident_kib as f64 / 1024.0;
                format!("{megabytes:.1} {} {} {}", usage.descriptors, usage.threads, usage.frames)
            };
            println!("  at {at:.0} s, {what} of {age:.0} s: {} -> {}", show(before), show(after));
        }
        self.not_run.iter().for_each(|what| println!("not run: {what}"));
        self.findings.iter().for_each(|what| println!("FINDING: {what}"));
        let count = self.findings.len();
        let end = if self.interrupted { ", interrupted" } else { "" };
        println!(
            "\nsoak: {count} findings in {:.0} s{end}, {} completions and {:.1} GiB checked; repeat with --seed {}",
            self.ran,
            self.completions,
            self.bytes as f64 / f64::from(1 << 30),
            self.seed
        );
    }
}
