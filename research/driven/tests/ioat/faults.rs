//! Faults in the device and its bus: each transfer ends once, other channels continue, and a reset recovers channels.

use core::time::Duration;

use fastrand::Rng;
use memferry_conformance::EngineFixture;
use memferry_driven::IoatOptions;
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, EngineKind, Failure, Operation, Outcome, Region,
};

use super::machine::{BASE, Fixture};

/// Short patience, and chunks small enough for a transfer to fail midway.
fn options() -> IoatOptions {
    IoatOptions { chunk_bytes: 1024, patience: Duration::from_millis(5), ..IoatOptions::default() }
}

fn destination(descriptor: &Descriptor<memferry_driven::BusMemory>) -> u64 {
    let Operation::Copy { destination, .. } = descriptor.operation() else { panic!("not a copy") };
    u64::from(destination.memory().address())
}

/// Asserts that the channel can be used again.
fn serves(fixture: &mut Fixture, channel: u32) {
    let again = fixture.copy(channel, 4096);
    fixture.engine.post(again).expect("free again");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome.result, ends[0].outcome.bytes_done), (1, Ok(()), 4096));
    fixture.assert_no_complaints();
}

#[test]
fn a_bus_error_fails_only_its_transfer() {
    let mut fixture = Fixture::new(2, options());
    let bad = fixture.copy(0, 4096);
    let good = fixture.copy(1, 4096);
    let address = destination(&bad);
    fixture.device.with(|device| device.faults().bus_error_at(address + 2050..=address + 2051));
    let tickets = [bad, good].map(|descriptor| fixture.engine.post(descriptor).expect("free"));
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    let failed = EngineCompletion {
        ticket: tickets[0],
        outcome: Outcome {
            result: Err(Failure::MemoryFault),
            bytes_done: 2048,
            value: 0,
            engine: EngineKind::Simulated,
        },
    };
    assert_eq!(
        ends,
        [
            failed,
            EngineCompletion {
                ticket: tickets[1],
                outcome: Outcome {
                    result: Ok(()),
                    bytes_done: 4096,
                    value: 0,
                    engine: EngineKind::Simulated
                }
            }
        ]
    );
    fixture.device.with(|device| device.faults().clear());
    serves(&mut fixture, 0);
}

#[test]
fn a_bad_descriptor_fails_its_transfer() {
    let mut fixture = Fixture::new(1, options());
    fixture.device.with(|device| device.faults().spoil_descriptors(1));
    let copy = fixture.copy(0, 4096);
    fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!(
        (ends.len(), ends[0].outcome.result, ends[0].outcome.bytes_done),
        (1, Err(Failure::ChannelFaulted), 0)
    );
    serves(&mut fixture, 0);
}

#[test]
fn a_lost_interrupt_costs_only_time() {
    let mut fixture = Fixture::new(1, options());
    fixture.device.with(|device| device.faults().lose_interrupts(1));
    let copy = fixture.copy(0, 4096);
    fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].outcome.result, ends[0].outcome.bytes_done), (1, Ok(()), 4096));
    assert!(fixture.now.nanoseconds() > 5_000_000, "nothing reported the end earlier");
    serves(&mut fixture, 0);
    assert!(fixture.now.nanoseconds() < 6_000_000, "the channel interrupts again");
}

#[test]
fn lost_reports_do_not_lose_the_transfer() {
    let mut fixture = Fixture::new(1, options());
    fixture.device.with(|device| {
        device.faults().lose_interrupts(1);
        device.faults().lose_completions(4);
    });
    let copy = fixture.copy(0, 4096);
    fixture.engine.post(copy).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()), "the channel's status shows the end");
    serves(&mut fixture, 0);
}

#[test]
fn a_device_without_reports_is_slow() {
    let mut fixture = Fixture::new(1, options());
    fixture.device.with(|device| {
        device.faults().lose_interrupts(u32::MAX);
        device.faults().lose_completions(u32::MAX);
    });
    let copy = fixture.copy(0, 4096);
    for _ in 0..100 {
        fixture.engine.post(copy.clone()).expect("free");
        fixture.engine.ring_doorbell();
        assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
    }
    fixture.assert_no_complaints();
}

#[test]
fn a_stuck_channel_times_out_and_is_reset() {
    let mut fixture = Fixture::new(2, options());
    fixture.device.with(|device| device.faults().stick(0));
    let stuck = fixture.copy(0, 4096);
    let good = fixture.copy(1, 4096);
    for descriptor in [stuck, good] {
        fixture.engine.post(descriptor).expect("free");
    }
    fixture.engine.ring_doorbell();
    let mut ends = fixture.finish();
    ends.sort_by_key(|end| end.ticket);
    assert_eq!((ends[0].outcome.result, ends[1].outcome.result), (Err(Failure::EngineTimedOut), Ok(())));
    fixture.device.with(|device| device.faults().clear());
    serves(&mut fixture, 0);
}

#[test]
fn a_wedged_channel_is_faulted() {
    let mut fixture = Fixture::new(2, options());
    fixture.device.with(|device| device.faults().wedge(0));
    let wedged = fixture.copy(0, 4096);
    fixture.engine.post(wedged).expect("free");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Err(Failure::ChannelFaulted));
    let again = fixture.copy(0, 64);
    fixture.engine.post(again).expect("the engine accepts posts to a failed channel");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Err(Failure::ChannelFaulted), "it stays faulted");
    fixture.engine.reset().expect_err("it is still wedged");
    fixture.device.with(|device| device.faults().clear());

    let running = fixture.copy(1, 100_000);
    fixture.engine.post(running).expect("free");
    fixture.engine.ring_doorbell();
    let now = fixture.now;
    let mut completions = Vec::new();
    fixture.engine.poll(now, &mut completions);
    assert!(completions.is_empty(), "the other channel is running");
    let waiting = fixture.copy(0, 64);
    let waiting = fixture.engine.post(waiting).expect("free");
    fixture.engine.reset().expect("the device resets");
    let wake = fixture.engine.next_wake().expect("a completion is pending");
    fixture.engine.poll(wake, &mut completions);
    assert_eq!((completions.len(), completions[0].outcome.result), (1, Err(Failure::EngineReset)));
    fixture.engine.ring_doorbell();
    let ends = fixture.finish();
    assert_eq!((ends.len(), ends[0].ticket, ends[0].outcome.result), (1, waiting, Ok(())));
    serves(&mut fixture, 1);
}

#[test]
fn random_faults_end_each_transfer_once() {
    const CHANNELS: u32 = 4;
    for seed in 0..200 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let mut fixture = Fixture::new(CHANNELS, IoatOptions { chunk_bytes: 256, ..options() });
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
        let address = u64::from(BASE) + rng.u64(..fixture.used as u64);
        let lost = 1 + rng.u64(..3) as u32;
        let channel = rng.u64(..4) as usize;
        let kind = rng.u64(..7);
        fixture.device.with(|device| match kind {
            0 => device.faults().bus_error_at(address..=address + 8),
            1 => device.faults().lose_interrupts(lost),
            2 => device.faults().stick(channel),
            3 => device.faults().wedge(channel),
            4 => device.faults().spoil_descriptors(lost),
            5 => device.faults().lose_completions(lost),
            _ => {}
        });
        fixture.engine.ring_doorbell();
        if rng.u64(..3) == 0 {
            fixture.engine.cancel(posted[channel].0);
        }
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
            let outside = found[..64].iter().chain(&found[64 + length..]);
            assert!(outside.into_iter().all(|byte| *byte == 0), "{end:?}: outside");
            assert_eq!(end.outcome.result.is_ok(), done == *length, "{end:?} of {length}");
        }
    }
}
