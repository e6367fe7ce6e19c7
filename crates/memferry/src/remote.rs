//! Tokens of grants on another node, as text for a user of this one.

use std::fmt;
use std::str::FromStr;

use memferry_transfer::{GrantToken, NodeName, Rights};
use thiserror::Error;

/// A grant that a node made to a user of another one ([`Grantee::Remote`](crate::Grantee::Remote)), as its text passes between them. The
/// grantor knows all parts. It is no secret: the node that made the grant checks who uses it.
///
/// ```
/// use memferry::{RemoteToken, Rights};
///
/// let token: RemoteToken = "alpha/4294967303/1048576/r".parse().unwrap();
/// assert_eq!((token.node.to_string().as_str(), token.length, token.rights), ("alpha", 1 << 20, Rights::READ));
/// assert_eq!(token.to_string(), "alpha/4294967303/1048576/r");
/// assert!("alpha/4294967303/1048576/x".parse::<RemoteToken>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteToken {
    /// The node that made the grant, as the configuration of the links names it.
    pub node: NodeName,
    /// Names the grant in that node's service.
    pub token: GrantToken,
    /// Bytes that were granted.
    pub length: u64,
    /// Rights that were granted.
    pub rights: Rights,
}

/// The text is no token of another node.
///
/// ```
/// use memferry::{BadRemoteToken, RemoteToken};
///
/// assert_eq!("alpha/1/4096/".parse::<RemoteToken>(), Err(BadRemoteToken));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("a token of another node has the form NODE/NUMBER/BYTES/RIGHTS, with rights of r, w and g")]
pub struct BadRemoteToken;

const LETTERS: [(char, Rights); 3] = [('r', Rights::READ), ('w', Rights::WRITE), ('g', Rights::GRANT)];

impl fmt::Display for RemoteToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/", self.node, self.token, self.length)?;
        LETTERS
            .into_iter()
            .filter(|(_, right)| self.rights.contains(*right))
            .try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

impl FromStr for RemoteToken {
    type Err = BadRemoteToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let mut next = || parts.next().ok_or(BadRemoteToken);
        let node = next()?.parse().map_err(|_| BadRemoteToken)?;
        let token = next()?.parse().map_err(|_| BadRemoteToken)?;
        let length = next()?.parse().map_err(|_| BadRemoteToken)?;
        let right = |letter| LETTERS.into_iter().find(|(known, _)| *known == letter).map(|(_, right)| right);
        let rights: Option<Rights> = next()?.chars().map(right).collect();
        let rights = rights.filter(|rights| !rights.is_empty()).ok_or(BadRemoteToken)?;
        if parts.next().is_some() {
            return Err(BadRemoteToken);
        }
        Ok(Self { node, token, length, rights })
    }
}
