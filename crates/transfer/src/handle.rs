//! Names for memory and for those who hold it: capability handles, rights, grant tokens and session ids.
//!
//! A handle is an index with a generation into the capability table, good only in the session that holds it: in any other
//! knowing its number gives nothing. A freed and reused index carries a new generation, so a stale
//! handle is recognised. The table itself is in `memferry-path`.

use core::fmt;

use serde::{Deserialize, Serialize};

bitflags::bitflags! {
    /// What the holder of a capability may do through the service.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Rights: u8 {
        /// Name it as a source.
        const READ = 1;
        /// Name it as a destination.
        const WRITE = 2;
        /// Grant it to others.
        const GRANT = 4;
    }
}

/// A capability's name: slot index and generation. Never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(u64);

impl Handle {
    /// The handle of slot `index` in its `generation` (from 1).
    #[inline]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// The handle with these bits, as they came from a client: it may name nothing.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits a client sends back.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// The slot index.
    #[inline]
    pub const fn index(self) -> u32 {
        self.0 as u32
    }

    /// The generation of the slot this handle was made for.
    #[inline]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle({}.{})", self.index(), self.generation())
    }
}

impl fmt::Display for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.generation())
    }
}

/// Names a grant, for its grantee to accept and its grantor to revoke: what is passed from one process to the other. Its number
/// is worth nothing to anybody but the two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GrantToken(u64);

impl GrantToken {
    /// The token of a grant that is `handle` in its grantor's session.
    pub const fn from_handle(handle: Handle) -> Self {
        Self(handle.bits())
    }

    /// The grant's handle in its grantor's session, by which it is revoked.
    pub const fn handle(self) -> Handle {
        Handle::from_bits(self.0)
    }

    /// The token with this number, as it came from another process: it may name nothing.
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// The number to pass on.
    pub const fn to_raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for GrantToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GrantToken({})", self.0)
    }
}

/// The number in decimal, which [`str::parse`] reads again.
impl fmt::Display for GrantToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl core::str::FromStr for GrantToken {
    type Err = core::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// One connection of one client to the service. Never reused while the service runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
