//! Closes what came from clients where nobody waits for it.
//!
//! Closing may block for as long as a client likes: a socket that lingers, a file that the client itself serves. A few
//! threads, started before the process confines itself, do nothing else; a user's things always go to the same one, so
//! whoever blocks it delays those few it shares it with. Users with much unclosed are turned away ([`Closer::pending`]).

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

const THREADS: u32 = 4;

type Pending = Arc<Mutex<BTreeMap<u32, usize>>>;

/// Threads that drop things.
pub(crate) struct Closer {
    threads: Vec<Sender<(u32, Box<dyn Any + Send>)>>,
    pending: Pending,
}

impl Closer {
    /// Starts the threads and waits until they run.
    pub(crate) fn start() -> std::io::Result<Self> {
        let pending = Pending::default();
        let mut threads = Vec::new();
        let (running, started) = channel();
        for number in 0..THREADS {
            let (sender, receiver) = channel::<(u32, Box<dyn Any + Send>)>();
            let (pending, running) = (Arc::clone(&pending), running.clone());
            std::thread::Builder::new().name(format!("memferry-close-{number}")).spawn(move || {
                let _ = running.send(());
                for (user, thing) in receiver {
                    drop(thing);
                    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(count) = pending.get_mut(&user) {
                        *count -= 1;
                        if *count == 0 {
                            pending.remove(&user);
                        }
                    }
                }
            })?;
            threads.push(sender);
            let _ = started.recv();
        }
        Ok(Self { threads, pending })
    }

    /// Drops `thing`, which came from `user`, some time.
    pub(crate) fn close(&self, user: u32, thing: impl Send + 'static) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner).entry(user).or_default() += 1;
        let thread = &self.threads[(user % THREADS) as usize];
        // The threads live as long as their senders.
        let _ = thread.send((user, Box::new(thing)));
    }

    /// Things of `user` that are not closed yet.
    pub(crate) fn pending(&self, user: u32) -> usize {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).get(&user).copied().unwrap_or(0)
    }
}
