//! What handles stand for, in this process.
//!
//! ```text
//! u64 = process epoch : 12 | kind : 4 | generation : 24 | index : 24
//! current() ─ forked? ─► Objects ─ clients, frames, queues, copiers: Slots ─ get(id) ─► Shared<object>
//! ```
//!
//! A slot's generation grows when it is freed, so a freed handle is recognised; a slot whose generations are used up is never
//! used again. A call holds what it looked up, so freeing a handle in another thread meanwhile takes nothing from under it.
//!
//! Locks that a thread held when the process was forked stay locked in the child. So the child, which the guard page tells
//! apart, never touches its parent's table: it gets a table of its own, of the next epoch, with the first client it opens.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, TryLockError};

use memferry::{Client, ForkGuard, Frame, FrameRange, Queue};

use crate::copier::CopierEntry;
use crate::error::{Fault, mf_error};
use crate::plain::CopyTeam;
use crate::types::{MF_TO_END, mf_client, mf_copier, mf_frame, mf_queue, mf_range};

/// What handles are to.
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

/// An object that a handle stands for, and who waits for its end.
pub(crate) struct Held<T> {
    object: T,
    /// Dropped after the object: the other end of it sees that.
    end: OnceLock<Sender<Infallible>>,
}

/// An object as calls hold it that looked it up.
pub(crate) type Shared<T> = Arc<Held<T>>;

impl<T> Held<T> {
    fn share(object: T) -> Shared<T> {
        Arc::new(Self { object, end: OnceLock::new() })
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

/// Objects of one kind by their handles.
pub(crate) struct Slots<T> {
    prefix: u64,
    places: RwLock<Places<T>>,
}

impl<T> Slots<T> {
    fn new(kind: Kind, epoch: u64) -> Self {
        let prefix = (epoch << 4 | kind as u64) << KIND_AT;
        Self { prefix, places: RwLock::new(Places { slots: Vec::new(), free: Vec::new() }) }
    }

    /// Gives the object a handle.
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

    /// Ends the handle; the object lives on while a call holds it.
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

/// A frame with the client it belongs to.
pub(crate) struct FrameEntry {
    pub(crate) client: Client,
    pub(crate) frame: Frame,
    /// The memory is the program's, which may free it as soon as the frame is.
    pub(crate) lent: bool,
}

/// A queue, which one thread at a time may use.
pub(crate) struct QueueEntry(Mutex<Queue>);

impl QueueEntry {
    pub(crate) fn new(queue: Queue) -> Self {
        Self(Mutex::new(queue))
    }

    /// The queue for this call. It does not wait for another thread, whose wait may have no end.
    pub(crate) fn claim(&self) -> Result<MutexGuard<'_, Queue>, Fault> {
        match self.0.try_lock() {
            Ok(queue) => Ok(queue),
            Err(TryLockError::WouldBlock) => {
                let message = "another thread is using the queue; open one for each thread";
                Err(Fault::new(mf_error::InUse, message))
            }
            Err(TryLockError::Poisoned(_)) => {
                let message = "a mistake in the library broke the queue; close it";
                Err(Fault::new(mf_error::Panicked, message))
            }
        }
    }
}

/// Everything that this process has handles to.
pub(crate) struct Objects {
    guard: ForkGuard,
    epoch: u64,
    pub(crate) clients: Slots<Client>,
    pub(crate) frames: Slots<FrameEntry>,
    pub(crate) queues: Slots<QueueEntry>,
    pub(crate) copiers: Slots<CopierEntry>,
    /// For copies over plain pointers.
    pub(crate) team: CopyTeam,
}

static CURRENT: AtomicPtr<Objects> = AtomicPtr::new(std::ptr::null_mut());

/// The table there is, a parent's too.
fn installed() -> Option<&'static Objects> {
    // SAFETY: what is stored there was leaked by `current_or_new`, whole, and is never freed.
    unsafe { CURRENT.load(Ordering::Acquire).as_ref() }
}

/// The table of this process.
fn current() -> Result<&'static Objects, Fault> {
    let objects = installed().ok_or_else(bad_handle)?;
    objects.guard.check().map_err(|forked| Fault::new(mf_error::Forked, forked.to_string()))?;
    Ok(objects)
}

/// The table of this process, made when there is none.
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
            // SAFETY: another thread's table was installed, so this one is known to nobody else.
            drop(unsafe { Box::from_raw(objects) });
        }
    }
}

fn bad_handle() -> Fault {
    Fault::new(mf_error::BadHandle, "the handle was freed, or no call gave it")
}

fn look_up<T: 'static>(
    id: u64,
    of: impl FnOnce(&'static Objects) -> &'static Slots<T>,
    how: impl FnOnce(&Slots<T>, u64) -> Option<Shared<T>>,
) -> Result<Shared<T>, Fault> {
    let objects = current()?;
    how(of(objects), id).ok_or_else(|| {
        let epoch = id >> EPOCH_AT;
        if epoch != 0 && epoch < objects.epoch {
            return Fault::new(mf_error::Forked, "the handle is of the process this one was forked from");
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

pub(crate) fn take_channel(handle: mf_queue) -> Result<Shared<QueueEntry>, Fault> {
    look_up(handle.id, |objects| &objects.queues, Slots::take)
}

pub(crate) fn copier(handle: mf_copier) -> Result<Shared<CopierEntry>, Fault> {
    look_up(handle.id, |objects| &objects.copiers, Slots::get)
}

pub(crate) fn take_copier(handle: mf_copier) -> Result<Shared<CopierEntry>, Fault> {
    look_up(handle.id, |objects| &objects.copiers, Slots::take)
}

/// Waits until no call of another thread holds what a handle stood for any more, and it was dropped. The handle is gone, so no call
/// begins, and none that has begun waits for anything but bytes or an answer of the service.
pub(crate) fn last<T>(entry: Shared<T>) {
    let (end, ended) = std::sync::mpsc::channel();
    // Nobody else sets it: a handle ends once.
    let _ = entry.end.set(end);
    drop(entry);
    // Nothing can be received: this returns when the sending end was dropped.
    let _ = ended.recv();
}

/// The range, and the entry of its frame.
pub(crate) fn range_of(range: mf_range) -> Result<(Shared<FrameEntry>, FrameRange), Fault> {
    let entry = frame(range.frame)?;
    let length = match range.length {
        MF_TO_END => entry.frame.length().checked_sub(range.offset).ok_or_else(|| {
            let offset = range.offset;
            let available = entry.frame.length();
            Fault::new(
                mf_error::OutOfRange,
                format!("offset {offset} is beyond the frame's {available} bytes"),
            )
        })?,
        length => length,
    };
    let range = entry.frame.range(range.offset, length);
    Ok((entry, range))
}

pub(crate) fn range(range: mf_range) -> Result<FrameRange, Fault> {
    Ok(range_of(range)?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known<T: Copy>(held: Option<Shared<T>>) -> Option<T> {
        held.map(|held| **held)
    }

    #[test]
    fn an_end_is_waited_for_until_no_call_holds_the_object() {
        struct Ends<'a>(&'a std::sync::atomic::AtomicBool);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let ended = std::sync::atomic::AtomicBool::new(false);
        let slots = Slots::new(Kind::Frame, 3);
        for held_by_another in [false, true] {
            ended.store(false, Ordering::SeqCst);
            let handle = slots.insert(Ends(&ended)).unwrap();
            let call = held_by_another.then(|| slots.get(handle).unwrap());
            std::thread::scope(|scope| {
                let frees = scope.spawn(|| {
                    last(slots.take(handle).unwrap());
                    ended.load(Ordering::SeqCst)
                });
                if let Some(call) = call {
                    while call.end.get().is_none() || Arc::strong_count(&call) > 1 {
                        std::thread::yield_now();
                    }
                    assert!(!frees.is_finished());
                    drop(call);
                }
                assert!(frees.join().unwrap());
            });
        }
    }

    #[test]
    fn a_freed_handle_is_recognised_though_its_slot_is_used_again() {
        let slots = Slots::new(Kind::Frame, 3);
        let first = slots.insert("first").unwrap();
        assert_eq!(known(slots.get(first)), Some("first"));
        assert_eq!(known(slots.take(first)), Some("first"));
        let second = slots.insert("second").unwrap();
        assert_eq!((known(slots.get(first)), known(slots.take(first))), (None, None));
        assert_eq!((first & FIELD_MASK, known(slots.get(second))), (second & FIELD_MASK, Some("second")));
    }

    #[test]
    fn handles_of_another_kind_or_process_and_inventions_name_nothing() {
        let slots = Slots::new(Kind::Frame, 3);
        let handle = slots.insert(0).unwrap();
        let other =
            [Slots::new(Kind::Client, 3).insert(0).unwrap(), Slots::new(Kind::Frame, 4).insert(0).unwrap()];
        for id in other.into_iter().chain([0, u64::MAX, handle + 1, handle & FIELD_MASK]) {
            assert_eq!(known(slots.get(id)), None, "{id:#x}");
        }
    }

    #[test]
    fn a_slot_whose_generations_are_used_up_is_left() {
        let slots = Slots::new(Kind::Queue, 0);
        slots.places.write().unwrap().slots.push(Slot { generation: FIELD_MASK, held: Some(Held::share(1)) });
        let last = slots.prefix | FIELD_MASK << FIELD;
        assert_eq!(known(slots.take(last)), Some(1));
        assert_eq!(slots.insert(2).unwrap() & FIELD_MASK, 1);
        assert_eq!(known(slots.get(last)), None);
    }
}
