//! Allocation tables of one segment: runs of whole pages, and four-page slabs of small blocks.
//!
//! ```text
//! layout ─ Shape::of ─┬─ Small(class)   16 … 2048 bytes: a bit in a slab of that class
//!                     └─ Run(pages)     whole pages: first fit at the alignment
//! ```
//!
//! The tables work on offsets and lie outside the segment, so a process that writes the segment cannot corrupt them.
//! The arena chooses the segment and zeroes blocks.

use std::alloc::Layout;

/// The unit of runs, independent of the machine's page size.
pub(super) const PAGE: usize = 4096;
/// The size of a large page.
pub(super) const MAX_ALIGNMENT: usize = 2 << 20;
const SLAB_PAGES: usize = 4;
const SLAB_BYTES: usize = SLAB_PAGES * PAGE;
/// Sizes of small blocks, in bytes.
const CLASSES: [usize; 15] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 2048];
const SLAB_WORDS: usize = SLAB_BYTES / CLASSES[0] / 64;

/// The kind of block that serves a layout. A block serves every layout of its shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// A block of a slab; the number is an index into `CLASSES`.
    Small(usize),
    /// `pages` pages whose address is a multiple of `align` pages.
    Run { pages: usize, align: usize },
}

impl Shape {
    /// `None` for an alignment above [`MAX_ALIGNMENT`]. The layout must have at least one byte.
    pub(super) fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        let align = layout.align();
        let class = CLASSES.iter().position(|class| *class >= size && class.is_multiple_of(align));
        if let Some(class) = class {
            return Some(Self::Small(class));
        }
        let run = Self::Run { pages: size.div_ceil(PAGE), align: align.div_ceil(PAGE) };
        (align <= MAX_ALIGNMENT).then_some(run)
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Small(class) => CLASSES[class],
            Self::Run { pages, .. } => pages * PAGE,
        }
    }

    /// Minimum size of a fresh segment that serves it; `None` on overflow.
    pub(super) fn segment_bytes(self) -> Option<usize> {
        match self {
            Self::Small(_) => Some(SLAB_BYTES),
            // A segment begins at any page, so up to `align - 1` pages are skipped to reach the alignment.
            Self::Run { pages, align } => (pages + align - 1).checked_mul(PAGE),
        }
    }

    fn same_block(self, other: Self) -> bool {
        match (self, other) {
            (Self::Run { pages, .. }, Self::Run { pages: others, .. }) => pages == others,
            _ => self == other,
        }
    }
}

/// Why an offset and shape do not name a block in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// No block in use begins there.
    NotLive,
    /// The block there has this other shape.
    Shape(Shape),
}

/// State of one page. Free pages and all pages of a run but its first are `Plain`; the bitmap shows which are free.
enum State {
    Plain,
    /// First page of a run of this many pages.
    Run(usize),
    /// First page of a run that is being zeroed: no longer a block, not yet free.
    Leaving,
    /// First page of a slab.
    Slab(Box<Slab>),
    /// A later page of a slab, with its distance to the first.
    InSlab(usize),
}

struct Slab {
    class: usize,
    used: [u64; SLAB_WORDS],
    live: usize,
}

/// The pages of one segment.
pub(super) struct Pages {
    /// The segment's first address, divided by `PAGE`.
    first: usize,
    states: Vec<State>,
    /// A bitmap of the pages in use.
    used: Vec<u64>,
    free: usize,
    /// No page before this one is free.
    lowest: usize,
    /// For each class, the first pages of its slabs that have room.
    with_room: [Vec<usize>; CLASSES.len()],
    live: usize,
}

impl Pages {
    /// Tables of `count` free pages; `first` is the first one's address divided by `PAGE`.
    pub(super) fn new(first: usize, count: usize) -> Self {
        Self {
            first,
            states: (0..count).map(|_| State::Plain).collect(),
            used: vec![0; count.div_ceil(64)],
            free: count,
            lowest: 0,
            with_room: Default::default(),
            live: 0,
        }
    }

    pub(super) fn live(&self) -> usize {
        self.live
    }

    /// Takes a block and returns its offset, or `None` when there is no room.
    pub(super) fn take(&mut self, shape: Shape) -> Option<usize> {
        let offset = match shape {
            Shape::Small(class) => self.take_small(class)?,
            Shape::Run { pages, align } => {
                let start = self.find(pages, align)?;
                self.mark(start, pages, true);
                self.states[start] = State::Run(pages);
                start * PAGE
            }
        };
        self.live += 1;
        Some(offset)
    }

    fn take_small(&mut self, class: usize) -> Option<usize> {
        let head = match self.with_room[class].last() {
            Some(head) => *head,
            None => self.cut(class)?,
        };
        let State::Slab(slab) = &mut self.states[head] else { return None };
        let (word, bits) = slab.used.iter_mut().enumerate().find(|(_, bits)| **bits != u64::MAX)?;
        let bit = bits.trailing_ones();
        *bits |= 1 << bit;
        slab.live += 1;
        if slab.live == SLAB_BYTES / CLASSES[class] {
            self.with_room[class].pop();
        }
        Some(head * PAGE + (word * 64 + bit as usize) * CLASSES[class])
    }

    /// Makes a slab from free pages; returns its first page.
    fn cut(&mut self, class: usize) -> Option<usize> {
        let head = self.find(SLAB_PAGES, 1)?;
        self.mark(head, SLAB_PAGES, true);
        self.states[head] = State::Slab(Box::new(Slab { class, used: [0; SLAB_WORDS], live: 0 }));
        for back in 1..SLAB_PAGES {
            self.states[head + back] = State::InSlab(back);
        }
        self.with_room[class].push(head);
        Some(head)
    }

    /// Checks that a block of this shape is in use at `offset`.
    pub(super) fn check(&self, offset: usize, shape: Shape) -> Result<(), Wrong> {
        let page = offset / PAGE;
        let found = match self.states.get(page) {
            Some(State::Run(pages)) if offset.is_multiple_of(PAGE) => Shape::Run { pages: *pages, align: 1 },
            Some(State::Slab(slab)) => slab.block_at(offset - page * PAGE)?,
            Some(State::InSlab(back)) => match &self.states[page - back] {
                State::Slab(slab) => slab.block_at(offset - (page - back) * PAGE)?,
                _ => return Err(Wrong::NotLive),
            },
            _ => return Err(Wrong::NotLive),
        };
        if found.same_block(shape) { Ok(()) } else { Err(Wrong::Shape(found)) }
    }

    /// Ends a run that [`check`](Self::check) accepted as a block, but keeps its pages from reuse until
    /// [`give`](Self::give).
    pub(super) fn begin_leaving(&mut self, offset: usize) {
        self.states[offset / PAGE] = State::Leaving;
    }

    /// Frees a block that [`check`](Self::check) accepted.
    pub(super) fn give(&mut self, offset: usize, shape: Shape) {
        let page = offset / PAGE;
        self.live -= 1;
        match shape {
            Shape::Run { pages, .. } => {
                self.states[page] = State::Plain;
                self.mark(page, pages, false);
            }
            Shape::Small(class) => {
                let head = if let State::InSlab(back) = self.states[page] { page - back } else { page };
                self.give_small(head, (offset - head * PAGE) / CLASSES[class]);
            }
        }
    }

    fn give_small(&mut self, head: usize, index: usize) {
        let State::Slab(slab) = &mut self.states[head] else { return };
        slab.used[index / 64] &= !(1 << (index % 64));
        slab.live -= 1;
        let class = slab.class;
        let live = slab.live;
        let listed = live + 1 < SLAB_BYTES / CLASSES[class];
        if live == 0 {
            if listed {
                self.with_room[class].retain(|other| *other != head);
            }
            self.states[head..head + SLAB_PAGES].fill_with(|| State::Plain);
            self.mark(head, SLAB_PAGES, false);
        } else if !listed {
            self.with_room[class].push(head);
        }
    }

    /// The first free run of `pages` pages whose address is a multiple of `align` pages.
    fn find(&self, pages: usize, align: usize) -> Option<usize> {
        if self.free < pages {
            return None;
        }
        let mut start = self.lowest;
        loop {
            start = self.next_free(start)?;
            start = (self.first + start).checked_next_multiple_of(align)? - self.first;
            let end = start.checked_add(pages).filter(|end| *end <= self.states.len())?;
            match self.last_used(start, end) {
                None => return Some(start),
                Some(used) => start = used + 1,
            }
        }
    }

    fn next_free(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut free = !*self.used.get(index)? & (u64::MAX << (from % 64));
        while free == 0 {
            index += 1;
            free = !*self.used.get(index)?;
        }
        Some(index * 64 + free.trailing_zeros() as usize)
    }

    fn last_used(&self, start: usize, end: usize) -> Option<usize> {
        words(start, end).rev().find_map(|(index, mask)| {
            let used = self.used[index] & mask;
            (used != 0).then(|| index * 64 + used.ilog2() as usize)
        })
    }

    fn mark(&mut self, start: usize, pages: usize, in_use: bool) {
        for (index, mask) in words(start, start + pages) {
            if in_use {
                self.used[index] |= mask;
            } else {
                self.used[index] &= !mask;
            }
        }
        if in_use {
            self.free -= pages;
            if start == self.lowest {
                self.lowest += pages;
            }
        } else {
            self.free += pages;
            self.lowest = self.lowest.min(start);
        }
    }
}

impl Slab {
    fn block_at(&self, offset: usize) -> Result<Shape, Wrong> {
        let index = offset / CLASSES[self.class];
        let within = offset % CLASSES[self.class];
        let used = self.used.get(index / 64).is_some_and(|bits| bits >> (index % 64) & 1 == 1);
        if used && within == 0 { Ok(Shape::Small(self.class)) } else { Err(Wrong::NotLive) }
    }
}

/// The indices of the bitmap words that hold bits `start..end`, each with the mask of those bits.
fn words(start: usize, end: usize) -> impl DoubleEndedIterator<Item = (usize, u64)> {
    (start / 64..end.div_ceil(64)).map(move |index| {
        let from = start.saturating_sub(index * 64);
        let to = (end - index * 64).min(64);
        (index, u64::MAX << from & u64::MAX >> (64 - to))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: usize, align: usize) -> Option<Shape> {
        Shape::of(Layout::from_size_align(size, align).unwrap())
    }

    #[test]
    fn a_shape_fits_every_layout_it_serves() {
        for align in (0..22).map(|shift| 1 << shift) {
            for size in (1..10_000).step_by(if cfg!(miri) { 1801 } else { 7 }) {
                let of = shape(size, align).unwrap();
                assert!(of.bytes() >= size);
                assert!(matches!(of, Shape::Run { .. }) || of.bytes().is_multiple_of(align));
                assert_eq!(shape(of.bytes(), align), Some(of), "{size} bytes, aligned to {align}");
            }
        }
        assert_eq!(shape(1, MAX_ALIGNMENT * 2), None);
        let longest = shape(isize::MAX as usize, 1).unwrap();
        assert!(longest.segment_bytes().is_some_and(|bytes| bytes >= isize::MAX as usize));
    }

    #[test]
    fn freed_blocks_merge_into_one_run() {
        let mut pages = Pages::new(3, 200);
        let small = shape(100, 4).unwrap();
        let run = shape(30_000, 16384).unwrap();
        let smalls: Vec<_> = (0..300).map(|_| pages.take(small).unwrap()).collect();
        let runs: Vec<_> = std::iter::from_fn(|| pages.take(run)).collect();
        assert!(runs.len() > 15 && runs.iter().all(|offset| (offset + 3 * PAGE).is_multiple_of(16384)));
        for (offsets, shape) in [(smalls, small), (runs, run)] {
            for offset in offsets {
                assert_eq!(pages.check(offset + 1, shape), Err(Wrong::NotLive));
                assert_eq!(pages.check(offset, shape), Ok(()));
                pages.give(offset, shape);
                assert_eq!(pages.check(offset, shape), Err(Wrong::NotLive));
            }
        }
        assert_eq!((pages.live(), pages.free, pages.lowest), (0, 200, 0));
        assert_eq!(pages.take(Shape::Run { pages: 200, align: 1 }), Some(0));
        assert_eq!(pages.take(small), None);
        assert_eq!(pages.check(PAGE, Shape::Run { pages: 200, align: 1 }), Err(Wrong::NotLive));
    }
}
