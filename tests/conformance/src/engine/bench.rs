//! A test bench: an engine fixture, the oracle's copies of its memories, and a virtual clock.
//!
//! ```text
//! load(memories) ─► post(channel, operation) ─► ring ─► drive(n) ─► completions ─► verify(operations)
//! ```
//!
//! It panics if the engine breaks the contract, and depends on no particular engine.

use memferry_clock::Instant;
use memferry_transfer::{
    CacheHint, Confined, Descriptor, Engine, EngineCompletion, Operation, Outcome, Refused, Region, Ticket,
};

use super::{EngineFixture, EngineSetup, MIN_CHANNELS};
use crate::oracle::{self, Place};

/// Polls after which a transfer counts as hanging. Chunks may be single bytes; memories are a few kilobytes.
const PATIENCE: u32 = 1_000_000;

type DescriptorOf<X> = Descriptor<<X as EngineFixture>::Memory>;

/// A fixture under test.
pub(super) struct Bench<X: EngineFixture> {
    fixture: X,
    memories: Vec<X::Memory>,
    /// Expected memory contents, maintained by the oracle.
    pub(super) expected: Vec<Vec<u8>>,
    now: Instant,
}

impl<X: EngineFixture> Bench<X> {
    pub(super) fn new(make: &impl Fn(EngineSetup) -> X, setup: EngineSetup, memories: &[Vec<u8>]) -> Self {
        let mut fixture = make(setup);
        let available = fixture.engine().capabilities().channels;
        let required = setup.channels.min(MIN_CHANNELS);
        assert!(available >= required, "{available} channels, the suite needs {required}");
        let loaded = memories.iter().map(|bytes| fixture.allocate(bytes)).collect();
        Self { fixture, memories: loaded, expected: memories.to_vec(), now: Instant::ORIGIN }
    }

    pub(super) fn engine(&mut self) -> &mut X::Engine {
        self.fixture.engine()
    }

    /// The outcome of a complete transfer.
    pub(super) fn whole(&mut self, bytes_done: u64, value: u64) -> Outcome {
        let engine = self.engine().capabilities().kind;
        Outcome { result: Ok(()), bytes_done, value, engine }
    }

    pub(super) fn descriptor(&self, channel: u32, operation: &Operation<Place>) -> DescriptorOf<X> {
        let region = |place: &Place| {
            Region::new(self.memories[place.memory].clone(), place.offset, place.length)
                .expect("the suite's places are within its memories")
        };
        Descriptor::new(channel, oracle::renamed(operation, region))
            .expect("the suite's operations are confined to their places")
    }

    /// A descriptor's operation in terms of the suite's places.
    pub(super) fn operation_of(&self, descriptor: &DescriptorOf<X>) -> Operation<Place> {
        oracle::renamed(descriptor.operation(), |region| {
            let is_same = |memory| self.fixture.is_same(memory, region.memory());
            let memory = self.memories.iter().position(is_same).expect("memory that the suite made");
            Place { memory, offset: region.offset(), length: region.length() }
        })
    }

    pub(super) fn try_post(
        &mut self,
        channel: u32,
        operation: &Operation<Place>,
    ) -> Result<Ticket, Refused<DescriptorOf<X>>> {
        let descriptor = self.descriptor(channel, operation);
        self.engine().post(descriptor)
    }

    pub(super) fn post(&mut self, channel: u32, operation: &Operation<Place>) -> Ticket {
        match self.try_post(channel, operation) {
            Ok(ticket) => {
                assert_eq!(ticket.channel, channel, "the ticket names another channel");
                ticket
            }
            Err(refused) => panic!("{operation:?} was refused: {}", refused.reason),
        }
    }

    pub(super) fn contents(&self, memory: usize) -> Vec<u8> {
        self.fixture.contents(&self.memories[memory])
    }

    /// Polls once at the current time.
    pub(super) fn poll(&mut self, completions: &mut Vec<EngineCompletion>) -> bool {
        let now = self.now;
        self.engine().poll(now, completions)
    }

    /// Advances the clock to the next poll that the engine asks for.
    pub(super) fn wait(&mut self) {
        let next_wake = self.engine().next_wake();
        self.now = self.fixture.wait(self.now, next_wake);
    }

    /// Polls until `outstanding` transfers have ended, then checks that no further completion follows.
    pub(super) fn drive(&mut self, outstanding: usize) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        for _ in 0..PATIENCE {
            let more = self.poll(&mut completions);
            if completions.len() >= outstanding {
                self.assert_idle(more, &mut completions);
                assert_eq!(completions.len(), outstanding, "more reports than transfers: {completions:?}");
                return completions;
            }
            if !more {
                self.wait();
            }
        }
        panic!("{} of {outstanding} transfers ended after {PATIENCE} polls", completions.len());
    }

    fn assert_idle(&mut self, more: bool, completions: &mut Vec<EngineCompletion>) {
        assert!(!more, "poll reports more work although nothing is outstanding");
        let next_wake = self.engine().next_wake();
        assert_eq!(next_wake, None, "the engine has a wake time although nothing is outstanding");
        self.now = self.now.after(std::time::Duration::from_secs(1));
        assert!(!self.poll(completions), "poll reports more work although nothing is outstanding");
    }

    /// Runs the operation to its end and compares memory and completion with the oracle.
    pub(super) fn run(&mut self, operation: &Operation<Place>) {
        let ticket = self.post(0, operation);
        self.engine().ring_doorbell();
        let completions = self.drive(1);
        let value = oracle::value(operation, &self.expected);
        let bytes_done = self.expect(operation);
        let outcome = self.whole(bytes_done, value);
        assert_eq!(completions, [EngineCompletion { ticket, outcome }], "the end of {operation:?}");
        self.verify(operation);
    }

    /// Performs the operation immediately and compares with the oracle; returns whether the engine performed it.
    pub(super) fn perform(&mut self, operation: &Operation<Place>) -> bool {
        let memories = self.memories.clone();
        let region = |place: &Place| {
            Region::new(&memories[place.memory], place.offset, place.length)
                .expect("the suite's places are within its memories")
        };
        let named = oracle::renamed(operation, region);
        let confined = Confined::new(&named, CacheHint::Auto).expect("confined to their places");
        let Some(outcome) = self.engine().perform(&confined) else {
            self.verify(&"an operation that was not performed");
            return false;
        };
        let value = oracle::value(operation, &self.expected);
        let bytes_done = self.expect(operation);
        assert_eq!(outcome, self.whole(bytes_done, value), "the end of {operation:?}");
        self.verify(operation);
        true
    }

    /// Applies the operation to the expected memory; returns its bytes.
    pub(super) fn expect(&mut self, operation: &Operation<Place>) -> u64 {
        oracle::apply(operation, &mut self.expected).expect("confined, as its descriptor was")
    }

    /// Compares all memory with the oracle's; a panic names `what`.
    pub(super) fn verify(&self, what: &impl std::fmt::Debug) {
        for (number, (memory, expected)) in self.memories.iter().zip(&self.expected).enumerate() {
            let found = self.fixture.contents(memory);
            if let Some(at) = (0..expected.len()).find(|&at| found.get(at) != Some(&expected[at])) {
                let found = found.get(at);
                let wanted = expected[at];
                panic!("byte {at} of memory {number} is {found:?}, not {wanted}, after {what:?}");
            }
        }
    }
}
