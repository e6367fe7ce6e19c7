//! A copy shared by two cores, against glibc's and our own on one core.
//!
//! ```text
//! this thread, CPU 0:  glibc ─ ours alone ─ embedded perform: with the worker ─ submit, poll: by the worker
//! the worker, CPU 1:                          its share                         all of it, or its share
//! ```
//!
//! The worker is awake when a copy begins. All sides use huge pages; a second run on ordinary pages, without targets,
//! uses frames as clients allocate them. Rows are separated by placement of the two CPUs, which changes during the
//! run.

use fastrand::Rng;
use memferry::{Client, Transfer, copy};

use super::arena::{Field, Pages};
use super::sides::{Heat, Piece, Point, Sides, Way, doubling, draw_speeds};
use super::{copies, field_bytes, warn_about_pages};
use crate::BenchError;
use crate::children::WORKER;
use crate::pair::{Pair, poll_for};
use crate::placement::{Class, Pinned, pin_threads};
use crate::rows::{Row, Target};
use crate::run::Run;

const ROUNDS: usize = 41;
const ORDINARY_ROUNDS: usize = 21;
const NAMES: [&str; 4] =
    ["glibc, one core", "memferry, one core", "embedded perform", "submitted, polled for"];
const WAYS: [Way<Both>; 4] = [glibc, alone, perform, submit];
const GLIBC: usize = 0;
const ALONE: usize = 1;
const PERFORM: usize = 2;
const SUBMIT: usize = 3;

/// Smallest and largest size of the sweep.
const SWEEP: [usize; 2] = [16 << 10, 64 << 20];
/// Sizes with rows, and their required ratios to glibc.
const HOT: [(usize, f64); 5] =
    [(32 << 10, 1.5), (64 << 10, 1.5), (256 << 10, 1.9), (1 << 20, 1.9), (4 << 20, 1.9)];
const COLD: [(usize, f64); 2] = [(4 << 20, 1.7), (64 << 20, 1.85)];
/// Required ratio of two cores to one of ours, if the cores do not share the path to memory.
const ACROSS_AT_LEAST: f64 = 1.7;

const CLASSES: [Class; 2] = [Class::Same, Class::Across];

/// Memory for one core, and memory registered with the service.
struct Both {
    field: Field,
    pair: Pair,
}

fn glibc(both: &mut Both, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    copies::glibc(&mut both.field, places, piece)
}

fn alone(both: &mut Both, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    copies::auto(&mut both.field, places, piece)
}

/// The transfer of a piece at place `at`.
fn transfer(pair: &Pair, at: usize, piece: &Piece) -> Result<Transfer, BenchError> {
    let at = at as u64;
    let bytes = piece.bytes as u64;
    Ok(copy(pair.source.slice(at..at + bytes), pair.destination.slice(at..at + bytes)))
}

fn perform(both: &mut Both, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    for at in places {
        let transfer = transfer(&both.pair, *at, piece)?;
        both.pair.queue.run(transfer)?;
    }
    Ok(())
}

fn submit(both: &mut Both, places: &[usize], piece: &Piece) -> Result<(), BenchError> {
    for at in places {
        let transfer = transfer(&both.pair, *at, piece)?;
        let ticket = both.pair.queue.submit(transfer)?;
        poll_for(&mut both.pair.queue, ticket)?;
    }
    Ok(())
}

fn plot(run: &Run, heat: Heat, points: &[Point]) -> Result<(), BenchError> {
    let file = if heat == Heat::Hot { "two-hot" } else { "two-cold" };
    let title = format!("copy by two cores, {}, huge pages", heat.name());
    draw_speeds(run, file, &title, points.iter().filter(|point| point.measured()), &NAMES)
}

/// Rows of a size, one per placement measured.
fn rows(point: &Point, heat: Heat, pages: Pages, least: f64) -> Vec<Row> {
    let mut rows = Vec::new();
    let size = point.piece.name();
    let title = format!("two cores against glibc on one, {}, {}, {size}", pages.name(), heat.name());
    for class in CLASSES.into_iter().filter(|class| point.is_often(*class)) {
        let title = format!("{title}, {}", class.name());
        let target = if pages == Pages::Huge { Target::AtLeast(least) } else { Target::None };
        rows.push(Row::new(title.clone(), "ratio", target, &point.ratios_in(class, GLIBC, PERFORM)));
        let title = format!("{title}, submitted and polled for");
        rows.push(Row::new(title, "ratio", Target::None, &point.ratios_in(class, GLIBC, SUBMIT)));
    }
    if rows.is_empty() {
        rows.push(Row::not_measured(&title, "the CPUs were never two separate cores for a whole round"));
    }
    rows
}

/// Compares with our own copy on one core. Only cores in different complexes can gain much.
fn against_alone(point: &Point, pages: Pages) -> Vec<Row> {
    let row = |class: Class| {
        let judged = class == Class::Across && pages == Pages::Huge;
        let target = if judged { Target::AtLeast(ACROSS_AT_LEAST) } else { Target::None };
        let pages = pages.name();
        let size = point.piece.name();
        let class_name = class.name();
        let title = format!("two cores against ours on one, {pages}, cold, {size}, {class_name}");
        Row::new(title, "ratio", target, &point.ratios_in(class, ALONE, PERFORM))
    };
    CLASSES.into_iter().filter(|class| point.is_often(*class)).map(row).collect()
}

/// Measures hot or cold copies of these sizes, which include those with rows.
fn sweep(
    run: &Run,
    both: &mut Both,
    (heat, pages, rounds): (Heat, Pages, usize),
    sizes: impl Iterator<Item = usize>,
) -> Result<Vec<Point>, BenchError> {
    let mut rng = Rng::with_seed(0x2);
    let length = both.field.length();
    let point = |bytes| Point::new(Piece::aligned(bytes), heat, length, &mut rng);
    let mut points: Vec<_> = sizes.map(point).collect();
    let mut sides = Sides::new(both, &WAYS);
    sides.prepare = |both| both.pair.wake();
    sides.two_cores = true;
    sides.measure(run, &format!("two {}", heat.name()), rounds, &mut points)?;
    let counts = CLASSES.map(|class| points.iter().map(|point| point.rounds_in(class)).sum::<usize>());
    let [same, across] = counts;
    let pages = pages.name();
    let heat = heat.name();
    run.say(&format!("two cores, {pages}, {heat}: {same} rounds in one core complex, {across} across"));
    Ok(points)
}

/// Allocates memory on these pages. On ordinary pages the frames are as clients get them.
fn memory(run: &Run, pages: Pages) -> Result<Both, BenchError> {
    run.part("memory", 1);
    let length = field_bytes(run);
    let client = Client::embedded()?;
    pin_threads(std::process::id(), WORKER, 1)?;
    let pair = match pages {
        Pages::Huge => Pair::of_own_memory(client, length)?,
        Pages::Ordinary => Pair::new(client, length as u64)?,
    };
    let field = Field::new(length, pages)?;
    if pages == Pages::Huge {
        warn_about_pages(run, 4 * length - (4 << 20))?;
    }
    Ok(Both { field, pair })
}

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let mut all = Vec::new();
    for pages in [Pages::Huge, Pages::Ordinary] {
        let mut both = memory(run, pages)?;
        let _pinned = Pinned::to(0)?;
        for (heat, targets) in [(Heat::Hot, &HOT[..]), (Heat::Cold, &COLD[..])] {
            let points = if pages == Pages::Huge {
                let points = sweep(run, &mut both, (heat, pages, ROUNDS), doubling(SWEEP[0], SWEEP[1]))?;
                plot(run, heat, &points)?;
                points
            } else {
                let sizes = targets.iter().map(|(bytes, _)| *bytes);
                sweep(run, &mut both, (heat, pages, ORDINARY_ROUNDS), sizes)?
            };
            for (bytes, least) in targets {
                let wanted = points.iter().filter(|point| point.piece.bytes == *bytes);
                all.extend(wanted.flat_map(|point| rows(point, heat, pages, *least)));
            }
            if heat == Heat::Cold {
                all.extend(points.last().map(|point| against_alone(point, pages)).unwrap_or_default());
            }
        }
    }
    Ok(all)
}
