//! Work descriptors: their bursts through the device.
//!
//! ```text
//! started ── checks ──► issue: translation, read buffers ──► read ──► data, in order ──► write ──► next burst
//!                          └─ page fault: partial completion, or a page request ──► resolved
//! ```
//!
//! An engine issues the bursts of its oldest descriptor first, so that the writes of one engine are in the order of its descriptors (3.9). Data is read
//! from memory when it arrives and is in memory when its write ends.

use super::checks::Place;
use super::crc::{self, Manner};
use super::finish::End;
use super::origin::Origin;
use super::{Dsa, Event, Owner};
use crate::{Access, AccessKind, Bus};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use memferry_dsa_registers::PAGE_BYTES;
use memferry_dsa_registers::descriptor::{Descriptor, Operation, opcode, specific};
use memferry_dsa_registers::record::{Status, operand};

/// A part of a descriptor on its way.
#[derive(Clone, Debug)]
struct Burst {
    /// Bytes before it in the direction of the descriptor.
    at: u64,
    length: u64,
    state: BurstState,
    data: Vec<u8>,
    /// Read buffers that it holds.
    buffers: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BurstState {
    Reading,
    Arrived,
    Writing,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Decoding,
    Active,
    /// Waits for the answer to a page request.
    Blocked,
    /// A drain that waits for others.
    Draining,
    Finishing,
}

/// A work descriptor in an engine.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) engine: usize,
    pub(super) descriptor: Descriptor,
    pub(super) origin: Origin,
    /// The batch that it is of, and its place there.
    pub(super) batch: Option<(u64, u16)>,
    operation: Operation,
    stage: Stage,
    /// It goes from its end to its beginning.
    reversed: bool,
    /// Bytes whose bursts were issued.
    issued: u64,
    /// Bytes that are done.
    done: u64,
    bursts: VecDeque<Burst>,
    /// Why no more bursts are issued.
    end: Option<End>,
    crc: u32,
    /// Page that a page request asks for.
    requested: Option<(u64, bool, u8)>,
}

/// An operand of a burst.
#[derive(Clone, Copy, Debug)]
struct Operand {
    address: u64,
    write: bool,
    number: u8,
}

impl Work {
    pub(super) fn new(
        engine: usize,
        descriptor: Descriptor,
        origin: Origin,
        batch: Option<(u64, u16)>,
    ) -> Self {
        let operation = descriptor.operation().unwrap_or(Operation::Nop);
        let bytes = u64::from(operation.transfer_bytes());
        let reversed = match operation {
            Operation::Move { source, destination, .. } => {
                source < destination && destination - source < bytes
            }
            _ => false,
        };
        let crc = match operation {
            Operation::Crc { seed, .. } | Operation::CopyCrc { seed, .. } => seed,
            _ => 0,
        };
        Self {
            engine,
            descriptor,
            origin,
            batch,
            operation,
            stage: Stage::Decoding,
            reversed,
            issued: 0,
            done: 0,
            bursts: VecDeque::new(),
            end: None,
            crc,
            requested: None,
        }
    }

    fn bytes(&self) -> u64 {
        self.operation.transfer_bytes().into()
    }

    fn manner(&self) -> Manner {
        let flags = self.descriptor.flags().specific();
        Manner { as_is: flags & specific::CRC_AS_IS != 0, data_as_is: flags & specific::DATA_AS_IS != 0 }
    }

    /// Address of an operand's bytes `at` to `at + length` in the direction of the descriptor.
    fn address(&self, base: u64, at: u64, length: u64) -> u64 {
        let offset = if self.reversed { self.bytes() - at - length } else { at };
        base.wrapping_add(offset)
    }

    fn operands(&self) -> impl Iterator<Item = Operand> + use<> {
        let numbers =
            [operand::SOURCE, operand::SECOND_SOURCE, operand::DESTINATION, operand::SECOND_DESTINATION];
        let is_flush = matches!(self.operation, Operation::Flush { .. });
        let [first, second] = self.operation.reads();
        let [third, fourth] = self.operation.writes();
        let all = [(first, false), (second, false), (third, !is_flush), (fourth, true)];
        all.into_iter().zip(numbers).filter_map(|((address, write), number)| {
            address.map(|address| Operand { address, write, number })
        })
    }

    /// Places that a burst reads: the sources, or what is flushed.
    fn sources(&self) -> impl Iterator<Item = u64> + use<> {
        self.operands().filter(|operand| !operand.write).map(|operand| operand.address)
    }

    /// Length of the burst at `at`: no operand crosses a page in it.
    fn burst_length(&self, at: u64, longest: u64) -> u64 {
        let left = self.bytes() - at;
        self.operands().fold(left.min(longest), |length, operand| {
            let to_page = match self.reversed {
                false => PAGE_BYTES - operand.address.wrapping_add(at) % PAGE_BYTES,
                true => (operand.address.wrapping_add(left) - 1) % PAGE_BYTES + 1,
            };
            length.min(to_page)
        })
    }

    fn wants_more(&self) -> bool {
        self.stage == Stage::Active && self.end.is_none() && self.issued < self.bytes()
    }
}

impl<B: Bus> Dsa<B> {
    /// A work descriptor is decoded.
    pub(super) fn work_started(&mut self, serial: u64) {
        let Some(work) = self.works.get(&serial) else { return };
        let place = if work.batch.is_some() { Place::Batch } else { Place::Queue };
        let checked = self.check(&work.descriptor, &work.origin, place);
        let reads_seed = reads_seed(work);
        let is_drain = work.descriptor.code() == opcode::DRAIN;
        if let Err(end) = checked {
            return self.end_work(serial, end);
        }
        if reads_seed && !self.read_seed(serial) {
            return;
        }
        let Some(work) = self.works.get_mut(&serial) else { return };
        work.stage = if is_drain { Stage::Draining } else { Stage::Active };
        if is_drain {
            return self.check_drain(serial);
        }
        self.progress(serial);
    }

    /// Reads the seed of a CRC from memory (8.3.12); whether the descriptor may go on. It takes no time.
    fn read_seed(&mut self, serial: u64) -> bool {
        let Some(work) = self.works.get(&serial) else { return false };
        let address = work.descriptor.seed_address();
        let space = work.origin.pasid;
        let mut bytes = [0; 4];
        let translated = self.translates(space, address, false);
        if translated && !self.faults.hits(address, 4) && self.bus.read(address, &mut bytes).is_ok() {
            if let Some(work) = self.works.get_mut(&serial) {
                work.crc = u32::from_le_bytes(bytes);
            }
            return true;
        }
        let is_fault = !translated || self.config.translated;
        let mut end = End::new(if is_fault { Status::PageFault } else { Status::ReadError });
        end.fault = is_fault.then_some((address, false, operand::SECOND_SOURCE));
        self.end_work(serial, end);
        false
    }

    /// Issues bursts of an engine's works, as far as it can.
    pub(super) fn issue(&mut self, engine: usize) {
        if self.faults.is_stuck(engine) || self.engines[engine].works.is_empty() {
            return;
        }
        let Some(group) = self.engine_group(engine) else { return };
        for serial in self.engines[engine].works.clone() {
            while self.works.get(&serial).is_some_and(Work::wants_more) {
                if !self.issue_burst(serial, group) {
                    // What comes behind keeps its place, unless this one waits for a page.
                    let blocked = self.works.get(&serial).is_some_and(|work| !work.wants_more());
                    if !blocked {
                        return;
                    }
                }
            }
        }
    }

    /// Issues the next burst of a descriptor; `false` if it cannot now.
    fn issue_burst(&mut self, serial: u64, group: usize) -> bool {
        let timing = self.config.timing;
        let free = self.free_buffers(group);
        let Some(work) = self.works.get_mut(&serial) else { return false };
        let at = work.issued;
        let reads = work.sources().count() as u64;
        let mut length = work.burst_length(at, timing.burst());
        if let Some(lines) = free.checked_div(reads) {
            // A burst takes the buffers that there are.
            length = length.min(lines * u64::from(timing.line_bytes()));
        } else if work.bursts.len() >= timing.writes_in_flight.max(1) as usize {
            return false;
        }
        if length == 0 {
            return false;
        }
        self.bus.enter_space(work.origin.pasid);
        let absent = work.operands().find(|operand| {
            let address = work.address(operand.address, at, length);
            !self.faults.translates(address, operand.write) || !self.bus.translates(address, operand.write)
        });
        if let Some(operand) = absent {
            let address = work.address(operand.address, at, length);
            self.fault_at(serial, (address, operand.write, operand.number));
            return false;
        }
        let buffers = reads * timing.lines(length);
        let state = if reads > 0 { BurstState::Reading } else { BurstState::Arrived };
        work.bursts.push_back(Burst { at, length, state, data: Vec::new(), buffers });
        work.issued += length;
        let sources: Vec<u64> = work.sources().map(|source| work.address(source, at, length)).collect();
        if let Some(used) =
            self.engine_group(self.works[&serial].engine).map(|group| &mut self.groups[group].buffers)
        {
            *used += buffers;
        }
        if sources.is_empty() {
            self.advance_bursts(serial);
            return true;
        }
        let mut arrives = self.now;
        for source in sources {
            let left = self.link.reads.max(self.now).after_picoseconds(timing.on_link(length));
            self.link.reads = left;
            let access = Access { address: source, bytes: length as u32, kind: AccessKind::Read };
            arrives = arrives.max(self.bus.serve(left, access));
        }
        let arrives = arrives.after_picoseconds(timing.read_latency.max(1).into());
        self.events.push(arrives, Event::Read { work: serial, at });
        true
    }

    /// A page fault: a page request if the descriptor blocks on faults, else the end of the descriptor (3.13.2, 3.13.3).
    fn fault_at(&mut self, serial: u64, fault: (u64, bool, u8)) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        let blocks = work.descriptor.flags().block_on_fault();
        if blocks {
            (work.stage, work.requested) = (Stage::Blocked, Some(fault));
            return self.after(self.config.timing.page_request, Event::Resolved { work: serial });
        }
        let mut end = End::new(Status::PageFault);
        (end.fault, end.completed) = (Some(fault), work.issued);
        work.end = Some(end);
        self.progress(serial);
    }

    /// A page request was answered.
    pub(super) fn page_resolved(&mut self, serial: u64) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        let Some(fault) = work.requested.take() else { return };
        work.stage = Stage::Active;
        self.bus.enter_space(work.origin.pasid);
        if !self.faults.resolve(fault.0, fault.1) || !self.bus.request_page(fault.0, fault.1) {
            let mut end = End::new(Status::PageRequestFailed);
            (end.fault, end.completed) = (Some(fault), work.issued);
            work.end = Some(end);
        }
        self.progress(serial);
    }

    /// The data of a burst has arrived.
    pub(super) fn burst_read(&mut self, serial: u64, at: u64) {
        if let Some(work) = self.works.get_mut(&serial)
            && let Some(burst) = work.bursts.iter_mut().find(|burst| burst.at == at)
        {
            burst.state = BurstState::Arrived;
        }
        self.advance_bursts(serial);
    }

    /// Takes the data of bursts in order, and writes it.
    fn advance_bursts(&mut self, serial: u64) {
        loop {
            let Some(work) = self.works.get(&serial) else { return };
            let next = work
                .bursts
                .iter()
                .position(|burst| burst.state != BurstState::Done && burst.state != BurstState::Writing);
            let Some(index) = next.filter(|index| work.bursts[*index].state == BurstState::Arrived) else {
                break;
            };
            let at = work.bursts[index].at;
            let length = work.bursts[index].length;
            // Data behind the place where it ended early is dropped.
            let dropped = work.end.is_some_and(|end| at >= end.completed);
            let taken = if dropped { Ok(None) } else { self.take_data(serial, at, length) };
            let Some(work) = self.works.get_mut(&serial) else { return };
            match taken {
                Ok(Some(data)) => {
                    let burst = &mut work.bursts[index];
                    (burst.data, burst.state) = (data, BurstState::Writing);
                    self.write_burst(serial, at, length);
                }
                Ok(None) => work.bursts[index].state = BurstState::Done,
                Err(end) => {
                    work.bursts[index].state = BurstState::Done;
                    work.end = Some(end);
                }
            }
            self.release_buffers(serial, index);
        }
        self.progress(serial);
    }

    fn release_buffers(&mut self, serial: u64, index: usize) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        let held = core::mem::take(&mut work.bursts[index].buffers);
        let engine = work.engine;
        if let Some(used) = self.buffers_of(engine) {
            *used -= held;
        }
    }

    /// Reads the data of a burst and does with it what the operation does. The bytes to write, if it writes; how it ends, if it ends here.
    fn take_data(&mut self, serial: u64, at: u64, length: u64) -> Result<Option<Vec<u8>>, End> {
        let Some(work) = self.works.get(&serial) else { return Ok(None) };
        self.bus.enter_space(work.origin.pasid);
        let mut sources = [Vec::new(), Vec::new()];
        let places = work.operands().filter(|operand| !operand.write);
        for (data, operand) in sources.iter_mut().zip(places) {
            let address = work.address(operand.address, at, length);
            *data = vec![0; length as usize];
            if self.faults.hits(address, length) || self.bus.read(address, data).is_err() {
                return Err(self.broken((address, false, operand.number), Status::ReadError, at));
            }
        }
        let [first, second] = sources;
        let Some(work) = self.works.get_mut(&serial) else { return Ok(None) };
        let pattern = |pattern: u64| -> Vec<u8> {
            let pattern = pattern.to_le_bytes();
            (at..at + length).map(|index| pattern[(index % 8) as usize]).collect()
        };
        let compared = match work.operation {
            Operation::Compare { .. } => Some(second),
            Operation::ComparePattern { pattern: value, .. } => Some(pattern(value)),
            _ => None,
        };
        if let Some(other) = compared {
            let differs = first.iter().zip(&other).position(|(one, other)| one != other);
            return match differs {
                None => Ok(None),
                Some(index) => {
                    let mut end = End::new(Status::Success);
                    (end.result, end.completed) = (1, at + index as u64);
                    Err(end)
                }
            };
        }
        if matches!(work.operation, Operation::Crc { .. } | Operation::CopyCrc { .. }) {
            work.crc = crc::crc(work.manner(), work.crc, &first);
        }
        Ok(match work.operation {
            Operation::Fill { pattern: value, .. } => Some(pattern(value)),
            Operation::Move { .. } | Operation::Dualcast { .. } | Operation::CopyCrc { .. } => Some(first),
            _ => None,
        })
    }

    /// An access that the bus refused: a page fault if addresses are translated, else an error of the hardware.
    fn broken(&self, fault: (u64, bool, u8), status: Status, completed: u64) -> End {
        let mut end = End::new(if self.config.translated { Status::PageFault } else { status });
        end.fault = self.config.translated.then_some(fault);
        end.completed = completed;
        end
    }

    fn write_burst(&mut self, serial: u64, at: u64, length: u64) {
        let timing = self.config.timing;
        let Some(work) = self.works.get(&serial) else { return };
        let places: Vec<u64> = work.operation.writes().into_iter().flatten().collect();
        let places: Vec<u64> = places.into_iter().map(|place| work.address(place, at, length)).collect();
        let mut ends = self.now;
        for place in places {
            let left = self.link.writes.max(self.now).after_picoseconds(timing.on_link(length));
            self.link.writes = left;
            let access = Access { address: place, bytes: length as u32, kind: AccessKind::Write };
            ends = ends.max(self.bus.serve(left, access));
        }
        let ends = ends.after_picoseconds(timing.write_latency.max(1).into());
        self.events.push(ends, Event::Written { work: serial, at });
    }

    /// A burst is in memory.
    pub(super) fn burst_written(&mut self, serial: u64, at: u64) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        let Some(burst) = work.bursts.iter_mut().find(|burst| burst.at == at) else { return };
        burst.state = BurstState::Done;
        let length = burst.length;
        let data = core::mem::take(&mut burst.data);
        let dropped = work.end.is_some_and(|end| at >= end.completed);
        let places = work.operands().filter(|operand| operand.write);
        let mut failed = None;
        self.bus.enter_space(work.origin.pasid);
        for operand in places.filter(|_| !dropped) {
            let address = work.address(operand.address, at, length);
            if self.faults.hits(address, length) || self.bus.write(address, &data).is_err() {
                failed = Some((address, true, operand.number));
                break;
            }
        }
        if let Some(fault) = failed {
            let end = self.broken(fault, Status::WriteError, at);
            if let Some(work) = self.works.get_mut(&serial) {
                work.end = Some(end);
            }
        }
        self.progress(serial);
    }

    /// Counts what is done, and ends a descriptor that has nothing left to do.
    fn progress(&mut self, serial: u64) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        while let Some(burst) = work.bursts.front().filter(|burst| burst.state == BurstState::Done) {
            work.done = burst.at + burst.length;
            work.bursts.pop_front();
        }
        if work.stage != Stage::Active || !work.bursts.is_empty() {
            return;
        }
        if let Some(end) = work.end {
            return self.end_work(serial, end);
        }
        if work.done == work.bytes() {
            self.end_work(serial, End::new(Status::Success));
        }
    }

    /// Ends a descriptor: its result becomes part of its record.
    fn end_work(&mut self, serial: u64, end: End) {
        let Some(work) = self.works.get_mut(&serial) else { return };
        if work.stage == Stage::Finishing {
            return;
        }
        work.stage = Stage::Finishing;
        let mut end = end;
        if end.status.is_fault() && matches!(work.operation, Operation::Move { .. }) {
            end.result = work.reversed.into();
        }
        let is_crc = matches!(work.operation, Operation::Crc { .. } | Operation::CopyCrc { .. });
        if is_crc && (end.status == Status::Success || end.status.is_fault()) {
            end.value = work.crc.into();
        }
        if matches!(work.operation, Operation::Compare { .. } | Operation::ComparePattern { .. })
            && end.status == Status::Success
            && work.descriptor.flags().check_result()
            && end.result != work.descriptor.expected_result() & 1
        {
            end.status = Status::FalsePredicate;
        }
        let engine = work.engine;
        let descriptor = work.descriptor;
        let origin = work.origin;
        let index = work.batch.map(|(_, index)| index);
        self.finish(Owner::Work(serial), engine, &descriptor, &origin, index, end);
    }

    /// Ends a drain whose predecessors are complete (3.12).
    pub(super) fn check_drain(&mut self, serial: u64) {
        let Some(work) = self.works.get(&serial).filter(|work| work.stage == Stage::Draining) else { return };
        let shared = !self.queues[work.origin.queue].mode().dedicated();
        let drained = work.origin;
        let waits_for = |origin: &Origin| {
            let same = origin.queue == drained.queue && (!shared || origin.pasid == drained.pasid);
            same && origin.order < drained.order
        };
        let waits = self.works.values().any(|work| waits_for(&work.origin))
            || self.batches.values().any(|batch| waits_for(&batch.origin));
        if !waits {
            self.end_work(serial, End::new(Status::Success));
        }
    }

    /// Looks at all drains again.
    pub(super) fn check_drains(&mut self) {
        let is_drain = |work: &Work| work.stage == Stage::Draining;
        let drains: Vec<u64> =
            self.works.iter().filter(|(_, work)| is_drain(work)).map(|(serial, _)| *serial).collect();
        drains.into_iter().for_each(|serial| self.check_drain(serial));
    }
}

/// Whether the descriptor's seed is in memory.
fn reads_seed(work: &Work) -> bool {
    let is_crc = matches!(work.operation, Operation::Crc { .. } | Operation::CopyCrc { .. });
    is_crc && work.descriptor.flags().specific() & specific::READ_SEED != 0
}
