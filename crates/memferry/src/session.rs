//! The session that a client, its frames and its queues share: the link to the service and the fork guard.

use std::os::fd::OwnedFd;

use memferry_service::protocol::{Answer, Command};
use memferry_shm::fork_guard::{ForkGuard, Forked};
use memferry_shm::parking::Fences;
use memferry_transfer::{Handle, SessionId};

use crate::error::{CallError, ConnectError};
use crate::link::{Link, Opened};

pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) id: SessionId,
    pub(crate) fences: Fences,
    guard: ForkGuard,
}

impl Session {
    pub(crate) fn open(opened: Opened) -> Result<Self, ConnectError> {
        let guard = ForkGuard::new().map_err(ConnectError::Setup)?;
        Ok(Self { link: opened.link, id: opened.session, fences: opened.fences, guard })
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
