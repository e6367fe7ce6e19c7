//! `memferry tune`: measures this machine and stores the thresholds for the engines of this user.
//!
//! ```text
//! kernels: sizes, near and far, alone and shared ─┐
//! embedded client: cost of handing over ──────────┴─► thresholds ─► profile.toml, a table
//! ```
//!
//! `memferry_service::profile` measures and stores. A running service keeps the thresholds that it was started with.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{Client, Queue, copy, nop};
use memferry_service::profile::measure::{self, NEVER};
use memferry_service::profile::{self, Profile, Tuning};

use crate::CommandError;
use crate::measure::{Bytes, median, random_bytes};
use crate::output::say;

/// Arguments of `tune`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// File to write, instead of the profile in the user's configuration directory.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Measure and print, but write nothing.
    #[arg(long, conflicts_with = "to")]
    dry_run: bool,
    /// Print the profile as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs `memferry tune`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let path = match (&arguments.to, arguments.dry_run) {
        (_, true) => None,
        (Some(path), false) => Some(path.clone()),
        (None, false) => Some(profile::path()?),
    };
    if let Some(path) = &path {
        profile::make_folder(path)?;
    }
    let bar = bar()?;
    let step = |what: &'static str| {
        bar.set_message(what);
        bar.inc(1);
    };
    let mut thresholds = measure::measure(step)?;
    step("requests run inline");
    match inline_bytes() {
        Ok(bytes) => thresholds.inline_bytes = bytes,
        Err(error) => bar.suspend(|| eprintln!("memferry: requests run inline were not measured: {error}")),
    }
    bar.finish_and_clear();
    thresholds.check()?;
    let profile = Profile { cpu: profile::cpu(), thresholds };
    if let Some(path) = &path {
        profile.write(path)?;
    }
    if arguments.json {
        say!("{}", serde_json::to_string_pretty(&profile)?);
        return Ok(());
    }
    print(&profile.thresholds)?;
    match path {
        Some(path) => say!("written to {}; engines started from now on use it", path.display()),
        None => say!("nothing was written"),
    }
    Ok(())
}

fn bar() -> Result<ProgressBar, CommandError> {
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(u64::from(measure::STEPS) + 2), target);
    bar.set_style(ProgressStyle::with_template("{msg:<32} [{bar:40}] {pos}/{len}")?.progress_chars("=> "));
    Ok(bar)
}

fn print(thresholds: &Tuning) -> Result<(), CommandError> {
    let rows = [
        ("copies of far memory bypass the caches from", thresholds.stream_cold_bytes),
        ("all copies bypass the caches from", thresholds.stream_always_bytes),
        ("zeroing far memory bypasses the caches from", thresholds.zero_cold_bytes),
        ("copies are shared with an awake worker from", thresholds.share_awake_bytes),
        ("a worker is woken to share copies of far memory from", thresholds.share_asleep_cold_bytes),
        ("a worker is woken to share copies of near memory from", thresholds.share_asleep_hot_bytes),
        ("embedded requests run inline up to", thresholds.inline_bytes),
    ];
    for (what, bytes) in rows {
        match bytes {
            NEVER.. => say!("{what:<52} never"),
            bytes => say!("{what:<52} {}", Bytes(bytes)),
        }
    }
    match thresholds.far_ticks {
        0 => say!("timed loads cannot distinguish memory from caches on this machine"),
        ticks => say!("{:<52} {ticks} ticks", "memory counts as far if a load takes"),
    }
    Ok(())
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
