//! A worker's queues: those that it looks at in every turn, and those that it looks at by rotation.
//!
//! ```text
//! open ─► awake ── no request for a while ──► dormant ── rotation or doorbell finds news ──► awake
//!           └───────────── close ────────────────┴─► closing ── its requests have ended ──► released
//! ```
//!
//! A turn costs as much as there are awake queues, however many are open. A dormant queue has a [`Watch`], which fits into a cache
//! line, and [`look`](Queues::look) goes round these a few at a time. So it needs no system call to wake while the worker is awake,
//! and clients have no say in which queues the worker looks at. With few queues none is dormant.
//!
//! No function here goes through all queues, except where its documentation says so.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use memferry_path::QueueKey;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::{ServiceEnd, Watch};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{PriorityClass, SessionId};

use crate::bells::{Bell, QueueBells};
use crate::counters::QueueCounters;
use crate::shared::SignalTarget;

/// With so many queues or fewer, none is dormant.
const FEW: usize = 16;
/// Turns without a request after which a queue becomes dormant.
const TURNS_AWAKE: u32 = 512;
/// Turns between searches for queues that become dormant.
const TURNS_PER_SEARCH: u32 = 256;
/// How many dormant queues before it is looked at a watch is prefetched.
const PREFETCH: usize = 8;

/// Turns between scans for a queue's cancels, since a client can announce new ones in every turn.
pub(super) const TURNS_PER_SCAN: u32 = 16;

/// Whether a scan for cancels is due in this turn.
pub(super) const fn may_scan(turn: u32, scanned: u32) -> bool {
    turn.wrapping_sub(scanned) >= TURNS_PER_SCAN
}

/// The scan turn of a queue opened in this turn: long enough ago that its first cancel is seen at once.
pub(super) const fn never_scanned(turn: u32) -> u32 {
    turn.wrapping_sub(TURNS_PER_SCAN)
}

pub(super) struct Queue {
    pub(super) session: SessionId,
    pub(super) number: u32,
    pub(super) user: u32,
    pub(super) end: Box<ServiceEnd<MappedWords>>,
    /// The client's signal, if set.
    pub(super) target: Option<SignalTarget>,
    /// The highest class that its requests may have.
    pub(super) class: PriorityClass,
    pub(super) bells: QueueBells,
    /// The one of its bells that this worker polls.
    pub(super) bell: Arc<Bell>,
    /// The turn of the last scan for cancels.
    pub(super) scanned: u32,
    /// The turn in which it last had news.
    pub(super) asked: u32,
    pub(super) counters: Arc<QueueCounters>,
    /// Nanoseconds that it used in the timed turns of this interval.
    pub(super) used: u64,
    /// No request is taken until it has left, or may stay.
    pub(super) leaving: Option<Leaving>,
}

impl Queue {
    /// Whether it was opened at another worker: then it has a bell of its own.
    fn is_guest(&self) -> bool {
        !Arc::ptr_eq(&self.bell, self.bells.at_home())
    }

    /// Whether its client has requests or cancels that may be taken in this turn.
    pub(super) fn asks(&self, turn: u32) -> bool {
        self.end.ready() && self.leaving.is_none()
            || self.end.cancels_pending() && may_scan(turn, self.scanned)
    }
}

/// That a queue goes to another worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    pub(super) to: usize,
    /// It stays if its requests have not ended by then, and after some turns from this one: a worker may lose its CPU for longer.
    pub(super) until: Instant,
    pub(super) since: u32,
}

/// In which list a queue is, and its position there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Awake(usize),
    Dormant(usize),
    /// Takes no requests and gets no completions. Released when its requests have ended.
    Closing,
}

struct Slot {
    queue: Queue,
    place: Place,
}

struct Dormant {
    index: usize,
    watch: Watch<MappedWords>,
}

/// All lists hold indices, which are those of the path's queue keys.
#[derive(Default)]
pub(super) struct Queues {
    slots: Vec<Option<Slot>>,
    by_name: BTreeMap<(SessionId, u32), usize>,
    awake: Vec<usize>,
    dormant: Vec<Dormant>,
    closing: Vec<usize>,
    /// The dormant queue that is looked at next. A [`Cell`], so that a spinning worker can look.
    next: Cell<usize>,
    /// Queues that are not closed and whose clients publish without a fence.
    asymmetric: usize,
    /// The bells of queues that are not closed, and how many queues use each.
    bells: Vec<(Arc<Bell>, usize)>,
    /// Queues that are not closed and that were opened at another worker.
    guests: usize,
}

impl Queues {
    /// The queues that are not released yet.
    pub(super) fn count(&self) -> usize {
        self.by_name.len()
    }

    /// The queue of an index, if it is open.
    #[inline]
    pub(super) fn get(&self, index: usize) -> Option<&Queue> {
        let slot = self.slots.get(index)?.as_ref()?;
        (slot.place != Place::Closing).then_some(&slot.queue)
    }

    /// As [`get`](Self::get).
    #[inline]
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut Queue> {
        let slot = self.slots.get_mut(index)?.as_mut()?;
        (slot.place != Place::Closing).then_some(&mut slot.queue)
    }

    /// The index of a queue that is not released, and whether it is closed.
    pub(super) fn find(&self, session: SessionId, number: u32) -> Option<(usize, bool)> {
        let index = *self.by_name.get(&(session, number))?;
        Some((index, self.get(index).is_none()))
    }

    /// The queue of an index, also if it is closed.
    pub(super) fn even_closed(&mut self, index: usize) -> Option<&mut Queue> {
        self.slots.get_mut(index)?.as_mut().map(|slot| &mut slot.queue)
    }

    /// The queues of a session that are not released.
    pub(super) fn of_session(&self, session: SessionId) -> Vec<usize> {
        self.by_name.range((session, 0)..=(session, u32::MAX)).map(|(_, index)| *index).collect()
    }

    /// All queues that are not released. Goes through all.
    pub(super) fn all(&self) -> Vec<usize> {
        self.by_name.values().copied().collect()
    }

    /// The queues that every turn looks at.
    pub(super) fn awake(&self) -> &[usize] {
        &self.awake
    }

    pub(super) fn dormant(&self) -> usize {
        self.dormant.len()
    }

    /// The closed queues that are not released.
    pub(super) fn closing(&self) -> &[usize] {
        &self.closing
    }

    /// The fences that cover the clients of all queues.
    pub(super) fn fences(&self) -> Fences {
        if self.asymmetric == 0 { Fences::Full } else { Fences::Asymmetric }
    }

    /// How many queues there are that were opened at another worker.
    pub(super) fn guests(&self) -> usize {
        self.guests
    }

    /// The indices of some dormant queues, of others each time that [`look`](Self::look) has gone on.
    pub(super) fn some_dormant(&self, count: usize) -> impl Iterator<Item = usize> {
        let first = self.next.get().min(self.dormant.len());
        let (last, next) = self.dormant.split_at(first);
        next.iter().chain(last).take(count).map(|dormant| dormant.index)
    }

    /// The bells that may ring for queues that are not closed.
    pub(super) fn bells(&self) -> impl Iterator<Item = &Bell> {
        self.bells.iter().map(|(bell, _)| &**bell)
    }

    fn bell_at(&self, bell: &Arc<Bell>) -> Option<usize> {
        self.bells.iter().position(|(known, _)| Arc::ptr_eq(known, bell))
    }

    /// Adds a queue, awake. Its index must be free.
    pub(super) fn open(&mut self, key: QueueKey, queue: Queue) {
        let index = key.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.by_name.insert((queue.session, queue.number), index);
        self.asymmetric += usize::from(queue.end.fences() == Fences::Asymmetric);
        self.guests += usize::from(queue.is_guest());
        match self.bell_at(&queue.bell) {
            Some(at) => self.bells[at].1 += 1,
            None => self.bells.push((Arc::clone(&queue.bell), 1)),
        }
        self.slots[index] = Some(Slot { queue, place: Place::Awake(self.awake.len()) });
        self.awake.push(index);
    }

    /// Makes a dormant queue awake. Returns its user if it was dormant.
    pub(super) fn rouse(&mut self, index: usize, turn: u32) -> Option<u32> {
        let slot = self.slots.get_mut(index)?.as_mut()?;
        let Place::Dormant(at) = slot.place else { return None };
        slot.queue.asked = turn;
        slot.place = Place::Awake(self.awake.len());
        let user = slot.queue.user;
        self.awake.push(index);
        self.leave_dormant(at);
        Some(user)
    }

    /// Closes a queue, so that only [`closing`](Self::closing) still has it. Returns it if it was open, and whether it was awake.
    pub(super) fn close(&mut self, index: usize) -> Option<(&mut Queue, bool)> {
        let place = self.slots.get(index)?.as_ref()?.place;
        match place {
            Place::Awake(at) => self.leave_awake(at),
            Place::Dormant(at) => self.leave_dormant(at),
            Place::Closing => return None,
        }
        self.closing.push(index);
        let bell = self.bell_at(&self.slots[index].as_ref()?.queue.bell)?;
        self.bells[bell].1 -= 1;
        if self.bells[bell].1 == 0 {
            // The queue still holds it: dropping it may take long.
            self.bells.swap_remove(bell);
        }
        let slot = self.slots[index].as_mut()?;
        slot.place = Place::Closing;
        self.guests -= usize::from(slot.queue.is_guest());
        self.asymmetric -= usize::from(slot.queue.end.fences() == Fences::Asymmetric);
        Some((&mut slot.queue, matches!(place, Place::Awake(_))))
    }

    /// Removes the closed queues for which `gone` holds.
    pub(super) fn take_gone(&mut self, mut gone: impl FnMut(QueueKey) -> bool) -> Vec<Queue> {
        let mut taken = Vec::new();
        let Self { slots, by_name, closing, .. } = self;
        closing.retain(|index| {
            if !gone(QueueKey(*index as u32)) {
                return true;
            }
            if let Some(slot) = slots[*index].take() {
                by_name.remove(&(slot.queue.session, slot.queue.number));
                taken.push(slot.queue);
            }
            false
        });
        taken
    }

    /// Removes a queue that was [closed](Self::close) just now, without waiting for anything.
    pub(super) fn take(&mut self, index: usize) -> Option<Queue> {
        let at = self.closing.iter().position(|closing| *closing == index)?;
        self.closing.swap_remove(at);
        let queue = self.slots[index].take()?.queue;
        self.by_name.remove(&(queue.session, queue.number));
        Some(queue)
    }

    fn leave_awake(&mut self, at: usize) {
        self.awake.swap_remove(at);
        if let Some(moved) = self.awake.get(at)
            && let Some(slot) = &mut self.slots[*moved]
        {
            slot.place = Place::Awake(at);
        }
    }

    fn leave_dormant(&mut self, at: usize) {
        self.dormant.swap_remove(at);
        if let Some(moved) = self.dormant.get(at)
            && let Some(slot) = &mut self.slots[moved.index]
        {
            slot.place = Place::Dormant(at);
        }
    }

    /// Makes awake queues dormant that have asked for nothing for a while, or all dormant queues awake if there are few. Calls
    /// `changed` with each queue and whether it is awake now. Once in [`TURNS_PER_SEARCH`] turns it goes through the awake queues.
    pub(super) fn search(&mut self, turn: u32, mut changed: impl FnMut(usize, &mut Queue, bool)) {
        if !turn.is_multiple_of(TURNS_PER_SEARCH) {
            return;
        }
        if self.by_name.len() - self.closing.len() <= FEW {
            while let Some(Dormant { index, .. }) = self.dormant.last() {
                let index = *index;
                self.rouse(index, turn);
                if let Some(queue) = self.get_mut(index) {
                    changed(index, queue, true);
                }
            }
            return;
        }
        let mut at = 0;
        while let Some(index) = self.awake.get(at).copied() {
            let Some(slot) = &mut self.slots[index] else { return };
            let queue = &mut slot.queue;
            if turn.wrapping_sub(queue.asked) < TURNS_AWAKE || queue.end.has_news() {
                at += 1;
                continue;
            }
            queue.end.publish_all_consumed();
            changed(index, queue, false);
            slot.place = Place::Dormant(self.dormant.len());
            self.dormant.push(Dormant { index, watch: slot.queue.end.watch() });
            self.leave_awake(at);
        }
    }

    /// Tells the clients of the awake queues how many requests were taken. Those of dormant ones know.
    pub(super) fn publish_all_consumed(&mut self) {
        for index in &self.awake {
            if let Some(slot) = &mut self.slots[*index] {
                slot.queue.end.publish_all_consumed();
            }
        }
    }

    /// Whether any awake queue of those that do not `rest` has news.
    #[inline]
    pub(super) fn awake_have_news(&self, rests: impl Fn(u32) -> bool) -> bool {
        let mut queues = self.awake.iter().filter_map(|index| self.get(*index));
        queues.any(|queue| queue.end.has_news() && !rests(queue.user))
    }

    /// Looks at the next `looks` dormant queues, at most once at each, and counts `looks` down. Returns the first one that has news
    /// and does not `rest`; the next call begins with it.
    #[inline]
    pub(super) fn look(&self, looks: &mut usize, rests: impl Fn(u32) -> bool) -> Option<usize> {
        let count = self.dormant.len();
        if count == 0 {
            return None;
        }
        let mut at = self.next.get();
        for _ in 0..count {
            let Some(left) = looks.checked_sub(1) else { break };
            *looks = left;
            at = if at < count { at } else { 0 };
            let ahead = at + PREFETCH;
            if let Some(soon) = self.dormant.get(if ahead < count { ahead } else { ahead - count }) {
                soon.watch.prefetch();
            }
            let Dormant { index, watch } = &self.dormant[at];
            if watch.has_news() && self.get(*index).is_some_and(|queue| !rests(queue.user)) {
                self.next.set(at);
                return Some(*index);
            }
            at += 1;
        }
        self.next.set(at);
        None
    }
}
