//! The bookkeeping of pending copies: which bytes have to be moved, from where, and in which order. It handles numbers only.
//!
//! ```text
//! insert(to, from) ─ resolve: where are these bytes now? ─► pieces, by destination; they never overlap
//! step(goal), next ─ a piece that nothing holds back ─► Move ─ the caller moves it ─► settle
//! ```
//!
//! Memory has the contents that it would have if each copy were made at its call. The content of a byte in the destination of
//! a piece is the byte at the piece's source; any other byte is its own content. So a copy from the destination of a piece reads
//! from the piece's source instead (it is *absorbed*), and a copy to the destination of a piece replaces that part of the piece.
//! When a piece is inserted, its source is therefore no destination of an earlier piece. Three ordering rules remain:
//!
//! * Bytes are overwritten only after every piece that reads them was moved. These readers were inserted earlier.
//! * A piece is moved only after every later absorbed piece that reads the same source. So when a destination is in place, the
//!   program may write the source: no copy that was absorbed through the destination still needs it.
//! * During a move, nothing writes its source, and nothing else touches its destination.
//!
//! Pieces never wait in a circle. Writers of a byte wait for its readers, which were inserted earlier, or belong to the same
//! call and all lie on one side (so a copy over itself moves as memmove does). Of two readers of a byte, the later one does not
//! wait for the earlier one. A copy that would break this is refused with an [`Obstacle`]: the caller settles other copies and
//! tries again.
//!
//! This module does not move bytes, wait, or know what addresses mean. Addresses must be below 2^63.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Requested parts are widened to multiples of this, so that byte-by-byte requests do not cause byte-by-byte moves.
const GRANULE: u64 = if cfg!(test) { 4 } else { 4096 };
/// Maximum number of candidates examined for a move. The oldest piece is always among them, and only moves in progress can hold
/// it back.
const CANDIDATES: usize = 16;

/// The rules that keep the copies in order. For each rule, a test shows that breaking it gives wrong results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Bytes are overwritten after the pieces that read them were moved.
    ReadersFirst,
    /// An absorbed piece is moved before the piece it was absorbed through.
    AbsorbedFirst,
    /// A copy from the destination of a piece reads from the piece's source.
    Absorb,
    /// A copy is not absorbed if the source will be overwritten.
    SourceStays,
    /// A later copy replaces earlier pieces in its destination.
    LaterWins,
    /// Nothing else uses the bytes of a move in progress.
    MovesAlone,
    /// A piece that is cut keeps the parts on both sides.
    BothEnds,
    /// Bytes of a move in progress are not in place.
    AwaitMoves,
    /// Bytes may be written by the program after their readers were moved.
    WriteAwaitsReaders,
}

/// Bytes of one copy that were not moved yet.
#[derive(Clone, Copy, Debug)]
struct Piece {
    from: u64,
    length: u64,
    /// Number of the call that it belongs to, in the order of the calls.
    call: u64,
    /// The source was replaced by that of an earlier piece.
    absorbed: bool,
    /// A later piece was absorbed through this one, so its bytes may never be needed: it is moved last.
    deferred: bool,
}

impl Piece {
    fn source(&self) -> Range<u64> {
        self.from..self.from + self.length
    }

    /// The part of `length` bytes after the first `skipped` bytes.
    fn part(self, skipped: u64, length: u64) -> Self {
        Self { from: self.from + skipped, length, ..self }
    }
}

/// A move in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    /// Identifies the move for [`Pending::settle`].
    pub(super) number: u64,
    pub(super) to: u64,
    pub(super) from: u64,
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

/// Why a copy cannot be inserted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// These bytes have to be in place first.
    Unsettled(Range<u64>),
    /// Source and destination overlap and are so close that only few bytes could be moved at a time. The caller has to settle
    /// both and copy at once.
    Overlap,
}

/// The state of bytes that a caller needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Goal {
    /// The bytes are in place.
    Read(Range<u64>),
    /// The bytes are in place, and no copy reads them.
    Write(Range<u64>),
    /// No copy reads or writes the bytes. Pieces with these destinations are dropped.
    Free(Range<u64>),
    /// All bytes are in place.
    All,
}

/// What to do next to reach a goal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The goal is reached.
    Done,
    /// Move these bytes, then settle the move.
    Move(Move),
    /// Wait until another move is settled.
    Wait,
}

/// A contiguous part of a copy's source after absorption.
struct Segment {
    /// The address that the copy named.
    named: u64,
    /// The address to read from.
    from: u64,
    length: u64,
    absorbed: bool,
}

/// The pending pieces and the moves in progress.
#[derive(Debug)]
pub(super) struct Pending {
    /// The pieces by destination.
    pieces: BTreeMap<u64, Piece>,
    /// Source and destination of each piece.
    readers: BTreeSet<(u64, u64)>,
    /// Upper bound of the pieces' lengths: how far before a byte its readers may begin.
    longest: u64,
    /// The order of moves that nobody waits for: (deferred, call, destination). Deferred pieces come last.
    due: BTreeSet<(bool, u64, u64)>,
    moving: Vec<Move>,
    max_pieces: usize,
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

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    common(one, other).is_some()
}

impl Pending {
    /// An empty set for about `max_pieces` pieces.
    pub(super) fn new(max_pieces: usize) -> Self {
        Self {
            pieces: BTreeMap::new(),
            readers: BTreeSet::new(),
            longest: 0,
            due: BTreeSet::new(),
            moving: Vec::new(),
            max_pieces,
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

    /// Whether there are no pieces and no moves in progress.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.moving.is_empty()
    }

    /// Number of bytes that need not be moved, because they were replaced or freed.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Pieces whose destinations overlap `bytes`.
    fn written_in(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let bytes = bytes.clone();
        let before = self.pieces.range(..bytes.start).next_back();
        let first = before.filter(|(to, piece)| **to + piece.length > bytes.start);
        let rest = self.pieces.range(bytes.start..bytes.end.max(bytes.start));
        first.into_iter().chain(rest).map(|(to, piece)| (*to, *piece))
    }

    /// Pieces whose sources overlap `bytes`.
    fn read_in(&self, bytes: &Range<u64>) -> impl Iterator<Item = (u64, Piece)> + use<'_> {
        let bytes = bytes.clone();
        let first = bytes.start.saturating_sub(self.longest);
        let found = self.readers.range((first, 0)..(bytes.end, 0));
        let pieces = found.filter_map(|(_, to)| self.pieces.get(to).map(|piece| (*to, *piece)));
        pieces.filter(move |(_, piece)| overlap(&piece.source(), &bytes))
    }

    fn add(&mut self, to: u64, piece: Piece) {
        self.pieces.insert(to, piece);
        self.readers.insert((piece.from, to));
        self.due.insert((piece.deferred, piece.call, to));
        self.longest = self.longest.max(piece.length);
    }

    fn remove(&mut self, to: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&to)?;
        self.readers.remove(&(piece.from, to));
        self.due.remove(&(piece.deferred, piece.call, to));
        if self.pieces.is_empty() {
            self.longest = 0;
        }
        Some(piece)
    }

    /// Cuts `bytes` out of the piece with destination `to`. Returns the part that was cut out, if they overlap.
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

    /// Drops the pieces, or parts of pieces, whose destination is in `bytes`.
    fn drop_into(&mut self, bytes: &Range<u64>) {
        let found: Vec<u64> = self.written_in(bytes).map(|(to, _)| to).collect();
        for to in found {
            if let Some((_, piece)) = self.cut(to, bytes) {
                self.dropped += piece.length;
            }
        }
    }

    /// The addresses that now hold the contents of a source.
    fn resolve(&self, bytes: &Range<u64>) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut at = bytes.start;
        let direct = |at: u64, end: u64| Segment { named: at, from: at, length: end - at, absorbed: false };
        for (to, piece) in self.written_in(bytes).filter(|_| self.keeps(Rule::Absorb)) {
            let start = to.max(bytes.start);
            let end = (to + piece.length).min(bytes.end);
            if at < start {
                segments.push(direct(at, start));
            }
            let from = piece.from + (start - to);
            segments.push(Segment { named: start, from, length: end - start, absorbed: true });
            at = end;
        }
        if at < bytes.end {
            segments.push(direct(at, bytes.end));
        }
        segments
    }

    /// Inserts a copy as the latest.
    ///
    /// # Errors
    /// [`Obstacle`]; then nothing has changed.
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
        let place = |segment: &Segment| to + (segment.named - from);
        for segment in segments.iter().filter(|segment| segment.absorbed && self.keeps(Rule::SourceStays)) {
            let source = segment.from..segment.from + segment.length;
            let over_itself = segment.from != place(segment) && overlap(&source, &into);
            if over_itself || self.written_in(&source).next().is_some() {
                return Err(Obstacle::Unsettled(segment.named..segment.named + segment.length));
            }
        }
        if self.pieces.len() + segments.len() > self.max_pieces
            && let Some((_, _, oldest)) = self.due.first()
            && let Some(piece) = self.pieces.get(oldest)
        {
            return Err(Obstacle::Unsettled(*oldest..*oldest + piece.length));
        }
        let through: Vec<u64> = self.written_in(&out).map(|(to, _)| to).collect();
        for piece in through {
            self.defer(piece);
        }
        if self.keeps(Rule::LaterWins) {
            self.drop_into(&into);
        }
        self.calls += 1;
        for segment in segments.iter().filter(|segment| segment.from != place(segment)) {
            let Segment { from, length, absorbed, .. } = *segment;
            self.add(place(segment), Piece { from, length, call: self.calls, absorbed, deferred: false });
        }
        Ok(())
    }

    fn defer(&mut self, to: u64) {
        if let Some(piece) = self.remove(to) {
            self.add(to, Piece { deferred: true, ..piece });
        }
    }

    /// Whether the caller may copy at once, without an insertion. If so, drops the pieces that it overwrites.
    pub(super) fn admit_immediate(&mut self, to: u64, from: u64, length: u64) -> bool {
        let into = to..to + length;
        let out = from..from + length;
        let readers = self.keeps(Rule::ReadersFirst) && self.read_in(&into).next().is_some();
        let blocked = readers || self.written_in(&out).next().is_some() || self.conflicts(&into, &out);
        if !blocked {
            self.drop_into(&into);
        }
        !blocked
    }

    /// Starts the move of a copy that [`admit_immediate`](Self::admit_immediate) allowed.
    pub(super) fn begin(&mut self, to: u64, from: u64, length: u64) -> Move {
        self.calls += 1;
        self.start(to, Piece { from, length, call: self.calls, absorbed: false, deferred: false })
    }

    fn start(&mut self, to: u64, piece: Piece) -> Move {
        self.moves += 1;
        let Piece { from, length, call, absorbed, .. } = piece;
        let started = Move { number: self.moves, to, from, length, call, absorbed };
        self.moving.push(started);
        started
    }

    /// Whether a move from `out` to `into` conflicts with a move in progress.
    fn conflicts(&self, into: &Range<u64>, out: &Range<u64>) -> bool {
        let conflicts = |other: &Move| {
            overlap(&other.target(), into) || overlap(&other.target(), out) || overlap(&other.source(), into)
        };
        self.keeps(Rule::MovesAlone) && self.moving.iter().any(conflicts)
    }

    /// The destination of a part that has to be moved before a piece of `call` copies `out` to `into`.
    fn blocker(&self, into: &Range<u64>, out: &Range<u64>, call: u64) -> Option<Range<u64>> {
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

    /// Starts to move some bytes of `part`, or of the pieces that it waits for. `part` lies in one piece. `None` if moves in
    /// progress block them.
    fn advance(&mut self, part: Range<u64>, limit: u64) -> Option<Move> {
        let mut part = part;
        let mut rounds = 0_u32;
        loop {
            rounds += 1;
            debug_assert!(rounds < 1 << 20, "pieces wait for one another in a circle");
            part.end = part.end.min(part.start + limit);
            let (to, piece) = self.written_in(&part).next()?;
            let source = |part: &Range<u64>| {
                let from = piece.from + (part.start - to);
                from..from + (part.end - part.start)
            };
            let out = source(&part);
            if let Some(first) = self.blocker(&part, &out, piece.call) {
                part = first;
                continue;
            }
            let free = |part: &Range<u64>, out: &Range<u64>| {
                let is_unrelated = |other: &Move| {
                    !(other.absorbed && other.call > piece.call && overlap(&other.source(), out))
                };
                let absorbed_done = !self.keeps(Rule::AbsorbedFirst) || self.moving.iter().all(is_unrelated);
                absorbed_done && !self.conflicts(part, out)
            };
            if !free(&part, &out) {
                return None;
            }
            let start = (part.start / GRANULE * GRANULE).max(to);
            let end = part.end.next_multiple_of(GRANULE).min(to + piece.length).min(start + limit);
            let wide = start..end.max(part.end);
            let wide_out = source(&wide);
            if self.blocker(&wide, &wide_out, piece.call).is_none() && free(&wide, &wide_out) {
                part = wide;
            }
            let (to, piece) = self.cut(to, &part)?;
            return Some(self.start(to, piece));
        }
    }

    /// Advances the first of these parts that can be advanced.
    fn advance_any(&mut self, parts: Vec<Range<u64>>, limit: u64) -> Step {
        let started = parts.into_iter().find_map(|part| self.advance(part, limit));
        started.map_or(Step::Wait, Step::Move)
    }

    /// The next step towards a goal. A move has at most `limit` bytes.
    pub(super) fn step(&mut self, goal: &Goal, limit: u64) -> Step {
        match goal {
            Goal::Read(bytes) => self.step_to_read(bytes, limit),
            Goal::Write(bytes) => self.step_to_write(bytes, limit),
            Goal::Free(bytes) => {
                self.drop_into(bytes);
                self.step_to_write(bytes, limit)
            }
            Goal::All if self.is_empty() => Step::Done,
            Goal::All => self.next(limit).map_or(Step::Wait, Step::Move),
        }
    }

    fn step_to_read(&mut self, bytes: &Range<u64>, limit: u64) -> Step {
        let part = |(to, piece): (u64, Piece)| common(&(to..to + piece.length), bytes);
        let parts: Vec<_> = self.written_in(bytes).filter_map(part).take(CANDIDATES).collect();
        if !parts.is_empty() {
            return self.advance_any(parts, limit);
        }
        let in_progress = self.moving.iter().any(|other| overlap(&other.target(), bytes));
        if in_progress && self.keeps(Rule::AwaitMoves) { Step::Wait } else { Step::Done }
    }

    fn step_to_write(&mut self, bytes: &Range<u64>, limit: u64) -> Step {
        if self.keeps(Rule::WriteAwaitsReaders) {
            let part = |(to, piece): (u64, Piece)| {
                let read = common(&piece.source(), bytes)?;
                Some(to + (read.start - piece.from)..to + (read.end - piece.from))
            };
            let parts: Vec<_> = self.read_in(bytes).filter_map(part).take(CANDIDATES).collect();
            if !parts.is_empty() {
                return self.advance_any(parts, limit);
            }
            if self.moving.iter().any(|other| overlap(&other.source(), bytes)) {
                return Step::Wait;
            }
        }
        self.step_to_read(bytes, limit)
    }

    /// Starts the next move that no caller waits for. A move has at most `limit` bytes.
    pub(super) fn next(&mut self, limit: u64) -> Option<Move> {
        let part = |(_, _, to): &(bool, u64, u64)| self.pieces.get(to).map(|piece| *to..*to + piece.length);
        let parts: Vec<_> = self.due.iter().filter_map(part).take(CANDIDATES).collect();
        parts.into_iter().find_map(|part| self.advance(part, limit))
    }

    /// Records that a move is complete.
    pub(super) fn settle(&mut self, number: u64) {
        self.moving.retain(|other| other.number != number);
    }
}

#[cfg(test)]
mod tests;
