//! Placement over trees like Linux's: nodes, core complexes, cores with one or two threads.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// A machine. CPUs are numbered as Linux does: the second threads of all cores come last.
#[derive(Clone, Copy)]
struct Machine {
    nodes: usize,
    complexes_per_node: usize,
    cores_per_complex: usize,
    threads_per_core: usize,
}

/// A directory that goes when it is dropped.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    const fn all_cores(self) -> usize {
        self.nodes * self.complexes_per_node * self.cores_per_complex
    }

    fn list(self, cores: std::ops::Range<usize>) -> String {
        let ranges = (0..self.threads_per_core).map(|thread| thread * self.all_cores()).map(|first| {
            let low = first + cores.start;
            let high = first + cores.end - 1;
            if low == high { low.to_string() } else { format!("{low}-{high}") }
        });
        ranges.collect::<Vec<_>>().join(",") + "\n"
    }

    /// The files of sysfs that placement reads, and those beside them that it must not take for these.
    fn tree(self) -> Tree {
        static TREES: AtomicU32 = AtomicU32::new(0);
        let name = format!("memferry-cpus-{}-{}", std::process::id(), TREES.fetch_add(1, Ordering::Relaxed));
        let tree = Tree(std::env::temp_dir().join(name));
        for cpu in 0..self.all_cores() * self.threads_per_core {
            let core = cpu % self.all_cores();
            let complex = core / self.cores_per_complex;
            let of_core = self.list(core..core + 1);
            let of_complex =
                self.list(complex * self.cores_per_complex..(complex + 1) * self.cores_per_complex);
            let at = tree.0.join(format!("cpu{cpu}"));
            let write = |path: &str, text: &str| {
                fs::create_dir_all(at.join(path).parent().unwrap()).unwrap();
                fs::write(at.join(path), text).unwrap();
            };
            write(&format!("node{}/cpulist", complex / self.complexes_per_node), "");
            write("topology/thread_siblings_list", &of_core);
            write("cache/uevent", "");
            for (index, level) in [1, 1, 2, 3].into_iter().enumerate() {
                write(&format!("cache/index{index}/level"), &format!("{level}\n"));
                let list = if level == 3 { &of_complex } else { &of_core };
                write(&format!("cache/index{index}/shared_cpu_list"), list);
            }
        }
        tree
    }

    fn cpus(self) -> Vec<Cpu> {
        let all: Vec<_> = (0..self.all_cores() * self.threads_per_core).collect();
        located(&self.tree().0, &all)
    }

    fn planned(self, workers: u32) -> Vec<Option<usize>> {
        spread(&self.cpus(), workers).into_iter().map(|place| place.map(|place| place.cpu)).collect()
    }
}

const fn machine(
    nodes: usize,
    complexes_per_node: usize,
    cores_per_complex: usize,
    threads_per_core: usize,
) -> Machine {
    Machine { nodes, complexes_per_node, cores_per_complex, threads_per_core }
}

#[test]
fn positions_are_read_from_sysfs() {
    let cpus = machine(2, 2, 4, 2).cpus();
    assert_eq!(cpus[5], Cpu { number: 5, node: 0, complex: 4, core: 5 });
    assert_eq!(cpus[16 + 13], Cpu { number: 29, node: 1, complex: 12, core: 13 });
}

#[test]
fn without_third_level_a_node_is_a_complex() {
    let tree = machine(2, 2, 2, 1).tree();
    for cpu in 0..8 {
        fs::remove_dir_all(tree.0.join(format!("cpu{cpu}/cache/index3"))).unwrap();
    }
    let complexes: Vec<_> = located(&tree.0, &[1, 2, 3, 4, 5]).iter().map(|cpu| cpu.complex).collect();
    assert_eq!(complexes, [1, 1, 1, 4, 4]);
    assert_eq!(
        located(std::path::Path::new("/nowhere"), &[3]),
        [Cpu { number: 3, node: 0, complex: 3, core: 3 }]
    );
}

#[test]
fn workers_take_the_last_cpus_and_leave_one() {
    assert_eq!(machine(1, 1, 4, 1).planned(2), [Some(3), Some(2)]);
    assert_eq!(machine(1, 1, 2, 1).planned(3), [Some(1), None, None]);
    assert_eq!(machine(1, 1, 1, 1).planned(1), [None]);
    assert_eq!(spread(&[], 2), [None, None]);
}

#[test]
fn nodes_alternate() {
    assert_eq!(machine(2, 1, 4, 1).planned(4), [Some(3), Some(7), Some(2), Some(6)]);
}

#[test]
fn complexes_of_a_node_alternate() {
    assert_eq!(machine(1, 2, 4, 1).planned(4), [Some(7), Some(3), Some(6), Some(2)]);
    let planned = machine(2, 2, 2, 1).planned(6);
    assert_eq!(planned, [Some(3), Some(7), Some(1), Some(5), Some(2), Some(6)]);
    // A server of 64 cores in 8 complexes: one worker in each, then a second one.
    let places = spread(&machine(1, 8, 8, 1).cpus(), 16);
    let complexes: Vec<_> = places.iter().map(|place| place.unwrap().complex).collect();
    let descending: Vec<_> = (0..8).rev().map(|complex| complex * 8).collect();
    assert_eq!(complexes, [&descending[..], &descending[..]].concat());
}

#[test]
fn cores_come_before_their_second_threads() {
    // Cores 0 and 1 have the threads 0, 2 and 1, 3.
    assert_eq!(machine(1, 1, 2, 2).planned(3), [Some(3), Some(2), Some(1)]);
    // Cores 0 to 3, and their second threads 4 to 7, in two complexes: all cores of both before any second thread.
    assert_eq!(machine(1, 2, 2, 2).planned(5), [Some(7), Some(5), Some(6), Some(4), Some(3)]);
}

#[test]
fn no_cpu_is_planned_twice() {
    let cpus = machine(2, 1, 3, 2).cpus();
    for workers in 0..20 {
        let planned: Vec<_> = spread(&cpus, workers).into_iter().flatten().map(|place| place.cpu).collect();
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
