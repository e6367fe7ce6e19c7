//! `memferry tune`: measures this machine and stores the thresholds for the engines of this user.
//!
//! ```text
//! kernels: sizes, near and far, alone and shared ─┐
//! embedded client: cost of handing over ──────────┴─► thresholds, three to seven times ─► agreement ─► profile.toml, a table
//! --engine: a service with an engine process, and one without ─► a length ─► agreement ─► the configuration file
//! ```
//!
//! Engines use the profile, so none is written where the measurements disagree. `memferry_service::profile` measures and stores. A
//! running service keeps the thresholds that it was started with.

mod agreement;
mod engine;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{Client, Queue, copy, nop};
use memferry_service::profile::measure::{self, NEVER};
use memferry_service::profile::{self, Profile, Tuning};
use rustix::fs::Access;
use serde::Serialize;

use self::agreement::Threshold;
use crate::CommandError;
use crate::measure::{Bytes, median, random_bytes};
use crate::output::{self, say};

/// Arguments of `tune`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// File to write, in an existing folder, instead of the profile in the user's configuration directory.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Measure and print, but write nothing.
    #[arg(long, conflicts_with = "to")]
    dry_run: bool,
    /// Write the medians even where the measurements disagree: for a machine that is never quiet.
    #[arg(long)]
    force: bool,
    /// Print the profile and the measurements as JSON.
    #[arg(long)]
    json: bool,
    /// Measure an engine process instead: from which length on it copies faster than the service's workers. The length is written as
    /// shortest= to the engine's line in the configuration file. The program, given after --, runs as this user, at a service of its own.
    #[arg(long, value_name = "NAME", requires = "program", conflicts_with = "to")]
    engine: Option<String>,
    /// Configuration file of the service that names the engine, instead of /etc/memferry.toml.
    #[arg(long, value_name = "FILE", requires = "engine", conflicts_with = "dry_run")]
    config: Option<PathBuf>,
    /// Program of the engine, and its arguments; --socket and --name are added.
    #[arg(last = true, value_name = "PROGRAM", requires = "engine")]
    program: Vec<OsString>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    measurements: &'a [Threshold],
}

/// Runs `memferry tune`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    if let Some(name) = &arguments.engine {
        return engine::run(arguments, name);
    }
    let path = match (&arguments.to, arguments.dry_run) {
        (_, true) => None,
        (Some(path), false) => Some(path.clone()),
        (None, false) => Some(profile::path()?),
    };
    match (&path, &arguments.to) {
        (Some(path), Some(_)) => check_folder(path)?,
        (Some(path), None) => {
            profile::make_folder(path)?;
            check_folder(path)?;
        }
        (None, _) => {}
    }
    // The embedded service would refuse such a profile, after everything else was measured.
    profile::load()?;
    let bar = bar()?;
    let mut measurements = Vec::new();
    let all = loop {
        lengthen(&bar, measurements.len());
        measurements.push(measure_once(&bar)?);
        let all = agreement::thresholds(&measurements);
        let are_certain = all.iter().all(Threshold::is_certain);
        if are_certain || measurements.len() == agreement::MOST {
            break all;
        }
    };
    bar.finish_and_clear();
    let thresholds = agreement::medians(&measurements);
    thresholds.check()?;
    let profile = Profile { cpu: profile::cpu(), thresholds };
    let uncertain: Vec<_> = all.iter().filter(|threshold| !threshold.is_certain()).collect();
    let refused = !uncertain.is_empty() && !arguments.force;
    if let Some(path) = path.as_ref().filter(|_| !refused) {
        profile.write(path)?;
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&Report { profile: &profile, measurements: &all })?);
    } else {
        print(&all)?;
    }
    if refused && path.is_some() {
        return Err(disagreement(&uncertain, measurements.len()).into());
    }
    match path {
        _ if arguments.json => {}
        Some(path) => say!("written to {}; engines started from now on use it", path.display()),
        None => say!("nothing was written"),
    }
    Ok(())
}

/// Fails before the measurement, not after. A file named by the user goes to a folder that is there: a mistyped path creates nothing.
fn check_folder(path: &Path) -> Result<(), CommandError> {
    if path.is_dir() {
        return Err(format!("{} is a directory; name the file to write in it", path.display()).into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return Err(format!(
            "cannot write {}: {} is no folder; create it first",
            path.display(),
            folder.display()
        )
        .into());
    }
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("cannot write {}: {error}; name a file with --to", path.display()))?;
    Ok(())
}

fn measure_once(bar: &ProgressBar) -> Result<Tuning, CommandError> {
    let step = |what: &'static str| {
        bar.set_message(what);
        bar.inc(1);
    };
    let mut thresholds = measure::measure(step)?;
    step("requests run inline");
    thresholds.inline_bytes =
        inline_bytes().map_err(|error| format!("cannot measure requests run inline: {error}"))?;
    Ok(thresholds)
}

/// Why nothing was written.
fn disagreement(uncertain: &[&Threshold], measurements: usize) -> String {
    let one = |threshold: &&Threshold| {
        let values: Vec<_> = threshold.measured.iter().map(ToString::to_string).collect();
        format!("\n  {}: {}", threshold.name, values.join(", "))
    };
    let values: String = uncertain.iter().map(one).collect();
    format!(
        "{measurements} measurements disagree, so nothing was written; repeat it on a quiet machine, or take the medians with \
         --force:{values}"
    )
}

/// Steps of the bar for one measurement.
const STEPS: u64 = measure::STEPS as u64 + 1;

/// Makes room on the bar for one more measurement, after so many.
fn lengthen(bar: &ProgressBar, measurements: usize) {
    if measurements >= agreement::FEWEST {
        bar.inc_length(STEPS);
    }
}

fn bar() -> Result<ProgressBar, CommandError> {
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(STEPS * agreement::FEWEST as u64), target);
    bar.set_style(ProgressStyle::with_template("{msg:<32} [{bar:40}] {pos}/{len}")?.progress_chars("=> "));
    Ok(bar)
}

fn print(thresholds: &[Threshold]) -> Result<(), CommandError> {
    let colors = output::has_colors();
    for threshold in thresholds {
        say!("{}", line(threshold, colors));
    }
    Ok(())
}

/// A threshold's line of the table.
fn line(threshold: &Threshold, colors: bool) -> String {
    let what = match threshold.name {
        "stream_cold_bytes" => "copies of far memory bypass the caches from",
        "stream_always_bytes" => "all copies bypass the caches from",
        "zero_cold_bytes" => "zeroing far memory bypasses the caches from",
        "share_awake_bytes" => "copies are shared with an awake worker from",
        "share_asleep_cold_bytes" => "a worker is woken to share copies of far memory from",
        "share_asleep_hot_bytes" => "a worker is woken to share copies of near memory from",
        "inline_bytes" => "embedded requests run inline up to",
        "far_ticks" => "memory counts as far if a load takes",
        other => other,
    };
    let value = match (threshold.name, threshold.median) {
        ("far_ticks", 0) => "cannot be timed".to_owned(),
        ("far_ticks", ticks) => format!("{ticks} ticks"),
        (_, NEVER..) => "never".to_owned(),
        (_, bytes) => Bytes(bytes).to_string(),
    };
    let agreement = format!("{} of {} measurements agree", threshold.agreeing, threshold.measured.len());
    let agreement = match threshold.is_certain() {
        true => agreement,
        false => output::warning(&format!("{agreement}: uncertain"), colors),
    };
    format!("{what:<53} {value:<10} {agreement}")
}

/// Bytes of the longest request measured.
const LONGEST: u64 = 64 << 10;

/// Nanoseconds to hand over an empty transfer to an awake worker and take its completion. The minimum of several tries, since
/// other programs may delay the worker.
pub(crate) fn hand_over_ns() -> Result<u128, CommandError> {
    const TRIES: usize = 31;
    let mut queue = Client::embedded()?.queue(16)?;
    let mut minimum = u128::MAX;
    for _ in 0..TRIES {
        minimum = minimum.min(each_ns(&mut queue, hand_over_and_wait)?);
    }
    Ok(minimum)
}

fn hand_over_and_wait(queue: &mut Queue) -> Result<(), CommandError> {
    let ticket = queue.submit(nop())?;
    queue.wait(ticket)?;
    Ok(())
}

/// Bytes of the longest copy that this thread makes faster than it can hand one over to an awake worker.
fn inline_bytes() -> Result<u64, CommandError> {
    const TRIES: usize = 31;
    let client = Client::embedded()?;
    let source = client.frame(LONGEST).alloc()?;
    let destination = client.frame(LONGEST).alloc()?;
    source.write(0, &random_bytes(usize::try_from(LONGEST)?, 5))?;
    let mut queue = client.queue(16)?;
    let mut found = 0;
    for bytes in
        std::iter::successors(Some(64), |bytes| Some(bytes * 2)).take_while(|bytes| *bytes <= LONGEST)
    {
        let mut inline = Vec::new();
        let mut handed = Vec::new();
        for _ in 0..TRIES {
            handed.push(each_ns(&mut queue, hand_over_and_wait)?);
            inline.push(each_ns(&mut queue, |queue| {
                let copy = copy(source.slice(..bytes), destination.slice(..bytes));
                queue.run(copy)?;
                Ok(())
            })?);
        }
        if median(&mut inline) > median(&mut handed) {
            break;
        }
        found = bytes;
    }
    Ok(found)
}

/// Nanoseconds per call.
fn each_ns(
    queue: &mut Queue,
    mut call: impl FnMut(&mut Queue) -> Result<(), CommandError>,
) -> Result<u128, CommandError> {
    const CALLS: u32 = 100;
    let started = Instant::now();
    (0..CALLS).try_for_each(|_| call(queue))?;
    Ok(started.elapsed().as_nanos() / u128::from(CALLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_no_profile() {
        let error = check_folder(&std::env::temp_dir()).unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
        check_folder(&std::env::temp_dir().join("memferry-profile.toml")).unwrap();
    }

    #[test]
    fn each_line_goes_by_the_thresholds_name() {
        let sound = profile::Tuning::of_caches(32 << 20);
        for threshold in agreement::thresholds(&[sound; 3]) {
            assert!(!line(&threshold, false).contains('_'), "{} is not described", threshold.name);
        }
        for (name, expected) in [
            ("zero_cold_bytes", "zeroing far memory bypasses the caches from           4.0 KiB    3 of 3"),
            ("far_ticks", "memory counts as far if a load takes                  4096 ticks 3 of 3"),
        ] {
            let line = line(&Threshold::over(name, vec![4096; 3]), false);
            assert!(line.starts_with(expected), "{line}");
        }
    }

    #[test]
    fn the_bar_ends_with_the_last_measurement() {
        for count in agreement::FEWEST..=agreement::MOST {
            let bar = bar().unwrap();
            for number in 0..count {
                lengthen(&bar, number);
                bar.inc(STEPS);
            }
            assert_eq!(bar.length(), Some(bar.position()));
        }
    }
}
