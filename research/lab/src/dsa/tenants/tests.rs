//! Shares and waits of tenants, with the policy and the steps of the engine changed one at a time.

use super::*;

fn done(way: Between, policy: PolicyKind, chunk: Option<u64>, others: u64) -> Vec<Done> {
    let parameters = Parameters::parse(include_str!("../../../parameters/dsa.toml")).expect("well formed");
    let settings = Settings { way, policy: Some(policy), of: Quantity::Share, chunk };
    run(&parameters, &settings, others, 1).expect("runs")
}

const LONG: u64 = 64 << 10;

#[test]
fn without_weights_shares_follow_the_sizes() {
    for way in [Between::SharedQueue, Between::OwnQueues, Between::Service] {
        let equal = share(&done(way, PolicyKind::Shared, None, SHORT));
        assert!((90.0..110.0).contains(&equal), "{equal} %, {way:?}");
        // As many requests of each: one part of 49.
        let unequal = share(&done(way, PolicyKind::Shared, None, LONG));
        assert!((7.0..10.0).contains(&unequal), "{unequal} %, {way:?}");
    }
}

#[test]
fn weights_give_short_requests_their_share() {
    let [shared, weighted] =
        [PolicyKind::Shared, PolicyKind::Weighted].map(|policy| done(Between::Service, policy, None, LONG));
    assert!(share(&weighted) > 75.0 && share(&weighted) > 8.0 * share(&shared), "{}", share(&weighted));
    let [shared, weighted] = [shared, weighted].map(|done| p99(&done).expect("some ended"));
    assert!(weighted < 0.8 * shared, "{weighted} us, {shared} without weights");
}

/// A policy cannot take back what the device has: behind shorter steps of the others, short requests wait less.
#[test]
fn shorter_steps_of_others_shorten_the_wait() {
    let waits = |chunk| {
        let done = done(Between::Service, PolicyKind::Weighted, chunk, 256 << 10);
        p99(&done).expect("some ended")
    };
    let [whole, short] = [None, Some(16 << 10)].map(waits);
    assert!(short < 0.6 * whole, "{short} us, {whole} behind steps of 64 KiB");
}

#[test]
fn equal_seeds_give_equal_runs() {
    let once = || done(Between::SharedQueue, PolicyKind::Shared, None, LONG).into_iter().map(|one| one.times);
    assert!(once().eq(once()));
}

#[test]
fn nothing_done_has_no_percentile() {
    assert_eq!((p99(&[]), p99(&[Done::default()])), (None, None));
    let times = (1..=200).map(|at| at * 1_000_000).collect();
    assert_eq!(p99(&[Done { bytes: 1, times }]), Some(199.0));
}
