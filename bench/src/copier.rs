//! Group `copier`: asynchronous copies against memcpy: overlapped with computing, and chains with an unneeded middle.
//!
//! ```text
//! round, for each size: memcpy, compute ─ amemcpy, compute, csync        memcpy, memcpy ─ amemcpy, amemcpy, forget, csync
//! ```
//!
//! Computing uses registers only and takes about as long as the memcpy, the hardest case. The same buffers are used every time,
//! and neither side reads what it copied. This thread runs on CPU 0; the copying thread is not pinned.

use memferry::{Client, Copier, CopyBuffer};

use crate::BenchError;
use crate::engine::sides::size_name;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::{Aligned, Work, each_ns, median, random_bytes};

const ROUNDS: usize = 41;
/// Bytes, copies timed together, and required speed-ups: copy overlapped with computing, and chain. A short copy takes less
/// time than waking a thread, so it has no target.
const SIZES: [(usize, usize, Target, Target); 3] = [
    (64 << 10, 20, Target::None, Target::None),
    (1 << 20, 4, Target::AtLeast(1.4), Target::AtLeast(1.4)),
    (16 << 20, 1, Target::AtLeast(1.6), Target::AtLeast(1.6)),
];

/// Three buffers for each side.
struct Sides {
    copier: Copier,
    buffers: [CopyBuffer; 3],
    plain: [Aligned; 3],
    work: Work,
}

/// Times of a round, ns.
struct Times {
    /// Memcpy then computing; amemcpy, computing and csync.
    beside: [f64; 2],
    /// Two copies; two amemcpy of which the first is forgotten.
    chain: [f64; 2],
    /// The call of amemcpy alone.
    call: f64,
}

impl Sides {
    fn new(copier: Copier, bytes: usize) -> Result<Self, BenchError> {
        let adopt = |seed| copier.adopt(random_bytes(bytes, seed));
        let buffers = [adopt(1)?, adopt(2)?, adopt(3)?];
        let plain = [4, 5, 6].map(|seed| Aligned::random(bytes, seed));
        Ok(Self { copier, buffers, plain, work: Work::calibrated() })
    }

    fn memcpy(&mut self, to: usize, from: usize, bytes: usize) -> Result<(), BenchError> {
        let [to, from] = self.plain.get_disjoint_mut([to, from])?;
        to.bytes_mut()[..bytes].copy_from_slice(&from.bytes()[..bytes]);
        Ok(())
    }

    fn amemcpy(&self, to: usize, from: usize, bytes: usize) -> Result<(), BenchError> {
        let part = |index: usize| self.buffers[index].range(0, bytes as u64);
        Ok(self.copier.amemcpy(&part(to), &part(from))?)
    }

    fn round(&mut self, bytes: usize, count: usize) -> Result<Times, BenchError> {
        let tries =
            (0..5).map(|_| each_ns(count, || self.memcpy(1, 0, bytes))).collect::<Result<Vec<_>, _>>()?;
        let turns = self.work.turns(median(&tries));
        let plain = each_ns(count, || {
            self.memcpy(1, 0, bytes)?;
            Work::run(turns);
            Ok(())
        })?;
        let ours = each_ns(count, || {
            self.amemcpy(1, 0, bytes)?;
            Work::run(turns);
            Ok(self.buffers[1].csync(0, bytes as u64)?)
        })?;
        let plain_chain = each_ns(count, || {
            self.memcpy(1, 0, bytes)?;
            self.memcpy(2, 1, bytes)
        })?;
        let chain = each_ns(count, || {
            self.amemcpy(1, 0, bytes)?;
            self.amemcpy(2, 1, bytes)?;
            self.buffers[1].forget(0, bytes as u64)?;
            Ok(self.buffers[2].csync(0, bytes as u64)?)
        })?;
        let started = std::time::Instant::now();
        self.amemcpy(1, 0, bytes)?;
        let call = crate::timing::since_ns(started);
        self.copier.csync_all()?;
        Ok(Times { beside: [plain, ours], chain: [plain_chain, chain], call })
    }
}

pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let rounds = run.part("copier", ROUNDS);
    let copier = Copier::new(&Client::embedded()?)?;
    let _pinned = Pinned::to(0)?;
    let mut sides = Sides::new(copier, SIZES[SIZES.len() - 1].0)?;
    let mut values = [const { [const { Vec::new() }; 3] }; SIZES.len()];
    for _ in 0..rounds {
        for (values, (bytes, count, ..)) in values.iter_mut().zip(SIZES) {
            let Times { beside, chain, call } = sides.round(bytes, count)?;
            let round = [beside[0] / beside[1], chain[0] / chain[1], call];
            values.iter_mut().zip(round).for_each(|(values, value)| values.push(value));
        }
        run.round_done();
    }
    let mut rows = Vec::new();
    for ([beside, chain, call], (bytes, _, beside_target, chain_target)) in values.iter().zip(SIZES) {
        let name = size_name(bytes);
        let beside_title = format!("{name} and computing: memcpy against amemcpy and csync");
        rows.push(Row::new(beside_title, "ratio", beside_target, beside));
        let chain_title = format!("{name} through a buffer that is forgotten: memcpy against amemcpy");
        rows.push(Row::new(chain_title, "ratio", chain_target, chain));
        rows.push(Row::new(format!("{name}: the call of amemcpy"), "ns", Target::None, call));
    }
    Ok(rows)
}
