//! Explorations as tests: every weakened protocol fails, every other one holds, and the machine can make the paper's own
//! interleavings.
//!
//! ```text
//! CATALOGUE × scenes ──► safe or broken, states counted ──► compared with what is known
//! figures 5 and 6 as moves ──► apply ──► the breach described in the paper
//! ```

use memferry_lab::markatos::explore::{Bounds, explore};
use memferry_lab::markatos::machine::{Access, Page, Protocol, Transfer, shadow};
use memferry_lab::markatos::protocols::repeated::Repeated;
use memferry_lab::markatos::protocols::repeated3::THREE;
use memferry_lab::markatos::protocols::repeated4::FOUR;
use memferry_lab::markatos::protocols::{CATALOGUE, find};
use memferry_lab::markatos::replay::{Request, replay};
use memferry_lab::markatos::scenes;
use memferry_lab::markatos::world::{Breach, Machine, Move, Scene};

/// Issues these accesses, with the necessary switches between processes; returns the breach after each.
fn played(protocol: &Repeated, scene: &Scene, accesses: &[(u8, Access)]) -> Vec<Option<Breach>> {
    let machine = Machine::new(protocol, scene);
    let mut state = machine.reset();
    let mut breaches = Vec::new();
    for (who, access) in accesses {
        if !machine.is_running(&state, *who) {
            state = machine.apply(&state, Move::Switch { to: *who }).0;
        }
        let moves = machine.moves(&state).into_iter();
        let mut issues = moves.map(|chosen| machine.apply(&state, chosen)).filter(|(_, happening)| {
            happening.access.is_some_and(|issued| (issued.kind, issued.at) == (access.kind, access.at))
        });
        let (after, happening) = issues.next().expect("the machine can issue the paper's accesses");
        breaches.push(happening.breach);
        state = after;
    }
    breaches
}

fn load(page: u8) -> Access {
    Access::load(shadow(Page(page)))
}

fn store(page: u8) -> Access {
    Access::store(shadow(Page(page)), 1)
}

const A: u8 = 0;
const B: u8 = 1;
const C: u8 = 2;
const FOO: u8 = 3;

#[test]
fn figure_5_moves_the_attackers_data_into_b() {
    let accesses = [(0, load(A)), (1, store(FOO)), (1, load(FOO)), (1, load(C)), (0, store(B)), (1, load(C))];
    let found = played(&THREE, &scenes::attacked(), &accesses);
    assert!(found[..5].iter().all(Option::is_none), "{found:?}");
    assert_eq!(found[5], Some(Breach::NobodyAsked(Transfer::new(C, B, 2))));
}

#[test]
fn figure_6_looks_rejected_to_the_owner() {
    let accesses = [(0, store(B)), (0, load(A)), (0, store(B)), (1, load(A)), (0, load(A))];
    let found = played(&FOUR, &scenes::readable_source(), &accesses);
    assert_eq!(found, [None, None, None, None, Some(Breach::BelievedRejected(0))]);
}

#[test]
fn figures_5_and_6_are_found_by_exploration() {
    let story = |protocol: &str, place: usize| {
        let request = Request { protocol: protocol.to_owned(), processes: 2, attack: true, cpus: 1 };
        let mut shown = replay(&request).expect("listed");
        shown.scenes.swap_remove(place).1.expect("broken").to_string()
    };
    let three = story("repeated-3", 0);
    assert!(three.contains("LEGITIMATE PROCESS                MALICIOUS PROCESS\n"), "{three}");
    assert!(three.contains("<- DMA is started: C to B"), "{three}");
    let four = story("repeated-4", 1);
    let lines: Vec<&str> = four.lines().collect();
    assert_eq!(lines[1], " 1: STORE 2 TO shadow(B)");
    assert!(lines[4].starts_with(" 4:                                   LOAD 2 FROM shadow(A)"), "{four}");
    assert!(lines[4].ends_with("<- DMA is started: A to B, 2 units"), "{four}");
    assert!(lines[5].ends_with("<- takes it as rejected"), "{four}");
}

#[test]
fn each_weakened_protocol_fails_somewhere() {
    let mut scenes = vec![
        scenes::buffered(),
        scenes::two_honest(),
        scenes::attacked(),
        scenes::without_clamp(),
        scenes::on_two_cpus(scenes::two_honest()),
    ];
    scenes.push(scenes::readable_source());
    for entry in CATALOGUE.iter().filter(|entry| entry.lacks.is_some()) {
        let broken = |scene: &&Scene| {
            // Sizes without a clamp break every user-level method, so such scenes do not count.
            (scene.clamp || entry.name == "kernel-unchecked")
                && !entry.protocol.explore(scene, Bounds::FIRST_BREACH).breaches.is_empty()
        };
        assert!(scenes.iter().any(|scene| broken(&scene)), "{} holds everywhere", entry.name);
    }
}

#[test]
fn ring_and_enqcmd_hold_with_three_processes() {
    for name in ["enqcmd", "ring"] {
        let entry = find(name).expect("listed");
        for scene in [scenes::two_honest(), scenes::three_honest(), scenes::attacked()] {
            let found = entry.protocol.explore(&scene, Bounds::ALL);
            assert!(found.is_safe(), "{name}, {}: {:?}", scene.name, found.breaches.keys());
            println!("{name}, {}: {} states", scene.name, found.states);
        }
    }
}

#[test]
fn a_depth_limit_is_reported() {
    let scene = scenes::readable_source();
    let machine = Machine::new(&FOUR, &scene);
    let shallow = explore(&machine, Bounds { depth: Some(3), ..Bounds::ALL });
    assert_eq!((shallow.depth, shallow.complete, shallow.breaches.len()), (3, false, 0));
    let whole = explore(&machine, Bounds::ALL);
    assert!(whole.complete && whole.states > shallow.states);
    assert!(explore(&machine, Bounds::FIRST_BREACH).states < whole.states);
}

#[test]
fn programs_have_the_papers_lengths() {
    let keys = find("keys").expect("listed").protocol;
    assert_eq!(keys.program(0, scenes::WANTS[0]).len(), 4);
    assert_eq!(Protocol::program(&THREE, 0, scenes::WANTS[0]).len(), 3);
}
