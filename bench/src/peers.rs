//! Group `peers`: memferry beside other ways to move memory, each in its newest release that a registry has, in one run.
//!
//! ```text
//! parts:  libc     memcpy and memset of the installed glibc and of a newer one          kernel   process_vm_readv
//!         ucx      the installed UCX and a newer one         iceoryx2  its messages     absent   what no registry has
//!         engines  transfer engines of LLM serving, between processes of one user and of two
//!         own      what README.md says and no peer has: overlap, round trips, an idle service
//! rows ─► JSON ─► docs/guide/comparison.md, README.md (page)
//! ```
//!
//! `./x bench peers` unpacks the newer releases below target/peers, beside what is installed; a peer that cannot be had is a row with
//! the reason. A row's value is the gain: above 1, memferry is better.

pub(crate) mod engines;
mod iceoryx2;
mod kernel;
mod libc;
mod other;
mod own;
pub(crate) mod page;
mod ucx;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use self::engines::lend;
use crate::BenchError;
use crate::placement::{Class, steady};
use crate::rows::{Row, Subject, Target};
use crate::run::Run;

/// Names the folder in which `./x bench peers` unpacked what can be had.
const FOLDER: &str = "MEMFERRY_BENCH_PEERS";

/// The row of how busy the machine was, and its most on one that is idle, in per cent.
const OTHERS: &str = "other programs' share of the CPUs, in a second before";
const ALONE: f64 = 10.0;

type Part = (&'static str, fn(&Run, Class) -> Result<Vec<Row>, BenchError>);

/// Parts, and whether they are repeated if the CPUs changed places. The engines' processes are not pinned and take minutes, in which the
/// host moves the CPUs as a rule: both sides take turns, and the least and the greatest ratio show what moves them.
const PARTS: [(Part, bool); 7] = [
    (("libc", libc::measure), false),
    (("kernel", kernel::measure), true),
    (("ucx", ucx::measure), true),
    (("iceoryx2", iceoryx2::measure), true),
    (("engines", engines::measure), false),
    (("own", own::measure), true),
    (("absent", absent), false),
];

/// Peers that cannot be had, with the reason.
const ABSENT: [(&str, &str); 3] = [
    ("Intel DML's software path", NO_PACKAGE),
    ("DTO", NO_PACKAGE),
    ("SPDK accel's software module", NO_PACKAGE),
];
const NO_PACKAGE: &str = "NOT RUN: neither Debian (bookworm, trixie, sid) nor PyPI nor Rust's registry has it, and the comparison builds nothing from elsewhere";

/// Measures the selected parts of the group.
pub(crate) fn measure(run: &Run) -> Result<Vec<Row>, BenchError> {
    run.refuse_unknown(PARTS.iter().map(|((name, _), _)| *name))?;
    let mut rows = vec![others()?];
    for ((name, part), placed) in PARTS.iter().filter(|((name, _), _)| run.wants(name)) {
        let measured =
            if *placed { steady(run, name, |class| part(run, class)) } else { part(run, Class::Any) };
        // One part that fails, such as by CPUs that move all the time, leaves the others in the table.
        match measured {
            Ok(measured) => rows.extend(measured),
            Err(error) => rows.push(failed(name, &error)),
        }
    }
    Ok(rows)
}

/// How busy the CPUs are while this program sleeps for a second: README.md takes no figure from a busy machine.
fn others() -> Result<Row, BenchError> {
    let before = ticks()?;
    std::thread::sleep(Duration::from_secs(1));
    let after = ticks()?;
    let all = after.all.saturating_sub(before.all).max(1);
    let busy = all.saturating_sub(after.idle.saturating_sub(before.idle));
    let row = Row::new(OTHERS, "%", Target::AtMost(ALONE), &[100.0 * busy as f64 / all as f64]);
    Ok(row.compared_as(&subject(own::SECTION, OTHERS, "", Class::Same)))
}

/// Ticks of all CPUs since the machine started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
}

fn ticks() -> Result<Ticks, BenchError> {
    let text = std::fs::read_to_string("/proc/stat")?;
    ticks_of(&text).ok_or_else(|| "the kernel does not report the use of its CPUs (/proc/stat)".into())
}

/// The first line: user, nice, system, idle, waiting for devices, interrupts, others.
fn ticks_of(stat: &str) -> Option<Ticks> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    Some(Ticks { all: numbers.iter().take(8).sum(), idle: numbers.get(3)? + numbers.get(4)? })
}

fn failed(part: &'static str, error: &BenchError) -> Row {
    Row::not_compared(&subject(part, "the whole part", "all", Class::Same), &format!("NOT RUN: {error}"))
}

fn absent(_: &Run, _: Class) -> Result<Vec<Row>, BenchError> {
    let row = |(peer, reason): &(&str, &str)| {
        Row::not_compared(&subject("absent", "copies", *peer, Class::Same), reason)
    };
    Ok(ABSENT.iter().map(row).collect())
}

/// A row's subject; the placement of the CPUs is that of its part.
fn subject(section: &'static str, what: impl Into<String>, peer: impl Into<String>, class: Class) -> Subject {
    Subject { section, what: what.into(), peer: peer.into(), place: class.name() }
}

/// A file or folder below the folder of peers, if it is there.
fn unpacked(path: &str) -> Option<PathBuf> {
    let folder = std::env::var_os(FOLDER)?;
    Some(Path::new(&folder).join(path)).filter(|path| path.exists())
}

/// Why something unpacked is missing.
fn missing(what: &str) -> String {
    format!("NOT RUN: {what} is missing; ./x bench peers gets it where the network allows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_of_the_cpus_is_read_from_the_first_line() {
        let stat = "cpu  10 20 30 400 50 0 1 2 9 9\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(ticks_of(stat), Some(Ticks { all: 513, idle: 450 }));
        assert_eq!(ticks_of("cpu  1 2\n"), None);
        assert_eq!(ticks_of("intr 1\n"), None);
    }

    #[test]
    fn a_failed_part_is_a_row_with_its_reason() {
        let row = serde_json::to_value(failed("libc", &"no compiler".into())).unwrap();
        assert_eq!(
            (&row["reason"], &row["comparison"]["section"]),
            (&"NOT RUN: no compiler".into(), &"libc".into())
        );
    }
}
