//! What the two ends write for each other: where it lies in their memories, and how a slot is read.
//!
//! ```text
//! memory of one end (it writes, the other maps it read-only)
//!   parked flags ─ wake words ─ slots retired ─ closed flags ─ 64 slots of 8 words ─ area: contents that fit no slot
//! slot ─ decode ─► Slot, every number in it within its bounds, or the Violation
//! ```
//!
//! A slot is a private copy when it is decoded. What a number means for the connection (is there such an import, is this the
//! piece that was to come) is the receiver's to check.

use memferry::{GrantToken, SessionId};
use memferry_shm::frame::FrameRefused;
use memferry_shm::ring::{ImpossibleCount, Slots};
use thiserror::Error;

/// Words between those that change at different times: two cache lines, as in a queue pair.
const LINE: usize = 16;
/// This end's receiver sleeps, or its sender does.
pub(crate) const RECEIVER_PARKED: usize = 0;
pub(crate) const SENDER_PARKED: usize = LINE;
/// Changed for the other end's receiver, or its sender, to wake.
pub(crate) const MESSAGE_WAKE: usize = 2 * LINE;
pub(crate) const ROOM_WAKE: usize = 3 * LINE;
/// Slots of the other end that this end is done with, modulo 2^32.
pub(crate) const RETIRED: usize = 4 * LINE;
/// This end will send nothing more, or take nothing more.
pub(crate) const SENDER_CLOSED: usize = 5 * LINE;
pub(crate) const RECEIVER_CLOSED: usize = 5 * LINE + 1;

/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 8;
/// Slots of one direction.
pub(crate) const SLOTS: u32 = 64;
pub(crate) const RING: Slots = Slots { first_word: 6 * LINE, capacity: SLOTS, short_words: SLOT_WORDS };
/// Where the area begins, and its bytes.
pub(crate) const AREA_AT: u64 = 8192;
pub(crate) const AREA_BYTES: u32 = 1 << 20;
/// Bytes of one end's memory.
pub(crate) const MEMORY_BYTES: u64 = AREA_AT + AREA_BYTES as u64;
/// The longest piece of a message in the area.
pub(crate) const PIECE_BYTES: u32 = 128 << 10;
/// Bytes of a message that go in its slot.
pub(crate) const INLINE_BYTES: usize = 40;
/// Exports of one direction.
pub(crate) const EXPORTS: usize = SLOTS as usize;

/// Of a parked flag: the side sleeps on the futex.
pub(crate) const ASLEEP: u64 = 1;
/// Of a parked flag: it polls its descriptor. The bits above tell one such wish from the next.
pub(crate) const POLLING: u64 = 2;
/// What a wake-up by the socket is for, in the place of an export's number.
pub(crate) const MESSAGE_NEWS: u32 = u32::MAX;
pub(crate) const ROOM_NEWS: u32 = u32::MAX - 1;

/// How the other end broke the protocol.
#[derive(Debug, Error)]
pub enum Violation {
    /// A slot of no known sort.
    #[error("it sent a slot of sort {0}, which there is not")]
    Sort(u8),
    /// A number in a slot is out of its bounds.
    #[error("it sent {what} {value}; the most is {most}")]
    Bounds {
        what: &'static str,
        value: u64,
        /// What it may be.
        most: u64,
    },
    /// A piece that does not go on where the message was.
    #[error("it sent a piece of a message that does not follow the one before")]
    Pieces,
    /// More slots than there are, over some that are still in use.
    #[error("it wrote over slots that are not done with")]
    Overrun,
    /// Something was lent that was not exported.
    #[error("it lent export {0}, which it did not make")]
    NotExported(u32),
    /// An announced descriptor did not come, or not alone.
    #[error("it announced a descriptor and did not send it")]
    NoDescriptor,
    /// The descriptor is no memory that can be mapped safely.
    #[error("it sent a descriptor that is no frame: {0}")]
    Descriptor(#[from] FrameRefused),
    /// The session it says is its own is not, or no more.
    #[error("it says that it is session {session}, which is not process {process}'s")]
    Session {
        session: SessionId,
        /// The process that said it.
        process: u32,
    },
    /// It lent by capability, though its session is not known to this end's service as its own.
    #[error("it lent by capability, which it said that it could not")]
    NoGrants,
    /// It lent what somebody else granted to this client.
    #[error("it lent what session {grantor} granted, and not its own")]
    Grantor { grantor: SessionId },
    /// Its count of slots cannot be.
    #[error(transparent)]
    Count(#[from] ImpossibleCount),
    /// It broke it before.
    #[error("it broke the protocol earlier")]
    Earlier,
}

/// A slot in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Inline {
        kind: u32,
        length: usize,
        bytes: [u8; INLINE_BYTES],
    },
    /// A piece of a message of `total` bytes, at `at` of the area.
    Piece {
        kind: u32,
        first: bool,
        total: u64,
        at: u32,
        length: u32,
    },
    /// Export `index` is what this token grants.
    Grant {
        index: u32,
        token: GrantToken,
    },
    /// Export `index` is the memory of the next descriptor on the socket; it is for one lent only when `once`.
    Descriptor {
        index: u32,
        once: bool,
        length: u64,
    },
    /// A message that is a range of an export.
    Lent {
        kind: u32,
        index: u32,
        offset: u64,
        length: u64,
    },
}

const INLINE: u8 = 1;
const PIECE: u8 = 2;
const GRANT: u8 = 3;
const DESCRIPTOR: u8 = 4;
const LENT: u8 = 5;

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

fn within(what: &'static str, value: u64, most: u64) -> Result<(), Violation> {
    if value <= most { Ok(()) } else { Err(Violation::Bounds { what, value, most }) }
}

impl Slot {
    /// Its words; the low half of the first is the ring's.
    pub(crate) fn encode(&self) -> [u64; SLOT_WORDS] {
        let mut words = [0; SLOT_WORDS];
        let mut head = |sort: u8, bit: bool| words[0] = u64::from(sort) << 32 | u64::from(bit) << 40;
        match *self {
            Self::Inline { kind, length, bytes } => {
                head(INLINE, false);
                words[1] = pair(kind, length as u32);
                for (word, bytes) in words[3..].iter_mut().zip(bytes.as_chunks().0) {
                    *word = u64::from_le_bytes(*bytes);
                }
            }
            Self::Piece { kind, first, total, at, length } => {
                head(PIECE, first);
                (words[1], words[2], words[3]) = (pair(kind, length), total, u64::from(at));
            }
            Self::Grant { index, token } => {
                head(GRANT, false);
                (words[1], words[2]) = (pair(0, index), token.to_raw());
            }
            Self::Descriptor { index, once, length } => {
                head(DESCRIPTOR, once);
                (words[1], words[2]) = (pair(0, index), length);
            }
            Self::Lent { kind, index, offset, length } => {
                head(LENT, false);
                (words[1], words[2], words[3]) = (pair(kind, index), length, offset);
            }
        }
        words
    }

    /// Reads a slot that was copied.
    ///
    /// # Errors
    /// [`Violation`].
    pub(crate) fn decode(words: &[u64; SLOT_WORDS]) -> Result<Self, Violation> {
        let sort = (words[0] >> 32) as u8;
        let bit = words[0] >> 40 & 1 != 0;
        let (kind, second) = halves(words[1]);
        match sort {
            INLINE => {
                within("bytes in a slot", u64::from(second), INLINE_BYTES as u64)?;
                let mut bytes = [0; INLINE_BYTES];
                for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(&words[3..]) {
                    *to = word.to_le_bytes();
                }
                Ok(Self::Inline { kind, length: second as usize, bytes })
            }
            PIECE => {
                let total = words[2];
                let at = words[3];
                if second == 0 {
                    return Err(Violation::Pieces);
                }
                within("bytes of a piece", u64::from(second), total.min(u64::from(PIECE_BYTES)))?;
                within("place in the area", at, u64::from(AREA_BYTES - second))?;
                Ok(Self::Piece { kind, first: bit, total, at: at as u32, length: second })
            }
            GRANT | DESCRIPTOR | LENT => {
                within("export", u64::from(second), EXPORTS as u64 - 1)?;
                Ok(match sort {
                    GRANT => Self::Grant { index: second, token: GrantToken::from_raw(words[2]) },
                    DESCRIPTOR => Self::Descriptor { index: second, once: bit, length: words[2] },
                    _ => Self::Lent { kind, index: second, offset: words[3], length: words[2] },
                })
            }
            sort => Err(Violation::Sort(sort)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slots() -> impl Strategy<Value = Slot> {
        let index = 0..EXPORTS as u32;
        prop_oneof![
            (any::<u32>(), any::<[u8; INLINE_BYTES]>(), 0..=INLINE_BYTES)
                .prop_map(|(kind, bytes, length)| Slot::Inline { kind, length, bytes }),
            (any::<u32>(), any::<bool>(), 1..=PIECE_BYTES, any::<u32>(), any::<u64>()).prop_map(
                |(kind, first, length, at, total)| {
                    let at = at % (AREA_BYTES - length + 1);
                    let total = total.max(u64::from(length));
                    Slot::Piece { kind, first, total, at, length }
                }
            ),
            (index.clone(), any::<u64>())
                .prop_map(|(index, bits)| Slot::Grant { index, token: GrantToken::from_raw(bits) }),
            (index.clone(), any::<bool>(), any::<u64>()).prop_map(|(index, once, length)| Slot::Descriptor {
                index,
                once,
                length
            }),
            (any::<u32>(), index, any::<u64>(), any::<u64>())
                .prop_map(|(kind, index, offset, length)| Slot::Lent { kind, index, offset, length }),
        ]
    }

    proptest! {
        #[test]
        fn a_slot_is_read_as_it_was_written(slot in slots()) {
            prop_assert_eq!(Slot::decode(&slot.encode()).unwrap(), slot);
        }

        #[test]
        fn nonsense_is_refused_or_within_bounds(words: [u64; SLOT_WORDS]) {
            match Slot::decode(&words) {
                Ok(Slot::Inline { length, .. }) => prop_assert!(length <= INLINE_BYTES),
                Ok(Slot::Piece { at, length, total, .. }) => {
                    prop_assert!(at.checked_add(length).is_some_and(|end| end <= AREA_BYTES));
                    prop_assert!(u64::from(length) <= total);
                }
                Ok(Slot::Grant { index, .. } | Slot::Descriptor { index, .. } | Slot::Lent { index, .. }) => {
                    prop_assert!((index as usize) < EXPORTS);
                }
                Err(_) => {}
            }
        }
    }

    #[test]
    fn the_slots_end_before_the_area() {
        assert!((RING.first_word + SLOTS as usize * SLOT_WORDS) * 8 <= AREA_AT as usize);
    }
}
