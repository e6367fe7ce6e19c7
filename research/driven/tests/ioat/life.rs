//! Random sequences of posts, suspensions, cancels and resets, with lost interrupts and completions. Each transfer ends
//! once, and the bytes it reports are done.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, Completion, IoatOptions};
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, Failure, Lists, Operation, Pattern, Region, Segment, Ticket,
};

use super::machine::Fixture;

/// Content of a destination before and after its transfer.
struct Expected {
    destination: BusMemory,
    after: Vec<u8>,
    before: Vec<u8>,
}

fn bytes(rng: &mut Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.u64(..256) as u8).collect()
}

/// A random operation; its destination is newly allocated and holds random bytes.
fn draft(fixture: &mut Fixture, rng: &mut Rng) -> (Operation<Region<BusMemory>>, Expected) {
    let pieces = 1 + rng.u64(..40) as usize;
    let length = 4 * pieces * (1 + rng.u64(..12) as usize);
    let sources: Vec<Vec<u8>> = (0..1 + rng.u64(..11)).map(|_| bytes(rng, length)).collect();
    let before = bytes(rng, length);
    let destination = fixture.allocate(&before);
    let region = |memory, offset, length| Region::new(memory, offset, length).expect("inside");
    let total = length as u64;
    let places: Vec<BusMemory> = sources.iter().map(|source| fixture.allocate(source)).collect();
    let to = region(destination, 0, total);
    let (operation, after) = match rng.u64(..4) {
        0 => (
            Operation::Copy { source: region(places[0], 0, total), destination: to, length: total },
            sources[0].clone(),
        ),
        1 => {
            let pattern = Pattern::Word(0x0102_0304);
            let after = [4, 3, 2, 1].into_iter().cycle().take(length).collect();
            (Operation::Fill { destination: to, length: total, pattern }, after)
        }
        2 => {
            let from = places.iter().map(|place| region(*place, 0, total)).collect();
            let after =
                (0..length).map(|at| sources.iter().fold(0, |byte, source| byte ^ source[at])).collect();
            (Operation::Xor { sources: from, destination: to, length: total }, after)
        }
        _ => {
            let piece = total / pieces as u64;
            let segment =
                |index: u64| Segment { place: region(places[0], index * piece, piece), length: piece };
            let source = (0..pieces as u64).map(segment).collect();
            let lists = Lists { source, destination: [Segment { place: to, length: total }].into() };
            (Operation::ScatterGather { lists: Arc::new(lists) }, sources[0].clone())
        }
    };
    (operation, Expected { destination, after, before })
}

fn check(fixture: &Fixture, end: &EngineCompletion, expected: &Expected) {
    let done = end.outcome.bytes_done as usize;
    let found = fixture.contents(&expected.destination);
    assert!(found[..done] == expected.after[..done], "{end:?}: reported bytes are done");
    match end.outcome.result {
        Ok(()) => assert_eq!(done, found.len(), "{end:?}"),
        // A cancel takes effect between descriptors; a reset or time-out may move more than it reports.
        Err(Failure::Cancelled) => {
            assert!(found[done..] == expected.before[done..], "{end:?}: no byte beyond is written")
        }
        Err(Failure::EngineReset | Failure::EngineTimedOut) => {}
        Err(failure) => panic!("{failure:?} without a fault that causes it"),
    }
}

#[test]
fn random_calls_end_each_transfer_once() {
    for seed in 0..150 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let completion = match seed % 3 {
            0 => Completion::Poll(Duration::from_micros(1)),
            _ => Completion::Interrupt,
        };
        let patience = Duration::from_micros(200);
        let chunk_bytes = 8 + 8 * rng.u64(..20);
        let options = IoatOptions { completion, patience, chunk_bytes, ..IoatOptions::default() };
        let mut fixture = Fixture::with_rings(4 * 64 * (5 + rng.u64(..12)), 4, options);
        let mut waiting: BTreeMap<Ticket, Expected> = BTreeMap::new();
        let mut completions = Vec::new();
        for _ in 0..200 {
            let channel = rng.u64(..4) as u32;
            match rng.u64(..16) {
                0..=3 if fixture.used < 1 << 19 => {
                    let (operation, expected) = draft(&mut fixture, &mut rng);
                    if let Ok(ticket) =
                        fixture.engine.post(Descriptor::new(channel, operation).expect("inside"))
                    {
                        waiting.insert(ticket, expected);
                    }
                }
                4 | 5 => fixture.engine.ring_doorbell(),
                6 => fixture.engine.set_turns(channel, 0),
                7 | 8 => fixture.engine.set_turns(channel, 1),
                9 => {
                    let ticket = waiting.keys().find(|ticket| ticket.channel == channel);
                    ticket.copied().into_iter().for_each(|ticket| fixture.engine.cancel(ticket));
                }
                10 if rng.u64(..8) == 0 => fixture.engine.reset().expect("it resets"),
                11 if rng.u64(..4) == 0 => fixture.device.with(|device| {
                    device.faults().lose_interrupts(2);
                    device.faults().lose_completions(3);
                }),
                _ => (0..rng.u64(..30)).for_each(|_| {
                    fixture.turn(&mut completions);
                }),
            }
            for end in completions.drain(..) {
                check(&fixture, &end, &waiting.remove(&end.ticket).expect("it ends once"));
            }
        }
        (0..4).for_each(|channel| fixture.engine.set_turns(channel, 1));
        fixture.engine.ring_doorbell();
        for end in fixture.finish() {
            check(&fixture, &end, &waiting.remove(&end.ticket).expect("it ends once"));
        }
        assert!(waiting.is_empty(), "{:?} never ended", waiting.keys());
        fixture.assert_no_complaints();
    }
}
