//! Attacks by memory that is being registered, or is.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use memferry_shm::frame::{self, Pages};
use memferry_shm::mapping::{Access, Mapping};
use memferry_transfer::{Request, Span};

use crate::raw_queue::{self, RawQueue};
use crate::stage::{self, MOMENT, Stage, crowd};
use crate::{Failed, system};

/// Seals, truncation and allocation need the lock of the file, behind every writer that waits for it.
pub(super) fn seal_writers(stage: &Stage) -> Result<(), Failed> {
    const WRITERS: usize = 64;
    let length = stage.size(128 << 20, 8 << 20);
    let bytes = vec![1; length];
    let allocate = || -> Result<Arc<OwnedFd>, Failed> {
        Ok(Arc::new(frame::allocate(length as u64, Pages::Ordinary)?.0))
    };
    let current = Mutex::new(allocate()?);
    let held = || Arc::clone(&current.lock().unwrap_or_else(PoisonError::into_inner));
    let write = |_| {
        let memfd = held();
        if rustix::io::pwrite(&*memfd, &bytes, 0).is_err() {
            // The seals are on, so the next memfd comes soon.
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let mut connection = stage.connect()?;
    crowd(WRITERS, write, || {
        loop {
            std::thread::sleep(Duration::from_millis(20));
            stage.running();
            let memfd = held();
            // A refusal is as good: the service waited for the lock.
            let _ = connection.register(memfd.as_fd(), length as u64).map(|handle| {
                let command = memferry_service::protocol::Command::Revoke { handle };
                connection.call(command, &[])
            });
            if connection.hung_up() {
                return Err("the service ended the connection".into());
            }
            *current.lock().unwrap_or_else(PoisonError::into_inner) = allocate()?;
        }
    })
}

/// Starts a write to a memfd that holds the file's lock until the FUSE server is killed.
pub(super) fn hold_lock(stage: &Stage, memfd: OwnedFd) -> Result<(), Failed> {
    let source = stage.fuse()?.map()?;
    std::thread::Builder::new()
        .stack_size(64 << 10)
        .spawn(move || system::write_mapping(memfd.as_fd(), &source, 0, 4096))?;
    std::thread::sleep(Duration::from_millis(20));
    Ok(())
}

pub(super) fn seal_fuse_writer(stage: &Stage) -> Result<(), Failed> {
    const LENGTH: u64 = 64 << 10;
    let mut connection = stage.connect()?;
    loop {
        let (memfd, _mapping) = frame::allocate(LENGTH, Pages::Ordinary)?;
        hold_lock(stage, memfd.try_clone()?)?;
        stage.running();
        connection.register(memfd.as_fd(), LENGTH)?;
    }
}

/// Makes the service fault while it copies.
/// Memory that is mapped many times, with every page present in each mapping.
fn mapped_often(stage: &Stage) -> Result<(OwnedFd, Vec<Mapping>, u64), Failed> {
    const MAPPINGS: usize = 64;
    let length = stage.size(64 << 20, 4 << 20) as u64;
    let (memfd, _mapping) = frame::allocate(length, Pages::Ordinary)?;
    let map = |_| Mapping::shared(memfd.as_fd(), length as usize, Access::ReadWrite, 4096);
    let mappings = (0..MAPPINGS).map(map).collect::<Result<Vec<_>, _>>()?;
    for mapping in &mappings {
        (0..length).step_by(4096).try_for_each(|at| mapping.write(at, &[1]))?;
    }
    Ok((memfd, mappings, length))
}

fn move_pages(mappings: &[Mapping], index: usize) {
    for mapping in mappings.iter().skip(index).step_by(2) {
        for advice in [libc::MADV_PAGEOUT, system::COLLAPSE, libc::MADV_DONTNEED] {
            system::advise(mapping, advice);
        }
    }
}

pub(super) fn own_pages(stage: &Stage) -> Result<(), Failed> {
    let (_memfd, mappings, _) = mapped_often(stage)?;
    stage.running();
    crowd(
        2,
        |index| move_pages(&mappings, index),
        || {
            loop {
                std::thread::sleep(10 * MOMENT);
            }
        },
    )
}

pub(super) fn page_moves(stage: &Stage) -> Result<(), Failed> {
    let mut connection = stage.connect()?;
    let (memfd, mappings, length) = mapped_often(stage)?;
    let handle = connection.register(memfd.as_fd(), length)?;
    let half = length / 2;
    let request = Request::copy(Span::new(handle, 0), Span::new(handle, half), half);
    let slots = [raw_queue::slot(&request)?];
    let mut queues = RawQueue::open_many(&mut connection, 4, 16)?;
    stage.running();
    crowd(
        2,
        |index| move_pages(&mappings, index),
        || {
            loop {
                for queue in &mut queues {
                    queue.refill(&slots)?;
                }
                std::thread::sleep(10 * MOMENT);
            }
        },
    )
}

/// A frame of random bytes.
pub(super) fn random_frame(
    connection: &mut crate::Connection,
    length: u64,
) -> Result<stage::Registered, Failed> {
    let frame = stage::frame(connection, length)?;
    let mut bytes = vec![0; 1 << 16];
    fastrand::Rng::with_seed(3).fill(&mut bytes);
    for at in (0..length).step_by(bytes.len()) {
        let rest = bytes.len().min((length - at) as usize);
        frame.mapping.write(at, &bytes[..rest])?;
    }
    Ok(frame)
}
