//! The shared memory of a connection: its layout, and the encoding of slots.
//!
//! ```text
//! memory of one end (it writes, the other maps it read-only)
//!   parked flags ─ wake words ─ slots retired ─ closed flags ─ 64 slots of 8 words ─ area: contents too long for a slot
//! slot ─ decode ─► Slot with every number within its bounds, or the Violation
//! ```
//!
//! A slot is copied before it is decoded. The receiver checks what a number means for the connection: whether the import exists,
//! and whether the piece is the next one.

use memferry::{GrantToken, RefusalKind, ServiceId, SessionId};
use memferry_shm::frame::FrameRefused;
use memferry_shm::ring::{ImpossibleCount, Slots};
use thiserror::Error;

/// Distance in words of words that change independently: two cache lines, as in a queue pair.
const LINE: usize = 16;
/// This end's receiver, or its sender, sleeps.
pub(crate) const RECEIVER_PARKED: usize = 0;
pub(crate) const SENDER_PARKED: usize = LINE;
/// Changed to wake the other end's receiver, or its sender.
pub(crate) const MESSAGE_WAKE: usize = 2 * LINE;
pub(crate) const ROOM_WAKE: usize = 3 * LINE;
/// Slots of the other end that this end has finished with, modulo 2^32.
pub(crate) const RETIRED: usize = 4 * LINE;
/// This end sends no more, or receives no more.
pub(crate) const SENDER_CLOSED: usize = 5 * LINE;
pub(crate) const RECEIVER_CLOSED: usize = 5 * LINE + 1;

/// Words of a slot.
pub(crate) const SLOT_WORDS: usize = 8;
/// Slots of one direction.
pub(crate) const SLOTS: u32 = 64;
pub(crate) const RING: Slots = Slots { first_word: 6 * LINE, capacity: SLOTS };
/// Byte offset of the area, and its bytes.
pub(crate) const AREA_AT: u64 = 8192;
pub(crate) const AREA_BYTES: u32 = 1 << 20;
/// Bytes of one end's memory.
pub(crate) const MEMORY_BYTES: u64 = AREA_AT + AREA_BYTES as u64;
/// Bytes of the longest piece in the area.
pub(crate) const PIECE_BYTES: u32 = 128 << 10;
/// Bytes of the longest message that fits its slot.
pub(crate) const INLINE_BYTES: usize = 40;
/// Exports of one direction.
pub(crate) const EXPORTS: usize = SLOTS as usize;

/// Parked flag: the side sleeps on the futex.
pub(crate) const ASLEEP: u64 = 1;
/// Parked flag: the side polls its descriptor. The bits above count the requests.
pub(crate) const POLLING: u64 = 2;
/// The reason of a wake-up over the socket, sent instead of an export number.
pub(crate) const MESSAGE_NEWS: u32 = u32::MAX;
pub(crate) const ROOM_NEWS: u32 = u32::MAX - 1;

/// How the other end broke the protocol.
#[derive(Debug, Error)]
pub enum Violation {
    /// A slot of unknown type.
    #[error("it sent a slot of unknown type {0}")]
    Sort(u8),
    /// A number in a slot exceeds its bound.
    #[error("it sent {value} as the {what}; the maximum is {most}")]
    Bounds {
        what: &'static str,
        value: u64,
        /// The largest valid value.
        most: u64,
    },
    /// A piece that does not continue its message.
    #[error("it sent a piece of a message that does not follow the one before")]
    Pieces,
    /// A slot was overwritten while in use.
    #[error("it overwrote slots that are still in use")]
    Overrun,
    /// A lent range of an export that was not made.
    #[error("it lent export {0}, which it did not make")]
    NotExported(u32),
    /// An announced descriptor is missing, or came with others.
    #[error("it announced a descriptor and did not send it")]
    NoDescriptor,
    /// The descriptor is not memory that can be mapped safely.
    #[error("it sent a descriptor that is not a frame: {0}")]
    Descriptor(#[from] FrameRefused),
    /// The session it claims belongs to another process or has ended.
    #[error("it claims session {session}, which does not belong to process {process}")]
    Session {
        session: SessionId,
        /// The process that claims it.
        process: u32,
    },
    /// It lent a granted range, although its session is not known to this end's service.
    #[error("it lent a granted range although it has no session with this end's service")]
    NoGrants,
    /// It lent a range that another client granted.
    #[error("it lent a grant of session {grantor} instead of its own")]
    Grantor { grantor: SessionId },
    /// It sent what cannot reach another node: a descriptor, or a grant to a session of this one.
    #[error("it lent memory in a way that does not reach another node")]
    NotRemote,
    /// Its memory failed while a message was read.
    #[error("its memory failed while a message was read")]
    Memory,
    /// An impossible count of retired slots.
    #[error(transparent)]
    Count(#[from] ImpossibleCount),
    /// The connection was broken by an earlier violation.
    #[error("it broke the protocol earlier")]
    Earlier,
}

/// A slot with its numbers decoded; the words are in [`Slot::encode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Inline {
        kind: u32,
        length: usize,
        bytes: [u8; INLINE_BYTES],
    },
    /// A piece of a message of `total` bytes, at byte `at` of the area.
    Piece {
        kind: u32,
        first: bool,
        total: u64,
        at: u32,
        length: u32,
    },
    /// Export `index` is the range of this grant.
    Grant {
        index: u32,
        token: GrantToken,
    },
    /// Export `index` is the memory of the next descriptor on the socket. With `once` it is for one message.
    Descriptor {
        index: u32,
        once: bool,
        length: u64,
    },
    /// A message that lends a range of an export.
    Lent {
        kind: u32,
        index: u32,
        offset: u64,
        length: u64,
    },
    /// Export `index` is a grant of another node, made in this run of its service, of so many bytes. If the link of that node could not
    /// check it, for another reason than that it does not exist, it is withheld for that reason.
    Remote {
        index: u32,
        token: GrantToken,
        length: u64,
        service: ServiceId,
        withheld: Option<RefusalKind>,
    },
}

const INLINE: u8 = 1;
const PIECE: u8 = 2;
const GRANT: u8 = 3;
const DESCRIPTOR: u8 = 4;
const LENT: u8 = 5;
const REMOTE: u8 = 6;

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
    /// The slot's words. The low half of the first belongs to the ring.
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
            Self::Remote { index, token, length, service, withheld } => {
                head(REMOTE, false);
                let reason = withheld.map_or(0, |kind| kind as u32 + 1);
                (words[1], words[2], words[3]) = (pair(reason, index), token.to_raw(), length);
                (words[4], words[5]) = (service.0 as u64, (service.0 >> 64) as u64);
            }
        }
        words
    }

    /// Decodes a slot that was copied.
    ///
    /// # Errors
    /// [`Violation`].
    pub(crate) fn decode(words: &[u64; SLOT_WORDS]) -> Result<Self, Violation> {
        let sort = (words[0] >> 32) as u8;
        let bit = words[0] >> 40 & 1 != 0;
        let (kind, second) = halves(words[1]);
        match sort {
            INLINE => {
                within("length of an inline message", u64::from(second), INLINE_BYTES as u64)?;
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
                within("length of a piece", u64::from(second), total.min(u64::from(PIECE_BYTES)))?;
                within("offset in the area", at, u64::from(AREA_BYTES - second))?;
                Ok(Self::Piece { kind, first: bit, total, at: at as u32, length: second })
            }
            GRANT | DESCRIPTOR | LENT | REMOTE => {
                within("export number", u64::from(second), EXPORTS as u64 - 1)?;
                if sort == REMOTE {
                    within("reason why a grant is withheld", u64::from(kind), RefusalKind::ALL.len() as u64)?;
                }
                Ok(match sort {
                    GRANT => Self::Grant { index: second, token: GrantToken::from_raw(words[2]) },
                    DESCRIPTOR => Self::Descriptor { index: second, once: bit, length: words[2] },
                    REMOTE => Self::Remote {
                        index: second,
                        token: GrantToken::from_raw(words[2]),
                        length: words[3],
                        service: ServiceId(u128::from(words[4]) | u128::from(words[5]) << 64),
                        withheld: kind
                            .checked_sub(1)
                            .and_then(|kind| RefusalKind::ALL.get(kind as usize).copied()),
                    },
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
            (any::<u32>(), index.clone(), any::<u64>(), any::<u64>())
                .prop_map(|(kind, index, offset, length)| Slot::Lent { kind, index, offset, length }),
            (index, any::<u64>(), any::<u64>(), any::<u128>(), 0..=RefusalKind::ALL.len()).prop_map(
                |(index, bits, length, service, reason)| {
                    let token = GrantToken::from_raw(bits);
                    let withheld = RefusalKind::ALL.into_iter().cycle().nth(reason);
                    let withheld = withheld.filter(|_| reason < RefusalKind::ALL.len());
                    Slot::Remote { index, token, length, service: ServiceId(service), withheld }
                }
            ),
        ]
    }

    proptest! {
        #[test]
        fn slots_round_trip(slot in slots()) {
            prop_assert_eq!(Slot::decode(&slot.encode()).unwrap(), slot);
        }

        #[test]
        fn random_slots_fail_or_are_within_bounds(words: [u64; SLOT_WORDS]) {
            match Slot::decode(&words) {
                Ok(Slot::Inline { length, .. }) => prop_assert!(length <= INLINE_BYTES),
                Ok(Slot::Piece { at, length, total, .. }) => {
                    prop_assert!(at.checked_add(length).is_some_and(|end| end <= AREA_BYTES));
                    prop_assert!(u64::from(length) <= total);
                }
                Ok(
                    Slot::Grant { index, .. }
                    | Slot::Descriptor { index, .. }
                    | Slot::Lent { index, .. }
                    | Slot::Remote { index, .. },
                ) => {
                    prop_assert!((index as usize) < EXPORTS);
                }
                Err(_) => {}
            }
        }
    }

    /// The table in docs/protocol.md.
    #[test]
    fn grants_of_other_nodes_have_these_words() {
        let token = GrantToken::from_raw(0x1122_3344_5566_7788);
        let service = ServiceId(0xaaaa << 64 | 0xbbbb);
        let slot = |withheld| Slot::Remote { index: 9, token, length: 4096, service, withheld };
        let words =
            |reason: u64| [6 << 32, 9 << 32 | reason, 0x1122_3344_5566_7788, 4096, 0xbbbb, 0xaaaa, 0, 0];
        assert_eq!(slot(None).encode(), words(0));
        for (reason, kind) in [
            (1, RefusalKind::Frame),
            (2, RefusalKind::Capability),
            (3, RefusalKind::Quota),
            (4, RefusalKind::Argument),
            (5, RefusalKind::Stopping),
            (6, RefusalKind::System),
        ] {
            assert_eq!(slot(Some(kind)).encode(), words(reason));
            assert_eq!(Slot::decode(&words(reason)).unwrap(), slot(Some(kind)));
        }
        let unknown = Slot::decode(&words(7));
        assert!(matches!(unknown, Err(Violation::Bounds { value: 7, most: 6, .. })), "{unknown:?}");
    }

    #[test]
    fn the_slots_end_before_the_area() {
        assert!((RING.first_word + SLOTS as usize * SLOT_WORDS) * 8 <= AREA_AT as usize);
    }
}
