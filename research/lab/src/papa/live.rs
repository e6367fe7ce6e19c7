//! The slides' questions to this machine: suspended channels under the priority policy, and what copies do to a victim
//! in level 2. Measured, not simulated.
//!
//! ```text
//! embedded service, slices of milliseconds ─► copies of all classes ─► its status: slices, bytes that strayed in them
//! victim's pass ─► some pieces of 16,064 bytes by read(), libc, streamed, offloaded ─► the next pass, timed
//! ```
//!
//! Slices are of milliseconds, for waking a lane takes some 35 us. A service of its own in this process has one client, and
//! the one that several share has other experiments' too, so that exclusive and shared channels, which are about several
//! clients, are tried in virtual time only. Times are reported, never asserted.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use memferry::{
    CacheHint, Client, Frame, PolicyKind, PolicySettings, PriorityClass, ServiceConfig, Transfer,
};

use super::cache_state::PIECE;
use crate::chance::Chance;
use crate::claims::Place;
use crate::experiments::{Case, Judge, RunError};
use crate::judging::Finding;
use crate::verdict::{Basis, Figures, Status, Verdict};

/// What decides claims here.
pub(super) const JUDGES: [Judge; 2] = [
    Judge { claim: "papa-policies", place: Place::Live, judge: silent },
    Judge { claim: "papa-pollution", place: Place::Live, judge: polluted },
];

/// What went wrong with the machine.
type LiveError = Box<dyn std::error::Error>;

/// How long the service is kept busy, and for how much longer at most until low requests have moved too: on a machine that
/// does other things the lane may hardly have run before.
const BUSY: Duration = Duration::from_millis(400);
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a copy under the priority policy.
const LONG: u64 = 4 << 20;
/// Bytes that copies come from, by turns.
const FILE: u64 = 32 << 20;
/// Bytes of a line of the victim.
const LINE: usize = 64;
/// Pieces between two passes of the victim, 256 KiB, and passes for each way to copy.
const PIECES: u64 = 16;
const PASSES: usize = 301;
/// Bytes of level 2 where Linux does not tell.
const USUAL_LEVEL_2: usize = 1 << 20;

fn not_measured(case: &Case<'_>, error: &LiveError) -> Verdict {
    let why = format!("the machine at hand could not be measured: {error}");
    Verdict { why, ..Verdict::not_run(case.claim, Place::Live) }
}

fn silent(case: &Case<'_>) -> Result<Verdict, RunError> {
    let (slices, strayed, moved) = match under_priority() {
        Ok(found) => found,
        Err(error) => return Ok(not_measured(case, &error)),
    };
    let mut finding = Finding::of(case.claim);
    finding.figure("slices", slices as f64);
    finding.figure("bytes of suspended requests in them", strayed as f64);
    let [high, low] = moved.map(|bytes| bytes >> 20);
    let words = format!(
        "priority, slices of 3 ms in every 6 on a CPU lane: in {slices} slices {strayed} bytes of \
         suspended requests moved; \
         {high} MiB of the high class, {low} MiB of the two others. Exclusive and shared channels are tried in virtual time \
         only: they are about several clients, and the service tried here has one"
    );
    finding.check(strayed == 0 && slices > 0 && moved[1] > 0, words);
    Ok(finding.verdict(Place::Live, Basis::Measured))
}

/// Slices, bytes that strayed, and bytes of the high class and of the others.
fn under_priority() -> Result<(u64, u64, [u64; 2]), LiveError> {
    let policy = PolicySettings {
        period: Duration::from_millis(6),
        slice: Duration::from_millis(3),
        ..PolicySettings::of(PolicyKind::Priority)
    };
    let client = Client::embedded_with(ServiceConfig { workers: 1, policy, ..ServiceConfig::default() })?;
    let classes = [PriorityClass::High, PriorityClass::Normal, PriorityClass::Low];
    let mut busy = Vec::new();
    for class in classes {
        busy.push((class, client.queue(8)?, client.allocate(LONG)?, client.allocate(LONG)?));
    }
    let mut moved = [0, 0];
    let begun = Instant::now();
    while begun.elapsed() < BUSY || (moved[1] == 0 && begun.elapsed() < PATIENCE) {
        for (class, channel, from, to) in &mut busy {
            while channel.outstanding() < 2 {
                channel.submit(Transfer::copy(&from.all(), &to.all())?.with_class(*class))?;
            }
            while let Some(completion) = channel.poll() {
                completion.outcome?;
                moved[usize::from(*class != PriorityClass::High)] += completion.bytes_done;
            }
        }
        // The lane has the CPU, where there is one only.
        std::thread::yield_now();
    }
    let status = client.status()?;
    Ok((status.slices, status.strayed_bytes, moved))
}

fn polluted(case: &Case<'_>) -> Result<Verdict, RunError> {
    let found = match victim_beside_copies() {
        Ok(found) => found,
        Err(error) => return Ok(not_measured(case, &error)),
    };
    Ok(Verdict {
        status: Status::Reported,
        basis: Some(Basis::Measured),
        figures: Figures::Named(found.iter().map(|(name, us)| ((*name).to_owned(), *us)).collect()),
        unit: Some("us".to_owned()),
        why: format!(
            "what a tenth of {PASSES} passes do not exceed, of a victim of three quarters of level 2 \
             after {PIECES} pieces of \
             16,064 bytes; read() is the kernel-user copy, the offloaded ones are done by a lane on another CPU \
             and polled for; on a \
             machine that does other things"
        ),
        ..Verdict::not_run(case.claim, Place::Live)
    })
}

/// A ring of lines in an order by chance, so that each load waits for the one before.
struct Ring {
    next: Vec<u32>,
    lines: usize,
}

impl Ring {
    fn new(lines: usize) -> Self {
        const WORDS: usize = LINE / size_of::<u32>();
        let mut order: Vec<usize> = (1..lines).collect();
        let mut chance = Chance::new(1);
        for at in (1..order.len()).rev() {
            order.swap(at, chance.below(at as u64 + 1) as usize);
        }
        let mut next = vec![0; lines * WORDS];
        let mut here = 0;
        for there in order {
            next[here * WORDS] = (there * WORDS) as u32;
            here = there;
        }
        Self { next, lines }
    }

    /// Microseconds of a pass.
    fn pass(&self) -> f64 {
        let begun = Instant::now();
        let mut at = 0;
        for _ in 0..self.lines {
            at = self.next[at] as usize;
        }
        std::hint::black_box(at);
        begun.elapsed().as_nanos() as f64 / 1e3
    }

    /// What a tenth of the passes do not exceed, microseconds, with some pieces copied before each.
    fn beside(&self, between: &mut Between<'_>) -> Result<f64, LiveError> {
        let mut passes = Vec::new();
        let mut place = 0;
        for _ in 0..PASSES {
            self.pass();
            for _ in 0..PIECES {
                place = (place + PIECE) % (FILE - PIECE);
                between(place)?;
            }
            passes.push(self.pass());
        }
        passes.sort_by(f64::total_cmp);
        Ok(passes[PASSES / 10])
    }
}

/// Copies the piece from a place of what is copied.
type Between<'a> = dyn FnMut(u64) -> Result<(), LiveError> + 'a;

/// Microseconds of a victim's pass by what came before it.
fn victim_beside_copies() -> Result<[(&'static str, f64); 7], LiveError> {
    let ring = Ring::new(level_2() / 4 * 3 / LINE);
    let low = |between: &mut Between<'_>| ring.beside(between);
    let mut buffer = vec![1; PIECE as usize];
    let file = cached_file()?;
    let source = vec![1_u8; FILE as usize];
    let plain = Client::embedded()?;
    // A policy that paces has short requests done by the lane too.
    let policy = PolicySettings::of(PolicyKind::Weighted);
    let paced = Client::embedded_with(ServiceConfig { workers: 1, policy, ..ServiceConfig::default() })?;
    let pair = |client: &Client| -> Result<(Frame, Frame), LiveError> {
        Ok((client.allocate(FILE)?, client.allocate(PIECE)?))
    };
    let ((from, to), (far, near)) = (pair(&plain)?, pair(&paced)?);
    let mut here = plain.queue(8)?;
    let mut there = paced.queue(8)?;
    let mut copy = vec![0; PIECE as usize];
    let mut by_lane = |hint: Option<CacheHint>| {
        low(&mut |at| {
            there.submit(match hint {
                Some(hint) => Transfer::copy(&far.range(at, PIECE), &near.all())?.with_hint(hint),
                None => Transfer::nop(),
            })?;
            // Who sleeps instead leaves the caches to others.
            loop {
                match there.poll() {
                    Some(completion) => return Ok(completion.outcome?),
                    None => std::hint::spin_loop(),
                }
            }
        })
    };
    let nothing = by_lane(None)?;
    let offloaded = by_lane(Some(CacheHint::Auto))?;
    let past_caches = by_lane(Some(CacheHint::Stream))?;
    Ok([
        ("alone", low(&mut |_| Ok(()))?),
        ("after read()", low(&mut |at| Ok(file.read_exact_at(&mut buffer, at)?))?),
        (
            "after libc",
            low(&mut |at| {
                copy.copy_from_slice(&source[at as usize..(at + PIECE) as usize]);
                std::hint::black_box(&copy);
                Ok(())
            })?,
        ),
        (
            "after streamed",
            low(&mut |at| {
                let copy = Transfer::copy(&from.range(at, PIECE), &to.all())?.with_hint(CacheHint::Stream);
                Ok(here.perform(copy)?.outcome?)
            })?,
        ),
        ("beside a lane that moved nothing", nothing),
        ("after offloaded", offloaded),
        ("after offloaded, streamed", past_caches),
    ])
}

/// Bytes of the first CPU's level 2.
fn level_2() -> usize {
    let told = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or_default();
    told.trim()
        .strip_suffix('K')
        .and_then(|kib| kib.parse::<usize>().ok())
        .map_or(USUAL_LEVEL_2, |kib| kib << 10)
}

/// A file without a name that is in the page cache.
fn cached_file() -> Result<File, LiveError> {
    let path = std::env::temp_dir().join(format!("memferry-lab-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    let zeros = vec![1; 1 << 20];
    for _ in 0..FILE >> 20 {
        file.write_all(&zeros)?;
    }
    Ok(file)
}
