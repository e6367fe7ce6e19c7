//! Group `commands`: `memferry copy` against `cp`, on files of this machine's temporary directory.
//!
//! ```text
//! round: cp source a ─ memferry copy source b        then the other way round; both destinations are removed before each copy
//! ```
//!
//! Both are started as programs, so their start counts. The source is in the page cache. The command is the one beside this program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::BenchError;
use crate::rows::{Row, Target};
use crate::run::Run;
use crate::timing::random_bytes;

const ROUNDS: usize = 15;
/// Names and lengths of the files.
const FILES: [(&str, usize); 2] = [("1 MiB", 1 << 20), ("40 MiB", 40 << 20)];
/// As long as `cp`, with a part for noise.
const TARGET: Target = Target::AtMost(1.1);

pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    let memferry = std::env::current_exe()?.with_file_name("memferry");
    if !memferry.exists() {
        return Err(format!("{} is missing; ./x bench builds it", memferry.display()).into());
    }
    let mut rows = Vec::new();
    for (name, length) in FILES {
        let source = run.directory().join("source");
        std::fs::write(&source, random_bytes(length, 11))?;
        let rounds = run.part("commands", ROUNDS);
        let mut ratios = Vec::new();
        for round in 0..rounds {
            let turn = |ours: bool| once(ours.then_some(memferry.as_path()), &source, run.directory());
            let (ours, theirs) = if round % 2 == 0 {
                let theirs = turn(false)?;
                (turn(true)?, theirs)
            } else {
                (turn(true)?, turn(false)?)
            };
            ratios.push(ours / theirs);
            run.round_done();
        }
        rows.push(Row::new(format!("memferry copy against cp, {name}"), "times", TARGET, &ratios));
    }
    Ok(rows)
}

/// Seconds that one copy takes, and checks that it is right.
fn once(memferry: Option<&Path>, source: &Path, directory: &Path) -> Result<f64, BenchError> {
    let destination: PathBuf = directory.join("destination");
    let _ = std::fs::remove_file(&destination);
    let mut command = match memferry {
        Some(program) => {
            let mut command = Command::new(program);
            command.arg("copy");
            command
        }
        None => Command::new("cp"),
    };
    command.args([source, &destination]).stdout(std::process::Stdio::null());
    let started = Instant::now();
    let status = command.status()?;
    let seconds = started.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{command:?} ended with {status}").into());
    }
    if std::fs::read(source)? != std::fs::read(&destination)? {
        return Err(format!("{command:?} wrote other bytes").into());
    }
    Ok(seconds)
}
