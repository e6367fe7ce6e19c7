//! Admits memory that a peer sent, on a thread that no caller waits for longer than it wants.
//!
//! ```text
//! begin(memory) ─► helper thread: frame::admit ─► answer ─► wait(until) ─► mapping, or why not
//!                     └ the peer holds the memory ─► the caller gives up ─► counted by user until the call returns
//! ```
//!
//! Sealing, truncating and examining a memfd need its inode lock, and mapping it needs the lock of its mappings. A process that
//! writes to the memfd from memory whose page faults it never answers (FUSE, userfaultfd) holds the inode lock as long as it
//! likes, and the call cannot be interrupted. So these calls are made on a helper thread of the connection, which is never
//! joined. The process cannot end while a helper is stuck, not even by SIGKILL. A user whose memory holds [`MOST_LEFT`] helpers
//! gets no further one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use memferry_shm::frame::{self, FrameRefused};
use memferry_shm::mapping::Mapping;
use rustix::io::Errno;

use crate::closing::close_elsewhere;
use crate::error::is_shortage;
use crate::socket::NoDescriptor;
use crate::tally::ByUser;

/// Helpers that may be stuck in memory of one user.
pub(crate) const MOST_LEFT: u32 = 8;
/// Bytes of a helper's stack.
const STACK: usize = 128 << 10;

/// Helpers that are stuck.
static LEFT: ByUser = ByUser::new();

/// Helpers that are stuck in memory of `user`.
pub(crate) fn stuck(user: u32) -> u32 {
    LEFT.get(user)
}

/// Why memory was not admitted. After a shortage it can be tried again.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) why: NoDescriptor,
    pub(crate) memory: Option<OwnedFd>,
}

impl Refused {
    fn shortage(error: Errno, memory: Option<OwnedFd>) -> Self {
        Self { why: NoDescriptor::Shortage(error), memory }
    }
}

pub(crate) type Answer = Result<Mapping, Refused>;

struct Job {
    memory: OwnedFd,
    length: u64,
    /// Set by the first of the two that leaves the job: the helper when it has finished, or the caller when it gives up.
    left: Arc<AtomicBool>,
}

struct Helper {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    /// The flag of the job under way.
    under_way: Option<Arc<AtomicBool>>,
}

/// Admits memory of one peer, one piece at a time.
pub(crate) struct Admitter {
    user: u32,
    helper: Option<Helper>,
}

impl Admitter {
    /// For memory that a process of `user` sends. Starts no thread yet.
    pub(crate) fn new(user: u32) -> Self {
        Self { user, helper: None }
    }

    /// Starts to admit `length` bytes. The job before must have been answered.
    pub(crate) fn begin(&mut self, memory: OwnedFd, length: u64) -> Result<(), Refused> {
        let helper = match &mut self.helper {
            Some(helper) => helper,
            none => match Helper::start(self.user) {
                Ok(helper) => none.insert(helper),
                Err(error) => {
                    let error = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
                    return Err(Refused::shortage(error, Some(memory)));
                }
            },
        };
        let left = Arc::new(AtomicBool::new(false));
        helper.under_way = Some(Arc::clone(&left));
        helper.jobs.send(Job { memory, length, left }).map_err(|unsent| {
            self.helper = None;
            Refused::shortage(Errno::AGAIN, Some(unsent.0.memory))
        })
    }

    /// Waits for the job's answer; `None` if it did not come in time. Without a time it waits indefinitely.
    pub(crate) fn wait(&mut self, until: Option<Instant>) -> Option<Answer> {
        let helper = self.helper.as_mut()?;
        let answer = match until {
            None => helper.answers.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => helper.answers.recv_timeout(until.saturating_duration_since(Instant::now())),
        };
        match answer {
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => self.helper = None,
            Ok(_) => helper.under_way = None,
        }
        Some(answer.unwrap_or_else(|_| Err(Refused::shortage(Errno::AGAIN, None))))
    }

    /// Leaves the job under way to the helper, which ends after it.
    pub(crate) fn give_up(&mut self) {
        let left = self.helper.take().and_then(|helper| helper.under_way);
        if let Some(left) = left {
            LEFT.add(self.user, 1);
            if left.swap(true, Ordering::AcqRel) {
                LEFT.subtract(self.user, 1);
            }
        }
    }

    /// Forgets the helper, in a forked child, which has none of its parent's threads.
    pub(crate) fn forget(&mut self) {
        std::mem::forget(self.helper.take());
    }
}

impl Drop for Admitter {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Helper {
    fn start(user: u32) -> std::io::Result<Self> {
        let (jobs, taken) = channel::<Job>();
        let (answered, answers) = channel();
        let work = move || {
            for Job { memory, length, left } in taken {
                let answer = admit(memory, length, user);
                if left.swap(true, Ordering::AcqRel) {
                    LEFT.subtract(user, 1);
                    return;
                }
                if answered.send(answer).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("memferry-admit".to_owned()).stack_size(STACK);
        thread.spawn(work)?;
        Ok(Self { jobs, answers, under_way: None })
    }
}

/// Admits memory that a process of `user` sent. A shortage of this process is no violation of the peer.
fn admit(memory: OwnedFd, length: u64, user: u32) -> Answer {
    let refused = match frame::admit(memory.as_fd(), length, user) {
        Ok(mapping) => return Ok(mapping),
        Err(refused) => refused,
    };
    if let FrameRefused::System { source, .. } = &refused
        && let Some(error) = Errno::from_io_error(source).filter(|error| is_shortage(*error))
    {
        return Err(Refused::shortage(error, Some(memory)));
    }
    // Anything but memory may be slow to close.
    close_elsewhere(user, vec![memory]);
    Err(Refused { why: NoDescriptor::Broken(refused.into()), memory: None })
}
