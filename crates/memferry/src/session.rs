//! The session that a client, its frames and its queues share: the link to the service, the fork guard and the memory by which
//! workers tell that they sleep.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use memferry_service::protocol::{Answer, Command};
use memferry_shm::fork_guard::{ForkGuard, Forked};
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::ParkedWord;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Handle, SessionId};

use crate::error::{CallError, ConnectError, OpenError};
use crate::link::{Link, Opened};

pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) id: SessionId,
    pub(crate) fences: Fences,
    guard: ForkGuard,
    /// The parked words of the workers, and the device and inode of their memory. All queues share one mapping, and so one entry of
    /// the TLB.
    parked: Mutex<Option<((u64, u64), MappedWords)>>,
}

impl Session {
    pub(crate) fn open(opened: Opened) -> Result<Self, ConnectError> {
        let guard = ForkGuard::new().map_err(ConnectError::Setup)?;
        let parked = Mutex::default();
        Ok(Self { link: opened.link, id: opened.session, fences: opened.fences, guard, parked })
    }

    /// The memory of the workers' parked words, mapped for reading.
    pub(crate) fn parked_words(&self, memory: &OwnedFd) -> Result<MappedWords, OpenError> {
        let bytes = ParkedWord::<MappedWords>::BYTES;
        // A service that sent other memory could end this process by truncating it, so the connection ends here.
        frame::check_sealed(memory.as_fd(), bytes)
            .inspect_err(|_| self.link.give_up())
            .map_err(OpenError::Memory)?;
        let stat = rustix::fs::fstat(memory).map_err(|error| OpenError::Map(error.into()))?;
        let name = (stat.st_dev, stat.st_ino);
        let mut known = self.parked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, words)) = known.as_ref().filter(|(known, _)| *known == name) {
            return Ok(words.clone());
        }
        let mapping =
            Mapping::shared(memory.as_fd(), bytes, Access::ReadOnly, 4096).map_err(OpenError::Map)?;
        mapping.do_not_fork().map_err(OpenError::Map)?;
        let unaligned = || OpenError::Map(io::Error::other("the workers' memory is not aligned"));
        let words = MappedWords::new(mapping).ok_or_else(unaligned)?;
        // Only a hostile service sends another memory.
        known.get_or_insert_with(|| (name, words.clone()));
        Ok(words)
    }

    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.guard.check()
    }

    pub(crate) fn call(
        &self,
        command: Command,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(Answer, Vec<OwnedFd>), CallError> {
        self.check_fork()?;
        self.link.call(self.id, command, descriptors)
    }

    /// Gives something back to the service when its owner is dropped. Does not wait for a service that is behind with its
    /// answers, so that a program with many frames does not wait for each of them.
    pub(crate) fn release(&self, command: Command) -> Result<Answer, CallError> {
        self.check_fork()?;
        self.link.release(self.id, command)
    }

    /// As [`release`](Self::release) for the capability of a frame that no request uses any more.
    pub(crate) fn give_back(&self, handle: Handle) -> Result<(), CallError> {
        self.check_fork()?;
        self.link.give_back(self.id, handle)
    }

    /// Revokes a capability. Returns when no transfer uses it.
    pub(crate) fn revoke(&self, handle: Handle) -> Result<(), CallError> {
        match self.call(Command::Revoke { handle }, Vec::new())?.0 {
            Answer::Revoked => Ok(()),
            _ => Err(CallError::UNEXPECTED),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child the session belongs to the parent.
        if self.check_fork().is_ok() {
            self.link.close(self.id);
        }
    }
}

/// Extracts the handle from an answer.
pub(crate) fn expect_handle(answer: Answer) -> Result<Handle, CallError> {
    match answer {
        Answer::Handle(handle) => Ok(handle),
        _ => Err(CallError::UNEXPECTED),
    }
}
