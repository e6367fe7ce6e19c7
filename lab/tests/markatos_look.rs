//! Scratch.
use memferry_lab::markatos::{explore::Bounds, protocols::CATALOGUE, scenes};
use std::time::Instant;
#[test]
fn look() {
    let all = [scenes::alone(), scenes::two_honest(), scenes::attacked(), scenes::readable_source(), scenes::shared_destination(), scenes::without_clamp(), scenes::three_honest(), scenes::three_attacked()];
    for entry in CATALOGUE {
        for scene in &all {
            for cpus in [1, 2] {
                let mut scene = scene.clone();
                scene.cpus = cpus;
                let start = Instant::now();
                let found = entry.protocol.explore(&scene, Bounds { states: 3_000_000, ..Bounds::ALL });
                println!("{:<26} {} {:<50} {:>8} {:>9} d{} {} {:?} {:?}", entry.name, cpus, scene.name, found.states, found.moves, found.depth, found.complete, start.elapsed(), found.breaches.keys().collect::<Vec<_>>().len());
                if scene.name.contains("attacker that may read the source") || scene.name.contains("attacker that shares") { if let Some((b, moves)) = found.shortest(|_| true) { println!("{:?}\n{}", b, entry.protocol.story(&scene, moves)); } }
            }
        }
    }
}
