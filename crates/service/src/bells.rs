//! Doorbells: how clients wake a sleeping worker.
//!
//! ```text
//! client writes to its doorbell, an eventfd ──► Bell of its user, an epoll instance ──► worker, by poll(2)
//! ```
//!
//! Each queue has a doorbell, and all doorbells of a user at a worker are members of one [`Bell`]. A worker that sleeps polls as
//! many descriptors as it has users.
//!
//! A client may watch its doorbell too, with hundreds of thousands of watches. The kernel goes through all of them whenever the
//! doorbell rings, and adding or removing a watch waits for that. So a doorbell is added before its client has it, and never
//! removed: its watch goes with its last descriptor, which this process does not hold, or with the bell.
//!
//! Bells are not members of another epoll instance. For nesting them Linux has one lock for the whole machine, and a client that
//! serves a file system can hold it for as long as it likes, with epoll instances of its own.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

/// Doorbells of a bell. Clients may keep those of closed queues, so a bell with so many gets no more.
const DOORBELLS: u32 = 4096;
/// Entries of [`Bells`] up to which none is removed.
const FEW: usize = 64;

/// The doorbells of a user at a worker.
#[derive(Debug)]
pub(crate) struct Bell {
    rung: OwnedFd,
}

impl Bell {
    fn new() -> rustix::io::Result<Self> {
        Ok(Self { rung: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// A new doorbell, for a client.
    ///
    /// # Errors
    /// Those of eventfd(2) and epoll_ctl(2).
    fn doorbell(&self) -> rustix::io::Result<OwnedFd> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // Edge-triggered: every write to the doorbell is an event, and nothing has to be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.rung, &doorbell, epoll::EventData::new_u64(0), flags)?;
        Ok(doorbell)
    }

    /// Forgets the rings so far, or some of them if they are many.
    pub(crate) fn take(&self) {
        let mut events = [std::mem::MaybeUninit::uninit(); 64];
        let _ = epoll::wait(&self.rung, &mut events, Some(&Timespec::default()));
    }

    /// A bell and a doorbell of it, for tests.
    #[cfg(test)]
    pub(crate) fn with_doorbell() -> (Arc<Self>, OwnedFd) {
        let bell = Self::new().unwrap();
        let doorbell = bell.doorbell().unwrap();
        (Arc::new(bell), doorbell)
    }
}

/// Readable when a doorbell rang.
impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.rung.as_fd()
    }
}

/// The bells that new queues use.
#[derive(Debug, Default)]
pub(crate) struct Bells {
    of: BTreeMap<(u32, usize), (Weak<Bell>, u32)>,
    /// With so many entries, those whose bells are gone are removed.
    full: usize,
}

impl Bells {
    /// A doorbell for a new queue of `user` at `worker`, and its bell.
    ///
    /// # Errors
    /// Those of eventfd(2), epoll_create1(2) and epoll_ctl(2).
    pub(crate) fn open(&mut self, user: u32, worker: usize) -> rustix::io::Result<(OwnedFd, Arc<Bell>)> {
        if self.of.len() >= self.full {
            self.of.retain(|_, (bell, _)| bell.strong_count() > 0);
            // Twice as many, so that each new entry pays for looking at two.
            self.full = FEW.max(2 * self.of.len());
        }
        let known = self.of.get(&(user, worker)).filter(|(_, doorbells)| *doorbells < DOORBELLS);
        let (bell, doorbells) = match known.and_then(|(bell, doorbells)| Some((bell.upgrade()?, *doorbells)))
        {
            Some(known) => known,
            None => (Arc::new(Bell::new()?), 0),
        };
        let doorbell = bell.doorbell()?;
        self.of.insert((user, worker), (Arc::downgrade(&bell), doorbells + 1));
        Ok((doorbell, bell))
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn rang(bell: &Bell) -> bool {
        let mut entries = [PollFd::new(bell, PollFlags::IN)];
        poll(&mut entries, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn doorbells_of_a_user_ring_one_bell() {
        let mut bells = Bells::default();
        let (one, bell) = bells.open(1, 0).unwrap();
        let (other, same) = bells.open(1, 0).unwrap();
        assert!(Arc::ptr_eq(&bell, &same));
        for (user, worker) in [(2, 0), (1, 1)] {
            assert!(!Arc::ptr_eq(&bell, &bells.open(user, worker).unwrap().1));
        }
        for doorbell in [&one, &other, &one] {
            assert!(!rang(&bell));
            rustix::io::write(doorbell, &1u64.to_ne_bytes()).unwrap();
            assert!(rang(&bell));
            bell.take();
        }
        drop((one, other));
        assert!(!rang(&bell));
    }

    #[test]
    fn a_bell_is_replaced_when_it_is_full_or_gone() {
        let mut bells = Bells::default();
        let (_doorbell, first) = bells.open(1, 0).unwrap();
        bells.of.get_mut(&(1, 0)).unwrap().1 = DOORBELLS;
        let (_doorbell, second) = bells.open(1, 0).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        drop(second);
        for user in 0..1000 {
            bells.open(user, 1).unwrap();
        }
        assert!(bells.of.len() <= FEW && !bells.of.contains_key(&(1, 0)), "nobody uses them");
    }
}
