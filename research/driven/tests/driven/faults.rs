//! Faults in the device and its bus: each transfer ends once, other channels continue, and a reset recovers channels.

use core::time::Duration;

use fastrand::Rng;
use memferry_conformance::EngineFixture;
use memferry_driven::SdmaOptions;
use memferry_models::sdma::{Config, Timing};
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, EngineKind, Failure, Operation, Outcome, Region,
};

use super::{BASE, Fixture};

#[test]
fn a_bus_error_fails_only_its_transfer() {
    let mut fixture = Fixture::new(2, SdmaOptions::default());
    let bad = fixture.copy(0, 4096);
    let good = fixture.copy(1, 4096);
    let Operation::Copy { destination, .. } = bad.operation() else { panic!("not a copy") };
    let address = destination.memory().address();
    fixture.device.with(|device| device.faults().bus_error_at(address + 1024..=address + 1027));
    let tickets = [bad, good].map(|descriptor| fixture.engine.post(descriptor).expect("free"));
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    assert_eq!(
        ends[0],
        EngineCompletion {
            ticket: tickets[0],
            outcome: Outcome {
                result: Err(Failure::MemoryFault),
                bytes_done: 0,
                value: 0,
                engine: EngineKind::Simulated
            }
        }
    );
    assert_eq!(
        ends[1],
        EngineCompletion {
            ticket: tickets[1],
            outcome: Outcome { result: Ok(()), bytes_done: 4096, value: 0, engine: EngineKind::Simulated }
        }
    );
    fixture.device.with(|device| device.faults().clear());
    let again = fixture.copy(0, 64);
    fixture.engine.post(again).expect("free again");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()), "the channel can be used again");
}

#[test]
fn a_lost_interrupt_times_out() {
    let mut fixture =
        Fixture::new(1, SdmaOptions { patience: Duration::from_millis(5), ..SdmaOptions::default() });
    fixture.device.with(|device| device.faults().lose_interrupts(1));
    let lost = fixture.copy(0, 4096);
    fixture.engine.post(lost).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome.result), (1, Err(Failure::EngineTimedOut)));
    let next = fixture.copy(0, 4096);
    fixture.engine.post(next).expect("free again");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
}

#[test]
fn a_stuck_channel_does_not_stop_others() {
    let mut fixture =
        Fixture::new(2, SdmaOptions { patience: Duration::from_millis(5), ..SdmaOptions::default() });
    fixture.device.with(|device| device.faults().stick(0));
    let stuck = fixture.copy(0, 4096);
    let good = fixture.copy(1, 4096);
    for descriptor in [stuck, good] {
        fixture.engine.post(descriptor).expect("free");
    }
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    assert!(
        matches!(ends[0].outcome.result, Err(Failure::EngineTimedOut | Failure::ChannelFaulted)),
        "{ends:?}"
    );
    assert_eq!(ends[1].outcome.result, Ok(()));
}

#[test]
fn random_faults_end_each_transfer_once() {
    const CHANNELS: u32 = 4;
    for seed in 0..150 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let patience = Duration::from_millis(5);
        let options = SdmaOptions { patience, chunk_bytes: 256, ..SdmaOptions::default() };
        let mut fixture = Fixture::new(CHANNELS, options);
        let mut posted = Vec::new();
        for channel in 0..CHANNELS {
            let length = 1 + rng.u64(..2000) as usize;
            let source = fixture.allocate(&vec![7; length]);
            let room = fixture.allocate(&vec![0; length + 128]);
            let destination = Region::new(room, 64, length as u64).expect("inside");
            let source = Region::new(source, 0, length as u64).expect("inside");
            let copy = Operation::Copy { source, destination, length: length as u64 };
            let descriptor = Descriptor::new(channel, copy).expect("inside");
            posted.push((fixture.engine.post(descriptor).expect("free"), room, length));
        }
        let address = BASE + rng.u64(..fixture.used as u64) as u32;
        let lost = 1 + rng.u64(..3) as u32;
        let stuck = rng.u64(..4) as usize;
        let kind = rng.u64(..4);
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
            let found = fixture.contents(room);
            let done = end.outcome.bytes_done as usize;
            assert!(found[64..64 + done].iter().all(|byte| *byte == 7), "{end:?}: reported bytes are done");
            assert!(
                found[..64].iter().chain(&found[64 + length..]).all(|byte| *byte == 0),
                "{end:?}: outside"
            );
            assert_eq!(end.outcome.result.is_ok(), done == *length, "{end:?} of {length}");
        }
    }
}

#[test]
fn a_reset_recovers_failed_channels() {
    // Reads are so slow that a long transfer is overdue with a read in flight, and cannot drain in time.
    let timing = Timing { read_latency: 100_000_000, ..Timing::default() };
    let patience = Duration::from_micros(350);
    let drain = Duration::from_micros(1);
    let options = SdmaOptions { patience, drain, ..SdmaOptions::default() };
    let mut fixture = Fixture::over(Config { timing, ..Config::default() }, 2, options);
    let failing = fixture.copy(0, 4096);
    fixture.engine.post(failing).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Err(Failure::ChannelFaulted));
    let again = fixture.copy(0, 64);
    fixture.engine.post(again).expect("the engine accepts posts to a failed channel");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Err(Failure::ChannelFaulted), "it stays faulted");

    let running = fixture.copy(1, 4096);
    fixture.engine.post(running).expect("free");
    fixture.engine.ring_doorbell();
    let now = fixture.now;
    let mut completions = Vec::new();
    fixture.engine.poll(now, &mut completions);
    assert!(completions.is_empty(), "the other channel is running");
    fixture.engine.reset().expect("the device resets");
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome.result), (1, Err(Failure::EngineReset)));
    for channel in 0..2 {
        let copy = fixture.copy(channel, 64);
        fixture.engine.post(copy).expect("free");
    }
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert!(ends.len() == 2 && ends.iter().all(|end| end.outcome.result == Ok(())), "{ends:?}");
}
