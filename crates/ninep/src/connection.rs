//! One client's connection: messages in, answers out, and the reads and writes between.
//!
//! ```text
//! receive ─► inbox ─ whole message ─► Session ─ Reply ──────────────────────────────────────┐
//!              │                        ├ Read ─► transfers ─► ring ─► buffer ─► head, view ─┤
//!              └ head of a Twrite ─► a buffer of the pool ◄─ the rest, received in place     ├─► outgoing ─► send
//!                                       └► ring ─► file ─────────────────────────────────────┘
//! ```
//!
//! At most one receive and one send are under way. A client with too many requests outstanding, unread answers among
//! them, is not received from; one that stops in the middle of something for too long, or does not attach, is cut off. When a client is gone its
//! connection lives until what was under way has ended. What requests mean is `session`'s.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use memferry_pool::Buffer;
use memferry_pool::uring::{Done, Held, Ring};
use rustix::io::Errno;

use crate::answers::Outgoing;
use crate::codec::{HEADER, Header, Malformed, Reply, Request, TVERSION, TWRITE, WRITE_HEAD, WriteHead};
use crate::handover::Pipes;
use crate::open_file::{OpenFile, Span};
use crate::server::{Arrival, Connected, Shared};
use crate::session::{Outcome, Session};
use crate::statistics::{Counters, Way};

/// The longest message that is no Twrite: sixteen names of 255 bytes fit, a link's target too.
const INBOX: usize = 16 << 10;
/// Bytes received at a time: most of a write's data is then still with the kernel and goes straight to its buffer.
const RECEIVE: usize = 4096;
/// Bytes that are sent or received at a time, each time within the limit that a client is given for going on.
pub(crate) const PIECE: usize = 64 << 10;

/// What a connection works with; its thread's.
pub(crate) struct Tools {
    pub(crate) ring: Ring,
    pub(crate) pipes: Pipes,
    pub(crate) shared: Arc<Shared>,
    /// Connections with something that waits for a buffer, once for each, in the order in which it came.
    pub(crate) hungry: VecDeque<u32>,
}

impl Tools {
    /// A buffer for who has not waited for one: as [`Shared::buffer`], but only when nobody does.
    pub(crate) fn buffer(&self) -> Result<Option<Buffer>, Errno> {
        if self.hungry.is_empty() { self.shared.buffer() } else { Ok(None) }
    }
}

/// A request that was not answered yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket {
    pub(crate) tag: u16,
    /// Requests of before a Tversion get no answer.
    pub(crate) epoch: u32,
}

/// What is under way.
pub(crate) enum Pending {
    Receive,
    /// The rest of a Twrite's data.
    Payload {
        ticket: Ticket,
        head: WriteHead,
        left: usize,
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
    /// The socket may have room again.
    Writable,
}

/// What waits for a buffer of the pool.
pub(crate) enum Starved {
    Read { ticket: Ticket, file: Rc<OpenFile>, offset: u64, count: usize },
    Payload,
}

pub(crate) struct Connection {
    /// Its number; the upper half of its tokens.
    pub(crate) index: u32,
    pub(crate) socket: Arc<OwnedFd>,
    pub(crate) session: Session,
    /// Received bytes, not while a receive is under way.
    inbox: Vec<u8>,
    filled: usize,
    receiving: bool,
    /// Bytes of a message that is too long, still to be passed over.
    skip: u32,
    payload_under_way: bool,
    /// Whether the next message is a Tversion.
    restarting: bool,
    pending: Vec<Option<Pending>>,
    pub(crate) outgoing: VecDeque<Outgoing>,
    pub(crate) sending: bool,
    /// Requests that were not answered yet, and the flushes that wait for them.
    pub(crate) tags: BTreeMap<u16, Vec<u16>>,
    pub(crate) epoch: u32,
    pub(crate) closed: bool,
    pub(crate) starved: VecDeque<Starved>,
    /// What a write that waited for a buffer was given: one, or why there is none.
    pub(crate) fed: Option<Result<Buffer, Errno>>,
    /// Files of which blocks were read ahead and may still be there.
    aheads: Vec<Weak<OpenFile>>,
    pub(crate) progress: Instant,
    since: Instant,
    _connected: Connected,
}

impl Connection {
    pub(crate) fn new(index: u32, arrival: Arrival, shared: Arc<Shared>) -> Self {
        Self {
            index,
            socket: Arc::new(arrival.socket),
            session: Session::new(shared, arrival.peer),
            inbox: vec![0; INBOX],
            filled: 0,
            receiving: false,
            skip: 0,
            payload_under_way: false,
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
            _connected: arrival.connected,
        }
    }

    /// Puts something under way by what `start` does with its token; nothing is kept of what the kernel did not take.
    pub(crate) fn launch(
        &mut self,
        pending: Pending,
        start: impl FnOnce(u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let token = self.keep(pending);
        start(token).inspect_err(|_| self.pending[token as u32 as usize] = None)
    }

    /// Keeps what is about to be under way; its token.
    fn keep(&mut self, pending: Pending) -> u64 {
        let slot = self.pending.iter().position(Option::is_none).unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() - 1
        });
        self.pending[slot] = Some(pending);
        u64::from(self.index) << 32 | slot as u64
    }

    /// Changes what waits for a block that is on its way; whether there is such a block.
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

    /// Keeps in mind that blocks of a file are read ahead.
    pub(crate) fn watch_aheads(&mut self, file: &Rc<OpenFile>) {
        let file = Rc::downgrade(file);
        if !self.aheads.iter().any(|known| known.ptr_eq(&file)) {
            self.aheads.push(file);
        }
    }

    /// Whether blocks were read ahead that are to be let go of some time.
    pub(crate) fn has_aheads(&self) -> bool {
        !self.aheads.is_empty()
    }

    /// Lets go of blocks read ahead that nobody came for.
    pub(crate) fn forget_old_aheads(&mut self) {
        self.aheads.retain(|file| file.upgrade().is_some_and(|file| file.forget_old_aheads()));
    }

    /// Whether it is over and nothing is under way any more.
    pub(crate) fn is_gone(&self) -> bool {
        self.closed && self.pending.iter().all(Option::is_none)
    }

    /// Whether the client has begun something that it must go on with.
    fn is_busy(&self) -> bool {
        let begun = self.filled > 0 || self.skip > 0;
        let unfinished = begun && self.tags.is_empty() && self.starved.is_empty();
        self.sending || self.payload_under_way || unfinished
    }

    /// Since when it should have attached, whatever else it does, or have gone on with what it has begun; nothing where
    /// it need not.
    pub(crate) fn owes_since(&self) -> Option<Instant> {
        match self.session.has_attached() {
            _ if self.closed => None,
            false => Some(self.since),
            true => self.is_busy().then_some(self.progress),
        }
    }

    /// Whether something of a file's is under way; a Tversion waits for that, so that a client never has more than its limit.
    fn has_requests_under_way(&self) -> bool {
        let of_socket =
            |pending: &Pending| matches!(pending, Pending::Receive | Pending::Send | Pending::Writable);
        !self.pending.iter().flatten().all(of_socket)
    }

    /// Ends it: the client hears no more, and what is under way comes to nothing.
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
            tracing::warn!(client = self.index, %what, "session ended: the client broke the protocol");
        }
        self.close();
    }

    /// Lets it go on after anything happened: messages taken, answers sent, more received.
    pub(crate) fn go_on(&mut self, tools: &mut Tools) {
        if let Err(error) = self.advance(tools) {
            tracing::debug!(client = self.index, %error, "session ended");
            self.close();
        }
    }

    fn advance(&mut self, tools: &mut Tools) -> io::Result<()> {
        while !self.take_messages(tools)? {
            self.send(tools)?;
            // Answers that were sent may have made room for what is in the inbox already.
            if self.is_held_up(tools) {
                return Ok(());
            }
        }
        self.send(tools)?;
        let room = INBOX - self.filled;
        if self.receiving || self.is_held_up(tools) || room == 0 {
            return Ok(());
        }
        self.receiving = true;
        let inbox = std::mem::take(&mut self.inbox);
        let socket = Arc::clone(&self.socket);
        let part = (self.filled, room.min(RECEIVE));
        self.launch(Pending::Receive, |token| tools.ring.receive(socket, inbox, part, token))
    }

    /// Whether no message is taken now, whatever is in the inbox.
    fn is_held_up(&self, tools: &Tools) -> bool {
        let hungry = self.starved.iter().any(|starved| matches!(starved, Starved::Payload));
        let waits = self.restarting && self.has_requests_under_way();
        self.closed || self.payload_under_way || hungry || waits || self.is_full(tools)
    }

    fn is_full(&self, tools: &Tools) -> bool {
        self.tags.len() + self.outgoing.len() >= tools.shared.options.limits.outstanding
    }

    /// Takes whole messages, and the heads of writes, from the inbox; whether it stopped for want of bytes.
    fn take_messages(&mut self, tools: &mut Tools) -> io::Result<bool> {
        if self.receiving {
            return Ok(true);
        }
        let mut at = 0;
        let mut wanting = false;
        while !wanting && !self.is_held_up(tools) {
            let taken = self.take_one(tools, at)?;
            at += taken;
            wanting = taken == 0;
        }
        self.inbox.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(wanting && !self.is_held_up(tools))
    }

    /// Takes what begins at `at` of the inbox; how many bytes that were, none when it is not all there.
    fn take_one(&mut self, tools: &mut Tools, at: usize) -> io::Result<usize> {
        let here = &self.inbox[at..self.filled];
        if self.skip > 0 {
            let passed = here.len().min(self.skip as usize);
            self.skip -= passed as u32;
            return Ok(passed);
        }
        let Some(header) = Header::of(here) else { return Ok(0) };
        let most = self.session.message_bytes();
        if header.size < HEADER as u32 || header.size > most {
            self.violation(
                tools,
                &format_args!("a message of {} bytes; 7 to {most} are allowed", header.size),
            );
            return Ok(0);
        }
        let ticket = Ticket { tag: header.tag, epoch: self.epoch };
        if self.tags.contains_key(&header.tag) {
            self.violation(tools, &format_args!("tag {} is in use", header.tag));
            return Ok(0);
        }
        self.restarting = header.kind == TVERSION;
        if self.is_held_up(tools) {
            return Ok(0);
        }
        if header.kind == TWRITE {
            self.take_write(tools, header, ticket, at)
        } else {
            self.take_message(tools, header, ticket, at)
        }
    }

    /// Takes a message that is not a write; how many bytes that were, none when it is not all there.
    fn take_message(
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
        self.follow(tools, ticket, outcome)?;
        Ok(size)
    }

    /// Does what the session left to be done for a request.
    fn follow(
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

    /// Takes a write's head and what there is of its data; how many bytes that were.
    fn take_write(
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
        let prepared = head.ok_or(Errno::INVAL).and_then(|head| {
            // Who may not write gets no buffer to keep either.
            self.session.target(head.fid)?;
            let buffer = self.fed.take().map_or_else(|| tools.buffer(), |fed| fed.map(Some))?;
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
        let came = data.len();
        self.tags.insert(ticket.tag, Vec::new());
        Counters::add(&tools.shared.counters.requests, 1);
        if came == count {
            self.write(tools, ticket, head, buffer)?;
        } else {
            self.receive_payload(tools, (ticket, head, count - came), buffer)?;
        }
        Ok(WRITE_HEAD + came)
    }

    /// Receives the next piece of a write's data, of which so many bytes are left.
    fn receive_payload(
        &mut self,
        tools: &mut Tools,
        (ticket, head, left): (Ticket, WriteHead, usize),
        buffer: Buffer,
    ) -> io::Result<()> {
        self.payload_under_way = true;
        self.progress = Instant::now();
        let part = (head.count as usize - left, left.min(PIECE));
        let socket = Arc::clone(&self.socket);
        self.launch(Pending::Payload { ticket, head, left }, |token| {
            tools.ring.receive_buffer(socket, buffer, part, token)
        })
    }

    /// Something that was under way has ended.
    pub(crate) fn ended(&mut self, tools: &mut Tools, done: Done) {
        let slot = done.token as u32 as usize;
        let Some(pending) = self.pending.get_mut(slot).and_then(Option::take) else { return };
        if let Err(error) = self.take_up(tools, pending, done.result, done.held) {
            tracing::debug!(client = self.index, %error, "session ended");
            self.close();
        }
        self.go_on(tools);
    }

    fn take_up(
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
                let came = result?;
                if came == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                self.filled += came as usize;
                self.progress = Instant::now();
            }
            (Pending::Payload { ticket, head, left }, Held::Buffer(buffer)) => {
                self.payload_under_way = false;
                let came = result? as usize;
                if came != left.min(PIECE) {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                match left - came {
                    0 => self.write(tools, ticket, head, buffer)?,
                    left => self.receive_payload(tools, (ticket, head, left), buffer)?,
                }
            }
            (Pending::Read { ticket, span, way }, Held::Buffer(buffer)) => {
                self.read_came(tools, ticket, (span, way), result, buffer);
            }
            (Pending::Ahead { file, id, waiting }, Held::Buffer(buffer)) => {
                let length = result.unwrap_or(0) as usize;
                file.ahead_came(id, buffer.share(0, length).ok().filter(|_| length > 0));
                for (ticket, offset, count) in waiting {
                    self.reread(tools, ticket, Rc::clone(&file), (offset, count))?;
                }
            }
            (Pending::Write { ticket, file, direct }, _) => {
                self.written(tools, ticket, &file, direct, result)
            }
            (Pending::Sync { ticket }, _) => match result {
                Ok(_) => self.answer(tools, ticket, Reply::Fsync {}),
                Err(error) => self.refuse(tools, ticket, errno(&error)),
            },
            (Pending::Send, Held::Sent(head, view)) => {
                self.sending = false;
                self.sent(head, view, result? as usize)?;
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
