//! The pool as files: the paper's devumode (section 4), for any 9P client.
//!
//! ```text
//! ctl            commands: "trim", "limit BYTES"      statistics    the pool's counts
//! server         what the server did, and why         0/ 1/ …       a folder per segment:
//!                                                     available  size  mapping  statistics
//! ```
//!
//! Opening a file fixes its text. Buffers are not handed out here: a process that wants some uses
//! the library, as the paper's processes use `segattach`.

use std::borrow::Cow;

use memferry_pool::{Pool, SegmentView};
use rustix::io::Errno;

use crate::codec::{Attributes, BASIC_ATTRIBUTES, Entry, Qid, qid_kind};
use crate::statistics::Statistics;

/// Files at the top.
const TOP: [&str; 3] = ["ctl", "statistics", "server"];
/// Files of a segment.
const OF_SEGMENT: [&str; 4] = ["available", "size", "mapping", "statistics"];

/// A place in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Root,
    Top(usize),
    Segment(u32),
    OfSegment(u32, usize),
}

impl Place {
    pub(crate) fn is_directory(self) -> bool {
        matches!(self, Self::Root | Self::Segment(_))
    }

    pub(crate) fn is_control(self) -> bool {
        self == Self::Top(0)
    }

    pub(crate) fn qid(self) -> Qid {
        let path = match self {
            Self::Root => 0,
            Self::Top(index) => 1 + index as u64,
            Self::Segment(id) => (u64::from(id) + 1) << 8,
            Self::OfSegment(id, index) => ((u64::from(id) + 1) << 8) + 1 + index as u64,
        };
        Qid { kind: if self.is_directory() { qid_kind::DIRECTORY } else { 0 }, version: 0, path }
    }

    pub(crate) fn walk(self, pool: &Pool, name: &[u8]) -> Result<Self, Errno> {
        if !self.is_directory() {
            return Err(Errno::NOTDIR);
        }
        match name {
            b"." => return Ok(self),
            b".." => return Ok(Self::Root),
            _ => {}
        }
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        let among = |names: &[&str]| names.iter().position(|known| *known == name).ok_or(Errno::NOENT);
        match self {
            Self::Segment(id) => Ok(Self::OfSegment(id, among(&OF_SEGMENT)?)),
            _ => match name.parse() {
                Ok(id) if name == format!("{id}") && segment(pool, id).is_ok() => Ok(Self::Segment(id)),
                _ => Ok(Self::Top(among(&TOP)?)),
            },
        }
    }

    pub(crate) fn attributes(self, pool: &Pool, server: &Statistics) -> Result<Attributes, Errno> {
        let mode = match self {
            _ if self.is_directory() => libc::S_IFDIR | 0o555,
            _ if self.is_control() => libc::S_IFREG | 0o200,
            _ => libc::S_IFREG | 0o444,
        };
        let size = if self.is_directory() { 0 } else { self.text(pool, server)?.len() as u64 };
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let links = 1;
        let block = 4096;
        let qid = self.qid();
        Ok(Attributes {
            valid: BASIC_ATTRIBUTES,
            qid,
            mode,
            uid,
            gid,
            links,
            size,
            block,
            ..Attributes::default()
        })
    }

    /// Current text of a file.
    pub(crate) fn text(self, pool: &Pool, server: &Statistics) -> Result<String, Errno> {
        Ok(match self {
            Self::Root | Self::Segment(_) => return Err(Errno::ISDIR),
            Self::Top(0) => String::new(),
            Self::Top(1) => pool_text(pool),
            Self::Top(_) => server.to_string(),
            Self::OfSegment(id, index) => {
                let segment = segment(pool, id)?;
                match index {
                    0 => format!("{}\n", segment.free),
                    1 => format!("{}\n", segment.bytes),
                    2 => format!("{:#x} {} {}\n", segment.address, segment.bytes, segment.page_bytes),
                    _ => segment_text(&segment),
                }
            }
        })
    }

    /// Entries of a directory from number `offset` on, as many as fit in `room`.
    pub(crate) fn entries(self, pool: &Pool, offset: u64, room: usize) -> Vec<u8> {
        let mut all: Vec<(Cow<'_, str>, Self)> = Vec::new();
        match self {
            Self::Root => {
                all.extend(
                    TOP.iter().enumerate().map(|(index, name)| (Cow::Borrowed(*name), Self::Top(index))),
                );
                let segments = pool.segments().into_iter();
                all.extend(segments.map(|view| (view.id.to_string().into(), Self::Segment(view.id))));
            }
            Self::Segment(id) => {
                let files = OF_SEGMENT.iter().enumerate();
                all.extend(files.map(|(index, name)| (Cow::Borrowed(*name), Self::OfSegment(id, index))));
            }
            _ => {}
        }
        let mut bytes = Vec::new();
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (name, place)) in all.iter().enumerate().skip(from) {
            if bytes.len() + Entry::FIXED + name.len() > room {
                break;
            }
            let kind = if place.is_directory() { 4 } else { 8 };
            Entry { qid: place.qid(), next: index as u64 + 1, kind, name: Cow::Borrowed(name.as_bytes()) }
                .put(&mut bytes);
        }
        bytes
    }
}

/// Executes a command written to `ctl`.
pub(crate) fn control(pool: &Pool, command: &[u8]) -> Result<(), Errno> {
    let words = std::str::from_utf8(command).map_err(|_| Errno::INVAL)?;
    match words.split_whitespace().collect::<Vec<_>>()[..] {
        ["trim"] => {
            pool.trim();
        }
        ["limit", bytes] => {
            // With fewer than two buffers no client could be served.
            let enough = |bytes: &u64| pool.options().buffers_within(*bytes) >= 2;
            pool.set_limit(bytes.parse().ok().filter(enough).ok_or(Errno::INVAL)?);
        }
        _ => return Err(Errno::INVAL),
    }
    Ok(())
}

fn segment(pool: &Pool, id: u32) -> Result<SegmentView, Errno> {
    pool.segments().into_iter().find(|segment| segment.id == id).ok_or(Errno::NOENT)
}

fn pool_text(pool: &Pool) -> String {
    let counts = pool.statistics();
    format!(
        "segments {}\nsegment_bytes {}\nhuge_segments {}\nlimit_bytes {}\nbuffer_bytes {}\nbuffers {}\nin_use {}\n\
         peak_in_use {}\nset_aside {}\ntaken {}\nwaited {}\nrefused {}\nzero {}\nzeroed {}\n",
        counts.segments,
        counts.segment_bytes,
        counts.huge_segments,
        counts.limit_bytes,
        pool.options().buffer_bytes,
        counts.buffers,
        counts.in_use,
        counts.peak_in_use,
        counts.set_aside,
        counts.taken,
        counts.waited,
        counts.refused,
        counts.zero,
        counts.zeroed,
    )
}

fn segment_text(segment: &SegmentView) -> String {
    format!(
        "buffers {}\nfree {}\nset_aside {}\nbuffer_bytes {}\nlocked {}\n",
        segment.buffers, segment.free, segment.set_aside, segment.buffer_bytes, segment.locked
    )
}

#[cfg(all(test, not(miri)))]
mod tests {
    use memferry_pool::Options;

    use super::*;

    #[test]
    fn the_tree_shows_segments() {
        let pool = Pool::new(Options::default()).unwrap();
        let server = Statistics::default();
        assert_eq!(Place::Root.walk(&pool, b"0"), Err(Errno::NOENT));
        let buffer = pool.take().unwrap();
        let segment = Place::Root.walk(&pool, b"0").unwrap();
        let text = |name: &[u8]| segment.walk(&pool, name).unwrap().text(&pool, &server).unwrap();
        assert_eq!(text(b"size"), "2097152\n");
        assert_eq!(text(b"available").trim().parse::<usize>().unwrap(), pool.segments()[0].free);
        assert!(text(b"statistics").contains("buffers ") && text(b"mapping").starts_with("0x"));
        let entries = Place::Root.entries(&pool, 0, 4096);
        let entries = Entry::all(&entries).unwrap();
        let names: Vec<_> = entries.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [&b"ctl"[..], b"statistics", b"server", b"0"]);
        assert_eq!(Entry::all(&Place::Root.entries(&pool, 2, 50)).unwrap().len(), 1, "as many as fit");
        assert_eq!(Place::Root.walk(&pool, b"00"), Err(Errno::NOENT));
        drop(buffer);
        control(&pool, b"trim\n").unwrap();
        assert_eq!(segment.walk(&pool, b"size").unwrap().text(&pool, &server), Err(Errno::NOENT));
        control(&pool, b"limit 8388608").unwrap();
        assert_eq!(pool.statistics().limit_bytes, 8 << 20);
        for wrong in [&b"limit 1"[..], b"limit x", b"", b"shrink", b"\xff"] {
            assert_eq!(control(&pool, wrong), Err(Errno::INVAL));
        }
    }
}
