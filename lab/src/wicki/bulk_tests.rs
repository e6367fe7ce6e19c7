//! Tests of bulk transfers.

use super::*;
use crate::parameters::Parameters;

fn board() -> Board {
    let parameters = Parameters::parse(include_str!("../../parameters/wicki.toml")).expect("checked");
    Board { host: Host::new(&parameters).expect("complete"), device: Config::default(), seed: 1 }
}

#[test]
fn show() {
    let board = board();
    let start = std::time::Instant::now();
    for alternating in [false, true] {
        for power in 10..=22 {
            let length = 1u64 << power;
            print!("{length:>9}");
            for mode in [Mode::Mapped, Mode::Premapped, Mode::Offloaded, Mode::Outstanding] {
                let bulk = Bulk { mode, caching: Caching::Cached, alternating };
                print!("  {mode:?} {:8.1}", board.throughput(&bulk, length).expect("runs"));
            }
            println!();
        }
    }
    println!("{:?}", start.elapsed());
    for caching in [Caching::Cached, Caching::Maintained, Caching::NonCacheable] {
        println!("{caching:?}: {:?} {:?}", board.crossing(caching), board.expected_crossing());
    }
    println!("{:?}", start.elapsed());
    for (label, factor, l2) in [("half L2", 1, 1 << 19), ("no L2", 1, 0), ("double overhead", 2, 1 << 20), ("double L2", 1, 1<<21)] {
        let mut changed = board.clone();
        let host = &mut changed.host;
        for cost in [&mut host.message, &mut host.word, &mut host.invocation, &mut host.access, &mut host.switch] {
            *cost *= factor;
        }
        host.processor.levels[1].size_bytes = l2;
        host.processor.levels.retain(|level| level.size_bytes > 0);
        println!("{label}: {:?} {:?}", changed.crossing(Caching::Cached), changed.expected_crossing());
    }
    println!("{:?}", start.elapsed());
}
