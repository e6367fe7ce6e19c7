//! `memferry advise`: whether a program should hand its copies over on this machine, and from which size on.
//!
//! ```text
//! sizes x (near, far) ─► rounds of: copy; copy, then compute; hand over, compute, take; hand over, wait
//!                        └─► ratios, quartiles ─► from which size on each way gains ─► a table, two sentences
//! ```
//!
//! All sides take turns within a round, on random data, with a worker that is awake and the thresholds that engines of this
//! user go by. The computing touches registers only and takes about as long as the copy. What a program computes in memory
//! is not asked; that other programs took the CPU meanwhile is said.

use std::hint::black_box;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memferry::{Client, Frame, Queue, copy, nop};
use serde::Serialize;

use crate::CommandError;
use crate::measure::{Bytes, random_bytes, thread_cpu};
use crate::output::say;

/// Bytes of each side of what is far: more than caches hold, gone round in.
const POOL: u64 = 64 << 20;
/// Lengths that are measured.
const SIZES: [u64; 8] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
const ROUNDS: usize = 15;
/// Bytes that one side moves in a round, where one copy is less.
const ROUND_BYTES: u64 = 1 << 20;
/// A gain that is worth a program's trouble.
const WORTH: f64 = 1.1;
/// The part of the time without a CPU from which on the figures say more about other programs.
const DISTURBED: f64 = 0.05;

/// Arguments of `advise`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How many times as fast one side was, over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Gain {
    median: f64,
    lower_quartile: f64,
    upper_quartile: f64,
}

/// One size, near or far.
#[derive(Clone, Copy, Debug, Serialize)]
struct Row {
    bytes: u64,
    /// Memory that no cache holds; else buffers that are used over and over.
    far: bool,
    /// Copying here and then computing, over computing while the engine copies.
    computing: Gain,
    /// Copying here, over waiting for the engine.
    waiting: Gain,
}

/// From which size on it gains, and how much at most; nothing when it does not.
type Advice = Option<(u64, f64)>;

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let cpus = std::thread::available_parallelism()?.get();
    let terminal = std::io::stderr().is_terminal();
    let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(2 * SIZES.len() as u64), target);
    bar.set_style(ProgressStyle::with_template("{msg:<32} [{bar:40}] {pos}/{len}")?.progress_chars("=> "));
    let mut sides = Sides::new()?;
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
        let disturbed = sides.disturbed();
        let object =
            serde_json::json!({ "cpus": cpus, "rounds": ROUNDS, "disturbed": disturbed, "rows": rows });
        say!("{}", serde_json::to_string_pretty(&object)?);
        return Ok(());
    }
    print(&rows, cpus)?;
    let disturbed = sides.disturbed();
    if disturbed > DISTURBED {
        say!(
            "\nOther programs had this thread's CPU for {:.0} % of the time: measure again when they are done.",
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
        "how many times as fast a program is that hands a copy over (median, and the middle half of {ROUNDS} rounds):\n"
    );
    say!("{:>10}  {:<6} {:<26} {:<26}", "length", "memory", "it computes meanwhile", "it only waits");
    for row in rows {
        let gain = |gain: Gain| {
            format!("{:5.2}  ({:.2} to {:.2})", gain.median, gain.lower_quartile, gain.upper_quartile)
        };
        let computing = gain(row.computing);
        let waiting = gain(row.waiting);
        say!("{:>10}  {:<6} {computing:<26} {waiting:<26}", Bytes(row.bytes).to_string(), place(row.far));
    }
    say!("\nnear: the same buffers over and over. far: memory that is in no cache.\n");
    for far in [false, true] {
        let of = |way: fn(&Row) -> Gain| advice(rows.iter().filter(|row| row.far == far), way);
        say!("{} memory: {}", place(far), sentence(of(|row| row.computing), of(|row| row.waiting)));
    }
    match cpus {
        1 => say!("\nThere is one CPU here, which the engine's worker and the program share."),
        _ => say!(
            "\nThe engine's worker takes one more of the {cpus} CPUs while it copies. A program that needs them all gains less."
        ),
    }
    Ok(())
}

fn sentence(computing: Advice, waiting: Advice) -> String {
    let from =
        |(bytes, most): (u64, f64)| format!("from {} on (up to {most:.1} times as fast)", Bytes(bytes));
    let computing = match computing {
        Some(advice) => {
            format!("hand copies over {} where the program has something to compute meanwhile", from(advice))
        }
        None => "handing copies over to compute meanwhile gains nothing".to_owned(),
    };
    match waiting {
        Some(advice) => format!("{computing}; one that only waits gains {}.", from(advice)),
        None => format!("{computing}; one that would only wait should copy by itself."),
    }
}

/// The least size from which on all longer copies gain, in most rounds and enough.
fn advice<'a>(rows: impl DoubleEndedIterator<Item = &'a Row>, way: fn(&Row) -> Gain) -> Advice {
    rows.rev()
        .map(|row| (row.bytes, way(row)))
        .take_while(|(_, gain)| gain.median >= WORTH && gain.lower_quartile > 1.0)
        .fold(None, |found: Advice, (bytes, gain)| {
            Some((bytes, gain.median.max(found.map_or(0.0, |(_, most)| most))))
        })
}

/// Both sides: memory of the program's own, and frames of an embedded client.
struct Sides {
    own: (Vec<u8>, Vec<u8>),
    frames: (Frame, Frame),
    queue: Queue,
    /// Where the next copy of each side lies.
    at: [u64; 2],
    /// Steps of computing in a nanosecond.
    pace: f64,
    /// What this thread's own copies took, and what of it the thread had a CPU.
    took: (Duration, Duration),
}

impl Sides {
    fn new() -> Result<Self, CommandError> {
        let client = Client::embedded()?;
        let length = usize::try_from(POOL)?;
        let frames = (client.frame(POOL).alloc()?, client.frame(POOL).alloc()?);
        let own = (random_bytes(length, 11), random_bytes(length, 12));
        frames.0.write(0, &own.0)?;
        frames.1.write(0, &own.1)?;
        let queue = client.queue(16)?;
        Ok(Self { own, frames, queue, at: [0; 2], pace: pace(), took: Default::default() })
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
            // The first brings caches, clocks and the worker to where they stay.
            if round > 0 {
                computing.push(copied.as_secs_f64() / computed.as_secs_f64().max(1e-9));
                waiting.push(alone.as_secs_f64() / waited.as_secs_f64().max(1e-9));
            }
        }
        Ok(Row { bytes, far, computing: gain(computing), waiting: gain(waiting) })
    }

    /// Where a copy lies: a new place each time when it is to be far.
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

    /// The part of its own copies' time in which this thread had no CPU: other programs had it.
    fn disturbed(&self) -> f64 {
        1.0 - self.took.1.as_secs_f64() / self.took.0.as_secs_f64().max(1e-9)
    }

    fn transfers(&mut self, what: (u64, bool), count: u64, work: u64) -> Result<Duration, CommandError> {
        // A worker that sleeps is woken ahead: the question is what copies cost in a program that makes many.
        let awake = self.queue.submit(nop())?;
        self.queue.wait(awake)?;
        let started = Instant::now();
        for _ in 0..count {
            let at = Self::place(&mut self.at[1], what);
            let source = self.frames.0.slice(at..at + what.0);
            let destination = self.frames.1.slice(at..at + what.0);
            let ticket = self.queue.submit(copy(&source, &destination))?;
            compute(work);
            self.queue.wait(ticket)?;
        }
        Ok(started.elapsed())
    }
}

/// So many steps of arithmetic in registers.
fn compute(steps: u64) {
    let mut value = black_box(steps);
    for _ in 0..steps {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
}

/// Steps of computing in a nanosecond: the fastest of some tries.
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
            Row { bytes, far: true, computing: gain, waiting: gain }
        };
        gains.iter().map(row).collect()
    }

    fn advised(gains: &[(u64, f64, f64)]) -> Advice {
        advice(rows(gains).iter(), |row| row.computing)
    }

    #[test]
    fn the_size_is_the_least_from_which_on_all_gain_in_most_rounds() {
        assert_eq!(advised(&[(1, 0.5, 0.4), (4, 1.9, 1.5), (16, 1.4, 1.2)]), Some((4, 1.9)));
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 0.9, 0.8), (16, 1.4, 1.2)]), Some((16, 1.4)), "a gap");
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 1.9, 1.5), (16, 1.4, 0.9)]), None, "not in most rounds");
        assert_eq!(advised(&[(1, 3.0, 2.0), (4, 1.9, 1.5), (16, 1.05, 1.04)]), None, "too little");
        assert_eq!(advised(&[]), None);
    }

    #[test]
    fn each_advice_is_a_sentence_of_its_own() {
        let advice = Some((65536, 1.94));
        assert_eq!(
            sentence(advice, None),
            "hand copies over from 64.0 KiB on (up to 1.9 times as fast) where the program has something to compute \
             meanwhile; one that would only wait should copy by itself."
        );
        let waits = sentence(None, advice);
        assert!(waits.ends_with("; one that only waits gains from 64.0 KiB on (up to 1.9 times as fast)."));
        assert!(waits.starts_with("handing copies over to compute meanwhile gains nothing; "));
    }

    #[test]
    fn quartiles_are_of_the_ratios() {
        let gain = gain(vec![5.0, 1.0, 3.0, 2.0, 4.0]);
        assert_eq!((gain.lower_quartile, gain.median, gain.upper_quartile), (2.0, 3.0, 4.0));
    }

    #[test]
    fn places_that_are_to_be_far_go_round_within_the_pool() {
        let mut at = 0;
        for bytes in SIZES {
            for _ in 0..200 {
                assert!(Sides::place(&mut at, (bytes, true)) + bytes <= POOL);
            }
        }
        assert_eq!(Sides::place(&mut at, (SIZES[0], false)), 0);
    }
}
