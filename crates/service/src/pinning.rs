//! Assigns a CPU to each worker.
//!
//! ```text
//! CPUs this process may use ─ their node and core, from sysfs ─► spread: alternate nodes, one worker per core, last CPUs first
//! ```
//!
//! A worker that stays on one CPU finds its caches warm, and the kernel moves clients to other CPUs. The first CPUs are used
//! last, because interrupts and single-threaded programs tend to run there. Frames are not moved to a worker's node, and
//! queue pairs are not assigned by node.

use std::collections::BTreeSet;
use std::fs;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

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

    /// The CPU of each worker; `None`: the kernel places it.
    pub(crate) fn plan(self, workers: u32) -> Vec<Option<usize>> {
        let cpus = match self {
            Self::Off => Vec::new(),
            Self::Spread => allowed_cpus(),
        };
        spread(&cpus, workers)
    }
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
    /// The lowest CPU number in its core, which identifies the core.
    core: usize,
}

fn allowed_cpus() -> Vec<Cpu> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let located = |number| Cpu { number, node: node_of(number), core: core_of(number) };
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).map(located).collect()
}

/// Reads the node from the `nodeN` link in the CPU's sysfs directory.
fn node_of(cpu: usize) -> usize {
    let Ok(entries) = fs::read_dir(format!("/sys/devices/system/cpu/cpu{cpu}")) else { return 0 };
    let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix("node")?.parse().ok();
    entries.flatten().find_map(|entry| number(entry.file_name())).unwrap_or(0)
}

/// The sibling list begins with the lowest CPU: `0,64` or `0-1`.
fn core_of(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let list = fs::read_to_string(path).unwrap_or_default();
    list.split([',', '-', '\n']).next().and_then(|first| first.parse().ok()).unwrap_or(cpu)
}

/// Assigns CPUs: alternates between nodes, uses each core before second threads, and starts at the last CPU. One CPU always
/// stays free for clients.
fn spread(cpus: &[Cpu], workers: u32) -> Vec<Option<usize>> {
    let nodes: Vec<usize> = cpus.iter().map(|cpu| cpu.node).collect::<BTreeSet<_>>().into_iter().collect();
    let mut left = cpus.to_vec();
    let mut cores = BTreeSet::new();
    let mut planned = Vec::new();
    for worker in 0..workers as usize {
        let node = nodes.get(worker % nodes.len().max(1)).copied();
        let order = |cpu: &Cpu| (Some(cpu.node) == node, !cores.contains(&cpu.core), cpu.number);
        let best = (0..left.len()).max_by_key(|index| order(&left[*index])).filter(|_| left.len() > 1);
        planned.push(best.map(|index| {
            let cpu = left.remove(index);
            cores.insert(cpu.core);
            cpu.number
        }));
    }
    planned
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CPUs of a machine with `cores` per node and `threads` per core, numbered as Linux does: second threads last.
    fn machine(nodes: usize, cores: usize, threads: usize) -> Vec<Cpu> {
        let all = nodes * cores;
        (0..all * threads)
            .map(|number| Cpu { number, node: number % all / cores, core: number % all })
            .collect()
    }

    #[test]
    fn workers_take_the_last_cpus_and_leave_one() {
        assert_eq!(spread(&machine(1, 4, 1), 2), [Some(3), Some(2)]);
        assert_eq!(spread(&machine(1, 2, 1), 3), [Some(1), None, None]);
        assert_eq!(spread(&machine(1, 1, 1), 1), [None]);
        assert_eq!(spread(&[], 2), [None, None]);
    }

    #[test]
    fn nodes_alternate() {
        assert_eq!(spread(&machine(2, 4, 1), 4), [Some(3), Some(7), Some(2), Some(6)]);
    }

    #[test]
    fn cores_come_before_their_second_threads() {
        // Cores 0 and 1 have the threads 0, 2 and 1, 3.
        assert_eq!(spread(&machine(1, 2, 2), 3), [Some(3), Some(2), Some(1)]);
    }

    #[test]
    fn no_cpu_is_planned_twice() {
        for workers in 0..20 {
            let planned: Vec<_> = spread(&machine(2, 3, 2), workers).into_iter().flatten().collect();
            let distinct: BTreeSet<_> = planned.iter().collect();
            assert_eq!((distinct.len(), planned.len()), (planned.len(), 11.min(workers as usize)));
        }
    }

    #[test]
    fn plans_only_cpus_this_process_may_use() {
        let set = sched_getaffinity(None).unwrap();
        assert!(!allowed_cpus().is_empty() && allowed_cpus().iter().all(|cpu| set.is_set(cpu.number)));
        assert_eq!(Pinning::Off.plan(2), [None, None]);
    }
}
