//! Which bytes are still to be moved, from where, and in which order they may be: numbers only, no memory.
//!
//! ```text
//! insert(to, from) ─ resolve: where are these bytes now? ─► pieces, by destination; they never overlap
//! step(goal), next ─ a piece that nothing holds back ─► Move ─ somebody moves it ─► settle
//! ```
//!
//! What memory means is what it would hold had each copy been made at its call: a byte that a piece covers is the one at the
//! piece's source, any other is itself. A copy of bytes that are to come themselves is therefore made from where they are
//! now (it is *absorbed*), and a copy over bytes that are to come takes their place. So no source is an earlier copy's
//! destination when it comes in, and the rules of who is held back by whom are few:
//!
//! * Bytes are not overwritten before every piece that reads them was moved. Such readers came earlier.
//! * Bytes are not moved before every later piece that was absorbed and reads the same source. So when a destination is in
//!   place, its source is the program's again: nothing that went through the destination needs it any more.
//! * While a move is under way nobody writes its source, and nobody else touches its destination.
//!
//! Nothing waits in a circle: those that write a byte wait for all that read it, which came earlier, or with the same call
//! and lie on one side of it (so a copy over itself is moved as memmove would); and among those that read a byte the later
//! ones do not wait for the earlier ones. What would break this is refused ([`Obstacle`]): the caller settles something and
//! tries again.
//!
//! Nothing here moves bytes, waits, or knows what addresses stand for; they have to be below 2^63.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Parts that are asked for are widened to multiples of this, so that who asks byte by byte does not move byte by byte.
const GRANULE: u64 = if cfg!(test) { 4 } else { 4096 };
/// Pieces [`Pending::next`] looks at: the oldest is held back only by what is under way.
const LOOKS: usize = 16;

/// What holds the order together. Tests break each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Who reads bytes is moved before they are overwritten.
    ReadersFirst,
    /// What was absorbed is moved before what it went through.
    AbsorbedFirst,
    /// A copy of bytes that are to come is made from where they are.
    Absorb,
    /// A source that is about to be overwritten is not absorbed.
    SourceStays,
    /// A later copy takes the place of what was to come.
    LaterWins,
    /// A move under way has its bytes for itself.
    MovesAlone,
    /// A piece that is cut keeps both ends.
    BothEnds,
    /// Bytes that are being moved are not in place.
    AwaitMoves,
    /// Who is about to write waits for those that read.
    WriteAwaitsReaders,
}

/// Bytes of one copy that were not moved yet.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: u64,
    length: u64,
    /// The call it belongs to: later ones have more.
    call: u64,
    /// It is read from elsewhere than was said.
    absorbed: bool,
    /// Somebody was absorbed through it, so it may never be asked for.
    last: bool,
}

impl Piece {
    fn source(&self) -> Range<u64> {
        self.from..self.from + self.length
    }

    /// Its part of `length` bytes after `skipped` ones.
    fn part(self, skipped: u64, length: u64) -> Self {
        Self { from: self.from + skipped, length, ..self }
    }
}

/// Bytes that somebody is moving.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    /// Names it.
    pub(super) number: u64,
    /// Where the bytes go.
    pub(super) to: u64,
    /// Where they are.
    pub(super) from: u64,
    /// How many there are.
    pub(super) length: u64,
    call: u64,
    absorbed: bool,
}

impl Move {
    fn target(&self) -> Range<u64> {
        self.to..self.to + self.length
    }

    fn source(&self) -> Range<u64> {
        self.from..self.from + self.length
    }
}

/// Why a copy was not taken in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// These bytes have to be in place first.
    Unsettled(Range<u64>),
    /// Source and destination lie so near each other that few bytes could be moved at a time: both have to be settled,
    /// and the copy made at once.
    Overlap,
}

/// What somebody waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// The bytes are in place.
    Read(Range<u64>),
    /// They are, and nobody reads them any more.
    Write(Range<u64>),
    /// Nobody reads or writes them any more; what was to come there is dropped.
    Free(Range<u64>),
    /// Everything is in place.
    All,
}

/// What brings a goal nearer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It is reached.
    Done,
    /// This has to be moved.
    Move(Move),
    /// Somebody has to settle a move.
    Wait,
}

/// A part of a source, as far as it is one run of bytes.
struct Segment {
    said: u64,
    from: u64,
    length: u64,
    absorbed: bool,
}

/// What is to be moved, and what is being moved.
#[derive(Debug)]
pub(super) struct Pending {
    pieces: BTreeMap<u64, Piece>,
    /// Source and destination of each piece.
    readers: BTreeSet<(u64, u64)>,
    /// No piece is longer: how far before a byte those may begin that read it.
    longest: u64,
    /// Who is next: the last ones behind all others, then by call. With the destination.
    due: BTreeSet<(bool, u64, u64)>,
    moving: Vec<Move>,
    most: usize,
    calls: u64,
    moves: u64,
    dropped: u64,
    #[cfg(test)]
    pub(super) broken: Option<Rule>,
}

fn common(one: &Range<u64>, other: &Range<u64>) -> Option<Range<u64>> {
    let both = one.start.max(other.start)..one.end.min(other.end);
    (both.start < both.end).then_some(both)
}

fn meet(one: &Range<u64>, other: &Range<u64>) -> bool {
    common(one, other).is_some()
}

impl Pending {
    /// Nothing, with room for about `most` pieces.
    pub(super) fn new(most: usize) -> Self {
        Self {
            pieces: BTreeMap::new(),
            readers: BTreeSet::new(),
            longest: 0,
            due: BTreeSet::new(),
            moving: Vec::new(),
            most,
            calls: 0,
            moves: 0,
            dropped: 0,
            #[cfg(test)]
            broken: None,
        }
    }

    #[cfg(test)]
    fn keeps(&self, rule: Rule) -> bool {
        self.broken != Some(rule)
    }

    #[cfg(not(test))]
    fn keeps(&self, _: Rule) -> bool {
        true
    }

    /// Whether nothing is to be moved or being moved.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.moving.is_empty()
    }

    /// Bytes that never have to be moved, so far: others took their place, or they were given up.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Pieces whose destinations meet `bytes`.
    fn written_in(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let bytes = bytes.clone();
        let before = self.pieces.range(..bytes.start).next_back();
        let first = before.filter(|(to, piece)| **to + piece.length > bytes.start);
        let rest = self.pieces.range(bytes.start..bytes.end.max(bytes.start));
        first.into_iter().chain(rest).map(|(to, piece)| (*to, *piece))
    }

    /// Pieces whose sources meet `bytes`.
    fn read_in(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let bytes = bytes.clone();
        let first = bytes.start.saturating_sub(self.longest);
        let found = self.readers.range((first, 0)..(bytes.end, 0));
        let pieces = found.filter_map(|(_, to)| self.pieces.get(to).map(|piece| (*to, *piece)));
        pieces.filter(move |(_, piece)| meet(&piece.source(), &bytes))
    }

    fn add(&mut self, to: u64, piece: Piece) {
        self.pieces.insert(to, piece);
        self.readers.insert((piece.from, to));
        self.due.insert((piece.last, piece.call, to));
        self.longest = self.longest.max(piece.length);
    }

    fn remove(&mut self, to: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&to)?;
        self.readers.remove(&(piece.from, to));
        self.due.remove(&(piece.last, piece.call, to));
        if self.pieces.is_empty() {
            self.longest = 0;
        }
        Some(piece)
    }

    /// Cuts `bytes` out of the piece that begins at `to` and covers some of them; gives what was cut out.
    fn cut(&mut self, to: u64, bytes: &Range<u64>) -> Option<(u64, Piece)> {
        let piece = self.remove(to)?;
        let all = to..to + piece.length;
        let Some(inside) = common(&all, bytes) else {
            self.add(to, piece);
            return None;
        };
        if all.start < inside.start {
            self.add(all.start, piece.part(0, inside.start - all.start));
        }
        if inside.end < all.end && self.keeps(Rule::BothEnds) {
            self.add(inside.end, piece.part(inside.end - to, all.end - inside.end));
        }
        Some((inside.start, piece.part(inside.start - to, inside.end - inside.start)))
    }

    /// Forgets what was to come to `bytes`.
    fn drop_into(&mut self, bytes: &Range<u64>) {
        let found: Vec<u64> = self.written_in(bytes).map(|(to, _)| to).collect();
        for to in found {
            if let Some((_, piece)) = self.cut(to, bytes) {
                self.dropped += piece.length;
            }
        }
    }

    /// Where the bytes of a source are now.
    fn resolve(&self, bytes: &Range<u64>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut at = bytes.start;
        let itself = |at: u64, end: u64| Segment { said: at, from: at, length: end - at, absorbed: false };
        for (to, piece) in self.written_in(bytes).filter(|_| self.keeps(Rule::Absorb)) {
            let start = to.max(bytes.start);
            let end = (to + piece.length).min(bytes.end);
            if at < start {
                segments.push(itself(at, start));
            }
            let from = piece.from + (start - to);
            segments.push(Segment { said: start, from, length: end - start, absorbed: true });
            at = end;
        }
        if at < bytes.end {
            segments.push(itself(at, bytes.end));
        }
        segments
    }

    /// Takes a copy in, as the latest.
    ///
    /// # Errors
    /// [`Obstacle`]; nothing was changed.
    pub(super) fn insert(&mut self, to: u64, from: u64, length: u64) -> Result<(), Obstacle> {
        if length == 0 || to == from {
            return Ok(());
        }
        let into = to..to + length;
        let out = from..from + length;
        if to.abs_diff(from) < length.min(GRANULE) {
            return Err(Obstacle::Overlap);
        }
        let segments = self.resolve(&out);
        let place = |segment: &Segment| to + (segment.said - from);
        for segment in segments.iter().filter(|segment| segment.absorbed && self.keeps(Rule::SourceStays)) {
            let source = segment.from..segment.from + segment.length;
            let over_itself = segment.from != place(segment) && meet(&source, &into);
            if over_itself || self.written_in(&source).next().is_some() {
                return Err(Obstacle::Unsettled(segment.said..segment.said + segment.length));
            }
        }
        if self.pieces.len() + segments.len() > self.most
            && let Some((_, _, oldest)) = self.due.first()
            && let Some(piece) = self.pieces.get(oldest)
        {
            return Err(Obstacle::Unsettled(*oldest..*oldest + piece.length));
        }
        let through: Vec<u64> = self.written_in(&out).map(|(to, _)| to).collect();
        for piece in through {
            self.put_last(piece);
        }
        if self.keeps(Rule::LaterWins) {
            self.drop_into(&into);
        }
        self.calls += 1;
        for segment in segments.iter().filter(|segment| segment.from != place(segment)) {
            let Segment { from, length, absorbed, .. } = *segment;
            self.add(place(segment), Piece { from, length, call: self.calls, absorbed, last: false });
        }
        Ok(())
    }

    fn put_last(&mut self, to: u64) {
        if let Some(piece) = self.remove(to) {
            self.add(to, Piece { last: true, ..piece });
        }
    }

    /// Whether a copy may be made by the caller before it does anything else. What was to come to its destination is then
    /// dropped.
    pub(super) fn at_once(&mut self, to: u64, from: u64, length: u64) -> bool {
        let into = to..to + length;
        let out = from..from + length;
        let readers = self.keeps(Rule::ReadersFirst) && self.read_in(&into).next().is_some();
        let held = readers || self.written_in(&out).next().is_some() || self.disturbs(&into, &out);
        if !held {
            self.drop_into(&into);
        }
        !held
    }

    /// A move that the caller makes though nothing was taken in, after [`at_once`](Self::at_once) allowed it.
    pub(super) fn begin(&mut self, to: u64, from: u64, length: u64) -> Move {
        self.calls += 1;
        self.start(to, Piece { from, length, call: self.calls, absorbed: false, last: false })
    }

    fn start(&mut self, to: u64, piece: Piece) -> Move {
        self.moves += 1;
        let Piece { from, length, call, absorbed, .. } = piece;
        let begun = Move { number: self.moves, to, from, length, call, absorbed };
        self.moving.push(begun);
        begun
    }

    /// Whether moving bytes so would disturb a move under way, or be disturbed.
    fn disturbs(&self, into: &Range<u64>, out: &Range<u64>) -> bool {
        let disturbs = |other: &Move| {
            meet(&other.target(), into) || meet(&other.target(), out) || meet(&other.source(), into)
        };
        self.keeps(Rule::MovesAlone) && self.moving.iter().any(disturbs)
    }

    /// A part of some piece that has to be moved before `into` is filled from `out` by a piece of `call`.
    fn before(&self, into: &Range<u64>, out: &Range<u64>, call: u64) -> Option<Range<u64>> {
        let part = |(to, piece): (u64, Piece), read: &Range<u64>| {
            let bytes = common(&piece.source(), read)?;
            Some(to + (bytes.start - piece.from)..to + (bytes.end - piece.from))
        };
        let reads = self.read_in(into).find(|_| self.keeps(Rule::ReadersFirst));
        if let Some(reader) = reads {
            return part(reader, into);
        }
        let mut later = self.read_in(out).filter(|(_, piece)| piece.absorbed && piece.call > call);
        later.find(|_| self.keeps(Rule::AbsorbedFirst)).and_then(|reader| part(reader, out))
    }

    /// Begins to move some of `part`, or of what holds it back; `part` lies in one piece. `None` while moves are in the way.
    fn advance(&mut self, part: Range<u64>, most: u64) -> Option<Move> {
        let mut part = part;
        let mut turns = 0_u32;
        loop {
            turns += 1;
            debug_assert!(turns < 1 << 20, "pieces wait for one another in a circle");
            part.end = part.end.min(part.start + most);
            let (to, piece) = self.written_in(&part).next()?;
            let source = |part: &Range<u64>| {
                let from = piece.from + (part.start - to);
                from..from + (part.end - part.start)
            };
            let out = source(&part);
            if let Some(first) = self.before(&part, &out, piece.call) {
                part = first;
                continue;
            }
            let free = |part: &Range<u64>, out: &Range<u64>| {
                let alone =
                    |other: &Move| !(other.absorbed && other.call > piece.call && meet(&other.source(), out));
                let unhurried = !self.keeps(Rule::AbsorbedFirst) || self.moving.iter().all(alone);
                unhurried && !self.disturbs(part, out)
            };
            if !free(&part, &out) {
                return None;
            }
            let start = (part.start / GRANULE * GRANULE).max(to);
            let end = part.end.next_multiple_of(GRANULE).min(to + piece.length).min(start + most);
            let wide = start..end.max(part.end);
            let wide_out = source(&wide);
            if self.before(&wide, &wide_out, piece.call).is_none() && free(&wide, &wide_out) {
                part = wide;
            }
            let (to, piece) = self.cut(to, &part)?;
            return Some(self.start(to, piece));
        }
    }

    /// The first of these parts that can be advanced.
    fn first_of(&mut self, parts: Vec<Range<u64>>, most: u64) -> Step {
        let moved = parts.into_iter().find_map(|part| self.advance(part, most));
        moved.map_or(Step::Wait, Step::Move)
    }

    /// What to do next for a goal, at most `most` bytes at a time.
    pub(super) fn step(&mut self, goal: &Goal, most: u64) -> Step {
        match goal {
            Goal::Read(bytes) => self.step_to_read(bytes, most),
            Goal::Write(bytes) => self.step_to_write(bytes, most),
            Goal::Free(bytes) => {
                self.drop_into(bytes);
                self.step_to_write(bytes, most)
            }
            Goal::All if self.is_empty() => Step::Done,
            Goal::All => self.next(most).map_or(Step::Wait, Step::Move),
        }
    }

    fn step_to_read(&mut self, bytes: &Range<u64>, most: u64) -> Step {
        let part = |(to, piece): (u64, Piece)| common(&(to..to + piece.length), bytes);
        let parts: Vec<_> = self.written_in(bytes).filter_map(part).take(LOOKS).collect();
        if !parts.is_empty() {
            return self.first_of(parts, most);
        }
        let coming = self.moving.iter().any(|other| meet(&other.target(), bytes));
        if coming && self.keeps(Rule::AwaitMoves) { Step::Wait } else { Step::Done }
    }

    fn step_to_write(&mut self, bytes: &Range<u64>, most: u64) -> Step {
        if self.keeps(Rule::WriteAwaitsReaders) {
            let part = |(to, piece): (u64, Piece)| {
                let read = common(&piece.source(), bytes)?;
                Some(to + (read.start - piece.from)..to + (read.end - piece.from))
            };
            let parts: Vec<_> = self.read_in(bytes).filter_map(part).take(LOOKS).collect();
            if !parts.is_empty() {
                return self.first_of(parts, most);
            }
            if self.moving.iter().any(|other| meet(&other.source(), bytes)) {
                return Step::Wait;
            }
        }
        self.step_to_read(bytes, most)
    }

    /// What to do next when nobody asks for anything.
    pub(super) fn next(&mut self, most: u64) -> Option<Move> {
        let part = |(_, _, to): &(bool, u64, u64)| self.pieces.get(to).map(|piece| *to..*to + piece.length);
        let parts: Vec<_> = self.due.iter().filter_map(part).take(LOOKS).collect();
        parts.into_iter().find_map(|part| self.advance(part, most))
    }

    /// A move is done.
    pub(super) fn settle(&mut self, number: u64) {
        self.moving.retain(|other| other.number != number);
    }
}

#[cfg(test)]
mod tests;
