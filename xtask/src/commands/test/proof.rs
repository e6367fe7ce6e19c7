//! Bounded proofs: the harnesses of `tests/proof`, all of them and optimized, and the theorems of its formulas by the solver z3.
//!
//! ```text
//! tests/proof/tests ─► cargo test --release, with those that are left out otherwise
//! tests/proof/smt/*.smt2 ─► z3 ─► "unsat: a theorem", "unsat", "sat: what fails without a rule", "sat", ... ─► judge
//! ```

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::files::broken;
use crate::layout::{PRODUCT_WORKSPACE, package, proof};
use crate::line::Line;
use crate::setup::debian;
use crate::stages::{output, print, say};
use crate::work::Work;

/// Seconds for all theorems of a file. They take one.
const LIMIT: u32 = 300;

pub(super) fn run(work: &Work) -> Result<(), Failure> {
    work.setup.rust(&[])?;
    work.setup.tools(&[debian::SOLVER])?;
    work.stages.run("harnesses", &harnesses(&work.place.built("proof")))?;
    for file in files(&work.place.at(proof::FORMULAS))? {
        let line = solver(&file);
        work.stages.step(&format!("theorems of {}", file.display()), &line, || judged(&line))?;
    }
    Ok(())
}

/// Built apart, because everything else is built without optimization.
fn harnesses(target: &Path) -> Line {
    PRODUCT_WORKSPACE
        .cargo(&["test", "-p", package::PROOF, "--release", "--target-dir"])
        .arg(target)
        .args(["--", "--include-ignored"])
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder).map_err(|error| broken(folder, &error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "smt2"));
    files.sort();
    Ok(files)
}

fn solver(file: &Path) -> Line {
    Line::new("z3").arg(format!("-T:{LIMIT}")).arg(file)
}

fn judged(line: &Line) -> u8 {
    match output(line)
        .ok_or_else(|| "z3 failed: it is missing, or refuses the file".to_owned())
        .and_then(|text| verdict(&text))
    {
        Ok(theorems) => {
            print(format_args!("{theorems} statements decided as expected"));
            0
        }
        Err(why) => {
            say(why);
            1
        }
    }
}

/// Each statement is announced with the expected answer before its name. Returns how many there were.
fn verdict(text: &str) -> Result<usize, String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    for pair in lines.chunks(2) {
        let (expected, name) = pair[0].split_once(": ").ok_or_else(|| format!("z3 says: {}", pair[0]))?;
        match pair.get(1) {
            Some(answer) if *answer == expected => {}
            answer => {
                return Err(format!("'{name}' is {}, not {expected}", answer.unwrap_or(&"not decided")));
            }
        }
    }
    if lines.is_empty() { Err("z3 decided nothing".to_owned()) } else { Ok(lines.len() / 2) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_compared_with_the_expected_ones() {
        assert_eq!(verdict("unsat: a holds\nunsat\nsat: b fails\nsat\n"), Ok(2));
        assert_eq!(verdict("unsat: a: b\nsat\n"), Err("'a: b' is sat, not unsat".to_owned()));
        assert_eq!(verdict("sat: a\nunknown\n"), Err("'a' is unknown, not sat".to_owned()));
        assert_eq!(verdict("sat: a\n"), Err("'a' is not decided, not sat".to_owned()));
        assert!(verdict("").is_err() && verdict("(error \"line 1\")\n").is_err());
    }

    #[test]
    fn every_statement_of_the_formulas_is_announced() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let files = files(&root.join(proof::FORMULAS)).unwrap();
        assert!(!files.is_empty());
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines =
                text.lines().filter(|line| line.starts_with("(echo ") || line.starts_with("(check-sat"));
            let lines: Vec<&str> = lines.collect();
            for pair in lines.chunks(2) {
                let is_announced =
                    pair[0].starts_with("(echo \"unsat: ") || pair[0].starts_with("(echo \"sat: ");
                assert!(is_announced && pair.get(1) == Some(&"(check-sat)"), "{}: {pair:?}", file.display());
            }
            for kind in ["(echo \"unsat: ", "(echo \"sat: "] {
                assert!(lines.iter().any(|line| line.starts_with(kind)), "{}: {kind}", file.display());
            }
        }
    }

    #[test]
    fn harnesses_are_run_whole_and_apart() {
        let line = harnesses(Path::new("/t/proof")).to_string();
        assert!(line.ends_with("--release --target-dir /t/proof -- --include-ignored"), "{line}");
    }
}
