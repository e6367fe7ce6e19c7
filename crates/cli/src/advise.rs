//! `memferry advise`: measures whether a program gains by handing its copies over on this machine, and from which size.
//!
//! ```text
//! sizes x (near, far) ─► rounds of: copy; copy, then compute; hand over, compute, take; hand over, wait
//!                        └─► ratios, quartiles ─► the size from which each way gains ─► a table, two sentences
//! ```
//!
//! With a socket, the engines are those of that service, engine processes among them: the table says which one moved each length.
//!
//! The ways alternate within a round, on random data, with an awake worker and the thresholds of this user's engines. The
//! computation uses registers only and takes about as long as the copy. Computation in memory is not measured. The output says
//! if other programs took the CPU meanwhile.

use std::hint::black_box;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{Client, EngineKind, ExternalStatus, Frame, Queue, copy, nop};
use serde::Serialize;

use crate::CommandError;
use crate::measure::{Bytes, random_bytes, thread_cpu};
use crate::output::say;

/// Bytes of each side's far memory: more than the caches hold. Copies cycle through it.
const POOL: u64 = 64 << 20;
/// Measured lengths in bytes.
const SIZES: [u64; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const ROUNDS: usize = 15;
/// Bytes that one side moves in a round, unless a single copy is longer.
const ROUND_BYTES: u64 = 1 << 20;
/// The smallest gain that is recommended.
const WORTH: f64 = 1.1;
/// Share of the time without a CPU above which the figures are not trustworthy.
const DISTURBED: f64 = 0.05;

/// Arguments of `advise`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Measure the engines of the service at this socket, among them its engine processes, instead of one inside the process.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Speed-up of one side, over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Gain {
    median: f64,
    lower_quartile: f64,
    upper_quartile: f64,
}

/// The result for one size, near or far.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    bytes: u64,
    /// Memory in no cache; otherwise the same buffers are reused.
    far: bool,
    /// Time to copy and then compute, divided by the time to compute while the engine copies.
    computing: Gain,
    /// Time to copy, divided by the time to wait for the engine.
    waiting: Gain,
    /// What moved the last copy.
    #[serde(serialize_with = "by_name")]
    engine: EngineKind,
}

fn by_name<S: serde::Serializer>(engine: &EngineKind, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(engine)
}

/// The size from which handing over gains, and the largest gain; `None` if it never gains.
type Advice = Option<(u64, f64)>;

/// Runs `memferry advise`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let cpus = std::thread::available_parallelism()?.get();
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(2 * SIZES.len() as u64), target);
    bar.set_style(ProgressStyle::with_template("{msg:<32} [{bar:40}] {pos}/{len}")?.progress_chars("=> "));
    let mut sides = Sides::new(arguments.socket.as_deref())?;
    let mut rows = Vec::new();
    for far in [false, true] {
        for bytes in SIZES {
            bar.set_message(format!("{} of {} memory", Bytes(bytes), place(far)));
            rows.push(sides.measure(bytes, far)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if arguments.json {
        let object = serde_json::json!({
            "cpus": cpus, "rounds": ROUNDS, "disturbed": sides.disturbed(), "rows": rows, "engines": sides.engines()?,
        });
        say!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    print(&rows, cpus)?;
    if arguments.socket.is_some() {
        say!("{}", about_processes(&rows, &sides.engines()?));
    }
    let disturbed = sides.disturbed();
    if disturbed > DISTURBED {
        say!(
            "\nOther programs used this thread's CPU for {:.0} % of the time: measure again on an idle machine.",
            disturbed * 100.0
        );
    }
    Ok(())
}

const fn place(far: bool) -> &'static str {
    if far { "far" } else { "near" }
}

fn print(rows: &[Row], cpus: usize) -> Result<(), CommandError> {
    say!(
        "speed-up of a program that hands its copies over (median, and lower to upper quartile, of {ROUNDS} rounds):\n"
    );
    say!(
        "{:>10}  {:<6} {:<26} {:<26} {}",
        "length",
        "memory",
        "if it computes meanwhile",
        "if it only waits",
        "moved by"
    );
    for row in rows {
        let gain = |gain: Gain| {
            format!("{:5.2}  ({:.2} to {:.2})", gain.median, gain.lower_quartile, gain.upper_quartile)
        };
        let computing = gain(row.computing);
        let waiting = gain(row.waiting);
        let length = Bytes(row.bytes).to_string();
        say!("{length:>10}  {:<6} {computing:<26} {waiting:<26} {}", place(row.far), row.engine);
    }
    say!("\nnear: the same buffers are reused. far: the memory is in no cache.\n");
    for far in [false, true] {
        let of = |way: fn(&Row) -> Gain| advice(rows.iter().filter(|row| row.far == far), way);
        say!("{} memory: {}", place(far), sentence(of(|row| row.computing), of(|row| row.waiting)));
    }
    match cpus {
        1 => say!("\nThis machine has one CPU, which the engine's worker and the program share."),
        _ => say!(
            "\nThe engine's worker uses one more of the {cpus} CPUs while it copies. A program that uses all CPUs gains less."
        ),
    }
    Ok(())
}

/// What an administrator learns of the service's engine processes.
fn about_processes(rows: &[Row], engines: &[ExternalStatus]) -> String {
    let connected: Vec<_> =
        engines.iter().filter(|engine| engine.is_connected).map(|engine| engine.name.as_str()).collect();
    if engines.is_empty() {
        return "\nThe service has no engine process.".to_owned();
    }
    if connected.is_empty() {
        return "\nNo engine process of the service is connected: CPU workers did its work.".to_owned();
    }
    let names = connected.join(", ");
    match rows.iter().filter(|row| row.engine == EngineKind::External).map(|row| row.bytes).min() {
        Some(bytes) => format!(
            "\nEngine processes ({names}) moved copies from {}. `memferry tune --engine` measures from which length one pays.",
            Bytes(bytes)
        ),
        None => format!("\nEngine processes ({names}) moved none of these copies."),
    }
}

fn sentence(computing: Advice, waiting: Advice) -> String {
    let from = |(bytes, most): (u64, f64)| format!("from {} (up to {most:.1} times as fast)", Bytes(bytes));
    let computing = match computing {
        Some(advice) => {
            format!("hand copies over {} if the program can compute meanwhile", from(advice))
        }
        None => "handing copies over gains nothing even if the program computes meanwhile".to_owned(),
    };
    match waiting {
        Some(advice) => format!("{computing}; a program that only waits gains {}.", from(advice)),
        None => format!("{computing}; a program that would only wait should copy by itself."),
    }
}

/// The smallest size from which all longer copies gain enough, in most rounds.
fn advice<'a>(rows: impl DoubleEndedIterator<Item = &'a Row>, way: fn(&Row) -> Gain) -> Advice {
    rows.rev()
        .map(|row| (row.bytes, way(row)))
        .take_while(|(_, gain)| gain.median >= WORTH && gain.lower_quartile > 1.0)
        .fold(None, |found: Advice, (bytes, gain)| {
            Some((bytes, gain.median.max(found.map_or(0.0, |(_, most)| most))))
        })
}

/// Both sides: buffers of this program, and frames of an embedded client.
struct Sides {
    own: (Vec<u8>, Vec<u8>),
    frames: (Frame, Frame),
    client: Client,
    queue: Queue,
    /// What moved the last copy.
    engine: EngineKind,
    /// Offset of the next copy of each side.
    at: [u64; 2],
    /// Computation steps per nanosecond.
    pace: f64,
    /// Elapsed time of this thread's own copies, and its CPU time in them.
    took: (Duration, Duration),
}

impl Sides {
    /// The engines of the service at the socket, or one inside this process.
    fn new(socket: Option<&Path>) -> Result<Self, CommandError> {
        let client = match socket {
            Some(socket) => Client::connect(socket)?,
            None => Client::embedded()?,
        };
        let length = usize::try_from(POOL)?;
        let frames = (client.frame(POOL).alloc()?, client.frame(POOL).alloc()?);
        let own = (random_bytes(length, 11), random_bytes(length, 12));
        frames.0.write(0, &own.0)?;
        frames.1.write(0, &own.1)?;
        let queue = client.queue(16)?;
        let engine = EngineKind::None;
        Ok(Self { own, frames, client, queue, engine, at: [0; 2], pace: pace(), took: Default::default() })
    }

    /// The engine processes that the service may have.
    fn engines(&self) -> Result<Vec<ExternalStatus>, CommandError> {
        Ok(self.client.status()?.engines)
    }

    fn measure(&mut self, bytes: u64, far: bool) -> Result<Row, CommandError> {
        let count = (ROUND_BYTES / bytes).max(1);
        let mut computing = Vec::new();
        let mut waiting = Vec::new();
        for round in 0..=ROUNDS {
            let alone = self.copies((bytes, far), count, 0);
            let work = (alone.as_nanos() as f64 / count as f64 * self.pace) as u64;
            let copied = self.copies((bytes, far), count, work);
            let computed = self.transfers((bytes, far), count, work)?;
            let waited = self.transfers((bytes, far), count, 0)?;
            // The first round warms up caches, clocks and the worker.
            if round > 0 {
                computing.push(copied.as_secs_f64() / computed.as_secs_f64().max(1e-9));
                waiting.push(alone.as_secs_f64() / waited.as_secs_f64().max(1e-9));
            }
        }
        let engine = self.engine;
        Ok(Row { bytes, far, computing: gain(computing), waiting: gain(waiting), engine })
    }

    /// Offset of the next copy: a new one each time for far memory.
    fn place(at: &mut u64, (bytes, far): (u64, bool)) -> u64 {
        if far {
            *at = if *at + 2 * bytes > POOL { 0 } else { *at + bytes };
        }
        if far { *at } else { 0 }
    }

    fn copies(&mut self, what: (u64, bool), count: u64, work: u64) -> Duration {
        let source = &self.own.0;
        let destination = &mut self.own.1;
        let cpu = thread_cpu();
        let started = Instant::now();
        for _ in 0..count {
            let at = Self::place(&mut self.at[0], what) as usize;
            let range = at..at + what.0 as usize;
            destination[range.clone()].copy_from_slice(black_box(&source[range]));
            black_box(&mut *destination);
            compute(work);
        }
        let elapsed = started.elapsed();
        self.took.0 += elapsed;
        self.took.1 += thread_cpu().saturating_sub(cpu);
        elapsed
    }

    /// The share of this thread's copying time in which it had no CPU.
    fn disturbed(&self) -> f64 {
        1.0 - self.took.1.as_secs_f64() / self.took.0.as_secs_f64().max(1e-9)
    }

    fn transfers(&mut self, what: (u64, bool), count: u64, work: u64) -> Result<Duration, CommandError> {
        // Wakes the worker first, since the question is the cost in a program that makes many copies.
        let awake = self.queue.submit(nop())?;
        self.queue.wait(awake)?;
        let started = Instant::now();
        for _ in 0..count {
            let at = Self::place(&mut self.at[1], what);
            let source = self.frames.0.slice(at..at + what.0);
            let destination = self.frames.1.slice(at..at + what.0);
            let ticket = self.queue.submit(copy(&source, &destination))?;
            compute(work);
            self.engine = self.queue.wait(ticket)?.engine;
        }
        Ok(started.elapsed())
    }
}

/// Runs `steps` steps of arithmetic in registers.
fn compute(steps: u64) {
    let mut value = black_box(steps);
    for _ in 0..steps {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

/// Computation steps per nanosecond: the fastest of several tries.
fn pace() -> f64 {
    const STEPS: u64 = 1 << 18;
    let time = || {
        let started = Instant::now();
        compute(STEPS);
        started.elapsed().as_nanos().max(1)
    };
    STEPS as f64 / (0..9).map(|_| time()).min().unwrap_or(1) as f64
}

fn gain(mut ratios: Vec<f64>) -> Gain {
    ratios.sort_by(f64::total_cmp);
    let at = |quarter: usize| ratios.get((ratios.len() - 1) * quarter / 4).copied().unwrap_or(0.0);
    Gain { median: at(2), lower_quartile: at(1), upper_quartile: at(3) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(gains: &[(u64, f64, f64)]) -> Vec<Row> {
        let row = |&(bytes, median, lower_quartile): &(u64, f64, f64)| {
            let gain = Gain { median, lower_quartile, upper_quartile: 9.0 };
            Row { bytes, far: true, computing: gain, waiting: gain, engine: EngineKind::Cpu }
        };
        gains.iter().map(row).collect()
    }

    fn advised(gains: &[(u64, f64, f64)]) -> Advice {
        advice(rows(gains).iter(), |row| row.computing)
    }

    #[test]
    fn advises_the_smallest_size_from_which_all_gain() {
        assert_eq!(advised(&[(1, 0.5, 0.4), (4, 1.9, 1.5), (16, 1.4, 1.2)]), Some((4, 1.9)));
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 0.9, 0.8), (16, 1.4, 1.2)]), Some((16, 1.4)), "a gap");
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 1.9, 1.5), (16, 1.4, 0.9)]), None, "gains in too few rounds");
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 1.9, 1.5), (16, 1.05, 1.04)]), None, "gains too little");
        assert_eq!(advised(&[]), None);
    }

    #[test]
    fn each_advice_has_its_sentence() {
        let advice = Some((65536, 1.94));
        assert_eq!(
            sentence(advice, None),
            "hand copies over from 64.0 KiB (up to 1.9 times as fast) if the program can compute meanwhile; a program \
             that would only wait should copy by itself."
        );
        let waits = sentence(None, advice);
        assert!(
            waits.ends_with("; a program that only waits gains from 64.0 KiB (up to 1.9 times as fast).")
        );
        assert!(
            waits.starts_with("handing copies over gains nothing even if the program computes meanwhile; ")
        );
    }

    #[test]
    fn engine_processes_have_their_sentence() {
        let mut rows = rows(&[(1, 1.0, 1.0), (65536, 1.0, 1.0)]);
        let mut engine = ExternalStatus { name: "gpu".to_owned(), ..ExternalStatus::default() };
        assert!(about_processes(&rows, &[]).ends_with("has no engine process."));
        assert!(about_processes(&rows, std::slice::from_ref(&engine)).contains("is connected"));
        engine.is_connected = true;
        let engines = [engine];
        assert!(about_processes(&rows, &engines).ends_with("(gpu) moved none of these copies."));
        rows[1].engine = EngineKind::External;
        assert!(about_processes(&rows, &engines).contains("(gpu) moved copies from 64.0 KiB."));
    }

    #[test]
    fn quartiles_are_computed_from_ratios() {
        let gain = gain(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((gain.lower_quartile, gain.median, gain.upper_quartile), (2.0, 3.0, 4.0));
    }

    #[test]
    fn far_copies_stay_within_the_pool() {
        let mut at = 0;
        for bytes in SIZES {
            for _ in 0..200 {
                assert!(Sides::place(&mut at, (bytes, true)) + bytes <= POOL);
            }
        }
        assert_eq!(Sides::place(&mut at, (SIZES[0], false)), 0);
    }
}
