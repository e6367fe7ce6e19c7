//! Answers of one connection: queued in order, and sent with cheap copies.
//!
//! ```text
//! answer, refuse, queue ─► outgoing ─ head ─► a pipe ─ splice ─► socket
//!                                   └ view ─► ring: send      handover ─ splice ─► socket
//! ```
//!
//! Heads go through a pipe, whose pages the socket takes over. The kernel appends what is sent where the last bytes
//! ended, so a copied head of 11 bytes would misalign all file data after it, and processors whose string moves
//! need alignment of both sides would take twice as long. `session` interprets requests.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use memferry_pool::BufferView;
use rustix::io::Errno;

use crate::codec::Reply;
use crate::connection::{Connection, PIECE, Pending, Ticket, Tools};
use crate::handover::Handover;
use crate::outgoing::{Body, Outgoing};
use crate::statistics::Counters;

/// Maximum bytes of answers without file data that are sent together.
const GATHER: usize = 32 << 10;

/// Removes an answered tag and returns the flushes to answer with it, in order: those that waited for it, those that waited for
/// these, and so on.
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
    /// Answers with an error.
    pub(crate) fn refuse(&mut self, tools: &Tools, ticket: Ticket, error: Errno) {
        self.answer(tools, ticket, Reply::Error { code: error.raw_os_error().cast_unsigned() });
    }

    pub(crate) fn answer(&mut self, tools: &Tools, ticket: Ticket, reply: Reply<'_>) {
        if matches!(reply, Reply::Error { .. }) {
            Counters::add(&tools.shared.counters.errors, 1);
        }
        self.queue(ticket, Outgoing { head: reply.encode(ticket.tag), body: Body::Nothing });
    }

    /// Queues an answer, followed by those to the flushes that waited for it.
    pub(crate) fn queue(&mut self, ticket: Ticket, outgoing: Outgoing) {
        if self.closed || ticket.epoch != self.epoch {
            return;
        }
        self.outgoing.push_back(outgoing);
        for tag in settle(&mut self.tags, ticket.tag) {
            self.outgoing.push_back(Outgoing { head: Reply::Flush {}.encode(tag), body: Body::Nothing });
        }
    }

    /// Sends queued answers until a send is in flight.
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

    /// Sends a body, preceded by its head unless a pipe carried that.
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

    /// The first piece of a view; queues the rest.
    fn first_piece(&mut self, view: BufferView) -> io::Result<BufferView> {
        let part = |at, length| view.part(at, length).map_err(io::Error::other);
        let body = Body::View(part(PIECE, view.length() - PIECE)?);
        self.outgoing.push_front(Outgoing { head: Vec::new(), body });
        part(0, PIECE)
    }

    /// The socket is full: queues the rest and waits for room.
    fn wait_for_room(&mut self, tools: &mut Tools, handover: Handover) -> io::Result<()> {
        self.outgoing.push_front(Outgoing { head: Vec::new(), body: Body::Handover(handover) });
        self.sending = true;
        let socket = Arc::clone(&self.socket);
        let ready = libc::POLLOUT as u32;
        self.launch(Pending::Writable, |token| tools.ring.poll(socket, ready, token))
    }

    /// Appends the heads of the next answers to `head`, up to the first with a body.
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

    /// Handles a completed send; unsent bytes are queued first.
    pub(crate) fn send_done(
        &mut self,
        mut head: Vec<u8>,
        view: Option<BufferView>,
        sent: usize,
    ) -> io::Result<()> {
        // A closed connection's queue is not emptied again: the rest would keep its buffer.
        if self.closed {
            return Ok(());
        }
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
    fn chains_of_flushes_are_answered_in_order() {
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
