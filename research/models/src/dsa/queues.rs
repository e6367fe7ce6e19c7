//! Work queues, and how descriptors come from portals to engines.
//!
//! ```text
//! post, enqueue ── submission checks (5.3) ──► work queue ── arbiter (4.1) ──► engine with room: work or batch
//!                                                              children of batches ──┘
//! ```

use super::batches::Batch;
use super::complaint::{Complaint, Reason};
use super::finish::Completion;
use super::origin::Origin;
use super::work::Work;
use super::{Dsa, Event, Owner};
use crate::Bus;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use memferry_clock::Instant;
use memferry_dsa_registers::control::DeviceState;
use memferry_dsa_registers::descriptor::{Descriptor, WORDS, opcode};
use memferry_dsa_registers::error::{SoftwareError, Swerr, other};
use memferry_dsa_registers::offset::{Portal, locate_portal};
use memferry_dsa_registers::table::{Grpflags, QueueLimits, QueueMode, QueueState, word};

/// A descriptor in a work queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) descriptor: Descriptor,
    pub(super) origin: Origin,
    ready: Instant,
}

#[derive(Clone, Debug, Default)]
pub(super) struct WorkQueue {
    /// WQCFG, as 32-bit words.
    pub(super) words: [u32; word::COUNT as usize],
    pub(super) state: QueueState,
    pub(super) entries: VecDeque<Entry>,
    /// Descriptors that it may still dispatch before all queues of the group get their priority again.
    credit: u8,
}

impl WorkQueue {
    pub(super) fn size(&self) -> usize {
        usize::from(self.words[word::SIZE as usize] as u16)
    }

    pub(super) fn mode(&self) -> QueueMode {
        QueueMode::from_bits(self.words[word::MODE as usize])
    }

    pub(super) fn limits(&self) -> QueueLimits {
        QueueLimits::from_bits(self.words[word::LIMITS as usize])
    }

    fn threshold(&self) -> usize {
        usize::from(self.words[word::THRESHOLD as usize] as u16).min(self.size())
    }

    pub(super) fn occupancy(&self) -> usize {
        self.entries.len()
    }
}

/// A group: its registers, and its use of read buffers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Group {
    pub(super) queues: [u64; 4],
    pub(super) engines: u64,
    pub(super) flags: Grpflags,
    /// The queue that is asked next.
    turn: usize,
    /// Read buffers in use.
    pub(super) buffers: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Engine {
    /// Works in progress, oldest first.
    pub(super) works: Vec<u64>,
    pub(super) batches: Vec<u64>,
    /// Completions on their way to memory.
    pub(super) completions: Vec<Completion>,
    /// When it can take the next descriptor.
    next: Instant,
    /// It took a child of a batch last, so that a queue comes before the next one.
    took_child: bool,
}

impl<B: Bus> Dsa<B> {
    /// A posted write of 64 bytes to BAR 2 (MOVDIR64B). What the device drops, it drops silently.
    pub fn post(&mut self, offset: u64, words: [u64; WORDS]) {
        if self.faults.portal_writes_to_lose > 0 {
            self.faults.portal_writes_to_lose -= 1;
            return;
        }
        let Some((queue, portal)) = self.portal(offset) else { return };
        if !self.queues[queue].mode().dedicated() {
            return self.complain_at_portal(offset, Reason::PostedToShared);
        }
        if self.queues[queue].occupancy() >= self.queues[queue].size() {
            let status =
                Swerr::new().with_code(other::QUEUE_FULL).with_queue_valid(true).with_queue(queue as u8);
            return self.software_error(SoftwareError { status, ..SoftwareError::default() });
        }
        self.accept(queue, portal, Descriptor { words });
    }

    /// A deferrable write of 64 bytes to BAR 2 (ENQCMD); `false` is the answer Retry.
    pub fn enqueue(&mut self, offset: u64, words: [u64; WORDS]) -> bool {
        let Some((queue, portal)) = self.portal(offset) else { return false };
        if self.queues[queue].mode().dedicated() {
            self.complain_at_portal(offset, Reason::DeferrableToDedicated);
            return false;
        }
        let target = &self.queues[queue];
        let room = if portal.is_limited() { target.threshold() } else { target.size() };
        if target.occupancy() >= room {
            return false;
        }
        self.accept(queue, portal, Descriptor { words });
        true
    }

    /// A write to BAR 2 that is not of 64 bytes: ignored (9.3).
    pub fn ignore_portal_write(&mut self, offset: u64) {
        self.complain_at_portal(offset, Reason::NoPortal);
    }

    /// A read of BAR 2 gives ones (9.3).
    pub fn read_portal(&mut self, offset: u64) -> u8 {
        self.complain_at_portal(offset, Reason::PortalRead);
        0xFF
    }

    /// The enabled work queue and the portal at an offset.
    fn portal(&mut self, offset: u64) -> Option<(usize, Portal)> {
        let Some((queue, portal)) =
            locate_portal(offset).filter(|(queue, _)| *queue < self.queues.len() as u64)
        else {
            self.complain_at_portal(offset, Reason::NoPortal);
            return None;
        };
        let queue = queue as usize;
        // Portals of the interrupt message storage do not exist without it (3.3).
        if portal.is_ims() {
            self.complain_at_portal(offset, Reason::NoPortal);
            return None;
        }
        let enabled = self.control.state == DeviceState::Enabled;
        if !enabled || self.queues[queue].state != QueueState::Enabled {
            self.complain_at_portal(offset, Reason::QueueNotEnabled);
            return None;
        }
        Some((queue, portal))
    }

    fn accept(&mut self, queue: usize, portal: Portal, descriptor: Descriptor) {
        let mode = self.queues[queue].mode();
        let (pasid, privileged) = match mode.dedicated() {
            true => (mode.pasid(), mode.privileged() || !mode.pasid_enable()),
            false => (descriptor.pasid(), descriptor.is_privileged()),
        };
        self.order += 1;
        let origin = Origin { queue, order: self.order, pasid, privileged, ims: portal.is_ims() };
        let ready = self.now.after_picoseconds(self.config.timing.portal.into());
        self.queues[queue].entries.push_back(Entry { descriptor, origin, ready });
        self.events.push(ready, Event::Wake);
    }

    fn complain_at_portal(&mut self, offset: u64, reason: Reason) {
        self.complaints.push(Complaint { at: self.now, bar: 2, offset, value: 0, reason });
    }

    /// Gives descriptors to engines that have room.
    pub(super) fn dispatch(&mut self) {
        for group in 0..self.groups.len() {
            let engines = self.groups[group].engines;
            let mut members: Vec<usize> =
                (0..self.engines.len()).filter(|engine| engines >> engine & 1 == 1).collect();
            // The least busy one first: the specification lets any engine take a descriptor (3.4).
            members.sort_by_key(|engine| (self.engines[*engine].works.len(), *engine));
            for engine in members {
                self.feed(group, engine);
            }
        }
    }

    fn feed(&mut self, group: usize, engine: usize) {
        while self.engines[engine].next <= self.now && !self.faults.is_stuck(engine) {
            let child_first = !self.engines[engine].took_child;
            let fed = match child_first {
                true => self.feed_child(engine) || self.feed_entry(group, engine),
                false => self.feed_entry(group, engine) || self.feed_child(engine),
            };
            if !fed {
                break;
            }
            let next = self.now.after_picoseconds(self.config.timing.dispatch.max(1).into());
            self.engines[engine].next = next;
            self.events.push(next, Event::Wake);
        }
    }

    /// Works that an engine may have in progress, of the group's share (4.4).
    fn work_limit(&self, group: usize) -> usize {
        let most = usize::from(self.config.engines.work_in_progress()).max(1);
        let shift =
            if self.config.groups.progress_limit() { self.groups[group].flags.work_limit() } else { 0 };
        (most >> shift).max(1)
    }

    fn batch_limit(&self, group: usize) -> usize {
        let most = usize::from(self.config.engines.batches_in_progress()).max(1);
        let shift =
            if self.config.groups.progress_limit() { self.groups[group].flags.batch_limit() } else { 0 };
        (most >> shift).max(1)
    }

    fn group_of(&self, engine: usize) -> Option<usize> {
        self.groups.iter().position(|group| group.engines >> engine & 1 == 1)
    }

    fn feed_child(&mut self, engine: usize) -> bool {
        let Some(group) = self.group_of(engine) else { return false };
        if self.engines[engine].works.len() >= self.work_limit(group) {
            return false;
        }
        for serial in self.engines[engine].batches.clone() {
            if let Some((descriptor, origin, index)) = self.next_child(serial) {
                self.engines[engine].took_child = true;
                self.start_work(Work::new(engine, descriptor, origin, Some((serial, index))));
                return true;
            }
        }
        false
    }

    fn feed_entry(&mut self, group: usize, engine: usize) -> bool {
        let has_work_room = self.engines[engine].works.len() < self.work_limit(group);
        let has_batch_room = self.engines[engine].batches.len() < self.batch_limit(group);
        let fits = |entry: &Entry| match entry.descriptor.code() {
            opcode::BATCH => has_batch_room,
            _ => has_work_room,
        };
        let Some(entry) = self.arbitrate(group, fits) else { return false };
        self.engines[engine].took_child = false;
        match entry.descriptor.code() {
            opcode::BATCH => {
                self.serial += 1;
                let serial = self.serial;
                self.batches.insert(serial, Batch::new(engine, entry.descriptor, entry.origin));
                self.engines[engine].batches.push(serial);
                self.after(self.config.timing.decode, Event::Started(Owner::Batch(serial)));
            }
            _ => self.start_work(Work::new(engine, entry.descriptor, entry.origin, None)),
        }
        true
    }

    pub(super) fn start_work(&mut self, work: Work) {
        self.serial += 1;
        let serial = self.serial;
        self.engines[work.engine].works.push(serial);
        self.works.insert(serial, work);
        self.after(self.config.timing.decode, Event::Started(Owner::Work(serial)));
    }

    /// The next descriptor of a group's work queues (4.1): one from each in turn that has credit, and new credit for all once none has.
    fn arbitrate(&mut self, group: usize, fits: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let now = self.now;
        let member = |queue: usize| self.groups[group].queues[queue / 64] >> (queue % 64) & 1 == 1;
        let members: Vec<usize> = (0..self.queues.len()).filter(|queue| member(*queue)).collect();
        let has = |queue: &WorkQueue| queue.entries.front().is_some_and(|entry| entry.ready <= now);
        let mut pending = members.iter().filter(|queue| has(&self.queues[**queue])).peekable();
        pending.peek()?;
        if pending.all(|queue| self.queues[*queue].credit == 0) {
            for queue in &members {
                let priority = self.queues[*queue].mode().priority();
                self.queues[*queue].credit = if self.config.queues.priority() { priority.max(1) } else { 1 };
            }
        }
        for step in 0..members.len() {
            let at = (self.groups[group].turn + step) % members.len();
            let queue = &mut self.queues[members[at]];
            if queue.credit == 0
                || !queue.entries.front().is_some_and(|entry| entry.ready <= now && fits(entry))
            {
                continue;
            }
            queue.credit -= 1;
            let entry = queue.entries.pop_front();
            self.groups[group].turn = at + 1;
            return entry;
        }
        None
    }

    /// Read buffers that a group can have now, of the device's and its own (4.3).
    pub(super) fn free_buffers(&self, group: usize) -> u64 {
        let total = u64::from(self.config.groups.read_buffers()).max(1);
        if !self.config.groups.read_buffer_control() {
            return total.saturating_sub(self.groups.iter().map(|group| group.buffers).sum());
        }
        let kept_for = |other: &Group| other.buffers.max(other.flags.read_buffers_reserved().into());
        let others: u64 = self
            .groups
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != group)
            .map(|(_, other)| kept_for(other))
            .sum();
        let own = &self.groups[group];
        let allowed = u64::from(own.flags.read_buffers_allowed()).saturating_sub(own.buffers);
        total.saturating_sub(others + own.buffers).min(allowed)
    }

    /// The group whose buffers an engine uses; engines of no group have no work.
    pub(super) fn buffers_of(&mut self, engine: usize) -> Option<&mut u64> {
        let group = self.group_of(engine)?;
        Some(&mut self.groups[group].buffers)
    }

    pub(super) fn engine_group(&self, engine: usize) -> Option<usize> {
        self.group_of(engine)
    }
}
