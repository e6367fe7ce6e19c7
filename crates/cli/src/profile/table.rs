//! The report as text.
//!
//! ```text
//! Report ─► head ─ verdict ─ missing counts ─ callers ─ sizes ─ functions, alignments, distances ─ assumptions of the estimate
//! ```

use std::fmt::{self, Write};
use std::time::Duration;

use super::estimate::Estimate;
use super::report::{From, Report, Sum};
use crate::measure::{Bytes, Time};

/// Formats the whole report.
pub(super) fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(report, &mut text);
    text
}

fn write(report: &Report, to: &mut String) -> fmt::Result {
    writeln!(to, "memferry profile: {}", report.program.join(" "))?;
    writeln!(
        to,
        "ended with {} after {}, {} of CPU time; {} program(s) counted",
        report.exit_code,
        time(report.seconds),
        time(report.cpu_seconds),
        report.programs_seen
    )?;
    if let Some(reason) = report.unseen_because {
        return writeln!(to, "nothing was counted: {reason}");
    }
    writeln!(
        to,
        "{} calls, {}; those of 4 KiB and more took {} by the clock, {}\n",
        report.all.calls,
        Bytes(report.all.bytes),
        time(report.all.seconds),
        of_cpu(report.all.seconds, report.cpu_seconds)
    )?;
    if let Some(estimate) = &report.estimate {
        write_verdict(to, estimate, report.cpu_seconds)?;
    }
    write_missing(to, report)?;
    let callers = report.callers.iter().map(|caller| (place(caller), &caller.sum));
    rows(to, "caller", callers.collect(), &report.all)?;
    if report.other_callers > 0 {
        writeln!(to, "and {} more callers (--callers N lists more)\n", report.other_callers)?;
    }
    let sizes = report.sizes.iter().map(|size| (class(size.from_bytes), &size.sum));
    rows(to, "size, bytes", sizes.collect(), &report.all)?;
    for (name, parts) in
        [("function", &report.operations), ("addresses", &report.alignments), ("memory", &report.distances)]
    {
        let parts = parts.iter().map(|part| (part.name.clone(), &part.sum));
        rows(to, name, parts.collect(), &report.all)?;
    }
    if report.estimate.is_some() { write_assumptions(to) } else { Ok(()) }
}

/// A table: name, calls, bytes and time with their shares of the total, then the share of cold calls.
fn rows(to: &mut String, heading: &str, rows: Vec<(String, &Sum)>, all: &Sum) -> fmt::Result {
    const MIN_WIDTH: usize = 28;
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(MIN_WIDTH);
    writeln!(
        to,
        "{heading:<width$} {:>12} {:>6} {:>12} {:>6} {:>10} {:>6} {:>6}",
        "calls", "", "bytes", "", "time", "", "cold"
    )?;
    for (name, sum) in rows {
        let cold =
            if sum.looked_at == 0 { "-".to_owned() } else { share(sum.cold as f64, sum.looked_at as f64) };
        let (timed, of_time) = if sum.seconds == 0.0 {
            ("-".to_owned(), String::new())
        } else {
            (time(sum.seconds), share(sum.seconds, all.seconds))
        };
        writeln!(
            to,
            "{name:<width$} {:>12} {:>6} {:>12} {:>6} {timed:>10} {of_time:>6} {cold:>6}",
            sum.calls,
            share(sum.calls as f64, all.calls as f64),
            Bytes(sum.bytes).to_string(),
            share(sum.bytes as f64, all.bytes as f64),
        )?;
    }
    writeln!(to)
}

fn class(from: u64) -> String {
    match from {
        0 | 1 => from.to_string(),
        from => format!("{from} to {}", from + (from - 1)),
    }
}

/// The file's name without directories, and the function or the address in the file.
fn place(caller: &From) -> String {
    let file = caller.object.as_ref().map(|object| object.rsplit('/').next().unwrap_or(object).to_owned());
    let file = file.unwrap_or_else(|| "(no file)".to_owned());
    match (&caller.function, caller.address) {
        (Some(function), _) => format!("{file} {function}"),
        (None, Some(address)) => format!("{file} {address:#x}"),
        (None, None) => file,
    }
}

/// What handing the copies over would have saved, before all tables.
fn write_verdict(to: &mut String, estimate: &Estimate, cpu_seconds: f64) -> fmt::Result {
    let basis = if estimate.thresholds_are_measured {
        "measured by memferry tune"
    } else {
        "a guess; run memferry tune to measure it"
    };
    writeln!(
        to,
        "estimate: handing long copies over would have saved the program at most {}, {}",
        time(estimate.saved_seconds),
        of_cpu(estimate.saved_seconds, cpu_seconds)
    )?;
    writeln!(
        to,
        "  {} calls of {} and more ({basis}), {}, took {}; handing one over takes {} here",
        estimate.calls,
        Bytes(estimate.least_bytes),
        Bytes(estimate.bytes),
        time(estimate.seconds),
        time(estimate.hand_over_seconds)
    )?;
    writeln!(
        to,
        "  libmemferry_preload.so would bypass the caches in {} calls, {}\n",
        estimate.past_caches_calls,
        Bytes(estimate.past_caches_bytes)
    )
}

fn write_assumptions(to: &mut String) -> fmt::Result {
    writeln!(
        to,
        "The estimate assumes that the program has other work until it needs a copy, that a worker is awake on another"
    )?;
    writeln!(
        to,
        "CPU, and that other programs did not slow the copies down. The worker spends the time instead; only hardware"
    )?;
    writeln!(to, "saves it altogether.")
}

fn write_missing(to: &mut String, report: &Report) -> fmt::Result {
    if report.left_out_calls > 0 {
        writeln!(
            to,
            "the table was full: {} calls, {}, are missing in all sums\n",
            report.left_out_calls,
            Bytes(report.left_out_bytes)
        )?;
    }
    if report.nonsense_rows > 0 {
        writeln!(
            to,
            "{} rows are invalid: the program wrote into the recording, so nothing here is reliable\n",
            report.nonsense_rows
        )?;
    }
    Ok(())
}

fn time(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or_else(|_| "?".to_owned(), |time| Time(time).to_string())
}

/// Copies are timed by the wall clock, which includes time that a thread waited for a CPU.
fn of_cpu(seconds: f64, cpu_seconds: f64) -> String {
    if seconds <= cpu_seconds {
        format!("{} of the CPU time", share(seconds, cpu_seconds))
    } else {
        "which is more than the CPU time: threads waited for a CPU while they copied".to_owned()
    }
}

fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 { format!("{:.1}%", 100.0 * part / whole) } else { "-".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes_are_ranges() {
        assert_eq!([0, 1, 2, 4096].map(class), ["0", "1", "2 to 3", "4096 to 8191"]);
        assert_eq!(class(1 << 63), format!("{} to {}", 1u64 << 63, u64::MAX));
    }

    #[test]
    fn the_verdict_comes_before_the_tables() {
        let report = Report::with_estimate(Estimate::default());
        let text = text(&report);
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} is missing in {text}"));
        assert!(at("estimate: handing") < at("caller") && at("caller") < at("size, bytes"));
        assert!(at("size, bytes") < at("The estimate assumes"));
    }

    #[test]
    fn an_empty_report_says_why() {
        let mut report = Report::default();
        report.set_unseen_reason("it is a static program");
        assert!(text(&report).contains("nothing was counted: it is a static program"));
    }
}
