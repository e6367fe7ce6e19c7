//! The client: a session with a service, which allocates frames, makes grants and opens queues.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memferry_service::embedded::Embedded;
use memferry_service::protocol::{
    Answer, Command, EngineStatus, Grantee, Identity, Refusal, RefusalKind, Status, ZeroedStatus,
};
use memferry_service::{PolicySettings, ServiceConfig};
use memferry_shm::fork_guard::Forked;
use memferry_shm::frame;
use memferry_shm::mapping::{Access, Lent, Mapping};
use memferry_shm::queue_pair::Layout;
use memferry_transfer::{GrantToken, NodeName, Rights, SessionId};

use crate::arena::{ArenaOptions, FrameArena};
use crate::error::{CallError, ConnectError, FrameError, OpenError};
use crate::frame::{Frame, FrameBuilder, Region};
use crate::future::AsyncQueue;
use crate::link::{self, ConnectOptions, Link, Opened};
use crate::queue::Queue;
use crate::remote::RemoteToken;
use crate::session::{Session, expect_handle};

/// A session with a service. Clones share the session; it ends when the last clone, frame and queue is dropped.
///
/// ```
/// use memferry::{Client, Pattern, fill};
///
/// let client = Client::embedded()?; // or Client::connect("/run/memferry.sock")?
/// let frame = client.frame(4096).alloc()?;
/// let done = client.queue(4)?.run(fill(&frame, Pattern::Byte(7)))?;
/// assert_eq!(done.bytes_done, frame.length());
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
}

impl Client {
    /// Opens a client of the service that all embedded clients of this process share. The first one starts it.
    ///
    /// # Errors
    /// [`ConnectError::Start`], [`ConnectError::Refused`], [`ConnectError::Setup`].
    pub fn embedded() -> Result<Self, ConnectError> {
        Self::open(link::embed(Embedded::shared()?)?)
    }

    /// Starts a separate service with `config` inside this process and opens a client of it.
    ///
    /// # Errors
    /// As [`embedded`](Self::embedded).
    pub fn embedded_with(config: ServiceConfig) -> Result<Self, ConnectError> {
        Self::open(link::embed(Arc::new(Embedded::start(config)?))?)
    }

    /// Connects to the service that listens on the Unix socket at `path`. The service has five seconds to answer this and each
    /// later call; [`connect_with`](Self::connect_with) sets another limit.
    ///
    /// # Errors
    /// [`ConnectError::Socket`], [`ConnectError::TimedOut`], [`ConnectError::Handshake`], [`ConnectError::Setup`].
    pub fn connect(path: impl AsRef<Path>) -> Result<Self, ConnectError> {
        Self::connect_with(path, ConnectOptions::default())
    }

    /// Connects as [`connect`](Self::connect), with `options`.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_with(path: impl AsRef<Path>, options: ConnectOptions) -> Result<Self, ConnectError> {
        Self::open(link::connect(path.as_ref(), options)?)
    }

    fn open(opened: Opened) -> Result<Self, ConnectError> {
        Ok(Self { session: Arc::new(Session::open(opened)?) })
    }

    pub(crate) fn check_fork(&self) -> Result<(), Forked> {
        self.session.check_fork()
    }

    /// The session's public name. Other clients use it to grant memory to this client.
    pub fn session(&self) -> SessionId {
        self.session.id
    }

    /// Describes a frame of `length` bytes. [`FrameBuilder::alloc`] allocates it.
    pub fn frame(&self, length: u64) -> FrameBuilder {
        FrameBuilder::new(Arc::clone(&self.session), length)
    }

    /// Registers a memfd of this user as a frame. The memfd must be exactly `length` bytes long, fully allocated and sealable;
    /// the service seals it permanently. A memfd that is sealed against writing or opened read-only becomes a frame
    /// without [`Rights::WRITE`].
    ///
    /// # Errors
    /// [`FrameError::Call`], with a refusal if the memfd does not meet these conditions.
    pub fn register_memfd(&self, descriptor: OwnedFd, length: u64) -> Result<Frame, FrameError> {
        let mapped = usize::try_from(length).ok().and_then(|length| {
            let fd = std::os::fd::AsFd::as_fd(&descriptor);
            let page = frame::page_bytes(fd).ok()?;
            Mapping::shared(fd, length, Access::ReadWrite, page)
                .or_else(|_| Mapping::shared(fd, length, Access::ReadOnly, page))
                .ok()
        });
        // The service decides the rights by the same attempt to map the memory.
        let read_only = mapped.as_ref().is_some_and(|mapping: &Mapping| mapping.access() == Access::ReadOnly);
        let rights = if read_only { Rights::all().difference(Rights::WRITE) } else { Rights::all() };
        Frame::register(&self.session, descriptor, length, rights, mapped)
    }

    /// Creates an arena: memory that transfers can name, for buffers and for collections that take an allocator. It allocates
    /// its first segment with the first buffer or collection.
    ///
    /// # Errors
    /// [`FrameError::Guard`].
    pub fn arena(&self, options: ArenaOptions) -> Result<FrameArena, FrameError> {
        FrameArena::new(Arc::clone(&self.session), options)
    }

    /// Turns a vector into a frame of the same length without copying it. Embedded clients only.
    /// [`Frame::into_owned`] gives the vector back.
    ///
    /// # Errors
    /// [`FrameError::NotEmbedded`], which returns the vector; [`FrameError::Call`].
    pub fn register_owned(&self, memory: Vec<u8>) -> Result<Frame, FrameError> {
        self.session.check_fork().map_err(CallError::from)?;
        let Link::Embedded(embedded) = &self.session.link else {
            return Err(FrameError::NotEmbedded(memory));
        };
        self.register_here(embedded, Mapping::owned(memory), Rights::all())
    }

    /// Turns memory that its owner keeps, such as that of a caller in another language, into a frame. The frame has
    /// [`Rights::WRITE`] unless the memory was lent read-only. Embedded clients only.
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
            Access::ReadWrite | Access::Elsewhere => Rights::all(),
        };
        self.register_here(embedded, mapping, rights)
    }

    /// Turns a mapping of this process into a frame. Embedded clients only.
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

    /// Whether the service runs inside this process.
    pub fn is_embedded(&self) -> bool {
        matches!(self.session.link, Link::Embedded(_))
    }

    /// Grants `rights` on a region to `to`, who takes the grant up with its token ([`accept`](Self::accept)). The token is
    /// not secret: the service accepts it from the grantee only.
    ///
    /// ```
    /// use memferry::{Client, Grantee, Rights, copy};
    ///
    /// let (owner, peer) = (Client::embedded()?, Client::embedded()?);
    /// let frame = owner.frame(1 << 16).alloc()?;
    /// let grant = owner.grant(frame.slice(..4096), Rights::READ, Grantee::Session(peer.session()))?;
    /// // Pass the token to the peer in any way.
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
    /// [`CallError`]; [`CallError::PartOfArena`] for memory of an arena: [derive](Self::derive) a frame and grant that.
    pub fn grant(&self, region: impl Into<Region>, rights: Rights, to: Grantee) -> Result<Grant, CallError> {
        self.grant_until(&region.into(), rights, to, None)
    }

    /// Grants as [`grant`](Self::grant), for a limited time, counted by the service's `CLOCK_MONOTONIC` from this call on. Afterwards the
    /// grant cannot be accepted or passed on, and requests under it fail with [`Failure::Expired`](crate::Failure::Expired), also those
    /// that waited to start. A request that runs is not interrupted: [revoke](Grant::revoke) the grant before you reuse the memory. Until
    /// then it counts against the quota of capabilities, also when its time is over. The clock stops while the machine is suspended.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use memferry::{Client, Grantee, Rights};
    ///
    /// let (owner, peer) = (Client::embedded()?, Client::embedded()?);
    /// let frame = owner.frame(1 << 16).alloc()?;
    /// let to = Grantee::Session(peer.session());
    /// let hour = owner.grant_for(&frame, Rights::READ, to, Duration::from_secs(3600))?;
    /// peer.accept(hour.token())?;
    /// let over = owner.grant_for(&frame, Rights::READ, to, Duration::ZERO)?;
    /// assert!(peer.accept(over.token()).is_err());
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`grant`](Self::grant).
    pub fn grant_for(
        &self,
        region: impl Into<Region>,
        rights: Rights,
        to: Grantee,
        lasts: Duration,
    ) -> Result<Grant, CallError> {
        self.grant_until(&region.into(), rights, to, Some(lasts))
    }

    fn grant_until(
        &self,
        region: &Region,
        rights: Rights,
        to: Grantee,
        lasts: Option<Duration>,
    ) -> Result<Grant, CallError> {
        self.check_owns(region.frame())?;
        // A block cannot wait for a grant to end. A derived frame keeps the block until the frame is dropped.
        if region.frame().is_window() {
            return Err(CallError::PartOfArena);
        }
        let (offset, length) = offset_and_length(region)?;
        let handle = region.frame().handle();
        let command = Command::Grant { handle, offset, length, rights, to, lasts };
        let granted = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Grant { token: GrantToken::from_handle(granted), length, rights, client: self.clone() })
    }

    /// Whether a frame belongs to this client. Compare with this, not by handle: two clients may use the same handle.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.is_of(&self.session)
    }

    fn check_owns(&self, frame: &Frame) -> Result<(), CallError> {
        if self.owns(frame) {
            return Ok(());
        }
        let message = "the frame belongs to another client; make this call on that client".to_owned();
        Err(CallError::Refused(Refusal { kind: RefusalKind::Argument, message }))
    }

    /// Takes up a grant. The frame is not mapped in this process: only transfers reach it, within the rights granted. The
    /// process that passed the token on need not be the grantor: [`Frame::grantor`] names that.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the token is unknown, revoked or made for another grantee; other [`CallError`]s.
    pub fn accept(&self, token: GrantToken) -> Result<Frame, CallError> {
        match self.session.call(Command::Accept { token }, Vec::new())?.0 {
            Answer::Accepted { handle, length, rights, grantor } => {
                Ok(Frame::granted(Arc::clone(&self.session), handle, (length, rights), grantor))
            }
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Takes up a grant that another node made to this user, through the [link](crate::RemoteToken) of this node. Nothing is asked of the
    /// other node yet: it checks each transfer, which fails with [`Failure::PeerRefused`](crate::Failure::PeerRefused) if it does not
    /// allow it, and with [`Failure::PeerLost`](crate::Failure::PeerLost) while it cannot be reached.
    ///
    /// # Errors
    /// [`CallError::Refused`] if this node has no link, this user may not use it, or the token has the right to grant, which cannot be passed
    /// on; other [`CallError`]s.
    pub fn accept_remote(&self, remote: RemoteToken) -> Result<Frame, CallError> {
        let RemoteToken { node, service, token, length, rights } = remote;
        let command = Command::AcceptRemote { node, service, token, length, rights };
        let handle = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Frame::new(Arc::clone(&self.session), handle, length, rights, None))
    }

    /// Takes up a grant to `user` of another `node`. For the link of this node: the service refuses all other processes.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_for(&self, node: NodeName, user: u32, token: GrantToken) -> Result<Frame, CallError> {
        match self.session.call(Command::AcceptFor { node, user, token }, Vec::new())?.0 {
            Answer::Accepted { handle, length, rights, grantor } => {
                Ok(Frame::granted(Arc::clone(&self.session), handle, (length, rights), grantor))
            }
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Derives a frame that covers `region` with `rights` only, in this session. It keeps the original frame alive.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the region leaves its frame or the frame lacks one of the rights; other [`CallError`]s.
    pub fn derive(&self, region: impl Into<Region>, rights: Rights) -> Result<Frame, CallError> {
        let region = region.into();
        self.check_owns(region.frame())?;
        let (_, length) = offset_and_length(&region)?;
        let span = region.span();
        let command = Command::Derive { handle: span.handle, offset: span.offset, length, rights };
        let handle = expect_handle(self.session.call(command, Vec::new())?.0)?;
        Ok(Frame::derived(region.frame(), handle, length, rights))
    }

    /// Revokes the grant that `token` names, as [`Grant::revoke`].
    ///
    /// # Errors
    /// As [`Grant::revoke`].
    pub fn revoke(&self, token: GrantToken) -> Result<(), CallError> {
        self.session.revoke(token.handle())
    }

    /// Opens a queue for up to `capacity` outstanding requests: a power of two from 2 to 4096.
    ///
    /// # Errors
    /// [`OpenError::Call`], with a refusal for another capacity or when a quota is used up; [`OpenError::Map`].
    pub fn queue(&self, capacity: u32) -> Result<Queue, OpenError> {
        let layout = Layout::new(capacity).map_err(|error| {
            CallError::from(Refusal { kind: RefusalKind::Argument, message: error.to_string() })
        })?;
        let (sent, own) = frame::allocate_half(layout.client_bytes())
            .map_err(|error| OpenError::Map(std::io::Error::other(error)))?;
        own.do_not_fork().map_err(OpenError::Map)?;
        let (answer, descriptors) = self.session.call(Command::OpenQueue { capacity }, vec![sent])?;
        let Answer::Queue { queue, .. } = answer else {
            return Err(CallError::UNEXPECTED.into());
        };
        Queue::open(Arc::clone(&self.session), queue, (layout, own), descriptors).inspect_err(|_| {
            // No `Queue` exists whose drop would close it.
            let _ = self.session.call(Command::CloseQueue { queue }, Vec::new());
        })
    }

    /// Opens a queue whose transfers are futures. `capacity` is that of [`queue`](Self::queue).
    ///
    /// # Errors
    /// As [`queue`](Self::queue).
    pub fn async_queue(&self, capacity: u32) -> Result<AsyncQueue, OpenError> {
        self.queue(capacity).map(AsyncQueue::new)
    }

    /// The engines as this client may use them: operations, limits, and the highest priority class allowed.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn engines(&self) -> Result<EngineStatus, CallError> {
        match self.session.call(Command::Engines, Vec::new())?.0 {
            Answer::Engines(status) => Ok(status),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// The scheduling policy of the service with its settings.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn policy(&self) -> Result<PolicySettings, CallError> {
        self.change_policy(None)
    }

    /// Changes the scheduling policy of the running service and returns the new settings. Running requests keep their engine
    /// channels.
    ///
    /// # Errors
    /// [`CallError::Refused`] if the settings are invalid, or if this client runs neither as the service's user nor as root.
    pub fn set_policy(&self, settings: PolicySettings) -> Result<PolicySettings, CallError> {
        self.change_policy(Some(Box::new(settings)))
    }

    fn change_policy(&self, change: Option<Box<PolicySettings>>) -> Result<PolicySettings, CallError> {
        match self.session.call(Command::Policy { change }, Vec::new())?.0 {
            Answer::Policy(settings) => Ok(*settings),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Identifies the process and user behind a session of this client's service. The client's own session is allowed.
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
    /// [`CallError::Refused`] if no such session is open.
    pub fn identify(&self, session: SessionId) -> Result<Identity, CallError> {
        match self.session.call(Command::Identify { session }, Vec::new())?.0 {
            Answer::Identity(identity) => Ok(identity),
            _ => Err(CallError::UNEXPECTED),
        }
    }

    /// Adds zeroed buffers to the counters of the embedded service.
    pub(crate) fn count_zeroed(&self, more: ZeroedStatus) {
        if let Link::Embedded(embedded) = &self.session.link {
            embedded.service().count_zeroed(more);
        }
    }

    /// The state of the service: sessions, workers, engines and counters.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn status(&self) -> Result<Status, CallError> {
        match self.session.call(Command::Status, Vec::new())?.0 {
            Answer::Status(status) => Ok(*status),
            _ => Err(CallError::UNEXPECTED),
        }
    }
}

/// The offset and length of a region; an error if it ends before it begins.
fn offset_and_length(region: &Region) -> Result<(u64, u64), CallError> {
    let bounds = region.bounds();
    if bounds.start > bounds.end {
        let message = format!("the slice {}..{} ends before it begins", bounds.start, bounds.end);
        return Err(CallError::Refused(Refusal { kind: RefusalKind::Argument, message }));
    }
    Ok((region.offset(), region.length()))
}

/// Rights on memory that were granted to another client. The grant ends when it is revoked, its time is over or the frame's memory is
/// given back. Dropping this value does not revoke it: [`Client::revoke`] takes the token.
///
/// ```
/// use memferry::{Client, Grantee, Rights};
///
/// let owner = Client::embedded()?;
/// let peer = Client::embedded()?; // in practice another process
/// let frame = owner.frame(4096).alloc()?;
/// let grant = owner.grant(frame.slice(..100), Rights::READ, Grantee::Session(peer.session()))?;
/// let granted = peer.accept(grant.token())?;
/// assert_eq!((granted.length(), granted.grantor()), (100, Some(owner.session())));
/// grant.revoke()?;
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "the grantee needs the token"]
pub struct Grant {
    token: GrantToken,
    length: u64,
    rights: Rights,
    client: Client,
}

impl Grant {
    /// The token that the grantee passes to [`Client::accept`]. It is useless to others.
    pub fn token(&self) -> GrantToken {
        self.token
    }

    /// The token of a grant to [`Grantee::Remote`], which the grantee passes to [`Client::accept_remote`]. `node` is the name that this
    /// machine has in the configurations of the links.
    ///
    /// ```
    /// use memferry::{Client, Grantee, Rights};
    ///
    /// let owner = Client::embedded()?; // whose service has no link to other nodes, in this example
    /// let frame = owner.frame(4096).alloc()?;
    /// let to = Grantee::Remote { node: "beta".parse().expect("a name"), user: 1000 };
    /// let grant = owner.grant(&frame, Rights::READ, to)?;
    /// let token = grant.remote_token("alpha".parse().expect("a name"))?;
    /// assert!(token.to_string().starts_with("alpha:") && token.length == 4096);
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`CallError`]: the service is asked which run of it this is.
    pub fn remote_token(&self, node: NodeName) -> Result<RemoteToken, CallError> {
        let service = self.client.identify(self.client.session())?.service;
        Ok(RemoteToken { node, service, token: self.token, length: self.length, rights: self.rights })
    }

    /// Revokes the grant, and all rights that the grantee derived from it or granted further. Cancels running transfers that
    /// use them, and returns when none touches the memory any more.
    ///
    /// # Errors
    /// [`CallError`]; [`CallError::RevocationPending`] if that takes longer than the client's time limit: call
    /// [`Client::revoke`] to wait again. [`CallError::Refused`] also if a transfer on the memory ended with
    /// [`Failure::ChannelFaulted`](memferry_transfer::Failure): the grant is revoked, but the failed channel may still write there.
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
    fn a_read_only_memfd_lacks_the_write_right() {
        let client = Client::embedded().unwrap();
        let sealed = memfd();
        let opened = memfd();
        rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
        // A read-only descriptor cannot add seals, so they are added before it is opened.
        rustix::io::pwrite(&opened, &[7; 4096], 0).unwrap();
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE;
        rustix::fs::fcntl_add_seals(&opened, seals | SealFlags::SEAL).unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&opened));
        let opened = OwnedFd::from(std::fs::File::open(path).unwrap());
        let read_only = Rights::all().difference(Rights::WRITE);
        let mut queue = client.queue(2).unwrap();
        for (memfd, rights) in [(sealed, read_only), (opened, read_only), (memfd(), Rights::all())] {
            let frame = client.register_memfd(memfd, 4096).unwrap();
            assert_eq!(frame.rights(), rights);
            let filled = queue.submit(fill(&frame, Pattern::Byte(1))).unwrap();
            let failure = queue.wait(filled).map(drop).map_err(|error| error.failure);
            let lacks = Failure::MissingRight { side: Side::Destination, handle: frame.handle() };
            assert_eq!(failure, if rights == read_only { Err(lacks) } else { Ok(()) });
        }
    }
}
