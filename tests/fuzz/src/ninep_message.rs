//! Decodes 9P messages from a hostile client or server.
//!
//! ```text
//! size kind tag body ──► Header, Request, Reply, WriteHead, Entry    decoded messages encode to the same bytes
//! ```
//!
//! The requests are not executed.

use memferry_ninep::codec::{Entry, HEADER, Header, Reply, Request, TWRITE, WRITE_HEAD, WriteHead};

/// Input: one message; its size field may be wrong.
pub fn ninep_message(data: &[u8]) {
    let Some(header) = Header::of(data) else { return };
    let body = &data[HEADER..];
    if let Ok(request) = Request::decode(header.kind, body) {
        let again = request.encode(header.tag);
        assert_eq!(again[4..], data[4..]);
        assert_eq!(Header::of(&again).map(|header| header.size as usize), Some(again.len()));
    }
    if let Ok(reply) = Reply::decode(header.kind, body) {
        assert_eq!(reply.encode(header.tag)[4..], data[4..]);
    }
    if header.kind == TWRITE
        && let Some(start) = data.get(HEADER..WRITE_HEAD)
        && let Ok(head) = WriteHead::decode(start, header.size)
    {
        assert_eq!(WRITE_HEAD + head.count as usize, header.size as usize);
    }
    if let Ok(entries) = Entry::all(body) {
        let mut again = Vec::new();
        entries.iter().for_each(|entry| entry.put(&mut again));
        assert_eq!(again, body);
    }
}
