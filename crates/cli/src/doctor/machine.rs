//! What a machine says about itself: files, links, folders and device nodes below a root, or the same from a report.
//!
//! ```text
//! Directory ─ openat2, inside the root ─┐
//! Recording ─ lines of a report ────────┴─► text, excerpt, link, names, node, contains ──► facts, kept for the report
//! ```
//!
//! Everything read is untrusted. A read has a limit, only regular files are read, links cannot leave the root, and names
//! with characters that a shell or a terminal could misunderstand are left out. A filter decides before a fact is kept: what
//! it drops is neither analysed nor reported.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Longest attribute. A page is the most that sysfs gives.
const MAX_TEXT_BYTES: usize = 4096;
/// Entries of a folder that are looked at.
const MAX_NAMES: usize = 4096;
const MAX_NAME_BYTES: usize = 64;
const CHUNK_BYTES: usize = 64 << 10;

/// A device node or another file, by its status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Node {
    /// `char`, `block`, `file`, `directory`, `socket` or `other`.
    pub(super) kind: String,
    /// Permission bits. In reports they are four octal digits, and nothing else is one: they are printed.
    #[serde(with = "octal")]
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Whether this process may read and write it. Unknown for another root.
    pub(super) open: Option<bool>,
}

impl Node {
    /// Whether others than root have it: another user, or a group that may read and write it.
    pub(super) fn is_given(&self) -> bool {
        self.uid != 0 || self.gid != 0 && self.mode & 0o060 == 0o060
    }
}

/// Permission bits as text.
mod octal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(mode: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{mode:04o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_octal = text.len() == 4 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let mode = u32::from_str_radix(&text, 8).ok().filter(|_| is_octal);
        mode.ok_or_else(|| de::Error::custom("a mode is four octal digits"))
    }
}

/// What one look at a path gave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Fact {
    Absent(()),
    Has(bool),
    Text(String),
    Names(Vec<String>),
    Failed { failed: String },
    Node(Node),
}

/// How a path was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Text,
    Link,
    Names,
    Node,
    Has,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Text, Self::Link, Self::Names, Self::Node, Self::Has];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Link => "link",
            Self::Names => "names",
            Self::Node => "node",
            Self::Has => "has",
        }
    }

    /// Whether a look of this kind can give this fact.
    pub(super) fn suits(self, fact: &Fact) -> bool {
        match fact {
            Fact::Absent(()) | Fact::Failed { .. } => true,
            Fact::Has(_) => self == Self::Has,
            Fact::Text(_) => matches!(self, Self::Text | Self::Link),
            Fact::Names(_) => self == Self::Names,
            Fact::Node(_) => self == Self::Node,
        }
    }
}

/// Facts by path and kind of look.
pub(super) type Facts = BTreeMap<(String, Kind), Fact>;

enum Source {
    Directory { root: OwnedFd, is_live: bool },
    Recording(Facts),
}

/// A machine that is being looked at.
pub(super) struct Machine {
    source: Source,
    facts: RefCell<Facts>,
}

impl Machine {
    /// The files below a root.
    pub(super) fn below(root: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Self::of(Source::Directory { root: opened, is_live: root == Path::new("/") }))
    }

    /// The facts of a report.
    pub(super) fn recorded(facts: Facts) -> Self {
        Self::of(Source::Recording(facts))
    }

    fn of(source: Source) -> Self {
        Self { source, facts: RefCell::default() }
    }

    /// Whether this is the machine that the command runs on.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.source, Source::Directory { is_live: true, .. })
    }

    fn is_recorded(&self) -> bool {
        matches!(self.source, Source::Recording(_))
    }

    /// Everything that was looked at until now.
    pub(super) fn facts(&self) -> Facts {
        self.facts.borrow().clone()
    }

    /// A short text file without the white space at its end.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        self.excerpt(path, MAX_TEXT_BYTES, |text| text.trim_end().to_owned())
    }

    /// The same, not kept for the report.
    pub(super) fn peek(&self, path: &str) -> Option<String> {
        match self.look(path, Kind::Text, |root| read_text(root, path, MAX_TEXT_BYTES)) {
            Fact::Text(text) => Some(text.trim_end().to_owned()),
            _ => None,
        }
    }

    /// What a filter leaves of the first `limit` bytes of a file. If `limit` is that of an attribute, a longer file is a failure.
    pub(super) fn excerpt(
        &self,
        path: &str,
        limit: usize,
        filter: impl Fn(&str) -> String,
    ) -> Option<String> {
        let fact = match self.look(path, Kind::Text, |root| read_text(root, path, limit)) {
            // A report holds what the filter left.
            Fact::Text(text) if !self.is_recorded() => Fact::Text(filter(&text)),
            other => other,
        };
        match self.keep(path, Kind::Text, fact) {
            Fact::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The last part of a link's target, if it is a plain name.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        self.target(path)?.pop()
    }

    /// The parts of a link's target that are plain names.
    pub(super) fn target(&self, path: &str) -> Option<Vec<String>> {
        let fact = self.look(path, Kind::Link, |root| read_link(root, path));
        let Fact::Text(target) = self.keep(path, Kind::Link, fact) else { return None };
        let parts: Vec<String> = target.split('/').filter(|part| is_plain(part)).map(str::to_owned).collect();
        parts.last().is_some_and(|last| target.ends_with(last.as_str())).then_some(parts)
    }

    /// Whether a path exists, as a file or folder that a link may lead to.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.node(path).is_some()
    }

    /// The plain names in a folder that a filter keeps, sorted, numbers by their value.
    pub(super) fn names(&self, path: &str, keeps: impl Fn(&str) -> bool) -> Vec<String> {
        let fact = match self.look(path, Kind::Names, |root| read_names(root, path)) {
            Fact::Names(names) => {
                let mut names: Vec<String> =
                    names.into_iter().filter(|name| is_plain(name) && keeps(name)).collect();
                names.sort_by_cached_key(|name| by_numbers(name));
                names.dedup();
                Fact::Names(names)
            }
            other => other,
        };
        match self.keep(path, Kind::Names, fact) {
            Fact::Names(names) => names,
            _ => Vec::new(),
        }
    }

    /// The status of a file, after links.
    pub(super) fn node(&self, path: &str) -> Option<Node> {
        let is_live = self.is_live();
        let fact = self.look(path, Kind::Node, |root| read_node(root, path, is_live));
        match self.keep(path, Kind::Node, fact) {
            Fact::Node(node) => Some(node),
            _ => None,
        }
    }

    /// Whether a text is in the first `limit` bytes of a file. None if it cannot be read.
    pub(super) fn contains(&self, path: &str, text: &str, limit: usize) -> Option<bool> {
        let named = format!("{path}:{text}");
        let fact = self.look(&named, Kind::Has, |root| search(root, path, text.as_bytes(), limit));
        match self.keep(&named, Kind::Has, fact) {
            Fact::Has(found) => Some(found),
            _ => None,
        }
    }

    fn look(&self, path: &str, kind: Kind, read: impl FnOnce(&OwnedFd) -> Result<Fact, String>) -> Fact {
        match &self.source {
            Source::Directory { root, .. } => read(root).unwrap_or_else(|failed| Fact::Failed { failed }),
            Source::Recording(facts) => {
                facts.get(&(path.to_owned(), kind)).cloned().unwrap_or(Fact::Absent(()))
            }
        }
    }

    fn keep(&self, path: &str, kind: Kind, fact: Fact) -> Fact {
        self.facts.borrow_mut().insert((path.to_owned(), kind), fact.clone());
        fact
    }
}

/// Whether a name can be part of a path and of a shell command as it is.
pub(super) fn is_plain(name: &str) -> bool {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@,+-".contains(&byte);
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "."
        && name != ".."
        && !name.starts_with('-')
        && name.bytes().all(is_safe)
}

/// Orders `wq0.2` before `wq0.10`.
fn by_numbers(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut word = String::new();
    let mut number: Option<u64> = None;
    for letter in name.chars() {
        match (letter.to_digit(10), number) {
            (Some(digit), _) => {
                number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(u64::from(digit)));
            }
            (None, Some(value)) => {
                key.push((std::mem::take(&mut word), value));
                number = None;
                word.push(letter);
            }
            (None, None) => word.push(letter),
        }
    }
    key.push((word, number.unwrap_or(0)));
    key
}

/// Opens a path inside the root: links, also absolute ones, cannot leave it.
fn open(root: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    // The kernel refuses flags of reading beside `PATH`.
    let reading =
        if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY };
    let flags = flags | reading | OFlags::CLOEXEC;
    let path = Some(path.trim_start_matches('/')).filter(|path| !path.is_empty()).unwrap_or(".");
    rustix::fs::openat2(root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
}

/// A fact for errors that say that there is nothing; a text for others.
fn unread(errno: Errno) -> Result<Fact, String> {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO => Ok(Fact::Absent(())),
        Errno::LOOP => Err("its links lead in a circle".to_owned()),
        Errno::NOSYS => Err("this needs the system call openat2, of Linux 5.6 and later".to_owned()),
        Errno::ACCESS | Errno::PERM => Err("permission denied".to_owned()),
        other => Err(other.to_string()),
    }
}

/// Calls `take` with each chunk of a regular file until it has enough.
fn read_chunks(root: &OwnedFd, path: &str, mut take: impl FnMut(&[u8]) -> bool) -> Result<(), Errno> {
    let file = open(root, path, OFlags::RDONLY)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) != FileType::RegularFile {
        // Pipes and devices can wait for ever, or do something when they are read.
        return Err(Errno::INVAL);
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match rustix::io::read(&file, &mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) if take(&chunk[..length]) => {}
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn read_text(root: &OwnedFd, path: &str, limit: usize) -> Result<Fact, String> {
    let mut bytes = Vec::new();
    let read = read_chunks(root, path, |chunk| {
        bytes.extend_from_slice(chunk);
        bytes.len() <= limit
    });
    match read {
        Ok(()) => {}
        Err(Errno::INVAL) => return Err("it is no file to read".to_owned()),
        Err(errno) => return unread(errno),
    }
    if bytes.len() > limit && limit <= MAX_TEXT_BYTES {
        return Err(format!("it is longer than {limit} bytes"));
    }
    bytes.truncate(limit);
    Ok(Fact::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

fn search(root: &OwnedFd, path: &str, text: &[u8], limit: usize) -> Result<Fact, String> {
    let mut window: Vec<u8> = Vec::new();
    let mut seen = 0;
    let mut found = false;
    let read = read_chunks(root, path, |chunk| {
        window.extend_from_slice(chunk);
        seen += chunk.len();
        found = window.windows(text.len()).any(|part| part == text);
        // The text may begin in this chunk and end in the next one.
        let keep = window.len().saturating_sub(text.len());
        window.drain(..keep);
        !found && seen < limit
    });
    match read {
        Ok(()) => Ok(Fact::Has(found)),
        Err(errno) => unread(errno),
    }
}

fn read_link(root: &OwnedFd, path: &str) -> Result<Fact, String> {
    let read = open(root, path, OFlags::PATH | OFlags::NOFOLLOW)
        .and_then(|link| rustix::fs::readlinkat(&link, c"", Vec::new()));
    match read {
        Ok(target) => Ok(Fact::Text(String::from_utf8_lossy(target.to_bytes()).into_owned())),
        Err(Errno::INVAL) => Err("it is no link".to_owned()),
        Err(errno) => unread(errno),
    }
}

fn read_names(root: &OwnedFd, path: &str) -> Result<Fact, String> {
    let entries = match open(root, path, OFlags::RDONLY | OFlags::DIRECTORY).and_then(Dir::new) {
        Ok(entries) => entries,
        Err(errno) => return unread(errno),
    };
    let name = |name: &CStr| name.to_str().map(str::to_owned).ok();
    let mut names = Vec::new();
    for entry in entries.take(MAX_NAMES) {
        names.extend(name(entry.map_err(|errno| errno.to_string())?.file_name()));
    }
    Ok(Fact::Names(names))
}

fn read_node(root: &OwnedFd, path: &str, is_live: bool) -> Result<Fact, String> {
    let status: Stat = match open(root, path, OFlags::PATH).and_then(rustix::fs::fstat) {
        Ok(status) => status,
        Err(errno) => return unread(errno),
    };
    let kind = match FileType::from_raw_mode(status.st_mode) {
        FileType::CharacterDevice => "char",
        FileType::BlockDevice => "block",
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Socket => "socket",
        _ => "other",
    };
    let ask =
        || rustix::fs::accessat(CWD, path, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS).is_ok();
    Ok(Fact::Node(Node {
        kind: kind.to_owned(),
        mode: status.st_mode & 0o7777,
        uid: status.st_uid,
        gid: status.st_gid,
        open: is_live.then(ask),
    }))
}

// Named, because this file is also a part of the fuzz targets, where it has another place.
#[cfg(test)]
#[path = "machine/tests.rs"]
mod tests;
