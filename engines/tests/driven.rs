//! The SDMA's driver meets its model: as an engine they keep the contract, with and without faults.
//!
//! ```text
//! SdmaEngine ─ driver ─ registers ─ model ─ RAM ──► engine_suite, in virtual time
//! the same with bus errors, lost interrupts, stuck channels ──► that transfer ends with an error, the others do not
//! ```

use core::time::Duration;

use memferry_clock::Instant;
use memferry_conformance::{EngineFixture, EngineSetup, engine_suite};
use memferry_engines::driven::{BusMemory, SdmaEngine, SdmaOptions, Shared};
use memferry_models::Ram;
use memferry_models::sdma::{Config, Sdma};
use memferry_transfer::{Descriptor, Engine, Failure, Finished, Operation, Pattern, Region};

const BASE: u32 = 0x8000_0000;
const RAM_BYTES: usize = 1 << 20;

type Modelled = Sdma<Ram>;

struct Fixture {
    engine: SdmaEngine<Modelled>,
    device: Shared<Modelled>,
    used: usize,
}

impl Fixture {
    fn new(channels: u32, options: SdmaOptions) -> Self {
        let device = Shared::new(Sdma::new(Config::default(), Ram::new(BASE, vec![0; RAM_BYTES])));
        let engine = SdmaEngine::new(device.clone(), channels, options).expect("the model resets");
        Self { engine, device, used: 0 }
    }

    /// Polls until nothing is left to do.
    fn finish(&mut self) -> Vec<Finished> {
        let (mut now, mut finished) = (Instant::ORIGIN, Vec::new());
        self.engine.poll(now, &mut finished);
        while let Some(wake) = self.engine.next_wake() {
            now = now.max(wake);
            self.engine.poll(now, &mut finished);
        }
        finished
    }

    /// A copy of `length` bytes between memories made for it.
    fn copy(&mut self, channel: u32, length: usize) -> Descriptor<BusMemory> {
        let (source, destination) = (self.allocate(&vec![7; length]), self.allocate(&vec![0; length]));
        let region = |memory| Region::new(memory, 0, length as u64).expect("inside");
        let (source, destination) = (region(source), region(destination));
        Descriptor::new(channel, Operation::Copy { source, destination, length: length as u64 })
            .expect("inside")
    }
}

impl EngineFixture for Fixture {
    type Memory = BusMemory;
    type Engine = SdmaEngine<Modelled>;

    fn engine(&mut self) -> &mut Self::Engine {
        &mut self.engine
    }

    fn allocate(&mut self, bytes: &[u8]) -> BusMemory {
        let at = self.used;
        self.used = (at + bytes.len()).next_multiple_of(64);
        self.device.with(|device| device.bus_mut().bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes));
        BusMemory::new(BASE + at as u32, bytes.len() as u64).expect("in 32 bits")
    }

    fn contents(&self, memory: &BusMemory) -> Vec<u8> {
        let at = (memory.address() - BASE) as usize;
        let length = memferry_transfer::Memory::length(memory) as usize;
        self.device.with(|device| device.bus().bytes()[at..at + length].to_vec())
    }

    fn is_same(&self, one: &BusMemory, other: &BusMemory) -> bool {
        one == other
    }
}

#[test]
fn the_driver_on_the_model_passes_the_suite() {
    engine_suite(|setup: EngineSetup| {
        let chunk_bytes = setup.chunk_bytes;
        Fixture::new(setup.channels, SdmaOptions { chunk_bytes, ..SdmaOptions::default() })
    });
}

#[test]
fn memory_that_answers_with_errors_faults_that_transfer_only() {
    let mut fixture = Fixture::new(2, SdmaOptions::default());
    let (bad, good) = (fixture.copy(0, 4096), fixture.copy(1, 4096));
    let Operation::Copy { destination, .. } = bad.operation() else { panic!("it is a copy") };
    let address = destination.memory().address();
    fixture.device.with(|device| device.faults().bus_error_at(address + 1024..=address + 1027));
    let tickets = [bad, good].map(|descriptor| fixture.engine.post(descriptor).expect("free"));
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    assert_eq!(
        ends[0],
        Finished { ticket: tickets[0], outcome: Err(Failure::MemoryFault), bytes_done: 0, value: 0 }
    );
    assert_eq!(ends[1], Finished { ticket: tickets[1], outcome: Ok(()), bytes_done: 4096, value: 0 });
    fixture.device.with(|device| device.faults().clear());
    let again = fixture.copy(0, 64);
    fixture.engine.post(again).expect("free again");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome, Ok(()), "the channel serves on");
}

#[test]
fn a_lost_interrupt_times_out_and_the_channel_recovers() {
    let mut fixture =
        Fixture::new(1, SdmaOptions { patience: Duration::from_millis(5), ..SdmaOptions::default() });
    fixture.device.with(|device| device.faults().lose_interrupts(1));
    let lost = fixture.copy(0, 4096);
    fixture.engine.post(lost).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome), (1, Err(Failure::EngineTimedOut)));
    let next = fixture.copy(0, 4096);
    fixture.engine.post(next).expect("free again");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome, Ok(()));
}

#[test]
fn a_stuck_channel_is_stopped_and_others_go_on() {
    let mut fixture =
        Fixture::new(2, SdmaOptions { patience: Duration::from_millis(5), ..SdmaOptions::default() });
    fixture.device.with(|device| device.faults().stick(0));
    let (stuck, good) = (fixture.copy(0, 4096), fixture.copy(1, 4096));
    for descriptor in [stuck, good] {
        fixture.engine.post(descriptor).expect("free");
    }
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    assert!(matches!(ends[0].outcome, Err(Failure::EngineTimedOut | Failure::ChannelFaulted)), "{ends:?}");
    assert_eq!(ends[1].outcome, Ok(()));
}

#[test]
fn patterns_wider_than_a_colour_are_written_byte_by_byte() {
    let mut fixture = Fixture::new(1, SdmaOptions { chunk_bytes: 16, ..SdmaOptions::default() });
    let memory = fixture.allocate(&[0; 64]);
    let destination = Region::new(memory, 1, 40).expect("inside");
    let fill = Operation::Fill { destination, length: 40, pattern: Pattern::Word(0x0403_0201) };
    fixture.engine.post(Descriptor::new(0, fill).expect("inside")).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].bytes_done, 40);
    let expected: Vec<u8> = [0].into_iter().chain((0..40).map(|at| 1 + at % 4)).chain([0; 23]).collect();
    assert_eq!(fixture.contents(&memory), expected);
}

/// Splitmix64.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)) % bound
    }
}

#[test]
fn whatever_breaks_each_transfer_ends_once_and_touches_nothing_but_its_destination() {
    const CHANNELS: u32 = 4;
    for seed in 0..150 {
        println!("seed {seed}");
        let mut noise = Noise(seed);
        let patience = Duration::from_millis(5);
        let options = SdmaOptions { patience, chunk_bytes: 256, ..SdmaOptions::default() };
        let mut fixture = Fixture::new(CHANNELS, options);
        let mut posted = Vec::new();
        for channel in 0..CHANNELS {
            let length = 1 + noise.below(2000) as usize;
            let (source, room) =
                (fixture.allocate(&vec![7; length]), fixture.allocate(&vec![0; length + 128]));
            let destination = Region::new(room, 64, length as u64).expect("inside");
            let source = Region::new(source, 0, length as u64).expect("inside");
            let copy = Operation::Copy { source, destination, length: length as u64 };
            let descriptor = Descriptor::new(channel, copy).expect("inside");
            posted.push((fixture.engine.post(descriptor).expect("free"), room, length));
        }
        let address = BASE + noise.below(fixture.used as u64) as u32;
        let (lost, stuck, kind) = (1 + noise.below(3) as u32, noise.below(4) as usize, noise.below(4));
        fixture.device.with(|device| match kind {
            0 => device.faults().bus_error_at(address..=address + 8),
            1 => device.faults().lose_interrupts(lost),
            2 => device.faults().stick(stuck),
            _ => {}
        });
        fixture.engine.ring_doorbell();
        let mut ends = fixture.finish();
        ends.sort_by_key(|end| end.ticket);
        assert_eq!(
            ends.iter().map(|end| end.ticket).collect::<Vec<_>>(),
            posted.iter().map(|post| post.0).collect::<Vec<_>>()
        );
        for (end, (_, room, length)) in ends.iter().zip(&posted) {
            let (found, done) = (fixture.contents(room), end.bytes_done as usize);
            assert!(found[64..64 + done].iter().all(|byte| *byte == 7), "{end:?}: what is told is done");
            assert!(
                found[..64].iter().chain(&found[64 + length..]).all(|byte| *byte == 0),
                "{end:?}: outside"
            );
            assert_eq!(end.outcome.is_ok(), done == *length, "{end:?} of {length}");
        }
    }
}
