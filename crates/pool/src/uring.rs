//! An io_uring for safe code: each operation owns the memory that Linux accesses until the operation has completed.
//!
//! ```text
//! read_file, receive, send, … (descriptor, buffer, token) ─► Flight owns them ─► Linux ─► wait ─► Done {token, result, held}
//! a buffer of a pool ─ its segment registered, now or before ─► READ_FIXED, WRITE_FIXED
//!                    └ registration fails ────────────────────► READ, WRITE on the same memory
//! ```
//!
//! Invariant U, on which the unsafe code relies: a flight owns all memory to which its submitted operation points, and it
//! lives until the completion of the operation was taken. Dropping a ring cancels its operations and waits for them; if that
//! fails, it leaks their memory. Only the thread that made a ring uses it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use crate::{Buffer, BufferView, Segment};

/// Limit on the segments registered at a time.
const SLOTS: u32 = 512;

/// The memory that an operation owned.
#[derive(Debug)]
pub enum Held {
    Nothing,
    /// The destination of [`Ring::receive`].
    Bytes(Vec<u8>),
    /// The destination of a read or of [`Ring::receive_buffer`].
    Buffer(Buffer),
    /// The head and the view that were sent or written.
    Sent(Vec<u8>, Option<BufferView>),
}

/// An operation that Linux has completed.
#[derive(Debug)]
pub struct Done {
    /// The token of the call that started it.
    pub token: u64,
    /// Number of bytes, or the poll events.
    pub result: io::Result<u32>,
    pub held: Held,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registrations {
    /// Number of segments registered now.
    pub segments: u64,
    /// Count of operations on registered buffers.
    pub fixed: u64,
    /// Count of operations on buffers of segments that could not be registered.
    pub unregistered: u64,
}

/// The owner of an operation in flight (invariant U).
struct Flight {
    token: u64,
    held: Held,
    /// Stays open while the operation may use it.
    _descriptor: Arc<OwnedFd>,
    /// Header of a send of a head and a view.
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
    /// Whether to register segments: cleared when Linux refuses the buffer table or a registration.
    registers: bool,
    registrations: Registrations,
}

impl Ring {
    /// Makes a ring with room for `entries` submissions between two waits. Further ones are submitted before the wait.
    ///
    /// # Errors
    /// Those of `io_uring_setup`, for instance when the system forbids it.
    pub fn new(entries: u32) -> io::Result<Self> {
        let completions = entries.saturating_mul(4);
        // With a single issuer, Linux 6.1 and later runs completion work only while that thread waits.
        let ring = IoUring::builder()
            .setup_cqsize(completions)
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(entries)
            .or_else(|_| IoUring::builder().setup_cqsize(completions).build(entries))?;
        let registers = ring.submitter().register_buffers_sparse(SLOTS).is_ok();
        Ok(Self {
            ring,
            flights: Vec::new(),
            vacant: Vec::new(),
            slots: BTreeMap::new(),
            registers,
            registrations: Registrations::default(),
        })
    }

    /// The number of operations whose completions were not taken.
    pub fn in_flight(&self) -> usize {
        self.flights.len() - self.vacant.len()
    }

    pub fn registrations(&self) -> Registrations {
        Registrations { segments: self.slots.len() as u64, ..self.registrations }
    }

    /// Completes when the descriptor has one of `events` (`POLLIN` and so on).
    ///
    /// # Errors
    /// Those of `io_uring_enter`.
    pub fn poll(&mut self, descriptor: Arc<OwnedFd>, events: u32, token: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events).build();
        self.launch(entry, token, descriptor, Held::Nothing, None)
    }

    /// Receives available bytes from a socket, at most `count`, into `bytes` at `at`.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside `bytes`; those of `io_uring_enter`.
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

    /// Receives `count` bytes into a buffer at `at`; fewer only if the stream ends.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the buffer; those of `io_uring_enter`.
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

    /// Reads `count` bytes at `offset` of a file into a buffer at `at`.
    ///
    /// # Errors
    /// `InvalidInput` for a range outside the buffer; those of `io_uring_enter`.
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

    /// Writes a view to a file at `offset`.
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

    /// Sends `head`, then the view. Since Linux 5.19 it sends all bytes unless the connection breaks.
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
        // SAFETY: a zeroed message header is a valid empty one.
        let header = unsafe { std::mem::zeroed() };
        let mut message = Box::new(Message { header, parts });
        message.header.msg_iov = message.parts.as_mut_ptr();
        message.header.msg_iovlen = message.parts.len() as _;
        let entry = opcode::SendMsg::new(fd, &raw const message.header).flags(flags as u32).build();
        self.launch(entry, token, socket, Held::Sent(head, view), Some(message))
    }

    /// Flushes a file to its device: data and metadata, or data and the metadata needed to read it if `data_only`.
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
        // SAFETY: U: the flight just made owns the memory to which the entry points, and lives until the completion was
        // taken. That memory does not move: bytes, message and buffer lie on the heap or in a mapping.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| {
            self.flights[index] = None;
            self.vacant.push(index);
            io::ErrorKind::WouldBlock.into()
        })
    }

    /// Submits, and waits until `completions` completions are available or `time` is over. Neither a time-out nor a signal is
    /// an error, nor a lack of memory in Linux: those submissions stay queued for the next call.
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

    /// Submits queued operations, waits until one has completed or `time` is over, and appends completed ones to `done`.
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

    /// The slot of a registered segment. Registers it if necessary.
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
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        for slot in retired {
            // SAFETY: U: the update names no memory, and operations in flight keep the memory that they use.
            if unsafe { self.ring.submitter().register_buffers_update(u32::from(slot), &[empty], None) }
                .is_ok()
            {
                self.slots.remove(&slot);
            }
        }
        let slot = (0..SLOTS as u16).find(|slot| !self.slots.contains_key(slot))?;
        let mapping = segment.mapping();
        let all = libc::iovec { iov_base: mapping.pointer().cast(), iov_len: mapping.length_bytes() };
        // SAFETY: U: `slots` holds the segment while it is registered, so it stays mapped.
        let registered =
            unsafe { self.ring.submitter().register_buffers_update(u32::from(slot), &[all], None) };
        // The usual cause of a failure is RLIMIT_MEMLOCK, so later operations do not try again.
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
        // Linux can cancel only operations that were submitted.
        let mut healthy = self.enter(0, None).is_ok();
        while healthy && self.in_flight() > 0 {
            let cancelled = self.ring.submitter().register_sync_cancel(None, CancelBuilder::any());
            let error = cancelled.err().and_then(|error| error.raw_os_error());
            healthy = matches!(error, None | Some(libc::ENOENT | libc::EALREADY | libc::EINTR));
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
