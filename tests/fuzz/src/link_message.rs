//! Decodes what a hostile peer sends to a link of this node.
//!
//! ```text
//! bytes ──► Message::decode ──► message, payload ──► encode ──► decode    equal, within the limits
//! ```

use memferry_link::message::{CHUNK_BYTES, MAX_PIECES, Message};

/// Input: a message with its payload.
pub fn link_message(data: &[u8]) {
    let Ok((message, payload)) = Message::decode(data) else { return };
    if let Message::Access { write, pieces, .. } = &message {
        let bytes: u64 = pieces.iter().map(|(_, length)| u64::from(*length)).sum();
        assert!((1..=MAX_PIECES).contains(&pieces.len()) && bytes <= CHUNK_BYTES);
        assert_eq!(payload.len() as u64, if *write { bytes } else { 0 });
    }
    let mut again = message.encode(payload.len());
    again.extend_from_slice(payload);
    assert_eq!(Message::decode(&again), Ok((message, payload)));
}
