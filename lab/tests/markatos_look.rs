//! Scratch.
use memferry_lab::markatos::{explore::Bounds, protocols::CATALOGUE, scenes};
use std::time::Instant;
#[test]
fn look() {
    for entry in CATALOGUE {
        for scene in [
            scenes::attacked(),
            scenes::readable_source(),
            scenes::shared_destination(),
            scenes::three_honest(),
            scenes::three_attacked(),
            scenes::buffered(),
            scenes::buffered_two(),
        ] {
            for cpus in [1, 2] {
                let mut scene = scene.clone();
                scene.cpus = cpus;
                let start = Instant::now();
                let found = entry.protocol.explore(
                    &scene,
                    Bounds { states: 2_000_000, first_breach: entry.lacks.is_some(), ..Bounds::ALL },
                );
                if found.states > 20_000 {
                    println!(
                        "{:<26} {} {:<50} {:>8} {:>9} d{} {} {:?} {:?}",
                        entry.name,
                        cpus,
                        scene.name,
                        found.states,
                        found.moves,
                        found.depth,
                        found.complete,
                        start.elapsed(),
                        found.breaches.keys().collect::<Vec<_>>().len()
                    );
                }
            }
        }
        for scene in [scenes::alone(), scenes::two_honest(), scenes::attacked(), scenes::buffered()] {
            for cpus in [1, 2] {
                let mut scene = scene.clone();
                scene.cpus = cpus;
                let start = Instant::now();
                let p = entry.protocol.progress(&scene);
                println!(
                    "{:<26} {} {:<50} {:>8} {:?} stuck {:?} starved {:?}",
                    entry.name,
                    cpus,
                    scene.name,
                    p.states,
                    start.elapsed(),
                    p.stuck.is_some(),
                    p.starved.as_ref().map(|l| (l.way.len(), l.cycle.len()))
                );
            }
        }
        if entry.name.starts_with("repeated-5") {
            for scene in [scenes::buffered(), scenes::buffered_two(), scenes::shared_destination()] {
                let found = entry.protocol.explore(&scene, Bounds::ALL);
                println!(
                    "BUFFER {:<26} {} {} {:?} {:?}",
                    entry.name,
                    scene.name,
                    found.states,
                    found.breaches.keys().collect::<Vec<_>>(),
                    found.succeeded
                );
                if let Some((_, moves)) = found.shortest(|_| true) {
                    println!("{}", entry.protocol.story(&scene, moves));
                }
            }
        }
    }
}
