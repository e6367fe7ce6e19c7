//! The prototype's state machine and data path (TR 182, 4.1, figures 8 and 9).
//!
//! ```text
//! address[22:11] ─┬─► SOURCE, DEST (12 bits) ─► select ─► equal? ─► state machine: S0 S1 S2 S3 S4
//! load or store ──┴────────────────────────────────────────────►      └─► STATUS, start, what to latch
//! ```
//!
//! The text calls the machine four-state and then lists S0 to S4: there are five states. Footnote 9 speaks of the twelve
//! highest of 27 address bits, figure 8 of bits 22 to 11, which are twelve of the lower 23; this model follows the figure. Twelve
//! bits above the eleventh name blocks of 2 KiB within 8 MiB: addresses 8 MiB apart compare as equal. No data moves here.

use super::machine::Word;

/// Read by a load when the sequence is broken.
pub const FAIL: Word = 0x000;
/// Read by the second access of a sequence.
pub const OK1: Word = 0x001;
/// Read by the fourth access.
pub const OK2: Word = 0x002;
/// Read by the fifth access: the transfer starts.
pub const OK3: Word = 0x003;

/// Distance of addresses that compare as equal.
pub const ALIASED_BYTES: u32 = 1 << 23;

/// The compared part of a bus address: bits 22 to 11.
pub const fn compared(address: u32) -> u16 {
    (address >> 11 & 0xfff) as u16
}

/// The states of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    #[default]
    S0,
    /// DEST holds the address of a store.
    S1,
    /// SOURCE holds the address of a load.
    S2,
    /// The destination was repeated.
    S3,
    /// The source was repeated.
    S4,
}

impl At {
    pub const ALL: [Self; 5] = [At::S0, At::S1, At::S2, At::S3, At::S4];
}

/// The register that the data path compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    Destination,
    Source,
}

/// The reaction to one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    pub to: At,
    /// STATUS; driven onto the bus only for a load.
    pub status: Word,
    /// DST_LD: DEST takes the address.
    pub loads_destination: bool,
    /// SRC_LD: SOURCE takes the address.
    pub loads_source: bool,
    pub starts: bool,
}

/// The register compared in a state (DS_SEL).
pub const fn selects(at: At) -> Compared {
    match at {
        At::S3 => Compared::Source,
        _ => Compared::Destination,
    }
}

/// The transition for an access; `equal` if its address matches the selected register.
pub const fn transition(at: At, is_load: bool, equal: bool) -> Transition {
    let reset =
        Transition { to: At::S0, status: FAIL, loads_destination: false, loads_source: false, starts: false };
    match (at, is_load, equal) {
        (At::S0, false, _) => Transition { to: At::S1, loads_destination: true, ..reset },
        (At::S1, true, _) => Transition { to: At::S2, status: OK1, loads_source: true, ..reset },
        (At::S2, false, true) => Transition { to: At::S3, ..reset },
        (At::S3, true, true) => Transition { to: At::S4, status: OK2, ..reset },
        (At::S4, true, true) => Transition { status: OK3, starts: true, ..reset },
        _ => reset,
    }
}

/// The description in section 4.1, sentence by sentence: state, load or store, whether addresses are equal; next state and
/// the word that a load reads.
pub const DESCRIBED: [(At, bool, bool, At, Word); 20] = [
    (At::S0, false, false, At::S1, FAIL),
    (At::S0, false, true, At::S1, FAIL),
    (At::S0, true, false, At::S0, FAIL),
    (At::S0, true, true, At::S0, FAIL),
    (At::S1, false, false, At::S0, FAIL),
    (At::S1, false, true, At::S0, FAIL),
    (At::S1, true, false, At::S2, OK1),
    (At::S1, true, true, At::S2, OK1),
    (At::S2, false, false, At::S0, FAIL),
    (At::S2, false, true, At::S3, FAIL),
    (At::S2, true, false, At::S0, FAIL),
    (At::S2, true, true, At::S0, FAIL),
    (At::S3, false, false, At::S0, FAIL),
    (At::S3, false, true, At::S0, FAIL),
    (At::S3, true, false, At::S0, FAIL),
    (At::S3, true, true, At::S4, OK2),
    (At::S4, false, false, At::S0, FAIL),
    (At::S4, false, true, At::S0, FAIL),
    (At::S4, true, false, At::S0, FAIL),
    (At::S4, true, true, At::S0, OK3),
];

/// The state machine with its two registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DataPath {
    at: At,
    destination: u16,
    source: u16,
}

impl DataPath {
    pub fn at(&self) -> At {
        self.at
    }

    /// DEST, 12 bits.
    pub fn destination(&self) -> u16 {
        self.destination
    }

    /// Applies one transaction with a bus address.
    pub fn transact(&mut self, address: u32, is_load: bool) -> Transition {
        let bits = compared(address);
        let against = match selects(self.at) {
            Compared::Destination => self.destination,
            Compared::Source => self.source,
        };
        let done = transition(self.at, is_load, bits == against);
        if done.loads_destination {
            self.destination = bits;
        }
        if done.loads_source {
            self.source = bits;
        }
        self.at = done.to;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_match_the_text() {
        for (at, is_load, equal, to, status) in DESCRIBED {
            let done = transition(at, is_load, equal);
            assert_eq!((done.to, done.status), (to, status), "{at:?} load {is_load} equal {equal}");
            assert_eq!(done.starts, status == OK3);
            assert_eq!(done.loads_destination, at == At::S0 && !is_load);
            assert_eq!(done.loads_source, at == At::S1 && is_load);
        }
    }

    #[test]
    fn only_the_whole_sequence_starts() {
        let a = 0x2000;
        let b = 0x4000;
        let c = 0x6000;
        let whole = [(b, false), (a, true), (b, false), (a, true), (b, true)];
        let run = |accesses: &[(u32, bool)]| {
            let mut path = DataPath::default();
            accesses.iter().map(|(address, load)| path.transact(*address, *load)).last()
        };
        assert_eq!(run(&whole).map(|done| (done.status, done.starts)), Some((OK3, true)));
        for broken in 2..5 {
            let mut accesses = whole;
            accesses[broken].0 = c;
            assert_eq!(run(&accesses).map(|done| done.starts), Some(false), "access {}", broken + 1);
        }
    }

    #[test]
    fn addresses_8_mib_apart_are_equal() {
        assert_eq!(compared(0x7f_f800), 0xfff);
        assert_eq!(compared(0x0000_07ff), 0, "the low eleven bits are not kept");
        assert_eq!(compared(0x4000), compared(0x4000 + ALIASED_BYTES));
        assert_ne!(compared(0x4000), compared(0x4000 + ALIASED_BYTES / 2));
        let mut path = DataPath::default();
        path.transact(u32::MAX, false);
        assert_eq!((path.destination(), path.at()), (0xfff, At::S1));
    }
}
