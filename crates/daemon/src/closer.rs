//! Closes what came from clients where nobody waits for it.
//!
//! ```text
//! close(user, thing) ─► the user's queue ─► a free thread, never two for one user ─► dropped
//! pending(user) ◄─ not dropped yet: who has much of it is turned away, or not listened to
//! ```
//!
//! Closing may block for as long as a client likes: a socket that lingers, a file that the client itself serves. A few
//! threads, started before the process confines itself, do nothing else; a user who blocks one delays nobody else's things
//! while another is free. Unmapping large memory is slow, and has a closer of its own.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

type Thing = Box<dyn Any + Send>;

/// What a user sent that is not closed yet.
#[derive(Default)]
struct Unclosed {
    queue: VecDeque<Thing>,
    /// A thread is closing something of it.
    busy: bool,
}

impl Unclosed {
    fn count(&self) -> usize {
        self.queue.len() + usize::from(self.busy)
    }
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, Unclosed>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Threads that drop things.
pub(crate) struct Closer(Arc<Shared>);

impl Closer {
    /// Starts so many threads and waits until they run.
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

    /// Drops `thing`, which came from `user`, some time.
    pub(crate) fn close(&self, user: u32, thing: impl Send + 'static) {
        self.0.lock().users.entry(user).or_default().queue.push_back(Box::new(thing));
        self.0.changed.notify_one();
    }

    /// Things of `user` that are not closed yet.
    pub(crate) fn pending(&self, user: u32) -> usize {
        self.0.lock().users.get(&user).map_or(0, Unclosed::count)
    }

    /// Things of all users that are not closed yet.
    pub(crate) fn all_pending(&self) -> usize {
        self.0.lock().users.values().map(Unclosed::count).sum()
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
            let Some((user, thing)) = state.next() else {
                if state.ended {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            drop(thing);
            state = self.lock();
            state.closed(user);
        }
    }
}

impl State {
    /// Something of a user that no thread is busy with.
    fn next(&mut self) -> Option<(u32, Thing)> {
        let (user, unclosed) = self.users.iter_mut().find(|(_, unclosed)| !unclosed.busy)?;
        let thing = unclosed.queue.pop_front()?;
        unclosed.busy = true;
        Some((*user, thing))
    }

    fn closed(&mut self, user: u32) {
        if let Some(unclosed) = self.users.get_mut(&user) {
            unclosed.busy = false;
            if unclosed.queue.is_empty() {
                self.users.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender};

    use super::*;

    /// Blocks whoever drops it until it is let go.
    struct Blocking(Receiver<()>);

    impl Drop for Blocking {
        fn drop(&mut self) {
            let _ = self.0.recv();
        }
    }

    struct Telling(Sender<u32>, u32);

    impl Drop for Telling {
        fn drop(&mut self) {
            let _ = self.0.send(self.1);
        }
    }

    #[test]
    fn a_user_who_blocks_delays_nobody_else_and_is_counted() {
        let closer = Closer::start(8).unwrap();
        let (let_go, held) = channel();
        closer.close(1, Blocking(held));
        let (tell, told) = channel();
        for number in 0..100 {
            closer.close(1, Telling(tell.clone(), number));
        }
        // Whatever thread they would share.
        for user in 2..50 {
            closer.close(user, Telling(tell.clone(), 1000 + user));
        }
        let mut others: Vec<u32> = told.iter().take(48).collect();
        others.sort_unstable();
        assert_eq!(others, (1002..1050).collect::<Vec<_>>());
        assert_eq!(closer.pending(1), 101);
        // What told of its end is counted out a moment later.
        while closer.all_pending() > 101 {
            std::thread::yield_now();
        }
        assert_eq!(closer.all_pending(), 101);
        drop(let_go);
        assert!(told.iter().take(100).eq(0..100), "in their order");
    }

    #[test]
    fn what_is_left_is_dropped_when_the_closer_ends() {
        let closer = Closer::start(8).unwrap();
        let (tell, told) = channel();
        closer.close(7, Telling(tell, 3));
        drop(closer);
        assert_eq!(told.iter().collect::<Vec<_>>(), [3]);
    }
}
