//! Tokens of grants on another node, as text for a user of this one.

use std::fmt;
use std::str::FromStr;

use memferry_service::protocol::ServiceId;
use memferry_transfer::{GrantToken, NodeName, Rights};
use thiserror::Error;

/// A grant that a node made to a user of another one ([`Grantee::Remote`](crate::Grantee::Remote)), as its text passes between them.
/// [`Grant::remote_token`](crate::Grant::remote_token) makes it. It is no secret: the node that made the grant checks who uses it.
///
/// ```
/// use memferry::{RemoteToken, Rights};
///
/// let text = "alpha:5c0ffee000000000000000000000beef/4294967303/1048576/r";
/// let token: RemoteToken = text.parse().unwrap();
/// assert_eq!((token.node.to_string().as_str(), token.length, token.rights), ("alpha", 1 << 20, Rights::READ));
/// assert_eq!(token.to_string(), text);
/// assert!(text.replace("/r", "/x").parse::<RemoteToken>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteToken {
    /// The node that made the grant, as the configuration of the links names it.
    pub node: NodeName,
    /// The run of that node's service in which it was made. In another run the number names another grant, or none.
    pub service: ServiceId,
    /// Names the grant in that run.
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
/// assert_eq!("alpha:1/4096/r".parse::<RemoteToken>(), Err(BadRemoteToken));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a token of another node has the form NODE:SERVICE/NUMBER/BYTES/RIGHTS, with 32 hexadecimal digits and rights of r, w, g and d"
)]
pub struct BadRemoteToken;

/// Hexadecimal digits of a service.
const DIGITS: usize = 32;
const LETTERS: [(char, Rights); 4] =
    [('r', Rights::READ), ('w', Rights::WRITE), ('g', Rights::GRANT), ('d', Rights::DIRECT)];

impl fmt::Display for RemoteToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:0DIGITS$x}/{}/{}/", self.node, self.service.0, self.token, self.length)?;
        LETTERS
            .into_iter()
            .filter(|(_, right)| self.rights.contains(*right))
            .try_for_each(|(letter, _)| write!(f, "{letter}"))
    }
}

impl FromStr for RemoteToken {
    type Err = BadRemoteToken;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (node, rest) = text.split_once(':').ok_or(BadRemoteToken)?;
        let node = node.parse().map_err(|_| BadRemoteToken)?;
        let mut parts = rest.split('/');
        let mut next = || parts.next().ok_or(BadRemoteToken);
        let service = next()?;
        // The parser takes a sign.
        let is_number = service.len() == DIGITS && !service.starts_with('+');
        let service = u128::from_str_radix(service, 16).ok().filter(|_| is_number).ok_or(BadRemoteToken)?;
        let token = next()?.parse().map_err(|_| BadRemoteToken)?;
        let length = next()?.parse().map_err(|_| BadRemoteToken)?;
        let right = |letter| LETTERS.into_iter().find(|(known, _)| *known == letter).map(|(_, right)| right);
        let rights: Option<Rights> = next()?.chars().map(right).collect();
        let rights = rights.filter(|rights| !rights.is_empty()).ok_or(BadRemoteToken)?;
        if parts.next().is_some() {
            return Err(BadRemoteToken);
        }
        Ok(Self { node, service: ServiceId(service), token, length, rights })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_the_same_text_everywhere() {
        let token = RemoteToken {
            node: "beta-2".parse().unwrap(),
            service: ServiceId(0xabc << 64 | 7),
            token: GrantToken::from_raw(7 << 32 | 3),
            length: u64::MAX,
            rights: Rights::READ | Rights::WRITE,
        };
        let text = "beta-2:0000000000000abc0000000000000007/30064771075/18446744073709551615/rw".to_owned();
        assert_eq!((token.to_string(), text.parse()), (text.clone(), Ok(token)));
        let direct = RemoteToken { rights: Rights::READ | Rights::DIRECT, ..token };
        assert_eq!(
            (direct.to_string().as_str(), text.to_string()),
            (text.replace("/rw", "/rd").as_str(), text.clone())
        );
        assert_eq!(direct.to_string().parse(), Ok(direct));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let good = "alpha:0000000000000000000000000000000f/4294967303/4096/rw";
        assert!(good.parse::<RemoteToken>().is_ok());
        for (from, to) in [
            (good, ""),
            ("alpha:", ""),
            ("alpha:", ":"),
            ("alpha:", "Alpha:"),
            ("alpha:", "alpha/"),
            ("alpha:", "a-name-that-is-too-long:"),
            (":0", ":"),
            (":0", ":00"),
            (":0", ":+"),
            (":0", ":g"),
            ("/4294967303", "/x"),
            ("/4294967303", "/18446744073709551616"),
            ("/4294967303", ""),
            ("/4096", "/-1"),
            ("/4096", ""),
            ("/rw", ""),
            ("/rw", "/"),
            ("/rw", "/rx"),
            ("/rw", "/rw/"),
            ("/rw", "/rw "),
        ] {
            let text = good.replacen(from, to, 1);
            assert_eq!(text.parse::<RemoteToken>(), Err(BadRemoteToken), "{text}");
        }
    }
}
