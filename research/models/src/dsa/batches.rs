//! Batches: lists of descriptors in memory (3.8, 8.3.2), and their fences (3.9).
//!
//! ```text
//! batch descriptor ── checks ──► list read ──► children, in any order, fences in between ──► all complete ──► record of the batch
//! ```

use super::checks::Place;
use super::finish::End;
use super::origin::Origin;
use super::{Dsa, Event, Owner};
use crate::{Access, AccessKind, Bus};
use alloc::vec;
use alloc::vec::Vec;
use memferry_dsa_registers::PAGE_BYTES;
use memferry_dsa_registers::descriptor::{BYTES, Descriptor, WORDS};
use memferry_dsa_registers::record::{Status, operand};

#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) engine: usize,
    pub(super) descriptor: Descriptor,
    pub(super) origin: Origin,
    /// Descriptors that were read, as far as there was no fault.
    children: Vec<Descriptor>,
    next: usize,
    running: usize,
    /// A child did not succeed.
    failed: bool,
    /// The list has arrived, or will not.
    listed: bool,
    /// What ends it besides its children: a fault on the list, or a broken rule.
    end: Option<End>,
    finishing: bool,
}

impl Batch {
    pub(super) const fn new(engine: usize, descriptor: Descriptor, origin: Origin) -> Self {
        Self {
            engine,
            descriptor,
            origin,
            children: Vec::new(),
            next: 0,
            running: 0,
            failed: false,
            listed: false,
            end: None,
            finishing: false,
        }
    }

    fn list(&self) -> u64 {
        self.descriptor.words[2]
    }
}

impl<B: Bus> Dsa<B> {
    /// The batch is decoded: checks it, then reads its list.
    pub(super) fn batch_started(&mut self, serial: u64) {
        let Some(batch) = self.batches.get(&serial) else { return };
        let checked = self.check(&batch.descriptor, &batch.origin, Place::Queue);
        let list = batch.list();
        let count = u64::from(batch.descriptor.size());
        if let Err(end) = checked {
            let Some(batch) = self.batches.get_mut(&serial) else { return };
            (batch.end, batch.listed) = (Some(end), true);
            return self.finish_batch(serial);
        }
        // Up to the first page without translation.
        let space = batch.origin.pasid;
        let absent = (0..count).find(|at| !self.translates(space, list.wrapping_add(BYTES * at), false));
        let readable = absent.unwrap_or(count);
        let Some(batch) = self.batches.get_mut(&serial) else { return };
        batch.end = absent.map(|at| End::of_list(list.wrapping_add(BYTES * at)));
        batch.children = vec![Descriptor::default(); readable as usize];
        if readable == 0 {
            batch.listed = true;
            return self.finish_batch(serial);
        }
        let timing = self.config.timing;
        let bytes = BYTES * readable;
        let left = self.link.reads.max(self.now).after_picoseconds(timing.on_link(bytes));
        self.link.reads = left;
        let bytes = bytes.min(PAGE_BYTES) as u32;
        let served = self.bus.serve(left, Access { address: list, bytes, kind: AccessKind::Read });
        self.events.push(served.after_picoseconds(timing.read_latency.max(1).into()), Event::Listed(serial));
    }

    /// The list has arrived.
    pub(super) fn batch_listed(&mut self, serial: u64) {
        let Some(batch) = self.batches.get_mut(&serial) else { return };
        let list = batch.list();
        self.bus.enter_space(batch.origin.pasid);
        let mut failed = None;
        let mut children = core::mem::take(&mut batch.children);
        for (at, child) in children.iter_mut().enumerate() {
            let address = list.wrapping_add(BYTES * at as u64);
            let mut bytes = [0; BYTES as usize];
            if self.faults.hits(address, BYTES) || self.bus.read(address, &mut bytes).is_err() {
                failed = Some(at);
                break;
            }
            let mut words = [0; WORDS];
            for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(core::array::from_fn(|index| part[index]));
            }
            *child = Descriptor { words };
        }
        let Some(batch) = self.batches.get_mut(&serial) else { return };
        batch.listed = true;
        if let Some(at) = failed {
            children.truncate(at);
            let address = list.wrapping_add(BYTES * at as u64);
            let is_fault = self.config.translated;
            batch.end = Some(if is_fault { End::of_list(address) } else { End::new(Status::ReadError) });
        }
        batch.children = children;
        self.finish_batch(serial);
    }

    /// The next descriptor of a batch that may begin, with its place.
    pub(super) fn next_child(&mut self, serial: u64) -> Option<(Descriptor, Origin, u16)> {
        let batch = self.batches.get_mut(&serial)?;
        if !batch.listed {
            return None;
        }
        let child = *batch.children.get(batch.next)?;
        // A fence waits for all before it, and stands no failure (3.9).
        if child.flags().fence() && (batch.running > 0 || batch.failed) {
            return None;
        }
        let index = batch.next as u16;
        batch.next += 1;
        batch.running += 1;
        Some((child, batch.origin, index))
    }

    /// A child is complete.
    pub(super) fn child_ended(&mut self, serial: u64, success: bool) {
        let Some(batch) = self.batches.get_mut(&serial) else { return };
        batch.running -= 1;
        batch.failed |= !success;
        self.finish_batch(serial);
    }

    /// Completes a batch that has nothing left to do.
    fn finish_batch(&mut self, serial: u64) {
        let Some(batch) = self.batches.get_mut(&serial) else { return };
        let next = batch.children.get(batch.next);
        let is_abandoned = batch.failed && next.is_some_and(|child| child.flags().fence());
        let is_over = batch.listed && batch.running == 0 && (next.is_none() || is_abandoned);
        if !is_over || batch.finishing {
            return;
        }
        batch.finishing = true;
        let end = match batch.end {
            // A broken rule: no descriptor was processed.
            Some(end) if end.fault.is_none() && batch.next == 0 => end,
            Some(end) => End { completed: batch.next as u64, result: batch.failed.into(), ..end },
            None => {
                let all = !batch.failed && next.is_none();
                let status = if all { Status::Success } else { Status::BatchFailed };
                let result = u8::from(batch.failed && self.config.general.batch_continuation());
                End { completed: batch.next as u64, result, ..End::new(status) }
            }
        };
        let engine = batch.engine;
        let descriptor = batch.descriptor;
        let origin = batch.origin;
        self.finish(Owner::Batch(serial), engine, &descriptor, &origin, None, end);
    }
}

impl End {
    /// A page fault on the list of a batch.
    const fn of_list(address: u64) -> Self {
        let mut end = Self::new(Status::BatchPageFault);
        end.fault = Some((address, false, operand::SOURCE));
        end
    }
}
