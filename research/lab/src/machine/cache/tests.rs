//! Tests of the cache hierarchy.

use super::*;

const LINE: u64 = 32;

/// Level 0: 4 lines in 2 sets of 2; level 1: 16 lines in 4 sets of 4. Each place has a different cost.
fn small(replacement: Replacement) -> Processor {
    let level = |size_bytes, ways, latency_ns| Level {
        size_bytes,
        ways,
        replacement,
        latency_ns,
        read_ns: latency_ns,
        write_ns: 2.0 * latency_ns,
        maintain_ns: 1.0,
    };
    Processor {
        line_bytes: LINE,
        word_bytes: 4,
        issue_ns: 1.0,
        line_fills: 2,
        prefetch_lines: 0,
        levels: vec![level(128, 2, 0.0), level(512, 4, 10.0)],
        memory: Backing { latency_ns: 190.0, bytes_per_ns: 8.0 },
    }
}

fn caches(replacement: Replacement) -> Hierarchy {
    Hierarchy::new(&small(replacement), 1).expect("a power of two of sets")
}

#[test]
fn the_level_of_a_hit_gives_the_cost() {
    let mut caches = caches(Replacement::LeastRecent);
    // (10 + 190) / 2 from memory; both sides are in one set of level 0, which holds them.
    assert_eq!(caches.copy(0, 64, LINE), 1_000 + 100_000 + 100_000);
    assert_eq!(caches.copy(0, 64, LINE), 1_000);
    // Two more lines of the set push both down; the written one is dirty there, and nothing reaches memory.
    assert_eq!(caches.copy(128, 192, LINE), 1_000 + 200_000);
    assert_eq!(caches.copy(0, 64, LINE), 1_000 + 10_000 + 20_000);
}

#[test]
fn bandwidth_limits_fetches() {
    let mut processor = small(Replacement::LeastRecent);
    processor.prefetch_lines = 1_000;
    let mut caches = Hierarchy::new(&processor, 1).expect("well formed");
    assert_eq!(caches.copy(0, 64, LINE), 1_000 + 2 * 4_000);
}

#[test]
fn write_backs_to_memory_use_bandwidth() {
    let mut caches = caches(Replacement::LeastRecent);
    // Set 0 of level 1 has four ways. Each of the next four lines evicts one line, which level 0 has marked dirty
    // there.
    let dirty: u64 = (0..4).map(|at| caches.write(at * 128, 4)).sum();
    assert_eq!(dirty, 4 * 100_000);
    let more: u64 = (4..8).map(|at| caches.write(at * 128, 4)).sum();
    assert_eq!(more, 4 * (100_000 + 4_000));
}

#[test]
fn only_data_that_fits_is_copied_faster_again() {
    for replacement in [Replacement::LeastRecent, Replacement::PseudoRandom] {
        let mut caches = caches(replacement);
        let first = caches.copy(0, 1024, 256);
        let again = caches.copy(0, 1024, 256);
        assert!(again * 4 < first, "{replacement:?}: {again} after {first}");
        let mut alternating = caches.clone();
        let mut round =
            || (0..8).map(|frame| alternating.copy(frame * 4096, frame * 4096 + 2048, 256)).sum::<u64>();
        round();
        assert!(round() > 8 * first / 2, "{replacement:?}");
    }
}

#[test]
fn cleaning_writes_back_and_invalidating_drops() {
    let mut caches = caches(Replacement::LeastRecent);
    caches.write(0, 64);
    caches.clean(0, 64);
    // One step for each line and level; each line is written to memory once, although two levels had it.
    assert_eq!(caches.take_maintenance(), 4 * 1_000 + 2 * 4_000);
    caches.clean(0, 64);
    assert_eq!(caches.take_maintenance(), 4 * 1_000);
    assert_eq!(caches.copy(0, 32, LINE), 1_000, "still there");
    caches.invalidate(0, 64);
    assert_eq!(caches.take_maintenance(), 4 * 1_000);
    assert_eq!(caches.copy(0, 32, LINE), 1_000 + 200_000);
}

#[test]
fn maintenance_steps_are_limited_by_lines() {
    let mut caches = caches(Replacement::LeastRecent);
    caches.invalidate(0, 1 << 20);
    assert_eq!(caches.take_maintenance(), (4 + 16) * 1_000);
}

/// A list ordered by age gives the same replacement.
#[test]
fn least_recent_replacement_equals_a_list() {
    let level = Level { size_bytes: 512, ..small(Replacement::LeastRecent).levels[1] };
    let mut cache = Cache::new(&level, LINE, 1).expect("well formed");
    let mut sets: Vec<Vec<(u64, bool)>> = vec![Vec::new(); 4];
    let mut rng = Rng::new(12_345);
    for _ in 0..10_000 {
        let line = rng.below(40);
        let write = rng.below(2) == 1;
        let set = &mut sets[(line % 4) as usize];
        let place = set.iter().position(|(there, _)| *there == line);
        assert_eq!(cache.look_up(line, write), place.is_some());
        match place {
            Some(place) => {
                let (line, dirty) = set.remove(place);
                set.insert(0, (line, dirty || write));
            }
            None => {
                let evicted = (set.len() == 4).then(|| set.pop()).flatten();
                set.insert(0, (line, write));
                assert_eq!(
                    cache.insert(line, write),
                    evicted.and_then(|(line, dirty)| dirty.then_some(line))
                );
            }
        }
    }
}

#[test]
fn impossible_processors_are_refused() {
    let mut odd = small(Replacement::LeastRecent);
    odd.levels[0].size_bytes = 96;
    assert!(matches!(Hierarchy::new(&odd, 1), Err(ProcessorError::Geometry { size_bytes: 96, .. })));
    let mut still = small(Replacement::LeastRecent);
    still.line_fills = 0;
    assert_eq!(Hierarchy::new(&still, 1).map(|_| ()), Err(ProcessorError::Zero));
}

#[test]
fn a_single_access_waits_for_all_latencies() {
    let mut caches = caches(Replacement::LeastRecent);
    assert_eq!(caches.access(0, false), 10_000 + 190_000);
    assert_eq!(caches.access(4, true), 0);
    // Two more lines of its set of level 0 push it down.
    assert_eq!(caches.read(64, 1) + caches.read(128, 1), 200_000);
    assert_eq!(caches.access(0, false), 10_000);
}

#[test]
fn device_reads_clean_and_writes_drop_lines() {
    let mut caches = caches(Replacement::LeastRecent);
    caches.write(0, 2 * LINE);
    caches.read(2 * LINE, LINE);
    assert_eq!((caches.snoop(0, 3 * LINE, false), caches.snoop(0, 3 * LINE, false)), (2, 0));
    assert_eq!(caches.access(0, true), 0, "a line that was read stays");
    assert_eq!(caches.snoop(0, LINE, true), 1);
    assert_eq!(caches.access(0, false), 200_000);
}
