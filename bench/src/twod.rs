//! Group `twod`: pictures turned and keyed by the engine, against OpenCV.
//!
//! ```text
//! case: the same random picture on both sides ─► once on each side, results compared ─► rounds: engine, then OpenCV
//! ```
//!
//! Both sides allocate destinations beforehand and run on one CPU, one thread each. The target applies to memory of the same
//! kind, memfds in ordinary pages as frames are. Also reported is the time in memory of each side's own allocator,
//! for which numpy requests huge pages. Small pictures are turned many times per round, so they are cached.

mod opencv;
mod pictures;

use crate::BenchError;
use crate::placement::Pinned;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::median;
use opencv::Opencv;
use pictures::{Kind, Pictures, Work};

const ROUNDS: usize = 15;
/// Minimum bytes of pictures turned per round.
const ROUND_BYTES: usize = 32 << 20;

struct Case {
    work: Work,
    side: u32,
    pixel_bytes: u64,
    target: Target,
}

/// All cases; those with targets come first.
fn cases() -> Vec<Case> {
    let case = |work, side, pixel_bytes, target| Case { work, side, pixel_bytes, target };
    let mut cases = Vec::new();
    for (pixel_bytes, target) in [(1, 4.0), (2, 2.8), (4, 2.5)] {
        cases.push(case(Work::Rotate90, 4096, pixel_bytes, Target::AtLeast(target)));
        if pixel_bytes < 4 {
            cases.push(case(Work::Rotate90, 8192, pixel_bytes, Target::AtLeast(target)));
        }
        cases.push(case(Work::Rotate90, 1024, pixel_bytes, Target::AtLeast(1.3)));
    }
    cases.push(case(Work::KeyedRandom, 4096, 4, Target::AtLeast(5.0)));
    cases.push(case(Work::KeyedRuns, 4096, 4, Target::AtLeast(8.0)));
    for work in [Work::Rotate270, Work::Transpose, Work::FlipHorizontal, Work::FlipVertical, Work::Rotate180]
    {
        cases.extend([1, 2, 4].map(|pixel_bytes| case(work, 4096, pixel_bytes, Target::None)));
    }
    cases
}

/// Measures the selected cases.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut parts: Vec<_> = cases().iter().map(|case| case.work.part()).collect();
    parts.dedup();
    run.refuse_unknown(parts)?;
    let _pinned = Pinned::to(1)?;
    let mut opencv = match Opencv::start() {
        Ok(opencv) => opencv,
        Err(error) => return Ok(vec![Row::not_measured("pictures against OpenCV", &error.to_string())]),
    };
    run.say(&format!("twod: {}, one thread; ratios of times, OpenCV's by the engine's", opencv.version()));
    let mut rows = Vec::new();
    for case in cases().into_iter().filter(|case| run.wants(case.work.part())) {
        rows.extend(case.measure(run, &mut opencv)?);
    }
    Ok(rows)
}

impl Case {
    fn measure(&self, run: &Run, opencv: &mut Opencv) -> Result<Vec<Row>, BenchError> {
        let name = format!("{} {}k {}-bit", self.work.name(), self.side / 1024, 8 * self.pixel_bytes);
        let rounds = run.part(&name, ROUNDS);
        let mut rows = Vec::new();
        for (kind, target) in [(Kind::Frames, self.target), (Kind::Own, Target::None)] {
            let pictures = Pictures::new(self.work, self.side, self.pixel_bytes, kind)?;
            pictures.compare(opencv)?;
            let count = (ROUND_BYTES / pictures.bytes()).max(1);
            let mut ratios = Vec::new();
            let mut speeds = Vec::new();
            for _ in 0..rounds {
                let ours = pictures.run(count)?;
                let theirs = opencv.run(self.work.command(), count)?;
                ratios.push(theirs / ours);
                speeds.push((pictures.bytes() as f64 / ours, pictures.bytes() as f64 / theirs));
                if kind == Kind::Frames {
                    run.round_done();
                }
            }
            let speed = |side: fn(&(f64, f64)) -> f64| median(&speeds.iter().map(side).collect::<Vec<_>>());
            let name = format!(
                "{name}, {} ({:.1} against {:.1} GB/s)",
                kind.name(),
                speed(|speeds| speeds.0),
                speed(|speeds| speeds.1)
            );
            rows.push(Row::new(name, "times", target, &ratios));
        }
        Ok(rows)
    }
}
