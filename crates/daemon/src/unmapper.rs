//! Drops unused memory and queues in a thread of their own: unmapping takes as long as the memory is large, and removing a doorbell
//! as long as its client's watches take. The control thread does not wait for it, and the process ends without it.
//!
//! Memory that was never sealed can delay every mapping of the process while it is unmapped, so it is [timed](Rests), and waits while its
//! user rests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use memferry_shm::mapping::Mapping;

use crate::rests::Rests;

pub(crate) struct Unmapper(Sender<Item>);

enum Item {
    Ordinary(Box<dyn Send>),
    Unsealed(u32, Box<dyn Send>),
}

impl Unmapper {
    /// Starts the thread and waits until it runs: a thread cannot start in a confined process.
    ///
    /// # Errors
    /// Those of clone.
    pub(crate) fn start(rests: Arc<Rests>) -> std::io::Result<Self> {
        let (queue, items) = channel::<Item>();
        let (running, started) = channel();
        std::thread::Builder::new().name("memferry-unmap".to_owned()).spawn(move || {
            let _ = running.send(());
            run(items, &rests);
        })?;
        let _ = started.recv();
        Ok(Self(queue))
    }

    pub(crate) fn drop_later(&self, item: Box<dyn Send>) {
        // The thread ends only after its sender.
        let _ = self.0.send(Item::Ordinary(item));
    }

    /// Drops memory of `user` that may not be sealed.
    pub(crate) fn drop_unsealed(&self, user: u32, memory: Mapping) {
        let _ = self.0.send(Item::Unsealed(user, Box::new(memory)));
    }
}

fn run(items: Receiver<Item>, rests: &Rests) {
    // Of users that rest. While they do, no memory of theirs is mapped, so these are few.
    let mut waiting: Vec<(u32, Box<dyn Send>)> = Vec::new();
    loop {
        let time_left = |(user, _): &(u32, Box<dyn Send>)| rests.time_left(*user).unwrap_or_default();
        let next = waiting.iter().map(time_left).min().unwrap_or(Duration::MAX);
        match items.recv_timeout(next) {
            Ok(Item::Ordinary(item)) => drop(item),
            Ok(Item::Unsealed(user, memory)) => waiting.push((user, memory)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // One by one: the first of a user may begin its rest.
        while let Some(due) = waiting.iter().position(|(user, _)| rests.time_left(*user).is_none()) {
            let (user, memory) = waiting.remove(due);
            rests.timed(user, || drop(memory));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rests::ALLOWED;

    #[test]
    fn memory_of_a_resting_user_is_not_unmapped() {
        let rests = Arc::new(Rests::default());
        // A call that takes so long costs a rest of 25 seconds.
        rests.timed(7, || std::thread::sleep(ALLOWED));
        let (sender, items) = channel();
        let unsealed = |user| {
            let memory = Arc::new(());
            sender.send(Item::Unsealed(user, Box::new(memory.clone()))).unwrap();
            memory
        };
        let resting = unsealed(7);
        let other = unsealed(8);
        std::thread::scope(|scope| {
            let rests = &rests;
            scope.spawn(move || run(items, rests));
            while Arc::strong_count(&other) > 1 {
                std::thread::yield_now();
            }
            assert_eq!(Arc::strong_count(&resting), 2);
            drop(sender);
        });
    }
}
