//! One entry of the table by which workers check plain requests: what a handle gives access to, in one cache line.
//!
//! ```text
//! writer (one at a time)                            readers
//!   publish: fields, then state := generation         state is the handle's generation? fields; state still the same?
//!   kill:    state := 0                               └─ otherwise nothing
//! ```
//!
//! A generation is used once in an entry, so fields read between two equal states belong together. Which memory the fields name and
//! how long it lasts is up to [`capability_view`](crate::capability_view).

use crate::sync::{AtomicU64, Ordering, fence};

/// What an entry says of its handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields {
    /// The session that holds the handle.
    pub session: u64,
    /// Bits of its rights.
    pub rights: u8,
    /// Address of the first byte in this process.
    pub base: u64,
    pub length: u64,
    /// Names the mapping that has these bytes.
    pub memory: u64,
}

/// An entry. All words of a dead one are zero at first; then they keep old values, but for the state.
#[derive(Default)]
#[repr(C, align(64))]
pub struct Entry {
    /// The generation, and the rights above it; 0 while the entry is dead.
    state: AtomicU64,
    session: AtomicU64,
    base: AtomicU64,
    length: AtomicU64,
    memory: AtomicU64,
}

const RIGHTS_SHIFT: u32 = 32;

impl Entry {
    /// Makes a dead entry give access, in a `generation` that it never had.
    pub fn publish(&self, generation: u32, fields: &Fields) {
        // Readers that see a new field see that the state before it is over.
        fence(Ordering::Release);
        self.session.store(fields.session, Ordering::Relaxed);
        self.base.store(fields.base, Ordering::Relaxed);
        self.length.store(fields.length, Ordering::Relaxed);
        self.memory.store(fields.memory, Ordering::Relaxed);
        let state = u64::from(generation) | u64::from(fields.rights) << RIGHTS_SHIFT;
        self.state.store(state, Ordering::Release);
    }

    /// Ends access. Returns what the entry named, if it was not dead.
    ///
    /// Readers that looked earlier may use that until their epochs have ended.
    pub fn kill(&self) -> Option<u64> {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(0, Ordering::Relaxed);
        (state != 0).then(|| self.memory.load(Ordering::Relaxed))
    }

    /// The fields, if the entry has this generation.
    #[inline]
    pub fn read(&self, generation: u32) -> Option<Fields> {
        let state = self.state.load(Ordering::Acquire);
        let fields = Fields {
            session: self.session.load(Ordering::Relaxed),
            rights: (state >> RIGHTS_SHIFT) as u8,
            base: self.base.load(Ordering::Relaxed),
            length: self.length.load(Ordering::Relaxed),
            memory: self.memory.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        let is_whole = self.state.load(Ordering::Relaxed) == state;
        (is_whole && state as u32 == generation && generation != 0).then_some(fields)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_entry_answers_its_generation_only() {
        assert_eq!(size_of::<Entry>(), 64);
        let entry = Entry::default();
        assert_eq!((entry.read(0), entry.read(1), entry.kill()), (None, None, None));
        let fields = Fields { session: 3, rights: 7, base: 4096, length: 10, memory: 99 };
        entry.publish(5, &fields);
        assert_eq!((entry.read(5), entry.read(4), entry.read(0)), (Some(fields), None, None));
        assert_eq!(entry.kill(), Some(99));
        assert_eq!((entry.read(5), entry.kill()), (None, None));
    }
}
