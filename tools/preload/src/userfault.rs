//! `userfaultfd(2)`: ranges whose first touch waits, and pages that are put there in one step.
//!
//! ```text
//! watch_missing(range) ──────────► who touches a page that is not there waits, the kernel on anyone's behalf included
//! watch_protected(range), protect ► who writes to a page waits, likewise
//! put(address, bytes) ───────────► the page is there with all its bytes, and those who waited go on
//! next() ────────────────────────► the range was moved, thrown away, unmapped, forked: who did so waits until this is read
//! ```
//!
//! `put` fails while such news are unread, so nobody's pages are ever filled at addresses that are no longer theirs.

use crate::system::{self, Descriptor, Number};

/// One context: everything it watches is let go when it is closed.
#[derive(Clone, Copy)]
pub(crate) struct Userfault(pub(crate) Descriptor);

/// What happened to watched memory.
pub(crate) enum News {
    /// Somebody touched it and waits.
    Touched,
    /// The process was forked: the child's own context.
    Forked(Userfault),
    /// These bytes are somewhere else now.
    Moved { from: usize, to: usize, bytes: usize },
    /// These pages are to be as if never written, in a moment.
    Discarded { from: usize, end: usize },
    /// These addresses were unmapped.
    Unmapped { from: usize, end: usize },
}

/// How a page could not be put where it belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotPut {
    /// There are news to be read first.
    News,
    /// Nothing is watched there, or something lies there.
    Superseded,
    /// The process is gone.
    Gone,
    /// There is no memory just now.
    Memory,
    /// Nothing of the kind that can happen.
    Unexplained,
}

#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
    mode: u64,
    answer: u64,
}

#[repr(C)]
struct Put {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    event: u64,
    values: [u64; 3],
}

const API: usize = 0xc018_aa3f;
const REGISTER: usize = 0xc020_aa00;
const COPY: usize = 0xc028_aa03;
const WRITE_PROTECT: usize = 0xc018_aa06;
const NEW_OF_DEVICE: usize = 0xaa00;

const MISSING: u64 = 1;
const PROTECTED: u64 = 2;
/// Faults by writing are told apart; forks, moves, discards and unmappings are told of.
const FEATURES: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;

impl Userfault {
    /// A context that serves faults of the kernel too; the kernel's answer where that is not permitted.
    pub(crate) fn open(device: Option<Descriptor>) -> Result<Self, Number> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: it touches no memory.
        let made = unsafe { system::call(libc::SYS_userfaultfd, [flags as usize, 0, 0, 0, 0, 0]) };
        let context = match made {
            Ok(descriptor) => Self(descriptor as Descriptor),
            Err(number) => Self(device.and_then(|device| of_device(device, flags)).ok_or(number)?),
        };
        let mut wanted = [0xaa, FEATURES, 0u64];
        // SAFETY: the request takes three words.
        if let Err(number) = unsafe { system::control(context.0, API, &mut wanted) } {
            context.close();
            return Err(number);
        }
        Ok(context)
    }

    pub(crate) fn close(self) {
        system::close(self.0);
    }

    /// Who touches a page of the range that is not there waits from now on.
    pub(crate) fn watch_missing(self, start: usize, bytes: usize) -> bool {
        self.register(start, bytes, MISSING)
    }

    /// Who writes to a protected page of the range waits from now on.
    pub(crate) fn watch_protected(self, start: usize, bytes: usize) -> bool {
        self.register(start, bytes, PROTECTED)
    }

    /// Protects the pages of the range that are there.
    pub(crate) fn protect(self, start: usize, bytes: usize) -> bool {
        self.set_protection(start, bytes, 1)
    }

    /// Who writes there need not wait any more.
    pub(crate) fn allow(self, start: usize, bytes: usize) {
        // Where the range was moved or unmapped there is nothing to allow; closing allows the rest.
        self.set_protection(start, bytes, 0);
    }

    fn register(self, start: usize, bytes: usize, mode: u64) -> bool {
        let mut range = Range { start: start as u64, bytes: bytes as u64, mode, answer: 0 };
        // SAFETY: the request takes this structure; watching changes no byte.
        unsafe { system::control(self.0, REGISTER, &mut range) }.is_ok()
    }

    fn set_protection(self, start: usize, bytes: usize, mode: u64) -> bool {
        let mut range = [start as u64, bytes as u64, mode];
        // SAFETY: the request takes three words, and changes no byte.
        unsafe { system::control(self.0, WRITE_PROTECT, &mut range) }.is_ok()
    }

    /// Puts whole pages at an address where none are; how many bytes were put, and what kept it from the rest.
    pub(crate) fn put(self, to: usize, bytes: &[u8]) -> (usize, Option<NotPut>) {
        let from = bytes.as_ptr().addr() as u64;
        let length = bytes.len() as u64;
        let mut put = Put { to: to as u64, from, bytes: length, mode: 0, done: 0 };
        // SAFETY: the request takes this structure, reads the slice and only adds pages where none are and a copy promised them.
        let Err(number) = (unsafe { system::control(self.0, COPY, &mut put) }) else {
            return (bytes.len(), None);
        };
        let reason = match number {
            libc::EAGAIN => NotPut::News,
            libc::EEXIST | libc::ENOENT => NotPut::Superseded,
            libc::ESRCH => NotPut::Gone,
            libc::ENOMEM => NotPut::Memory,
            _ => NotPut::Unexplained,
        };
        (usize::try_from(put.done).unwrap_or(0), Some(reason))
    }

    /// What happened next, if anything did.
    pub(crate) fn next(self) -> Option<News> {
        let mut message = [0u8; size_of::<Message>()];
        loop {
            match system::read(self.0, &mut message, false) {
                Ok(length) if length == message.len() => break,
                Err(libc::EAGAIN) => return None,
                Err(libc::EINTR) => {}
                // A child's context for which there is no descriptor: its fork would wait for ever.
                _ => system::end_process(),
            }
        }
        // SAFETY: any bytes are a message.
        let Message { event, values } = unsafe { std::ptr::read_unaligned(message.as_ptr().cast()) };
        let [first, second, third] = values.map(|value| value as usize);
        Some(match event as u8 {
            0x13 => News::Forked(Self(values[0] as u32 as Descriptor)),
            0x14 => News::Moved { from: first, to: second, bytes: third },
            0x15 => News::Discarded { from: first, end: second },
            0x16 => News::Unmapped { from: first, end: second },
            _ => News::Touched,
        })
    }
}

/// The device that makes contexts too: a machine's owner may open it to more users than the system call.
pub(crate) fn device() -> Option<Descriptor> {
    system::open(c"/dev/userfaultfd", libc::O_RDWR).ok()
}

fn of_device(device: Descriptor, flags: i32) -> Option<Descriptor> {
    let arguments = [device as usize, NEW_OF_DEVICE, flags as usize, 0, 0, 0];
    // SAFETY: it touches no memory.
    unsafe { system::call(libc::SYS_ioctl, arguments) }.ok().map(|descriptor| descriptor as Descriptor)
}
