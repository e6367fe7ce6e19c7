//! The prototype in virtual time: costs of an initiation's accesses on a TurboChannel behind an Alpha.
//!
//! ```text
//! a protocol's own program ──► each access: barrier, instructions, then a store or a load over the bus ──► sum
//!                               kernel: a system call and two translations around it
//! ```
//!
//! The programs are the explored ones. Every access has a barrier before it, as required by section 4.2: the order of the
//! accesses carries the arguments in every method. Costs belong to the machine and are the same for all methods; the bus part
//! scales with the bus clock, the rest with the processor's. Successive initiations do not overlap, since each ends with a
//! load. Data does not move, as in 4.3 (footnote 11), except in the comparison with remote stores.

use serde::Deserialize;

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, Line, RunError, Runner};
use crate::parameters::{Parameters, ParametersError};
use crate::table::Series;
use crate::verdict::{Basis, Verdict};

use super::machine::{Kind, Step};
use super::safety::named;
use super::scenes::WANTS;

/// The figure of table 1.
const TABLE: &str = "markatos-table-1";
/// The clock of the prototype's bus, MHz, and that of a fast one.
const CLOCKS: [f64; 2] = [12.5, 66.0];
/// Processor cycles of an empty system call at both ends of the range in section 2.2; the parameter is its middle.
const CALLS: [f64; 2] = [1000.0, 5000.0];
/// The user-level methods of table 1.
const USER_LEVEL: [&str; 3] = ["extended-shadow", "repeated-passing", "key-based"];

pub const RUNNERS: [Runner; 2] =
    [Runner { name: "initiation", run: initiation }, Runner { name: "message", run: message }];

pub const JUDGES: [Judge; 3] = [
    Judge { claim: "markatos-table-1", place: Place::Simulated, judge: table_1 },
    Judge { claim: "markatos-order-of-magnitude", place: Place::Simulated, judge: order_of_magnitude },
    Judge { claim: "markatos-bus-scaling", place: Place::Simulated, judge: bus_scaling },
];

/// Times of the machine's actions, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A store through the bus.
    pub store: f64,
    /// A load through the bus.
    pub load: f64,
    /// A barrier, without the accesses that it waits for.
    pub barrier: f64,
    /// Computation around an access.
    pub instructions: f64,
    /// Kernel entry, two translations, and return.
    pub kernel: f64,
}

impl Costs {
    /// The costs with a bus clock in MHz.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn at(parameters: &Parameters, bus_mhz: f64) -> Result<Self, ParametersError> {
        let slower = parameters.get("bus-clock")? / bus_mhz;
        Ok(Self {
            store: parameters.get("io-store")? * slower,
            load: parameters.get("io-load")? * slower,
            barrier: parameters.get("barrier")?,
            instructions: parameters.get("instructions")?,
            kernel: parameters.get("system-call")? + 2.0 * parameters.get("translation")?,
        })
    }

    /// One access with its barrier and instructions.
    pub fn access(&self, kind: Kind) -> f64 {
        let bus = match kind {
            Kind::Store => self.store,
            Kind::Load => self.load,
            Kind::Exchange => self.store + self.load,
        };
        self.barrier + self.instructions + bus
    }

    /// All accesses of a program.
    pub fn program(&self, program: &[Step]) -> f64 {
        let cost = |step: &Step| match step {
            Step::Barrier => 0.0,
            Step::Access(access, _) => self.access(access.kind),
        };
        program.iter().map(cost).sum()
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
        None => (bytes / word).ceil() * (costs.store + costs.instructions),
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
    if let (Some(extended), Some(repeated), Some(keys)) =
        (stated("extended-shadow"), stated("repeated-passing"), stated("key-based"))
    {
        let predicted = found.get("extended-shadow").copied().unwrap_or_default();
        finding.figure("residual of the predicted row, %", (predicted / extended - 1.0) * 100.0);
        let load = repeated - 2.0 * extended;
        let store = (keys - extended) / 2.0;
        let words = format!(
            "the table's rows do not add up: repeated-passing minus twice extended-shadow leaves {load:.2} for one load, key-based \
                         minus extended-shadow {store:.2} for one store, and the two together should then be {:.2}, not {extended}",
            load + store
        );
        finding.because(words).check(
            true,
            "store and load are calibrated to repeated-passing and key-based; extended-shadow and kernel are predicted",
        );
    }
    let ([few, many], [least, most]) = (CALLS, kernel_at_the_ends(case)?);
    let words = format!(
        "the kernel's figure is for the middle of the paper's range of a system call, which is assumed; its ends, {few} and {many} \
                 cycles, give {least:.1} and {most:.1} us"
    );
    finding.check(true, words);
    Ok(finding.verdict(Place::Simulated, Basis::Predicted))
}

/// "About" an order of magnitude: closer to a factor of ten than to one or a hundred.
fn is_about_ten(ratio: f64) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bus_part_of_a_program_scales() {
        let parameters = Parameters::parse(include_str!("../../parameters/markatos.toml")).expect("checked");
        let slow = Costs::at(&parameters, 12.5).expect("all there");
        let fast = Costs::at(&parameters, 25.0).expect("all there");
        let each = slow.barrier + slow.instructions;
        let five = named("repeated-5").expect("listed").protocol.program(0, WANTS[0]);
        let sum = 2.0 * slow.store + 3.0 * slow.load;
        assert!((slow.program(&five) - sum - 5.0 * each).abs() < 1e-9);
        assert!((fast.program(&five) - sum / 2.0 - 5.0 * each).abs() < 1e-9);
        let pair = named("extended").expect("listed").protocol.program(0, WANTS[0]);
        assert!((slow.program(&pair) - slow.store - slow.load - 2.0 * each).abs() < 1e-9);
    }
}
