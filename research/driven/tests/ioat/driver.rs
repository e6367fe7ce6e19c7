//! The driver alone on the model: random requests against a byte oracle, and recovery from faults.
//!
//! ```text
//! requests ──► driver ──► model ──► memory ──┐
//!         └──► oracle, in the same order ────┴──► equal?
//! ```
//!
//! The oracle knows neither descriptors nor rings. Proptest prints and stores the seed of a failure.

use core::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_driven::Shared;
use memferry_drivers::ioat::{
    Channel, Ioat, Notice, OpenError, Operation, Request, RingConfig, RingError, StopError, TakeError,
    WriteError,
};
use memferry_models::ioat::Config;
use memferry_registers::ioat::{TransferState, descriptor::MAX_SOURCES};
use memferry_registers::{Device, NarrowIo};
use proptest::prelude::*;

use super::machine::{BASE, Modelled, RAM_BYTES, RamWords, device, device_of};

const TIMEOUT: Duration = Duration::from_micros(100);
/// Bytes of memory that requests may access.
const AREA: usize = 8192;

type Driver = Ioat<Shared<Modelled>, RamWords, Shared<Modelled>>;

struct Machine {
    device: Shared<Modelled>,
    driver: Driver,
}

fn ring_of(channel: u8, slots: u16) -> RingConfig {
    let completion = u64::from(BASE) + RAM_BYTES as u64 + 0x1000 * u64::from(channel);
    RingConfig { ring: completion + 64, slots, completion }
}

impl Machine {
    fn new() -> Self {
        Self::of(device())
    }

    fn of(device: Shared<Modelled>) -> Self {
        device.with(|device| {
            for (at, byte) in device.bus_mut().bytes_mut()[..AREA].iter_mut().enumerate() {
                *byte = (at ^ (at >> 8).wrapping_mul(37) ^ 0x5A) as u8;
            }
        });
        let mut driver = Ioat::new(device.clone(), RamWords(device.clone()), device.clone());
        driver.initialize().expect("the model is of version 3.2");
        Self { device, driver }
    }

    fn open(&mut self, index: u8, slots: u16) -> Channel {
        let channel = self.driver.take(index).expect("free");
        self.driver.open(&channel, ring_of(index, slots), TIMEOUT).expect("within the rules");
        channel
    }

    fn area(&self) -> Vec<u8> {
        self.device.with(|device| device.bus().bytes()[..AREA].to_vec())
    }

    /// Polls the completion word until the request at `position` is done.
    fn wait(&mut self, channel: &Channel, position: u64) {
        let deadline = self.device.now().after(Duration::from_millis(20));
        while self.driver.poll(channel).done < position {
            assert!(self.device.now() < deadline, "request {position} is not done");
        }
    }

    fn assert_no_complaints(&self) {
        let complaints = self.device.with(|device| device.take_complaints());
        assert!(complaints.is_empty(), "{}", complaints[0]);
    }
}

fn at(offset: u64) -> u64 {
    u64::from(BASE) + offset
}

fn copy(from: u64, to: u64, bytes: u64) -> Request<'static> {
    Request::new(Operation::Copy { source: at(from), destination: at(to), bytes })
}

/// A request with offsets instead of addresses.
#[derive(Clone, Debug)]
enum TestRequest {
    Null,
    Copy { from: u64, to: u64, bytes: u64 },
    Fill { pattern: u64, to: u64, bytes: u64 },
    Xor { from: Vec<u64>, to: u64, bytes: u64 },
}

impl TestRequest {
    fn apply(&self, memory: &mut [u8]) {
        match self {
            Self::Null => {}
            Self::Copy { from, to, bytes } => {
                memory.copy_within(*from as usize..(from + bytes) as usize, *to as usize);
            }
            Self::Fill { pattern, to, bytes } => {
                let pattern = pattern.to_le_bytes().into_iter().cycle();
                memory[*to as usize..][..*bytes as usize]
                    .iter_mut()
                    .zip(pattern)
                    .for_each(|(byte, new)| *byte = new);
            }
            Self::Xor { from, to, bytes } => {
                for index in 0..*bytes as usize {
                    let byte = from.iter().fold(0, |byte, from| byte ^ memory[*from as usize + index]);
                    memory[*to as usize + index] = byte;
                }
            }
        }
    }

    fn write(&self, driver: &mut Driver, channel: &Channel) -> Result<u64, WriteError> {
        let addresses: Vec<u64>;
        let operation = match self {
            Self::Null => Operation::Null,
            Self::Copy { from, to, bytes } => {
                Operation::Copy { source: at(*from), destination: at(*to), bytes: *bytes }
            }
            Self::Fill { pattern, to, bytes } => {
                Operation::Fill { pattern: *pattern, destination: at(*to), bytes: *bytes }
            }
            Self::Xor { from, to, bytes } => {
                addresses = from.iter().map(|from| at(*from)).collect();
                Operation::Xor { sources: &addresses, destination: at(*to), bytes: *bytes }
            }
        };
        // Requests of a test may depend on each other.
        driver.write(channel, &Request { operation, notice: Notice::Completion, fence: true })
    }
}

fn test_request() -> impl Strategy<Value = TestRequest> {
    let half = AREA as u64 / 2;
    let bytes = prop_oneof![1..40_u64, 1..700_u64];
    // Sources and destinations are in different halves, so that a request does not read what it writes.
    let place = move || (0..half - 700, half..2 * half - 700, any::<bool>());
    let sides = move || place().prop_map(|(low, high, up)| if up { (low, high) } else { (high, low) });
    prop_oneof![
        1 => Just(TestRequest::Null),
        4 => (sides(), bytes.clone()).prop_map(|((from, to), bytes)| TestRequest::Copy { from, to, bytes }),
        2 => (any::<u64>(), sides(), bytes.clone())
            .prop_map(|(pattern, (_, to), bytes)| TestRequest::Fill { pattern, to, bytes }),
        3 => (sides(), prop::collection::vec(0..half - 700, 2..=MAX_SOURCES), any::<bool>(), bytes).prop_map(
            move |((from, to), mut sources, in_place, bytes)| {
                let base = if from < half { 0 } else { half };
                sources.iter_mut().for_each(|source| *source += base);
                if in_place {
                    sources[0] = to;
                }
                TestRequest::Xor { from: sources, to, bytes }
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_requests_equal_the_oracle(
        requests in prop::collection::vec(test_request(), 1..60), slots in 4_u16..20, suspends in any::<u64>(),
    ) {
        let mut machine = Machine::new();
        let channel = machine.open(1, slots);
        let mut expected = machine.area();
        let mut last = 0;
        for (index, request) in requests.iter().enumerate() {
            request.apply(&mut expected);
            last = loop {
                match request.write(&mut machine.driver, &channel) {
                    Ok(position) => break position,
                    Err(WriteError::RingFull { .. }) => {
                        machine.driver.ring_doorbell(&channel);
                        machine.driver.poll(&channel);
                        assert!(machine.device.now() < Instant::from_nanoseconds(50_000_000), "the ring never drains");
                    }
                    Err(error) => panic!("{request:?}: {error}"),
                }
            };
            if suspends >> (index % 64) & 1 == 1 {
                machine.driver.ring_doorbell(&channel);
            }
            if suspends >> (index % 61) & 3 == 3 {
                machine.driver.suspend(&channel, TIMEOUT).expect("the channel suspends");
                prop_assert!(machine.driver.is_suspended(&channel));
                machine.driver.resume(&channel).expect("the channel is suspended");
            }
        }
        machine.driver.ring_doorbell(&channel);
        machine.wait(&channel, last);
        prop_assert!(machine.area() == expected);
        machine.assert_no_complaints();
    }
}

#[test]
fn a_ring_survives_the_wrap_of_its_count() {
    let mut machine = Machine::new();
    let channel = machine.open(0, 200);
    for round in 1..=330 {
        for _ in 0..199 {
            let request = Request { notice: Notice::Silent, ..Request::new(Operation::Null) };
            machine.driver.write(&channel, &request).expect("room");
        }
        machine.driver.ring_doorbell(&channel);
        let deadline = machine.device.now().after(Duration::from_millis(10));
        while machine.driver.inspect(&channel).state != TransferState::Idle {
            assert!(machine.device.now() < deadline);
        }
        assert_eq!(machine.driver.inspect(&channel).done, round * 199);
    }
    machine.assert_no_complaints();
}

#[test]
fn a_status_that_outlives_its_chain_is_no_progress() {
    let mut machine = Machine::of(device_of(Config { keeps_completed: true, ..Config::default() }));
    let channel = machine.open(0, 16);
    let write = |machine: &mut Machine| {
        for _ in 0..5 {
            machine.driver.write(&channel, &Request::new(Operation::Null)).expect("room");
        }
        machine.driver.ring_doorbell(&channel);
    };
    write(&mut machine);
    machine.wait(&channel, 5);
    machine.driver.rewind(&channel).expect("idle");
    write(&mut machine);
    assert_eq!(machine.driver.inspect(&channel).done, 0, "nothing of this chain has begun");
    machine.driver.recover(&channel, TIMEOUT).expect("the reset ends");
    write(&mut machine);
    assert_eq!(machine.driver.inspect(&channel).done, 0, "nor after a recovery");
    machine.wait(&channel, 5);
    assert_eq!(machine.driver.inspect(&channel).done, 5);
    machine.assert_no_complaints();
}

#[test]
fn channels_run_concurrently() {
    let mut machine = Machine::new();
    let channels: Vec<Channel> = (0..4).map(|index| machine.open(index, 16)).collect();
    let mut expected = machine.area();
    for (index, channel) in (0..4).zip(&channels) {
        let request = Request { notice: Notice::Interrupt, ..copy(1000 * index, 4096 + 1000 * index, 900) };
        machine.driver.write(channel, &request).expect("room");
        machine.driver.ring_doorbell(channel);
        let from = 1000 * index as usize;
        expected.copy_within(from..from + 900, 4096 + from);
    }
    let mut interrupted = Vec::new();
    let deadline = machine.device.now().after(Duration::from_millis(1));
    while interrupted.len() < 4 && machine.device.now() < deadline {
        if machine.device.with(|device| device.is_high(0)) {
            machine.driver.handle_interrupt(|channel| interrupted.push(channel));
        }
    }
    interrupted.sort_unstable();
    assert_eq!(interrupted, [0, 1, 2, 3]);
    assert!(channels.iter().all(|channel| machine.driver.poll(channel).done == 1));
    assert!(machine.area() == expected);
    assert_eq!(machine.driver.handle_interrupt(|_| panic!("no channel interrupts")).channels, 0);
    machine.assert_no_complaints();
}

#[test]
fn a_lost_interrupt_can_be_rearmed() {
    let mut machine = Machine::new();
    let channel = machine.open(0, 8);
    let request = Request { notice: Notice::Interrupt, ..copy(0, 4096, 64) };
    machine.device.with(|device| device.faults().lose_interrupts(1));
    for armed in [false, false, true] {
        if armed {
            machine.driver.arm_interrupt(&channel);
        }
        let position = machine.driver.write(&channel, &request).expect("room");
        machine.driver.ring_doorbell(&channel);
        machine.wait(&channel, position);
        assert_eq!(machine.device.with(|device| device.is_high(0)), armed);
    }
    machine.assert_no_complaints();
}

#[test]
fn an_error_names_its_descriptor() {
    let mut machine = Machine::new();
    let channel = machine.open(3, 8);
    machine.device.with(|device| device.faults().bus_error_at(at(5000)..=at(5000)));
    let sources: Vec<u64> = (0..6).map(|index| at(100 * index)).collect();
    let xor = Request::new(Operation::Xor { sources: &sources, destination: at(4200), bytes: 64 });
    machine.driver.write(&channel, &xor).expect("room");
    let position = machine.driver.write(&channel, &copy(0, 4990, 64)).expect("room");
    machine.driver.write(&channel, &copy(0, 6000, 64)).expect("room");
    machine.driver.ring_doorbell(&channel);
    let before = machine.area()[6000..6064].to_vec();
    while machine.driver.poll(&channel).state != TransferState::Halted {
        machine.device.now();
    }
    let failure = machine.driver.failure(&channel).expect("the channel halted with an error");
    assert!(failure.errors.write_data());
    // The XOR took two descriptors.
    assert_eq!((failure.position, failure.descriptor), (position, ring_of(3, 8).ring + 128));
    assert_eq!(machine.area()[6000..6064], before);
    assert_eq!(machine.driver.rewind(&channel), Err(StopError::AtWork { channel: 3 }));
    machine.driver.recover(&channel, TIMEOUT).expect("it resets");
    assert_eq!(machine.driver.failure(&channel), None);
    let position = machine.driver.write(&channel, &copy(0, 6000, 64)).expect("room");
    machine.driver.ring_doorbell(&channel);
    machine.wait(&channel, position);
    machine.assert_no_complaints();
}

#[test]
fn a_wedged_channel_is_quarantined() {
    let mut machine = Machine::new();
    let channel = machine.open(2, 8);
    machine.device.with(|device| device.faults().wedge(2));
    machine.driver.write(&channel, &copy(0, 4096, 64)).expect("room");
    machine.driver.ring_doorbell(&channel);
    let waited = TIMEOUT;
    let suspended = machine.driver.suspend(&channel, TIMEOUT);
    assert_eq!(suspended, Err(StopError::NotSuspended { channel: 2, waited }));
    assert_eq!(machine.driver.recover(&channel, TIMEOUT), Err(StopError::NotReset { channel: 2, waited }));
    let refused = machine.driver.write(&channel, &copy(0, 4096, 64));
    assert_eq!(refused, Err(WriteError::Quarantined { channel: 2 }));
    machine.driver.release(channel).expect("a quarantined channel can be released");
    assert_eq!(machine.driver.take(2), Err(TakeError::Taken { index: 2 }), "but not taken again");
}

#[test]
fn channels_are_taken_once() {
    let mut machine = Machine::new();
    assert_eq!(machine.driver.take(4), Err(TakeError::NoSuchChannel { index: 4, channels: 4 }));
    let channel = machine.open(1, 8);
    assert_eq!(machine.driver.take(1), Err(TakeError::Taken { index: 1 }));
    let mut other =
        Ioat::new(machine.device.clone(), RamWords(machine.device.clone()), machine.device.clone());
    assert_eq!(other.take(0), Err(TakeError::NotInitialized));
    other.initialize().expect("a second driver initializes");
    assert_eq!(other.take(1), Err(TakeError::InUse { index: 1 }));
    machine.driver.write(&channel, &copy(0, 4096, 1000)).expect("room");
    machine.driver.ring_doorbell(&channel);
    let channel = machine.driver.release(channel).expect_err("the channel is active");
    machine.wait(&channel, 1);
    while machine.driver.status(&channel).state() == TransferState::Active {
        machine.device.now();
    }
    machine.driver.release(channel).expect("the channel is idle");
    other.take(1).expect("free again");
}

#[test]
fn an_invalid_ring_is_refused() {
    let mut machine = Machine::new();
    let channel = machine.driver.take(0).expect("free");
    let ring = RingConfig { ring: ring_of(0, 8).ring + 32, ..ring_of(0, 8) };
    let opened = machine.driver.open(&channel, ring, TIMEOUT);
    assert_eq!(opened, Err(OpenError::Ring(RingError::Misaligned { address: ring.ring })));
    let written = machine.driver.write(&channel, &copy(0, 4096, 1));
    assert_eq!(written, Err(WriteError::NotOpen { channel: 0 }));
    assert_eq!(machine.device.with(|device| device.read16(0x80)) & 0xff, 0);
}
