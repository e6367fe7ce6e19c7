//! Attacks by queue memory, doorbells, signals and sleepers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
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
    let first = RawQueue::open(&mut connection, 2)?;
    let (done, mapped) = rustix::pipe::pipe()?;
    for _ in 0..processes {
        system::fork(|| {
            let map = |_| Mapping::shared(first.memory.as_fd(), 4096, Access::ReadWrite, 4096);
            let held: Vec<_> = (0..maps).map_while(|index| map(index).ok()).collect();
            // Reads put the page into the page tables.
            let _ = held.iter().try_for_each(|mapping| mapping.read(0, &mut [0]));
            let _ = rustix::io::write(&mapped, &[1]);
            std::mem::forget(held);
        })?;
    }
    for _ in 0..processes {
        rustix::io::read(&done, &mut [0])?;
    }
    stage.running();
    let mut queue = first;
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
    let mut connection = stage.connect()?;
    let mut queues = RawQueue::open_many(&mut connection, 4, 256)?;
    let files: Vec<OwnedFd> =
        queues.iter().map(|queue| queue.memory.try_clone()).collect::<Result<_, _>>()?;
    let punch = |index: usize| {
        for file in files.iter().skip(index).step_by(2) {
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if rustix::fs::fallocate(file, how, 0, 1 << 20).is_err() {
                // Sealed: nothing can be done here.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    };
    let slots = nops()?;
    stage.running();
    crowd(2, punch, || {
        loop {
            for queue in &mut queues {
                // A hole takes requests and counts with it, so this may write off what the service never sees.
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
        let queue = RawQueue::open(&mut connection, 2)?;
        hold_lock(stage, queue.memory.try_clone()?)?;
        stage.running();
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

/// Threads that sleep on a word are found one after the other when it changes.
pub(super) fn sleepers(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let mut queue = RawQueue::open(&mut connection, 256)?;
    let sleeper = queue.end.sleeper();
    let sleep = |index: usize| {
        if index % 8 == 0 {
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
            queue.scribble.mapping().key();
            queue.end.parked().store(0, Ordering::Relaxed);
            connection.call(Command::CloseQueue { queue: queue.number }, &[])?;
        }
        Ok(())
    })
}
