//! Tests of bulk transfers.

use super::*;
use crate::parameters::Parameters;

fn board() -> Board {
    let parameters = Parameters::parse(super::super::PAPER.parameters).expect("checked");
    super::super::board(&parameters, 1).expect("complete")
}

const CACHED: Caching = Caching::Cached;

fn of(board: &Board, mode: Mode, alternating: bool, length: u64) -> f64 {
    board.throughput(&Bulk { mode, caching: CACHED, alternating }, length).expect("runs")
}

#[test]
fn copies_within_a_cache_are_faster() {
    let board = board();
    let rates = [8 << 10, 128 << 10, 4 << 20].map(|length| of(&board, Mode::Premapped, false, length));
    assert!(rates.is_sorted_by(|near, far| *near > 1.5 * far), "{rates:?}");
    let alternating = of(&board, Mode::Premapped, true, 8 << 10);
    assert!(
        (0.8..1.2).contains(&(alternating / rates[1])),
        "eight frames are found a level below: {alternating}"
    );
}

#[test]
fn mapping_costs_the_same_for_all_sizes() {
    let board = board();
    let time = |mode, length| {
        board.transfer(&Bulk { mode, caching: CACHED, alternating: false }, length).expect("runs")
    };
    let added = |length| time(Mode::Mapped, length) - time(Mode::Premapped, length);
    let short = added(4 << 10);
    let long = added(2 << 20);
    assert!(short > board.host.map_both() as f64 && long < 1.5 * short, "{short} {long}");
}

#[test]
fn crossings_match_arithmetic() {
    let changed = |l2: u64, overhead: u64| {
        let mut board = board();
        board.host.switch *= overhead;
        board.host.processor.levels[1].size_bytes = l2;
        board.host.processor.levels.retain(|level| level.size_bytes > 0);
        board
    };
    for (l2, overhead) in [(1 << 20, 1), (1 << 19, 1), (1 << 20, 2), (0, 1)] {
        let board = changed(l2, overhead);
        let found = board.crossing(CACHED).expect("runs").expect("within a frame") as f64;
        let expected = board.expected_crossing().expect("runs").expect("within a frame") as f64;
        assert!(
            (found / expected - 1.0).abs() < 0.1,
            "L2 {l2}, overhead {overhead}: {found}, expected {expected}"
        );
    }
}

#[test]
fn caching_moves_the_crossing() {
    let board = board();
    let crossings = [Caching::NonCacheable, Caching::Cached, Caching::Maintained].map(|c| board.crossing(c));
    let crossings = crossings.map(|crossing| crossing.expect("runs").expect("within a frame"));
    assert!(crossings.is_sorted_by(|lower, upper| lower < upper), "{crossings:?}");
}

#[test]
fn a_crossing_may_be_missing() {
    let mut board = board();
    board.host.switch = 1_000_000_000_000;
    assert_eq!(board.crossing(CACHED), Ok(None));
    assert_eq!(board.expected_crossing(), Ok(None));
}

#[test]
fn an_offload_leaves_core_time_free() {
    let board = board();
    let free =
        |length| board.offload(length).map(|outcome| 1.0 - outcome.busy as f64 / outcome.elapsed as f64);
    assert!(free(4 << 10).expect("runs") < 0.1 && free(8 << 20).expect("runs") > 0.7);
}
