//! Judges of the safety claims.
//!
//! ```text
//! claim ──► scenes ──► Exploration ──► holds in all: states counted; broken where it must be: moves counted ──► row
//! ```
//!
//! A safe protocol must be explored completely, with every honest process succeeding somewhere, and alone from every state. A
//! weakened protocol must fail. The two-CPU claim is in [`super::two_cpus`].

use crate::claims::Place;
use crate::judging::Finding;
use crate::paper::{Case, Judge, RunError};
use crate::verdict::{Basis, Verdict};

use super::explore::{Bounds, Exploration};
use super::machine::{Access, Kind, MINUS_ONE, PageTable, Protocol, Rights, Step, Transfer, shadow};
use super::protocols::keys::{self, Keys};
use super::protocols::shrimp1::mapped_out;
use super::protocols::{CATALOGUE, Entry, find};
use super::scenes::{self, WANTS, on_two_cpus};
use super::state_machine::{ALIASED_BYTES, DESCRIBED, DataPath, compared, transition};
use super::world::{Breach, Role, Scene};

/// The judges of all safety claims except the one on two CPUs.
pub const JUDGES: [Judge; 13] = [
    judge("markatos-figure-5", figure_5),
    judge("markatos-figure-6", figure_6),
    judge("markatos-five-access", five_access),
    judge("markatos-shrimp-1", shrimp_1),
    judge("markatos-shrimp-2", |case| judge_hook(case, "shrimp-2", &["shrimp-2-unmodified"])),
    judge("markatos-flash", |case| judge_hook(case, "flash", &["flash-unmodified"])),
    judge("markatos-pal", |case| judge_hook(case, "pal", &["pal-unmasked"])),
    judge("markatos-keys", by_keys),
    judge("markatos-extended-shadow", extended_shadow),
    judge("markatos-barriers", barriers),
    judge("markatos-state-machine", state_machine),
    judge("markatos-size", size),
    judge("markatos-contexts", contexts),
];

const fn judge(claim: &'static str, judge: fn(&Case<'_>) -> Result<Verdict, RunError>) -> Judge {
    Judge { claim, place: Place::Simulated, judge }
}

/// Number of states up to which progress is checked from each of them; the two-CPU claim does so for larger numbers.
const FEW: usize = 100_000;

/// The protocol with this name.
pub(super) fn named(name: &str) -> Result<&'static Entry, RunError> {
    find(name).ok_or_else(|| RunError::NoProtocol { name: name.to_owned() })
}

/// The scenes without shared access to a destination, simplest first.
pub fn private() -> Vec<Scene> {
    vec![
        scenes::alone(),
        scenes::two_honest(),
        scenes::attacked(),
        scenes::readable_source(),
        scenes::three_honest(),
        scenes::three_attacked(),
        scenes::there_and_back(scenes::two_honest()),
        scenes::there_and_back(scenes::attacked()),
    ]
}

/// Explores a protocol in scenes where it must be safe; records and returns the findings.
fn holds(finding: &mut Finding<'_>, entry: &Entry, scenes: &[Scene]) -> Vec<Exploration> {
    let explored: Vec<Exploration> =
        scenes.iter().map(|scene| entry.protocol.explore(scene, Bounds::ALL)).collect();
    let states: usize = explored.iter().map(|found| found.states).sum();
    finding.figure(format!("states of {}", entry.name), states as f64);
    for (scene, found) in scenes.iter().zip(&explored) {
        let honest = scene.processes.iter().filter(|process| matches!(process.role, Role::Honest(_))).count();
        let name = entry.name;
        let with = scene.name;
        if let Some((breach, moves)) = found.shortest(|_| true) {
            finding.check(false, format!("{name} with {with}: {breach}, after {} moves", moves.len()));
        } else if !found.complete || found.succeeded.len() < honest {
            finding.check(
                false,
                format!("{name} with {with}: exploration incomplete, or a process never succeeds"),
            );
        } else if found.states < FEW && entry.protocol.progress(scene).stuck.is_some() {
            finding.check(
                false,
                format!("{name} with {with}: from some state a process alone does not succeed"),
            );
        }
    }
    let words = format!("{} is safe in {} scenes, {states} states, all visited", entry.name, scenes.len());
    finding.check(explored.iter().all(Exploration::is_safe), words);
    explored
}

/// Explores a protocol in a scene that must break it.
fn breaks(finding: &mut Finding<'_>, entry: &Entry, scene: &Scene, looked_for: impl Fn(&Breach) -> bool) {
    let found = entry.protocol.explore(scene, Bounds::ALL);
    let lacks = entry.lacks.map_or(String::new(), |lacks| format!(", without {lacks},"));
    match found.shortest(looked_for) {
        Some((breach, moves)) => {
            let after = moves.len();
            let name = format!("moves to break {} with {}", entry.name, scene.name);
            finding.figure(name, after as f64);
            finding.check(true, format!("{}{lacks} breaks with {}: {breach}", entry.name, scene.name))
        }
        None => finding.check(false, format!("{}{lacks} with {} should break", entry.name, scene.name)),
    };
}

/// The verdict on a method that holds everywhere, and fails without its one condition.
fn judge_hook(case: &Case<'_>, name: &str, without: &[&str]) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    holds(&mut finding, named(name)?, &private());
    for name in without {
        breaks(&mut finding, named(name)?, &scenes::attacked(), |_| true);
        breaks(&mut finding, named(name)?, &scenes::two_honest(), |_| true);
    }
    Ok(explored(finding))
}

fn explored(finding: Finding<'_>) -> Verdict {
    finding.verdict(Place::Simulated, Basis::Explored)
}

/// Figure 5: from the attacker's C into the victim's B.
fn figure_5(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let into_b = |breach: &Breach| {
        matches!(breach, Breach::NobodyAsked(Transfer { source, destination, .. })
        if (source.0, destination.0) == (2, 1))
    };
    breaks(&mut finding, named("repeated-3")?, &scenes::attacked(), into_b);
    Ok(explored(finding))
}

/// Figure 6: the transfer starts, but its owner sees a rejection.
fn figure_6(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let rejected = |breach: &Breach| *breach == Breach::BelievedRejected(0);
    breaks(&mut finding, named("repeated-4")?, &scenes::readable_source(), rejected);
    let alone = named("repeated-4")?.protocol.explore(&scenes::attacked(), Bounds::ALL);
    if let Some((_, moves)) = alone.shortest(rejected) {
        let words = "beyond the paper: an attacker that shares nothing can do it too if the first answer is ignored, \
                              as in the figure's program";
        finding.figure("moves without the right to read the source", moves.len() as f64).check(true, words);
    }
    Ok(explored(finding))
}

fn five_access(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let five = named("repeated-5")?;
    holds(&mut finding, five, &private());
    let mixed = |breach: &Breach| matches!(breach, Breach::BelievedStarted(_) | Breach::BelievedRejected(_));
    breaks(&mut finding, five, &scenes::shared_destination(), mixed);
    breaks(&mut finding, five, &scenes::readable_destination(), mixed);
    finding.check(true, "beyond the paper: the right to read the destination suffices for the mix-up");
    breaks(&mut finding, named("repeated-5-unchecked")?, &scenes::attacked(), |_| true);
    Ok(explored(finding))
}

fn shrimp_1(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let found = holds(&mut finding, named("shrimp-1")?, &private());
    let mut transfers = found.iter().flat_map(|found| &found.transfers);
    let only = transfers.all(|transfer| transfer.destination == mapped_out(transfer.source));
    finding.check(only, "every transfer went from a page to its mapped-out page");
    let elsewhere = named("shrimp-1")?.protocol.explore(&scenes::shared_destination(), Bounds::ALL);
    let reached = elsewhere.transfers.contains(&Transfer::new(2, 1, 3));
    finding.check(!reached, "a process that asks for C to B, which are not mapped that way, never gets it");
    breaks(&mut finding, named("shrimp-1-split")?, &scenes::two_honest(), |_| true);
    Ok(explored(finding))
}

fn by_keys(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    holds(&mut finding, named("keys")?, &private());
    for name in ["keys-unchecked", "keys-guessed"] {
        breaks(&mut finding, named(name)?, &scenes::attacked(), |_| true);
    }
    let protocol = Keys { compares: true, guessed: true };
    let reset = protocol.reset(&[]);
    let tries = 1u16 << keys::KEY_BITS;
    let changes = |key: &u16| {
        let mut engine = reset;
        protocol.arrive(&mut engine, Access::store(shadow(WANTS[1].source), *key << 4));
        engine != reset
    };
    let right = (0..tries).filter(changes).count();
    finding.figure("keys that open a context", right as f64).check(
        right == 1,
        format!("one of {tries} keys opens a context: probability 2^-{} for a guess", keys::KEY_BITS),
    );
    let shown = context_statuses(protocol);
    finding.check(
        shown == [MINUS_ONE, 2, 1, 0],
        format!("a context reads -1 after half an initiation, then {:?} as the units are moved", &shown[1..]),
    );
    Ok(explored(finding))
}

/// The status of a context after half an initiation, after a whole one, and as its units are moved.
fn context_statuses(protocol: Keys) -> Vec<u16> {
    let mut engine = protocol.reset(&[]);
    let program: Vec<_> = protocol.program(0, WANTS[0]);
    let mut shown = Vec::new();
    for skipped in [1, 0] {
        for step in program.iter().skip(skipped) {
            if let Step::Access(access, _) = step {
                let answer = protocol.arrive(&mut engine, *access);
                shown.extend((access.kind == Kind::Load).then_some(answer.word));
            }
        }
    }
    while let Some(idle) = protocol.idle(&engine).pop() {
        engine = idle.engine;
        shown.push(engine.left(0));
    }
    shown
}

fn extended_shadow(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let mut scenes = private();
    scenes.push(scenes::shared_destination());
    for (name, without) in
        [("extended-contexts", "extended-contexts-no-ids"), ("extended", "extended-no-ids")]
    {
        holds(&mut finding, named(name)?, &scenes);
        breaks(&mut finding, named(without)?, &scenes::attacked(), |_| true);
    }
    Ok(explored(finding))
}

fn barriers(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    for name in ["repeated-5", "repeated-5-every-barrier"] {
        let entry = named(name)?;
        holds(
            &mut finding,
            entry,
            &[scenes::buffered(), scenes::buffered_attacked(), on_two_cpus(scenes::buffered_attacked())],
        );
        let never = entry.protocol.progress(&scenes::buffered()).starved;
        finding.check(
            never.is_none(),
            format!("{name}: alone, no order of the write buffer keeps it from succeeding"),
        );
    }
    let without = named("repeated-5-no-barriers")?;
    let misread = |breach: &Breach| *breach == Breach::BelievedStarted(0);
    breaks(&mut finding, without, &scenes::buffered(), misread);
    let never = without.protocol.progress(&scenes::buffered()).starved;
    let round = never.as_ref().map_or(0, Vec::len);
    finding
        .figure("moves of a round in which it is rejected for ever", round as f64)
        .check(never.is_some(), "without barriers a single process can be rejected forever");
    Ok(explored(finding))
}

fn state_machine(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let as_described = |(at, is_load, equal, to, status): &(_, bool, bool, _, u16)| {
        let done = transition(*at, *is_load, *equal);
        done.to == *to && done.status == *status
    };
    let met = DESCRIBED.iter().filter(|row| as_described(row)).count();
    finding
        .figure("transitions as described", met as f64)
        .check(met == 20, format!("{met} of 5 states x 2 accesses x 2 matches go where section 4.1 says"));
    let mut path = DataPath::default();
    path.transact(u32::MAX, false);
    let twelve = path.destination() == 0xfff && compared(0x7ff) == 0 && compared(1 << 11) == 1;
    finding.check(twelve, "registers keep bits 22 to 11");
    finding.check(
        compared(0x4000) == compared(0x4000 + ALIASED_BYTES),
                "addresses 8 MiB apart compare equal; there are five states, though the text says four; twelve of the lower 23 bits \
                 are compared, though footnote 9 says the twelve highest of 27",
    );
    breaks(&mut finding, named("repeated-5-aliased")?, &scenes::attacked(), |_| true);
    let leaks = |breach: &Breach| matches!(breach, Breach::NobodyAsked(transfer) if transfer.source.0 == 0);
    breaks(&mut finding, named("repeated-5-aliased")?, &scenes::attacked(), leaks);
    Ok(explored(finding))
}

fn size(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    let past = |breach: &Breach| matches!(breach, Breach::BeyondRights(_));
    holds(&mut finding, named("kernel")?, &[scenes::without_clamp()]);
    breaks(&mut finding, named("kernel-unchecked")?, &scenes::without_clamp(), past);
    for name in
        ["shrimp-1", "shrimp-2", "flash", "pal", "keys", "extended-contexts", "extended", "repeated-5"]
    {
        let entry = named(name)?;
        let found = entry.protocol.explore(&scenes::without_clamp(), Bounds::ALL);
        let runs_past = found.shortest(past).map(|(breach, moves)| (breach, moves.len()));
        let clamped = entry.protocol.explore(&scenes::attacked(), Bounds::ALL).is_safe();
        let words = match runs_past {
            Some((breach, after)) => format!("{name}: {breach}, after {after} moves; with a clamp never"),
            None => format!("{name}: no transfer runs past its owner's pages"),
        };
        finding.check(runs_past.is_some() && clamped, words);
    }
    for name in ["enqcmd", "ring"] {
        holds(&mut finding, named(name)?, &[scenes::without_clamp()]);
    }
    Ok(explored(finding))
}

fn contexts(case: &Case<'_>) -> Result<Verdict, RunError> {
    let mut finding = Finding::of(case.claim);
    for name in ["keys", "extended-contexts", "extended"] {
        holds(&mut finding, named(name)?, &[scenes::three_honest(), scenes::three_attacked()]);
    }
    finding.check(true, "with two contexts the third process uses the kernel");
    let needs = |name: &'static str, table: &PageTable| {
        named(name).map(|entry| entry.protocol.is_allowed(0, WANTS[0], table))
    };
    let read_only = PageTable::of(&[(0, Rights::READ), (1, Rights::BOTH)]);
    let write_only = PageTable::of(&[(0, Rights::READ), (1, Rights::WRITE)]);
    let mut words = Vec::new();
    for entry in CATALOGUE.iter().filter(|entry| entry.lacks.is_none()) {
        words.push((entry.name, needs(entry.name, &read_only)?, needs(entry.name, &write_only)?));
    }
    let refused = |pick: fn(&(&'static str, bool, bool)) -> bool| {
        words.iter().filter(|row| !pick(row)).map(|row| row.0).collect::<Vec<_>>()
    };
    let source = refused(|row| row.1);
    let destination = refused(|row| row.2 || !row.1);
    finding.check(
        source == ["shrimp-1", "keys"],
        format!("the right to read the source does not suffice for: {}", source.join(", ")),
    );
    finding.check(
        destination == ["repeated-5", "repeated-5-every-barrier"],
        format!("the right to write the destination does not suffice for: {}", destination.join(", ")),
    );
    Ok(explored(finding))
}
