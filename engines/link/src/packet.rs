//! What is sent and what came: one buffer for the key, the message and its bytes, so that bytes are copied into it once and sent from it.
//!
//! ```text
//! Packet::new(pool, message, length) ─ payload_mut ─► with_key: UCX        message: the encrypted connection
//!     ▲ Buffer, from the pool if it is long                                       │
//!     └─────────────────────── dropped, by any thread, it returns ◄───────────────┘
//! ```
//!
//! Fresh memory costs more than a copy, for its pages fault and are cleared. So long buffers are kept, with whatever bytes they had: who takes
//! one fills all of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::message::{MAX_MESSAGE, Message};

/// Bytes of the key before each message over UCX.
pub(crate) const KEY_BYTES: usize = 16;
/// Bytes of a long buffer: any message fits.
const LONG_BYTES: usize = KEY_BYTES + MAX_MESSAGE;
/// Shorter ones are not kept: at least half of a long buffer is used.
const SHORT_BYTES: usize = LONG_BYTES / 2;
/// Long buffers that are kept while nobody uses them: those of a window of both sides.
const KEPT: usize = 64;

/// Long buffers that nobody uses. Clones share them.
#[derive(Clone, Default, Debug)]
pub(crate) struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

impl Pool {
    fn kept(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of so many bytes, which are zeros or those of an earlier one.
    pub(crate) fn take(&self, length: usize) -> Buffer {
        if length <= SHORT_BYTES || length > LONG_BYTES {
            return Buffer::fresh(length);
        }
        let storage = self.kept().pop().unwrap_or_else(|| vec![0; LONG_BYTES]);
        Buffer { storage, length, pool: Some(self.clone()) }
    }
}

/// Bytes. The storage of a long buffer goes back to its pool.
#[derive(Debug)]
pub(crate) struct Buffer {
    storage: Vec<u8>,
    length: usize,
    pool: Option<Pool>,
}

impl Buffer {
    /// A buffer of no pool.
    fn fresh(length: usize) -> Self {
        Self { storage: vec![0; length], length, pool: None }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.storage[..self.length]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.storage[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(pool) = &self.pool else { return };
        let mut kept = pool.kept();
        if kept.len() < KEPT {
            kept.push(std::mem::take(&mut self.storage));
        }
    }
}

/// A message with its bytes, and room for the key before it.
#[derive(Debug)]
pub(crate) struct Packet {
    buffer: Buffer,
    /// Where the bytes begin.
    payload: usize,
}

impl Packet {
    /// The message, with room for so many bytes behind it: the caller writes all of them.
    pub(crate) fn new(pool: &Pool, message: &Message, length: usize) -> Self {
        Self::within(message, length, |length| pool.take(length))
    }

    /// The message, with so few bytes that its buffer is not worth keeping.
    pub(crate) fn with(message: &Message, bytes: &[u8]) -> Self {
        let mut packet = Self::within(message, bytes.len(), Buffer::fresh);
        packet.payload_mut().copy_from_slice(bytes);
        packet
    }

    /// A message without bytes.
    pub(crate) fn short(message: &Message) -> Self {
        Self::with(message, &[])
    }

    fn within(message: &Message, length: usize, take: impl FnOnce(usize) -> Buffer) -> Self {
        let encoded = message.encode(0);
        let payload = KEY_BYTES + encoded.len();
        let mut buffer = take(payload + length);
        buffer.bytes_mut()[KEY_BYTES..payload].copy_from_slice(&encoded);
        Self { buffer, payload }
    }

    /// The bytes behind the message.
    pub(crate) fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.bytes_mut()[self.payload..]
    }

    /// Number of the bytes behind the message.
    pub(crate) fn payload_length(&self) -> usize {
        self.buffer.length - self.payload
    }

    /// The message and its bytes, without the key.
    pub(crate) fn message(&self) -> &[u8] {
        &self.buffer.bytes()[KEY_BYTES..]
    }

    /// What goes over UCX.
    pub(crate) fn with_key(mut self, key: u128) -> Buffer {
        self.buffer.bytes_mut()[..KEY_BYTES].copy_from_slice(&key.to_le_bytes());
        self.buffer
    }

    /// Memory that it takes.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.storage.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::CHUNK_BYTES;

    #[test]
    fn a_packet_is_its_key_its_message_and_its_bytes() {
        let pool = Pool::default();
        let message = Message::Done { operation: 7, outcome: Ok(0) };
        for length in [0, 5, CHUNK_BYTES as usize] {
            let mut packet = Packet::new(&pool, &message, length);
            packet.payload_mut().fill(0xa5);
            assert_eq!(packet.payload_length(), length);
            let (decoded, payload) = Message::decode(packet.message()).unwrap();
            assert_eq!(decoded, message);
            assert!(payload.len() == length && payload.iter().all(|byte| *byte == 0xa5));
            let expected = packet.message().to_vec();
            let buffer = packet.with_key(9);
            assert_eq!(buffer.bytes()[..KEY_BYTES], 9u128.to_le_bytes());
            assert_eq!(buffer.bytes()[KEY_BYTES..], expected);
        }
    }

    #[test]
    fn long_buffers_are_used_again_and_not_without_bound() {
        let pool = Pool::default();
        let first = pool.take(LONG_BYTES);
        let address = first.bytes().as_ptr();
        drop(first);
        let again = pool.take(SHORT_BYTES + 1);
        assert_eq!((again.bytes().as_ptr(), again.bytes().len()), (address, SHORT_BYTES + 1));
        let many: Vec<_> = (0..2 * KEPT).map(|_| pool.take(LONG_BYTES)).collect();
        drop((again, many));
        assert_eq!(pool.kept().len(), KEPT);
        // One that is short, or longer than any message, is not of the pool, and counts as what it takes.
        drop((pool.take(SHORT_BYTES), pool.take(LONG_BYTES + 1)));
        assert_eq!(pool.kept().len(), KEPT);
        assert_eq!(Packet::new(&pool, &Message::Ping, 1).memory(), KEY_BYTES + 2);
        assert_eq!(Packet::with(&Message::Ping, b"abc").message(), [0, b'a', b'b', b'c']);
        assert_eq!(Packet::new(&pool, &Message::Ping, SHORT_BYTES).memory(), LONG_BYTES);
    }
}
