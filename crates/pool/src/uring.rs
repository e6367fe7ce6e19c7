//! An io_uring that safe code can use: every operation owns what the kernel will touch until it has ended.
//!
//! ```text
//! read_file, receive, send, … (descriptor, buffer, token) ─► held here ─► kernel ─► wait ─► Done {token, result, what was held}
//! a buffer of a pool ─ its segment has a slot? ─ no ─► registered once ─► READ_FIXED, WRITE_FIXED
//!                                              └ cannot be ───────────► READ, WRITE on the same memory
//! ```
//!
//! Invariant U, which the unsafe code rests on: what a submitted operation points to is owned by its flight, and a flight ends
//! when its completion was seen. A ring that is dropped calls back what is under way and waits for it; where that fails it
//! leaks what was held. It belongs to the thread that made it. It does not decide what is read, nor where to.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::{Buffer, BufferView, Segment};

/// The most segments that are registered at a time.
const SLOTS: u32 = 512;

/// What an operation held.
#[derive(Debug)]
pub enum Held {
    Nothing,
    /// Bytes that were received into.
    Bytes(Vec<u8>),
    /// A buffer that was filled.
    Buffer(Buffer),
    /// What was sent or written.
    Sent(Vec<u8>, Option<BufferView>),
}

/// An operation that has ended.
#[derive(Debug)]
pub struct Done {
    /// What it was known by.
    pub token: u64,
    /// Its result: bytes, or poll events.
    pub result: io::Result<u32>,
    pub held: Held,
}

/// What happened to registrations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registrations {
    pub segments: u64,
    /// Operations on registered buffers.
    pub fixed: u64,
    /// Operations on buffers of segments that could not be registered.
    pub unregistered: u64,
}

struct Flight {
    token: u64,
    held: Held,
    /// Open until the kernel has taken it up.
    _descriptor: Arc<OwnedFd>,
    /// What a gathered send is described by.
    _message: Option<Box<Message>>,
}

struct Message {
    header: libc::msghdr,
    parts: [libc::iovec; 2],
}

pub struct Ring {
    ring: IoUring,
    flights: Vec<Option<Flight>>,
    vacant: Vec<usize>,
    slots: BTreeMap<u16, Arc<Segment>>,
    /// Whether there is a table of registered buffers at all.
    registers: bool,
    registrations: Registrations,
}

impl Ring {
    /// A ring with room for `entries` submissions between two waits; more are submitted early.
    ///
    /// # Errors
    /// Those of `io_uring_setup`, for instance where the system forbids it.
    pub fn new(entries: u32) -> io::Result<Self> {
        let completions = entries.saturating_mul(4);
        // One thread uses it: the kernel then does its part when that thread waits, and nowhere else (since 6.1).
        let ring = IoUring::builder()
            .setup_cqsize(completions)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::builder().setup_cqsize(completions).build(entries))?;
        let registers = ring.submitter().register_buffers_sparse(SLOTS).is_ok();
        let flights = Vec::new();
        let vacant = Vec::new();
        let slots = BTreeMap::new();
        Ok(Self { ring, flights, vacant, slots, registers, registrations: Registrations::default() })
    }

    /// Operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.vacant.len()
    }

    /// What happened to registrations.
    pub fn registrations(&self) -> Registrations {
        Registrations { segments: self.slots.len() as u64, ..self.registrations }
    }

    /// Tells when `events` (`POLLIN` and so on) are there.
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn poll(&mut self, descriptor: Arc<OwnedFd>, events: u32, token: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events).build();
        self.launch(entry, token, descriptor, Held::Nothing, None)
    }

    /// Receives what there is from a socket, at most `count` bytes, into `bytes` at `at`.
    ///
    /// # Errors
    /// `InvalidInput` outside the bytes; those of `io_uring_enter`.
    pub fn receive(
        &mut self,
        socket: Arc<OwnedFd>,
        mut bytes: Vec<u8>,
        (at, count): (usize, usize),
        token: u64,
    ) -> io::Result<()> {
        let room =
            bytes.get_mut(at..).and_then(|rest| rest.get_mut(..count)).ok_or(io::ErrorKind::InvalidInput)?;
        let length = length(room.len())?;
        let entry = opcode::Recv::new(Fd(socket.as_raw_fd()), room.as_mut_ptr(), length).build();
        self.launch(entry, token, socket, Held::Bytes(bytes), None)
    }

    /// Receives into a buffer, until `length` bytes at `at` are there or the stream ends.
    ///
    /// # Errors
    /// `InvalidInput` outside the buffer; those of `io_uring_enter`.
    pub fn receive_buffer(
        &mut self,
        socket: Arc<OwnedFd>,
        buffer: Buffer,
        (at, count): (usize, usize),
        token: u64,
    ) -> io::Result<()> {
        buffer.check(at, count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let to = buffer.pointer().wrapping_add(at);
        let receive = opcode::Recv::new(Fd(socket.as_raw_fd()), to, length(count)?);
        self.launch(receive.flags(libc::MSG_WAITALL).build(), token, socket, Held::Buffer(buffer), None)
    }

    /// Reads `count` bytes of a file from `offset` on into a buffer at `at`.
    ///
    /// # Errors
    /// `InvalidInput` outside the buffer; those of `io_uring_enter`.
    pub fn read_file(
        &mut self,
        file: Arc<OwnedFd>,
        buffer: Buffer,
        (at, count): (usize, usize),
        offset: u64,
        token: u64,
    ) -> io::Result<()> {
        buffer.check(at, count).map_err(|_| io::ErrorKind::InvalidInput)?;
        let to = buffer.pointer().wrapping_add(at);
        let fd = Fd(file.as_raw_fd());
        let entry = match self.slot(buffer.segment()) {
            Some(slot) => opcode::ReadFixed::new(fd, to, length(count)?, slot).offset(offset).build(),
            None => opcode::Read::new(fd, to, length(count)?).offset(offset).build(),
        };
        self.launch(entry, token, file, Held::Buffer(buffer), None)
    }

    /// Writes a view to a file from `offset` on.
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn write_file(
        &mut self,
        file: Arc<OwnedFd>,
        view: BufferView,
        offset: u64,
        token: u64,
    ) -> io::Result<()> {
        let from = view.buffer().pointer().wrapping_add(view.offset());
        let fd = Fd(file.as_raw_fd());
        let count = length(view.length())?;
        let entry = match self.slot(view.buffer().segment()) {
            Some(slot) => opcode::WriteFixed::new(fd, from, count, slot).offset(offset).build(),
            None => opcode::Write::new(fd, from, count).offset(offset).build(),
        };
        self.launch(entry, token, file, Held::Sent(Vec::new(), Some(view)), None)
    }

    /// Sends `head`, then the view; all of it unless the connection breaks, on kernels that can (5.19).
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn send(
        &mut self,
        socket: Arc<OwnedFd>,
        head: Vec<u8>,
        view: Option<BufferView>,
        token: u64,
    ) -> io::Result<()> {
        let fd = Fd(socket.as_raw_fd());
        let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let Some(part) = &view else {
            let entry = opcode::Send::new(fd, head.as_ptr(), length(head.len())?).flags(flags).build();
            return self.launch(entry, token, socket, Held::Sent(head, None), None);
        };
        let body = part.buffer().pointer().wrapping_add(part.offset());
        if head.is_empty() {
            let entry = opcode::Send::new(fd, body, length(part.length())?).flags(flags).build();
            return self.launch(entry, token, socket, Held::Sent(head, view), None);
        }
        let parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: body.cast(), iov_len: part.length() },
        ];
        // SAFETY: a message header of zeros is one that says nothing.
        let header = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Message { header, parts });
        message.header.msg_iov = message.parts.as_mut_ptr();
        message.header.msg_iovlen = message.parts.len() as _;
        let entry = opcode::SendMsg::new(fd, &raw const message.header).flags(flags as u32).build();
        self.launch(entry, token, socket, Held::Sent(head, view), Some(message))
    }

    /// Brings a file's data to its device, and what is needed to find it; all about the file unless `data_only`.
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn sync(&mut self, file: Arc<OwnedFd>, data_only: bool, token: u64) -> io::Result<()> {
        let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
        let entry = opcode::Fsync::new(Fd(file.as_raw_fd())).flags(flags).build();
        self.launch(entry, token, file, Held::Nothing, None)
    }

    fn launch(
        &mut self,
        entry: squeue::Entry,
        token: u64,
        descriptor: Arc<OwnedFd>,
        held: Held,
        message: Option<Box<Message>>,
    ) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.enter(0, None)?;
        }
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[index] = Some(Flight { token, held, _descriptor: descriptor, _message: message });
        let entry = entry.user_data(index as u64);
        // SAFETY: U: what the entry points to is owned by the flight just made, which lives until its completion was seen.
        // Of what it owns nothing moves: bytes, message and buffer lie on the heap or in a mapping.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| {
            self.flights[index] = None;
            self.vacant.push(index);
            io::ErrorKind::WouldBlock.into()
        })
    }

    /// Submits, and waits for completions to wait for; what interrupts it or takes too long is no error, nor that the
    /// kernel has no memory for a submission now: that stays where it is until the next time.
    fn enter(&mut self, completions: usize, time: Option<Duration>) -> io::Result<()> {
        let time = time.map(Timespec::from);
        let arguments = SubmitArgs::new();
        let arguments = time.as_ref().map_or(arguments, |time| arguments.timespec(time));
        match self.ring.submitter().submit_with_args(completions, &arguments) {
            Err(error)
                if !matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Submits what was asked for, waits until something has ended or the time is up, and adds what has to `done`.
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn wait(&mut self, time: Option<Duration>, done: &mut Vec<Done>) -> io::Result<()> {
        self.enter(1, time)?;
        self.reap(done);
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>) {
        for entry in self.ring.completion() {
            let index = entry.user_data() as usize;
            let Some(flight) = self.flights.get_mut(index).and_then(Option::take) else { continue };
            self.vacant.push(index);
            let result = u32::try_from(entry.result())
                .map_err(|_| io::Error::from_raw_os_error(entry.result().wrapping_neg()));
            done.push(Done { token: flight.token, result, held: flight.held });
        }
    }

    /// The slot a segment is registered in; registers it when it is not yet.
    fn slot(&mut self, segment: &Arc<Segment>) -> Option<u16> {
        let slot = self.known_slot(segment).or_else(|| self.register(segment));
        match slot {
            Some(_) => self.registrations.fixed += 1,
            None => self.registrations.unregistered += 1,
        }
        slot
    }

    fn known_slot(&self, segment: &Arc<Segment>) -> Option<u16> {
        self.slots.iter().find(|(_, known)| Arc::ptr_eq(known, segment)).map(|(slot, _)| *slot)
    }

    fn register(&mut self, segment: &Arc<Segment>) -> Option<u16> {
        if !self.registers {
            return None;
        }
        let retired: Vec<u16> =
            self.slots.iter().filter(|(_, known)| known.retired()).map(|(slot, _)| *slot).collect();
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        for slot in retired {
            // SAFETY: U: it names no memory; operations under way keep what they use.
            if unsafe { self.ring.submitter().register_buffers_update(u32::from(slot), &[nothing], None) }
                .is_ok()
            {
                self.slots.remove(&slot);
            }
        }
        let slot = (0..SLOTS as u16).find(|slot| !self.slots.contains_key(slot))?;
        let mapping = segment.mapping();
        let all = libc::iovec { iov_base: mapping.pointer().cast(), iov_len: mapping.length_bytes() };
        // SAFETY: U: the segment is kept in `slots` while it is registered, so its mapping stays.
        let registered =
            unsafe { self.ring.submitter().register_buffers_update(u32::from(slot), &[all], None) };
        // Most often the limit of locked memory: it will not be asked for again with each operation.
        self.registers = registered.is_ok();
        registered.ok()?;
        self.slots.insert(slot, Arc::clone(segment));
        Some(slot)
    }
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut done = Vec::new();
        // What was pushed and never submitted has to be known to the kernel before it can be called back.
        let mut healthy = self.enter(0, None).is_ok();
        while healthy && self.in_flight() > 0 {
            let called_back = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            let gone = called_back.err().and_then(|error| error.raw_os_error());
            healthy = matches!(gone, None | Some(libc::ENOENT | libc::EALREADY | libc::EINTR));
            healthy &=
                self.in_flight() == 0 || self.wait(Some(Duration::from_millis(100)), &mut done).is_ok();
        }
        if self.in_flight() > 0 {
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
