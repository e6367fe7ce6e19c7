//! One copy that was answered before it was made: both ranges guarded, then every page put in its place.
//!
//! ```text
//! accept: private? ─► destination watched ─► still nothing there? ─► source's pages held, then protected ─► unpinned?
//!            └ no: everything is let go, and the caller copies
//! fill:   64 KiB of the held pages ─► chunk ─► those pages of the source may be written again
//!                                       └─► put, page by page where the destination is now ─► who waits there goes on
//!         news: moved ─► elsewhere from here on    discarded ─► never put    forked ─► the child's pages at once
//! over:   the context is closed, and with it every guard
//! ```
//!
//! G1: from `accept` on, a page of the destination is either not there, and whoever touches it waits, or it has all its final bytes; for
//! only `put` adds pages.
//! G2: from `accept` on, a held page keeps the source's bytes until they are taken: whoever would write to it waits, and whatever else
//! becomes of the source's addresses does not reach it.
//!
//! Only destinations without any page are taken. To throw pages away costs more than to copy over them, and a device may hold them.

use std::cell::UnsafeCell;

use crate::pinned::{MOST_BYTES, Pinned};
use crate::places::Files;
use crate::system::{self, Descriptor, PAGE};
use crate::userfault::{News, NotPut, Userfault};

/// Pages copied at a time.
const CHUNK_PAGES: usize = 16;
const MOST_PAGES: usize = MOST_BYTES / PAGE;
/// A process and its descendants that may have the same copy under way: forks past the C library, within one copy's time.
const GENERATIONS: usize = 3;

/// The program threw the page away after it was copied to.
const DISCARDED: usize = usize::MAX;
/// Bit of an address that was unmapped, as far as was told: what is moved there is another page.
const UNMAPPED: usize = 1;

/// What one generation needs that is too large for a lane's stack.
struct Room {
    places: UnsafeCell<[usize; MOST_PAGES]>,
    chunk: UnsafeCell<[u8; CHUNK_PAGES * PAGE]>,
}

// SAFETY: only the lane uses it, of which there is one, and each generation its own.
unsafe impl Sync for Room {}

static ROOMS: [Room; GENERATIONS] = [const {
    Room { places: UnsafeCell::new([0; MOST_PAGES]), chunk: UnsafeCell::new([0; CHUNK_PAGES * PAGE]) }
}; GENERATIONS];

/// A copy: whole pages of the destination, and as many bytes anywhere.
#[derive(Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) bytes: usize,
}

/// Guards both ranges, calls `accepted`, and fills the destination; `false` when it did not, and nothing changed.
pub(crate) fn copy(
    whole: Whole,
    files: Files,
    device: Option<Descriptor>,
    held: &mut Pinned,
    accepted: impl FnOnce(),
) -> bool {
    let Ok(context) = Userfault::open(device) else { return false };
    if !accept(whole, context, files, held) {
        held.close();
        context.close();
        return false;
    }
    accepted();
    let mut filling = Filling::new(context, 0, whole.bytes / PAGE);
    for (page, place) in filling.places.iter_mut().enumerate() {
        *place = whole.to + page * PAGE;
    }
    filling.fill(0, held, Some(whole.from));
    context.close();
    true
}

fn accept(Whole { to, from, bytes }: Whole, context: Userfault, files: Files, held: &mut Pinned) -> bool {
    let source = from & !(PAGE - 1);
    let source_bytes = (from + bytes).next_multiple_of(PAGE) - source;
    // The caller has just touched the byte before the destination: what kept it from the rest of that mapping would have shown.
    bytes <= MOST_BYTES
        && files.is_private(to - 1, to + bytes, true)
        && files.is_private(source, source + source_bytes, false)
        && context.watch_missing(to, bytes)
        && files.is_empty(to, bytes)
        && context.watch_protected(source, source_bytes)
        // First held, then protected: a page that is not there yet cannot be protected, and one that is replaced before needs no more.
        && held.hold(from, bytes)
        && context.protect(source, source_bytes)
        && files.is_unpinned()
}

/// A destination that is being filled, in one address space.
struct Filling {
    context: Userfault,
    generation: usize,
    /// Where each page belongs now.
    places: &'static mut [usize],
    chunk: &'static mut [u8],
    /// Something was moved: what lies at the source's addresses may be another part of it.
    stirred: bool,
}

impl Filling {
    fn new(context: Userfault, generation: usize, pages: usize) -> Self {
        let Some(room) = ROOMS.get(generation) else { system::end_process() };
        // SAFETY: the lane fills one destination of each generation at a time.
        let (places, chunk) = unsafe { (&mut *room.places.get(), &mut *room.chunk.get()) };
        let Some(places) = places.get_mut(..pages) else { system::end_process() };
        Self { context, generation, places, chunk, stirred: false }
    }

    /// Puts all pages from `first` on, of which `held` has the bytes; what was taken of `source` may be written again.
    fn fill(&mut self, first: usize, held: &mut Pinned, source: Option<usize>) {
        let mut page = first;
        while page < self.places.len() {
            let pages = CHUNK_PAGES.min(self.places.len() - page);
            let chunk = std::mem::take(&mut self.chunk);
            held.take(&mut chunk[..pages * PAGE]);
            if let Some(source) = source.filter(|_| !self.stirred) {
                self.allow(source, page, pages);
            }
            let there = self.put(page, &chunk[..pages * PAGE], held);
            self.chunk = chunk;
            if !there {
                return;
            }
            page += pages;
        }
    }

    /// Lets everybody write to the source's pages of which these were the last bytes. News that are not read yet keep it from that.
    fn allow(&self, source: usize, page: usize, pages: usize) {
        let start = source + page * PAGE;
        let end = source + (page + pages) * PAGE;
        self.context.allow(start & !(PAGE - 1), (end & !(PAGE - 1)) - (start & !(PAGE - 1)));
    }

    /// Puts the pages from `first` on that `bytes` has, while `held` has those after them; `false` when nobody needs them any
    /// more.
    fn put(&mut self, first: usize, bytes: &[u8], held: &Pinned) -> bool {
        let mut rest = bytes;
        while !rest.is_empty() {
            let page = first + (bytes.len() - rest.len()) / PAGE;
            self.heed(page, rest, held);
            let run = self.run(page, rest.len() / PAGE);
            let (Some(place), true) = (self.places.get(page), run > 0) else {
                rest = &rest[PAGE..];
                continue;
            };
            let (put, why) = self.put_run(place & !UNMAPPED, &rest[..run * PAGE]);
            rest = &rest[put..];
            match why {
                None | Some(NotPut::News) => {}
                Some(NotPut::Superseded) if put == 0 => rest = &rest[PAGE..],
                Some(NotPut::Superseded) => {}
                Some(NotPut::Gone) => return false,
                // As a page fault would, it waits until somebody gives memory back, or is ended to that effect.
                Some(NotPut::Memory) => system::pause(),
                Some(NotPut::Unexplained) => system::end_process(),
            }
        }
        true
    }

    /// Puts pages one after the other, or the first of them, or none.
    ///
    /// The kernel refuses a run that lies in two mappings by now, of which nobody is told: one page is tried alone. It also finds nothing
    /// where a page is moved after it looked for unread news and before it looked for the mapping: that page is tried once more, and
    /// as long as the news of the move are unread it is they that are answered.
    fn put_run(&self, to: usize, bytes: &[u8]) -> (usize, Option<NotPut>) {
        let alone = &bytes[..PAGE];
        let mut answer = self.context.put(to, bytes);
        for _ in 0..2 {
            if answer != (0, Some(NotPut::Superseded)) {
                break;
            }
            answer = self.context.put(to, alone);
        }
        answer
    }

    /// How many pages from `page` on, at most `most`, lie one after the other; none where the page is not wanted.
    fn run(&self, page: usize, most: usize) -> usize {
        let places = self.places.get(page..).unwrap_or_default();
        let Some(first) = places.first().filter(|place| **place != DISCARDED) else { return 0 };
        let follows = |(at, place): &(usize, &usize)| **place == first.wrapping_add(at * PAGE);
        places.iter().take(most).enumerate().take_while(follows).count()
    }

    /// Reads what happened to the memory. The pages from `page` on are not there: `rest` and then `held` have their bytes.
    fn heed(&mut self, page: usize, rest: &[u8], held: &Pinned) {
        while let Some(news) = self.context.next() {
            match news {
                News::Touched => {}
                News::Forked(child) => self.fill_child(child, page, rest, held),
                News::Moved { from, to, bytes } => self.moved(page, from, to, bytes),
                News::Discarded { from, end } => self.each_within(page, from, end, |_| DISCARDED),
                // Told late, perhaps, when something else lies there already: putting will show.
                News::Unmapped { from, end } => self.each_within(page, from, end, |place| place | UNMAPPED),
            }
        }
    }

    fn moved(&mut self, page: usize, from: usize, to: usize, bytes: usize) {
        let stale = |place: usize| if place & UNMAPPED != 0 { DISCARDED } else { system::end_process() };
        if from.abs_diff(to) >= bytes {
            self.each_within(page, to, to.saturating_add(bytes), stale);
        }
        self.stirred = true;
        self.each_within(page, from, from.saturating_add(bytes), |place| (place & !UNMAPPED) - from + to);
    }

    /// Changes the places between two addresses, of pages from `page` on.
    fn each_within(&mut self, page: usize, from: usize, end: usize, change: impl Fn(usize) -> usize) {
        let rest = self.places.iter_mut().skip(page).filter(|place| **place != DISCARDED);
        for place in rest.filter(|place| (from..end).contains(&(**place & !UNMAPPED))) {
            *place = change(*place);
        }
    }

    /// Fills the same pages of a child that was just forked.
    fn fill_child(&self, context: Userfault, page: usize, rest: &[u8], held: &Pinned) {
        let mut child = Self::new(context, self.generation + 1, self.places.len());
        child.places.copy_from_slice(self.places);
        if child.put(page, rest, held) {
            let mut its = held.again();
            child.fill(page + rest.len() / PAGE, &mut its, None);
            its.close();
        }
        context.close();
    }
}
