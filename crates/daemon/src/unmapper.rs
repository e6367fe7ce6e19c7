//! Drops unused memory and queues in a thread of their own: unmapping takes as long as the memory is large, and removing a doorbell
//! as long as its client's watches take. The control thread does not wait for it, and the process ends without it.

use std::sync::mpsc::{Sender, channel};

pub(crate) struct Unmapper(Sender<Box<dyn Send>>);

impl Unmapper {
    /// Starts the thread and waits until it runs: a thread cannot start in a confined process.
    ///
    /// # Errors
    /// Those of clone.
    pub(crate) fn start() -> std::io::Result<Self> {
        let (queue, items) = channel::<Box<dyn Send>>();
        let (running, started) = channel();
        std::thread::Builder::new().name("memferry-unmap".to_owned()).spawn(move || {
            let _ = running.send(());
            items.into_iter().for_each(drop);
        })?;
        let _ = started.recv();
        Ok(Self(queue))
    }

    pub(crate) fn drop_later(&self, item: Box<dyn Send>) {
        // The thread ends only after its sender.
        let _ = self.0.send(item);
    }
}
