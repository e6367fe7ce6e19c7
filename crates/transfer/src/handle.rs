//! Names of memory and of its holders: capability handles, rights, grant tokens and session ids.
//!
//! A handle is an index into the capability table with a generation. It is valid only in the session that holds it; another
//! session gains nothing by knowing the number. A reused index gets a new generation, so a stale handle is recognised. The table
//! is in `memferry-path`.

use core::fmt;

use serde::{Deserialize, Serialize};

bitflags::bitflags! {
    /// What the holder of a capability may do through the service.
    ///
    /// ```
    /// use memferry_transfer::Rights;
    ///
    /// let rights = Rights::READ | Rights::GRANT;
    /// assert!(rights.contains(Rights::READ) && !rights.contains(Rights::WRITE));
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
    #[serde(transparent)]
    pub struct Rights: u8 {
        /// Use it as a source.
        const READ = 1;
        /// Use it as a destination.
        const WRITE = 2;
        /// Grant it to others.
        const GRANT = 4;
        /// Grant it to users of other nodes so that the link copies between the memory and its messages itself, where its administrator allows
        /// that. Without, the service copies to and from a buffer of the link.
        const DIRECT = 8;
    }
}

/// Names a capability by slot index and generation. A valid handle is never zero.
///
/// ```
/// use memferry_transfer::Handle;
///
/// let handle = Handle::new(7, 1);
/// assert_eq!(Handle::from_bits(handle.bits()), handle);
/// assert_eq!(handle.to_string(), "7.1");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Handle(u64);

impl Handle {
    /// The handle of slot `index` in its `generation` (from 1).
    #[inline]
    pub const fn new(index: u32, generation: u32) -> Self {
        Self((generation as u64) << 32 | index as u64)
    }

    /// The handle with these bits from a client. It may name nothing.
    #[inline]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits that clients pass.
    #[inline]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Index of the slot in the capability table.
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

/// Names a grant. The grantor passes it to the grantee, which accepts the grant by it; the grantor revokes the grant by it. The
/// number is not a secret, as the service checks who uses it.
///
/// ```
/// use memferry_transfer::{GrantToken, Handle};
///
/// let token = GrantToken::from_handle(Handle::new(7, 1));
/// // As text it goes to the grantee by any means.
/// assert_eq!(token.to_string().parse(), Ok(token));
/// ```
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

    /// The token with this number from another process. It may name nothing.
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

/// The name of a machine that grants memory to users of others: 1 to 16 lower-case letters, digits and hyphens.
///
/// ```
/// use memferry_transfer::NodeName;
///
/// let node: NodeName = "alpha-1".parse().unwrap();
/// assert_eq!(node.to_string(), "alpha-1");
/// assert!("Alpha".parse::<NodeName>().is_err() && "".parse::<NodeName>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeName([u8; NodeName::BYTES]);

/// The text is no node's name.
///
/// ```
/// use memferry_transfer::{BadNodeName, NodeName};
///
/// assert_eq!("a name that is too long".parse::<NodeName>(), Err(BadNodeName));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a node's name has 1 to 16 lower-case letters, digits and hyphens")]
pub struct BadNodeName;

impl NodeName {
    /// Bytes of a name, with zeros behind the text.
    pub const BYTES: usize = 16;

    /// The name with these bytes from another process, which may not be [valid](Self::is_valid).
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes: the text, then zeros.
    pub const fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0
    }

    fn text(&self) -> &[u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(Self::BYTES);
        &self.0[..end]
    }

    /// Whether a node can have this name.
    pub fn is_valid(&self) -> bool {
        let text = self.text();
        let is_allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
        !text.is_empty() && text.iter().all(is_allowed) && self.0[text.len()..].iter().all(|byte| *byte == 0)
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeName({self})")
    }
}

/// The text; `?` for a name that is not valid.
impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = core::str::from_utf8(self.text()).ok().filter(|_| self.is_valid());
        f.write_str(text.unwrap_or("?"))
    }
}

impl core::str::FromStr for NodeName {
    type Err = BadNodeName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; Self::BYTES];
        bytes.get_mut(..text.len()).ok_or(BadNodeName)?.copy_from_slice(text.as_bytes());
        Some(Self(bytes)).filter(Self::is_valid).ok_or(BadNodeName)
    }
}

/// One client's connection to the service. Ids are not reused while the service runs.
///
/// ```
/// use memferry_transfer::SessionId;
///
/// assert_eq!(SessionId(3).to_string(), "3");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionId(pub u64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
