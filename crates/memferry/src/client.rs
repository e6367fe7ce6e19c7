//! A client: its session with a service, and what it allocates, grants and opens there.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use memferry_service::embedded::Embedded;
use memferry_service::protocol::{
    Answer, Command, EngineStatus, Identity, Refusal, RefusalKind, Status, ZeroedStatus,
};
use memferry_service::{PolicySettings, ServiceConfig};
use memferry_shm::fork_guard::{ForkGuard, Forked};
use memferry_shm::frame::{self, Pages};
use memferry_shm::mapping::{Access, Lent, Mapping};
use memferry_shm::parking::Fences;
use memferry_shm::placement::Placement;
use memferry_transfer::{Handle, Rights, SessionId};

pub use memferry_service::protocol::Grantee;

use crate::arena::{ArenaOptions, FrameArena};
use crate::error::{CallError, ConnectError, FrameError, OpenError};
use crate::frame::{Frame, FrameRange};
use crate::link::{self, Link, Opened};
use crate::queue::Queue;

/// The session everything of a client shares.
pub(crate) struct Session {
    pub(crate) link: Link,
    pub(crate) id: SessionId,
    pub(crate) fences: Fences,
    guard: ForkGuard,
}

impl Session {
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
}

impl Drop for Session {
    fn drop(&mut self) {
        // In a forked child the session is the parent's.
        if self.check_fork().is_ok() {
            self.link.close(self.id);
        }
    }
}

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
        let guard = ForkGuard::new().map_err(ConnectError::Setup)?;
        let session = Session { link: opened.link, id: opened.session, fences: opened.fences, guard };
        Ok(Self { session: Arc::new(session) })
    }

    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.session.check_fork()
    }

    /// The session's public name: others grant to it.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Allocates `length` bytes (rounded up to whole pages) that the service may move, zeroed, with all rights.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn allocate(&self, length: u64) -> Result<Frame, FrameError> {
        self.allocate_in(length, Pages::Ordinary)
    }

    /// Allocates like [`allocate`](Self::allocate), in the given pages.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn allocate_in(&self, length: u64, pages: Pages) -> Result<Frame, FrameError> {
        self.allocate_with(length, pages.into())
    }

    /// Allocates like [`allocate`](Self::allocate), with pages of the size and on the NUMA node that `placement` says.
    ///
    /// ```
    /// # use memferry::{Client, FrameError, Placement};
    /// let client = Client::embedded()?;
    /// let near = client.allocate_with(1 << 20, Placement { node: Some(0), ..Placement::default() });
    /// let refused = client.allocate_with(1 << 20, Placement::on_node(1023)).unwrap_err();
    /// assert!(refused.to_string().contains("no memory node 1023"));
    /// # drop(near);
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`FrameError`]; one that names the nodes there are when the machine has no such node.
    pub fn allocate_with(&self, length: u64, placement: Placement) -> Result<Frame, FrameError> {
        let (descriptor, mapping) = frame::allocate_placed(length, placement)?;
        let length = mapping.length_bytes() as u64;
        self.register(descriptor, length, Some(mapping))
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
        self.register_as(descriptor, length, rights, mapped)
    }

    /// An arena whose memory this client's service can move bytes in: for buffers, and for collections that take an
    /// allocator. It has no memory before it is used.
    ///
    /// # Errors
    /// [`FrameError::Guard`].
    pub fn arena(&self, options: ArenaOptions) -> Result<FrameArena, FrameError> {
        FrameArena::new(self.clone(), options)
    }

    pub(crate) fn register(
        &self,
        descriptor: OwnedFd,
        length: u64,
        mapping: Option<Mapping>,
    ) -> Result<Frame, FrameError> {
        self.register_as(descriptor, length, Rights::all(), mapping)
    }

    fn register_as(
        &self,
        descriptor: OwnedFd,
        length: u64,
        rights: Rights,
        mapping: Option<Mapping>,
    ) -> Result<Frame, FrameError> {
        let (answer, _) = self.session.call(Command::Register { length, rights }, vec![descriptor])?;
        Ok(Frame::new(Arc::clone(&self.session), expect_handle(answer)?, length, rights, mapping))
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

    /// Offers a range with `rights` to another client, which takes it up with the token ([`accept`](Self::accept)). The
    /// token is no secret: it is good only for whom it was made. Revoke it to take back what was granted.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::PartOfArena`] for memory of an arena, which others may get by a frame derived from it.
    pub fn grant(&self, range: &FrameRange, rights: Rights, to: Grantee) -> Result<Handle, CallError> {
        self.check_owns(range.frame())?;
        // A grant has no end that the block could wait for; a derived frame's ends with the frame.
        if range.frame().is_window() {
            return Err(CallError::PartOfArena);
        }
        let offset = range.offset();
        let length = range.length();
        let command = Command::Grant { handle: range.frame().handle(), offset, length, rights, to };
        expect_handle(self.session.call(command, Vec::new())?.0)
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
    pub fn accept(&self, token: Handle) -> Result<Frame, CallError> {
        match self.session.call(Command::Accept { token }, Vec::new())?.0 {
            Answer::Accepted { handle, length, rights, grantor } => {
                Ok(Frame::granted(Arc::clone(&self.session), handle, (length, rights), grantor))
            }
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }

    /// A capability with a narrower range or fewer rights, of this session. What it was derived from is kept for as long.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn derive(&self, range: &FrameRange, rights: Rights) -> Result<Frame, CallError> {
        self.check_owns(range.frame())?;
        let span = range.span_for(range.length());
        let length = range.length();
        let command = Command::Derive { handle: span.handle, offset: span.offset, length, rights };
        let handle = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Frame::derived(range.frame(), handle, length, rights))
    }

    /// Takes a capability, or what was granted under a token, away from everyone it was passed to. Returns when no
    /// transfer uses it any more: those running are cancelled.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::Refused`] also when a transfer on it ended with
    /// [`Failure::ChannelFaulted`](memferry_transfer::Failure): it is taken away, but the failed channel may still write there.
    pub fn revoke(&self, handle: Handle) -> Result<(), CallError> {
        match self.session.call(Command::Revoke { handle }, Vec::new())?.0 {
            Answer::Revoked => Ok(()),
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }

    /// Opens a queue for up to `capacity` requests outstanding, a power of two from 2 to 4096.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn queue(&self, capacity: u32) -> Result<Queue, OpenError> {
        let (answer, descriptors) = self.session.call(Command::OpenQueue { capacity }, Vec::new())?;
        let Answer::Queue { queue, capacity } = answer else {
            return Err(CallError::Protocol("it answered something else").into());
        };
        Queue::open(Arc::clone(&self.session), queue, capacity, descriptors).inspect_err(|_| {
            // Nobody else would: without a queue nothing is dropped that closes it.
            let _ = self.session.call(Command::CloseQueue { queue }, Vec::new());
        })
    }

    /// What the engines can do for this client: kinds of operations, limits, the priority class it may use.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn engines(&self) -> Result<EngineStatus, CallError> {
        match self.session.call(Command::Engines, Vec::new())?.0 {
            Answer::Engines(status) => Ok(status),
            _ => Err(CallError::Protocol("it answered something else")),
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
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }

    /// Whose a session of this client's service is, its own among them.
    ///
    /// ```
    /// # use memferry::Client;
    /// let (client, other) = (Client::embedded()?, Client::embedded()?);
    /// let (own, others) = (client.identify(client.session())?, client.identify(other.session())?);
    /// assert_eq!((own.service, own.process), (others.service, std::process::id()));
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError::Refused`] when no such session is open.
    pub fn identify(&self, session: SessionId) -> Result<Identity, CallError> {
        match self.session.call(Command::Identify { session }, Vec::new())?.0 {
            Answer::Identity(identity) => Ok(identity),
            _ => Err(CallError::Protocol("it answered something else")),
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
            _ => Err(CallError::Protocol("it answered something else")),
        }
    }
}

fn expect_handle(answer: Answer) -> Result<Handle, CallError> {
    match answer {
        Answer::Handle(handle) => Ok(handle),
        _ => Err(CallError::Protocol("it answered something else")),
    }
}

#[cfg(test)]
mod tests {
    use memferry_transfer::{Failure, Pattern, Side};
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;
    use crate::Transfer;

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
            let filled = queue.perform(Transfer::fill(&frame.all(), Pattern::Byte(1))).unwrap().outcome;
            let lacks = Failure::MissingRight { side: Side::Destination, handle: frame.handle() };
            assert_eq!(filled, if rights == less { Err(lacks) } else { Ok(()) });
        }
    }
}
