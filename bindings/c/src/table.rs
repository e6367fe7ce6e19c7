//! The objects of this process, by their handles.
//!
//! ```text
//! u64 = process epoch : 12 | kind : 4 | generation : 24 | index : 24
//! current() ─ forked? ─► Objects ─ clients, frames, queues, copiers: Slots ─ get(id) ─► Shared<object>
//! ```
//!
//! Freeing a slot increments its generation, so a freed handle is recognised; a slot with no generations left is never reused.
//! A call shares the object it looked up, so the object survives when another thread frees the handle meanwhile.
//!
//! Locks that a thread held at a fork stay locked in the child. So the child, which the guard page detects, never uses its
//! parent's table: it makes its own, with the next epoch, when it opens its first client.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

use memferry::{Client, ForkGuard, Frame, Queue, Region};

use crate::address_space::CopierEntry;
use crate::error::{Fault, mf_error};
use crate::team::CopyTeam;
use crate::types::{MF_TO_END, mf_client, mf_copier, mf_frame, mf_queue, mf_range};

/// The kind of object in a handle.
#[derive(Clone, Copy)]
enum Kind {
    Client = 1,
    Frame = 2,
    Queue = 3,
    Copier = 4,
}

const FIELD: u32 = 24;
const FIELD_MASK: u64 = (1 << FIELD) - 1;
const KIND_AT: u32 = 2 * FIELD;
const EPOCH_AT: u32 = KIND_AT + 4;

/// An object that a handle names.
pub(crate) struct Held<T> {
    object: T,
    /// Dropped after the object, which the receiver in [`wait_for_drop`] notices.
    dropped: OnceLock<Sender<Infallible>>,
}

/// An object while calls use it.
pub(crate) type Shared<T> = Arc<Held<T>>;

impl<T> Held<T> {
    fn share(object: T) -> Shared<T> {
        Arc::new(Self { object, dropped: OnceLock::new() })
    }
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.object
    }
}

struct Slot<T> {
    generation: u64,
    held: Option<Shared<T>>,
}

struct Places<T> {
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

/// Objects of one kind, by handle.
pub(crate) struct Slots<T> {
    prefix: u64,
    places: RwLock<Places<T>>,
}

impl<T> Slots<T> {
    fn new(kind: Kind, epoch: u64) -> Self {
        let prefix = (epoch << 4 | kind as u64) << KIND_AT;
        Self { prefix, places: RwLock::new(Places { slots: Vec::new(), free: Vec::new() }) }
    }

    pub(crate) fn insert(&self, object: T) -> Result<u64, Fault> {
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let index = match places.free.pop() {
            Some(index) => index,
            None if places.slots.len() as u64 > FIELD_MASK => {
                return Err(Fault::new(mf_error::System, "this process has too many handles; free some"));
            }
            None => {
                places.slots.push(Slot { generation: 1, held: None });
                places.slots.len() - 1
            }
        };
        let slot = &mut places.slots[index];
        slot.held = Some(Held::share(object));
        Ok(self.prefix | slot.generation << FIELD | index as u64)
    }

    fn place(&self, id: u64) -> Option<(usize, u64)> {
        let mine = id >> KIND_AT == self.prefix >> KIND_AT;
        mine.then_some(((id & FIELD_MASK) as usize, id >> FIELD & FIELD_MASK))
    }

    fn get(&self, id: u64) -> Option<Shared<T>> {
        let (index, generation) = self.place(id)?;
        let places = self.places.read().unwrap_or_else(PoisonError::into_inner);
        places.slots.get(index).filter(|slot| slot.generation == generation)?.held.clone()
    }

    /// Frees the handle; the object remains while a call shares it.
    fn take(&self, id: u64) -> Option<Shared<T>> {
        let (index, generation) = self.place(id)?;
        let mut places = self.places.write().unwrap_or_else(PoisonError::into_inner);
        let slot = places.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let taken = slot.held.take()?;
        slot.generation += 1;
        if slot.generation <= FIELD_MASK {
            places.free.push(index);
        }
        Some(taken)
    }
}

/// A frame and its client.
pub(crate) struct FrameEntry {
    pub(crate) client: Client,
    pub(crate) frame: Frame,
    /// The program owns the memory and may free it as soon as the frame is freed.
    pub(crate) lent: bool,
}

/// A queue for one thread at a time.
pub(crate) struct QueueEntry(Mutex<Queue>);

impl QueueEntry {
    pub(crate) fn new(queue: Queue) -> Self {
        Self(Mutex::new(queue))
    }

    /// The queue for this call. Does not wait for another thread, which may wait without a limit.
    pub(crate) fn claim(&self) -> Result<MutexGuard<'_, Queue>, Fault> {
        match self.0.try_lock() {
            Ok(queue) => Ok(queue),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread is using the queue; open one for each thread";
                Err(Fault::new(mf_error::InUse, message))
            }
            Err(TryLockError::Poisoned(_)) => {
                let message = "the library panicked in the queue; close it";
                Err(Fault::new(mf_error::Panicked, message))
            }
        }
    }
}

/// All objects of this process.
pub(crate) struct Objects {
    guard: ForkGuard,
    epoch: u64,
    pub(crate) clients: Slots<Client>,
    pub(crate) frames: Slots<FrameEntry>,
    pub(crate) queues: Slots<QueueEntry>,
    pub(crate) copiers: Slots<CopierEntry>,
    /// For copies of plain memory.
    pub(crate) team: CopyTeam,
}

static CURRENT: AtomicPtr<Objects> = AtomicPtr::new(std::ptr::null_mut());

/// The installed table, which may be the parent's.
fn installed() -> Option<&'static Objects> {
    // SAFETY: `current_or_new` stores only complete tables that it leaked, and none is ever freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The table of this process.
fn current() -> Result<&'static Objects, Fault> {
    let objects = installed().ok_or_else(bad_handle)?;
    objects.guard.check().map_err(|forked| Fault::new(mf_error::Forked, forked.to_string()))?;
    Ok(objects)
}

/// The table of this process, created when there is none.
pub(crate) fn current_or_new() -> Result<&'static Objects, Fault> {
    loop {
        let before = installed();
        if let Some(objects) = before.filter(|objects| objects.guard.check().is_ok()) {
            return Ok(objects);
        }
        let guard = ForkGuard::new().map_err(|error| Fault::new(mf_error::System, error.to_string()))?;
        let epoch = before.map_or(1, |objects| (objects.epoch + 1) % (1 << 12));
        let objects = Box::into_raw(Box::new(Objects {
            guard,
            epoch,
            clients: Slots::new(Kind::Client, epoch),
            frames: Slots::new(Kind::Frame, epoch),
            queues: Slots::new(Kind::Queue, epoch),
            copiers: Slots::new(Kind::Copier, epoch),
            team: CopyTeam::default(),
        }));
        let expected = before.map_or(std::ptr::null_mut(), |objects| std::ptr::from_ref(objects).cast_mut());
        if CURRENT.compare_exchange(expected, objects, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread's table was installed, so no other thread has this one.
            drop(unsafe { Box::from_raw(objects) });
        }
    }
}

fn bad_handle() -> Fault {
    Fault::new(mf_error::BadHandle, "the handle was freed or never valid")
}

fn look_up<T: 'static>(
    id: u64,
    of: impl FnOnce(&'static Objects) -> &'static Slots<T>,
    get: impl FnOnce(&Slots<T>, u64) -> Option<Shared<T>>,
) -> Result<Shared<T>, Fault> {
    let objects = current()?;
    get(of(objects), id).ok_or_else(|| {
        let epoch = id >> EPOCH_AT;
        if epoch != 0 && epoch < objects.epoch {
            return Fault::new(
                mf_error::Forked,
                "the handle belongs to the process that this one was forked from",
            );
        }
        bad_handle()
    })
}

pub(crate) fn client(handle: mf_client) -> Result<Shared<Client>, Fault> {
    look_up(handle.id, |objects| &objects.clients, Slots::get)
}

pub(crate) fn take_client(handle: mf_client) -> Result<Shared<Client>, Fault> {
    look_up(handle.id, |objects| &objects.clients, Slots::take)
}

pub(crate) fn frame(handle: mf_frame) -> Result<Shared<FrameEntry>, Fault> {
    look_up(handle.id, |objects| &objects.frames, Slots::get)
}

pub(crate) fn take_frame(handle: mf_frame) -> Result<Shared<FrameEntry>, Fault> {
    look_up(handle.id, |objects| &objects.frames, Slots::take)
}

pub(crate) fn queue(handle: mf_queue) -> Result<Shared<QueueEntry>, Fault> {
    look_up(handle.id, |objects| &objects.queues, Slots::get)
}

pub(crate) fn take_queue(handle: mf_queue) -> Result<Shared<QueueEntry>, Fault> {
    look_up(handle.id, |objects| &objects.queues, Slots::take)
}

pub(crate) fn copier(handle: mf_copier) -> Result<Shared<CopierEntry>, Fault> {
    look_up(handle.id, |objects| &objects.copiers, Slots::get)
}

pub(crate) fn take_copier(handle: mf_copier) -> Result<Shared<CopierEntry>, Fault> {
    look_up(handle.id, |objects| &objects.copiers, Slots::take)
}

/// Waits until no call of another thread shares the object of a freed handle, and it was dropped. No new call can find it, and the
/// present ones wait only for bytes or an answer of the service.
pub(crate) fn wait_for_drop<T>(entry: Shared<T>) {
    let (sender, receiver) = std::sync::mpsc::channel();
    // A handle is freed once, so this is not set yet.
    let _ = entry.dropped.set(sender);
    drop(entry);
    // Nothing is ever sent: this returns when the sender was dropped.
    let _ = receiver.recv();
}

/// The region that a range names, and the entry of its frame.
pub(crate) fn resolve(range: mf_range) -> Result<(Shared<FrameEntry>, Region), Fault> {
    let entry = frame(range.frame)?;
    let offset = range.offset;
    let available = entry.frame.length();
    let end = match range.length {
        MF_TO_END if offset > available => {
            let message = format!("offset {offset} is beyond the frame's {available} bytes");
            return Err(Fault::new(mf_error::OutOfRange, message));
        }
        MF_TO_END => available,
        // No frame reaches to the end of the numbers, so an end that is cut off there is still out of bounds.
        length => offset.saturating_add(length),
    };
    let region = entry.frame.slice(offset..end);
    Ok((entry, region))
}

pub(crate) fn region(range: mf_range) -> Result<Region, Fault> {
    Ok(resolve(range)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known<T: Copy>(held: Option<Shared<T>>) -> Option<T> {
        held.map(|held| **held)
    }

    #[test]
    fn waits_until_no_call_shares_the_object() {
        struct Object<'a>(&'a std::sync::atomic::AtomicBool);
        impl Drop for Object<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = std::sync::atomic::AtomicBool::new(false);
        let slots = Slots::new(Kind::Frame, 3);
        for shared in [false, true] {
            dropped.store(false, Ordering::SeqCst);
            let handle = slots.insert(Object(&dropped)).unwrap();
            let call = shared.then(|| slots.get(handle).unwrap());
            std::thread::scope(|scope| {
                let free = scope.spawn(|| {
                    wait_for_drop(slots.take(handle).unwrap());
                    dropped.load(Ordering::SeqCst)
                });
                if let Some(call) = call {
                    while call.dropped.get().is_none() || Arc::strong_count(&call) > 1 {
                        std::thread::yield_now();
                    }
                    assert!(!free.is_finished());
                    drop(call);
                }
                assert!(free.join().unwrap());
            });
        }
    }

    #[test]
    fn a_freed_handle_is_recognised_after_reuse() {
        let slots = Slots::new(Kind::Frame, 3);
        let first = slots.insert("first").unwrap();
        assert_eq!(known(slots.get(first)), Some("first"));
        assert_eq!(known(slots.take(first)), Some("first"));
        let second = slots.insert("second").unwrap();
        assert_eq!((known(slots.get(first)), known(slots.take(first))), (None, None));
        assert_eq!((first & FIELD_MASK, known(slots.get(second))), (second & FIELD_MASK, Some("second")));
    }

    #[test]
    fn foreign_and_invented_handles_are_unknown() {
        let slots = Slots::new(Kind::Frame, 3);
        let handle = slots.insert(0).unwrap();
        let other =
            [Slots::new(Kind::Client, 3).insert(0).unwrap(), Slots::new(Kind::Frame, 4).insert(0).unwrap()];
        for id in other.into_iter().chain([0, u64::MAX, handle + 1, handle & FIELD_MASK]) {
            assert_eq!(known(slots.get(id)), None, "{id:#x}");
        }
    }

    #[test]
    fn a_slot_without_generations_is_not_reused() {
        let slots = Slots::new(Kind::Queue, 0);
        slots.places.write().unwrap().slots.push(Slot { generation: FIELD_MASK, held: Some(Held::share(1)) });
        let last = slots.prefix | FIELD_MASK << FIELD;
        assert_eq!(known(slots.take(last)), Some(1));
        assert_eq!(slots.insert(2).unwrap() & FIELD_MASK, 1);
        assert_eq!(known(slots.get(last)), None);
    }
}
