//! An open regular file: which way it is read, and what of it was read ahead.
//!
//! ```text
//! first read ─ choose ─► Way, Why          read ─ covered by a block that was read ahead? ─ and unchanged? ─► its bytes
//! sequential reads ─ next_ahead ─► the block to read ahead                                └ no ─► read
//! ```
//!
//! A block read ahead is a copy that the kernel does not keep true. So it is used only when the file's size and time of change
//! are what they were before it was read, when these were then old enough that any later change must show in them
//! ([`SETTLED`]; the times of old kernels have the grain of their clock's tick), when no write of this server's has ended since,
//! and not for longer than [`OLDEST`]. What other programs store through mappings of the file, or by a single write that takes
//! longer than that, may show that much later. It decides what to read and issues nothing.

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use memferry_pool::{BufferView, cached_pages, direct_alignments, reopen_direct};
use rustix::io::{Errno, ReadWriteFlags};

use crate::options::Engine;
use crate::statistics::{Way, Why};

/// How long a file must have been left alone for its times to tell of every later change: more than the longest tick, 10 ms.
const SETTLED: Duration = Duration::from_millis(25);
/// How long a block read ahead is good.
const OLDEST: Duration = Duration::from_secs(1);
/// Shorter files are read through the page cache.
const SMALL: u64 = 256 << 10;
/// Shorter first reads mean that a file is read in pieces.
const SHORT_READ: usize = 16 << 10;
/// The largest alignment that a buffer has room for on both sides.
const MOST_ALIGN: usize = 4096;
/// The most blocks read ahead of one file at a time.
const MOST_AHEAD: usize = 8;

/// The size and time of change of a file.
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

    /// Whether any change from now on gives another stamp.
    fn settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = self.changed;
        let changed = Duration::new(u64::try_from(seconds).unwrap_or(0), u32::try_from(nanos).unwrap_or(0));
        now.checked_sub(changed).is_some_and(|age| age > SETTLED)
    }
}

/// A request's bytes, and those around them that are read to get them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Where in the file the read begins.
    pub(crate) start: u64,
    pub(crate) length: usize,
    /// Where in the file what was asked for begins.
    pub(crate) offset: u64,
    pub(crate) count: usize,
}

impl Span {
    /// `count` bytes at `offset`, in whole units of `align` bytes; `None` beyond the largest file.
    fn aligned(offset: u64, count: usize, align: usize) -> Option<Self> {
        let align = align as u64;
        let start = offset / align * align;
        let end = offset.checked_add(count as u64)?.checked_next_multiple_of(align)?;
        i64::try_from(end).ok()?;
        Some(Self { start, length: (end - start) as usize, offset, count })
    }

    /// Where in the bytes read what was asked for lies, when `read` were.
    pub(crate) fn within(&self, read: usize) -> (usize, usize) {
        let skip = (self.offset - self.start) as usize;
        (skip.min(read), self.count.min(read.saturating_sub(skip)))
    }
}

/// A block that was or is being read ahead.
struct Ahead {
    id: u64,
    start: u64,
    length: usize,
    stamp: Stamp,
    /// The server's writes when it was asked for.
    writes: u64,
    since: Instant,
    /// `None` while it is on its way.
    view: Option<BufferView>,
}

/// What there is for a read.
pub(crate) enum Found {
    Bytes(Option<BufferView>),
    /// The block with this number has them and is on its way.
    Coming(u64),
    /// Nothing, or nothing that is still true.
    Nothing,
}

struct DirectWay {
    file: Arc<OwnedFd>,
    align: usize,
}

pub(crate) struct OpenFile {
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) id: (u64, u64),
    /// Whether writes go to the end, wherever they are meant to.
    append: bool,
    direct: OnceCell<Option<DirectWay>>,
    way: Cell<Option<Way>>,
    aheads: RefCell<Vec<Ahead>>,
    /// Where the read after the last one begins, when it is sequential.
    next: Cell<u64>,
    next_id: Cell<u64>,
    /// Blocks to be read ahead together, at the next time; the more the longer a reader goes on.
    window: Cell<usize>,
}

impl OpenFile {
    pub(crate) fn new(file: OwnedFd, id: (u64, u64), append: bool) -> Rc<Self> {
        Rc::new(Self {
            file: Arc::new(file),
            id,
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
            let file = reopen_direct(self.file.as_fd()).ok().filter(|_| align <= MOST_ALIGN)?;
            Some(DirectWay { file: Arc::new(file), align })
        };
        self.direct.get_or_init(open).as_ref()
    }

    /// The way it is read, and why when that is decided now, by a first read of `count` bytes at `offset`; files of `large`
    /// bytes would fill the page cache.
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

    /// Whether bytes can be had without the device, those beyond the end aside.
    pub(crate) fn in_page_cache(&self, offset: u64, count: usize) -> bool {
        let size = Stamp::of(&self.file).map_or(0, |stamp| stamp.size);
        let length = (count as u64).min(size.saturating_sub(offset));
        if length == 0 {
            return false;
        }
        let page = rustix::param::page_size() as u64;
        let pages = (offset + length).div_ceil(page) - offset / page;
        // A page may be there that is still being read: the last is asked for.
        cached_pages(self.file.as_fd(), offset, length).map_or(true, |cached| cached == pages)
            && self.comes_at_once(offset + length - 1)
    }

    /// Whether a byte can be read without waiting. That may start bringing more into the page cache.
    fn comes_at_once(&self, offset: u64) -> bool {
        let mut byte = [0];
        let mut parts = [std::io::IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) == Ok(1)
    }

    /// What to read for a request, and from which description of the file.
    pub(crate) fn span(&self, way: Way, offset: u64, count: usize) -> Option<(Span, Arc<OwnedFd>)> {
        match self.direct().filter(|_| way == Way::Pool) {
            Some(direct) => Some((Span::aligned(offset, count, direct.align)?, Arc::clone(&direct.file))),
            None => Some((Span::aligned(offset, count, 1)?, Arc::clone(&self.file))),
        }
    }

    /// What a write of `count` bytes at `offset` goes to, and whether that is past the page cache.
    pub(crate) fn to_write(&self, engine: Engine, offset: u64, count: usize) -> (Arc<OwnedFd>, bool) {
        self.forget_aheads();
        let fits = |direct: &&DirectWay| {
            offset.is_multiple_of(direct.align as u64) && count.is_multiple_of(direct.align)
        };
        let wanted = engine == Engine::Pool && !self.append && count > 0;
        match wanted.then(|| self.direct()).flatten().filter(fits) {
            Some(direct) => (Arc::clone(&direct.file), true),
            None => (Arc::clone(&self.file), false),
        }
    }

    /// Whether a read goes on where the last one ended; the next is expected after it.
    pub(crate) fn sequential(&self, offset: u64, count: usize) -> bool {
        self.next.replace(offset.saturating_add(count as u64)) == offset
    }

    /// Looks for a request's bytes among the blocks read ahead; whether it was found stale comes beside.
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

    /// How many blocks to read ahead now: none while more than half of the last ones are left, then several at once, which the
    /// device gives for little more than one. What was not wanted in time makes them fewer again.
    pub(crate) fn wanted_ahead(&self) -> usize {
        self.forget_old_aheads();
        let window = self.window.get();
        let left = self.aheads.borrow().len();
        if left * 2 > window {
            return 0;
        }
        self.window.set((window * 2).min(MOST_AHEAD));
        window.saturating_sub(left)
    }

    /// Lets go of blocks read ahead that are too old to be used; whether there are others.
    pub(crate) fn forget_old_aheads(&self) -> bool {
        let mut aheads = self.aheads.borrow_mut();
        let before = aheads.len();
        aheads.retain(|ahead| ahead.view.is_none() || ahead.since.elapsed() <= OLDEST);
        if aheads.len() < before {
            self.window.set(1);
        }
        !aheads.is_empty()
    }

    /// The block to read ahead after a sequential read up to `end`, in blocks of `block` bytes, with its number; `writes` is the
    /// server's count now.
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
        if aheads.len() >= MOST_AHEAD {
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

    /// A block has come, or failed. One that ended early, by a bad sector for instance, is no more than that: what there is of the
    /// file is for the read itself to find out.
    pub(crate) fn ahead_came(&self, id: u64, view: Option<BufferView>) {
        let mut aheads = self.aheads.borrow_mut();
        let Some(index) = aheads.iter().position(|ahead| ahead.id == id) else { return };
        let Ahead { start, length, stamp, .. } = aheads[index];
        let whole = (length as u64).min(stamp.size.saturating_sub(start));
        match view.filter(|view| view.length() as u64 >= whole) {
            Some(view) => aheads[index].view = Some(view),
            None => drop(aheads.swap_remove(index)),
        }
    }

    /// Nothing that was read ahead, or will have been, is used any more.
    pub(crate) fn forget_aheads(&self) {
        self.aheads.borrow_mut().clear();
    }
}

/// What is in the page cache is handed on from there where a read is long enough to be worth the calls.
fn hot_way(count: usize) -> Way {
    if count >= SHORT_READ { Way::Cached } else { Way::Copying }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memferry_pool::{Options, Pool};

    /// A file that nobody changes: this crate's manifest, with its length.
    fn manifest() -> (Rc<OpenFile>, usize) {
        let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        let length = file.metadata().unwrap().len() as usize;
        (OpenFile::new(file.into(), (0, 0), false), length)
    }

    #[test]
    fn a_block_read_ahead_is_used_when_all_of_it_came_and_not_when_it_ended_early() {
        let pool = Pool::new(Options::default()).unwrap();
        for (missing, used) in [(0, true), (1, false)] {
            let (file, length) = manifest();
            let (id, span, _) = file.next_ahead(0, 65_536, 0).unwrap();
            assert_eq!((span.start, span.length), (0, 65_536));
            // However long this test is kept waiting, the block is not too old.
            file.aheads.borrow_mut()[0].since += Duration::from_secs(3600);
            file.ahead_came(id, pool.take().unwrap().share(0, length - missing).ok());
            let (found, stale) = file.find(0, 65_536, 0);
            assert!(!stale);
            match found {
                Found::Bytes(Some(view)) => assert!(used && view.length() == length),
                Found::Nothing => assert!(!used, "what came is all there is"),
                _ => panic!("nothing else can be"),
            }
        }
    }
}
