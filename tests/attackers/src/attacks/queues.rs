//! Attacks by queue memory, doorbells, signals and sleepers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memferry_service::protocol::{Command, NotifyBy};
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Operation, Request};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::FallocateFlags;

use super::memory::hold_lock;
use crate::connection::Connection;
use crate::raw_queue::{self, RawQueue};
use crate::stage::{MOMENT, Stage, crowd, repeat_on};
use crate::{Failed, system};

fn nops() -> Result<[[u64; 16]; 1], Failed> {
    Ok([raw_queue::slot(&Request::new(Operation::Nop))?])
}

/// Punching a hole walks all mappings of the file.
pub(super) fn maps(stage: &Stage) -> Result<(), Failed> {
    let processes = stage.size(6, 1);
    let maps = stage.size(60_000, 5_000);
    let mut connection = stage.connect()?;
    let (done, mapped) = rustix::pipe::pipe()?;
    let mut queue = RawQueue::open_with(&mut connection, 2, |memory| {
        for _ in 0..processes {
            system::fork(|| {
                let map = |_| Mapping::shared(memory.as_fd(), 4096, Access::ReadWrite, 4096);
                let held: Vec<_> = (0..maps).map_while(|index| map(index).ok()).collect();
                // Reads put the page into the page tables.
                let _ = held.iter().try_for_each(|mapping| mapping.read(0, &mut [0]));
                let _ = rustix::io::write(&mapped, &[1]);
                std::mem::forget(held);
            })?;
        }
        Ok(())
    })?;
    for _ in 0..processes {
        rustix::io::read(&done, &mut [0])?;
    }
    stage.running();
    loop {
        connection.call(Command::CloseQueue { queue: queue.number }, &[])?;
        queue = reopen(&mut connection)?;
    }
}

/// Opens a queue again. The worker releases a closed one some time later, and until then the quota may be used up.
fn reopen(connection: &mut Connection) -> Result<RawQueue, Failed> {
    for _ in 0..1000 {
        if let Ok(queue) = RawQueue::open(connection, 2) {
            return Ok(queue);
        }
        if connection.hung_up() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("the service opens no queue".into())
}

pub(super) fn holes(stage: &Stage) -> Result<(), Failed> {
    const QUEUES: usize = 4;
    let files: Mutex<Vec<Arc<OwnedFd>>> = Mutex::default();
    let held = || files.lock().unwrap_or_else(PoisonError::into_inner);
    let punch = |index: usize| {
        let files: Vec<_> = held().iter().skip(index).step_by(2).cloned().collect();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = |file: &Arc<OwnedFd>| rustix::fs::fallocate(&**file, how, 0, 1 << 20).is_ok();
        if !files.iter().any(punched) {
            // Sealed, or not there yet.
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let slots = nops()?;
    let mut connection = stage.connect()?;
    crowd(2, punch, || {
        let mut queues = Vec::new();
        stage.running();
        loop {
            // A service that finds a hole refuses the queue.
            if queues.len() < QUEUES {
                let hold = |memory: &OwnedFd| -> Result<(), Failed> {
                    held().push(Arc::new(memory.try_clone()?));
                    Ok(())
                };
                match RawQueue::open_with(&mut connection, 256, hold) {
                    Ok(queue) => queues.push(queue),
                    Err(error) if connection.hung_up() => return Err(error),
                    Err(_) => drop(held().pop()),
                }
            }
            for queue in &mut queues {
                queue.refill(&slots)?;
                queue.ring();
            }
            std::thread::sleep(MOMENT);
        }
    })
}

pub(super) fn fuse_writer(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    loop {
        let queue = RawQueue::open_with(&mut connection, 2, |memory| {
            hold_lock(stage, memory.try_clone()?)?;
            stage.running();
            Ok(())
        })?;
        connection.call(Command::CloseQueue { queue: queue.number }, &[])?;
        reopen(&mut connection)?;
    }
}

/// Adds `count` watches of one descriptor. Copies of it count as others, so few epolls suffice.
fn watch(descriptor: &OwnedFd, count: usize) -> Result<(Vec<OwnedFd>, Vec<OwnedFd>), Failed> {
    const COPIES: usize = 1000;
    let copies: Vec<OwnedFd> = (0..COPIES).map(|_| descriptor.try_clone()).collect::<Result<_, _>>()?;
    let mut polls = Vec::new();
    for _ in 0..count / COPIES {
        let poll = epoll::create(CreateFlags::CLOEXEC)?;
        for copy in &copies {
            epoll::add(&poll, copy, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        }
        polls.push(poll);
    }
    Ok((copies, polls))
}

pub(super) fn completion_watches(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let mut queue = RawQueue::open(&mut connection, 64)?;
    let notify = Command::Notify { queue: queue.number, by: NotifyBy::Event };
    let (_, mut descriptors) = connection.call(notify, &[])?;
    let signal = descriptors.pop().ok_or("a signal without a descriptor")?;
    let _watches = watch(&signal, stage.size(500_000, 20_000))?;
    let slots = nops()?;
    stage.running();
    loop {
        queue.refill(&slots)?;
        queue.raise(queue.end.signal_wanted());
        std::thread::sleep(MOMENT);
    }
}

pub(super) fn doorbell_watches(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let mut queue = RawQueue::open(&mut connection, 64)?;
    let _watches = watch(&queue.doorbell, stage.size(500_000, 20_000))?;
    let slots = nops()?;
    stage.running();
    loop {
        queue.refill(&slots)?;
        queue.ring();
    }
}

/// The kernel walks the watches for whoever writes, on the CPU of the writer and without a pause.
pub(super) fn own_watches(stage: &Stage) -> Result<(), Failed> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    let event = rustix::event::eventfd(0, flags)?;
    let _watches = watch(&event, stage.size(500_000, 20_000))?;
    stage.running();
    loop {
        rustix::io::write(&event, &1u64.to_ne_bytes())?;
        let _ = rustix::io::read(&event, &mut [0; 8]);
    }
}

/// Threads that sleep on a word are found one after the other when it changes.
pub(super) fn sleepers(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let mut queue = RawQueue::open(&mut connection, 256)?;
    let sleeper = queue.end.sleeper();
    let sleep = |index: usize| {
        if index.is_multiple_of(8) {
            system::sleep_many_times_on(sleeper.wake_word());
        } else {
            system::sleep_on(sleeper.wake_word());
        }
    };
    let slots = nops()?;
    stage.running();
    crowd(stage.size(2000, 200), sleep, || {
        loop {
            queue.refill(&slots)?;
            queue.raise(ClientEnd::<MappedWords>::parked_for_completions());
            std::thread::sleep(MOMENT);
        }
    })
}

pub(super) fn doorbell_flood(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let queues = RawQueue::open_many(&mut connection, 64, 2)?;
    stage.running();
    crowd(
        1,
        |_| queues.iter().for_each(RawQueue::ring),
        || {
            while queues.iter().all(|queue| !queue.end.closed()) {
                queues.iter().for_each(RawQueue::ring);
            }
            Err("the service closed the queue".into())
        },
    )
}

pub(super) fn storm(stage: &Stage) -> Result<(), Failed> {
    repeat_on(stage, 2, || {
        let mut connection = stage.connect()?;
        for _ in 0..100 {
            let queue = reopen(&mut connection)?;
            queue.end.parked().store(0, Ordering::Relaxed);
            connection.call(Command::CloseQueue { queue: queue.number }, &[])?;
        }
        Ok(())
    })
}

/// An epoll instance that is nested in another one: adding it takes a lock that all processes share, and waits there for each instance
/// below it.
pub(super) fn nested_epolls(stage: &Stage) -> Result<(), Failed> {
    let flags = rustix::event::EventfdFlags::CLOEXEC;
    let ready = rustix::event::eventfd(1, flags)?;
    let [inner, outer] = [epoll::create(CreateFlags::CLOEXEC)?, epoll::create(CreateFlags::CLOEXEC)?];
    epoll::add(&inner, &ready, EventData::new_u64(0), EventFlags::IN)?;
    let buffer = stage.fuse()?.map_writable()?;
    // The event goes to memory that is never filled, with the lock of `inner` held.
    let waiting = inner.try_clone()?;
    std::thread::spawn(move || system::epoll_wait_into(waiting.as_fd(), &buffer));
    std::thread::sleep(Duration::from_millis(50));
    std::thread::spawn(move || epoll::add(&outer, &inner, EventData::new_u64(0), EventFlags::IN));
    std::thread::sleep(Duration::from_millis(50));
    let mut connection = stage.connect()?;
    let _queues = RawQueue::open_many(&mut connection, 4, 2)?;
    stage.running();
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}
