//! Messages between links. All that comes from another node is hostile: decoded by postcard, copied once, and checked here.
//!
//! ```text
//! Attach ─► Attached       a grant of the other node, for a user of this one
//! Access ─► Done           pieces of what was attached: their bytes follow the message that brings them
//! Crc    ─► Done           of a range, computed there
//! Detach, Ping
//! Channel                  between two clients
//! ```
//!
//! A message is the postcard encoding of [`Message`], and then its bytes.

use memferry::{GrantToken, PeerReason, Rights, ServiceId};
use memferry_bulk::relay::{WORDS, is_name};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of one access at most.
pub const CHUNK_BYTES: u64 = 256 << 10;
/// Bytes of one CRC at most.
pub const CRC_BYTES: u64 = 16 << 20;
/// Pieces of one access at most.
pub const MAX_PIECES: usize = 64;
/// Bytes of a message at most.
pub const MAX_MESSAGE: usize = CHUNK_BYTES as usize + (4 << 10);
/// Accesses and attachments of one side of a link that may be under way at a time.
pub const WINDOW: usize = 32;

/// A message to another link.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// The sender lives and has nothing else to say.
    Ping,
    /// A user of the sender's node takes up a grant of the receiver's, made in the run `service` of its service.
    Attach { id: u32, service: ServiceId, token: GrantToken, user: u32 },
    /// What became of an `Attach`, by its number.
    Attached { id: u32, outcome: Result<Attachment, PeerReason> },
    /// The sender uses an attachment no more.
    Detach { attachment: u32 },
    /// Reads the pieces, offset and length each, or writes them if `write`: then their bytes follow.
    /// Belongs to the transfer `transfer`, a number of the sender's for the administrators of both.
    Access { operation: u32, transfer: u64, attachment: u32, write: bool, pieces: Vec<(u64, u32)> },
    /// Computes the CRC-32C of a range, after bytes that had the CRC `seed`.
    Crc { operation: u32, transfer: u64, attachment: u32, offset: u64, length: u64, seed: u32 },
    /// The answer to `Access` and `Crc`: the CRC, else 0. The bytes that were read follow.
    Done { operation: u32, outcome: Result<u32, PeerReason> },
    /// About the channel with this number, which the side gave it that opened it: the receiver of the message, or its sender.
    Channel { number: u32, of_receiver: bool, step: Step },
}

/// What becomes of a channel between two clients.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Step {
    /// A process of user `from` of the sender's node wants to reach one of user `to` here that listens under this name.
    Open { from: u32, to: u32, name: String, longest: u64 },
    /// One listens and lets it in. It takes messages of so many bytes.
    Accepted { longest: u64 },
    /// A slot of the client's ring. The contents that it names follow.
    Slot([u64; WORDS]),
    /// The client has finished with so many more slots.
    Finished(u32),
    /// The client sends no more, or takes no more.
    Closed { sender: bool, receiver: bool },
    /// There is no such channel, or no more.
    End,
}

/// The place of `Channel` among the messages, with which its encoding begins.
const CHANNEL: u8 = 7;
/// Bytes of the contents of a slot at most.
const SLOT_BYTES: u64 = 128 << 10;

/// A grant that was taken up at its owner's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// Names it on this connection.
    pub number: u32,
    /// Bytes that the grant covers.
    pub length: u64,
    /// What the grant allows.
    pub rights: Rights,
}

/// What another link sent is no message, or breaks a limit. The connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadMessage {
    #[error("it cannot be decoded")]
    Malformed,
    #[error("it has {0} bytes, more than a message can have")]
    TooLong(usize),
    #[error("it names {0} pieces, not 1 to {MAX_PIECES}")]
    Pieces(usize),
    #[error("it names {0} bytes, not up to {CHUNK_BYTES}")]
    Bytes(u64),
    #[error("it brings {got} bytes, not {expected}")]
    Payload { expected: u64, got: u64 },
    #[error("it answers nothing that was asked")]
    Unasked,
    #[error("it names a channel as none is named")]
    Name,
    #[error("it is one more than may be under way")]
    Window,
}

impl Message {
    /// The message, with room for so many bytes behind it.
    pub fn encode(&self, payload: usize) -> Vec<u8> {
        // Serializing our own message into a growing buffer cannot fail.
        let mut bytes = postcard::to_allocvec(self).unwrap_or_default();
        bytes.reserve_exact(payload);
        bytes
    }

    /// Whether the bytes are no more than a sign of life, if they are a message at all.
    pub(crate) fn is_ping(bytes: &[u8]) -> bool {
        bytes == [0]
    }

    /// Whether the bytes are a message about a channel, if they are one at all.
    pub(crate) fn is_of_channel(bytes: &[u8]) -> bool {
        bytes.first() == Some(&CHANNEL)
    }

    /// Decodes a message and returns the bytes behind it. Whether an answer was asked for is not known here.
    ///
    /// # Errors
    /// [`BadMessage`].
    pub fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), BadMessage> {
        if bytes.len() > MAX_MESSAGE {
            return Err(BadMessage::TooLong(bytes.len()));
        }
        let (message, payload): (Self, &[u8]) =
            postcard::take_from_bytes(bytes).map_err(|_| BadMessage::Malformed)?;
        let expected = message.check()?;
        let got = payload.len() as u64;
        // How many bytes were asked for is known to the asker.
        if expected.is_some_and(|expected| expected != got) {
            return Err(BadMessage::Payload { expected: expected.unwrap_or(0), got });
        }
        if matches!(message, Self::Channel { .. }) && got > SLOT_BYTES {
            return Err(BadMessage::Payload { expected: SLOT_BYTES, got });
        }
        Ok((message, payload))
    }

    /// Checks the limits; how many bytes follow, if that is known.
    fn check(&self) -> Result<Option<u64>, BadMessage> {
        match self {
            Self::Access { write, pieces, .. } => {
                if !(1..=MAX_PIECES).contains(&pieces.len()) {
                    return Err(BadMessage::Pieces(pieces.len()));
                }
                let bytes = pieces.iter().map(|(_, length)| u64::from(*length)).sum();
                if bytes > CHUNK_BYTES {
                    return Err(BadMessage::Bytes(bytes));
                }
                Ok(Some(if *write { bytes } else { 0 }))
            }
            Self::Crc { length, .. } if *length > CRC_BYTES => Err(BadMessage::Bytes(*length)),
            Self::Attached { outcome: Ok(attachment), .. }
                if Rights::from_bits(attachment.rights.bits()).is_none() =>
            {
                Err(BadMessage::Malformed)
            }
            Self::Channel { step: Step::Open { name, .. }, .. } if !is_name(name) => Err(BadMessage::Name),
            // The slot says how many bytes belong to it.
            Self::Channel { step: Step::Slot(_), .. } | Self::Done { outcome: Ok(_), .. } => Ok(None),
            _ => Ok(Some(0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn access(write: bool, pieces: Vec<(u64, u32)>) -> Message {
        Message::Access { operation: 1, transfer: u64::MAX, attachment: 2, write, pieces }
    }

    fn channel(step: Step) -> Message {
        Message::Channel { number: 300, of_receiver: true, step }
    }

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let reason = PeerReason::Expired;
        let attachment = Attachment { number: 300, length: 1 << 40, rights: Rights::READ };
        for (message, payload) in [
            (Message::Ping, 0),
            (
                Message::Attach {
                    id: 3,
                    service: ServiceId(u128::MAX),
                    token: GrantToken::from_raw(1 << 32 | 7),
                    user: 1000,
                },
                0,
            ),
            (Message::Attached { id: 3, outcome: Ok(attachment) }, 0),
            (Message::Attached { id: 3, outcome: Err(reason) }, 0),
            (Message::Detach { attachment: 9 }, 0),
            (access(false, vec![(u64::MAX, 5), (0, 0)]), 0),
            (access(true, vec![(7, 5), (1, 2)]), 7),
            (
                Message::Crc {
                    operation: 1,
                    transfer: 9,
                    attachment: 2,
                    offset: 3,
                    length: CRC_BYTES,
                    seed: 4,
                },
                0,
            ),
            (Message::Done { operation: 1, outcome: Ok(77) }, 99),
            (channel(Step::Open { from: 1, to: 2, name: "x".repeat(32), longest: u64::MAX }), 0),
            (channel(Step::Accepted { longest: 9 }), 0),
            (channel(Step::Slot([u64::MAX; WORDS])), SLOT_BYTES as usize),
            (channel(Step::Finished(u32::MAX)), 0),
            (channel(Step::Closed { sender: true, receiver: false }), 0),
            (channel(Step::End), 0),
            (Message::Done { operation: 1, outcome: Err(reason) }, 0),
        ] {
            let mut bytes = message.encode(payload);
            bytes.extend(vec![0xa5; payload]);
            let (decoded, rest) = Message::decode(&bytes).unwrap();
            assert_eq!(Message::is_of_channel(&bytes), matches!(message, Message::Channel { .. }));
            assert_eq!(Message::is_ping(&bytes), message == Message::Ping);
            assert_eq!((decoded, rest.len()), (message, payload));
        }
    }

    #[test]
    fn limits_are_checked() {
        let decode = |message: &Message, payload: usize| {
            let mut bytes = message.encode(payload);
            bytes.extend(vec![0; payload]);
            Message::decode(&bytes).map(drop)
        };
        assert_eq!(decode(&access(false, vec![]), 0), Err(BadMessage::Pieces(0)));
        assert_eq!(decode(&access(false, vec![(0, 1); MAX_PIECES]), 0), Ok(()));
        assert_eq!(decode(&access(false, vec![(0, 1); MAX_PIECES + 1]), 0), Err(BadMessage::Pieces(65)));
        let most = CHUNK_BYTES as u32;
        assert_eq!(decode(&access(false, vec![(0, most)]), 0), Ok(()));
        assert_eq!(
            decode(&access(false, vec![(0, most), (0, 1)]), 0),
            Err(BadMessage::Bytes(CHUNK_BYTES + 1))
        );
        assert_eq!(
            decode(&access(false, vec![(0, u32::MAX); MAX_PIECES]), 0),
            Err(BadMessage::Bytes(64 * u64::from(u32::MAX)))
        );
        let missing = BadMessage::Payload { expected: 5, got: 4 };
        assert_eq!(decode(&access(true, vec![(0, 5)]), 4), Err(missing));
        assert_eq!(decode(&Message::Ping, 1), Err(BadMessage::Payload { expected: 0, got: 1 }));
        let crc = Message::Crc {
            operation: 1,
            transfer: 9,
            attachment: 2,
            offset: 3,
            length: CRC_BYTES + 1,
            seed: 4,
        };
        assert_eq!(decode(&crc, 0), Err(BadMessage::Bytes(CRC_BYTES + 1)));
        let long = decode(&access(true, vec![(0, most)]), MAX_MESSAGE);
        assert!(matches!(long, Err(BadMessage::TooLong(_))));
        for name in ["", "a b", &"x".repeat(33)] {
            let open = Step::Open { from: 1, to: 2, name: name.to_owned(), longest: 9 };
            assert_eq!(decode(&channel(open), 0), Err(BadMessage::Name), "{name}");
        }
        let long = BadMessage::Payload { expected: SLOT_BYTES, got: SLOT_BYTES + 1 };
        assert_eq!(decode(&channel(Step::Slot([0; WORDS])), SLOT_BYTES as usize + 1), Err(long));
        assert_eq!(decode(&channel(Step::End), 1), Err(BadMessage::Payload { expected: 0, got: 1 }));
        let rights = Rights::from_bits_retain(16);
        let outcome = Ok(Attachment { number: 0, length: 1, rights });
        assert_eq!(decode(&Message::Attached { id: 0, outcome }, 0), Err(BadMessage::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((message, payload)) = Message::decode(&bytes) {
                let mut again = message.encode(payload.len());
                again.extend(payload);
                prop_assert_eq!(Message::decode(&again), Ok((message, payload)));
            }
        }
    }
}
