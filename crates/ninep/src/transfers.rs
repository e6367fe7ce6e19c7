//! File data: reads and writes of one connection, by each file's way of being served.
//!
//! ```text
//! read ─ way? ─┬ cached ─ in the page cache? ─ yes ─► handover                                  ─► answer
//!              │                             └ no ──┐
//!              ├ copying ──────────────────────────┴► a buffer ─ READ ──────────────────────────► answer
//!              └ pool ─ read ahead? ─ yes ─► its view ─────────────────────────────────────────► answer
//!                     │                     └ no ──► a buffer ─ READ_FIXED, O_DIRECT ───────────► answer
//!                     └ sequential? ─► the next blocks ─ READ_FIXED ─► kept for the next reads
//! write ─► the buffer that holds its data ─ WRITE_FIXED, O_DIRECT if aligned ─► answer
//! ```
//!
//! Without a free buffer a request waits, in order with others of its thread; blocks are not read ahead then.
//! An answer holds bytes read after the request arrived, or a block read ahead that is still valid (`open_file`).

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use memferry_pool::Buffer;
use rustix::io::Errno;

use crate::codec::{Reply, WriteHead, read_head};
use crate::connection::{Connection, MAX_HANDOVERS, Pending, Starved, Ticket, Tools, errno};
use crate::open_file::{Found, OpenFile, Span};
use crate::outgoing::{Body, Outgoing};
use crate::session::Target;
use crate::statistics::{Counters, Way};

impl Connection {
    /// Answers a read with bytes of a file.
    pub(crate) fn read(
        &mut self,
        tools: &mut Tools,
        ticket: Ticket,
        file: Rc<OpenFile>,
        (offset, count): (u64, usize),
    ) -> io::Result<()> {
        let shared = Arc::clone(&tools.shared);
        let (way, why) = file.way(shared.options.engine, (offset, count), shared.options.large_bytes);
        if let Some(why) = why {
            shared.counters.file(way, why);
        }
        if way == Way::Cached && self.hand_over(tools, ticket, &file, (offset, count)) {
            return Ok(());
        }
        let sequential = way == Way::Pool && file.sequential(offset, count);
        self.reread(tools, ticket, Rc::clone(&file), (offset, count))?;
        if sequential { self.read_ahead(tools, &file, offset.saturating_add(count as u64)) } else { Ok(()) }
    }

    fn hand_over(
        &mut self,
        tools: &Tools,
        ticket: Ticket,
        file: &OpenFile,
        (offset, count): (u64, usize),
    ) -> bool {
        let handovers = self.outgoing.iter().filter(|outgoing| matches!(outgoing.body, Body::Handover(_)));
        if handovers.count() >= MAX_HANDOVERS {
            return false;
        }
        let Some(handover) = tools.pipes.take(file, offset, count) else { return false };
        let bytes = handover.left();
        tools.shared.counters.read(Way::Cached, bytes);
        let head = read_head(ticket.tag, bytes as u32);
        self.queue(ticket, Outgoing { head, body: Body::Handover(handover) });
        true
    }

    /// Reads from a block read ahead, or from the file.
    pub(crate) fn reread(
        &mut self,
        tools: &mut Tools,
        ticket: Ticket,
        file: Rc<OpenFile>,
        (offset, count): (u64, usize),
    ) -> io::Result<()> {
        if self.is_closed() {
            return Ok(());
        }
        let shared = Arc::clone(&tools.shared);
        let way = file.way(shared.options.engine, (offset, count), shared.options.large_bytes).0;
        if way == Way::Pool {
            let writes = shared.writes(file.id).load(Ordering::Acquire);
            let (found, stale) = file.find(offset, count, writes);
            Counters::add(&shared.counters.ahead_stale, u64::from(stale));
            match found {
                Found::Bytes(view) => {
                    Counters::add(&shared.counters.ahead_used, 1);
                    let bytes = view.as_ref().map_or(0, |view| view.length());
                    shared.counters.read(way, bytes);
                    let body = view.map_or(Body::Nothing, Body::View);
                    self.queue(ticket, Outgoing { head: read_head(ticket.tag, bytes as u32), body });
                    return Ok(());
                }
                Found::Coming(block) if self.wait_for_ahead(&file, block, (ticket, offset, count)) => {
                    return Ok(());
                }
                _ => {}
            }
        }
        let buffer = if self.may_take(&tools.shared) { tools.buffer().transpose() } else { None };
        match buffer {
            Some(buffer) => self.read_into(tools, ticket, &file, (offset, count), buffer),
            None => {
                self.starve(tools, Starved::Read { ticket, file, offset, count });
                Ok(())
            }
        }
    }

    /// Reads from a file into the buffer; refuses the request if there is none.
    pub(crate) fn read_into(
        &mut self,
        tools: &mut Tools,
        ticket: Ticket,
        file: &OpenFile,
        (offset, count): (u64, usize),
        buffer: Result<Buffer, Errno>,
    ) -> io::Result<()> {
        let options = &tools.shared.options;
        let way = file.way(options.engine, (offset, count), options.large_bytes).0;
        let prepared = buffer.and_then(|buffer| {
            let (span, from) = file.span(way, offset, count).ok_or(Errno::INVAL)?;
            Ok((span, from, buffer))
        });
        let (span, from, buffer) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.refuse(tools, ticket, error);
                return Ok(());
            }
        };
        self.launch(Pending::Read { ticket, span, way }, |token| {
            tools.ring.read_file(from, buffer, (0, span.length), span.start, token)
        })
    }

    fn read_ahead(&mut self, tools: &mut Tools, file: &Rc<OpenFile>, end: u64) -> io::Result<()> {
        for _ in 0..file.wanted_ahead() {
            let Some(buffer) = tools.shared.spare_buffer() else { return Ok(()) };
            let writes = tools.shared.writes(file.id).load(Ordering::Acquire);
            let Some((id, span, from)) = file.next_ahead(end, tools.shared.options.block_bytes, writes)
            else {
                return Ok(());
            };
            Counters::add(&tools.shared.counters.ahead, 1);
            self.watch_aheads(file);
            self.launch(Pending::Ahead { file: Rc::clone(file), id, waiting: Vec::new() }, |token| {
                tools.ring.read_file(from, buffer, (0, span.length), span.start, token)
            })?;
        }
        Ok(())
    }

    /// Handles a completed read.
    pub(crate) fn read_done(
        &mut self,
        tools: &Tools,
        ticket: Ticket,
        (span, way): (Span, Way),
        result: io::Result<u32>,
        buffer: Buffer,
    ) {
        let read = match result {
            Ok(read) => read as usize,
            Err(error) => return self.refuse(tools, ticket, errno(&error)),
        };
        let (at, count) = span.within(read);
        tools.shared.counters.read(way, count);
        let view = if count > 0 { buffer.share(at, count).ok() } else { None };
        let body = view.map_or(Body::Nothing, Body::View);
        self.queue(ticket, Outgoing { head: read_head(ticket.tag, count as u32), body });
    }

    /// Writes the data in a buffer.
    pub(crate) fn write(
        &mut self,
        tools: &mut Tools,
        ticket: Ticket,
        head: WriteHead,
        buffer: Buffer,
    ) -> io::Result<()> {
        let count = head.count as usize;
        let file = match self.session.target(head.fid) {
            Ok(Target::File(file)) => file,
            Ok(Target::Bytes) => {
                let mut bytes = vec![0; count];
                buffer.read(0, &mut bytes).map_err(io::Error::other)?;
                match self.session.write_bytes(head.fid, head.offset, &bytes) {
                    Ok(()) => self.answer(tools, ticket, Reply::Write { count: head.count }),
                    Err(error) => self.refuse(tools, ticket, error),
                }
                return Ok(());
            }
            Err(error) => {
                self.refuse(tools, ticket, error);
                return Ok(());
            }
        };
        if head.offset.checked_add(count as u64).is_none_or(|end| i64::try_from(end).is_err()) {
            self.refuse(tools, ticket, Errno::FBIG);
            return Ok(());
        }
        let (to, direct) = file.to_write(tools.shared.options.engine, head.offset, count);
        let view = buffer.share(0, count).map_err(io::Error::other)?;
        self.launch(Pending::Write { ticket, file, direct }, |token| {
            tools.ring.write_file(to, view, head.offset, token)
        })
    }

    /// Handles a completed write.
    pub(crate) fn write_done(
        &mut self,
        tools: &Tools,
        ticket: Ticket,
        file: &OpenFile,
        direct: bool,
        result: io::Result<u32>,
    ) {
        // Blocks read ahead during the write may hold old data, for this client and others.
        tools.shared.writes(file.id).fetch_add(1, Ordering::AcqRel);
        file.drop_aheads();
        let counters = &tools.shared.counters;
        match result {
            Ok(count) => {
                Counters::add(if direct { &counters.direct_writes } else { &counters.cached_writes }, 1);
                Counters::add(&counters.written_bytes, u64::from(count));
                self.answer(tools, ticket, Reply::Write { count });
            }
            Err(error) => self.refuse(tools, ticket, errno(&error)),
        }
    }

    /// Lets a request wait for a buffer, behind those that already do.
    pub(crate) fn starve(&mut self, tools: &mut Tools, starved: Starved) {
        Counters::add(&tools.shared.counters.starved, 1);
        tools.awaiting_buffer.push_back(self.index);
        self.starved.push_back(starved);
    }

    /// Continues the request that waited longest, with a buffer or an error.
    pub(crate) fn feed(&mut self, tools: &mut Tools, buffer: Result<Buffer, Errno>) {
        match self.starved.pop_front() {
            Some(Starved::Read { ticket, file, offset, count }) => {
                if self.read_into(tools, ticket, &file, (offset, count), buffer).is_err() {
                    self.close();
                }
            }
            // The head of the write is still in the inbox.
            Some(Starved::Payload) => self.fed = Some(buffer),
            // The request was discarded meanwhile.
            None => return,
        }
        self.advance(tools);
        self.fed = None;
    }
}
