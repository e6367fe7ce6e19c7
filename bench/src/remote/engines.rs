//! Part `engines`: reads of another node's memory by transfer engines of LLM serving, and by memferry over its links.
//!
//! ```text
//! theirs: a process ═ Mooncake over TCP, NIXL over UCX by TCP ═ a process              one loopback interface, on this machine
//! ours:   client ─ service beta ─ link ═ UCX by TCP ═ link ─ service alpha, which checks each read against the grant
//! ```
//!
//! The blocks are those of group `peers`, part `engines`, where the same engines read within a node. Theirs have no rights: who knows
//! the address of the memory reads it. The sides take turns in each round, and theirs are stopped meanwhile.

use std::time::Instant;

use memferry::Rights;

use super::nodes::{Nodes, Reach, Way, own_processor_seconds};
use super::ucx::{Transport, Ucx};
use crate::BenchError;
use crate::peers::engines::theirs::{Theirs, python};
use crate::peers::engines::{ENGINES, FIGURES, MEMORY, Reads, Taken, Users};
use crate::rows::{Better, Row, Target};
use crate::run::Run;
use crate::timing::since_ns;

const ROUNDS: usize = 5;

/// The values of both sides, for each figure.
type Sides = [Vec<(f64, f64)>; FIGURES.len()];

pub(super) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let Some(python) = python() else {
        let reason =
            "the Python environment with the engines is missing; ./x bench peers --only engines makes it";
        return Ok(vec![Row::not_measured("transfer engines", reason)]);
    };
    let (found, missing) = Ucx::all();
    let Some(ucx) = found.iter().find(|ucx| ucx.is_installed()) else { return Ok(missing) };
    let nodes = Nodes::start_in(run, Way::Ucx(ucx, Transport::Tcp), "engines")?;
    let mut reach = Reach::open(&nodes, MEMORY, Rights::READ)?;
    let mut rows = Vec::new();
    for (engine, peer) in ENGINES {
        match against(run, (&nodes, &mut reach), (&python, engine)) {
            Ok(sides) => rows.extend(FIGURES.iter().zip(&sides).flat_map(|(figure, sides)| {
                rows_of(figure.what, figure.unit, &format!("UCX {}", ucx.version()), peer, sides)
            })),
            Err(error) => rows.push(Row::not_measured(&format!("reads beside {peer}"), &error.to_string())),
        }
    }
    Ok(rows)
}

fn against(
    run: &Run,
    (nodes, reach): (&Nodes, &mut Reach),
    (python, engine): (&str, &str),
) -> Result<Sides, BenchError> {
    let (_, only_tcp) = Transport::Tcp.environment()[0];
    let mut theirs = Theirs::start(python, engine, (Users::One, only_tcp))?;
    let mut sides: Sides = Default::default();
    for _ in 0..run.part("remote engines", ROUNDS) {
        for (figure, sides) in FIGURES.iter().zip(&mut sides) {
            let reads = figure.reads_of(run);
            theirs.pause()?;
            let own = take(nodes, reach, reads)?;
            theirs.go_on()?;
            let other = theirs.take(reads)?;
            sides.push(((figure.value)(&own, &reads), (figure.value)(&other, &reads)));
        }
        run.round_done();
    }
    Ok(sides)
}

/// Our side of the reads. The first block finds threads asleep, and is not counted, as with theirs.
fn take(nodes: &Nodes, reach: &mut Reach, reads: Reads) -> Result<Taken, BenchError> {
    let processor_ns = |reach: &Reach| -> Result<f64, BenchError> {
        Ok((reach.processor_seconds_of_both(nodes)? + own_processor_seconds()) * 1e9)
    };
    reach.blocks(reads.bytes, reads.depth)?;
    let before = processor_ns(reach)?;
    let started = Instant::now();
    let mut each = Vec::new();
    for _ in 0..reads.count {
        let one = Instant::now();
        reach.blocks(reads.bytes, reads.depth)?;
        each.push(since_ns(one));
    }
    Ok(Taken { ns: since_ns(started), each, cpu_ns: processor_ns(reach)? - before })
}

/// Both sides of a figure, and what memferry gains: above 1 it is the better one.
fn rows_of(
    what: &str,
    (unit, better): (&'static str, Better),
    ucx: &str,
    peer: &str,
    sides: &[(f64, f64)],
) -> Vec<Row> {
    let (own, other): (Vec<f64>, Vec<f64>) = sides.iter().copied().unzip();
    let gains: Vec<f64> = sides.iter().map(|sides| better.gain(*sides)).collect();
    vec![
        Row::new(format!("between nodes, {what}: memferry over {ucx} by TCP"), unit, Target::None, &own),
        Row::new(format!("between nodes, {what}: {peer}"), unit, Target::None, &other),
        Row::new(
            format!("between nodes, {what}: memferry's gain over {peer}"),
            "ratio",
            Target::None,
            &gains,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_above_one_for_the_better_side() {
        let gain = |better| {
            let rows = rows_of("reads", ("us", better), "UCX 1", "other", &[(10.0, 20.0)]);
            serde_json::to_value(&rows[2]).unwrap()["value"].as_f64().unwrap()
        };
        assert_eq!((gain(Better::Lower), gain(Better::Higher)), (2.0, 0.5));
    }
}
