//! Reads and writes of a block: when they may be issued, what they carry, and how they end.
//!
//! ```text
//! source walk ── read issued ──► (time) ──► read done ──► FIFO ── write issued ──► (time) ──► write done ──► events
//! ```
//!
//! Memory is accessed when a read or write ends. A read ends with its last data, a posted write when memory has accepted
//! it, a non-posted one when it is acknowledged. The scheduler chooses the channel; `linked_list` handles the end of a
//! block.
//!
//! A channel may read while its FIFO is below its limit, even if the read goes above it, and while the pool has room for
//! its largest read (SPRUI30, "FIFO queue memory pool").

use super::channel::{Block, State};
use super::scheduler::Port;
use super::setup::{Operation, Setup, Unit};
use super::sync::counts_writes;
use super::{Event, Sdma};
use crate::{Access, AccessKind, Bus, BusError};
use memferry_clock::Instant;
use memferry_registers::sdma::{Csr, WriteMode};

/// Bytes of the largest access.
pub(super) const MAX_ACCESS: usize = 64;

/// States in which data moves.
const MOVING: [State; 2] = [State::Active, State::Draining];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Data {
    bytes: [u8; MAX_ACCESS],
    length: usize,
}

impl Data {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Whether a transparent copy skips the element: its low 24 bits equal the colour (paper, 2.3.2.2).
fn is_transparent(element: &[u8], color: u32) -> bool {
    let compared = element.len().min(3);
    element[..compared] == color.to_le_bytes()[..compared]
}

impl<B: Bus> Sdma<B> {
    fn block_in(&self, channel: usize, states: &[State]) -> Option<&Block> {
        let run = self.channels[channel].run.as_ref()?;
        let is_blocked = self.faults.is_stuck(channel) || self.is_suspended(channel);
        if is_blocked || !states.contains(&run.state) { None } else { run.block.as_ref() }
    }

    fn is_suspended(&self, channel: usize) -> bool {
        let sensitive = self.channels[channel].registers.ccr().suspend_sensitive();
        self.suspended && !self.sysconfig.emu_free() && sensitive
    }

    /// Whether `channel` can issue a read.
    pub(super) fn can_read(&self, channel: usize) -> bool {
        let Some((block, run)) = self.block_in(channel, &MOVING).zip(self.channels[channel].run.as_ref())
        else {
            return false;
        };
        let wants = !block.is_read() && block.fifo.room() > 0;
        wants && run.may_read(block) > 0 && self.pool_room(channel) >= block.setup.read_window
    }

    /// Whether `channel` can issue a write. The FIFO must hold a whole access or the rest of the frame (nothing is
    /// buffered across frames), or no further data can arrive before this write.
    pub(super) fn can_write(&self, channel: usize) -> bool {
        let Some((block, run)) = self.block_in(channel, &MOVING).zip(self.channels[channel].run.as_ref())
        else {
            return false;
        };
        if block.setup.destination.is_done() || run.may_write(block) == 0 {
            return false;
        }
        if block.is_fill() {
            return run.state == State::Active;
        }
        let rest_of_frame = block.waiting() >= block.setup.destination.left_in_frame();
        let whole = rest_of_frame || block.fifo.len() >= block.setup.write_window;
        block.waiting() > 0 && (whole || !self.expects_more(channel, block))
    }

    /// Whether a partial access of `channel` should wait for more data.
    fn expects_more(&self, channel: usize, block: &Block) -> bool {
        let Some(run) = self.channels[channel].run.as_ref() else {
            return false;
        };
        let size = block.setup.size;
        let has_room = block.fifo.room() >= size && self.pool_room(channel) >= size;
        let buffers = block.setup.sync.is_some_and(|sync| sync.by_source && sync.buffering);
        let waits_for_request = run.state == State::Active && buffers && run.may_read(block) == 0;
        run.reads > 0 || (waits_for_request && !block.is_read() && has_room) || self.can_read(channel)
    }

    /// Time at which the port can start a transaction whose turn begins now.
    fn port_begin(&self, port: Port) -> Instant {
        let turn = self.config.timing.turn;
        self.now.after_picoseconds(turn.into()).max(self.ports[port as usize].free_at)
    }

    /// Sends a read and returns the time at which its last data is back. The port carries requests and data
    /// independently; data arrives in the order of the reads.
    pub(super) fn read_served(&mut self, address: u32, bytes: u32) -> Instant {
        let timing = self.config.timing;
        let sent = self.port_begin(Port::Read).after_picoseconds(timing.transaction.into());
        self.ports[Port::Read as usize].free_at = sent;
        let there = u128::from(timing.read_latency / 2);
        let access = Access { address: address.into(), bytes, kind: AccessKind::Read };
        let served = self.bus.serve(sent.after_picoseconds(there), access);
        let back = served.after_picoseconds(u128::from(timing.read_latency) - there).max(self.read_data_free);
        self.read_data_free = back.after_picoseconds(timing.data(bytes));
        self.read_data_free
    }

    /// Sends a write and returns the time at which it ends: for a posted write, when memory has accepted it.
    fn write_served(&mut self, address: u32, bytes: u32, waited_for: bool) -> Instant {
        let timing = self.config.timing;
        let begin = self.port_begin(Port::Write);
        let sent = begin.after_picoseconds(u128::from(timing.transaction) + timing.data(bytes));
        let there = u128::from(timing.write_latency / 2);
        let arrival = sent.after_picoseconds(there);
        let kind = if waited_for { AccessKind::Write } else { AccessKind::PostedWrite };
        let served = self.bus.serve(arrival, Access { address: address.into(), bytes, kind });
        if waited_for {
            self.ports[Port::Write as usize].free_at = sent;
            return served.after_picoseconds(u128::from(timing.write_latency) - there);
        }
        // Late acceptance by memory blocks the port.
        let late = served.picoseconds().saturating_sub(arrival.picoseconds());
        let left = sent.after_picoseconds(late);
        self.ports[Port::Write as usize].free_at = left;
        left
    }

    /// A turn of `channel` on a thread of the read port.
    pub(super) fn read_turn(&mut self, channel: usize, thread: usize) {
        if !self.issue_read(channel, thread) {
            self.ports[Port::Read as usize].release(thread);
        }
    }

    /// A turn of `channel` on a thread of the write port.
    pub(super) fn write_turn(&mut self, channel: usize, thread: usize) {
        if !self.issue_write(channel, thread) {
            self.ports[Port::Write as usize].release(thread);
        }
    }

    /// Issues a read and returns whether it is in flight.
    fn issue_read(&mut self, channel: usize, thread: usize) -> bool {
        let room = self.pool_room(channel);
        let Some(run) = self.channels[channel].run.as_mut() else {
            return false;
        };
        let Some(allowed) = run.block.as_ref().map(|block| run.may_read(block)) else {
            return false;
        };
        let Some(block) = run.block.as_mut() else {
            return false;
        };
        let size = block.setup.size;
        let address = block.setup.source.address();
        if !address.is_multiple_of(size) {
            self.fail(channel, Csr::new().with_misaligned_error(true));
            return false;
        }
        let count = next_read(block, allowed).min(room) / size;
        let elements = block.setup.source.advance_run(count, block.setup.read_window);
        let bytes = elements * size;
        block.fifo.reserve(bytes);
        if block.setup.sync.is_some_and(|sync| sync.by_source) {
            run.credit = run.credit.saturating_sub(u64::from(elements));
        }
        run.reads += 1;
        let done = self.read_served(address, bytes);
        self.events.push(done, Event::Read { channel, thread, address, bytes });
        self.channels[channel].show_progress();
        self.show_sync(channel, true);
        true
    }

    /// Issues a write and returns whether it is in flight.
    fn issue_write(&mut self, channel: usize, thread: usize) -> bool {
        let Some(run) = self.channels[channel].run.as_mut() else {
            return false;
        };
        let Some(allowed) = run.block.as_ref().map(|block| run.may_write(block)) else {
            return false;
        };
        let Some(block) = run.block.as_mut() else {
            return false;
        };
        let address = block.setup.destination.address();
        if !address.is_multiple_of(block.setup.size) {
            self.fail(channel, Csr::new().with_misaligned_error(true));
            return false;
        }
        let starts_last =
            block.setup.destination.frame() + 1 == block.setup.frames && !block.last_frame_started;
        block.last_frame_started |= starts_last;
        let (elements, data) = take_write_data(block, allowed);
        if counts_writes(block) && block.setup.sync.is_some() {
            run.credit = run.credit.saturating_sub(u64::from(elements));
        }
        run.writes += 1;
        let waited_for = match block.setup.write_mode {
            WriteMode::Posted => false,
            WriteMode::LastNonPosted => {
                let frame_ends = block.setup.destination.left_in_frame() == block.setup.elements;
                block.setup.destination.is_done() || (frame_ends && block.setup.sync.is_some())
            }
            WriteMode::NonPosted | WriteMode::Undefined => true,
        };
        run.awaits_answer = waited_for;
        let done = self.write_served(address, data.length as u32, waited_for);
        self.events.push(done, Event::Write { channel, thread, address, data, elements, waited_for });
        if starts_last {
            self.report(channel, Csr::new().with_last_frame(true));
        }
        self.channels[channel].show_progress();
        self.show_sync(channel, true);
        true
    }

    pub(super) fn read_done(&mut self, channel: usize, address: u32, bytes: u32) {
        let mut data = [0; MAX_ACCESS];
        let data = &mut data[..bytes as usize];
        let result = self.bus_read(address, data);
        let Some(run) = self.channels[channel].run.as_mut() else {
            return;
        };
        run.reads = run.reads.saturating_sub(1);
        let taken = MOVING.contains(&run.state);
        if let Some(block) = run.block.as_mut() {
            match result {
                Ok(()) if taken => block.fifo.fill(data),
                _ => block.fifo.release(bytes),
            }
        }
        if result.is_err() {
            run.credit = 0;
        }
        if result.is_err() && taken {
            self.report(channel, Csr::new().with_transaction_error(true));
            self.disable(channel);
        }
        self.settle_request(channel);
        self.settle(channel);
    }

    pub(super) fn write_done(
        &mut self,
        channel: usize,
        address: u32,
        data: Data,
        elements: u32,
        waited_for: bool,
    ) {
        let skip = self.channels[channel].block().and_then(|block| {
            let transparent = block.setup.operation == Operation::Transparent;
            transparent.then_some((block.setup.color, block.setup.size as usize))
        });
        let result = self.write_visible(address, data.as_slice(), skip);
        let Some(run) = self.channels[channel].run.as_mut() else {
            return;
        };
        run.writes = run.writes.saturating_sub(1);
        run.awaits_answer &= !waited_for;
        let counts = MOVING.contains(&run.state);
        if result.is_err() && counts && (waited_for || self.config.posted_errors) {
            self.fail(channel, Csr::new().with_transaction_error(true));
        } else {
            self.count_written(channel, elements, counts);
        }
        self.settle(channel);
    }

    /// Writes `bytes`, without the elements that a transparent copy skips.
    fn write_visible(
        &mut self,
        address: u32,
        bytes: &[u8],
        skip: Option<(u32, usize)>,
    ) -> Result<(), BusError> {
        let Some((color, size)) = skip else {
            return self.bus_write(address, bytes);
        };
        let mut at = 0;
        for run in bytes
            .chunks(size.max(1))
            .collect::<alloc::vec::Vec<_>>()
            .chunk_by(|a, b| is_transparent(a, color) == is_transparent(b, color))
        {
            let length = run.len() * size;
            if !is_transparent(run[0], color) {
                self.bus_write(address.wrapping_add(at as u32), &bytes[at..at + length])?;
            }
            at += length;
        }
        Ok(())
    }

    /// Counts written elements and reports the block's events.
    fn count_written(&mut self, channel: usize, elements: u32, reports: bool) {
        let Some(block) = self.channels[channel].run.as_mut().and_then(|run| run.block.as_mut()) else {
            return;
        };
        let events = progress(block, elements);
        let ended = block.frames_written == block.setup.frames;
        self.channels[channel].show_progress();
        let active = self.channels[channel].state() == Some(State::Active);
        if reports {
            self.report(channel, events);
            self.settle_request(channel);
            if ended && active {
                self.block_ended(channel);
            }
        }
    }

    /// Reports an error and stops the channel.
    pub(super) fn fail(&mut self, channel: usize, error: Csr) {
        self.report(channel, error);
        self.abort(channel);
    }

    /// Stops the channel: transactions in flight finish, data already read is dropped.
    pub(super) fn abort(&mut self, channel: usize) {
        self.channels[channel].registers.set_enable(false);
        if let Some(run) = self.channels[channel].run.as_mut() {
            run.state = State::Aborting;
            if let Some(block) = run.block.as_mut() {
                block.fifo.clear();
            }
        }
        self.settle(channel);
    }

    /// Stops a channel that software disabled or whose read failed. A source-synchronized plain copy with buffering
    /// completes the request and writes what it has read; any other channel drops it (manual, section 16.4).
    pub(super) fn disable(&mut self, channel: usize) {
        let stuck = self.faults.is_stuck(channel);
        self.channels[channel].registers.set_enable(false);
        match self.channels[channel].run.as_mut() {
            Some(run) if !stuck && run.drains() => run.state = State::Draining,
            _ => self.abort(channel),
        }
        self.settle(channel);
    }

    /// Ends a stopped channel once no transaction is in flight.
    pub(super) fn settle(&mut self, channel: usize) {
        let Some(run) = self.channels[channel].run.as_ref().filter(|run| run.is_quiet()) else {
            return;
        };
        let empty = run.block.as_ref().is_none_or(|block| block.waiting() == 0);
        let served = run.credit == 0 || run.block.as_ref().is_none_or(Block::is_read);
        let drained = run.state == State::Draining && empty && served;
        if drained || run.state == State::Aborting {
            self.channels[channel].run = None;
            self.running.remove(channel);
            self.show_sync(channel, false);
        }
        if drained {
            self.report(channel, Csr::new().with_drain(true));
        }
    }

    pub(super) fn bus_read(&mut self, address: u32, bytes: &mut [u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len()) {
            Err(BusError)
        } else {
            self.bus.read(address.into(), bytes)
        }
    }

    fn bus_write(&mut self, address: u32, bytes: &[u8]) -> Result<(), BusError> {
        if self.faults.hits(address, bytes.len()) {
            Err(BusError)
        } else {
            self.bus.write(address.into(), bytes)
        }
    }
}

/// Bytes of the next read, if requests allow `allowed` elements.
fn next_read(block: &Block, allowed: u64) -> u32 {
    let Setup { size, fifo, read_window, .. } = block.setup;
    let limit = u64::from(fifo / size).min(allowed) as u32;
    block.setup.source.run(limit, read_window) * size
}

/// Takes the elements of one write from the FIFO.
fn take_write_data(block: &mut Block, allowed: u64) -> (u32, Data) {
    let Setup { size, color, swap_bytes, write_window, .. } = block.setup;
    let available = if block.is_fill() { u32::MAX } else { block.waiting() };
    let elements =
        block.setup.destination.advance_run(allowed.min(u64::from(available)) as u32, write_window);
    let length = (elements * size) as usize;
    let mut data = Data { bytes: [0; MAX_ACCESS], length };
    let bytes = &mut data.bytes[..length];
    if block.is_fill() {
        let color = color.to_le_bytes();
        bytes.chunks_mut(size as usize).for_each(|element| element.copy_from_slice(&color[..element.len()]));
    } else {
        block.fifo.take(bytes);
    }
    if swap_bytes {
        bytes.chunks_mut(size as usize).for_each(<[u8]>::reverse);
    }
    (elements, data)
}

/// Counts `elements` as written and returns the resulting events.
fn progress(block: &mut Block, elements: u32) -> Csr {
    let half = block.setup.elements / 2;
    let before = block.written;
    block.written += elements;
    let mut events = Csr::new().with_half_frame(before < half && half <= block.written);
    if block.written >= block.setup.elements {
        block.written = 0;
        block.frames_written += 1;
        events.set_frame(true);
    }
    let ended = block.frames_written == block.setup.frames;
    // Packet events are not reported for source-synchronized channels (OMAP36xx manual, 11.4, on buffering).
    let by_destination = block.setup.sync.filter(|sync| !sync.by_source);
    if let Some(Unit::Packet(packet)) = by_destination.map(|sync| sync.unit) {
        block.written_of_packet += elements;
        events.set_packet(block.written_of_packet >= packet || ended);
        block.written_of_packet %= packet.max(1);
    }
    events
}
