//! One client's connection: receives messages, sends answers, and tracks the operations between.
//!
//! ```text
//! receive ─► inbox ─ whole message ─► Session ─ Reply ──────────────────────────────────────┐
//!              │                        ├ Read ─► transfers ─► ring ─► buffer ─► head, view ─┤
//!              └ head of a Twrite ─► a buffer of the pool ◄─ the rest, received in place     ├─► outgoing ─► send
//!                                       └► ring ─► file ─────────────────────────────────────┘
//! ```
//!
//! At most one receive and one send are in flight. A client with too many requests outstanding, including unread answers,
//! is not received from. A client that stalls in the middle of a message, or does not attach, is disconnected. After a
//! disconnect the connection lives until all its operations have completed. `session` interprets requests.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use memferry_pool::Buffer;
use memferry_pool::uring::{Done, Held, Ring};
use memferry_shm::conduit;
use rustix::io::Errno;

use crate::closing::close_elsewhere;
use crate::codec::{HEADER, Header, Malformed, Reply, Request, TVERSION, TWRITE, WRITE_HEAD, WriteHead};
use crate::handover::Pipes;
use crate::open_file::{OpenFile, Span};
use crate::outgoing::{Body, Outgoing};
use crate::session::{Outcome, Session};
use crate::shared::{Arrival, Connected, Shared};
use crate::statistics::{Counters, Way};

/// Maximum size of messages other than Twrite: sixteen names of 255 bytes fit, and so does a link's target.
const INBOX: usize = 16 << 10;
/// Bytes per receive: short, so that most of a write's data goes from the kernel straight to its buffer.
const RECEIVE: usize = 4096;
/// Bytes per send or payload receive; the stall limit applies to each.
pub(crate) const PIECE: usize = 64 << 10;
/// Bytes of queued answers without file data at which a client's further requests wait.
const MAX_QUEUED: usize = 1 << 20;
/// Answers that pass on pages of the page cache at a time: each uses a pipe, which is two descriptors.
pub(crate) const MAX_HANDOVERS: usize = 16;

/// Resources of a serving thread, used by its connections.
pub(crate) struct Tools {
    pub(crate) ring: Ring,
    pub(crate) pipes: Pipes,
    pub(crate) shared: Arc<Shared>,
    /// Connections with requests that wait for a buffer, an entry per request, in order.
    pub(crate) awaiting_buffer: VecDeque<u32>,
}

impl Tools {
    /// As [`Shared::buffer`], but `None` if other requests already wait.
    pub(crate) fn buffer(&self) -> Result<Option<Buffer>, Errno> {
        if self.awaiting_buffer.is_empty() { self.shared.buffer() } else { Ok(None) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) tag: u16,
    /// Incremented by Tversion; requests of an earlier epoch get no answer.
    pub(crate) epoch: u32,
}

/// An operation in flight.
pub(crate) enum Pending {
    Receive,
    /// Waits for bytes to examine before they are received.
    Readable,
    /// The next `part` bytes of a Twrite's data.
    Payload {
        ticket: Ticket,
        head: WriteHead,
        left: usize,
        part: usize,
    },
    /// Waits for a Twrite's data to examine before it is received.
    PayloadReadable {
        ticket: Ticket,
        head: WriteHead,
        left: usize,
        buffer: Buffer,
    },
    Read {
        ticket: Ticket,
        span: Span,
        way: Way,
    },
    Ahead {
        file: Rc<OpenFile>,
        id: u64,
        waiting: Vec<(Ticket, u64, usize)>,
    },
    Write {
        ticket: Ticket,
        file: Rc<OpenFile>,
        direct: bool,
    },
    Sync {
        ticket: Ticket,
    },
    Send,
    /// Waits for room in the socket.
    Writable,
}

/// A request that waits for a buffer.
pub(crate) enum Starved {
    Read { ticket: Ticket, file: Rc<OpenFile>, offset: u64, count: usize },
    Payload,
}

pub(crate) struct Connection {
    /// Connection number; the upper half of its tokens.
    pub(crate) index: u32,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) session: Session,
    /// Received bytes; empty while a receive is in flight.
    inbox: Vec<u8>,
    filled: usize,
    receiving: bool,
    /// Bytes of an oversized message still to be skipped.
    skip: u32,
    receiving_payload: bool,
    /// The next message is a Tversion.
    restarting: bool,
    pending: Vec<Option<Pending>>,
    pub(crate) outgoing: VecDeque<Outgoing>,
    pub(crate) sending: bool,
    /// Unanswered requests, with the flushes that wait for each.
    pub(crate) tags: BTreeMap<u16, Vec<u16>>,
    pub(crate) epoch: u32,
    pub(crate) closed: bool,
    pub(crate) starved: VecDeque<Starved>,
    /// The buffer for a write that waited for one, or the error.
    pub(crate) fed: Option<Result<Buffer, Errno>>,
    /// Files that may hold blocks read ahead.
    aheads: Vec<Weak<OpenFile>>,
    pub(crate) progress: Instant,
    since: Instant,
    /// Whether messages may carry descriptors. They are looked at before they are received: a descriptor that is received
    /// unseen is closed by the serving thread, which can take as long as the client likes.
    examined: bool,
    connected: Connected,
    /// Buffers counted in the user's account.
    counted: u64,
}

impl Connection {
    pub(crate) fn new(index: u32, arrival: Arrival, shared: Arc<Shared>) -> Self {
        Self {
            index,
            socket: Arc::new(arrival.socket),
            session: Session::new(shared, arrival.peer, Arc::clone(&arrival.connected.account)),
            inbox: vec![0; INBOX],
            filled: 0,
            receiving: false,
            skip: 0,
            receiving_payload: false,
            restarting: false,
            pending: Vec::new(),
            outgoing: VecDeque::new(),
            sending: false,
            tags: BTreeMap::new(),
            epoch: 0,
            closed: false,
            starved: VecDeque::new(),
            fed: None,
            aheads: Vec::new(),
            progress: Instant::now(),
            since: Instant::now(),
            examined: arrival.examined,
            connected: arrival.connected,
            counted: 0,
        }
    }

    /// Releases what a closed connection has. Its socket may hold descriptors that are slow to close.
    pub(crate) fn finish(mut self) {
        self.close();
        self.count_buffers();
        let Self { socket, connected, examined, .. } = self;
        if examined && let Some(socket) = Arc::into_inner(socket) {
            close_elsewhere(socket, Some(connected));
        }
    }

    /// Buffers with data or answers of this client.
    fn buffers(&self) -> u64 {
        let operations = self.pending.iter().flatten().filter(|pending| {
            !matches!(
                pending,
                Pending::Receive
                    | Pending::Readable
                    | Pending::Send
                    | Pending::Writable
                    | Pending::Sync { .. }
            )
        });
        let answers = self.outgoing.iter().filter(|outgoing| matches!(outgoing.body, Body::View(_)));
        operations.count() as u64 + answers.count() as u64 + u64::from(self.sending)
    }

    /// Updates the count of buffers in the user's account.
    fn count_buffers(&mut self) {
        let buffers = if self.is_gone() { 0 } else { self.buffers() };
        let account = &self.connected.account.buffers;
        account.fetch_add(buffers.wrapping_sub(self.counted), Ordering::Relaxed);
        self.counted = buffers;
    }

    /// Whether this client may take another buffer, or must leave those that are free to others.
    pub(crate) fn may_take(&self, shared: &Shared) -> bool {
        let own = self.buffers();
        let of_user = self.connected.account.buffers.load(Ordering::Relaxed);
        shared.may_take(own, of_user.saturating_sub(self.counted).saturating_add(own))
    }

    /// Starts an operation with a token; forgets it if the kernel refused it.
    pub(crate) fn launch(
        &mut self,
        pending: Pending,
        start: impl FnOnce(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let token = self.keep(pending);
        start(token).inspect_err(|_| self.pending[token as u32 as usize] = None)
    }

    /// Stores an operation; returns its token.
    fn keep(&mut self, pending: Pending) -> u64 {
        let slot = self.pending.iter().position(Option::is_none).unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[slot] = Some(pending);
        u64::from(self.index) << 32 | slot as u64
    }

    /// Adds a request to those that wait for a block in flight; returns whether there is such a block.
    pub(crate) fn wait_for_ahead(
        &mut self,
        file: &Rc<OpenFile>,
        block: u64,
        request: (Ticket, u64, usize),
    ) -> bool {
        for pending in self.pending.iter_mut().flatten() {
            if let Pending::Ahead { file: other, id, waiting } = pending
                && Rc::ptr_eq(file, other)
                && *id == block
            {
                waiting.push(request);
                return true;
            }
        }
        false
    }

    /// Remembers a file with blocks read ahead.
    pub(crate) fn watch_aheads(&mut self, file: &Rc<OpenFile>) {
        let file = Rc::downgrade(file);
        if !self.aheads.iter().any(|known| known.ptr_eq(&file)) {
            self.aheads.push(file);
        }
    }

    /// Whether blocks read ahead may have to be dropped later.
    pub(crate) fn has_aheads(&self) -> bool {
        !self.aheads.is_empty()
    }

    /// Drops blocks read ahead that are too old.
    pub(crate) fn drop_old_aheads(&mut self) {
        self.aheads.retain(|file| file.upgrade().is_some_and(|file| file.drop_old_aheads()));
    }

    /// Whether it is closed and no operation is in flight.
    pub(crate) fn is_gone(&self) -> bool {
        self.closed && self.pending.iter().all(Option::is_none)
    }

    /// Whether the client has started something that it must finish.
    fn is_busy(&self) -> bool {
        let started = self.filled > 0 || self.skip > 0;
        let unfinished = started && self.tags.is_empty() && self.starved.is_empty();
        self.sending || self.receiving_payload || unfinished
    }

    /// Start of the stall limit: since when the client should have attached or continued what it started; `None` if
    /// no limit applies.
    pub(crate) fn stall_since(&self) -> Option<Instant> {
        match self.session.has_attached() {
            _ if self.closed => None,
            false => Some(self.since),
            true => self.is_busy().then_some(self.progress),
        }
    }

    /// Whether a file operation is in flight. Tversion waits for these, so that a client never exceeds its limit.
    fn has_file_operations(&self) -> bool {
        let of_socket = |pending: &Pending| {
            matches!(pending, Pending::Receive | Pending::Readable | Pending::Send | Pending::Writable)
        };
        !self.pending.iter().flatten().all(of_socket)
    }

    /// Closes the connection; operations in flight complete without effect for the client.
    pub(crate) fn close(&mut self) {
        if !std::mem::replace(&mut self.closed, true) {
            let _ = rustix::net::shutdown(&*self.socket, rustix::net::Shutdown::Both);
            self.starved.clear();
            self.outgoing.clear();
            self.tags.clear();
            self.session.end();
        }
    }

    fn violation(&mut self, tools: &Tools, what: &dyn std::fmt::Display) {
        Counters::add(&tools.shared.counters.violations, 1);
        if tools.shared.may_log() {
            tracing::warn!(client = self.index, %what, "session ended: protocol violation by the client");
        }
        self.close();
    }

    /// Handles received messages, sends answers and receives more; closes the connection on errors.
    pub(crate) fn advance(&mut self, tools: &mut Tools) {
        if let Err(error) = self.try_advance(tools) {
            tracing::debug!(client = self.index, %error, "session ended");
            self.close();
        }
        self.count_buffers();
    }

    fn try_advance(&mut self, tools: &mut Tools) -> io::Result<()> {
        while !self.handle_messages(tools)? {
            self.send(tools)?;
            // Sent answers may have made room for messages already in the inbox.
            if self.is_blocked(tools) {
                return Ok(());
            }
        }
        self.send(tools)?;
        let room = INBOX - self.filled;
        if self.receiving || self.is_blocked(tools) || room == 0 {
            return Ok(());
        }
        self.receiving = true;
        if self.examined {
            return self.wait_for_bytes(tools, Pending::Readable);
        }
        self.receive(tools, room.min(RECEIVE))
    }

    /// Receives up to `count` bytes into the inbox.
    fn receive(&mut self, tools: &mut Tools, count: usize) -> io::Result<()> {
        let inbox = std::mem::take(&mut self.inbox);
        let socket = Arc::clone(&self.socket);
        let part = (self.filled, count);
        self.launch(Pending::Receive, |token| tools.ring.receive(socket, inbox, part, token))
    }

    fn wait_for_bytes(&mut self, tools: &mut Tools, pending: Pending) -> io::Result<()> {
        let socket = Arc::clone(&self.socket);
        let ready = libc::POLLIN as u32;
        self.launch(pending, |token| tools.ring.poll(socket, ready, token))
    }

    /// How many of the next `most` bytes can be received without a descriptor; `None` if there are none yet.
    fn examine(&mut self, tools: &Tools, most: usize) -> io::Result<Option<usize>> {
        match conduit::peek(self.socket.as_fd(), &mut vec![0; most]) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
            Ok((_, true)) => {
                self.violation(tools, &"a message carries descriptors");
                Err(io::ErrorKind::InvalidData.into())
            }
            Ok((0, false)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((bytes, false)) => Ok(Some(bytes)),
        }
    }

    /// Whether messages must wait, whatever is in the inbox.
    fn is_blocked(&self, tools: &Tools) -> bool {
        let starved = self.starved.iter().any(|starved| matches!(starved, Starved::Payload));
        let waits = self.restarting && self.has_file_operations();
        self.closed || self.receiving_payload || starved || waits || self.is_full(tools)
    }

    fn is_full(&self, tools: &Tools) -> bool {
        let queued = || self.outgoing.iter().map(|outgoing| outgoing.head.len()).sum::<usize>();
        self.tags.len() + self.outgoing.len() >= tools.shared.options.limits.outstanding
            || self.outgoing.len() > 8 && queued() >= MAX_QUEUED
    }

    /// Handles whole messages and heads of writes in the inbox; returns whether it stopped for lack of bytes.
    fn handle_messages(&mut self, tools: &mut Tools) -> io::Result<bool> {
        if self.receiving {
            return Ok(true);
        }
        let mut at = 0;
        let mut wanting = false;
        while !wanting && !self.is_blocked(tools) {
            let taken = self.handle_next(tools, at)?;
            at += taken;
            wanting = taken == 0;
        }
        self.inbox.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(wanting && !self.is_blocked(tools))
    }

    /// Handles the message at `at` in the inbox; returns its bytes, 0 if it is incomplete.
    fn handle_next(&mut self, tools: &mut Tools, at: usize) -> io::Result<usize> {
        let here = &self.inbox[at..self.filled];
        if self.skip > 0 {
            let passed = here.len().min(self.skip as usize);
            self.skip -= passed as u32;
            return Ok(passed);
        }
        let Some(header) = Header::of(here) else { return Ok(0) };
        let most = self.session.message_bytes();
        if header.size < HEADER as u32 || header.size > most {
            self.violation(tools, &format_args!("message of {} bytes; allowed are 7 to {most}", header.size));
            return Ok(0);
        }
        let ticket = Ticket { tag: header.tag, epoch: self.epoch };
        if self.tags.contains_key(&header.tag) {
            self.violation(tools, &format_args!("tag {} is already in use", header.tag));
            return Ok(0);
        }
        self.restarting = header.kind == TVERSION;
        if self.is_blocked(tools) {
            return Ok(0);
        }
        if header.kind == TWRITE {
            self.handle_write(tools, header, ticket, at)
        } else {
            self.handle_message(tools, header, ticket, at)
        }
    }

    /// Handles a message other than Twrite; returns its bytes, 0 if it is incomplete.
    fn handle_message(
        &mut self,
        tools: &mut Tools,
        header: Header,
        ticket: Ticket,
        at: usize,
    ) -> io::Result<usize> {
        let size = header.size as usize;
        if size > INBOX {
            self.tags.insert(ticket.tag, Vec::new());
            self.answer(
                tools,
                ticket,
                Reply::Error { code: Errno::NAMETOOLONG.raw_os_error().cast_unsigned() },
            );
            self.skip = header.size - HEADER as u32;
            return Ok(HEADER);
        }
        let Some(body) = self.inbox[..self.filled].get(at + HEADER..at + size) else { return Ok(0) };
        let outcome = match Request::decode(header.kind, body) {
            Ok(request) => self.session.handle(request),
            Err(Malformed::Kind { .. }) => Err(Errno::OPNOTSUPP),
            Err(malformed) => {
                tracing::debug!(client = self.index, %malformed, "malformed message");
                Err(Errno::INVAL)
            }
        };
        Counters::add(&tools.shared.counters.requests, 1);
        self.handle_outcome(tools, ticket, outcome)?;
        Ok(size)
    }

    /// Continues a request as the session decided.
    fn handle_outcome(
        &mut self,
        tools: &mut Tools,
        ticket: Ticket,
        outcome: Result<Outcome, Errno>,
    ) -> io::Result<()> {
        self.tags.insert(ticket.tag, Vec::new());
        match outcome {
            Ok(Outcome::Reply(reply)) => self.answer(tools, ticket, reply),
            Err(error) => self.refuse(tools, ticket, error),
            Ok(Outcome::Restart(reply)) => {
                self.epoch += 1;
                self.tags.clear();
                self.starved.clear();
                self.tags.insert(ticket.tag, Vec::new());
                self.answer(tools, Ticket { epoch: self.epoch, ..ticket }, reply);
            }
            Ok(Outcome::Flush { oldtag }) => {
                match self.tags.get_mut(&oldtag).filter(|_| oldtag != ticket.tag) {
                    Some(flushes) => {
                        flushes.push(ticket.tag);
                    }
                    None => self.answer(tools, ticket, Reply::Flush {}),
                }
            }
            Ok(Outcome::Sync { file, data_only }) => {
                let pending = Pending::Sync { ticket };
                self.launch(pending, |token| tools.ring.sync(file, data_only, token))?;
            }
            Ok(Outcome::Read { file, offset, count }) => self.read(tools, ticket, file, (offset, count))?,
        }
        Ok(())
    }

    /// Handles a Twrite's head and the data in the inbox; returns their bytes.
    fn handle_write(
        &mut self,
        tools: &mut Tools,
        header: Header,
        ticket: Ticket,
        at: usize,
    ) -> io::Result<usize> {
        let here = &self.inbox[at..self.filled];
        let wanted = WRITE_HEAD.min(header.size as usize);
        let Some(start) = here.get(HEADER..wanted) else { return Ok(0) };
        let most = tools.shared.options.block_bytes;
        let head = WriteHead::decode(start, header.size).ok().filter(|head| head.count as usize <= most);
        let fed = self.fed.take();
        let prepared = head.ok_or(Errno::INVAL).and_then(|head| {
            // Checked first: a client without permission to write gets no buffer.
            self.session.target(head.fid)?;
            let buffer = match fed {
                Some(fed) => fed.map(Some)?,
                None if self.may_take(&tools.shared) => tools.buffer()?,
                None => None,
            };
            Ok((head, buffer))
        });
        let (head, mut buffer) = match prepared {
            Ok((head, Some(buffer))) => (head, buffer),
            Ok((_, None)) => {
                self.starve(tools, Starved::Payload);
                return Ok(0);
            }
            Err(error) => {
                self.tags.insert(ticket.tag, Vec::new());
                self.refuse(tools, ticket, error);
                self.skip = header.size - wanted as u32;
                return Ok(wanted);
            }
        };
        let count = head.count as usize;
        let data = &here[WRITE_HEAD..][..count.min(here.len() - WRITE_HEAD)];
        buffer.write(0, data).map_err(io::Error::other)?;
        let received = data.len();
        self.tags.insert(ticket.tag, Vec::new());
        Counters::add(&tools.shared.counters.requests, 1);
        if received == count {
            self.write(tools, ticket, head, buffer)?;
        } else {
            self.receive_payload(tools, (ticket, head, count - received), buffer)?;
        }
        Ok(WRITE_HEAD + received)
    }

    /// Receives the next piece of a write's data; `left` bytes are missing.
    fn receive_payload(
        &mut self,
        tools: &mut Tools,
        (ticket, head, left): (Ticket, WriteHead, usize),
        buffer: Buffer,
    ) -> io::Result<()> {
        self.receiving_payload = true;
        self.progress = Instant::now();
        if self.examined {
            return self.wait_for_bytes(tools, Pending::PayloadReadable { ticket, head, left, buffer });
        }
        self.receive_part(tools, (ticket, head, left), left.min(PIECE), buffer)
    }

    fn receive_part(
        &mut self,
        tools: &mut Tools,
        (ticket, head, left): (Ticket, WriteHead, usize),
        part: usize,
        buffer: Buffer,
    ) -> io::Result<()> {
        let place = (head.count as usize - left, part);
        let socket = Arc::clone(&self.socket);
        self.launch(Pending::Payload { ticket, head, left, part }, |token| {
            tools.ring.receive_buffer(socket, buffer, place, token)
        })
    }

    /// Handles a completed operation.
    pub(crate) fn complete(&mut self, tools: &mut Tools, done: Done) {
        let slot = done.token as u32 as usize;
        let Some(pending) = self.pending.get_mut(slot).and_then(Option::take) else { return };
        if let Err(error) = self.handle_completion(tools, pending, done.result, done.held) {
            tracing::debug!(client = self.index, %error, "session ended");
            self.close();
        }
        self.advance(tools);
    }

    fn handle_completion(
        &mut self,
        tools: &mut Tools,
        pending: Pending,
        result: io::Result<u32>,
        held: Held,
    ) -> io::Result<()> {
        match (pending, held) {
            (Pending::Receive, Held::Bytes(bytes)) => {
                self.inbox = bytes;
                self.receiving = false;
                let received = result?;
                if received == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.filled += received as usize;
                self.progress = Instant::now();
            }
            (Pending::Readable, _) => {
                self.receiving = false;
                result?;
                if let Some(bytes) = self.examine(tools, RECEIVE.min(INBOX - self.filled))? {
                    self.receiving = true;
                    self.receive(tools, bytes)?;
                }
            }
            (Pending::PayloadReadable { ticket, head, left, buffer }, _) => {
                result?;
                let payload = (ticket, head, left);
                match self.examine(tools, left.min(PIECE))? {
                    Some(part) => self.receive_part(tools, payload, part, buffer)?,
                    None => self.receive_payload(tools, payload, buffer)?,
                }
            }
            (Pending::Payload { ticket, head, left, part }, Held::Buffer(buffer)) => {
                self.receiving_payload = false;
                let received = result? as usize;
                if received != part {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                match left - received {
                    0 => self.write(tools, ticket, head, buffer)?,
                    left => self.receive_payload(tools, (ticket, head, left), buffer)?,
                }
            }
            (Pending::Read { ticket, span, way }, Held::Buffer(buffer)) => {
                self.read_done(tools, ticket, (span, way), result, buffer);
            }
            (Pending::Ahead { file, id, waiting }, Held::Buffer(buffer)) => {
                let length = result.unwrap_or(0) as usize;
                file.ahead_done(id, buffer.share(0, length).ok().filter(|_| length > 0));
                for (ticket, offset, count) in waiting {
                    self.reread(tools, ticket, Rc::clone(&file), (offset, count))?;
                }
            }
            (Pending::Write { ticket, file, direct }, _) => {
                self.write_done(tools, ticket, &file, direct, result)
            }
            (Pending::Sync { ticket }, _) => match result {
                Ok(_) => self.answer(tools, ticket, Reply::Fsync {}),
                Err(error) => self.refuse(tools, ticket, errno(&error)),
            },
            (Pending::Send, Held::Sent(head, view)) => {
                self.sending = false;
                self.send_done(head, view, result? as usize)?;
            }
            (Pending::Writable, _) => {
                self.sending = false;
                result?;
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }
}

pub(crate) fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
