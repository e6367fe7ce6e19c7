//! Closes clients' descriptors and sockets in threads that may block.
//!
//! ```text
//! close(user, item) ─► the user's queue ─► a free thread, at most one per user ─► dropped
//! pending(user) ◄─ items not dropped yet: with many, the user's connections are refused or not read
//! ```
//!
//! A client can make a close block for any time: by a socket that lingers, or a file of a file system that it serves. The
//! threads are started before the process enters its sandbox. A user that blocks one of them does not delay other users
//! while another thread is free. Unmapping large memory is slow, and has a separate closer.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Item = Box<dyn Any + Send>;

/// Items of a user that are not closed yet.
#[derive(Default)]
struct Pending {
    queue: VecDeque<Item>,
    /// Whether a thread is closing one of them.
    busy: bool,
}

impl Pending {
    fn count(&self) -> usize {
        self.queue.len() + usize::from(self.busy)
    }
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, Pending>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Threads that drop items.
pub(crate) struct Closer(Arc<Shared>);

impl Closer {
    /// Starts `threads` threads and waits until they run.
    pub(crate) fn start(threads: u32) -> std::io::Result<Self> {
        let closer = Self(Arc::default());
        let (running, started) = channel();
        for number in 0..threads {
            let shared = Arc::clone(&closer.0);
            let running = running.clone();
            std::thread::Builder::new().name(format!("memferry-close-{number}")).spawn(move || {
                let _ = running.send(());
                shared.run();
            })?;
            let _ = started.recv();
        }
        Ok(closer)
    }

    /// Queues `item`, which came from `user`, to be dropped.
    pub(crate) fn close(&self, user: u32, item: impl Send + 'static) {
        self.0.lock().users.entry(user).or_default().queue.push_back(Box::new(item));
        self.0.changed.notify_one();
    }

    /// Number of items of `user` that are not closed yet.
    pub(crate) fn pending(&self, user: u32) -> usize {
        self.0.lock().users.get(&user).map_or(0, Pending::count)
    }

    /// Number of items of all users that are not closed yet.
    pub(crate) fn all_pending(&self) -> usize {
        self.0.lock().users.values().map(Pending::count).sum()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut state = self.lock();
        loop {
            let Some((user, item)) = state.next() else {
                if state.ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            drop(item);
            state = self.lock();
            state.closed(user);
        }
    }
}

impl State {
    /// The next item of a user for which no thread is busy.
    fn next(&mut self) -> Option<(u32, Item)> {
        let (user, pending) = self.users.iter_mut().find(|(_, pending)| !pending.busy)?;
        let item = pending.queue.pop_front()?;
        pending.busy = true;
        Some((*user, item))
    }

    fn closed(&mut self, user: u32) {
        if let Some(pending) = self.users.get_mut(&user) {
            pending.busy = false;
            if pending.queue.is_empty() {
                self.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// Blocks the thread that drops it until the sender is gone.
    struct Blocking(Receiver<()>);

    impl Drop for Blocking {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    struct Reporting(Sender<u32>, u32);

    impl Drop for Reporting {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn a_blocking_user_delays_no_other_user() {
        let closer = Closer::start(8).unwrap();
        let (release, blocked) = channel();
        closer.close(1, Blocking(blocked));
        let (reporter, reports) = channel();
        for number in 0..100 {
            closer.close(1, Reporting(reporter.clone(), number));
        }
        // More users than threads.
        for user in 2..50 {
            closer.close(user, Reporting(reporter.clone(), 1000 + user));
        }
        let mut others: Vec<u32> = reports.iter().take(48).collect();
        others.sort_unstable();
        assert_eq!(others, (1002..1050).collect::<Vec<_>>());
        assert_eq!(closer.pending(1), 101);
        // An item is subtracted shortly after its drop reports.
        while closer.all_pending() > 101 {
            std::thread::yield_now();
        }
        assert_eq!(closer.all_pending(), 101);
        drop(release);
        assert!(reports.iter().take(100).eq(0..100), "in the order of close");
    }

    #[test]
    fn remaining_items_are_dropped_at_the_end() {
        let closer = Closer::start(8).unwrap();
        let (reporter, reports) = channel();
        closer.close(7, Reporting(reporter, 3));
        drop(closer);
        assert_eq!(reports.iter().collect::<Vec<_>>(), [3]);
    }
}
