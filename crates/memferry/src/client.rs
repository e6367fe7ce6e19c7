//! A client: its session with a service, and what it allocates, grants and opens there.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use memferry_service::embedded::Embedded;
use memferry_service::protocol::{
    Answer, Command, EngineStatus, Grantee, Identity, Refusal, RefusalKind, Status, ZeroedStatus,
};
use memferry_service::{PolicySettings, ServiceConfig};
use memferry_shm::fork_guard::Forked;
use memferry_shm::mapping::{Access, Lent, Mapping};
use memferry_transfer::{GrantToken, Rights, SessionId};

use crate::arena::{ArenaOptions, FrameArena};
use crate::error::{CallError, ConnectError, FrameError, OpenError};
use crate::frame::{Frame, FrameBuilder, Region};
use crate::future::AsyncQueue;
use crate::link::{self, Link, Opened};
use crate::queue::Queue;
use crate::session::{Session, expect_handle};

/// A session with a service. Clones share it; it ends with the last of them, its frames and its queues.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
}

impl Client {
    /// A client of the service inside this process, which all its clients share and which starts with the first.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn embedded() -> Result<Self, ConnectError> {
        Self::open(link::embed(Embedded::shared()?)?)
    }

    /// A client of a service of its own inside this process, with `config`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn embedded_with(config: ServiceConfig) -> Result<Self, ConnectError> {
        Self::open(link::embed(Arc::new(Embedded::start(config)?))?)
    }

    /// A client of the service that listens on `path`.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::open(link::connect(path.as_ref())?)
    }

    fn open(opened: Opened) -> Result<Self, ConnectError> {
        Ok(Self { session: Arc::new(Session::open(opened)?) })
    }

    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.session.check_fork()
    }

    /// The session's public name: others grant to it.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Describes memory of `length` bytes that the service may move; [`FrameBuilder::alloc`] allocates it.
    pub fn frame(&self, length: u64) -> FrameBuilder {
        FrameBuilder::new(Arc::clone(&self.session), length)
    }

    /// Registers a memfd of this user as a frame: of exactly `length` bytes, all allocated, sealable. It is sealed
    /// for good. One that is sealed against writing, or was opened to be read, is a frame without the right to write.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn register_memfd(&self, descriptor: OwnedFd, length: u64) -> Result<Frame, FrameError> {
        let mapped = usize::try_from(length).ok().and_then(|length| {
            let fd = std::os::fd::AsFd::as_fd(&descriptor);
            Mapping::shared(fd, length, Access::ReadWrite, 4096)
                .or_else(|_| Mapping::shared(fd, length, Access::ReadOnly, 4096))
                .ok()
        });
        // As the service judges it, by the same attempt to map it.
        let read_only = mapped.as_ref().is_some_and(|mapping: &Mapping| mapping.access() == Access::ReadOnly);
        let rights = if read_only { Rights::all().difference(Rights::WRITE) } else { Rights::all() };
        Frame::register(&self.session, descriptor, length, rights, mapped)
    }

    /// An arena whose memory this client's service can move bytes in: for buffers, and for collections that take an
    /// allocator. It has no memory before it is used.
    ///
    /// # Errors
    /// [`FrameError::Guard`].
    pub fn arena(&self, options: ArenaOptions) -> Result<FrameArena, FrameError> {
        FrameArena::new(Arc::clone(&self.session), options)
    }

    /// Makes memory of this process a frame, without copying it. Embedded clients only.
    ///
    /// # Errors
    /// [`FrameError::NotEmbedded`] with the memory, [`FrameError::Call`].
    pub fn register_owned(&self, memory: Vec<u8>) -> Result<Frame, FrameError> {
        self.session.check_fork().map_err(CallError::from)?;
        let Link::Embedded(embedded) = &self.session.link else {
            return Err(FrameError::NotEmbedded(memory));
        };
        self.register_here(embedded, Mapping::owned(memory), Rights::all())
    }

    /// Makes memory of this process a frame that its owner keeps: memory of a caller in another language. The frame has the
    /// right to write unless the memory was lent to be read. Embedded clients only.
    ///
    /// # Errors
    /// [`FrameError::LentToService`], [`FrameError::Call`].
    pub fn register_lent(&self, memory: Lent) -> Result<Frame, FrameError> {
        self.session.check_fork().map_err(CallError::from)?;
        let Link::Embedded(embedded) = &self.session.link else {
            return Err(FrameError::LentToService);
        };
        let mapping = Mapping::lent(memory);
        let rights = match mapping.access() {
            Access::ReadOnly => Rights::all().difference(Rights::WRITE),
            Access::ReadWrite => Rights::all(),
        };
        self.register_here(embedded, mapping, rights)
    }

    /// Makes a mapping of this process a frame. Embedded clients only.
    ///
    /// # Errors
    /// [`FrameError::LentToService`], [`FrameError::Call`].
    pub(crate) fn register_mapping(&self, mapping: Mapping) -> Result<Frame, FrameError> {
        self.session.check_fork().map_err(CallError::from)?;
        let Link::Embedded(embedded) = &self.session.link else {
            return Err(FrameError::LentToService);
        };
        self.register_here(embedded, mapping, Rights::all())
    }

    fn register_here(
        &self,
        embedded: &Embedded,
        mapping: Mapping,
        rights: Rights,
    ) -> Result<Frame, FrameError> {
        let length = mapping.length_bytes() as u64;
        let registered = embedded.service().register_mapping(self.session.id, mapping.clone(), rights);
        let handle = expect_handle(registered.map_err(CallError::from)?)?;
        Ok(Frame::new(Arc::clone(&self.session), handle, length, rights, Some(mapping)))
    }

    /// Whether the service is in this process.
    pub fn is_embedded(&self) -> bool {
        matches!(self.session.link, Link::Embedded(_))
    }

    /// Grants `rights` on a region to another client, which takes it up with the token ([`accept`](Self::accept)). The
    /// token is no secret: it is good only for whom it was made.
    ///
    /// ```
    /// # #![deny(unused_must_use)]
    /// use memferry::{Client, Grantee, Rights, copy};
    ///
    /// let (owner, peer) = (Client::embedded()?, Client::embedded()?);
    /// let frame = owner.frame(1 << 16).alloc()?;
    /// let grant = owner.grant(frame.slice(..4096), Rights::READ, Grantee::Session(peer.session()))?;
    /// // The peer gets the token by whatever way it likes.
    /// let token = grant.token().to_string();
    /// let granted = peer.accept(token.parse().expect("a token"))?;
    /// let own = peer.frame(4096).alloc()?;
    /// peer.queue(4)?.run(copy(&granted, &own))?;
    /// grant.revoke()?;
    /// assert!(peer.queue(4)?.run(copy(&granted, &own)).is_err());
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::PartOfArena`] for memory of an arena, which others may get by a frame derived from it.
    pub fn grant(&self, region: impl Into<Region>, rights: Rights, to: Grantee) -> Result<Grant, CallError> {
        let region = region.into();
        self.check_owns(region.frame())?;
        // A grant has no end that the block could wait for; a derived frame's ends with the frame.
        if region.frame().is_window() {
            return Err(CallError::PartOfArena);
        }
        let (offset, length) = whole(&region)?;
        let command = Command::Grant { handle: region.frame().handle(), offset, length, rights, to };
        let granted = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Grant { token: GrantToken::from_handle(granted), client: self.clone() })
    }

    /// Whether a frame is this client's. Another's has a handle that may be a frame's of this one too.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.is_of(&self.session)
    }

    fn check_owns(&self, frame: &Frame) -> Result<(), CallError> {
        if self.owns(frame) {
            return Ok(());
        }
        let message = "the frame belongs to another client; ask that one".to_owned();
        Err(CallError::Refused(Refusal { kind: RefusalKind::Argument, message }))
    }

    /// Takes up a grant. The frame is not mapped here: the service moves bytes there, within the rights granted. Whoever hands
    /// a token on need not be who granted it: [`Frame::grantor`] says who did.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn accept(&self, token: GrantToken) -> Result<Frame, CallError> {
        match self.session.call(Command::Accept { token }, Vec::new())?.0 {
            Answer::Accepted { handle, length, rights, grantor } => {
                Ok(Frame::granted(Arc::clone(&self.session), handle, (length, rights), grantor))
            }
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// A capability for a region, with those rights and no others, of this session. What it was derived from is kept for as long.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn derive(&self, region: impl Into<Region>, rights: Rights) -> Result<Frame, CallError> {
        let region = region.into();
        self.check_owns(region.frame())?;
        let (_, length) = whole(&region)?;
        let span = region.span();
        let command = Command::Derive { handle: span.handle, offset: span.offset, length, rights };
        let handle = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Frame::derived(region.frame(), handle, length, rights))
    }

    /// Takes what was granted under a token away, from its grantee and everyone it was passed to, as [`Grant::revoke`].
    ///
    /// # Errors
    /// As [`Grant::revoke`].
    pub fn revoke(&self, token: GrantToken) -> Result<(), CallError> {
        self.session.revoke(token.handle())
    }

    /// Opens a queue for up to `capacity` requests outstanding, a power of two from 2 to 4096.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn queue(&self, capacity: u32) -> Result<Queue, OpenError> {
        let (answer, descriptors) = self.session.call(Command::OpenQueue { capacity }, Vec::new())?;
        let Answer::Queue { queue, capacity } = answer else {
            return Err(CallError::UNEXPECTED.into());
        };
        Queue::open(Arc::clone(&self.session), queue, capacity, descriptors).inspect_err(|_| {
            // Nobody else would: without a queue nothing is dropped that closes it.
            let _ = self.session.call(Command::CloseQueue { queue }, Vec::new());
        })
    }

    /// Opens a queue whose transfers are awaited, as [`queue`](Self::queue).
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn async_queue(&self, capacity: u32) -> Result<AsyncQueue, OpenError> {
        self.queue(capacity).map(AsyncQueue::new)
    }

    /// What the engines can do for this client: kinds of operations, limits, the priority class it may use.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn engines(&self) -> Result<EngineStatus, CallError> {
        match self.session.call(Command::Engines, Vec::new())?.0 {
            Answer::Engines(status) => Ok(status),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Which policy the service has, with its numbers.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn policy(&self) -> Result<PolicySettings, CallError> {
        self.change_policy(None)
    }

    /// Gives a running service another policy. Requests that run keep their queues.
    ///
    /// # Errors
    /// [`CallError::Refused`] when the settings are not to be had, and to clients that are neither the user that the service
    /// runs as nor root.
    pub fn set_policy(&self, settings: PolicySettings) -> Result<PolicySettings, CallError> {
        self.change_policy(Some(Box::new(settings)))
    }

    fn change_policy(&self, change: Option<Box<PolicySettings>>) -> Result<PolicySettings, CallError> {
        match self.session.call(Command::Policy { change }, Vec::new())?.0 {
            Answer::Policy(settings) => Ok(*settings),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Whose a session of this client's service is, its own among them.
    ///
    /// ```
    /// # use memferry::Client;
    /// let (client, other) = (Client::embedded()?, Client::embedded()?);
    /// let own = client.identify(client.session())?;
    /// let others = client.identify(other.session())?;
    /// assert_eq!((own.service, own.process), (others.service, std::process::id()));
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::Refused`] when no such session is open.
    pub fn identify(&self, session: SessionId) -> Result<Identity, CallError> {
        match self.session.call(Command::Identify { session }, Vec::new())?.0 {
            Answer::Identity(identity) => Ok(identity),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Tells the service of this process of buffers that were zeroed.
    pub(crate) fn count_zeroed(&self, more: ZeroedStatus) {
        if let Link::Embedded(embedded) = &self.session.link {
            embedded.service().count_zeroed(more);
        }
    }

    /// How the service is doing.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn status(&self) -> Result<Status, CallError> {
        match self.session.call(Command::Status, Vec::new())?.0 {
            Answer::Status(status) => Ok(status),
            _ => Err(CallError::UNEXPECTED),
        }
    }
}

/// Where a region begins and how long it is; a refusal where it ends before it begins.
fn whole(region: &Region) -> Result<(u64, u64), CallError> {
    let bounds = region.bounds();
    if bounds.start > bounds.end {
        let message = format!("the slice {}..{} ends before it begins", bounds.start, bounds.end);
        return Err(CallError::Refused(Refusal { kind: RefusalKind::Argument, message }));
    }
    Ok((region.offset(), region.length()))
}

/// What was granted to another client. It holds until it is revoked or the frame goes, also when this is dropped; the token is
/// then what [`Client::revoke`] takes.
#[derive(Clone)]
#[must_use = "the grantee needs the token"]
pub struct Grant {
    token: GrantToken,
    client: Client,
}

impl Grant {
    /// What the grantee takes it up with ([`Client::accept`]): worth nothing to anybody else.
    pub fn token(&self) -> GrantToken {
        self.token
    }

    /// Takes it away, from its grantee and everyone it was passed to. Returns when no transfer uses the memory on their behalf any
    /// more: those that run are cancelled.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Refused`] also when a transfer on it ended with
    /// [`Failure::ChannelFaulted`](memferry_transfer::Failure): it is taken away, but the failed channel may still write there.
    pub fn revoke(self) -> Result<(), CallError> {
        self.client.revoke(self.token)
    }
}

impl std::fmt::Debug for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Grant({})", self.token)
    }
}

#[cfg(test)]
mod tests {
    use memferry_transfer::{Failure, Pattern, Side};
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;
    use crate::transfer::fill;

    fn memfd() -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("rights", flags).unwrap();
        rustix::fs::fallocate(&memfd, rustix::fs::FallocateFlags::empty(), 0, 4096).unwrap();
        memfd
    }

    #[test]
    fn a_memfd_that_may_not_be_written_is_a_frame_without_that_right() {
        let client = Client::embedded().unwrap();
        let sealed = memfd();
        let opened = memfd();
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
        // Whoever opens it to be read cannot add the seals that a frame has.
        rustix::io::pwrite(&opened, &[7; 4096], 0).unwrap();
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        rustix::fs::fcntl_add_seals(&opened, seals | SealFlags::SEAL).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
        let opened = OwnedFd::from(std::fs::File::open(path).unwrap());
        let less = Rights::all().difference(Rights::WRITE);
        let mut queue = client.queue(2).unwrap();
        for (memfd, rights) in [(sealed, less), (opened, less), (memfd(), Rights::all())] {
            let frame = client.register_memfd(memfd, 4096).unwrap();
            assert_eq!(frame.rights(), rights);
            let filled = queue.submit(fill(&frame, Pattern::Byte(1))).unwrap();
            let failure = queue.wait(filled).map(drop).map_err(|error| error.failure);
            let lacks = Failure::MissingRight { side: Side::Destination, handle: frame.handle() };
            assert_eq!(failure, if rights == less { Err(lacks) } else { Ok(()) });
        }
    }
}
