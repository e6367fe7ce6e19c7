//! Which bytes of one segment are handed out: runs of pages, and slabs of small blocks cut from four pages each.
//!
//! ```text
//! layout ─ Shape::of ─┬─ Small(class)   16 … 2048 bytes: a bit in a slab of that class
//!                     └─ Run(pages)     whole pages, the first free place that is aligned
//! ```
//!
//! Pure book-keeping in offsets. It lies outside the segment and never touches it, so whoever may write there cannot
//! confuse it. Which segment is asked, and what is zeroed when, is the arena's business.

use std::alloc::Layout;

/// The unit of runs, whatever pages the machine has.
pub(super) const PAGE: usize = 4096;
/// The largest alignment: that of a large page.
pub(super) const MOST_ALIGNMENT: usize = 2 << 20;
const SLAB_PAGES: usize = 4;
const SLAB_BYTES: usize = SLAB_PAGES * PAGE;
/// Sizes of small blocks, in bytes.
const CLASSES: [usize; 15] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1280, 1536, 2048];
const SLAB_WORDS: usize = SLAB_BYTES / CLASSES[0] / 64;

/// How a layout is served. Layouts of one shape may stand in for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// A block of that class.
    Small(usize),
    /// That many pages from an address that is a multiple of `align` pages.
    Run { pages: usize, align: usize },
}

impl Shape {
    /// `None` for an alignment that is too large; the layout has at least one byte.
    pub(super) fn of(layout: Layout) -> Option<Self> {
        let size = layout.size();
        let align = layout.align();
        let class = CLASSES.iter().position(|class| *class >= size && class.is_multiple_of(align));
        if let Some(class) = class {
            return Some(Self::Small(class));
        }
        let run = Self::Run { pages: size.div_ceil(PAGE), align: align.div_ceil(PAGE) };
        (align <= MOST_ALIGNMENT).then_some(run)
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Small(class) => CLASSES[class],
            Self::Run { pages, .. } => pages * PAGE,
        }
    }

    /// Bytes a fresh segment must have to serve it; `None` when no address space has as many.
    pub(super) fn segment_bytes(self) -> Option<usize> {
        match self {
            Self::Small(_) => Some(SLAB_BYTES),
            // A segment begins at some page, which need not be a multiple of the alignment.
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

/// What is wrong with a block that is to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrong {
    /// No block in use begins there.
    NotLive,
    /// The block has that shape.
    Shape(Shape),
}

/// What is at a page. The pages of a run but its first are `Plain`, as free ones are; the bitmap tells them apart.
enum State {
    Plain,
    Run(usize),
    /// A run that is being zeroed: no longer a block, not yet free.
    Leaving,
    Slab(Box<Slab>),
    /// That many pages after a slab's first.
    InSlab(usize),
}

struct Slab {
    class: usize,
    used: [u64; SLAB_WORDS],
    live: usize,
}

/// The pages of one segment.
pub(super) struct Pages {
    /// The segment's first address, in pages.
    first: usize,
    states: Vec<State>,
    /// One bit for each page in use.
    used: Vec<u64>,
    free: usize,
    /// No page before this one is free.
    lowest: usize,
    /// First pages of the slabs of each class that have room.
    with_room: [Vec<usize>; CLASSES.len()],
    live: usize,
}

impl Pages {
    /// `count` free pages from the address of page `first`.
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

    /// Takes a block; returns its offset, `None` when there is no room.
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

    /// Makes a slab of free pages.
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

    /// Whether a block of that shape begins at `offset`.
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

    /// Makes a run that [`check`](Self::check) accepted no block any more, without freeing its pages.
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

/// The words of a bitmap that hold bits `start..end`, with a mask of these bits.
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
    fn layouts_of_one_alignment_up_to_the_block_s_size_have_its_shape() {
        for align in (0..22).map(|shift| 1 << shift) {
            for size in (1..10_000).step_by(if cfg!(miri) { 1801 } else { 7 }) {
                let of = shape(size, align).unwrap();
                assert!(of.bytes() >= size);
                assert!(matches!(of, Shape::Run { .. }) || of.bytes().is_multiple_of(align));
                assert_eq!(shape(of.bytes(), align), Some(of), "{size} bytes, aligned to {align}");
            }
        }
        assert_eq!(shape(1, MOST_ALIGNMENT * 2), None);
        let most = shape(isize::MAX as usize, 1).unwrap();
        assert!(most.segment_bytes().is_some_and(|bytes| bytes >= isize::MAX as usize));
    }

    #[test]
    fn what_was_given_back_can_be_taken_whole() {
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
