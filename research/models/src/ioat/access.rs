//! The one way to memory, and what channels do with it.
//!
//! ```text
//! free ──► next channel in turn that wants it ─┬─ fetch of a descriptor, while fewer are at work than the pipeline holds
//!                                              ├─ write of a burst whose sources have arrived
//!                                              └─ read of the next burst, source by source, while few enough are under way
//! ```
//!
//! An access occupies the way for its bytes; latency follows without occupying it. So one channel is bounded by its bursts under way and
//! all together by the way, whose turns go round the channels. Descriptors of a channel complete in their order.

use super::channel::{Burst, Channel, Fetch, Work};
use super::{Event, Ioat, words};
use crate::{AccessKind, Bus, BusError};
use alloc::vec;
use memferry_clock::Instant;
use memferry_registers::ioat::descriptor::{Body, Descriptor, Undecodable, WORDS};
use memferry_registers::ioat::{CHANNELS, Chanerr, DESCRIPTOR_BYTES, TransferState};

/// The way to memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    free_at: Instant,
    /// Who had it last.
    turn: usize,
}

/// What a channel does next with the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Fetch,
    /// Of a burst of a descriptor at work.
    Write(usize, usize),
    /// Of a descriptor at work.
    Read(usize),
}

/// A burst of `length` bytes from `offset` of a descriptor ends where an access of its destination may not cross.
fn burst_length(work: &Work, burst: u64) -> u64 {
    let at = work.destination().wrapping_add(work.begun);
    (burst - at % burst).min(work.length() - work.begun)
}

impl Channel {
    fn wants(&self, now: Instant, pipeline: usize, outstanding: usize) -> Option<Access> {
        if self.resetting || self.state != TransferState::Active || self.begins > now {
            return None;
        }
        let fetching = self.fetch.as_ref();
        let room = self.works.len() < pipeline && !self.suspending && self.fetch_failure.is_none();
        let fetches = fetching.map_or(room && self.unfetched() > 0, |fetch| !fetch.under_way);
        if fetches {
            return Some(Access::Fetch);
        }
        for (index, work) in self.works.iter().enumerate() {
            let ready = |burst: &Burst| burst.awaited == 0 && !burst.writing;
            if let Some(burst) = work.bursts.iter().position(ready).filter(|_| work.failure.is_none()) {
                return Some(Access::Write(index, burst));
            }
        }
        let under_way: usize = self.works.iter().map(|work| work.bursts.len()).sum();
        for (index, work) in self.works.iter().enumerate() {
            let asks_on = work.asked < work.sources().len() && work.begun > 0;
            let begins = work.begun < work.length() && under_way < outstanding;
            if work.failure.is_none() && (asks_on || begins) {
                // A descriptor that nothing was done for does not begin any more.
                return (!self.suspending || work.begun > 0).then_some(Access::Read(index));
            }
            if work.failure.is_some() || !work.has_asked_all() || work.descriptor.control.fence() {
                return None;
            }
        }
        None
    }

    fn work(&mut self, serial: u64) -> Option<&mut Work> {
        self.works.iter_mut().find(|work| work.serial == serial)
    }
}

impl<B: Bus> Ioat<B> {
    /// Gives the way to the next channel that wants it.
    pub(super) fn schedule(&mut self) {
        if self.port.free_at > self.now {
            return;
        }
        let timing = self.config.timing;
        let pipeline = timing.pipeline.max(1) as usize;
        let outstanding = timing.outstanding.max(1) as usize;
        let turns = (1..=CHANNELS).map(|step| (self.port.turn + step) % CHANNELS);
        let wanted = turns.filter(|channel| !self.faults.is_stuck(*channel)).find_map(|channel| {
            Some((channel, self.channels[channel].wants(self.now, pipeline, outstanding)?))
        });
        if let Some((channel, access)) = wanted {
            let cycles = match access {
                Access::Fetch => self.fetch(channel),
                Access::Write(work, burst) => self.write(channel, work, burst),
                Access::Read(work) => self.read(channel, work),
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
        self.reach(place, (cycles, timing.read_latency + timing.decode), channel, Event::Fetched { address });
        cycles
    }

    pub(super) fn fetched(&mut self, channel: usize, address: u64) {
        // One that a suspend made forgotten may still arrive.
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
                self.take_up(channel, descriptor, first);
            }
            None => match self.judge(channel, &read) {
                Err(error) => self.bad_fetch(channel, error),
                Ok(descriptor) if descriptor.slots() > 1 => {
                    let extends = Some((descriptor, address));
                    let address = descriptor.next;
                    let under_way = false;
                    self.channels[channel].fetch = Some(Fetch { address, extends, under_way });
                }
                Ok(descriptor) => self.take_up(channel, descriptor, address),
            },
        }
    }

    /// Whether the device carries out such a descriptor.
    fn judge(&self, channel: usize, words: &[u64; WORDS]) -> Result<Descriptor, Chanerr> {
        let capability = self.config.capability;
        let control = Chanerr::new().with_control(true);
        let descriptor = Descriptor::decode(words).map_err(|error| match error {
            Undecodable::Opcode(_) | Undecodable::PageBreak | Undecodable::TooManySources => control,
        })?;
        let (possible, sized) = match descriptor.body {
            Body::Null => (true, false),
            Body::Copy { .. } => (true, true),
            Body::Fill { .. } => (capability.block_fill(), true),
            Body::Xor { .. } => (capability.xor(), true),
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

    fn take_up(&mut self, channel: usize, descriptor: Descriptor, address: u64) {
        let state = &mut self.channels[channel];
        state.serial += 1;
        state.fetched = state.fetched.wrapping_add(descriptor.slots());
        state.next = descriptor.next;
        // Nothing was asked for yet: `asked` is of the burst begun last.
        let mut work = Work {
            serial: state.serial,
            address,
            descriptor,
            begun: 0,
            asked: 0,
            bursts: [].into(),
            failure: None,
        };
        work.asked = work.sources().len();
        state.works.push_back(work);
        self.retire(channel);
    }

    /// A descriptor that cannot be had halts the channel, after those before it.
    fn bad_fetch(&mut self, channel: usize, error: Chanerr) {
        self.channels[channel].fetch_failure = Some(error);
        self.retire(channel);
    }

    fn read(&mut self, channel: usize, index: usize) -> u64 {
        let timing = self.config.timing;
        let burst = timing.burst();
        let Some(work) = self.channels[channel].works.get_mut(index) else { return 1 };
        if work.asked == work.sources().len() {
            let offset = work.begun;
            let length = burst_length(work, burst);
            let (data, awaited) = match work.descriptor.body {
                Body::Fill { pattern, .. } => (painted(pattern, offset, length), 0),
                _ => (vec![0; length as usize], work.sources().len()),
            };
            work.bursts.push_back(Burst { offset, data, awaited, writing: false });
            (work.begun, work.asked) = (offset + length, 0);
            if awaited == 0 {
                return 1;
            }
        }
        let Some(last) = work.bursts.back() else { return 1 };
        let serial = work.serial;
        let offset = last.offset;
        let source = work.asked;
        let length = last.data.len() as u64;
        let address = work.sources().get(source).map_or(0, |first| first.wrapping_add(offset));
        let cycles = timing.occupancy(length);
        work.asked += 1;
        let place = (address, length, AccessKind::Read);
        self.reach(place, (cycles, timing.read_latency), channel, Event::Read { serial, offset, source });
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
            }
            Err(BusError) => {
                work.failure = Some(Chanerr::new().with_read_data(true));
                self.retire(channel);
            }
        }
    }

    fn write(&mut self, channel: usize, index: usize, burst: usize) -> u64 {
        let timing = self.config.timing;
        let Some(work) = self.channels[channel].works.get_mut(index) else { return 1 };
        let serial = work.serial;
        let first = work.destination();
        let Some(burst) = work.bursts.get_mut(burst) else { return 1 };
        burst.writing = true;
        let offset = burst.offset;
        let length = burst.data.len() as u64;
        let cycles = timing.occupancy(length);
        let place = (first.wrapping_add(offset), length, AccessKind::Write);
        self.reach(place, (cycles, timing.write_latency), channel, Event::Written { serial, offset });
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

    /// Completes descriptors that are over, in their order.
    fn retire(&mut self, channel: usize) {
        while self.channels[channel].works.front().is_some_and(Work::is_over) {
            let state = &mut self.channels[channel];
            let Some(work) = state.works.pop_front() else { break };
            if let Some(error) = work.failure {
                if error.into_bits() & !state.mask.into_bits() != 0 {
                    return self.halt(channel, error);
                }
                state.error = Chanerr::from_bits(state.error.into_bits() | error.into_bits());
            }
            state.processed = state.processed.wrapping_add(work.descriptor.slots());
            state.completed = work.address;
            let control = work.descriptor.control;
            // A channel that is to stand still does so after its last completion.
            let suspending = state.suspending;
            if !suspending {
                state.settle();
            }
            self.complete(channel, control.completion_write(), control.interrupt());
            if suspending {
                self.channels[channel].settle();
            }
        }
        let state = &self.channels[channel];
        if let Some(error) = state.fetch_failure.filter(|_| state.works.is_empty()) {
            self.halt(channel, error);
        }
    }

    /// Stops the channel for an error.
    pub(super) fn halt(&mut self, channel: usize, error: Chanerr) {
        let state = &mut self.channels[channel];
        state.drop_all();
        state.state = TransferState::Halted;
        state.error = Chanerr::from_bits(state.error.into_bits() | error.into_bits());
        let control = state.control;
        self.complete(channel, control.error_completion_enable(), control.error_interrupt_enable());
    }

    /// Writes the status, then interrupts, as asked.
    fn complete(&mut self, channel: usize, write: bool, interrupt: bool) {
        if !write {
            if interrupt {
                self.interrupt(channel);
            }
            return;
        }
        let timing = self.config.timing;
        let status = self.channels[channel].status().into_bits();
        self.channels[channel].completing += 1;
        // It goes ahead of what waits.
        let cycles = timing.occupancy(8);
        self.port.free_at = self.port.free_at.max(self.now).after_picoseconds(timing.picoseconds(cycles));
        let wait = self.port.free_at;
        self.events
            .push(wait, super::Due { channel, epoch: self.channels[channel].epoch, event: Event::Free });
        let place = (self.channels[channel].completion, 8, AccessKind::Write);
        let event = Event::Completed { status, interrupt };
        self.reach(place, (cycles, timing.write_latency), channel, event);
    }

    pub(super) fn completed(&mut self, channel: usize, status: u64, interrupt: bool) {
        let state = &mut self.channels[channel];
        state.completing = state.completing.saturating_sub(1);
        state.settle();
        let address = state.completion;
        if self.faults.completions_to_lose > 0 {
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

    fn interrupt(&mut self, channel: usize) {
        let control = self.channels[channel].control;
        if control.interrupt_disable() {
            return;
        }
        self.channels[channel].control = control.with_interrupt_disable(true);
        if self.faults.interrupts_to_lose > 0 {
            self.faults.interrupts_to_lose -= 1;
        } else {
            self.attention |= 1 << channel;
        }
    }

    fn load(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len() as u64) {
            return Err(BusError);
        }
        self.bus.read(u32::try_from(address).map_err(|_| BusError)?, bytes)
    }

    fn store(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len() as u64) {
            return Err(BusError);
        }
        self.bus.write(u32::try_from(address).map_err(|_| BusError)?, bytes)
    }
}

/// `length` bytes of a pattern, from its byte `offset`.
fn painted(pattern: u64, offset: u64, length: u64) -> alloc::vec::Vec<u8> {
    let pattern = pattern.to_le_bytes();
    (offset..offset + length).map(|at| pattern[(at % 8) as usize]).collect()
}
