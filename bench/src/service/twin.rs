//! The C twin of the ring: what the cache lines between two cores cost, measured beside ours.
//!
//! ```text
//! bench/twin/twin.c ─ cc ─► program ─ a line with a design ─► one round ─► a line with its times
//! ```
//!
//! If our requests are slower than the twin's, the difference is in our code; if they are as fast, it is in the lines. The twin
//! has one client, no policy and nothing but requests that are done at once. Both of its sides poll without ever yielding, so it is
//! not measured on one CPU.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::BenchError;
use crate::placement::{Class, cpu};
use crate::rows::{Row, Target};
use crate::run::Run;

/// The designs of the twin, and their names in rows. The first is that of our ring.
const DESIGNS: [(&str, &str); 4] = [
    ("short epoch", "C twin"),
    ("short mutex", "C twin with a mutex"),
    ("long epoch", "C twin with slots of 64 B and records of 32 B"),
    ("long mutex", "C twin with slots of 64 B, records of 32 B and a mutex"),
];
const FIGURES: usize = 4;

/// Times of a round, ns.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Figures {
    call: f64,
    batch: f64,
    nop: f64,
    moved: f64,
}

/// Times of all designs in a round.
type Round = [Figures; DESIGNS.len()];

/// The program, ended on drop. Its worker ends with it.
struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Compiles and starts the twin, its client on CPU 0 and its worker on CPU 1.
    fn start(run: &Run) -> Result<Self, BenchError> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("twin/twin.c");
        let program = run.directory().join("twin");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-O2", "-pthread", "-o"]).arg(&program).arg(source);
        let compiled = compiler.status().map_err(|error| format!("there is no C compiler: {error}"))?;
        if !compiled.success() {
            return Err("twin.c does not compile".into());
        }
        let mut command = Command::new(&program);
        command.args([cpu(0)?.to_string(), cpu(1)?.to_string()]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no input of a child")?;
        let output = child.stdout.take().ok_or("no output of a child")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    fn round(&mut self) -> Result<Round, BenchError> {
        let mut figures = Vec::with_capacity(DESIGNS.len());
        for (design, _) in DESIGNS {
            // The output says whether it has ended.
            let _ = writeln!(self.input, "{design}");
            let mut line = String::new();
            if self.output.read_line(&mut line)? == 0 {
                return Err(self.end_reason()?.into());
            }
            figures.push(parse(&line).ok_or_else(|| format!("cannot parse a line of the C twin: {line}"))?);
        }
        figures.try_into().map_err(|_| "a design of the C twin was not measured".into())
    }

    /// Waits for its end, and says what it wrote to standard error.
    fn end_reason(&mut self) -> Result<String, BenchError> {
        let mut said = String::new();
        if let Some(mut errors) = self.child.stderr.take() {
            errors.read_to_string(&mut said)?;
        }
        Ok(format!("the C twin ended ({}): {}", self.child.wait()?, said.trim()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The twin and its rounds; the first failure ends it and is the reason of its row.
pub(super) struct Twin {
    program: Result<Program, String>,
    rounds: Vec<Round>,
}

impl Twin {
    pub(super) fn start(run: &Run, class: Class) -> Self {
        let program = match class {
            Class::OneCpu => Err("its two sides need a CPU each".to_owned()),
            _ => Program::start(run).map_err(|error| error.to_string()),
        };
        Self { program, rounds: Vec::new() }
    }

    /// Measures each design once.
    pub(super) fn round(&mut self) {
        let Ok(program) = &mut self.program else { return };
        match program.round() {
            Ok(round) => self.rounds.push(round),
            Err(error) => self.program = Err(error.to_string()),
        }
    }

    /// Its rows, and a row of our batches of the same rounds, each in ns, against its own.
    pub(super) fn rows(&self, ours: &[f64]) -> Vec<Row> {
        match &self.program {
            Ok(_) => rows(ours, &self.rounds),
            Err(reason) => vec![Row::not_measured(DESIGNS[0].1, reason)],
        }
    }
}

fn parse(line: &str) -> Option<Figures> {
    let words = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
    let [call, batch, nop, moved] = <[f64; FIGURES]>::try_from(words).ok()?;
    Some(Figures { call, batch, nop, moved })
}

fn rows(ours: &[f64], rounds: &[Round]) -> Vec<Row> {
    let of = |design: usize, value: fn(&Figures) -> f64| {
        rounds.iter().map(|round| value(&round[design])).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    for (index, (_, name)) in DESIGNS.iter().enumerate() {
        let title = format!("{name}: NOP in batches of 32, each");
        rows.push(Row::new(title, "ns", Target::None, &of(index, |figures| figures.batch)));
    }
    let name = DESIGNS[0].1;
    let ratio = |what: &str, values: &[f64]| {
        Row::new(format!("{name}: {what}, against getpid"), "ratio", Target::None, values)
    };
    rows.push(ratio("NOP round trip", &of(0, |figures| figures.nop / figures.call)));
    rows.push(ratio("64 B moved and touched", &of(0, |figures| figures.moved / figures.call)));
    let against: Vec<f64> = ours.iter().zip(rounds).map(|(ours, round)| ours / round[0].batch).collect();
    rows.push(Row::new("NOP in batches of 32, against the C twin", "ratio", Target::None, &against));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_four_figures() {
        let figures = Figures { call: 145.0, batch: 17.5, nop: 130.0, moved: 140.0 };
        assert_eq!(parse("145.0 17.5 130.0 140.0\n"), Some(figures));
        assert_eq!(parse("145.0 17.5 130.0\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn ours_are_compared_with_the_design_of_our_ring() {
        let of = |batch| Figures { call: 1.0, batch, nop: 1.0, moved: 1.0 };
        let rounds = [[of(10.0), of(20.0), of(30.0), of(40.0)]];
        let rows = serde_json::to_value(rows(&[25.0], &rounds)).unwrap();
        let last = rows.as_array().unwrap().last().unwrap();
        assert_eq!(last["value"], 2.5);
    }
}
