//! Resources that copies of plain memory reuse: a client, idle queues, the list of this process's mappings.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock, PoisonError};

use memferry::{Client, Queue};
use rustix::fs::{Mode, OFlags};

use crate::error::Fault;

/// Idle queues kept for later calls.
const KEPT: usize = 8;

/// The client that plain copies use, and its idle queues.
#[derive(Default)]
pub(crate) struct CopyTeam {
    idle: Mutex<Idle>,
    maps: OnceLock<Option<OwnedFd>>,
}

#[derive(Default)]
struct Idle {
    client: Option<Client>,
    queues: Vec<Queue>,
}

impl CopyTeam {
    /// The client, and a queue for this call alone.
    pub(crate) fn claim(&self) -> Result<(Client, Queue), Fault> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let client = match &idle.client {
            Some(client) => client.clone(),
            None => idle.client.insert(Client::embedded()?).clone(),
        };
        let queue = idle.queues.pop();
        drop(idle);
        let queue = queue.map_or_else(|| client.queue(2), Ok)?;
        Ok((client, queue))
    }

    pub(crate) fn give_back(&self, queue: Queue) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.queues.len() < KEPT {
            idle.queues.push(queue);
        }
    }

    /// `/proc/self/maps`, opened once.
    pub(crate) fn maps(&self) -> Option<&OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let open = || rustix::fs::open("/proc/self/maps", flags, Mode::empty()).ok();
        self.maps.get_or_init(open).as_ref()
    }
}
