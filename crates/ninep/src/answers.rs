//! Answers of one connection: queued in order, and sent so that they are copied cheaply.
//!
//! ```text
//! answer, refuse, queue ─► outgoing ─ head ─► a pipe ─ splice ─► socket
//!                                   └ view ─► ring: send      handover ─ splice ─► socket
//! ```
//!
//! Heads go through a pipe, whose pages the socket takes over, since the kernel copies what is sent to wherever the last bytes
//! ended: after a head of 11 bytes all of a file's bytes would lie askew from where they came, and processors whose string moves
//! want both aligned take twice as long over them. What requests mean is `session`'s.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use memferry_pool::BufferView;
use rustix::io::Errno;

use crate::codec::Reply;
use crate::connection::{Connection, PIECE, Pending, Ticket, Tools};
use crate::handover::Handover;
use crate::statistics::Counters;

/// Answers without a file's bytes that are sent together, in bytes.
const GATHER: usize = 32 << 10;

pub(crate) struct Outgoing {
    pub(crate) head: Vec<u8>,
    pub(crate) body: Body,
}

/// What follows an answer's head.
pub(crate) enum Body {
    Nothing,
    View(BufferView),
    Handover(Handover),
}

/// Takes a tag that is answered out of those that were not, and gives the flushes that are to be answered then, in order: those
/// that waited for it, those that waited for these, and so on, for as many as a client has.
fn settle(tags: &mut BTreeMap<u16, Vec<u16>>, tag: u16) -> Vec<u16> {
    let mut flushes = tags.remove(&tag).unwrap_or_default();
    let mut answered = 0;
    while let Some(tag) = flushes.get(answered) {
        flushes.extend(tags.remove(tag).unwrap_or_default());
        answered += 1;
    }
    flushes
}

impl Connection {
    /// Answers by an error.
    pub(crate) fn refuse(&mut self, tools: &Tools, ticket: Ticket, error: Errno) {
        self.answer(tools, ticket, Reply::Error { code: error.raw_os_error().cast_unsigned() });
    }

    pub(crate) fn answer(&mut self, tools: &Tools, ticket: Ticket, reply: Reply<'_>) {
        if matches!(reply, Reply::Error { .. }) {
            Counters::add(&tools.shared.counters.errors, 1);
        }
        self.queue(ticket, Outgoing { head: reply.encode(ticket.tag), body: Body::Nothing });
    }

    /// Puts an answer among those that are sent, with those to the flushes that waited for it.
    pub(crate) fn queue(&mut self, ticket: Ticket, outgoing: Outgoing) {
        if self.closed || ticket.epoch != self.epoch {
            return;
        }
        self.outgoing.push_back(outgoing);
        for tag in settle(&mut self.tags, ticket.tag) {
            self.outgoing.push_back(Outgoing { head: Reply::Flush {}.encode(tag), body: Body::Nothing });
        }
    }

    /// Sends the next answers, unless some are under way.
    pub(crate) fn send(&mut self, tools: &mut Tools) -> io::Result<()> {
        while !self.sending && !self.closed {
            let Some(Outgoing { mut head, mut body }) = self.outgoing.pop_front() else { return Ok(()) };
            if matches!(body, Body::Nothing)
                && let Some(view) = self.gather(&mut head)
            {
                body = Body::View(view);
            }
            self.progress = Instant::now();
            let more = !matches!(body, Body::Nothing);
            if let Some(mut carrier) = tools.pipes.carry(&head) {
                head.clear();
                if !carrier.give(&self.socket, more)? {
                    self.outgoing.push_front(Outgoing { head, body });
                    self.wait_for_room(tools, carrier)?;
                    continue;
                }
            }
            self.send_body(tools, head, body)?;
        }
        Ok(())
    }

    /// Sends what follows a head, with the head where that could not be carried.
    fn send_body(&mut self, tools: &mut Tools, head: Vec<u8>, body: Body) -> io::Result<()> {
        let view = match body {
            Body::Handover(handover) if !head.is_empty() => {
                let body = Body::Handover(handover);
                self.outgoing.push_front(Outgoing { head: Vec::new(), body });
                None
            }
            Body::Handover(mut handover) => {
                if !handover.give(&self.socket, false)? {
                    self.wait_for_room(tools, handover)?;
                }
                return Ok(());
            }
            Body::Nothing if head.is_empty() => return Ok(()),
            Body::Nothing => None,
            Body::View(view) if view.length() > PIECE => Some(self.first_piece(view)?),
            Body::View(view) => Some(view),
        };
        self.sending = true;
        let socket = Arc::clone(&self.socket);
        self.launch(Pending::Send, |token| tools.ring.send(socket, head, view, token))
    }

    /// The first piece of a view; the rest is sent next.
    fn first_piece(&mut self, view: BufferView) -> io::Result<BufferView> {
        let part = |at, length| view.part(at, length).map_err(io::Error::other);
        let body = Body::View(part(PIECE, view.length() - PIECE)?);
        self.outgoing.push_front(Outgoing { head: Vec::new(), body });
        part(0, PIECE)
    }

    /// The socket is full: the rest is given when it has room again.
    fn wait_for_room(&mut self, tools: &mut Tools, handover: Handover) -> io::Result<()> {
        self.outgoing.push_front(Outgoing { head: Vec::new(), body: Body::Handover(handover) });
        self.sending = true;
        let socket = Arc::clone(&self.socket);
        let ready = libc::POLLOUT as u32;
        self.launch(Pending::Writable, |token| tools.ring.poll(socket, ready, token))
    }

    /// Adds the answers after one without a body to it, up to the first with a body.
    fn gather(&mut self, head: &mut Vec<u8>) -> Option<BufferView> {
        while head.len() < GATHER {
            match self.outgoing.pop_front()? {
                Outgoing { head: next, body: Body::Nothing } => head.extend(next),
                Outgoing { head: next, body: Body::View(view) } => {
                    head.extend(next);
                    return Some(view);
                }
                handed_over => {
                    self.outgoing.push_front(handed_over);
                    return None;
                }
            }
        }
        None
    }

    /// A send has ended; what it left goes first.
    pub(crate) fn sent(
        &mut self,
        mut head: Vec<u8>,
        view: Option<BufferView>,
        sent: usize,
    ) -> io::Result<()> {
        self.progress = Instant::now();
        let of_view = sent.saturating_sub(head.len());
        head.drain(..sent.min(head.len()));
        let view = view.filter(|view| of_view < view.length());
        let body = match view {
            Some(view) => Body::View(view.part(of_view, view.length() - of_view).map_err(io::Error::other)?),
            None if head.is_empty() => return Ok(()),
            None => Body::Nothing,
        };
        self.outgoing.push_front(Outgoing { head, body });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_of_flushes_are_answered_after_what_they_flush_however_many() {
        let mut tags = BTreeMap::from([
            (1, vec![2, 3]),
            (2, vec![4]),
            (3, vec![]),
            (4, vec![5]),
            (5, vec![]),
            (9, vec![]),
        ]);
        assert_eq!(settle(&mut tags, 1), [2, 3, 4, 5]);
        assert_eq!(tags, BTreeMap::from([(9, vec![])]));
        assert!(settle(&mut tags, 9).is_empty() && settle(&mut tags, 9).is_empty());
        let mut row: BTreeMap<u16, Vec<u16>> = (0..u16::MAX).map(|tag| (tag, vec![tag + 1])).collect();
        let short = std::thread::Builder::new().stack_size(64 << 10);
        let settled = short.spawn(move || settle(&mut row, 0)).unwrap().join().unwrap();
        assert!(settled.into_iter().eq(1..=u16::MAX));
    }
}
