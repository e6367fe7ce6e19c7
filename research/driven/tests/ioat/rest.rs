//! Suspended channels: they stop at a descriptor's end and move nothing until resumed, whatever else ends meanwhile.

use core::time::Duration;

use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, IoatOptions};
use memferry_transfer::{Engine, EngineCompletion, Failure};

use super::machine::{Fixture, copy_between};

const CHUNK: u64 = 1024;

fn fixture() -> Fixture {
    Fixture::new(4, IoatOptions { chunk_bytes: CHUNK, ..IoatOptions::default() })
}

impl Fixture {
    /// Polls until a suspended channel is at rest; returns the time that took.
    fn until_at_rest(&mut self, channel: u32, completions: &mut Vec<EngineCompletion>) -> Duration {
        let started = self.now;
        while !self.engine.is_at_rest(channel) {
            assert!(self.turn(completions), "the channel never comes to rest");
        }
        Duration::from_nanos(self.now.nanoseconds() - started.nanoseconds())
    }

    /// Lets time pass while polling.
    fn pass(&mut self, time: Duration, completions: &mut Vec<EngineCompletion>) {
        let until = self.now.after(time);
        while self.engine.next_wake().is_some_and(|wake| wake <= until) {
            self.turn(completions);
        }
        self.now = until;
        self.engine.poll(until, completions);
    }

    /// Starts a copy; returns its source and destination.
    fn running(&mut self, channel: u32, length: usize) -> (BusMemory, BusMemory) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + 1) as u8 | 1).collect();
        let from = self.allocate(&bytes);
        let to = self.allocate(&vec![0; length]);
        self.engine.post(copy_between(channel, from, to)).expect("free");
        self.engine.ring_doorbell();
        (from, to)
    }

    fn moved(&self, memory: &BusMemory) -> usize {
        self.contents(memory).iter().filter(|byte| **byte != 0).count()
    }
}

#[test]
fn a_suspended_channel_rests_and_resumes() {
    let mut fixture = fixture();
    let (from, to) = fixture.running(2, 100_000);
    let mut completions = Vec::new();
    fixture.pass(Duration::from_micros(10), &mut completions);
    fixture.engine.set_turns(2, 0);
    let took = fixture.until_at_rest(2, &mut completions);
    assert!(took < Duration::from_micros(5), "{took:?} for at most two descriptors of {CHUNK} bytes");
    let moved = fixture.moved(&to);
    assert!(moved > 0 && moved < 100_000 && moved.is_multiple_of(CHUNK as usize), "{moved} bytes");
    fixture.pass(Duration::from_secs(10), &mut completions);
    assert_eq!((fixture.moved(&to), fixture.engine.next_wake()), (moved, None));
    assert!(completions.is_empty() && fixture.engine.is_at_rest(2));
    fixture.engine.set_turns(2, 1);
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
    assert!(fixture.contents(&to) == fixture.contents(&from));
    fixture.assert_no_complaints();
}

#[test]
fn repeated_suspensions_lose_nothing() {
    let mut fixture = fixture();
    let sides: Vec<_> = (0..4).map(|channel| fixture.running(channel, 30_000)).collect();
    let mut completions = Vec::new();
    for round in 0..200_u32 {
        fixture.engine.set_turns(round % 4, 0);
        fixture.pass(Duration::from_nanos(u64::from(round * 37 % 900)), &mut completions);
        if round % 3 != 0 {
            fixture.engine.set_turns(round % 4, 1);
            fixture.engine.set_turns(round * 7 % 4, 1);
        }
    }
    (0..4).for_each(|channel| fixture.engine.set_turns(channel, 1));
    completions.extend(fixture.finish());
    assert!(
        completions.len() == 4 && completions.iter().all(|end| end.outcome.result == Ok(())),
        "{completions:?}"
    );
    for (from, to) in sides {
        assert!(fixture.contents(&to) == fixture.contents(&from));
    }
    fixture.assert_no_complaints();
}

#[test]
fn posts_to_a_suspended_channel_wait() {
    let mut fixture = fixture();
    fixture.engine.set_turns(0, 0);
    fixture.engine.set_turns(9, 0);
    let mut completions = Vec::new();
    fixture.engine.poll(fixture.now, &mut completions);
    assert!(fixture.engine.is_at_rest(0));
    let (_, to) = fixture.running(0, 4096);
    fixture.pass(Duration::from_millis(1), &mut completions);
    assert_eq!((fixture.moved(&to), completions.len()), (0, 0));
    fixture.engine.set_turns(0, 1);
    fixture.pass(Duration::from_nanos(1500), &mut completions);
    fixture.engine.set_turns(0, 0);
    fixture.until_at_rest(0, &mut completions);
    let moved = fixture.moved(&to);
    fixture.engine.cancel(memferry_transfer::Ticket { channel: 0, serial: 1 });
    completions.extend(fixture.finish());
    assert_eq!(
        (completions[0].outcome.result, completions[0].outcome.bytes_done),
        (Err(Failure::Cancelled), moved as u64)
    );
    assert!(fixture.engine.is_at_rest(0), "the channel stays suspended");
    fixture.engine.set_turns(0, 1);
    let (from, to) = fixture.running(0, 4096);
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
    assert!(fixture.contents(&to) == fixture.contents(&from));
    fixture.assert_no_complaints();
}

#[test]
fn a_stuck_channel_times_out_when_suspended() {
    let patience = Duration::from_millis(3);
    let mut fixture = Fixture::new(1, IoatOptions { patience, ..IoatOptions::default() });
    fixture.running(0, 4096);
    fixture.device.with(|device| device.faults().stick(0));
    let mut completions = Vec::new();
    fixture.turn(&mut completions);
    fixture.engine.set_turns(0, 0);
    fixture.pass(Duration::from_millis(2), &mut completions);
    assert!(!fixture.engine.is_at_rest(0) && completions.is_empty());
    completions.extend(fixture.finish());
    assert_eq!(completions[0].outcome.result, Err(Failure::EngineTimedOut));
    assert!(fixture.engine.is_at_rest(0), "the channel was reset");
}

#[test]
fn suspended_channels_use_no_bandwidth() {
    let seconds = |fixture: &mut Fixture, suspended: bool| {
        (0..4).for_each(|channel| {
            fixture.running(channel, 50_000);
        });
        let mut completions = Vec::new();
        if suspended {
            (1..4).for_each(|channel| fixture.engine.set_turns(channel, 0));
        }
        while completions.is_empty() {
            fixture.turn(&mut completions);
        }
        assert!(!suspended || completions[0].ticket.channel == 0);
        fixture.device.with(|device| device.now()).nanoseconds()
    };
    let alone = seconds(&mut fixture(), true);
    let shared = seconds(&mut fixture(), false);
    assert!(shared > alone * 5 / 4 && shared < alone * 4, "alone {alone} ns, with three others {shared} ns");
}
