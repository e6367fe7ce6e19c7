//! The registration cache of a connection: which memory the other end already has, by export number.
//!
//! ```text
//! find(range, shared) ─ an export that contains the range ─► its number: a hit, no message is sent
//! place(...)          ─ a free number, or the least recently used without a lent frame in use ─► announced to the other end
//! forget(handle)      ─ every export of that frame ─► its tokens, to be revoked
//! ```
//!
//! Grants and mapped memory are separate exports, and a range hits only a previous export: the other end gets no access beyond
//! what the program named. Each direction has as many numbers as slots, so one without a lent frame in use always exists. The
//! sender makes and revokes the grants.

use memferry::{Frame, GrantToken, Handle, Region};

use crate::frames::SharedFrame;
use crate::wire::EXPORTS;

/// How the other end has the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lending {
    Granted(GrantToken),
    Mapped,
}

impl Lending {
    pub(crate) fn grant(self) -> Option<GrantToken> {
        match self {
            Self::Granted(token) => Some(token),
            Self::Mapped => None,
        }
    }
}

pub(crate) struct Export {
    /// Keeps the memory and the meaning of its handle.
    frame: Frame,
    shared: Option<SharedFrame>,
    offset: u64,
    length: u64,
    lending: Lending,
    used: u64,
    /// The last slot that lends a part of the export, counted from the start of the connection.
    busy_until: u64,
}

/// Counts of a sender's export cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportStatistics {
    /// Lends of memory that the other end already had.
    pub hits: u64,
    /// Lends of memory that had to be exported first.
    pub misses: u64,
    /// Exports replaced by others.
    pub evictions: u64,
    pub entries: u64,
}

pub(crate) struct Exports {
    entries: [Option<Export>; EXPORTS],
    lookups: u64,
    counts: ExportStatistics,
}

impl Exports {
    pub(crate) fn empty() -> Self {
        Self { entries: [const { None }; EXPORTS], lookups: 0, counts: ExportStatistics::default() }
    }

    /// The number of an export that contains the range, and the range's offset in it.
    ///
    /// Handles identify frames of one client. Mapped memory may belong to any client and is compared itself.
    pub(crate) fn find(&mut self, range: &Region, shared: Option<&SharedFrame>) -> Option<(u32, u64)> {
        self.lookups += 1;
        let handle = range.frame().handle();
        let end = range.offset().checked_add(range.length())?;
        let (index, export) = self.entries.iter_mut().enumerate().find_map(|(index, entry)| {
            let export = entry.as_mut()?;
            let same = match (&export.shared, shared) {
                (Some(one), Some(other)) => one.is(other),
                (None, None) => export.frame.handle() == handle,
                _ => false,
            };
            let holds = same && export.offset <= range.offset() && end <= export.offset + export.length;
            holds.then_some((index, export))
        })?;
        export.used = self.lookups;
        self.counts.hits += 1;
        Some((index as u32, range.offset() - export.offset))
    }

    /// Adds an export and returns its number and the lending it replaced. Exports used up to slot `retired` are replaceable.
    pub(crate) fn place(
        &mut self,
        range: &Region,
        shared: Option<SharedFrame>,
        lending: Lending,
        retired: u64,
    ) -> Option<(u32, Option<Lending>)> {
        let free = |(_, entry): &(usize, &Option<Export>)| {
            entry.as_ref().is_none_or(|export| export.busy_until <= retired)
        };
        let age = |(_, entry): &(usize, &Option<Export>)| entry.as_ref().map(|export| export.used);
        let (index, _) = self.entries.iter().enumerate().filter(free).min_by_key(age)?;
        let export = Export {
            frame: range.frame().clone(),
            shared,
            offset: range.offset(),
            length: range.length(),
            lending,
            used: self.lookups,
            busy_until: 0,
        };
        self.counts.misses += 1;
        let before = self.entries[index].replace(export).map(|export| export.lending);
        self.counts.evictions += u64::from(before.is_some());
        Some((index as u32, before))
    }

    /// Notes that this slot lends a part of the export.
    pub(crate) fn lent(&mut self, index: u32, slot: u64) {
        if let Some(Some(export)) = self.entries.get_mut(index as usize) {
            export.busy_until = slot;
        }
    }

    /// Removes an export that could not be announced to the other end.
    pub(crate) fn remove(&mut self, index: u32) {
        if let Some(entry) = self.entries.get_mut(index as usize) {
            *entry = None;
        }
    }

    /// Removes every export of a frame, or all of them; returns their lendings.
    pub(crate) fn forget(&mut self, handle: Option<Handle>) -> Vec<Lending> {
        let of = |entry: &Option<Export>| {
            entry.as_ref().is_some_and(|export| handle.is_none_or(|handle| export.frame.handle() == handle))
        };
        let matching = self.entries.iter_mut().filter(|entry| of(entry));
        matching.filter_map(|entry| entry.take().map(|export| export.lending)).collect()
    }

    pub(crate) fn statistics(&self) -> ExportStatistics {
        ExportStatistics { entries: self.entries.iter().flatten().count() as u64, ..self.counts }
    }
}

#[cfg(test)]
mod tests {
    use memferry::Client;

    use super::*;

    #[test]
    fn lookups_hit_and_the_oldest_is_evicted() {
        let client = Client::embedded().unwrap();
        let frame = client.frame(1 << 20).alloc().unwrap();
        let shared = SharedFrame::allocate(&client, 1 << 20).unwrap();
        let mut exports = Exports::empty();
        let token = |index: u64| Lending::Granted(GrantToken::from_raw(index));
        let range = |index: u64| frame.slice(index * 4096..(index + 1) * 4096);
        for index in 0..EXPORTS as u64 {
            let placed = exports.place(&range(index), None, token(index), 0).unwrap();
            assert_eq!(placed, (index as u32, None));
            exports.lent(placed.0, index + 1);
        }
        assert_eq!(exports.find(&frame.slice(4104..4120), None), Some((1, 8)));
        assert_eq!(exports.find(&frame.slice(4096..4112), Some(&shared)), None, "granted, not mapped");
        assert_eq!(exports.find(&frame.slice(4104..8200), None), None, "exceeds the export");
        assert_eq!(exports.find(&frame.slice(u64::MAX - 1..u64::MAX), None), None);
        assert_eq!(exports.place(&range(100), None, token(100), 0), None, "all are in use");
        exports.find(&range(0), None).unwrap();
        // Slots 1 to 3 are retired. Exports 0 and 1 were looked up since; export 2 is the least recently used.
        assert_eq!(exports.find(&range(1), None), Some((1, 0)));
        assert_eq!(exports.place(&range(100), None, token(100), 3), Some((2, Some(token(2)))));
        let expected = ExportStatistics { hits: 3, misses: 65, evictions: 1, entries: 64 };
        assert_eq!(exports.statistics(), expected);
        assert_eq!(exports.forget(Some(frame.handle())).len(), EXPORTS);
        assert_eq!(exports.statistics().entries, 0);
    }
}
