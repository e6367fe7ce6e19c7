//! Stage 1, capability: the table of rights on memory, and admission of requests against it.
//!
//! ```text
//! register ─► root ─┬─ derive ─► narrower, same session
//!                   └─ grant  ─► granted ─ accept ─► held by another session
//! resolve, claim    handles ─► Regions; counts them as in flight
//! revoke(handle)    the whole subtree; done when nothing of it is in flight
//! Mirror            repeats what handles give access to, for a table that is read without the lock of this one
//! ```
//!
//! A grant may be for a limited time: afterwards it and everything below it give no access, but requests that run go on.
//! The table is one tree for all sessions; a handle is valid only in the session that holds it. A grantee keeps a revoked
//! capability as a tombstone, so that using it reports "revoked" and not "unknown". The service maps memory and keeps the quotas
//! of bytes and frames.

mod mirror;
mod pictures;
mod revocation;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_transfer::wire;
use memferry_transfer::{
    Count2d, Failure, GrantToken, Handle, Memory, NodeName, Operation, Plane, Reach, Region, Rights,
    SessionId, Side, Span, Terms,
};
use smallvec::SmallVec;
use thiserror::Error;

pub use mirror::Mirror;
use revocation::{Marking, Revocation};

/// Who may accept a grant. The numbers are those of the protocol between client and service, which sends positions.
///
/// ```
/// use memferry_path::Grantee;
/// use memferry_transfer::SessionId;
///
/// let one_session = Grantee::Session(SessionId(3));
/// assert_ne!(one_session, Grantee::User(1000));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[repr(u8)]
pub enum Grantee {
    Session(SessionId) = 0,
    /// Every session of a user.
    User(u32) = 1,
    /// A user of another node, for whom the link of this node accepts it.
    Remote {
        node: NodeName,
        user: u32,
    } = 2,
}

/// Names one revocation until it is finished.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RevocationId(u64);

/// Why a capability operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CapabilityError {
    /// The session holds no such capability.
    #[error("handle {0} names nothing in this session; register or accept the memory first")]
    Unknown(Handle),
    #[error("handle {0} was revoked; ask its grantor for a new grant, or register the memory again")]
    Revoked(Handle),
    /// The grant that the capability comes from was for a limited time.
    #[error("handle {0} has expired: it was granted for a limited time; ask its grantor for a new grant")]
    Expired(Handle),
    /// The range leaves the range of the capability.
    #[error(
        "{length} bytes at offset {offset} leave the {available} bytes of handle {handle}; name a range within them"
    )]
    OutOfRange {
        /// The capability to narrow.
        handle: Handle,
        /// Start of the wanted range.
        offset: u64,
        length: u64,
        /// Bytes the capability covers.
        available: u64,
    },
    /// More rights than the capability has were asked for, or none.
    #[error("handle {handle} carries {held:?} and cannot give {wanted:?}; name some of its rights")]
    Rights {
        /// The capability to narrow.
        handle: Handle,
        held: Rights,
        /// The rights asked for.
        wanted: Rights,
    },
    /// The capability does not carry GRANT.
    #[error("handle {0} may not be granted to others; its grantor has to include the right to grant")]
    NotGrantable(Handle),
    /// The token names no grant to this session or user.
    #[error(
        "token {0} names no grant to this client: it is revoked, or for another user or session; ask its grantor"
    )]
    NoSuchGrant(GrantToken),
    /// The grant was for a limited time.
    #[error("the grant of token {0} has expired; ask its grantor for a new one")]
    ExpiredGrant(GrantToken),
    /// The session holds as many capabilities as its quota allows.
    #[error("this client holds {limit} capabilities, its quota; revoke some")]
    Quota { limit: usize },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Accepted {
    /// The capability in the accepting session.
    pub handle: Handle,
    pub length: u64,
    pub rights: Rights,
    /// The session that granted it.
    pub grantor: SessionId,
}

/// The capabilities a request holds in flight. [`Capabilities::release`] must get them exactly once.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "claims that are not released keep their memory from being revoked"]
pub struct Claims(SmallVec<[u32; 3]>);

impl Claims {
    /// Claims of a request that names no memory.
    pub(crate) fn none() -> Self {
        Self(SmallVec::new())
    }
}

/// When the first capability of a request expires, and which one that is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limit {
    expires: u64,
    side: Side,
    handle: Handle,
}

impl Limit {
    pub(crate) fn failure(&self) -> Failure {
        Failure::Expired { side: self.side, handle: self.handle }
    }
}

/// The end of a capability that does not expire, in nanoseconds of the table's clock.
const NEVER: u64 = u64::MAX;

/// A checked operation without claims: valid until the table changes.
pub(crate) struct Resolved<M> {
    pub(crate) operation: Operation<Region<M>>,
    nodes: SmallVec<[u32; 3]>,
    /// Boxed, because nearly all requests have none.
    limit: Option<Box<Limit>>,
}

/// Segments of a list that count as one more request in the user's quota, because a waiting list is kept whole.
const SEGMENTS_PER_PLACE: usize = 64;

/// A request with checked memory: output of admission.
#[derive(Debug)]
#[must_use = "an admitted request holds claims on its memory"]
pub struct Admitted<M> {
    operation: Operation<Region<M>>,
    claims: Claims,
    session: SessionId,
    terms: Terms,
    limit: Option<Box<Limit>>,
}

impl<M> Admitted<M> {
    pub fn session(&self) -> SessionId {
        self.session
    }

    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    pub(crate) fn terms_mut(&mut self) -> &mut Terms {
        &mut self.terms
    }

    pub(crate) fn operation(&self) -> &Operation<Region<M>> {
        &self.operation
    }

    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Places it takes in the user's quota of waiting and held requests.
    pub(crate) fn places(&self) -> usize {
        1 + self.operation.segments() / SEGMENTS_PER_PLACE
    }

    /// When it may not start any more, if one of its capabilities expires.
    pub(crate) fn limit(&self) -> Option<Limit> {
        self.limit.as_deref().copied()
    }

    pub(crate) fn into_parts(self) -> (Operation<Region<M>>, Claims) {
        (self.operation, self.claims)
    }

    /// The claims and quota places to give back.
    pub(crate) fn into_kept(self) -> (Claims, usize) {
        let places = self.places();
        (self.claims, places)
    }
}

impl<M: Clone> Admitted<M> {
    /// A copy without claims: valid while the original keeps its own.
    pub(crate) fn again(&self) -> Self {
        let operation = self.operation.clone();
        let session = self.session;
        let terms = self.terms;
        let limit = self.limit.clone();
        Self { operation, claims: Claims::none(), session, terms, limit }
    }
}

/// A capability in the tree.
struct Node<M> {
    session: SessionId,
    /// The memory, until the node is revoked and nothing is in flight on it. The node that registered it keeps it until nothing is below.
    kept: Option<M>,
    /// Neither the node nor anything below it gives access. The slot stays until nothing is in flight there and its holder needs no
    /// tombstone.
    revoked: bool,
    offset: u64,
    length: u64,
    rights: Rights,
    parent: Option<u32>,
    /// Index of the node that registered this memory. It stays while anything is below it.
    root: u32,
    children: BTreeSet<u32>,
    /// Something was below it once.
    shared: bool,
    grantee: Option<Grantee>,
    /// When it stops giving access, in nanoseconds of the table's clock; [`NEVER`] for nearly all. Never later than above it.
    expires: u64,
    in_flight: u32,
    /// How many of these have ended, but a failed channel may still touch the memory.
    quarantined: u32,
    /// The holder released it, so no tombstone is kept.
    forgotten: bool,
    /// Revocations that began with this node and wait for it.
    waiters: Vec<RevocationId>,
}

impl<M> Node<M> {
    fn new(
        session: SessionId,
        memory: M,
        (offset, length): (u64, u64),
        rights: Rights,
        parent: Option<u32>,
        grantee: Option<Grantee>,
    ) -> Self {
        Self {
            session,
            kept: Some(memory),
            revoked: false,
            offset,
            length,
            rights,
            parent,
            root: 0,
            children: BTreeSet::new(),
            shared: false,
            grantee,
            expires: NEVER,
            in_flight: 0,
            quarantined: 0,
            forgotten: false,
            waiters: Vec::new(),
        }
    }

    fn expiring(mut self, expires: u64) -> Self {
        self.expires = expires;
        self
    }

    /// Whether only failed channels keep requests in flight on it.
    fn is_withheld(&self) -> bool {
        self.in_flight > 0 && self.in_flight == self.quarantined
    }

    /// The memory it gives access to; `None` once it is revoked.
    fn memory(&self) -> Option<&M> {
        self.kept.as_ref().filter(|_| !self.revoked)
    }
}

struct Slot<M> {
    generation: u32,
    node: Option<Node<M>>,
    /// The last holder, to distinguish a stale handle from a foreign one.
    last_session: Option<SessionId>,
}

/// Slots of one part of a table. It grows by parts, because moving all slots would take milliseconds with the table locked.
const PART_SLOTS: usize = 4096;

/// Free slots that are not used again, because only long requests could name them: new slots take their place.
const MAX_WORN: usize = 1 << 14;

/// The slots that handles name.
struct Table<M> {
    /// All parts but the last are full.
    parts: Vec<Vec<Slot<M>>>,
    free: Vec<u32>,
    /// Free slots whose next handles fit into long requests only.
    worn: Vec<u32>,
}

impl<M> Table<M> {
    const fn new() -> Self {
        Self { parts: Vec::new(), free: Vec::new(), worn: Vec::new() }
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<M>> {
        self.parts.get(index as usize / PART_SLOTS)?.get(index as usize % PART_SLOTS)
    }

    #[inline]
    fn slot_mut(&mut self, index: u32) -> Option<&mut Slot<M>> {
        self.parts.get_mut(index as usize / PART_SLOTS)?.get_mut(index as usize % PART_SLOTS)
    }

    /// Adds a slot and returns its index.
    fn add_slot(&mut self) -> u32 {
        if self.parts.last().is_none_or(|part| part.len() == PART_SLOTS) {
            self.parts.push(Vec::with_capacity(PART_SLOTS));
        }
        let before = (self.parts.len() - 1) * PART_SLOTS;
        let last = &mut self.parts[before / PART_SLOTS];
        last.push(Slot { generation: 1, node: None, last_session: None });
        (before + last.len() - 1) as u32
    }

    /// A slot without a node. Worn ones are used again when there are many of them.
    fn vacant_slot(&mut self) -> u32 {
        let are_many = self.worn.len() >= MAX_WORN;
        let again = self.free.pop().or_else(|| if are_many { self.worn.pop() } else { None });
        again.unwrap_or_else(|| self.add_slot())
    }

    /// The present handle of a slot.
    fn handle(&self, index: u32) -> Option<Handle> {
        self.slot(index).map(|slot| Handle::new(index, slot.generation))
    }

    /// The node that a handle names, if its generation matches.
    #[inline]
    fn get(&self, handle: Handle) -> Option<&Node<M>> {
        let slot = self.slot(handle.index())?;
        if slot.generation == handle.generation() { slot.node.as_ref() } else { None }
    }

    /// Whether `handle` named a capability of `session` that is gone.
    fn was(&self, handle: Handle, session: SessionId) -> bool {
        let slot = self.slot(handle.index());
        slot.is_some_and(|slot| handle.generation() < slot.generation && slot.last_session == Some(session))
    }

    #[inline]
    fn at(&self, index: u32) -> Option<&Node<M>> {
        self.slot(index)?.node.as_ref()
    }

    #[inline]
    fn at_mut(&mut self, index: u32) -> Option<&mut Node<M>> {
        self.slot_mut(index)?.node.as_mut()
    }

    /// Changes a node's count of requests in flight; returns the new count.
    #[inline]
    fn count_in_flight(&mut self, index: u32, change: i32) -> u32 {
        self.at_mut(index).map_or(0, |node| {
            node.in_flight = node.in_flight.saturating_add_signed(change);
            node.in_flight
        })
    }

    fn insert(&mut self, mut node: Node<M>) -> Handle {
        let parent = node.parent;
        let root = parent.and_then(|parent| self.at(parent)).map(|parent| parent.root);
        let index = self.vacant_slot();
        node.root = root.unwrap_or(index);
        let slot = &mut self.parts[index as usize / PART_SLOTS][index as usize % PART_SLOTS];
        slot.last_session = Some(node.session);
        slot.node = Some(node);
        let handle = Handle::new(index, slot.generation);
        if let Some(parent) = parent.and_then(|parent| self.at_mut(parent)) {
            parent.children.insert(index);
            parent.shared = true;
        }
        handle
    }

    /// Takes a node without children out of the tree; returns its parent.
    fn detach(&mut self, index: u32) -> Option<u32> {
        let parent = self.at_mut(index)?.parent.take()?;
        if let Some(above) = self.at_mut(parent) {
            above.children.remove(&index);
        }
        Some(parent)
    }

    /// Frees the slot of a node that was detached. A slot whose generations are used up is retired.
    fn remove(&mut self, index: u32) {
        let Some(slot) = self.slot_mut(index) else { return };
        if slot.node.take().is_none() {
            return;
        }
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            let is_short = next <= wire::MAX_SHORT_GENERATION;
            if is_short { self.free.push(index) } else { self.worn.push(index) }
        }
    }

    /// Whether only failed channels keep requests in flight on a node and below it.
    fn is_withheld_below(&self, root: u32) -> bool {
        let mut open = vec![root];
        while let Some(node) = open.pop().and_then(|index| self.at(index)) {
            if node.in_flight > 0 && !node.is_withheld() {
                return false;
            }
            open.extend(&node.children);
        }
        true
    }
}

/// Every capability of every session.
pub struct Capabilities<M> {
    table: Table<M>,
    held: BTreeMap<SessionId, BTreeSet<u32>>,
    /// Nodes that registered memory and are not revoked.
    roots: BTreeSet<u32>,
    per_session: usize,
    revocations: BTreeMap<RevocationId, Revocation>,
    next_revocation: u64,
    finished: Vec<RevocationId>,
    withheld: Vec<RevocationId>,
    /// Nodes with claims that failed channels keep.
    quarantined: BTreeSet<u32>,
    /// Something in flight was revoked since the caller last asked.
    caught: bool,
    dropped: Vec<M>,
    freed: Vec<M>,
    /// Revocations whose trees are not marked completely.
    markings: VecDeque<Marking>,
    mirror: Option<Box<dyn Mirror<M> + Send>>,
    /// Read only for capabilities that expire.
    clock: Option<Box<dyn Clock + Send>>,
}

impl<M: Memory> Capabilities<M> {
    /// An empty table in which a session may hold `per_session` capabilities.
    pub fn new(per_session: usize) -> Self {
        Self {
            table: Table::new(),
            held: BTreeMap::new(),
            roots: BTreeSet::new(),
            per_session,
            revocations: BTreeMap::new(),
            next_revocation: 0,
            finished: Vec::new(),
            withheld: Vec::new(),
            quarantined: BTreeSet::new(),
            caught: false,
            dropped: Vec::new(),
            freed: Vec::new(),
            markings: VecDeque::new(),
            mirror: None,
            clock: None,
        }
    }

    /// Ends grants for a limited time by `clock`. Without one, no time passes.
    pub fn with_clock(mut self, clock: impl Clock + Send + 'static) -> Self {
        self.clock = Some(Box::new(clock));
        self
    }

    fn now(&self) -> u64 {
        self.clock.as_ref().map_or(Instant::ORIGIN, |clock| clock.now()).nanoseconds()
    }

    /// Whether a capability with this end gives access no more.
    #[inline]
    fn is_over(&self, expires: u64) -> bool {
        expires != NEVER && expires <= self.now()
    }

    /// Whether a request with this limit may not start any more.
    pub(crate) fn has_passed(&self, limit: &Limit) -> bool {
        self.is_over(limit.expires)
    }

    /// Reports from now on to `mirror`.
    pub fn with_mirror(mut self, mirror: impl Mirror<M> + Send + 'static) -> Self {
        self.mirror = Some(Box::new(mirror));
        self
    }

    /// Makes `memory` a root capability of `session`.
    ///
    /// # Errors
    /// [`CapabilityError::Quota`].
    pub fn register(
        &mut self,
        session: SessionId,
        memory: M,
        rights: Rights,
    ) -> Result<Handle, CapabilityError> {
        let length = memory.length();
        self.hold(Node::new(session, memory, (0, length), rights, None, None))
    }

    /// A capability of the same session with a narrower range or fewer rights.
    ///
    /// # Errors
    /// [`CapabilityError`], except `NotGrantable`, `NoSuchGrant` and `ExpiredGrant`.
    pub fn derive(
        &mut self,
        session: SessionId,
        handle: Handle,
        range: (u64, u64),
        rights: Rights,
    ) -> Result<Handle, CapabilityError> {
        let node = self.narrowed(session, handle, range, rights, None)?;
        self.hold(node)
    }

    /// Grants rights on a range to others. The token's handle is a capability of the grantor; revoking it revokes everything
    /// accepted under it.
    ///
    /// # Errors
    /// [`CapabilityError`], except `NoSuchGrant` and `ExpiredGrant`.
    pub fn grant(
        &mut self,
        session: SessionId,
        handle: Handle,
        range: (u64, u64),
        rights: Rights,
        grantee: Grantee,
    ) -> Result<GrantToken, CapabilityError> {
        self.grant_for(session, handle, range, rights, grantee, None)
    }

    /// Grants as [`grant`](Self::grant), for a limited time if `lasts` is given. Then nothing below the grant gives access: no request
    /// is admitted or started. A request that runs goes on to its end, so the grantor still revokes before it reuses the memory.
    ///
    /// # Errors
    /// As [`grant`](Self::grant).
    pub fn grant_for(
        &mut self,
        session: SessionId,
        handle: Handle,
        range: (u64, u64),
        rights: Rights,
        grantee: Grantee,
        lasts: Option<Duration>,
    ) -> Result<GrantToken, CapabilityError> {
        let node = self.narrowed(session, handle, range, rights, Some(grantee))?;
        let (_, parent) = self.live(session, handle)?;
        if !parent.rights.contains(Rights::GRANT) {
            return Err(CapabilityError::NotGrantable(handle));
        }
        let end = |lasts: Duration| {
            let lasts = u64::try_from(lasts.as_nanos()).unwrap_or(NEVER);
            self.now().saturating_add(lasts)
        };
        let expires = node.expires.min(lasts.map_or(NEVER, end));
        let node = node.expiring(expires);
        self.hold(node).map(GrantToken::from_handle)
    }

    /// Accepts a grant made to `session` or to its `user`.
    ///
    /// # Errors
    /// [`CapabilityError::NoSuchGrant`], [`CapabilityError::ExpiredGrant`], [`CapabilityError::Quota`].
    pub fn accept(
        &mut self,
        session: SessionId,
        user: u32,
        token: GrantToken,
    ) -> Result<Accepted, CapabilityError> {
        let grant = self.table.get(token.handle()).ok_or(CapabilityError::NoSuchGrant(token))?;
        let meant = match grant.grantee {
            Some(Grantee::Session(grantee)) => grantee == session,
            Some(Grantee::User(grantee)) => grantee == user,
            Some(Grantee::Remote { .. }) | None => false,
        };
        if !meant {
            return Err(CapabilityError::NoSuchGrant(token));
        }
        self.take_up(session, token)
    }

    /// Accepts a grant made to a `user` of another `node`, as `session`, which is that of the link to it.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_for(
        &mut self,
        session: SessionId,
        (node, user): (NodeName, u32),
        token: GrantToken,
    ) -> Result<Accepted, CapabilityError> {
        let grant = self.table.get(token.handle()).ok_or(CapabilityError::NoSuchGrant(token))?;
        if grant.grantee != Some(Grantee::Remote { node, user }) {
            return Err(CapabilityError::NoSuchGrant(token));
        }
        self.take_up(session, token)
    }

    /// A capability of `session` below a grant to it.
    fn take_up(&mut self, session: SessionId, token: GrantToken) -> Result<Accepted, CapabilityError> {
        let granted = token.handle();
        let grant = self.table.get(granted).ok_or(CapabilityError::NoSuchGrant(token))?;
        let memory = grant.memory().ok_or(CapabilityError::NoSuchGrant(token))?;
        if self.is_over(grant.expires) {
            return Err(CapabilityError::ExpiredGrant(token));
        }
        let range = (grant.offset, grant.length);
        let rights = grant.rights;
        let grantor = grant.session;
        let expires = grant.expires;
        let node = Node::new(session, memory.clone(), range, rights, Some(granted.index()), None);
        let handle = self.hold(node.expiring(expires))?;
        Ok(Accepted { handle, length: range.1, rights, grantor })
    }

    /// Takes the memory that left the table since the last call, for the caller to drop: unmapping is slow. Memory leaves when its
    /// capability is revoked and nothing is in flight on it, including quarantined requests.
    pub fn take_dropped(&mut self) -> Vec<M> {
        let mut all = self.take_freed();
        all.append(&mut self.dropped);
        all
    }

    /// Takes the registered memory that left the table with its last capability since the last call: no request names it any more.
    /// [`take_dropped`](Self::take_dropped) returns the rest then: shares of memory that others may still name.
    pub fn take_freed(&mut self) -> Vec<M> {
        std::mem::take(&mut self.freed)
    }

    /// Whether a request in flight holds a revoked capability.
    pub fn uses_revoked(&self, claims: &Claims) -> bool {
        let revoked = |index: &u32| self.table.at(*index).is_some_and(|node| node.revoked);
        claims.0.iter().any(revoked)
    }

    /// The sessions that registered memory for which `named` returns true.
    pub fn owners(&self, named: impl Fn(&M) -> bool) -> Vec<SessionId> {
        let roots = self.roots.iter().filter_map(|index| self.table.at(*index));
        let named = roots.filter(|node| node.memory().is_some_and(&named));
        let owners: BTreeSet<_> = named.map(|node| node.session).collect();
        owners.into_iter().collect()
    }

    /// The memory behind a handle by which `session` registered it; `None` behind a handle that was derived, granted or accepted.
    ///
    /// # Errors
    /// [`CapabilityError::Unknown`], [`CapabilityError::Revoked`].
    pub fn registered(&self, session: SessionId, handle: Handle) -> Result<Option<&M>, CapabilityError> {
        let (memory, node) = self.live(session, handle)?;
        Ok(Some(memory).filter(|_| node.parent.is_none()))
    }

    /// Capabilities of `session`, including tombstones and revoked ones that are still in use below.
    pub fn count(&self, session: SessionId) -> usize {
        self.held.get(&session).map_or(0, BTreeSet::len)
    }

    /// Resolves and claims in one step, for tests. A loop fails with `BadLoop`.
    #[cfg(test)]
    pub(crate) fn admit(
        &mut self,
        session: SessionId,
        request: &memferry_transfer::Request,
        longest_bytes: u64,
    ) -> Result<Admitted<M>, Failure> {
        let memferry_transfer::Task::Transfer(operation) = &request.task else {
            return Err(Failure::BadLoop);
        };
        let resolved = self.resolve(session, operation, longest_bytes)?;
        Ok(self.claim(session, resolved, request.terms))
    }

    /// Checks an operation against the capabilities of `session`.
    pub(crate) fn resolve(
        &self,
        session: SessionId,
        operation: &Operation<Span>,
        longest_bytes: u64,
    ) -> Result<Resolved<M>, Failure> {
        let mut nodes = SmallVec::new();
        let mut limit: Option<Box<Limit>> = None;
        let note = |side, handle: Handle, node: &Node<M>| {
            let index = handle.index();
            if nodes.last() != Some(&index) {
                nodes.push(index);
            }
            let expires = node.expires;
            if expires != NEVER && limit.as_ref().is_none_or(|limit| expires < limit.expires) {
                limit = Some(Box::new(Limit { expires, side, handle }));
            }
        };
        let operation = self.checked(session, operation, longest_bytes, M::clone, note)?;
        Ok(Resolved { operation, nodes, limit })
    }

    /// Checks an operation that will be over before the table changes: its memory is borrowed, and nothing is claimed.
    ///
    /// # Errors
    /// The [`Failure`] of admission.
    #[inline]
    pub fn borrowed<'a>(
        &'a self,
        session: SessionId,
        operation: &Operation<Span>,
        longest_bytes: u64,
    ) -> Result<Operation<Region<&'a M>>, Failure> {
        self.checked(session, operation, longest_bytes, |memory| memory, |_, _, _| ())
    }

    /// The region of one operand of a copy or fill, which will be over before the table changes. `None` leaves it to
    /// [`borrowed`](Self::borrowed) to say why not.
    #[inline]
    pub fn operand(&self, session: SessionId, side: Side, span: Span, length: u64) -> Option<Region<&M>> {
        let (node, memory) = self.usable(session, side, span.handle).ok()?;
        let inside = span.offset.checked_add(length).is_some_and(|end| end <= node.length);
        if inside { Region::new(memory, node.offset + span.offset, length) } else { None }
    }

    /// Checks an operation. `keep` maps an operand's memory to the region's; `note` gets the index of its node.
    #[inline]
    fn checked<'a, Q: Memory>(
        &'a self,
        session: SessionId,
        operation: &Operation<Span>,
        longest_bytes: u64,
        keep: impl Fn(&'a M) -> Q,
        mut note: impl FnMut(Side, Handle, &Node<M>),
    ) -> Result<Operation<Region<Q>>, Failure> {
        let part = |side, span: &Span, length, (node, memory): (&Node<M>, &'a M)| {
            let outside = Failure::OutOfBounds { side, available: node.length };
            if span.offset.checked_add(length).is_none_or(|end| end > node.length) {
                return Err(outside);
            }
            Region::new(keep(memory), node.offset + span.offset, length).ok_or(outside)
        };
        let mut plain = |side, span: &Span, length| {
            let (node, memory) = self.usable(session, side, span.handle)?;
            let region = part(side, span, length, (node, memory))?;
            note(side, span.handle, node);
            Ok(region)
        };
        // A fast path for the most common kinds: this is most of the cost of small requests.
        match operation {
            Operation::Nop => return Ok(Operation::Nop),
            Operation::Copy { source, destination, length } if *length <= longest_bytes => {
                let source = plain(Side::Source, source, *length)?;
                let destination = plain(Side::Destination, destination, *length)?;
                return Ok(Operation::Copy { source, destination, length: *length });
            }
            _ => {}
        }
        if operation.total_bytes() > longest_bytes {
            return Err(Failure::TooLong { limit: longest_bytes });
        }
        check_lengths(operation)?;
        // Segments of a list are often in the same frame.
        let mut last = None;
        let mut plain = |side, span: &Span, length| {
            let usable = match last {
                Some((known, usable)) if known == (side, span.handle) => usable,
                _ => {
                    let usable = self.usable(session, side, span.handle)?;
                    note(side, span.handle, usable.0);
                    last.insert(((side, span.handle), usable)).1
                }
            };
            part(side, span, length, usable)
        };
        let resolved = operation.try_map(|side, span, reach| match reach {
            Reach::Bytes(length) => Ok((plain(side, span, length)?, 0)),
            Reach::Walk(plane, count) => {
                let (node, _) = self.usable(session, side, span.handle)?;
                let outside = Failure::OutOfBounds { side, available: node.length };
                let (first, length, start) = extent(span.offset, plane, count).ok_or(outside)?;
                Ok((plain(side, &Span::new(span.handle, first), length)?, start))
            }
        })?;
        self.check_overlap(operation)?;
        self.in_safe_order(operation, resolved)
    }

    /// A 2-D copy within one memory with its pixels in an order in which none is overwritten before it is read; other operations as
    /// they are. Refuses a 2-D copy for which there is no such order.
    #[inline]
    fn in_safe_order<Q: Memory>(
        &self,
        operation: &Operation<Span>,
        resolved: Operation<Region<Q>>,
    ) -> Result<Operation<Region<Q>>, Failure> {
        let root = |span: &Span| self.table.get(span.handle).map(|node| node.root);
        match (operation, resolved) {
            (
                Operation::Copy2d { source: from, destination: to, .. },
                Operation::Copy2d { source, destination, shape },
            ) if root(from) == root(to) => {
                let shape = pictures::in_safe_order(&shape, source.offset(), destination.offset());
                let shape = shape.map_err(|pictures::Tangled| Failure::Overlap { operand: 0 })?;
                Ok(Operation::Copy2d { source, destination, shape })
            }
            (_, resolved) => Ok(resolved),
        }
    }

    /// Refuses an xor with a source that overlaps the destination in part, and a dual copy with any two operands that do: engines
    /// read and write in different orders.
    #[inline]
    fn check_overlap(&self, operation: &Operation<Span>) -> Result<(), Failure> {
        let operand = match operation {
            Operation::Xor { sources, destination, length } => {
                sources.iter().position(|source| self.overlap_in_part(source, destination, *length))
            }
            Operation::DualCopy { source, destinations: [one, other], length } => {
                let pairs = [(0, source, one), (0, source, other), (1, one, other)];
                let overlap =
                    pairs.iter().find(|(_, left, right)| self.overlap_in_part(left, right, *length));
                overlap.map(|(operand, ..)| *operand)
            }
            _ => None,
        };
        match operand {
            Some(operand) => Err(Failure::Overlap { operand: operand as u64 }),
            None => Ok(()),
        }
    }

    /// Whether two ranges have bytes in common but do not start together. Capabilities derived from one registration are known to be
    /// the same memory; two registrations of it are not.
    fn overlap_in_part(&self, one: &Span, other: &Span, length: u64) -> bool {
        let place =
            |span: &Span| self.table.get(span.handle).map(|node| (node.root, node.offset + span.offset));
        match (place(one), place(other)) {
            (Some((root, start)), Some((other_root, other_start))) => {
                root == other_root && start != other_start && start.abs_diff(other_start) < length
            }
            _ => false,
        }
    }

    /// Counts the resolved memory as in flight.
    pub(crate) fn claim(&mut self, session: SessionId, resolved: Resolved<M>, terms: Terms) -> Admitted<M> {
        for index in &resolved.nodes {
            self.table.count_in_flight(*index, 1);
        }
        let claims = Claims(resolved.nodes);
        Admitted { operation: resolved.operation, claims, session, terms, limit: resolved.limit }
    }

    /// The live node of a handle, which has the right that a side needs.
    #[inline]
    fn usable(&self, session: SessionId, side: Side, handle: Handle) -> Result<(&Node<M>, &M), Failure> {
        let Some(node) = self.table.get(handle).filter(|node| node.session == session) else {
            return Err(if self.table.was(handle, session) {
                Failure::StaleHandle { side, handle }
            } else {
                Failure::UnknownHandle { side, handle }
            });
        };
        let memory = node.memory().ok_or(Failure::Revoked { side, handle })?;
        let needed = match side {
            Side::Source => Rights::READ,
            Side::Destination => Rights::WRITE,
        };
        if node.grantee.is_some() || !node.rights.contains(needed) {
            return Err(Failure::MissingRight { side, handle });
        }
        if self.is_over(node.expires) {
            return Err(Failure::Expired { side, handle });
        }
        Ok((node, memory))
    }

    /// The live node of a handle in `session`.
    fn live(&self, session: SessionId, handle: Handle) -> Result<(&M, &Node<M>), CapabilityError> {
        let node = self.table.get(handle).filter(|node| node.session == session);
        let node = node.ok_or(CapabilityError::Unknown(handle))?;
        Ok((node.memory().ok_or(CapabilityError::Revoked(handle))?, node))
    }

    /// A node below `handle` with part of its range and rights.
    fn narrowed(
        &self,
        session: SessionId,
        handle: Handle,
        (offset, length): (u64, u64),
        rights: Rights,
        grantee: Option<Grantee>,
    ) -> Result<Node<M>, CapabilityError> {
        let (memory, parent) = self.live(session, handle)?;
        let available = parent.length;
        if offset.checked_add(length).is_none_or(|end| end > available) {
            return Err(CapabilityError::OutOfRange { handle, offset, length, available });
        }
        if rights.is_empty() || !parent.rights.contains(rights) {
            return Err(CapabilityError::Rights { handle, held: parent.rights, wanted: rights });
        }
        if self.is_over(parent.expires) {
            return Err(CapabilityError::Expired(handle));
        }
        let range = (parent.offset + offset, length);
        let expires = parent.expires;
        let node = Node::new(session, memory.clone(), range, rights, Some(handle.index()), grantee);
        Ok(node.expiring(expires))
    }

    /// Puts a node into the table and under its parent.
    fn hold(&mut self, node: Node<M>) -> Result<Handle, CapabilityError> {
        let held = self.held.entry(node.session).or_default();
        if held.len() >= self.per_session {
            return Err(CapabilityError::Quota { limit: self.per_session });
        }
        let is_root = node.parent.is_none();
        let handle = self.table.insert(node);
        held.insert(handle.index());
        if is_root {
            self.roots.insert(handle.index());
        }
        if let (Some(mirror), Some(node)) = (&mut self.mirror, self.table.at(handle.index()))
            && let (Some(memory), None) = (node.memory(), node.grantee)
            // Readers of the mirror look at no clock.
            && node.expires == NEVER
        {
            mirror.appeared(handle, node.session, memory, (node.offset, node.length), node.rights);
        }
        Ok(handle)
    }
}

/// Checks that need no memory.
fn check_lengths(operation: &Operation<Span>) -> Result<(), Failure> {
    match operation {
        Operation::Fill { length, pattern, .. } if length % pattern.length_bytes() != 0 => {
            Err(Failure::FillLength { pattern_bytes: pattern.length_bytes() })
        }
        Operation::ScatterGather { lists } => {
            let source_bytes = lists.total_bytes(Side::Source);
            let equal = source_bytes == lists.total_bytes(Side::Destination);
            if equal { Ok(()) } else { Err(Failure::SegmentTotals { source_bytes }) }
        }
        _ => Ok(()),
    }
}

/// The bytes a walk touches, relative to its capability: first byte, length, and the walk's start from the first byte. `None` if
/// they are no range.
fn extent(offset: u64, mut plane: Plane, count: Count2d) -> Option<(u64, u64, u64)> {
    plane.start = plane.start.checked_add(offset)?;
    Some(match plane.extent(&count).ok()? {
        Some(extent) => (extent.first, extent.length, plane.start - extent.first),
        None => (0, 0, plane.start),
    })
}

#[cfg(test)]
mod tests;
