//! Stale data between a processor's cache and a device, explored in every reachable state of two lines.
//!
//! ```text
//! program   writes its source ─► before: the driver's maintenance ─► start ─ device reads, device writes ─► end
//!           ─► after: the driver's maintenance ─► reads its destination
//! meanwhile, at any step: a line is read ahead, a line is evicted; the program writes beside the destination
//! ```
//!
//! Memory and cache hold versions, not bytes: last written by the program, older, or written by the device. All orders are
//! visited. The maintenance is recorded from the shipped driver's hooks; other arrangements use parts of it. Lines are
//! maintained, evicted and fetched whole. The destination's line has a half that the transfer fills and a half that may belong
//! to another program.
//!
//! Sources: Wicki 2014, 4.3.2 and 5.1; `research/drivers/src/sdma/cache.rs`. Two lines and one level suffice: lines do not
//! affect each other's contents, and maintenance by address reaches every level.

use std::collections::{BTreeMap, VecDeque};

use memferry_drivers::sdma::{CacheMaintenance, ChannelConfig, LinearPieces, Operation};

/// Bytes of a modelled line.
const LINE: u64 = 32;
const SOURCE: u64 = 0;
const DESTINATION: u64 = LINE;

/// How frames are mapped, and the maintenance around a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Cached without maintenance: the thesis's driver.
    CachedOnly,
    /// Cached, with the shipped driver's maintenance before and after.
    Shipped,
    /// Only the shipped driver's maintenance before the transfer.
    BeforeOnly,
    /// Only the shipped driver's maintenance after the transfer.
    AfterOnly,
    /// Cleans the source before and invalidates the destination after; no maintenance of the destination before.
    CleanThenInvalidate,
    NonCacheable,
}

impl Arrangement {
    /// All arrangements, the thesis's first.
    pub const ALL: [Self; 6] = [
        Self::CachedOnly,
        Self::Shipped,
        Self::BeforeOnly,
        Self::AfterOnly,
        Self::CleanThenInvalidate,
        Self::NonCacheable,
    ];

    /// The steps before the start and after the end.
    fn maintenance(self) -> [Vec<Step>; 2] {
        let [before, after] = shipped();
        let cleans = before.iter().copied().filter(|step| matches!(step, Step::Clean(_))).collect();
        match self {
            Self::CachedOnly | Self::NonCacheable => [Vec::new(), Vec::new()],
            Self::Shipped => [before, after],
            Self::BeforeOnly => [before, Vec::new()],
            Self::AfterOnly => [Vec::new(), after],
            Self::CleanThenInvalidate => [cleans, after],
        }
    }
}

/// Other activity of the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Whether lines may be prefetched at any time.
    pub reads_ahead: bool,
    /// Whether another program writes in the destination's line during the transfer.
    pub neighbour: bool,
}

/// A broken promise, with the steps that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Every step from the initial state.
    pub steps: Vec<String>,
}

/// The result of an exploration: for each promise, the shortest way to break it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub states: usize,
    /// The device read old data from the source.
    pub stale_source: Option<Violation>,
    /// The program read data that the device did not write.
    pub stale_destination: Option<Violation>,
    /// Another program's data beside the destination was lost.
    pub lost_neighbour: Option<Violation>,
}

impl Findings {
    /// Whether all promises hold.
    pub fn is_safe(&self) -> bool {
        self.stale_source.is_none() && self.stale_destination.is_none() && self.lost_neighbour.is_none()
    }
}

/// One of the two lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Source,
    Destination,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Clean(Place),
    CleanInvalidate(Place),
    Invalidate(Place),
}

/// Records which lines the driver maintains, and how.
#[derive(Default)]
struct Recorder(Vec<Step>);

fn place(address: u64) -> Place {
    if address < DESTINATION { Place::Source } else { Place::Destination }
}

impl CacheMaintenance for Recorder {
    fn clean(&mut self, address: u64, _length_bytes: u64) {
        self.0.push(Step::Clean(place(address)));
    }

    fn clean_and_invalidate(&mut self, address: u64, _length_bytes: u64) {
        self.0.push(Step::CleanInvalidate(place(address)));
    }

    fn invalidate(&mut self, address: u64, _length_bytes: u64) {
        self.0.push(Step::Invalidate(place(address)));
    }
}

/// The driver's maintenance for a copy of one line.
fn shipped() -> [Vec<Step>; 2] {
    let pieces = LinearPieces::copy(SOURCE, DESTINATION, LINE).into_iter().flatten();
    let config = pieces.map(|piece| ChannelConfig::new(Operation::Copy, piece)).next();
    let mut before = Recorder::default();
    let mut after = Recorder::default();
    if let Some(config) = config {
        config.prepare_caches(&mut before);
        config.finish_caches(&mut after);
    }
    [before.0, after.0]
}

/// The version in a half of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Value {
    Old,
    /// Last written by the program.
    Written,
    /// Copied from the source by the device.
    Carried,
}

/// Two halves: the transfer's and, in the destination's line, the neighbour's.
type Halves = [Value; 2];

/// A line in memory and possibly in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    memory: Halves,
    cached: Option<(Halves, bool)>,
}

impl Line {
    const OLD: Self = Self { memory: [Value::Old; 2], cached: None };

    fn visible(&self) -> Halves {
        self.cached.map_or(self.memory, |(halves, _)| halves)
    }

    fn fetch(&mut self) {
        self.cached.get_or_insert((self.memory, false));
    }

    fn clean(&mut self) {
        if let Some((halves, dirty)) = &mut self.cached {
            if *dirty {
                self.memory = *halves;
            }
            *dirty = false;
        }
    }

    /// Writes the line back if dirty and drops it.
    fn evict(&mut self) {
        self.clean();
        self.cached = None;
    }

    fn write(&mut self, half: usize, cacheable: bool) {
        if cacheable {
            let (mut halves, _) = self.cached.unwrap_or((self.memory, false));
            halves[half] = Value::Written;
            self.cached = Some((halves, true));
        } else {
            self.memory[half] = Value::Written;
        }
    }
}

/// Progress of the transfer: steps before it, the device's read and write, steps after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    lines: [Line; 2],
    done: usize,
    /// Whether the device read the latest data.
    carries_latest: bool,
    /// Whether the neighbour has written beside the destination.
    neighbour_wrote: bool,
}

/// A next state, and the step in words.
type Edge = (State, String);

struct Exploration {
    around: Surroundings,
    cacheable: bool,
    before: Vec<Step>,
    after: Vec<Step>,
}

impl Exploration {
    fn line(state: &mut State, place: Place) -> &mut Line {
        &mut state.lines[place as usize]
    }

    /// Every state that one step reaches.
    fn next(&self, state: &State) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut edge = |words: String, change: &dyn Fn(&mut State)| {
            let mut next = *state;
            change(&mut next);
            edges.push((next, words));
        };
        let started = state.done > 0;
        if !started {
            edge("the program writes the source".to_owned(), &|s| {
                Self::line(s, Place::Source).write(0, self.cacheable)
            });
            edge("the program writes the destination".to_owned(), &|s| {
                Self::line(s, Place::Destination).write(0, self.cacheable);
            });
        }
        for place in [Place::Source, Place::Destination].into_iter().filter(|_| self.cacheable) {
            let cached = state.lines[place as usize].cached.is_some();
            if cached {
                edge(format!("the {place:?} line is evicted"), &|s| Self::line(s, place).evict());
            } else if self.around.reads_ahead || !started {
                edge(format!("the {place:?} line is read"), &|s| Self::line(s, place).fetch());
            }
        }
        if self.around.neighbour && !state.neighbour_wrote {
            edge("somebody writes beside the destination".to_owned(), &|s| {
                Self::line(s, Place::Destination).write(1, self.cacheable);
                s.neighbour_wrote = true;
            });
        }
        if let Some((words, change)) = self.forward(state) {
            edge(words, &change);
        }
        edges
    }

    /// The next step of the transfer itself.
    fn forward(&self, state: &State) -> Option<(String, impl Fn(&mut State) + use<>)> {
        let reads = self.before.len();
        let step = match state.done.checked_sub(reads) {
            None => self.before.get(state.done).copied(),
            Some(0 | 1) => None,
            Some(late) => Some(*self.after.get(late - 2)?),
        };
        let words = match (step, state.done == reads) {
            (Some(step), _) => format!("{step:?}"),
            (None, true) => "the device reads".to_owned(),
            (None, false) => "the device writes".to_owned(),
        };
        Some((words, move |s: &mut State| {
            match step {
                Some(Step::Clean(place)) => Self::line(s, place).clean(),
                Some(Step::CleanInvalidate(place)) => Self::line(s, place).evict(),
                Some(Step::Invalidate(place)) => Self::line(s, place).cached = None,
                None if s.done == reads => {
                    let source = &s.lines[Place::Source as usize];
                    s.carries_latest = source.memory[0] == source.visible()[0];
                }
                None => Self::line(s, Place::Destination).memory[0] = Value::Carried,
            }
            s.done += 1;
        }))
    }

    fn run(&self) -> Findings {
        let start = State { lines: [Line::OLD; 2], done: 0, carries_latest: true, neighbour_wrote: false };
        let mut predecessors: BTreeMap<State, Option<Edge>> = BTreeMap::from([(start, None)]);
        let mut waiting = VecDeque::from([start]);
        let mut findings = Findings::default();
        while let Some(state) = waiting.pop_front() {
            self.judge(&state, &predecessors, &mut findings);
            for (next, words) in self.next(&state) {
                if let std::collections::btree_map::Entry::Vacant(place) = predecessors.entry(next) {
                    place.insert(Some((state, words)));
                    waiting.push_back(next);
                }
            }
        }
        findings.states = predecessors.len();
        findings
    }

    fn judge(&self, state: &State, predecessors: &BTreeMap<State, Option<Edge>>, findings: &mut Findings) {
        let violation = || Some(Violation { steps: steps_to(state, predecessors) });
        if !state.carries_latest && findings.stale_source.is_none() {
            findings.stale_source = violation();
        }
        let over = state.done == self.before.len() + 2 + self.after.len();
        let seen = state.lines[Place::Destination as usize].visible();
        if over && seen[0] != Value::Carried && findings.stale_destination.is_none() {
            findings.stale_destination = violation();
        }
        if state.neighbour_wrote && seen[1] != Value::Written && findings.lost_neighbour.is_none() {
            findings.lost_neighbour = violation();
        }
    }
}

/// The steps that lead to a state.
fn steps_to(state: &State, predecessors: &BTreeMap<State, Option<Edge>>) -> Vec<String> {
    let mut steps = Vec::new();
    let mut at = *state;
    while let Some(Some((before, words))) = predecessors.get(&at) {
        steps.push(words.clone());
        at = *before;
    }
    steps.reverse();
    steps
}

/// Visits every state of an arrangement.
pub fn explore(arrangement: Arrangement, around: Surroundings) -> Findings {
    let [before, after] = arrangement.maintenance();
    let cacheable = arrangement != Arrangement::NonCacheable;
    Exploration { around, cacheable, before, after }.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Surroundings = Surroundings { reads_ahead: false, neighbour: false };
    const AHEAD: Surroundings = Surroundings { reads_ahead: true, neighbour: false };
    const SHARED: Surroundings = Surroundings { reads_ahead: true, neighbour: true };

    fn broken(arrangement: Arrangement, around: Surroundings) -> [bool; 3] {
        let found = explore(arrangement, around);
        println!("{arrangement:?}, {around:?}: {} states, {found:#?}", found.states);
        [found.stale_source.is_some(), found.stale_destination.is_some(), found.lost_neighbour.is_some()]
    }

    #[test]
    fn without_maintenance_both_sides_are_stale() {
        assert_eq!(broken(Arrangement::CachedOnly, QUIET), [true, true, false]);
    }

    #[test]
    fn shipped_and_non_cacheable_are_safe() {
        for around in [QUIET, AHEAD] {
            assert!(explore(Arrangement::Shipped, around).is_safe());
            assert!(explore(Arrangement::NonCacheable, around).is_safe());
        }
    }

    #[test]
    fn maintenance_before_fails_with_prefetch() {
        assert_eq!(broken(Arrangement::BeforeOnly, QUIET), [false, false, false]);
        assert_eq!(broken(Arrangement::BeforeOnly, AHEAD), [false, true, false]);
    }

    #[test]
    fn a_dirty_destination_line_overwrites_data() {
        let found = explore(Arrangement::CleanThenInvalidate, QUIET);
        let steps = found.stale_destination.expect("found").steps;
        println!("{steps:#?}");
        let at = |words: &str| steps.iter().position(|step| step == words);
        assert!(at("the device writes") < at("the Destination line is evicted"), "{steps:?}");
        assert_eq!(found.stale_source, None);
        assert_eq!(broken(Arrangement::AfterOnly, QUIET), [true, true, false]);
    }

    #[test]
    fn a_shared_line_is_never_safe_when_cached() {
        for arrangement in Arrangement::ALL {
            let safe = explore(arrangement, SHARED).is_safe();
            assert_eq!(safe, arrangement == Arrangement::NonCacheable, "{arrangement:?}");
        }
    }

    #[test]
    fn counterexamples_are_repeatable() {
        let found = explore(Arrangement::CachedOnly, QUIET);
        assert_eq!(found, explore(Arrangement::CachedOnly, QUIET));
        let steps = found.stale_source.expect("found").steps;
        assert_eq!(steps, ["the program writes the source", "the device reads"]);
    }
}
