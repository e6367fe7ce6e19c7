//! Group `preload`: what `libmemferry_preload.so` adds to a short copy, and gains by a long one, in a program that
//! knows nothing of it.
//!
//! ```text
//! parts:  calls     tools/preload/measure.c ─ cc ─► program ─► by turns: its memcpy, the C library's ─► rows
//!         programs  whole programs of others, with the library and without
//! ```
//!
//! The first is a program in C, because the two functions have one name.

mod programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::rows::{Row, Target};
use crate::run::Run;
use crate::{BenchError, placement};

/// Nanoseconds that a short call may take longer.
const MOST_ADDED: f64 = 1.4;
/// How many times as fast as the C library from how many bytes on: of copies between cold memory, of zeroing it.
const COLD: [(u64, f64); 4] = [(64 << 10, 0.95), (2 << 20, 1.45), (4 << 20, 1.6), (32 << 20, 1.7)];
const ZERO: [(u64, f64); 2] = [(64 << 10, 0.95), (256 << 10, 2.3)];
const NEVER_SLOWER: f64 = 0.95;

/// The program's lines, by kind and bytes.
type Lines = BTreeMap<(String, u64), Vec<f64>>;

type Part = (&'static str, fn(&Run, &Path) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 2] = [("calls", calls), ("programs", programs::measure)];

/// Measures the group, or the parts of it that were asked for.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, ..)| *name))?;
    let executable = std::env::current_exe()?;
    let built = executable.parent().ok_or("the bench lies nowhere")?;
    let library = built.join("libmemferry_preload.so");
    if !library.exists() {
        return Err(format!("{} is missing; ./x bench preload builds it", library.display()).into());
    }
    let mut rows = Vec::new();
    for (name, part) in PARTS.iter().filter(|(name, ..)| run.wants(name)) {
        rows.extend(placement::steady(run, name, |_| part(run, &library))?);
    }
    Ok(rows)
}

fn calls(run: &Run, library: &Path) -> Result<Vec<Row>, BenchError> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = run.directory().join("memferry-preload-measure");
    let source = here.join("../tools/preload/measure.c");
    let compiled = Command::new("cc").args(["-O2", "-o"]).arg(&program).arg(source).arg("-ldl").status()?;
    if !compiled.success() {
        return Err("measure.c does not compile".into());
    }
    let mut measured = Command::new(&program);
    measured.env("LD_PRELOAD", library).env_remove("MEMFERRY_PRELOAD").args(run.quick().then_some("quick"));
    let output = measured.output()?;
    if !output.status.success() {
        return Err(format!("the program failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut lines = Lines::new();
    parse(&String::from_utf8(output.stdout)?, &mut lines)?;
    Ok(rows(&lines))
}

fn parse(text: &str, lines: &mut Lines) -> Result<(), BenchError> {
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, bytes, value] = words[..] else { return Err(format!("no measurement: {line}").into()) };
        lines.entry((kind.to_owned(), bytes.parse()?)).or_default().push(value.parse()?);
    }
    Ok(())
}

fn rows(lines: &Lines) -> Vec<Row> {
    let least = |targets: &[(u64, f64)], bytes: u64| {
        let reached = targets.iter().rev().find(|(from, _)| *from <= bytes);
        Target::AtLeast(reached.map_or(NEVER_SLOWER, |(_, least)| *least))
    };
    let row = |((kind, bytes), values): (&(String, u64), &Vec<f64>)| {
        let (name, unit, target) = match kind.as_str() {
            "added" => ("added to a call of", "ns", Target::AtMost(MOST_ADDED)),
            "cold" => ("cold copy, against the C library:", "x", least(&COLD, *bytes)),
            "zero" => ("zeroing cold memory, against the C library:", "x", least(&ZERO, *bytes)),
            "new" => ("to new memory, against the C library:", "x", Target::AtLeast(NEVER_SLOWER)),
            _ => ("the same copy again, against the C library:", "x", Target::AtLeast(NEVER_SLOWER)),
        };
        Row::new(format!("{name} {}", size(*bytes)), unit, target, values)
    };
    lines.iter().map(row).collect()
}

fn size(bytes: u64) -> String {
    match bytes {
        few if few < 1 << 10 => format!("{few} B"),
        some if some < 1 << 20 => format!("{} KiB", some >> 10),
        many => format!("{} MiB", many >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_rows_and_others_are_refused() {
        let mut lines = Lines::new();
        parse("added 8 0.5\ncold 65536 1.1\n", &mut lines).expect("lines");
        parse("added 8 0.7\n", &mut lines).expect("lines");
        assert_eq!(lines[&("added".to_owned(), 8)], [0.5, 0.7]);
        assert_eq!(rows(&lines).len(), 2);
        assert!(parse("segmentation fault\n", &mut lines).is_err());
    }
}
