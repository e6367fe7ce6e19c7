//! The prototype in virtual time: costs of an initiation's accesses on a TurboChannel behind an Alpha.
//!
//! ```text
//! a protocol's own program ──► instructions ──► write buffer ──► bus ──► engine
//!                              barrier: waits until the buffer is empty     load: empties the buffer, then waits for its answer
//!                              kernel: a system call and two translations around it
//! two rows of table 1 ──► the bus's time for a store and for a load ──► the third row
//! ```
//!
//! The programs are the explored ones, each with its own barriers only: section 4.3 has barriers in repeated passing and in no
//! other method. A store is posted: the processor goes on while the buffer gives it to the bus. Costs belong to the machine and are
//! the same for all methods; the bus part scales with the bus clock, the rest with the processor's. Successive initiations do not
//! overlap, since each ends with a load. Data does not move, as in 4.3 (footnote 11), except in the comparison with remote stores.
//!
//! Three constants carry the user-level rows. The barrier's is from documents of the Alpha; a store's and a load's are those with
//! which the model gives repeated passing and key-based initiation as in the table, on each machine anew; extended shadow
//! addressing is the prediction.

use serde::Deserialize;

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::parameters::Parameters;
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

use super::machine::{Kind, Step};
use super::safety::named;
use super::scenes::WANTS;

/// The figure of table 1.
const TABLE: &str = "markatos-table-1";
/// The figure of messages by stores and by transfers, and its lines.
const MESSAGES: &str = "markatos-remote-stores";
const STORES: &str = "remote stores";
const TRANSFERS: [&str; 3] =
    ["transfer, extended shadow addressing", "transfer, repeated passing", "transfer, kernel"];
/// The clock of the prototype's bus, MHz, and that of a fast one.
const CLOCKS: [f64; 2] = [12.5, 66.0];
/// Processor cycles of an empty system call at both ends of the range in section 2.2; the parameter is its middle.
const CALLS: [f64; 2] = [1000.0, 5000.0];
/// The user-level methods of table 1.
const USER_LEVEL: [&str; 3] = ["extended-shadow", "repeated-passing", "key-based"];

pub const RUNNERS: [Runner; 2] =
    [Runner { name: "initiation", run: initiation }, Runner { name: "message", run: message }];

pub const JUDGES: [Judge; 5] = [
    Judge { claim: "markatos-table-1", place: Place::Simulated, judge: table_1 },
    Judge { claim: "markatos-order-of-magnitude", place: Place::Simulated, judge: order_of_magnitude },
    Judge { claim: "markatos-bus-scaling", place: Place::Simulated, judge: bus_scaling },
    Judge { claim: "markatos-remote-writes", place: Place::Simulated, judge: remote_writes },
    Judge { claim: "markatos-start-outweighs", place: Place::Simulated, judge: start_outweighs },
];

/// Rows of table 1 that a store's and a load's time are fitted to, with the parameters that hold them, in microseconds.
const FITTED: [(&str, &str); 2] = [("repeated-5", "row-repeated-passing"), ("keys", "row-key-based")];

/// Times of the machine's actions, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A store on the bus.
    pub store: f64,
    /// A load on the bus, until its answer is there.
    pub load: f64,
    /// A barrier, without the accesses that it waits for.
    pub barrier: f64,
    /// Computation around an access.
    pub instructions: f64,
    /// Kernel entry, two translations, and return.
    pub kernel: f64,
}

/// The processor and the bus while a program runs, in nanoseconds from its start.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// When the processor goes on.
    processor: f64,
    /// When the bus has done all stores of the buffer.
    bus: f64,
}

impl Costs {
    /// The costs with a bus clock in MHz.
    ///
    /// # Errors
    /// [`RunError`]: a parameter is missing, or no times of the bus give the fitted rows.
    pub fn at(parameters: &Parameters, bus_mhz: f64) -> Result<Self, RunError> {
        let mut rows = Vec::new();
        for (protocol, row) in FITTED {
            rows.push((protocol, parameters.get(row)? * 1e3));
        }
        let fitted = Self::fitted(parameters, &rows)?;
        let slower = parameters.get("bus-clock")? / bus_mhz;
        Ok(Self { store: fitted.store * slower, load: fitted.load * slower, ..fitted })
    }

    /// The costs at the paper's bus clock with which two programs take these nanoseconds.
    fn fitted(parameters: &Parameters, rows: &[(&str, f64)]) -> Result<Self, RunError> {
        let mut costs = Self {
            store: 1000.0,
            load: 1000.0,
            barrier: parameters.get("barrier")?,
            instructions: parameters.get("instructions")?,
            kernel: parameters.get("system-call")? + 2.0 * parameters.get("translation")?,
        };
        let [one, other] = rows else { return Ok(costs) };
        let one = (named(one.0)?.protocol.program(0, WANTS[0]), one.1);
        let other = (named(other.0)?.protocol.program(0, WANTS[0]), other.1);
        // Both are linear in the two times while the bus is slower than the instructions, so a few steps of Newton's suffice.
        for _ in 0..8 {
            let off = |costs: &Self, (program, target): &(Vec<Step>, f64)| costs.program(program) - target;
            let [a, b] = [off(&costs, &one), off(&costs, &other)];
            let store = Self { store: costs.store + 1.0, ..costs };
            let load = Self { load: costs.load + 1.0, ..costs };
            let [a_store, a_load] = [off(&store, &one) - a, off(&load, &one) - a];
            let [b_store, b_load] = [off(&store, &other) - b, off(&load, &other) - b];
            let whole = a_store * b_load - a_load * b_store;
            if whole == 0.0 {
                break;
            }
            costs.store -= (a * b_load - b * a_load) / whole;
            costs.load -= (b * a_store - a * b_store) / whole;
        }
        Ok(costs)
    }

    /// Takes one step of a program. A store ends for the processor when it is in the buffer.
    fn step(&self, clock: &mut Clock, step: &Step) {
        match step {
            Step::Barrier => clock.processor = clock.processor.max(clock.bus) + self.barrier,
            Step::Access(access, _) => {
                clock.processor += self.instructions;
                let begins = clock.processor.max(clock.bus);
                match access.kind {
                    Kind::Store => clock.bus = begins + self.store,
                    Kind::Load | Kind::Exchange => {
                        let exchanged = if access.kind == Kind::Exchange { self.store } else { 0.0 };
                        clock.bus = begins + exchanged + self.load;
                        clock.processor = clock.bus;
                    }
                }
            }
        }
    }

    /// A whole program, until the processor goes on and the bus is done.
    pub fn program(&self, program: &[Step]) -> f64 {
        let mut clock = Clock::default();
        program.iter().for_each(|step| self.step(&mut clock, step));
        clock.processor.max(clock.bus)
    }

    /// The time from each access of a program to the next, as the engine sees them; the sum is the whole program's.
    pub fn accesses(&self, program: &[Step]) -> Vec<f64> {
        let mut clock = Clock::default();
        let mut before = 0.0;
        let mut each = Vec::new();
        for step in program {
            self.step(&mut clock, step);
            if matches!(step, Step::Access(..)) {
                each.push(clock.bus - before);
                before = clock.bus;
            }
        }
        each
    }
}

/// The program of a method, and whether it runs in the kernel.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Method {
    protocol: String,
    #[serde(default)]
    through_kernel: bool,
}

impl Method {
    /// The kernel's initiation in table 1.
    fn kernel() -> Self {
        Self { protocol: "kernel".to_owned(), through_kernel: true }
    }

    /// One initiation, in nanoseconds.
    fn nanoseconds(&self, costs: &Costs) -> Result<f64, RunError> {
        let program = named(&self.protocol)?.protocol.program(0, WANTS[0]);
        Ok(costs.program(&program) + if self.through_kernel { costs.kernel } else { 0.0 })
    }
}

fn initiation(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let method: Method = line.settings()?;
    let mut points = Vec::new();
    for clock in line.plan.points() {
        points.push((clock, method.nanoseconds(&Costs::at(line.parameters, clock)?)? / 1e3));
    }
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// The method to send a message.
#[derive(Debug, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
enum Message {
    /// Word by word, without barriers.
    Stores,
    Transfer {
        protocol: String,
        #[serde(default)]
        through_kernel: bool,
    },
}

fn message(line: &Line<'_>) -> Result<Vec<Series>, RunError> {
    let by: Message = line.settings()?;
    let costs = Costs::at(line.parameters, line.parameters.get("bus-clock")?)?;
    let word = line.parameters.get("store-bytes")?;
    let nanoseconds_a_byte = 1e3 / line.parameters.get("dma-rate")?;
    let started = match by {
        Message::Stores => None,
        Message::Transfer { protocol, through_kernel } => {
            Some(Method { protocol, through_kernel }.nanoseconds(&costs)?)
        }
    };
    let time = |bytes: f64| match started {
        Some(started) => started + bytes * nanoseconds_a_byte,
        // The buffer is full after the first few, so each waits for the bus or the processor.
        None => costs.instructions + (bytes / word).ceil() * costs.store.max(costs.instructions),
    };
    let points = line.plan.points().into_iter().map(|bytes| (bytes, time(bytes) / 1e3)).collect();
    Ok(vec![Series { label: line.series.label.clone(), points }])
}

/// The kernel's initiation in microseconds with system calls at both ends of the range.
fn kernel_at_the_ends(case: &Case<'_>) -> Result<[f64; 2], RunError> {
    let mut ends = [0.0; 2];
    for (end, cycles) in ends.iter_mut().zip(CALLS) {
        let call = cycles / case.parameters.get("cpu-clock")? * 1e3;
        let parameters = case.parameters.with("system-call", call)?;
        *end = Method::kernel().nanoseconds(&Costs::at(&parameters, CLOCKS[0])?)? / 1e3;
    }
    Ok(ends)
}

fn table_1(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let mut found = std::collections::BTreeMap::new();
    for method in USER_LEVEL.iter().chain(&["kernel"]) {
        found.insert((*method).to_owned(), case.tables.value(TABLE, method, CLOCKS[0])?);
    }
    finding.numbers(&found);
    let stated = |name: &str| case.claim.values.as_ref().and_then(|values| values.get(name)).copied();
    let costs = Costs::at(case.parameters, CLOCKS[0])?;
    if let Some(extended) = stated("extended-shadow") {
        let predicted = found.get("extended-shadow").copied().unwrap_or_default();
        finding.figure("residual of the predicted row, %", (predicted / extended - 1.0) * 100.0);
    }
    finding.figure("a store on the bus, ns", costs.store).figure("a load on the bus, ns", costs.load);
    finding.check(
        costs.store > 0.0 && costs.load > 0.0,
        format!(
            "of the user-level rows extended-shadow is the prediction; repeated-passing and key-based are calibrations, to which a \
             store of {:.0} ns on the bus and a load of {:.0} ns are fitted; the barrier is from documents as remembered; the kernel's row is predicted",
            costs.store, costs.load
        ),
    );
    finding.because(other_fits(case, &stated)?);
    let ([few, many], [least, most]) = (CALLS, kernel_at_the_ends(case)?);
    let words = format!(
        "the kernel's figure is for the middle of the paper's range of a system call, which is assumed; its ends, {few} and {many} \
                 cycles, give {least:.1} and {most:.1} us"
    );
    finding.check(true, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// What the other two choices of the predicted row give, in words.
fn other_fits(case: &Case<'_>, stated: &impl Fn(&str) -> Option<f64>) -> Result<String, RunError> {
    let rows = [("extended-contexts", USER_LEVEL[0]), ("repeated-5", USER_LEVEL[1]), ("keys", USER_LEVEL[2])];
    let mut words = Vec::new();
    for predicted in [1, 2] {
        let others = rows.iter().enumerate().filter(|(place, _)| *place != predicted);
        let fitted: Vec<(&str, f64)> =
            others.map(|(_, (protocol, row))| (*protocol, stated(row).unwrap_or_default() * 1e3)).collect();
        let costs = Costs::fitted(case.parameters, &fitted)?;
        let (protocol, row) = rows[predicted];
        let method = Method { protocol: protocol.to_owned(), through_kernel: false };
        words.push(format!(
            "to predict {row} instead, which is {}, gives {:.2} with a store of {:.0} ns and a load of {:.0} ns",
            stated(row).unwrap_or_default(),
            method.nanoseconds(&costs)? / 1e3,
            costs.store,
            costs.load
        ));
    }
    Ok(format!(
        "the three rows ask for different times of the same accesses: key-based initiation has two stores more than extended shadow \
         addressing, and repeated passing two loads and three barriers more where it has a store less than key-based; {}",
        words.join("; ")
    ))
}

/// "About" an order of magnitude: closer to a factor of ten than to one or a hundred.
pub(super) fn is_about_ten(ratio: f64) -> bool {
    ratio.log10().round() == 1.0
}

fn order_of_magnitude(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let kernel = case.tables.value(TABLE, "kernel", CLOCKS[0])?;
    for method in USER_LEVEL {
        let ratio = kernel / case.tables.value(TABLE, method, CLOCKS[0])?;
        finding.figure(format!("kernel against {method}"), ratio);
        finding.check(is_about_ten(ratio), format!("{method} is {ratio:.1} times cheaper"));
    }
    for (cycles, kernel) in CALLS.into_iter().zip(kernel_at_the_ends(case)?) {
        let mut parts = Vec::new();
        for method in USER_LEVEL {
            let ratio = kernel / case.tables.value(TABLE, method, CLOCKS[0])?;
            let not = if is_about_ten(ratio) { "" } else { ", which is no order of magnitude" };
            parts.push(format!("{method} {ratio:.1}{not}"));
        }
        let words = format!(
            "a system call of {cycles} cycles, an end of the paper's range, would give: {}",
            parts.join(", ")
        );
        finding.check(true, words);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

fn bus_scaling(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let faster = CLOCKS[1] / CLOCKS[0];
    let gain = |method: &str| -> Result<f64, RunError> {
        Ok(case.tables.value(TABLE, method, CLOCKS[0])? / case.tables.value(TABLE, method, CLOCKS[1])?)
    };
    // 1 for a proportional gain, 0 for none.
    let share = |gain: f64| gain.ln() / faster.ln();
    for method in USER_LEVEL {
        let gain = gain(method)?;
        finding.figure(format!("{method} faster"), gain);
        let words = format!("{method} becomes {gain:.2} times as fast with a bus {faster:.2} times as fast");
        finding.check(share(gain) > 0.7, words);
    }
    let kernel = gain("kernel")?;
    finding.figure("kernel faster", kernel);
    finding.check(share(kernel) < 0.1, format!("the kernel's becomes {kernel:.2} times as fast"));
    Ok(finding.verdict(Place::Simulated, Basis::Derived))
}

/// Sizes of a message that is short, and of one that is long: one word, and a page of the machine.
const SHORT: f64 = 4.0;
const LONG: f64 = 8192.0;

fn remote_writes(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let of = |label: &str, bytes: f64| case.tables.value(MESSAGES, label, bytes);
    let [short, long] = [of(STORES, SHORT)?, of(STORES, LONG)?];
    finding.figure("remote stores, a word, us", short).figure("remote stores, a page, us", long);
    for by in TRANSFERS {
        let [of_word, of_page] = [of(by, SHORT)?, of(by, LONG)?];
        finding.figure(format!("{by}, a page, us"), of_page);
        let words = format!(
            "a word takes {short:.2} us by a store and {of_word:.2} by a {by}; a page of {LONG} bytes {long:.0} and {of_page:.0} us"
        );
        finding.check(short < of_word && of_page < long, words);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Derived))
}

/// Bytes of the message for which the start is compared with the transfer; the claim's statement has them in words.
const MESSAGE: f64 = 512.0;

fn start_outweighs(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let moved = MESSAGE / case.parameters.get("dma-rate")?;
    finding.figure("the transfer itself, us", moved);
    let [user, _, kernel] = TRANSFERS;
    for (by, longer) in [(kernel, true), (user, false)] {
        let start = case.tables.value(MESSAGES, by, MESSAGE)? - moved;
        finding.figure(format!("start by a {by}, us"), start);
        let words = format!("the start by a {by} takes {start:.1} us, the {MESSAGE} bytes {moved:.1}");
        finding.check((start > moved) == longer, words);
    }
    Ok(finding.verdict(Place::Simulated, Basis::Derived))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters::parse(include_str!("../../parameters/markatos.toml")).expect("checked")
    }

    fn program(name: &str) -> Vec<Step> {
        named(name).expect("listed").protocol.program(0, WANTS[0])
    }

    const COSTS: Costs = Costs { store: 100.0, load: 50.0, barrier: 7.0, instructions: 10.0, kernel: 0.0 };

    #[test]
    fn stores_are_posted_and_a_load_waits_for_them() {
        // The instructions of the second and third store, and of the load, pass while the bus is busy.
        assert_eq!(COSTS.program(&program("keys")), 10.0 + 3.0 * 100.0 + 50.0);
        assert_eq!(COSTS.program(&program("extended-contexts")), 10.0 + 100.0 + 50.0);
        let slow = Costs { instructions: 1000.0, ..COSTS };
        assert_eq!(
            slow.program(&program("keys")),
            4.0 * 1000.0 + 50.0,
            "the stores pass behind instructions"
        );
    }

    #[test]
    fn only_repeated_passing_pays_for_barriers() {
        let dear = Costs { barrier: 1007.0, ..COSTS };
        for (name, barriers) in [("keys", 0.0), ("extended-contexts", 0.0), ("repeated-5", 3.0)] {
            assert_eq!(
                dear.program(&program(name)) - COSTS.program(&program(name)),
                barriers * 1000.0,
                "{name}"
            );
        }
        let repeated = 3.0 * 7.0 + 5.0 * 10.0 + 2.0 * 100.0 + 3.0 * 50.0;
        assert_eq!(COSTS.program(&program("repeated-5")), repeated);
        let each = COSTS.accesses(&program("repeated-5"));
        assert_eq!((each.len(), each.iter().sum::<f64>()), (5, repeated));
        assert_eq!(each[1], 7.0 + 10.0 + 50.0, "a load after a store and a barrier");
    }

    #[test]
    fn two_rows_are_met_and_the_third_is_not_asked() {
        let costs = Costs::at(&parameters(), CLOCKS[0]).expect("all there");
        for (protocol, row) in FITTED {
            let target = parameters().get(row).expect("listed") * 1e3;
            assert!((costs.program(&program(protocol)) - target).abs() < 1e-6, "{protocol}");
        }
        let other = parameters().with("barrier", 300.0).expect("listed");
        let other = Costs::at(&other, CLOCKS[0]).expect("all there");
        assert!(other.load < costs.load && other.store > costs.store, "{other:?}");
    }

    #[test]
    fn only_the_bus_part_of_a_program_scales() {
        let slow = Costs::at(&parameters(), 12.5).expect("all there");
        let fast = Costs::at(&parameters(), 25.0).expect("all there");
        assert_eq!((fast.store * 2.0, fast.load * 2.0), (slow.store, slow.load));
        let rest = 3.0 * slow.barrier + 5.0 * slow.instructions;
        let five = program("repeated-5");
        assert!(((slow.program(&five) - rest) / 2.0 - (fast.program(&five) - rest)).abs() < 1e-9);
    }
}
