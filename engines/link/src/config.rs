//! The configuration of a link: its name, its key, and the peers that it talks to.
//!
//! ```toml
//! name = "alpha"
//! key = "/etc/memferry/link.key"     # made by memferry-link keygen
//! listen = "10.0.0.1:7471"
//!
//! [peers.beta]
//! key = "64 hexadecimal digits"      # what keygen printed there
//! address = "10.0.0.2:7471"
//! require-encryption = true          # bytes go over the encrypted connection, not over UCX
//! direct = true                      # memory that was granted to its users with this right is used in place
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memferry::NodeName;
use rustix::fs::OFlags;
use serde::Deserialize;
use thiserror::Error;

/// The handshake between links, which says what a key is.
pub(crate) const PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";

/// Bytes of a key.
const KEY_BYTES: usize = 32;
/// Longest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Why a configuration or a key cannot be used.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read {}: {source}{}", path.display(), remedy(source))]
    Read { path: PathBuf, source: std::io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    /// A mistake in the configuration. The message does not quote the file, which may be that of the keys, named by mistake.
    #[error("{}:{line}: {message}", path.display())]
    Syntax { path: PathBuf, line: usize, message: String },
    #[error("there is no key {}; memferry-link keygen makes a key", .0.display())]
    NoKey(PathBuf),
    #[error("{what} {text:?} is no name of a node: 1 to 16 lower-case letters, digits and hyphens")]
    Name { what: &'static str, text: String },
    #[error(
        "the key of {whose} is no key: it has to be 64 hexadecimal digits, as memferry-link keygen prints"
    )]
    Key { whose: String },
    #[error("{} can be read by others; make it readable for the link's user only (chmod 600)", path.display())]
    Mode { path: PathBuf },
    #[error("peer {0} has the name of this node")]
    Own(NodeName),
    #[error("peer {0} needs an address: this node's name comes first, so this node connects")]
    Address(NodeName),
    #[error("`listen` is missing: peer {0} connects to this node, because its name comes first")]
    Listen(NodeName),
    #[error("timeout-ms is {0}, it has to be from 100 to 60000")]
    Timeout(u64),
    #[error("cannot make a key: {0}")]
    Make(snow::Error),
}

/// What to do about a file that cannot be read.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            "; make the user that the link runs as its owner (chown memferry-link)"
        }
        _ => "",
    }
}

/// A key pair of a node.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    pub(crate) private: [u8; KEY_BYTES],
    pub public: [u8; KEY_BYTES],
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", to_hex(&self.public))
    }
}

impl KeyPair {
    /// A new random pair.
    ///
    /// # Errors
    /// [`ConfigError::Make`].
    pub fn generate() -> Result<Self, ConfigError> {
        let parameters = PATTERN.parse().map_err(ConfigError::Make)?;
        let pair = snow::Builder::new(parameters).generate_keypair().map_err(ConfigError::Make)?;
        let bytes = |bytes: Vec<u8>| bytes.try_into().map_err(|_| ConfigError::Make(snow::Error::Input));
        Ok(Self { private: bytes(pair.private)?, public: bytes(pair.public)? })
    }

    /// Writes it to a new file that only this user can read.
    ///
    /// # Errors
    /// [`ConfigError::Write`], also if there is such a file.
    pub fn save(&self, path: &Path) -> Result<(), ConfigError> {
        let failed = |source| ConfigError::Write { path: path.to_owned(), source };
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let text = format!("{}\n{}\n", to_hex(&self.private), to_hex(&self.public));
        file.write_all(text.as_bytes()).map_err(failed)
    }

    /// Reads what [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// [`ConfigError::NoKey`], [`ConfigError::Read`], [`ConfigError::Mode`], [`ConfigError::Key`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path).map_err(|error| match error {
            ConfigError::Read { path, source } if source.kind() == ErrorKind::NotFound => {
                ConfigError::NoKey(path)
            }
            other => other,
        })?;
        let failed = |source| ConfigError::Read { path: path.to_owned(), source };
        let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(ConfigError::Mode { path: path.to_owned() });
        }
        Self::parse(&text, path)
    }

    /// The keys in the text of a file: the private one, then the public one.
    ///
    /// # Errors
    /// [`ConfigError::Key`], which names the file.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let mut lines = text.lines();
        let mut next = || {
            let key = lines.next().and_then(from_hex);
            key.ok_or_else(|| ConfigError::Key { whose: path.display().to_string() })
        };
        Ok(Self { private: next()?, public: next()? })
    }
}

/// A node that this one talks to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    pub key: [u8; KEY_BYTES],
    /// Where it listens; needed if this node connects.
    pub address: Option<String>,
    /// Bytes go over the encrypted connection.
    pub require_encryption: bool,
    /// Memory that was granted to its users with `Rights::DIRECT` is used in place.
    pub direct: bool,
}

/// The configuration of a link.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: NodeName,
    pub keys: KeyPair,
    /// Where peers connect whose names come before this node's.
    pub listen: Option<String>,
    pub peers: BTreeMap<NodeName, Peer>,
    /// A peer that says nothing for so long is lost.
    pub timeout: Duration,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    name: String,
    key: PathBuf,
    listen: Option<String>,
    timeout_ms: Option<u64>,
    #[serde(default)]
    peers: BTreeMap<String, PeerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct PeerEntry {
    key: String,
    address: Option<String>,
    #[serde(default)]
    require_encryption: bool,
    #[serde(default)]
    direct: bool,
}

/// Less than the time for which the service lets an engine make no progress, unless its configuration sets another one.
const TIMEOUT_MS: u64 = 1500;

impl Config {
    /// Reads and checks a configuration.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?, path, KeyPair::load)
    }

    /// Checks the text of a configuration. `path` is where it is from, and `load` reads the file of keys that it names.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(
        text: &str,
        path: &Path,
        load: impl FnOnce(&Path) -> Result<KeyPair, ConfigError>,
    ) -> Result<Self, ConfigError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let line = 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            ConfigError::Syntax { path: path.to_owned(), line, message }
        })?;
        let name = parse_name("name", &file.name)?;
        let keys = load(&path.parent().unwrap_or(Path::new("")).join(&file.key))?;
        let timeout_ms = file.timeout_ms.unwrap_or(TIMEOUT_MS);
        if !(100..=60_000).contains(&timeout_ms) {
            return Err(ConfigError::Timeout(timeout_ms));
        }
        let mut peers = BTreeMap::new();
        for (text, entry) in file.peers {
            let peer = parse_name("peer", &text)?;
            let key =
                from_hex(&entry.key).ok_or_else(|| ConfigError::Key { whose: format!("peer {peer}") })?;
            if peer == name {
                return Err(ConfigError::Own(peer));
            }
            if connects(name, peer) && entry.address.is_none() {
                return Err(ConfigError::Address(peer));
            }
            if !connects(name, peer) && file.listen.is_none() {
                return Err(ConfigError::Listen(peer));
            }
            let PeerEntry { address, require_encryption, direct, .. } = entry;
            peers.insert(peer, Peer { key, address, require_encryption, direct });
        }
        Ok(Self { name, keys, listen: file.listen, peers, timeout: Duration::from_millis(timeout_ms) })
    }
}

/// Whether a node opens the connection to a peer: the one whose name comes first does, so that there is one connection.
pub(crate) fn connects(own: NodeName, peer: NodeName) -> bool {
    own < peer
}

fn parse_name(what: &'static str, text: &str) -> Result<NodeName, ConfigError> {
    text.parse().map_err(|_| ConfigError::Name { what, text: text.to_owned() })
}

/// Reads a regular file. Others, such as pipes, could block or never end.
fn read(path: &Path) -> Result<String, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut options = std::fs::OpenOptions::new();
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = options.read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")));
    }
    let mut text = String::new();
    file.take(MAX_FILE).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

/// A key as text.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits = text.trim().as_bytes();
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("memferry-link-{}-{test}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn the_configurations_of_the_page_are_read() {
        let directory = directory("page");
        let keys = KeyPair::generate().unwrap();
        keys.save(&directory.join("link.key")).unwrap();
        let page = include_str!("../../../docs/remote.md");
        for node in ["alpha", "beta"] {
            let (_, rest) = page.split_once(&format!("{node}# cat /etc/memferry/link.toml\n")).unwrap();
            let lines: Vec<_> = rest.lines().take_while(|line| !line.contains("# ")).collect();
            // What the page describes, a reader has to put in.
            let key = to_hex(&KeyPair::generate().unwrap().public);
            let text: Vec<_> = lines
                .iter()
                .map(|line| if line.contains('<') { format!("key = \"{key}\"") } else { (*line).to_owned() })
                .collect();
            let path = directory.join("link.toml");
            std::fs::write(&path, text.join("\n")).unwrap();
            let config = Config::load(&path).unwrap();
            assert_eq!((config.name.to_string().as_str(), config.peers.len()), (node, 1));
        }
        let _ = std::fs::remove_dir_all(directory);
    }

    #[test]
    fn a_configuration_is_read_and_mistakes_are_named() {
        let directory = directory("config");
        let keys = KeyPair::generate().unwrap();
        keys.save(&directory.join("key")).unwrap();
        assert!(matches!(keys.save(&directory.join("key")), Err(ConfigError::Write { .. })));
        let path = directory.join("link.toml");
        let load = |text: &str| {
            std::fs::write(&path, text).unwrap();
            Config::load(&path)
        };
        let key = to_hex(&KeyPair::generate().unwrap().public);
        let text = format!(
            "name = \"beta\"\nkey = \"key\"\nlisten = \"127.0.0.1:1\"\n[peers.alpha]\nkey = \"{key}\"\n\
             [peers.gamma]\nkey = \"{key}\"\naddress = \"127.0.0.1:2\"\nrequire-encryption = true\n\
             direct = true\n"
        );
        let config = load(&text).unwrap();
        assert_eq!((config.name.to_string().as_str(), &config.keys), ("beta", &keys));
        assert_eq!(config.peers.len(), 2);
        let [alpha, gamma] = ["alpha", "gamma"].map(|peer| &config.peers[&peer.parse().unwrap()]);
        assert!(gamma.require_encryption && gamma.direct);
        assert!(!alpha.require_encryption && !alpha.direct, "neither is the default");
        for (from, to, expected) in [
            ("name = \"beta\"", "name = \"Beta\"", "no name of a node"),
            ("peers.alpha", "peers.beta", "has the name of this node"),
            ("address = \"127.0.0.1:2\"\n", "", "needs an address"),
            ("listen = \"127.0.0.1:1\"\n", "", "`listen` is missing"),
            ("require-encryption", "require_encryption", "unknown field"),
            ("key = \"key\"", "key = \"nothing\"", "memferry-link keygen makes a key"),
            (&key, "abc", "64 hexadecimal digits"),
            ("listen", "timeout-ms = 1\nlisten", "from 100 to 60000"),
        ] {
            let refused = load(&text.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(refused.contains(expected), "{from} -> {to}: {refused}");
        }
        // The private key is the first line of the file of keys.
        let misled = Config::load(&directory.join("key")).unwrap_err().to_string();
        assert!(misled.contains("key:1: "), "{misled}");
        assert!(!misled.contains(&to_hex(&config.keys.private)[..8]), "a secret is printed");
        let lost = Config::load(&directory.join("nothing")).unwrap_err().to_string();
        assert!(lost.contains("cannot read") && !lost.contains("keygen"), "{lost}");
        for other in [Path::new("/dev/null"), &directory] {
            let refused = Config::load(other).unwrap_err().to_string();
            assert!(refused.contains("not a regular file"), "{refused}");
        }
        let source = ErrorKind::PermissionDenied.into();
        let denied = ConfigError::Read { path: directory.join("key"), source }.to_string();
        assert!(denied.contains("chown memferry-link"), "{denied}");
        std::fs::set_permissions(directory.join("key"), PermissionsExt::from_mode(0o644)).unwrap();
        assert!(matches!(load(&text), Err(ConfigError::Mode { .. })));
        let _ = std::fs::remove_dir_all(directory);
    }
}
