//! Which transfers go to the device and which to the CPU, and how failures of the device are handled.

use std::collections::VecDeque;
use std::time::Duration;

use memferry_external::EngineDescription;
use memferry_external::layout::EngineLayout;
use memferry_shm::frame;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{
    EngineKind, Failure, Handle, Lists, Operation, Operations, Pattern, Region, Segment, Side,
};

use super::*;
use crate::shared::{WorkerCommand, WorkerHandle};

/// A device that completes transfers with scripted outcomes and moves no bytes.
#[derive(Debug, Default)]
struct Scripted {
    outcomes: VecDeque<Result<(), Failure>>,
    posted: Vec<Ticket>,
    cancelled: Vec<Ticket>,
    serial: u32,
    waits: bool,
}

impl Engine for Scripted {
    type Memory = Mapping;

    fn capabilities(&self) -> EngineCapabilities {
        let operations = Operations::COPY.union(Operations::FILL).union(Operations::SCATTER_GATHER);
        let cpu = CpuEngine::new(2, 64).capabilities();
        EngineCapabilities { kind: EngineKind::Module, operations, ..cpu }
    }

    fn post(&mut self, descriptor: Descriptor<Mapping>) -> Result<Ticket, Refused<Descriptor<Mapping>>> {
        self.serial += 1;
        let ticket = Ticket { channel: descriptor.channel(), serial: self.serial };
        self.posted.push(ticket);
        Ok(ticket)
    }

    fn ring_doorbell(&mut self) {}

    fn poll(&mut self, _now: Instant, completions: &mut Vec<EngineCompletion>) -> bool {
        if !self.waits {
            completions.extend(self.posted.drain(..).map(|ticket| EngineCompletion {
                ticket,
                outcome: Outcome {
                    result: self.outcomes.pop_front().unwrap_or(Ok(())),
                    bytes_done: 100,
                    value: 0,
                    engine: EngineKind::Module,
                },
            }));
        }
        false
    }

    fn is_at_rest(&self, _channel: u32) -> bool {
        self.posted.is_empty()
    }

    fn works_alone(&self) -> bool {
        true
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cancelled.push(ticket);
    }

    fn next_wake(&self) -> Option<Instant> {
        None
    }
}

const LENGTH: u64 = 256;

struct Bed {
    engine: WorkerEngine<Scripted>,
    memory: [Mapping; 2],
}

impl Bed {
    /// Two channels, a device for transfers of at least 100 bytes, and two registered memories.
    fn new(outcomes: &[Result<(), Failure>]) -> Self {
        let device = Scripted { outcomes: outcomes.iter().copied().collect(), ..Scripted::default() };
        let engine = WorkerEngine::new(CpuEngine::new(2, 64)).with_device(device, 100);
        let memory = [7, 9].map(|byte| Mapping::owned(vec![byte; LENGTH as usize]));
        let mut bed = Self { engine, memory };
        assert_eq!(bed.run(&bed.copy(100)), [(Ok(()), EngineKind::Cpu)], "before the memory is registered");
        bed.register();
        bed.memory[1].write(0, &[9; LENGTH as usize]).unwrap();
        bed
    }

    fn register(&mut self) {
        for mapping in self.engine.take_wanted() {
            assert!(self.engine.registered(&mapping, mapping.clone()).is_none());
        }
    }

    fn region(&self, of: usize, offset: u64, length: u64) -> Region<Mapping> {
        Region::new(self.memory[of].clone(), offset, length).unwrap()
    }

    fn copy(&self, length: u64) -> Operation<Region<Mapping>> {
        let source = self.region(0, 0, length);
        let destination = self.region(1, 0, length);
        Operation::Copy { source, destination, length }
    }

    fn post(&mut self, operation: &Operation<Region<Mapping>>) -> Ticket {
        let ticket = self.engine.post(Descriptor::new(0, operation.clone()).unwrap()).unwrap();
        self.engine.ring_doorbell();
        ticket
    }

    fn poll(&mut self) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        while self.engine.poll(Instant::ORIGIN, &mut completions) {}
        completions
    }

    fn run(&mut self, operation: &Operation<Region<Mapping>>) -> Vec<(Result<(), Failure>, EngineKind)> {
        let ticket = self.post(operation);
        let completions = self.poll();
        assert!(completions.iter().all(|report| report.ticket == ticket), "{completions:?}");
        completions.iter().map(|report| (report.outcome.result, report.outcome.engine)).collect()
    }

    fn is_copied(&self, length: usize) -> bool {
        let mut bytes = vec![0; length];
        self.memory[1].read(0, &mut bytes).unwrap();
        bytes.iter().all(|byte| *byte == 7)
    }
}

const DEVICE: [(Result<(), Failure>, EngineKind); 1] = [(Ok(()), EngineKind::Module)];
const CPU: [(Result<(), Failure>, EngineKind); 1] = [(Ok(()), EngineKind::Cpu)];

#[test]
fn the_device_gets_long_registered_transfers() {
    let mut bed = Bed::new(&[]);
    assert_eq!(bed.run(&bed.copy(99)), CPU, "a short one");
    assert_eq!(bed.run(&bed.copy(100)), DEVICE);
    let destination = bed.region(1, 0, 100);
    let length = 100;
    let fill = Operation::Fill { destination, length, pattern: Pattern::Byte(1) };
    assert_eq!(bed.run(&fill), DEVICE);
    let crc = Operation::Crc { source: bed.region(0, 0, 100), length: 100, seed: 0 };
    assert_eq!(bed.run(&crc), CPU, "not supported by the device");
    let counts = DeviceCounts { transfers: 2, bytes: 200, redone: 0 };
    assert_eq!(bed.engine.counts(), Some(counts));
    let other = Mapping::owned(vec![0; 100]);
    let destination = Region::new(other.clone(), 0, 100).unwrap();
    let copy = Operation::Copy { source: bed.region(0, 0, 100), destination, length: 100 };
    assert_eq!(bed.run(&copy), CPU);
    assert_eq!(bed.run(&copy), CPU);
    let wanted: Vec<_> = bed.engine.take_wanted().iter().map(Mapping::key).collect();
    assert_eq!(wanted, [other.key()], "requested once");
}

#[test]
fn unrepeatable_transfers_go_to_the_cpu() {
    let mut bed = Bed::new(&[]);
    let within = |bed: &Bed, from, to| Operation::Copy {
        source: bed.region(0, from, 100),
        destination: bed.region(0, to, 100),
        length: 100,
    };
    assert_eq!(bed.run(&within(&bed, 0, 99)), CPU);
    assert_eq!(bed.run(&within(&bed, 99, 0)), CPU);
    assert_eq!(bed.run(&within(&bed, 0, 100)), DEVICE);
    let list = |bed: &Bed, destination| {
        let segment = |place: Region<Mapping>| [Segment { length: place.length(), place }].into();
        let lists = Lists { source: segment(bed.region(0, 0, 100)), destination: segment(destination) };
        assert_eq!(lists.total_bytes(Side::Source), 100);
        Operation::ScatterGather { lists: lists.into() }
    };
    assert_eq!(bed.run(&list(&bed, bed.region(0, 50, 100))), CPU);
    assert_eq!(bed.run(&list(&bed, bed.region(1, 50, 100))), DEVICE);
}

#[test]
fn the_cpu_repeats_the_devices_failures() {
    for failure in [Failure::MemoryFault, Failure::EngineTimedOut] {
        let mut bed = Bed::new(&[Err(failure)]);
        assert_eq!(bed.run(&bed.copy(LENGTH)), CPU);
        assert!(bed.is_copied(LENGTH as usize));
        assert_eq!(bed.engine.counts(), Some(DeviceCounts { redone: 1, ..DeviceCounts::default() }));
        assert_eq!(bed.run(&bed.copy(LENGTH)), DEVICE, "the channel works again");
    }
    let mut bed = Bed::new(&[Err(Failure::ChannelFaulted)]);
    let faulted = (Err(Failure::ChannelFaulted), EngineKind::Module);
    assert_eq!(bed.run(&bed.copy(LENGTH)), [faulted], "an engine may still access the memory");
    assert!(!bed.is_copied(1));
}

#[test]
fn cancel_reaches_the_current_engine() {
    let mut bed = Bed::new(&[Err(Failure::MemoryFault), Err(Failure::Cancelled)]);
    bed.engine.device.as_mut().unwrap().engine.waits = true;
    let ticket = bed.post(&bed.copy(LENGTH));
    assert!(bed.engine.works_alone());
    let other = bed.copy(LENGTH);
    let refused = bed.engine.post(Descriptor::new(0, other).unwrap()).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Busy(0));
    bed.engine.cancel(Ticket { serial: ticket.serial ^ 2, ..ticket });
    assert!(bed.engine.device().unwrap().cancelled.is_empty());
    bed.engine.cancel(ticket);
    assert_eq!(bed.engine.device().unwrap().cancelled.len(), 1);
    bed.engine.device.as_mut().unwrap().engine.waits = false;
    let completions = bed.poll();
    assert_eq!(
        (completions.len(), completions[0].ticket),
        (1, ticket),
        "it is not repeated: {completions:?}"
    );

    let mut bed = Bed::new(&[Err(Failure::MemoryFault)]);
    let ticket = bed.post(&bed.copy(LENGTH));
    let mut completions = Vec::new();
    assert!(bed.engine.poll(Instant::ORIGIN, &mut completions) && completions.is_empty());
    assert!(!bed.engine.works_alone());
    bed.engine.cancel(ticket);
    let completions = bed.poll();
    assert_eq!((completions[0].ticket, completions[0].outcome.result), (ticket, Err(Failure::Cancelled)));
}

#[test]
fn a_cancelled_transfer_that_fails_is_cancelled() {
    let mut bed = Bed::new(&[Err(Failure::EngineReset)]);
    bed.engine.device.as_mut().unwrap().engine.waits = true;
    let ticket = bed.post(&bed.copy(LENGTH));
    bed.engine.cancel(ticket);
    bed.engine.device.as_mut().unwrap().engine.waits = false;
    let completions = bed.poll();
    let [completion] = &completions[..] else { panic!("{completions:?}") };
    assert_eq!((completion.ticket, completion.outcome.result), (ticket, Err(Failure::Cancelled)));
}

#[test]
fn forgotten_memory_is_returned() {
    let mut bed = Bed::new(&[]);
    let known = bed.memory[0].clone();
    assert!(bed.engine.forget(&known).is_some_and(|memory| memory.key() == known.key()));
    assert!(bed.engine.forget(&known).is_none());
    assert_eq!(bed.run(&bed.copy(100)), CPU);
    assert_eq!(bed.engine.take_wanted().len(), 1);
    assert!(bed.engine.forget(&known).is_none());
    assert!(bed.engine.registered(&known, known.clone()).is_some(), "registered after it was forgotten");
    let mut alone = WorkerEngine::<Scripted>::new(CpuEngine::new(1, 64));
    assert!(alone.take_wanted().is_empty() && alone.counts().is_none() && !alone.works_alone());
    assert!(alone.registered(&known, known.clone()).is_some() && alone.forget(&known).is_none());
}

#[test]
fn frames_mapped_during_a_turn_are_known() {
    let commands = WorkerHandle::all(1).unwrap().remove(0);
    let cpu = CpuEngine::new(1, 64);
    let mut engine =
        WorkerEngine::<Scripted>::new(cpu).with_new_frames(Arc::clone(&commands) as Arc<dyn NewFrames>);
    let [known, other] = [1, 2].map(|number| EngineId { index: 0, number });
    engine.add_external(known, unserved(), 1, Bell::of_engine(1).unwrap().1.remove(0));
    let far = Mapping::reserved(LENGTH as usize).unwrap();
    let near = Mapping::owned(vec![0; LENGTH as usize]);
    let [source, destination] = [&far, &near].map(|memory| Region::new(memory.clone(), 0, LENGTH).unwrap());
    let copy = Descriptor::new(0, Operation::Copy { source, destination, length: LENGTH }).unwrap();
    let as_frame = |slot, is_own| ExternalFrame {
        handle: Handle::new(slot, 1),
        length: LENGTH,
        is_writable: true,
        is_own,
    };

    let refused = engine.post(copy.clone()).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Unsupported);
    commands.send(WorkerCommand::EngineFrames(other, vec![(far.clone(), as_frame(1, true))]));
    commands.send(WorkerCommand::EngineFrames(known, vec![(far.clone(), as_frame(1, true))]));
    let refused = engine.post(copy.clone()).unwrap_err();
    assert_eq!(refused.reason, RefusalReason::Unsupported, "the engine has one of two frames");
    assert_eq!(engine.places(copy.operation()), None);
    commands.send(WorkerCommand::EngineFrames(known, vec![(near.clone(), as_frame(2, false))]));
    // Asked before it is posted, so that no request gets a channel without a place.
    assert_eq!(engine.places(copy.operation()), Some(Places { group: known.group(), most: 1 }));
    assert!(engine.post(copy.clone()).is_ok());
    engine.external_lost(known, Lost::Cut);
    assert_eq!(engine.places(copy.operation()), None, "nobody waits for an engine that gets no more work");
    assert_eq!(commands.take().len(), 1, "the frame of an engine that is not known stays");
}

/// An engine process that nobody serves.
pub(crate) fn unserved() -> ExternalEngine {
    let layout = EngineLayout::new(1, 8).unwrap();
    let words = |bytes| MappedWords::new(frame::allocate_half(bytes).unwrap().1).unwrap();
    let service = words(layout.service_bytes());
    let own = words(layout.engine_bytes());
    let (client, half) = layout.halves(&service, &own, 0).unwrap();
    let parked = layout.parked_words(&own).unwrap();
    let end = ClientEnd::new(layout.pair(), client, half, parked, Fences::Full).unwrap();
    let wake = layout.wake_word(&service).unwrap();
    let description = EngineDescription::default();
    let stall = Duration::from_secs(1);
    ExternalEngine::new(description, (end, wake), (1, 1), stall)
}
