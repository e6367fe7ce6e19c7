//! Times several ways of doing the same work side by side, at each point of a sweep.
//!
//! ```text
//! round, for each point: the ways in random order, each ─► hot: once untimed, then timed, at one place
//!                                                         cold: timed, at places not used for long
//! Point: nanoseconds per call, by way and round ─► ratios, GB/s, the worst point
//! ```
//!
//! If two cores take part, rounds during which the CPUs moved or were threads of one core are not counted. Small
//! pieces are timed in blocks, because reading the clock takes 25 ns. The worst of many points is partly due to chance, so
//! the few worst are measured again, and only the second measurement counts.

use std::time::Instant;

use fastrand::Rng;
use memferry_charts::{Line, Value};

use super::arena::Slots;
use crate::BenchError;
use crate::placement::{Class, placed};
use crate::plots::{spread, sweep};
use crate::run::Run;
use crate::timing::{median, since_ns};

/// Bytes per timed block, roughly.
const HOT_BLOCK: usize = 512 << 10;
const COLD_BLOCK: usize = 256 << 10;
/// Maximum calls per timed cold block, so that places are not used up.
const MAX_COLD: usize = 1024;
/// From this size on a call is timed alone, and n times this size is measured in every n-th round only.
const LONG: usize = 16 << 20;
/// Number of worst points that are measured again, and how many times more often.
const SUSPECTS: usize = 3;
const AGAIN: usize = 4;

/// Work of one call: bytes, and offsets of destination and source from a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) bytes: usize,
    pub(crate) to_skew: usize,
    pub(crate) from_skew: usize,
}

impl Piece {
    /// A piece without offsets.
    pub(crate) fn aligned(bytes: usize) -> Self {
        Self { bytes, to_skew: 0, from_skew: 0 }
    }

    pub(crate) fn name(&self) -> String {
        let Self { bytes, to_skew, from_skew } = *self;
        let size = size_name(bytes);
        if to_skew == 0 && from_skew == 0 { size } else { format!("{size} from +{from_skew} to +{to_skew}") }
    }
}

/// A byte count with its unit.
pub(crate) fn size_name(bytes: usize) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// Sizes from `from` to `to`, each twice the last.
pub(crate) fn doubling(from: usize, to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from), |bytes| Some(bytes * 2)).take_while(move |bytes| *bytes <= to)
}

/// Whether the data is in the caches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heat {
    /// The same place repeatedly.
    Hot,
    /// A place not touched for long.
    Cold,
}

impl Heat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

/// Processes a piece at each place, in context `C`.
pub(crate) type Way<C> = fn(&mut C, &[usize], &Piece) -> Result<(), BenchError>;

/// A point of a sweep with its measurements.
pub(crate) struct Point {
    pub(crate) piece: Piece,
    heat: Heat,
    slots: Slots,
    /// Nanoseconds per call, by way and round.
    times: Vec<Vec<f64>>,
    /// Placement of the CPUs by round; empty if not probed.
    classes: Vec<Class>,
}

impl Point {
    /// A point in memory of `length` bytes.
    pub(crate) fn new(piece: Piece, heat: Heat, length: usize, rng: &mut Rng) -> Self {
        let room = piece.bytes + piece.to_skew.max(piece.from_skew);
        Self { piece, heat, slots: Slots::new(length, room, rng), times: Vec::new(), classes: Vec::new() }
    }

    /// How many times longer `way` takes than `base`, round by round.
    pub(crate) fn ratios(&self, way: usize, base: usize) -> Vec<f64> {
        self.of(way).iter().zip(self.of(base)).map(|(way, base)| way / base).collect()
    }

    /// The ratios of rounds with this placement.
    pub(crate) fn ratios_in(&self, class: Class, way: usize, base: usize) -> Vec<f64> {
        let all = self.ratios(way, base).into_iter().zip(&self.classes);
        all.filter(|(_, found)| **found == class).map(|(ratio, _)| ratio).collect()
    }

    /// Number of rounds with this placement.
    pub(crate) fn rounds_in(&self, class: Class) -> usize {
        self.classes.iter().filter(|found| **found == class).count()
    }

    /// Whether at least one in five rounds had this placement: enough for a figure.
    pub(crate) fn is_often(&self, class: Class) -> bool {
        let rounds = self.rounds_in(class);
        rounds > 0 && 5 * rounds >= self.classes.len()
    }

    /// GB/s of a way, round by round.
    pub(crate) fn speeds(&self, way: usize) -> Vec<f64> {
        self.of(way).iter().map(|ns| self.piece.bytes as f64 / ns).collect()
    }

    /// Speed of a way, as a point of a chart.
    fn speed_point(&self, way: usize) -> (f64, Value) {
        (self.piece.bytes as f64, spread(&self.speeds(way)))
    }

    fn of(&self, way: usize) -> &[f64] {
        self.times.get(way).map_or(&[], Vec::as_slice)
    }

    /// Whether any round counted.
    pub(crate) fn measured(&self) -> bool {
        !self.of(0).is_empty()
    }

    /// Places of one timed block.
    fn places(&mut self) -> Vec<usize> {
        let bytes = self.piece.bytes;
        match self.heat {
            Heat::Hot if bytes >= LONG => vec![0],
            Heat::Hot => vec![0; (HOT_BLOCK / bytes).max(2)],
            Heat::Cold => (0..(COLD_BLOCK / bytes).clamp(1, MAX_COLD)).map(|_| self.slots.next()).collect(),
        }
    }
}

/// Several ways and their context.
pub(crate) struct Sides<'a, C> {
    context: &'a mut C,
    ways: &'a [Way<C>],
    /// Counts only rounds during which the CPUs were two cores and did not move.
    pub(crate) two_cores: bool,
    /// Called before each way, untimed.
    pub(crate) prepare: fn(&mut C) -> Result<(), BenchError>,
    rng: Rng,
}

impl<'a, C> Sides<'a, C> {
    /// Prepares to measure `ways` in `context`.
    pub(crate) fn new(context: &'a mut C, ways: &'a [Way<C>]) -> Self {
        Self { context, ways, two_cores: false, prepare: |_| Ok(()), rng: Rng::with_seed(0x5eed) }
    }

    /// Measures one round of a point.
    fn round(&mut self, point: &mut Point) -> Result<(), BenchError> {
        let times = if self.two_cores {
            let Some((class, times)) = placed(|| self.times(point))? else { return Ok(()) };
            point.classes.push(class);
            times
        } else {
            self.times(point)?
        };
        point.times.resize(self.ways.len(), Vec::new());
        point.times.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
        Ok(())
    }

    /// Nanoseconds per call of each way.
    fn times(&mut self, point: &mut Point) -> Result<Vec<f64>, BenchError> {
        let mut order: Vec<_> = (0..self.ways.len()).collect();
        self.rng.shuffle(&mut order);
        let mut times = vec![0.0; order.len()];
        for which in order {
            let places = point.places();
            (self.prepare)(self.context)?;
            if point.heat == Heat::Hot {
                self.ways[which](self.context, &places, &point.piece)?;
            }
            let started = Instant::now();
            self.ways[which](self.context, &places, &point.piece)?;
            times[which] = since_ns(started) / places.len() as f64;
        }
        Ok(times)
    }

    /// Measures all points in `full` rounds; long pieces in fewer.
    pub(crate) fn measure(
        &mut self,
        run: &Run,
        name: &str,
        full: usize,
        points: &mut [Point],
    ) -> Result<(), BenchError> {
        let rounds = run.part(name, full);
        for round in 0..rounds {
            for point in points.iter_mut() {
                if round.is_multiple_of((point.piece.bytes / LONG).max(1)) {
                    self.round(point)?;
                }
            }
            run.round_done();
        }
        Ok(())
    }

    /// Measures again the points where `base` is fastest relative to `way`. Returns the worst of them with its
    /// ratios: time of `base` over time of `way`.
    pub(crate) fn worst(
        &mut self,
        run: &Run,
        full: usize,
        points: &mut [Point],
        [base, way]: [usize; 2],
    ) -> Result<(Piece, Vec<f64>), BenchError> {
        points.sort_by(|a, b| median(&a.ratios(base, way)).total_cmp(&median(&b.ratios(base, way))));
        let suspects = points.len().min(SUSPECTS);
        let suspects = &mut points[..suspects];
        suspects.iter_mut().for_each(|point| point.times.clear());
        self.measure(run, "the least again", AGAIN * full, suspects)?;
        let measured = suspects.iter().map(|point| (point.piece, point.ratios(base, way)));
        lowest_median(measured).ok_or_else(|| "no size was measured".into())
    }
}

/// The item whose values have the lowest median.
fn lowest_median<K>(items: impl Iterator<Item = (K, Vec<f64>)>) -> Option<(K, Vec<f64>)> {
    items.min_by(|(_, a), (_, b)| median(a).total_cmp(&median(b)))
}

/// Draws the speed of each way by size.
pub(crate) fn draw_speeds<'a>(
    run: &Run,
    file: &str,
    title: &str,
    points: impl Iterator<Item = &'a Point> + Clone,
    names: &[&str],
) -> Result<(), BenchError> {
    let line = |(way, name): (usize, &&str)| Line {
        label: (*name).to_owned(),
        points: points.clone().map(|point| point.speed_point(way)).collect(),
    };
    let lines: Vec<Line> = names.iter().enumerate().map(line).collect();
    run.picture(file, || sweep(title, "GB/s", &lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_pieces_have_names() {
        assert_eq!(size_name(64), "64 B");
        assert_eq!(size_name(1000), "1000 B");
        assert_eq!(size_name(64 << 10), "64 KiB");
        assert_eq!(size_name(3 << 20), "3 MiB");
        assert_eq!(Piece { bytes: 4096, to_skew: 1, from_skew: 3 }.name(), "4 KiB from +3 to +1");
    }

    #[test]
    fn sizes_double_up_to_the_limit() {
        assert_eq!(doubling(64, 512).collect::<Vec<_>>(), [64, 128, 256, 512]);
        assert_eq!(doubling(64, 500).collect::<Vec<_>>(), [64, 128, 256]);
    }

    #[test]
    fn the_worst_point_has_the_lowest_median() {
        let items = [("a", vec![1.0, 1.1, 9.0]), ("b", vec![0.9, 1.0, 9.0]), ("c", vec![0.1, 2.0, 2.0])];
        let (which, values) = lowest_median(items.into_iter()).unwrap();
        assert_eq!((which, values.len()), ("b", 3));
        assert!(lowest_median(std::iter::empty::<(u8, Vec<f64>)>()).is_none());
    }

    #[test]
    fn ratios_are_within_a_round() {
        let mut point = Point::new(Piece::aligned(1000), Heat::Cold, 1 << 20, &mut Rng::with_seed(1));
        point.times = vec![vec![300.0, 100.0], vec![100.0, 200.0]];
        assert_eq!(point.ratios(0, 1), [3.0, 0.5]);
        assert_eq!(point.speeds(1), [10.0, 5.0]);
        point.classes = vec![Class::Same, Class::Across];
        assert_eq!(point.ratios_in(Class::Across, 0, 1), [0.5]);
        assert!(point.is_often(Class::Same) && !point.is_often(Class::OneCore));
        point.classes.extend([Class::Across; 4]);
        assert!(!point.is_often(Class::Same));
        assert_eq!((point.rounds_in(Class::Same), point.ratios_in(Class::OneCore, 0, 1).len()), (1, 0));
    }

    #[test]
    fn only_cold_blocks_use_many_places() {
        let mut rng = Rng::with_seed(1);
        let mut places = |bytes, heat| Point::new(Piece::aligned(bytes), heat, 1 << 26, &mut rng).places();
        assert_eq!(places(64, Heat::Hot), vec![0; 8192]);
        assert_eq!(places(1 << 20, Heat::Hot), [0, 0]);
        assert_eq!(places(32 << 20, Heat::Hot), [0]);
        assert_eq!(places(64, Heat::Cold).len(), 1024);
        assert_eq!(places(1 << 20, Heat::Cold).len(), 1);
    }

    #[test]
    fn the_first_error_ends_the_measurement() {
        let ways: [Way<Vec<usize>>; 2] = [
            |calls, places, _| {
                calls[0] += places.len();
                Ok(())
            },
            |calls, places, _| {
                calls[1] += places.len();
                if calls[1] > 2 { Err("no".into()) } else { Ok(()) }
            },
        ];
        let mut calls = vec![0, 0];
        let mut point = Point::new(Piece::aligned(1 << 20), Heat::Cold, 1 << 22, &mut Rng::with_seed(1));
        let mut sides = Sides::new(&mut calls, &ways);
        assert!(sides.round(&mut point).and_then(|()| sides.round(&mut point)).is_ok());
        assert!(sides.round(&mut point).is_err());
        assert!(calls[0] >= 2);
    }
}
