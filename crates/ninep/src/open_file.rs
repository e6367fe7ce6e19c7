//! An open regular file: how it is read, and which blocks of it were read ahead.
//!
//! ```text
//! first read ─ choose ─► Way, Why          read ─ covered by a block read ahead? ─ still valid? ─► its bytes
//! sequential reads ─ next_ahead ─► the block to read ahead                          └ no ─► read
//! ```
//!
//! The kernel does not keep a block read ahead up to date. A block is used only if the file's size and change time
//! are what they were before it was read, if these were then old enough that any later change must alter them
//! ([`SETTLED`]; old kernels' times have the granularity of their tick), if no write of this server has completed since,
//! and for at most [`OLDEST`]. What other programs store through mappings, or by a single write that takes
//! longer than that, may appear that much later. This module decides what to read; it issues no reads.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memferry_pool::{BufferView, cached_pages, direct_alignments, reopen_direct};
use rustix::io::{Errno, ReadWriteFlags};

use crate::accounts::Account;
use crate::export::Locks;
use crate::options::Engine;
use crate::statistics::{Way, Why};

/// Age from which a file's change time reveals every later change: more than the longest tick, 10 ms.
const SETTLED: Duration = Duration::from_millis(25);
/// Maximum age of a block read ahead.
const OLDEST: Duration = Duration::from_secs(1);
/// Shorter files are read through the page cache.
const SMALL: u64 = 256 << 10;
/// A shorter first read means that the client reads in pieces.
const SHORT_READ: usize = 16 << 10;
/// Maximum alignment: buffers have that much room on both sides.
const MAX_ALIGN: usize = 4096;
/// Maximum number of blocks read ahead of one file.
const MAX_AHEAD: usize = 8;

/// Size and change time of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stamp {
    pub(crate) size: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(file: &OwnedFd) -> Result<Self, Errno> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Self { size: stat.st_size.cast_unsigned(), changed: (stat.st_ctime, stat.st_ctime_nsec as i64) })
    }

    /// Whether any later change will alter the stamp.
    fn settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = self.changed;
        let changed = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
        now.checked_sub(changed).is_some_and(|age| age > SETTLED)
    }
}

/// The requested bytes, and the aligned range around them that is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// File offset of the read.
    pub(crate) start: u64,
    pub(crate) length: usize,
    /// File offset of the request.
    pub(crate) offset: u64,
    pub(crate) count: usize,
}

impl Span {
    /// `count` bytes at `offset`, extended to multiples of `align`; `None` beyond the maximum file size.
    fn aligned(offset: u64, count: usize, align: usize) -> Option<Self> {
        let align = align as u64;
        let start = offset / align * align;
        let end = offset.checked_add(count as u64)?.checked_next_multiple_of(align)?;
        i64::try_from(end).ok()?;
        Some(Self { start, length: (end - start) as usize, offset, count })
    }

    /// Offset and length of the requested bytes within the `read` bytes.
    pub(crate) fn within(&self, read: usize) -> (usize, usize) {
        let skip = (self.offset - self.start) as usize;
        (skip.min(read), self.count.min(read.saturating_sub(skip)))
    }
}

/// A block read ahead, or in flight.
struct Ahead {
    id: u64,
    start: u64,
    length: usize,
    stamp: Stamp,
    /// The server's count of writes before the read.
    writes: u64,
    since: Instant,
    /// `None` while in flight.
    view: Option<BufferView>,
}

/// Result of looking for a read among blocks read ahead.
pub(crate) enum Found {
    Bytes(Option<BufferView>),
    /// The block with this number covers the request and is in flight.
    Coming(u64),
    Nothing,
}

struct DirectWay {
    file: Arc<OwnedFd>,
    align: usize,
}

pub(crate) struct OpenFile {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) id: (u64, u64),
    pub(crate) locks: Locks,
    /// Whether the file is open for appending.
    append: bool,
    direct: OnceCell<Option<DirectWay>>,
    way: Cell<Option<Way>>,
    aheads: RefCell<Vec<Ahead>>,
    /// Expected offset of the next read, if it is sequential.
    next: Cell<u64>,
    next_id: Cell<u64>,
    /// Blocks to read ahead next time; grows while reads stay sequential.
    window: Cell<usize>,
}

impl OpenFile {
    pub(crate) fn new(file: OwnedFd, id: (u64, u64), append: bool, account: Arc<Account>) -> Rc<Self> {
        Rc::new(Self {
            file: Arc::new(file),
            id,
            locks: Locks::new(account),
            append,
            direct: OnceCell::new(),
            way: Cell::new(None),
            aheads: RefCell::new(Vec::new()),
            next: Cell::new(0),
            next_id: Cell::new(0),
            window: Cell::new(1),
        })
    }

    fn direct(&self) -> Option<&DirectWay> {
        let open = || {
            let align = direct_alignments(self.file.as_fd());
            let align = align.0.max(align.1).max(512);
            let file = reopen_direct(self.file.as_fd()).ok().filter(|_| align <= MAX_ALIGN)?;
            Some(DirectWay { file: Arc::new(file), align })
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// How the file is read. A first read of `count` bytes at `offset` decides, and also returns the reason; files from `large`
    /// bytes on would fill the page cache.
    pub(crate) fn way(
        &self,
        engine: Engine,
        (offset, count): (u64, usize),
        large: u64,
    ) -> (Way, Option<Why>) {
        if let Some(way) = self.way.get() {
            return (way, None);
        }
        let (way, why) = self.choose(engine, (offset, count), large);
        self.way.set(Some(way));
        (way, Some(why))
    }

    fn choose(&self, engine: Engine, (offset, count): (u64, usize), large: u64) -> (Way, Why) {
        match engine {
            Engine::Copying => return (Way::Copying, Why::Told),
            Engine::Cached => return (Way::Cached, Why::Told),
            Engine::Pool if self.direct().is_some() => return (Way::Pool, Why::Told),
            Engine::Pool => return (Way::Copying, Why::NotOffered),
            Engine::Auto => {}
        }
        let size = Stamp::of(&self.file).map_or(0, |stamp| stamp.size);
        if self.in_page_cache(offset, count) {
            (hot_way(count), Why::Hot)
        } else if size < SMALL {
            (Way::Copying, Why::Small)
        } else if count < SHORT_READ {
            (Way::Copying, Why::ShortReads)
        } else if size < large {
            (Way::Cached, Why::Cold)
        } else if self.direct().is_none() {
            (Way::Cached, Why::NotOffered)
        } else {
            (Way::Pool, Why::Large)
        }
    }

    /// Whether the bytes can be read without the device; bytes beyond the end do not count.
    pub(crate) fn in_page_cache(&self, offset: u64, count: usize) -> bool {
        let size = Stamp::of(&self.file).map_or(0, |stamp| stamp.size);
        let length = (count as u64).min(size.saturating_sub(offset));
        if length == 0 {
            return false;
        }
        let page = rustix::param::page_size() as u64;
        let pages = (offset + length).div_ceil(page) - offset / page;
        // A cached page may still be loading, so try to read the last one.
        cached_pages(self.file.as_fd(), offset, length).map_or(true, |cached| cached == pages)
            && self.is_readable_now(offset + length - 1)
    }

    /// Whether a byte can be read without blocking. Trying may start read-ahead into the page cache.
    fn is_readable_now(&self, offset: u64) -> bool {
        let mut byte = [0];
        let mut parts = [std::io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) == Ok(1)
    }

    /// The range to read for a request, and the descriptor to read from.
    pub(crate) fn span(&self, way: Way, offset: u64, count: usize) -> Option<(Span, Arc<OwnedFd>)> {
        match self.direct().filter(|_| way == Way::Pool) {
            Some(direct) => Some((Span::aligned(offset, count, direct.align)?, Arc::clone(&direct.file))),
            None => Some((Span::aligned(offset, count, 1)?, Arc::clone(&self.file))),
        }
    }

    /// The descriptor for a write of `count` bytes at `offset`, and whether it bypasses the page cache.
    pub(crate) fn to_write(&self, engine: Engine, offset: u64, count: usize) -> (Arc<OwnedFd>, bool) {
        self.drop_aheads();
        let fits = |direct: &&DirectWay| {
            offset.is_multiple_of(direct.align as u64) && count.is_multiple_of(direct.align)
        };
        let wanted = engine == Engine::Pool && !self.append && count > 0;
        match wanted.then(|| self.direct()).flatten().filter(fits) {
            Some(direct) => (Arc::clone(&direct.file), true),
            None => (Arc::clone(&self.file), false),
        }
    }

    /// Whether a read continues the last one; records where the next should start.
    pub(crate) fn sequential(&self, offset: u64, count: usize) -> bool {
        self.next.replace(offset.saturating_add(count as u64)) == offset
    }

    /// Looks for the bytes in blocks read ahead; also returns whether a block was found stale.
    pub(crate) fn find(&self, offset: u64, count: usize, writes: u64) -> (Found, bool) {
        let mut aheads = self.aheads.borrow_mut();
        let end = offset.saturating_add(count as u64);
        let covers = |ahead: &Ahead| {
            let known = ahead.start..ahead.start + ahead.length as u64;
            let last = ahead.stamp.size;
            known.contains(&offset) && (end <= known.end || last <= known.end)
        };
        let Some(index) = aheads.iter().position(covers) else { return (Found::Nothing, false) };
        let Some(view) = &aheads[index].view else { return (Found::Coming(aheads[index].id), false) };
        let ahead = &aheads[index];
        let stale = ahead.writes != writes || ahead.since.elapsed() > OLDEST;
        if stale || Stamp::of(&self.file) != Ok(ahead.stamp) {
            aheads.retain(|ahead| ahead.view.is_none());
            self.window.set(1);
            return (Found::Nothing, true);
        }
        let skip = ((offset - ahead.start) as usize).min(view.length());
        let length = count.min(view.length() - skip);
        let bytes = if length == 0 { None } else { view.part(skip, length).ok() };
        if end >= ahead.start + ahead.length as u64 {
            aheads.swap_remove(index);
        }
        (Found::Bytes(bytes), false)
    }

    /// How many blocks to read ahead now: none while more than half of the last ones are left, then several at once, which
    /// costs the device little more than one. Expired blocks reduce the number again.
    pub(crate) fn wanted_ahead(&self) -> usize {
        self.drop_old_aheads();
        let window = self.window.get();
        let left = self.aheads.borrow().len();
        if left * 2 > window {
            return 0;
        }
        self.window.set((window * 2).min(MAX_AHEAD));
        window.saturating_sub(left)
    }

    /// Drops expired blocks; returns whether others are left.
    pub(crate) fn drop_old_aheads(&self) -> bool {
        let mut aheads = self.aheads.borrow_mut();
        let before = aheads.len();
        aheads.retain(|ahead| ahead.view.is_none() || ahead.since.elapsed() <= OLDEST);
        if aheads.len() < before {
            self.window.set(1);
        }
        !aheads.is_empty()
    }

    /// The next block to read ahead after a sequential read up to `end`, in blocks of `block` bytes, with its number; `writes` is
    /// the server's current count.
    pub(crate) fn next_ahead(
        &self,
        end: u64,
        block: usize,
        writes: u64,
    ) -> Option<(u64, Span, Arc<OwnedFd>)> {
        let mut aheads = self.aheads.borrow_mut();
        let mut start = end;
        while let Some(ahead) =
            aheads.iter().find(|ahead| ahead.start <= start && start < ahead.start + ahead.length as u64)
        {
            start = ahead.start + ahead.length as u64;
        }
        if aheads.len() >= MAX_AHEAD {
            return None;
        }
        let stamp = Stamp::of(&self.file).ok().filter(|stamp| stamp.settled() && start < stamp.size)?;
        let (span, file) = self.span(Way::Pool, start, block)?;
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        aheads.push(Ahead {
            id,
            start: span.start,
            length: span.length,
            stamp,
            writes,
            since: Instant::now(),
            view: None,
        });
        Some((id, span, file))
    }

    /// Handles a completed or failed block. A short one, after a bad sector for instance, is discarded: the read itself will
    /// report the error.
    pub(crate) fn ahead_done(&self, id: u64, view: Option<BufferView>) {
        let mut aheads = self.aheads.borrow_mut();
        let Some(index) = aheads.iter().position(|ahead| ahead.id == id) else { return };
        let Ahead { start, length, stamp, .. } = aheads[index];
        let whole = (length as u64).min(stamp.size.saturating_sub(start));
        match view.filter(|view| view.length() as u64 >= whole) {
            Some(view) => aheads[index].view = Some(view),
            None => drop(aheads.swap_remove(index)),
        }
    }

    /// Discards all blocks read ahead, also those in flight.
    pub(crate) fn drop_aheads(&self) {
        self.aheads.borrow_mut().clear();
    }
}

/// Long reads of cached bytes are passed on from the page cache; for short ones the calls cost more than a copy.
fn hot_way(count: usize) -> Way {
    if count >= SHORT_READ { Way::Cached } else { Way::Copying }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memferry_pool::{Options, Pool};

    /// A file that never changes: this crate's manifest, with its length.
    fn manifest() -> (Rc<OpenFile>, usize) {
        let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        (OpenFile::new(file.into(), (0, 0), false, Arc::default()), length)
    }

    #[test]
    fn short_blocks_read_ahead_are_not_used() {
        let pool = Pool::new(Options::default()).unwrap();
        for (missing, used) in [(0, true), (1, false)] {
            let (file, length) = manifest();
            let (id, span, _) = file.next_ahead(0, 65_536, 0).unwrap();
            assert_eq!((span.start, span.length), (0, 65_536));
            // Keeps the block from expiring however slow this test runs.
            file.aheads.borrow_mut()[0].since += Duration::from_secs(3600);
            file.ahead_done(id, pool.take().unwrap().share(0, length - missing).ok());
            let (found, stale) = file.find(0, 65_536, 0);
            assert!(!stale);
            match found {
                Found::Bytes(Some(view)) => assert!(used && view.length() == length),
                Found::Nothing => assert!(!used, "a complete block is used"),
                _ => panic!("the block is not in flight, and the file not empty"),
            }
        }
    }
}
