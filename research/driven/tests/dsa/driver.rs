//! The driver on the model: random requests against a byte oracle, alone and in batches, with page faults; and both ways of stopping.

use memferry_clock::Instant;
use memferry_driven::Shared;
use memferry_dsa::registers::descriptor::Operation;
use memferry_dsa::registers::record::Status;
use memferry_dsa::{
    Completion, Failure, Limits, Outcome, Queue, Request, ResumeError, Stopped, SubmitError, Ticket, Value,
};
use proptest::prelude::*;

use super::machine::{
    BASE, Control, ModelPortal, Modelled, RAM_BYTES, RamWords, Setup, TIMEOUT, device, queue_config,
};

/// Bytes of memory that requests may access.
const AREA: u64 = 0x8000;
const HALF: u64 = AREA / 2;
const SLOTS: usize = 64;

type Tested = Queue<ModelPortal, RamWords, SLOTS>;

struct Machine {
    device: Shared<Modelled>,
    control: Control,
    queue: Tested,
    limits: Limits,
}

impl Machine {
    fn new(setup: &Setup) -> Self {
        let (device, control, limits) = device(setup);
        device.with(|device| {
            for (at, byte) in device.bus_mut().bytes_mut()[..AREA as usize].iter_mut().enumerate() {
                *byte = (at ^ (at >> 8).wrapping_mul(37) ^ 0x5A) as u8;
            }
        });
        let portal = ModelPortal { device: device.clone(), queue: 0, dedicated: setup.dedicated };
        let queue = Queue::new(portal, RamWords(device.clone()), limits, queue_config(setup)).expect("valid");
        Self { device, control, queue, limits }
    }

    fn area(&self) -> Vec<u8> {
        self.device.with(|device| device.bus().bytes()[..AREA as usize].to_vec())
    }

    /// Lets the device run until its next event; `false` if it has none.
    fn turn(&self) -> bool {
        self.device.with(|device| {
            let wake = device.next_wake();
            wake.map(|wake| device.step(wake)).is_some()
        })
    }

    /// Lets the device run until it has nothing to do.
    fn settle(&self) {
        while self.turn() {}
    }

    fn now(&self) -> Instant {
        self.device.with(|device| device.now())
    }

    /// Runs until the request ends; touches pages and resumes at faults.
    fn wait(&mut self, ticket: Ticket) -> (Outcome, u32) {
        let mut faults = 0;
        loop {
            match self.queue.poll_ticket(ticket) {
                Some(Completion { outcome: Outcome::Faulted(fault), .. }) => {
                    faults += 1;
                    let address = fault.address.expect("version 1 says it");
                    self.device.with(|device| device.faults().touch(address));
                    self.queue.resume(ticket).expect("there is room");
                }
                Some(completion) => return (completion.outcome, faults),
                None => assert!(self.turn(), "the device is idle and the request has not ended"),
            }
        }
    }
}

fn at(offset: u64) -> u64 {
    u64::from(BASE) + offset
}

fn crc(seed: u32, bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82F6_3B78 & 0_u32.wrapping_sub(crc & 1)))
    };
    !bytes.iter().fold(!seed, step)
}

/// Applies an operation with offsets to memory; what it finds.
fn oracle(operation: &Operation, memory: &mut [u8]) -> Value {
    let range = |start: u64, bytes: u32| {
        let start = (start - u64::from(BASE)) as usize;
        start..start + bytes as usize
    };
    let copy = |memory: &mut [u8], source, destination: u64, bytes| {
        memory.copy_within(range(source, bytes), (destination - u64::from(BASE)) as usize);
    };
    match *operation {
        Operation::Move { source, destination, bytes } => copy(memory, source, destination, bytes),
        Operation::Fill { pattern, destination, bytes } => {
            let pattern = pattern.to_le_bytes();
            for (index, byte) in memory[range(destination, bytes)].iter_mut().enumerate() {
                *byte = pattern[index % 8];
            }
        }
        Operation::Dualcast { source, destinations, bytes } => {
            destinations.iter().for_each(|destination| copy(memory, source, *destination, bytes));
        }
        Operation::Compare { first, second, bytes } => {
            let sides = memory[range(first, bytes)].iter().zip(&memory[range(second, bytes)]);
            let differs = sides.into_iter().position(|(one, other)| one != other);
            return differs.map_or(Value::Equal, |at| Value::Difference(at as u32));
        }
        Operation::ComparePattern { pattern, source, bytes } => {
            let pattern = pattern.to_le_bytes();
            let mut bytes = memory[range(source, bytes)].iter().enumerate();
            let differs = bytes.position(|(index, byte)| *byte != pattern[index % 8]);
            return differs.map_or(Value::Equal, |at| Value::Difference(at as u32));
        }
        Operation::Crc { source, bytes, seed } => {
            return Value::Crc(crc(seed, &memory[range(source, bytes)]));
        }
        Operation::CopyCrc { source, destination, bytes, seed } => {
            let value = crc(seed, &memory[range(source, bytes)]);
            copy(memory, source, destination, bytes);
            return Value::Crc(value);
        }
        _ => {}
    }
    Value::None
}

/// An operation within the area, which reads one half and writes the other, but for moves.
fn operation() -> impl Strategy<Value = Operation> {
    let bytes = prop_oneof![1..40_u32, 1..700_u32, 3000..6000_u32];
    let place = 0..HALF - 6000;
    (0..9_u8, place.clone(), place, bytes, any::<bool>(), any::<u64>()).prop_map(
        |(kind, low, high, bytes, up, word)| {
            let high = high + HALF;
            let (source, destination) = if up { (at(low), at(high)) } else { (at(high), at(low)) };
            match kind {
                0 => Operation::Nop,
                1 => Operation::Move { source, destination, bytes },
                // Overlapping, from above or from below.
                2 => Operation::Move { source, destination: source ^ (word % 512), bytes },
                3 => Operation::Fill { pattern: word, destination, bytes },
                4 => Operation::Compare { first: source, second: destination, bytes },
                5 => Operation::ComparePattern { pattern: 0, source, bytes },
                6 => Operation::Crc { source, bytes, seed: word as u32 },
                7 => Operation::CopyCrc { source, destination, bytes, seed: word as u32 },
                _ => {
                    let bytes = bytes.min(2000);
                    let first = at(HALF) + (high - HALF) % 2048;
                    Operation::Dualcast { source: at(low), destinations: [first, first + 8192], bytes }
                }
            }
        },
    )
}

fn setups() -> impl Strategy<Value = Setup> {
    (any::<bool>(), 1..5_u32).prop_map(|(dedicated, engines)| Setup {
        dedicated,
        engines: (1 << engines) - 1,
        ..Setup::default()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_requests_equal_the_oracle(
        requests in prop::collection::vec(operation(), 1..20), setup in setups(),
        absent in prop::collection::vec(0..AREA, 0..4), read_only in prop::collection::vec(0..AREA, 0..3),
    ) {
        let mut machine = Machine::new(&setup);
        let mut expected = machine.area();
        machine.device.with(|device| {
            absent.iter().for_each(|offset| device.faults().absent(at(*offset)));
            read_only.iter().for_each(|offset| device.faults().read_only(at(*offset)));
        });
        for operation in &requests {
            let value = oracle(operation, &mut expected);
            let ticket = machine.queue.submit(&Request::new(*operation)).expect("within the rules");
            let (outcome, _) = machine.wait(ticket);
            prop_assert_eq!(outcome, Outcome::Done(value), "{:?}", operation);
            prop_assert!(machine.area() == expected, "{:?}", operation);
        }
        prop_assert!(machine.queue.is_idle());
        prop_assert_eq!(machine.device.with(|device| device.complaints().len()), 0);
    }

    #[test]
    fn fenced_batches_equal_the_oracle(
        requests in prop::collection::vec((operation(), any::<bool>()), 2..12), setup in setups(),
    ) {
        let mut machine = Machine::new(&setup);
        let mut expected = machine.area();
        // Requests may depend on each other, so that each has a fence.
        let batch: Vec<Request> =
            requests.iter().map(|(operation, _)| Request { fence: true, ..Request::new(*operation) }).collect();
        let values: Vec<Value> = batch.iter().map(|request| oracle(&request.operation, &mut expected)).collect();
        let mut tickets = vec![Ticket::default(); batch.len()];
        machine.queue.submit_batch(&batch, &mut tickets).expect("within the rules");
        let mut found = vec![None; batch.len()];
        while found.contains(&None) {
            while let Some(Completion { ticket, outcome }) = machine.queue.poll() {
                let index = tickets.iter().position(|known| *known == ticket).expect("of this batch");
                prop_assert_eq!(found[index].replace(outcome), None, "it ends once");
            }
            machine.turn();
        }
        let expected_outcomes: Vec<Option<Outcome>> =
            values.into_iter().map(|value| Some(Outcome::Done(value))).collect();
        prop_assert_eq!(found, expected_outcomes);
        prop_assert!(machine.area() == expected);
        machine.settle();
        prop_assert!(machine.queue.poll().is_none() && machine.queue.is_idle());
    }
}

#[test]
fn moves_over_absent_pages_are_resumed_in_both_directions() {
    for (source, destination) in [(0x1010, 0x4020), (0x1010, 0x1810), (0x1810, 0x1010)] {
        let mut machine = Machine::new(&Setup::default());
        let mut expected = machine.area();
        for page in [0x2000, 0x3000] {
            machine.device.with(|device| device.faults().absent(at(page)));
        }
        let moved = Operation::Move { source: at(source), destination: at(destination), bytes: 0x2800 };
        oracle(&moved, &mut expected);
        let ticket = machine.queue.submit(&Request::new(moved)).expect("within the rules");
        let (outcome, faults) = machine.wait(ticket);
        assert_eq!((outcome, faults), (Outcome::Done(Value::None), 2));
        assert!(machine.area() == expected);
    }
}

#[test]
fn a_fault_in_a_batch_ends_at_the_fence() {
    let mut machine = Machine::new(&Setup::default());
    machine.device.with(|device| device.faults().absent(at(0x5000)));
    let moved = |to: u64| Request::new(Operation::Move { source: at(0), destination: at(to), bytes: 64 });
    let batch = [moved(0x4000), moved(0x5000), moved(0x6000), Request { fence: true, ..moved(0x7000) }];
    let mut tickets = [Ticket::default(); 4];
    machine.queue.submit_batch(&batch, &mut tickets).expect("within the rules");
    machine.settle();
    let outcome = |machine: &mut Machine, index: usize| {
        machine.queue.poll_ticket(tickets[index]).map(|end| end.outcome)
    };
    assert_eq!(outcome(&mut machine, 0), Some(Outcome::Done(Value::None)));
    assert!(matches!(outcome(&mut machine, 1), Some(Outcome::Faulted(fault)) if fault.bytes_done == 0));
    assert_eq!(outcome(&mut machine, 2), Some(Outcome::Done(Value::None)));
    assert_eq!(outcome(&mut machine, 3), Some(Outcome::Failed(Failure::NotExecuted)));
    machine.device.with(|device| device.faults().touch(at(0x5000)));
    machine.queue.resume(tickets[1]).expect("it waits");
    assert_eq!(machine.wait(tickets[1]).0, Outcome::Done(Value::None));
}

#[test]
fn a_drain_ends_after_everything_before_it() {
    let mut machine = Machine::new(&Setup::default());
    let long = Request::new(Operation::Move { source: at(0), destination: at(HALF), bytes: HALF as u32 });
    let copies: Vec<Ticket> = (0..5).map(|_| machine.queue.submit(&long).expect("room")).collect();
    let drain = machine.queue.submit(&Request::new(Operation::Drain)).expect("room");
    assert_eq!(machine.wait(drain).0, Outcome::Done(Value::None));
    for ticket in copies {
        let end = machine.queue.poll_ticket(ticket).expect("it ended before the drain");
        assert_eq!(end.outcome, Outcome::Done(Value::None));
    }
}

#[test]
fn interrupts_come_by_their_handles() {
    let mut machine = Machine::new(&Setup::default());
    for handle in [0_u16, 3, 8] {
        let request = Request { interrupt: Some(handle), ..Request::new(Operation::Nop) };
        let ticket = machine.queue.submit(&request).expect("room");
        machine.settle();
        assert_eq!(machine.device.with(|device| device.take_messages()), 1 << handle);
        assert_eq!(machine.wait(ticket).0, Outcome::Done(Value::None));
    }
    let ticket =
        machine.queue.submit(&Request { interrupt: Some(9), ..Request::new(Operation::Nop) }).expect("room");
    machine.settle();
    let rejected = Outcome::Failed(Failure::Rejected(Status::InvalidInterruptHandle));
    assert_eq!(machine.wait(ticket).0, rejected, "there are nine vectors");
    let interrupt = machine.control.handle_interrupt();
    assert_eq!(interrupt.error.expect("it is reported twice").status.code(), 0x19);
}

#[test]
fn a_shared_queue_that_is_full_is_given_up_after_some_attempts() {
    let setup = Setup { dedicated: false, entries: 4, ..Setup::default() };
    let mut machine = Machine::new(&setup);
    // Another client of the queue has filled it.
    let mut other = ModelPortal { device: machine.device.clone(), queue: 0, dedicated: false };
    let nop = memferry_dsa::registers::descriptor::Descriptor::default();
    let taken =
        core::iter::repeat_with(|| memferry_dsa::Portal::submit(&mut other, &nop)).take_while(Result::is_ok);
    assert_eq!(taken.count(), 4);
    let request = Request::new(Operation::Move { source: at(0), destination: at(HALF), bytes: 64 });
    assert_eq!(machine.queue.submit(&request), Err(SubmitError::Busy { attempts: 3 }));
    assert!(machine.queue.is_idle(), "the caller may do it with the CPU");
    machine.settle();
    let ticket = machine.queue.submit(&request).expect("it is empty again");
    assert_eq!(machine.wait(ticket).0, Outcome::Done(Value::None));
}

#[test]
fn a_disabled_queue_drops_what_is_stored_to_it() {
    let mut machine = Machine::new(&Setup::default());
    let request = Request::new(Operation::Move { source: at(0), destination: at(HALF), bytes: HALF as u32 });
    let before = machine.queue.submit(&request).expect("room");
    let stopped = machine.control.disable_queue(0, TIMEOUT).expect("it drains");
    let after = machine.queue.submit(&request).expect("a posted store cannot tell");
    machine.settle();
    machine.queue.stopped(&stopped);
    assert_eq!(machine.wait(before).0, Outcome::Done(Value::None), "the device waited for it");
    assert_eq!(machine.wait(after).0, Outcome::Failed(Failure::Stopped));
    assert_eq!(machine.device.with(|device| device.take_complaints().len()), 1);
    machine.control.enable_queue(0, TIMEOUT).expect("its configuration is kept");
    let again = machine.queue.submit(&request).expect("room");
    assert_eq!(machine.wait(again).0, Outcome::Done(Value::None));
}

#[test]
fn a_dead_client_is_drained_before_its_memory_is_reused() {
    for aborts in [false, true] {
        let mut machine = Machine::new(&Setup::default());
        let request =
            Request::new(Operation::Move { source: at(0), destination: at(HALF), bytes: HALF as u32 });
        for _ in 0..20 {
            machine.queue.submit(&request).expect("room");
        }
        let Err(queue) = machine.queue.close() else { panic!("memory is in use") };
        machine.queue = queue;
        let stopped = match aborts {
            true => machine.control.abort_queue(0, TIMEOUT),
            false => machine.control.drain_queue(0, TIMEOUT),
        };
        machine.queue.stopped(&stopped.expect("the device stops"));
        let mut ends = [0; 2];
        while let Some(completion) = machine.queue.poll() {
            match completion.outcome {
                Outcome::Done(Value::None) => ends[0] += 1,
                Outcome::Failed(Failure::Stopped) => ends[1] += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(ends.iter().sum::<u32>(), 20);
        assert_eq!(ends[1] > 0, aborts, "{ends:?}");
        // From now on nothing of it reaches memory.
        machine.device.with(|device| device.bus_mut().bytes_mut()[HALF as usize..AREA as usize].fill(0));
        machine.settle();
        assert!(machine.area()[HALF as usize..].iter().all(|byte| *byte == 0));
        assert!(machine.queue.close().is_ok());
    }
}

#[test]
fn a_halted_device_is_reset_and_configured_again() {
    let setup = Setup::default();
    let mut machine = Machine::new(&setup);
    let request = Request::new(Operation::Move { source: at(0), destination: at(HALF), bytes: HALF as u32 });
    let lost = machine.queue.submit(&request).expect("room");
    machine.device.with(|device| {
        device.set_pci(memferry_models::dsa::Pci { bus_master: false, ..Default::default() });
        device.set_pci(memferry_models::dsa::Pci::default());
    });
    assert_eq!(machine.device.with(|device| device.take_messages()), 1, "error and halt");
    let interrupt = machine.control.handle_interrupt();
    assert_eq!(interrupt.error.map(|error| error.status.code()), Some(0x51));
    assert!(interrupt.halted.is_some());
    let stopped: Stopped = machine.control.reset(TIMEOUT).expect("a reset helps");
    machine.queue.stopped(&stopped);
    assert_eq!(machine.wait(lost).0, Outcome::Failed(Failure::Stopped));
    let group = memferry_dsa::Group { engines: 1, read_buffers_reserved: 8, read_buffers_allowed: None };
    machine.control.configure(&[group], &[super::machine::queue_of(&setup)]).expect("within the rules");
    machine.control.enable(TIMEOUT).expect("valid");
    machine.control.enable_queue(0, TIMEOUT).expect("valid");
    let again = machine.queue.submit(&request).expect("room");
    assert_eq!(machine.wait(again).0, Outcome::Done(Value::None));
    assert_eq!(machine.queue.resume(again), Err(ResumeError::NotFaulted));
}

#[test]
fn requests_of_one_engine_write_in_order() {
    let setup = Setup { engines: 1, ..Setup::default() };
    let mut machine = Machine::new(&setup);
    let fill = |value: u64, bytes| {
        Request::new(Operation::Fill { pattern: value * 0x0101_0101_0101_0101, destination: at(HALF), bytes })
    };
    for (value, bytes) in (1..=9).zip([4096, 1, 2000, 64, 3000, 7, 4096, 900, 5]) {
        machine.queue.submit(&fill(value, bytes)).expect("room");
    }
    machine.settle();
    let area = machine.area();
    let at = |offset: usize| area[HALF as usize + offset];
    assert_eq!((at(0), at(4), at(5), at(899), at(900), at(4095)), (9, 9, 8, 8, 7, 7));
    while machine.queue.poll().is_some() {}
    assert!(machine.queue.is_idle());
    assert_eq!(machine.limits.longest, 1 << 31);
    assert!(machine.now() > Instant::ORIGIN && RAM_BYTES > AREA as usize);
}
