//! What peers say about channels, from the readers of their connections to the thread of channels.
//!
//! ```text
//! reader of a connection ─ Teller::tell ─► its own queue, and a note, if there is none ─► the thread: Steps::next
//!                          └ more than the credit of all channels waits ─► the connection ends
//! ```
//!
//! Readers never wait for the thread, so that it delays no other messages of their peers. Each connection has a queue, from which the thread
//! takes in turns: a peer that says much delays its own channels. What waits is counted for the peer, not for the connection: one that connects
//! again and again has no more of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use super::uses::{Use, Uses};
use super::{MAX_OF_PEER, News};
use crate::backlog::{Backlog, Unsent};
use crate::message::Step;

/// Memory that what a peer said may take until the thread has seen it: that of the credit of all its channels, which is 1 MiB of contents and
/// messages about 64 slots each way.
pub(super) const MAX_WAITING: usize = 2 * MAX_OF_PEER * (1 << 20) + (16 << 20);

/// What a peer said about a channel.
pub(super) struct Told {
    pub(super) number: u32,
    pub(super) is_ours: bool,
    pub(super) step: Step,
    pub(super) bytes: Vec<u8>,
    _waiting: Unsent,
    _used: Use,
}

/// The end of a connection's queue that its reader has. The connection has ended when this is dropped.
pub(crate) struct Teller {
    connection: u64,
    /// `None` only during drop.
    told: Option<Sender<Told>>,
    waiting: Backlog,
    uses: Uses,
    is_noted: Arc<AtomicBool>,
    news: Sender<News>,
    bell: Arc<OwnedFd>,
}

/// The end that the thread has.
pub(crate) struct Steps {
    told: Receiver<Told>,
    uses: Uses,
    is_noted: Arc<AtomicBool>,
}

/// The two ends of a new queue. What waits in it counts in `waiting`.
pub(super) fn queue(
    connection: u64,
    waiting: Backlog,
    (news, bell): (Sender<News>, Arc<OwnedFd>),
) -> (Teller, Steps) {
    let (sender, told) = mpsc::channel();
    let uses = Uses::default();
    let is_noted = Arc::new(AtomicBool::new(false));
    let steps = Steps { told, uses: uses.clone(), is_noted: Arc::clone(&is_noted) };
    (Teller { connection, told: Some(sender), waiting, uses, is_noted, news, bell }, steps)
}

pub(super) fn ring(bell: &OwnedFd) {
    // It fails if the counter is full: then the thread is awake.
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

impl Teller {
    /// Passes on what the peer said, without waiting. Returns whether the peer may go on: one that keeps to the credit of its channels may.
    pub(crate) fn tell(&self, number: u32, is_ours: bool, step: Step, bytes: &[u8]) -> bool {
        // Given up, the connection ends in a moment.
        let Some(used) = self.uses.begin() else { return true };
        let Some(waiting) = self.waiting.add(bytes.len()) else { return false };
        let told = Told { number, is_ours, step, bytes: bytes.to_vec(), _waiting: waiting, _used: used };
        // It fails if the thread has given the connection up.
        let sent = self.told.as_ref().is_some_and(|sender| sender.send(told).is_ok());
        if sent && !self.is_noted.swap(true, Ordering::AcqRel) {
            self.note();
        }
        true
    }

    /// What uses the connection for channels.
    pub(crate) fn uses(&self) -> Uses {
        self.uses.clone()
    }

    fn note(&self) {
        if self.news.send(News::Told { connection: self.connection }).is_ok() {
            ring(&self.bell);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.told = None;
        self.note();
    }
}

impl Steps {
    /// The thread has seen the note: the next word of the peer makes another one.
    pub(super) fn see_note(&self) {
        self.is_noted.swap(false, Ordering::AcqRel);
    }

    /// Begins a use of the connection; `None` if it was given up.
    pub(super) fn begin_use(&self) -> Option<Use> {
        self.uses.begin()
    }

    /// What the peer said next.
    pub(super) fn next(&self) -> Result<Told, TryRecvError> {
        self.told.try_recv()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::EventfdFlags;

    use super::*;

    fn bell() -> Arc<OwnedFd> {
        Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap())
    }

    fn bound() -> Backlog {
        Backlog::of(MAX_WAITING)
    }

    #[test]
    fn a_reader_never_waits_and_is_bounded() {
        let (news, received) = mpsc::channel();
        let (teller, steps) = queue(7, bound(), (news, bell()));
        let piece = vec![1; 128 << 10];
        // Nobody takes anything. More than 256 fit, which is where readers once waited.
        let told = (0..).take_while(|number| teller.tell(*number, true, Step::End, &piece)).count();
        assert!((8 * 2 * MAX_OF_PEER..10 * 2 * MAX_OF_PEER).contains(&told), "{told}");
        assert!(matches!(received.try_recv(), Ok(News::Told { connection: 7 })));
        assert!(received.try_recv().is_err(), "one note for all");
        // In order, and with room for more as they are taken.
        steps.see_note();
        for number in 0..10 {
            assert_eq!(steps.next().ok().map(|told| told.number), Some(number));
        }
        assert!(teller.tell(99, true, Step::End, &piece));
        assert!(matches!(received.try_recv(), Ok(News::Told { connection: 7 })));
    }

    #[test]
    fn what_was_said_before_the_end_comes_before_it() {
        let (news, received) = mpsc::channel();
        let (teller, steps) = queue(7, bound(), (news, bell()));
        assert!(teller.tell(1, true, Step::End, &[]));
        assert!(received.try_recv().is_ok());
        drop(teller);
        assert!(matches!(received.try_recv(), Ok(News::Told { connection: 7 })), "the end is noted");
        assert!(steps.next().is_ok());
        assert!(matches!(steps.next(), Err(TryRecvError::Disconnected)));
    }
}
