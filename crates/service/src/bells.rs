//! Doorbells: how clients wake a sleeping worker.
//!
//! ```text
//! client writes to its doorbell, an eventfd ──► Bell of its user, an epoll instance ──► worker, by poll(2)
//! ```
//!
//! Each queue has a doorbell, and all doorbells of a user at a worker are members of one [`Bell`]. A worker that sleeps polls as
//! many descriptors as it has users.
//!
//! Where there are several workers, a doorbell is also the only member of another bell. A worker to which the queue moves polls
//! that one. The queue's first worker is woken by the doorbell too, if it sleeps and has other queues of the user.
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
        self.add(&doorbell)?;
        Ok(doorbell)
    }

    /// A doorbell for an engine process, and a bell for each worker that rings with it.
    ///
    /// # Errors
    /// Those of eventfd(2), epoll_create1(2) and epoll_ctl(2).
    pub(crate) fn of_engine(workers: usize) -> rustix::io::Result<(OwnedFd, Vec<Arc<Self>>)> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let bells = (0..workers).map(|_| {
            let bell = Self::new()?;
            bell.add(&doorbell)?;
            Ok(Arc::new(bell))
        });
        let bells = bells.collect::<rustix::io::Result<_>>()?;
        Ok((doorbell, bells))
    }

    fn add(&self, doorbell: &OwnedFd) -> rustix::io::Result<()> {
        // Edge-triggered: every write to the doorbell is an event, and nothing has to be read.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.rung, doorbell, epoll::EventData::new_u64(0), flags)
    }

    /// Forgets the rings so far, or some of them if they are many.
    pub(crate) fn take(&self) {
        let mut events = [std::mem::MaybeUninit::uninit(); 64];
        let _ = epoll::wait(&self.rung, &mut events, Some(&Timespec::default()));
    }
}

/// What rings when the doorbell of a queue does.
#[derive(Clone, Debug)]
pub(crate) struct QueueBells {
    /// The worker that got the queue when it was opened.
    home: usize,
    at_home: Arc<Bell>,
    elsewhere: Option<Arc<Bell>>,
}

impl QueueBells {
    /// The bell that a worker polls while it has the queue.
    pub(crate) fn at(&self, worker: usize) -> &Arc<Bell> {
        self.elsewhere.as_ref().filter(|_| worker != self.home).unwrap_or(&self.at_home)
    }

    /// Whether workers but the first one can have the queue.
    pub(crate) const fn can_move(&self) -> bool {
        self.elsewhere.is_some()
    }

    /// The bell of the queue's first worker.
    pub(crate) const fn at_home(&self) -> &Arc<Bell> {
        &self.at_home
    }

    /// Bells of a queue that stays at worker 0, and its doorbell, for tests.
    #[cfg(test)]
    pub(crate) fn with_doorbell() -> (Self, OwnedFd) {
        Bells::default().open(0, 0, false).map(|(doorbell, bells)| (bells, doorbell)).unwrap()
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
    /// A doorbell for a new queue of `user` at `worker`, and its bells. The queue may move if there are `several` workers.
    ///
    /// # Errors
    /// Those of eventfd(2), epoll_create1(2) and epoll_ctl(2).
    pub(crate) fn open(
        &mut self,
        user: u32,
        worker: usize,
        several: bool,
    ) -> rustix::io::Result<(OwnedFd, QueueBells)> {
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
        let elsewhere = several.then(Bell::new).transpose()?.map(Arc::new);
        // Now, because nobody else can watch the doorbell yet.
        elsewhere.as_ref().map_or(Ok(()), |bell| bell.add(&doorbell))?;
        Ok((doorbell, QueueBells { home: worker, at_home: bell, elsewhere }))
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
        let (one, first) = bells.open(1, 0, false).unwrap();
        let (other, second) = bells.open(1, 0, false).unwrap();
        let bell = first.at_home();
        assert!(Arc::ptr_eq(bell, second.at_home()));
        for (user, worker) in [(2, 0), (1, 1)] {
            assert!(!Arc::ptr_eq(bell, bells.open(user, worker, false).unwrap().1.at_home()));
        }
        for doorbell in [&one, &other, &one] {
            assert!(!rang(bell));
            rustix::io::write(doorbell, &1u64.to_ne_bytes()).unwrap();
            assert!(rang(bell));
            bell.take();
        }
        drop((one, other));
        assert!(!rang(bell));
    }

    #[test]
    fn a_doorbell_of_several_workers_rings_two_bells() {
        let mut bells = Bells::default();
        let (one, first) = bells.open(1, 0, true).unwrap();
        let (_other, second) = bells.open(1, 0, true).unwrap();
        let away = first.at(1);
        assert!(Arc::ptr_eq(first.at(0), first.at_home()));
        assert!(!Arc::ptr_eq(away, second.at(1)));
        rustix::io::write(&one, &1u64.to_ne_bytes()).unwrap();
        assert!(rang(away) && rang(first.at_home()) && !rang(second.at(1)));
        first.at_home().take();
        assert!(rang(away), "each has its own events");
        assert!(first.can_move() && !bells.open(1, 0, false).unwrap().1.can_move());
    }

    #[test]
    fn a_bell_is_replaced_when_it_is_full_or_gone() {
        let mut bells = Bells::default();
        let (_doorbell, first) = bells.open(1, 0, false).unwrap();
        bells.of.get_mut(&(1, 0)).unwrap().1 = DOORBELLS;
        let (_doorbell, second) = bells.open(1, 0, false).unwrap();
        assert!(!Arc::ptr_eq(first.at_home(), second.at_home()));
        drop(second);
        for user in 0..1000 {
            bells.open(user, 1, false).unwrap();
        }
        assert!(bells.of.len() <= FEW && !bells.of.contains_key(&(1, 0)), "nobody uses them");
    }
}
