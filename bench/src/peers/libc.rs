//! Copies and fills by one CPU against memcpy and memset of two releases of glibc.
//!
//! ```text
//! peers/libc.c ─ cc ─► program ─┬─ started as it is ───────────────► the installed glibc
//!                               └─ by trixie's own loader ─────────► 2.41, which has a non-temporal memset
//! round, for each work: ours, each of them, all on CPU 0, between cold places of equal memory
//! ```

use std::process::Command;

use fastrand::Rng;
use memferry_cpu::slices;
use memferry_transfer::CacheHint;

use super::other::Other;
use super::{missing, subject, unpacked};
use crate::BenchError;
use crate::children::loader;
use crate::engine::arena::{Field, Pages, Slots};
use crate::engine::sides::size_name;
use crate::placement::{Class, Pinned};
use crate::rows::{Better, Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

pub(super) const SECTION: &str = "libc";
const ROUNDS: usize = 41;
/// Where trixie's C library is, below the folder of peers.
const NEWER: &str = "glibc/unpacking/usr/lib/x86_64-linux-gnu";
/// Bytes timed together at least, and the most places for that.
const BLOCK: usize = 256 << 10;
const MOST_PLACES: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Copy,
    Zero,
}

struct Work {
    kind: Kind,
    bytes: usize,
    least: f64,
}

const WORKS: [Work; 8] = [
    Work { kind: Kind::Copy, bytes: 4 << 10, least: 0.95 },
    Work { kind: Kind::Copy, bytes: 64 << 10, least: 1.2 },
    Work { kind: Kind::Copy, bytes: 2 << 20, least: 1.45 },
    Work { kind: Kind::Copy, bytes: 32 << 20, least: 1.7 },
    Work { kind: Kind::Zero, bytes: 4 << 10, least: 2.3 },
    Work { kind: Kind::Zero, bytes: 64 << 10, least: 2.3 },
    Work { kind: Kind::Zero, bytes: 1 << 20, least: 2.3 },
    Work { kind: Kind::Zero, bytes: 16 << 20, least: 2.3 },
];

impl Work {
    /// The row's name without the peer.
    fn what(&self) -> String {
        let size = size_name(self.bytes);
        match self.kind {
            Kind::Copy => format!("cold copy, {size}"),
            Kind::Zero => format!("zeroing cold memory, {size}"),
        }
    }

    fn places(&self) -> usize {
        (BLOCK / self.bytes).clamp(1, MOST_PLACES)
    }

    /// Nanoseconds per call of the CPU engine.
    fn ours(&self, field: &mut Field, slots: &mut Slots) -> Result<f64, BenchError> {
        let places: Vec<usize> = (0..self.places()).map(|_| slots.next()).collect();
        let (to, from) = field.both();
        let started = std::time::Instant::now();
        for at in &places {
            let range = *at..at + self.bytes;
            match self.kind {
                Kind::Copy => slices::copy(&mut to[range.clone()], &from[range], CacheHint::Auto)?,
                Kind::Zero => slices::fill(&mut to[range], 0, CacheHint::Stream),
            }
        }
        Ok(since_ns(started) / places.len() as f64)
    }

    fn theirs(&self, libc: &mut Other) -> Result<f64, BenchError> {
        let kind = if self.kind == Kind::Copy { "copy" } else { "zero" };
        Ok(libc.ask(&format!("{kind} {} {}", self.bytes, self.places()))?.parse()?)
    }
}

/// MiB of each area: many times the caches.
fn area_mib(run: &Run) -> usize {
    if run.quick() { 128 } else { 512 }
}

/// The peers that there are, with their names.
fn start(run: &Run) -> Result<Vec<(String, Other)>, BenchError> {
    let program = run.directory().join("libc");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/libc.c");
    if !Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).status()?.success() {
        return Err("peers/libc.c does not compile".into());
    }
    let words = |loader: Vec<String>| {
        let own = [program.display().to_string(), area_mib(run).to_string()];
        loader.into_iter().chain(own).collect::<Vec<_>>()
    };
    let mut peers = Vec::new();
    for loader in [Some(Vec::new()), unpacked(NEWER).map(|folder| loader(&folder))].into_iter().flatten() {
        let peer = Other::start(&words(loader), &[])?;
        let version = peer.answer()?;
        peers.push((format!("glibc {version}"), peer));
    }
    Ok(peers)
}

pub(super) fn measure(run: &Run, class: Class) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part(SECTION, ROUNDS);
    let _pinned = Pinned::to(0)?;
    let mut field = Field::new(area_mib(run) << 20, Pages::Huge)?;
    let mut peers = start(run)?;
    let mut rng = Rng::with_seed(0x11bc);
    let mut slots = WORKS.each_ref().map(|work| Slots::new(field.length(), work.bytes, &mut rng));
    let mut sides = vec![[const { Vec::new() }; WORKS.len()]; peers.len()];
    for _ in 0..rounds {
        for (index, work) in WORKS.iter().enumerate() {
            let ours = work.ours(&mut field, &mut slots[index])?;
            for ((_, peer), sides) in peers.iter_mut().zip(&mut sides) {
                sides[index].push((ours, work.theirs(peer)?));
            }
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ((peer, _), sides) in peers.iter().zip(&sides) {
        for (work, sides) in WORKS.iter().zip(sides) {
            let subject = subject(SECTION, work.what(), peer, class);
            let gb_per_s = |ns: f64| work.bytes as f64 / ns;
            let speeds: Vec<_> =
                sides.iter().map(|(ours, theirs)| (gb_per_s(*ours), gb_per_s(*theirs))).collect();
            rows.push(Row::against(&subject, ("GB/s", Better::Higher), Target::AtLeast(work.least), &speeds));
        }
    }
    if peers.len() < 2 {
        let subject = subject(SECTION, "cold copies and zeroing", "glibc of Debian trixie", class);
        rows.push(Row::not_compared(&subject, &missing("trixie's libc6")));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_move_what_they_say() {
        for work in WORKS.iter().filter(|work| work.bytes <= 64 << 10) {
            let mut field = Field::new(1 << 20, Pages::Ordinary).unwrap();
            let mut slots = Slots::new(field.length(), work.bytes, &mut Rng::with_seed(1));
            let mut same = Slots::new(field.length(), work.bytes, &mut Rng::with_seed(1));
            assert!(work.ours(&mut field, &mut slots).unwrap() > 0.0);
            let at = same.next();
            let (to, from) = field.both();
            let range = at..at + work.bytes;
            match work.kind {
                Kind::Copy => assert_eq!(to[range.clone()], from[range]),
                Kind::Zero => assert!(to[range].iter().all(|byte| *byte == 0)),
            }
        }
    }

    #[test]
    fn blocks_have_a_place_at_least() {
        assert_eq!(WORKS.each_ref().map(Work::places)[..4], [64, 4, 1, 1]);
    }
}
