//! Group `preload`: what `libmemferry_preload.so` adds to a short copy, and gains for a long one, in an unmodified
//! program.
//!
//! ```text
//! parts:  calls     tools/preload/measure.c ─ cc ─► program ─► alternates its memcpy and the C library's ─► rows
//!         programs  other people's programs, with and without the library
//! ```
//!
//! The first part needs a C program, because both functions have the same name.

mod programs;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::rows::{Row, Target};
use crate::run::Run;
use crate::{BenchError, placement};

/// Maximum nanoseconds added to a short call.
const MAX_ADDED: f64 = 1.4;
/// Required speed-ups over the C library from a size on: copies between cold memory, and zeroing it.
const COLD: [(u64, f64); 4] = [(64 << 10, 0.95), (2 << 20, 1.45), (4 << 20, 1.6), (32 << 20, 1.7)];
const ZERO: [(u64, f64); 2] = [(64 << 10, 0.95), (256 << 10, 2.3)];
const NEVER_SLOWER: f64 = 0.95;

/// The program's output, by kind and bytes.
type Lines = BTreeMap<(String, u64), Vec<f64>>;

type Part = (&'static str, fn(&Run, &Path) -> Result<Vec<Row>, BenchError>);

const PARTS: [Part; 2] = [("calls", calls), ("programs", programs::measure)];

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|(name, ..)| *name))?;
    let executable = std::env::current_exe()?;
    let built = executable.parent().ok_or("the benchmark's executable has no parent directory")?;
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
        return Err(format!("measure.c's program failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let mut lines = Lines::new();
    parse(&String::from_utf8(output.stdout)?, &mut lines)?;
    Ok(rows(&lines))
}

fn parse(text: &str, lines: &mut Lines) -> Result<(), BenchError> {
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [kind, bytes, value] = words[..] else {
            return Err(format!("cannot parse a line of measure.c's program: {line}").into());
        };
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
            "added" => ("added to a call of", "ns", Target::AtMost(MAX_ADDED)),
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
