//! The memory port and how channels use it.
//!
//! ```text
//! free ──► next channel with work ─┬─ fetch of a descriptor, while fewer are in flight than the pipeline holds
//!                                  ├─ write of a burst whose sources have arrived
//!                                  └─ read of the next burst, source by source, within the limit on accesses
//! ```
//!
//! An access occupies the port for its bytes; its latency does not occupy the port. One channel is therefore limited by
//! its outstanding bursts, all together by the port, which serves channels in round robin. Descriptors of a channel
//! complete in order.

use super::channel::{Burst, Channel, Fetch, Gate, Work};
use super::faults::{PlannedFault, Until};
use super::{Event, Ioat, Unarmed, words};
use crate::{AccessKind, Bus, BusError};
use alloc::vec;
use memferry_clock::Instant;
use memferry_registers::ioat::descriptor::{Body, Descriptor, Undecodable, WORDS};
use memferry_registers::ioat::{CHANNELS, Chanerr, DESCRIPTOR_BYTES, TransferState};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    free_at: Instant,
    /// The channel of the last access.
    turn: usize,
}

/// A channel's next access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Fetch,
    /// Index of the descriptor in flight, and of its burst.
    Write(usize, usize),
    /// Index of the descriptor in flight.
    Read(usize),
    /// No access: a planned fault of the oldest descriptor in flight takes effect, or has delayed it for long enough.
    Gate,
}

/// The write of a channel's status at its completion address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StatusWrite {
    /// It was not requested.
    Skipped,
    /// A fault keeps it from memory.
    Lost,
    Sent,
}

/// Length of the burst at `work.bytes_started`: it ends at the next multiple of `burst` of the destination's address.
fn burst_length(work: &Work, burst: u64) -> u64 {
    let at = work.destination().wrapping_add(work.bytes_started);
    (burst - at % burst).min(work.length() - work.bytes_started)
}

impl Channel {
    fn next_access(&self, now: Instant, pipeline: usize, outstanding: usize) -> Option<Access> {
        if self.resetting || self.state != TransferState::Active || self.begins > now {
            return None;
        }
        let fetching = self.fetch.as_ref();
        let room = self.in_flight.len() < pipeline && !self.suspending && self.fetch_failure.is_none();
        let fetches = fetching.map_or(room && self.unfetched() > 0, |fetch| !fetch.under_way);
        if fetches {
            return Some(Access::Fetch);
        }
        for (index, work) in self.in_flight.iter().enumerate() {
            let ready = |burst: &Burst| burst.awaited == 0 && !burst.writing;
            if let Some(burst) = work.bursts.iter().position(ready).filter(|_| work.failure.is_none()) {
                return Some(Access::Write(index, burst));
            }
        }
        let under_way: usize = self.in_flight.iter().map(|work| work.bursts.len()).sum();
        for (index, work) in self.in_flight.iter().enumerate() {
            match work.gate {
                Some(Gate::Until(until)) if until > now => return None,
                Some(_) => return (index == 0).then_some(Access::Gate),
                None => {}
            }
            let reads_more = work.sources_read < work.sources().len() && work.bytes_started > 0;
            let begins = work.bytes_started < work.length() && under_way < outstanding;
            if work.failure.is_none() && (reads_more || begins) {
                // A suspending channel starts no further descriptor.
                return (!self.suspending || work.bytes_started > 0).then_some(Access::Read(index));
            }
            if work.failure.is_some() || !work.has_issued_reads() || work.descriptor.control.fence() {
                return None;
            }
        }
        None
    }

    fn work(&mut self, serial: u64) -> Option<&mut Work> {
        self.in_flight.iter_mut().find(|work| work.serial == serial)
    }
}

impl<B: Bus> Ioat<B> {
    /// Gives the port to the next channel with an access to issue.
    pub(super) fn schedule(&mut self) {
        if self.port.free_at > self.now {
            return;
        }
        let timing = self.config.timing;
        let pipeline = timing.pipeline.max(1) as usize;
        let outstanding = timing.outstanding.max(1) as usize;
        let turns = (1..=CHANNELS).map(|step| (self.port.turn + step) % CHANNELS);
        let wanted = turns.filter(|channel| !self.faults.is_stuck(*channel)).find_map(|channel| {
            Some((channel, self.channels[channel].next_access(self.now, pipeline, outstanding)?))
        });
        if let Some((channel, access)) = wanted {
            let cycles = match access {
                Access::Fetch => self.fetch(channel),
                Access::Write(work, burst) => self.write(channel, work, burst),
                Access::Read(work) => self.read(channel, work),
                Access::Gate => {
                    self.apply_fault(channel);
                    1
                }
            };
            self.port = Port { free_at: self.occupied(cycles), turn: channel };
            self.after(cycles, channel, Event::Free);
        }
    }

    fn occupied(&self, cycles: u64) -> Instant {
        self.now.after_picoseconds(self.config.timing.picoseconds(cycles))
    }

    fn fetch(&mut self, channel: usize) -> u64 {
        let timing = self.config.timing;
        let state = &mut self.channels[channel];
        let next = state.next;
        let fetch = state.fetch.get_or_insert(Fetch { address: next, extends: None, under_way: true });
        fetch.under_way = true;
        let address = fetch.address;
        let cycles = timing.occupancy(DESCRIPTOR_BYTES);
        let place = (address, DESCRIPTOR_BYTES, AccessKind::Read);
        self.access_memory(
            place,
            (cycles, timing.read_latency + timing.decode),
            channel,
            Event::Fetched { address },
        );
        cycles
    }

    pub(super) fn fetched(&mut self, channel: usize, address: u64) {
        // A fetch dropped by a suspend may still arrive.
        let Some(fetch) = self.channels[channel].fetch.take_if(|fetch| fetch.address == address) else {
            return;
        };
        let mut bytes = [0; 8 * WORDS];
        if !address.is_multiple_of(DESCRIPTOR_BYTES) {
            return self.bad_fetch(channel, Chanerr::new().with_descriptor(true));
        }
        if self.load(address, &mut bytes).is_err() {
            return self.bad_fetch(channel, Chanerr::new().with_next_address(true));
        }
        let mut read = words(&bytes);
        if self.faults.descriptors_to_spoil > 0 {
            self.faults.descriptors_to_spoil -= 1;
            read[0] |= 0xFF << 56;
        }
        match fetch.extends {
            Some((mut descriptor, first)) => {
                descriptor.extend(&read);
                self.enqueue(channel, descriptor, first);
            }
            None => match self.validate(channel, &read) {
                Err(error) => self.bad_fetch(channel, error),
                Ok(descriptor) if descriptor.slots() > 1 => {
                    let extends = Some((descriptor, address));
                    let address = descriptor.next;
                    let under_way = false;
                    self.channels[channel].fetch = Some(Fetch { address, extends, under_way });
                }
                Ok(descriptor) => self.enqueue(channel, descriptor, address),
            },
        }
    }

    /// Decodes a descriptor and checks that the device can execute it.
    fn validate(&self, channel: usize, words: &[u64; WORDS]) -> Result<Descriptor, Chanerr> {
        let capability = self.config.capability;
        let control = Chanerr::new().with_control(true);
        let descriptor = Descriptor::decode(words).map_err(|error| match error {
            Undecodable::Opcode(_) | Undecodable::PageBreak | Undecodable::TooManySources => control,
        })?;
        let (possible, sized) = match descriptor.body {
            Body::Null => (true, false),
            Body::Copy { .. } => (true, true),
            Body::Fill { .. } => (capability.block_fill(), true),
            Body::Xor { .. } | Body::XorCheck { .. } => (capability.xor(), true),
        };
        let size = u64::from(descriptor.size);
        if !possible {
            Err(control)
        } else if sized && (size == 0 || size > self.config.longest()) {
            Err(Chanerr::new().with_length(true))
        } else if descriptor.slots() > self.channels[channel].unfetched() {
            Err(Chanerr::new().with_descriptor_count(true))
        } else {
            Ok(descriptor)
        }
    }

    fn enqueue(&mut self, channel: usize, descriptor: Descriptor, address: u64) {
        let state = &mut self.channels[channel];
        state.serial += 1;
        state.fetched = state.fetched.wrapping_add(descriptor.slots());
        state.next = descriptor.next;
        let mut work = Work::new(state.serial, address, descriptor);
        state.ordinal += 1;
        for planned in self.faults.planned(channel, state.ordinal) {
            match planned.fault {
                PlannedFault::LoseCompletion => work.loses_completion = true,
                PlannedFault::LoseInterrupt => work.loses_interrupt = true,
                _ => work.gate = Some(Gate::Fault(*planned)),
            }
        }
        state.in_flight.push_back(work);
        self.retire(channel);
    }

    /// Applies the fault that was planned for the oldest descriptor in flight, or ends its delay.
    fn apply_fault(&mut self, channel: usize) {
        let Some(work) = self.channels[channel].in_flight.front_mut() else { return };
        let Some(gate) = work.gate.take() else { return };
        let Gate::Fault(planned) = gate else { return self.retire(channel) };
        match planned.fault {
            PlannedFault::Halt(error) => self.halt(channel, error),
            PlannedFault::Slow(delay) => {
                let until = self.now.after(delay);
                work.gate = Some(Gate::Until(until));
                self.at(until, channel, Event::Free);
            }
            PlannedFault::Stick(until) => {
                // It begins when the channel continues.
                work.gate = Some(Gate::Until(self.now));
                self.faults.stick_until(channel, until);
                if let Until::Elapsed(time) = until {
                    self.at(self.now.after(time), channel, Event::Released);
                }
            }
            PlannedFault::LoseCompletion | PlannedFault::LoseInterrupt => {}
        }
    }

    /// Records a failed fetch: the channel halts once the descriptors before it have completed.
    fn bad_fetch(&mut self, channel: usize, error: Chanerr) {
        self.channels[channel].fetch_failure = Some(error);
        self.retire(channel);
    }

    fn read(&mut self, channel: usize, index: usize) -> u64 {
        let timing = self.config.timing;
        let burst = timing.burst();
        let Some(work) = self.channels[channel].in_flight.get_mut(index) else { return 1 };
        if work.sources_read == work.sources().len() {
            let offset = work.bytes_started;
            let length = burst_length(work, burst);
            let (data, awaited) = match work.descriptor.body {
                Body::Fill { pattern, .. } => (pattern_bytes(pattern, offset, length), 0),
                _ => (vec![0; length as usize], work.sources().len()),
            };
            work.bursts.push_back(Burst { offset, data, awaited, writing: false });
            (work.bytes_started, work.sources_read) = (offset + length, 0);
            if awaited == 0 {
                return 1;
            }
        }
        let Some(last) = work.bursts.back() else { return 1 };
        let serial = work.serial;
        let offset = last.offset;
        let source = work.sources_read;
        let length = last.data.len() as u64;
        let address = work.sources().get(source).map_or(0, |first| first.wrapping_add(offset));
        let cycles = timing.occupancy(length);
        work.sources_read += 1;
        let place = (address, length, AccessKind::Read);
        self.access_memory(
            place,
            (cycles, timing.read_latency),
            channel,
            Event::Read { serial, offset, source },
        );
        cycles
    }

    pub(super) fn read_done(&mut self, channel: usize, serial: u64, offset: u64, source: usize) {
        let Some(work) = self.channels[channel].work(serial) else { return };
        let address = work.sources().get(source).map(|first| first.wrapping_add(offset));
        let length = work.bursts.iter().find(|burst| burst.offset == offset).map(|burst| burst.data.len());
        let (Some(address), Some(length)) = (address, length) else { return };
        let mut bytes = vec![0; length];
        let loaded = self.load(address, &mut bytes);
        let Some(work) = self.channels[channel].work(serial) else { return };
        let Some(burst) = work.bursts.iter_mut().find(|burst| burst.offset == offset) else { return };
        match loaded {
            Ok(()) => {
                burst.data.iter_mut().zip(&bytes).for_each(|(to, byte)| *to ^= byte);
                burst.awaited -= 1;
                self.compare(channel, serial, offset);
            }
            Err(BusError) => {
                work.failure = Some(Chanerr::new().with_read_data(true));
                self.retire(channel);
            }
        }
    }

    /// Ends a burst of a check whose sources have all arrived; their XOR must be zero.
    fn compare(&mut self, channel: usize, serial: u64, offset: u64) {
        let Some(work) = self.channels[channel].work(serial).filter(|work| work.is_check()) else { return };
        let arrived = |burst: &Burst| burst.offset == offset && burst.awaited == 0;
        let Some(place) = work.bursts.iter().position(arrived) else { return };
        if work.bursts.remove(place).is_some_and(|burst| burst.data.iter().any(|byte| *byte != 0)) {
            work.failure = Some(Chanerr::new().with_xor_p_or_crc(true));
        }
        self.retire(channel);
    }

    fn write(&mut self, channel: usize, index: usize, burst: usize) -> u64 {
        let timing = self.config.timing;
        let Some(work) = self.channels[channel].in_flight.get_mut(index) else { return 1 };
        let serial = work.serial;
        let first = work.destination();
        let Some(burst) = work.bursts.get_mut(burst) else { return 1 };
        burst.writing = true;
        let offset = burst.offset;
        let length = burst.data.len() as u64;
        let cycles = timing.occupancy(length);
        let place = (first.wrapping_add(offset), length, AccessKind::Write);
        self.access_memory(place, (cycles, timing.write_latency), channel, Event::Written { serial, offset });
        cycles
    }

    pub(super) fn write_done(&mut self, channel: usize, serial: u64, offset: u64) {
        let Some(work) = self.channels[channel].work(serial) else { return };
        let address = work.destination().wrapping_add(offset);
        let Some(place) = work.bursts.iter().position(|burst| burst.offset == offset) else { return };
        let Some(burst) = work.bursts.remove(place) else { return };
        if self.store(address, &burst.data).is_err()
            && let Some(work) = self.channels[channel].work(serial)
        {
            work.failure = Some(Chanerr::new().with_write_data(true));
        }
        self.retire(channel);
    }

    /// Completes finished descriptors, in order.
    fn retire(&mut self, channel: usize) {
        while self.channels[channel].in_flight.front().is_some_and(Work::is_over) {
            let state = &mut self.channels[channel];
            let Some(work) = state.in_flight.pop_front() else { break };
            if let Some(error) = work.failure {
                if error.into_bits() & !state.mask.into_bits() != 0 {
                    return self.halt(channel, error);
                }
                state.error = Chanerr::from_bits(state.error.into_bits() | error.into_bits());
            }
            state.processed = state.processed.wrapping_add(work.descriptor.slots());
            state.completed = work.address;
            let control = work.descriptor.control;
            // A suspending channel changes its state only after its last completion write.
            let suspending = state.suspending;
            let interrupt = control.interrupt() && !work.loses_interrupt;
            if !suspending {
                state.settle();
            }
            let write = match (control.completion_write(), work.loses_completion) {
                (false, _) => StatusWrite::Skipped,
                (true, true) => StatusWrite::Lost,
                (true, false) => StatusWrite::Sent,
            };
            self.complete(channel, write, interrupt);
            if suspending {
                self.channels[channel].settle();
            }
        }
        let state = &self.channels[channel];
        if let Some(error) = state.fetch_failure.filter(|_| state.in_flight.is_empty()) {
            self.halt(channel, error);
        }
    }

    /// Halts the channel with an error.
    pub(super) fn halt(&mut self, channel: usize, error: Chanerr) {
        let state = &mut self.channels[channel];
        state.drop_all();
        state.state = TransferState::Halted;
        state.error = Chanerr::from_bits(state.error.into_bits() | error.into_bits());
        let control = state.control;
        let write = if control.error_completion_enable() { StatusWrite::Sent } else { StatusWrite::Skipped };
        self.complete(channel, write, control.error_interrupt_enable());
    }

    /// Writes the status, then raises the interrupt if it is requested.
    fn complete(&mut self, channel: usize, write: StatusWrite, interrupt: bool) {
        if write == StatusWrite::Skipped {
            if interrupt {
                self.interrupt(channel);
            }
            return;
        }
        let timing = self.config.timing;
        let status = self.channels[channel].status().into_bits();
        self.channels[channel].completing += 1;
        // The completion write goes ahead of waiting accesses.
        let cycles = timing.occupancy(8);
        self.port.free_at = self.port.free_at.max(self.now).after_picoseconds(timing.picoseconds(cycles));
        let wait = self.port.free_at;
        self.events
            .push(wait, super::Due { channel, epoch: self.channels[channel].epoch, event: Event::Free });
        let place = (self.channels[channel].completion, 8, AccessKind::Write);
        let lost = write == StatusWrite::Lost;
        let event = Event::Completed { status, interrupt, lost };
        self.access_memory(place, (cycles, timing.write_latency), channel, event);
    }

    pub(super) fn completed(&mut self, channel: usize, status: u64, interrupt: bool, lost: bool) {
        let state = &mut self.channels[channel];
        state.completing = state.completing.saturating_sub(1);
        state.settle();
        let address = state.completion;
        if lost {
            // The fault of one descriptor.
        } else if self.faults.completions_to_lose > 0 {
            self.faults.completions_to_lose -= 1;
        } else if address == 0 {
            self.no_completion_address(channel);
        } else if self.store(address, &status.to_le_bytes()).is_err() {
            let error = Chanerr::new().with_completion_address(true);
            let state = &mut self.channels[channel];
            state.drop_all();
            state.state = TransferState::Halted;
            state.error = Chanerr::from_bits(state.error.into_bits() | error.into_bits());
            return self.interrupt(channel);
        }
        if interrupt {
            self.interrupt(channel);
        }
    }

    pub(super) fn interrupt(&mut self, channel: usize) {
        let control = self.channels[channel].control;
        if control.interrupt_disable() {
            self.channels[channel].held = self.config.unarmed == Unarmed::Held;
            return;
        }
        self.channels[channel].control = control.with_interrupt_disable(true);
        if self.faults.interrupts_to_lose > 0 {
            self.faults.interrupts_to_lose -= 1;
        } else if self.intrctrl.msix_vector_control() {
            self.messages |= 1 << channel;
        } else {
            self.attention |= 1 << channel;
        }
    }

    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len() as u64) {
            return Err(BusError);
        }
        self.bus.read(address, bytes)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len() as u64) {
            return Err(BusError);
        }
        self.bus.write(address, bytes)
    }
}

/// `length` bytes of a repeated pattern, starting `offset` bytes into it.
fn pattern_bytes(pattern: u64, offset: u64, length: u64) -> alloc::vec::Vec<u8> {
    let pattern = pattern.to_le_bytes();
    (offset..offset + length).map(|at| pattern[(at % 8) as usize]).collect()
}
