//! Assigns a CPU to each worker.
//!
//! ```text
//! CPUs this process may use ─ their node, core complex and core, from sysfs ─► spread: alternate nodes, then complexes;
//!                                                                             one worker per core, last CPUs first
//! ```
//!
//! A worker that stays on one CPU finds its caches warm, and the kernel moves clients to other CPUs. A core complex is the CPUs that
//! share a third-level cache: a worker in each has its clients' rings and data nearer than one elsewhere. The first CPUs are used
//! last, because interrupts and single-threaded programs tend to run there. Frames are not moved to a worker's node, and
//! queue pairs are not assigned by node.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where Linux describes the CPUs.
const SYSFS: &str = "/sys/devices/system/cpu";

/// Whether workers stay on assigned CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pinning {
    /// The kernel places the workers. Suits programs whose own threads matter more.
    #[default]
    Off,
    /// Each worker gets its own CPU as long as there are enough.
    Spread,
}

impl Pinning {
    /// All variants and their names.
    pub const ALL: [(Self, &'static str); 2] = [(Self::Off, "off"), (Self::Spread, "spread")];

    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(pinning, _)| *pinning == self).map_or("", |(_, name)| name)
    }

    /// The place of each worker; `None`: the kernel chooses it.
    pub(crate) fn plan(self, workers: u32) -> Vec<Option<Place>> {
        let cpus = match self {
            Self::Off => Vec::new(),
            Self::Spread => allowed_cpus(),
        };
        spread(&cpus, workers)
    }
}

/// Where a worker stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) cpu: usize,
    /// The lowest CPU number in its complex, which identifies the complex.
    pub(crate) complex: usize,
}

/// Pins the calling thread to a CPU.
pub(crate) fn keep_on(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// A CPU and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cpu {
    number: usize,
    node: usize,
    /// The lowest CPU number that shares its third-level cache; without one, that of its node.
    complex: usize,
    /// The lowest CPU number in its core, which identifies the core.
    core: usize,
}

fn allowed_cpus() -> Vec<Cpu> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let numbers: Vec<_> = (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).collect();
    located(Path::new(SYSFS), &numbers)
}

/// Reads the positions of CPUs from a tree like that of [`SYSFS`].
fn located(root: &Path, numbers: &[usize]) -> Vec<Cpu> {
    let nodes: Vec<_> = numbers.iter().map(|number| node_of(root, *number)).collect();
    let first_of = |node| nodes.iter().position(|other| *other == node).map_or(0, |at| numbers[at]);
    let cpus = numbers.iter().zip(&nodes).map(|(number, node)| Cpu {
        number: *number,
        node: *node,
        complex: complex_of(root, *number).unwrap_or_else(|| first_of(*node)),
        core: first_listed(&cpu_path(root, *number).join("topology/thread_siblings_list")).unwrap_or(*number),
    });
    cpus.collect()
}

fn cpu_path(root: &Path, cpu: usize) -> std::path::PathBuf {
    root.join(format!("cpu{cpu}"))
}

/// Reads the node from the `nodeN` link in the CPU's sysfs directory.
fn node_of(root: &Path, cpu: usize) -> usize {
    let Ok(entries) = fs::read_dir(cpu_path(root, cpu)) else { return 0 };
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| number(entry.file_name())).unwrap_or(0)
}

/// The CPUs that share the third-level cache, which is `index3` where level 1 has two caches.
fn complex_of(root: &Path, cpu: usize) -> Option<usize> {
    let caches = fs::read_dir(cpu_path(root, cpu).join("cache")).ok()?;
    let third = caches
        .flatten()
        .map(|cache| cache.path())
        .find(|cache| fs::read_to_string(cache.join("level")).is_ok_and(|level| level.trim() == "3"))?;
    first_listed(&third.join("shared_cpu_list"))
}

/// The lowest CPU of a list file, which begins with it: `0,64` or `0-1`.
fn first_listed(path: &Path) -> Option<usize> {
    let list = fs::read_to_string(path).ok()?;
    list.split([',', '-', '\n']).next()?.parse().ok()
}

/// Assigns CPUs: alternates between nodes and between the complexes of a node, uses each core before second threads, and starts at
/// the last CPU. One CPU always stays free for clients.
fn spread(cpus: &[Cpu], workers: u32) -> Vec<Option<Place>> {
    let nodes: Vec<usize> = cpus.iter().map(|cpu| cpu.node).collect::<BTreeSet<_>>().into_iter().collect();
    let mut left = cpus.to_vec();
    let mut taken: Vec<Cpu> = Vec::new();
    let mut planned = Vec::new();
    for worker in 0..workers as usize {
        let node = nodes.get(worker % nodes.len().max(1)).copied();
        let order = |cpu: &Cpu| {
            let second = taken.iter().any(|other| other.core == cpu.core);
            let beside = taken.iter().filter(|other| other.complex == cpu.complex).count();
            (Some(cpu.node) == node, !second, Reverse(beside), cpu.number)
        };
        let best = (0..left.len()).max_by_key(|index| order(&left[*index])).filter(|_| left.len() > 1);
        planned.push(best.map(|index| {
            let cpu = left.remove(index);
            taken.push(cpu);
            Place { cpu: cpu.number, complex: cpu.complex }
        }));
    }
    planned
}

#[cfg(test)]
mod tests;
