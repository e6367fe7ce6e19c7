//! The simulation itself: every chunk once, times that add up, the slowest part bounds the rate.

use super::*;

fn parameters() -> Parameters {
    Parameters::parse(include_str!("../../../parameters/nodes.toml")).expect("well formed")
}

fn load(readers: usize) -> Load {
    Load { readers, requests: 1, chunks: 16, revoked: None, until: 12_000_000_000, seed: 3 }
}

fn run_with(change: impl FnOnce(&mut Rules, &mut Costs), load: Load) -> Found {
    let parameters = parameters();
    let mut rules = Rules::new(&parameters).expect("listed");
    let mut costs = Costs::new(&parameters, 100.0).expect("listed");
    change(&mut rules, &mut costs);
    run(rules, costs, load)
}

#[test]
fn every_chunk_arrives_once() {
    for readers in [1, 2, 33, 100] {
        let found = run_with(|_, _| (), load(readers));
        assert_eq!((found.finished, found.useful), (readers, 16 * readers as u64), "{found:?}");
        assert_eq!(found, run_with(|_, _| (), load(readers)), "equal runs are equal");
    }
}

#[test]
fn a_lone_access_takes_all_its_steps() {
    let mut sum = 0;
    let found = run_with(
        |rules, costs| {
            rules.ahead = 1;
            sum = 2 * costs.latency + 2 * costs.message + costs.service + costs.answer + costs.wire;
        },
        load(1),
    );
    assert!((sum..sum + 500).contains(&found.longest), "{} ns of {sum}", found.longest);
}

#[test]
fn the_slowest_part_bounds_the_rate() {
    let per_chunk = |found: Found| found.took / found.useful.max(1);
    let as_it_is = per_chunk(run_with(|_, _| (), load(30)));
    let thread = run_with(|_, costs| costs.answer *= 4, load(30));
    let wire = run_with(|_, costs| costs.wire *= 10, load(30));
    assert!(per_chunk(thread) > 3 * as_it_is && per_chunk(wire) > 3 * as_it_is, "{as_it_is} ns");
}

#[test]
fn answers_of_lost_connections_are_dropped() {
    // The wire is so slow that nearly all are cut off; what is held stays within the credit all the same.
    let found = run_with(|_, costs| costs.wire *= 1000, load(50));
    assert!(found.cut_off > 40, "{found:?}");
    assert!(found.memory <= 50 * 8 * (256 << 10), "{found:?}");
}
