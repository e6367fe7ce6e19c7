//! A worker that a test plays: it takes what a queue submits and ends it as the test says. It moves nothing by itself.
//!
//! ```text
//! Queue ─ submit ─► ring ─► PlayedWorker::end(outcome, engine) ─► ring ─► Queue
//!                                  └─► the transfer, to be run late, as an engine does that was not stopped
//! ```
//!
//! So there are engine channels that fail without a device that has them. The client and its memory are those of a real service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_shm::frame::{self, Pages};
use memferry_shm::queue_pair::{Layout, ServiceEnd, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{EngineKind, Failure, Outcome, wire};
use rustix::event::EventfdFlags;

use super::Queue;
use crate::client::Client;
use crate::transfer::Transfer;

/// How a transfer ends whose engine channel failed.
pub(crate) const FAULTED: Result<(), Failure> = Err(Failure::ChannelFaulted);
/// Longer than anything takes on a busy machine: a test that waits in vain ends all the same.
const PATIENCE: Duration = Duration::from_secs(20);

/// The other side of a queue.
pub(crate) struct PlayedWorker(ServiceEnd<MappedWords>);

impl PlayedWorker {
    /// A queue of a client whose service knows nothing of it, and its worker.
    pub(crate) fn beside(client: &Client, capacity: u32) -> (Queue, Self) {
        let session = Arc::clone(client.queue(2).unwrap().session());
        let layout = Layout::new(capacity).unwrap();
        let allocate = |words: usize| {
            let (descriptor, mapping) = frame::allocate(words as u64 * 8, Pages::Ordinary).unwrap();
            (descriptor, MappedWords::new(mapping).unwrap())
        };
        let (own, own_words) = allocate(layout.client_words());
        let (peer, peer_words) = allocate(layout.service_words());
        let doorbell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let end = ServiceEnd::new(layout, own_words, peer_words, session.fences).unwrap();
        let queue = Queue::open(session, u32::MAX, capacity, vec![own, peer, doorbell]).unwrap();
        (queue, Self(end))
    }

    /// Waits for the next request and ends it; what was asked for, without what it would keep alive.
    pub(crate) fn end(&mut self, outcome: Result<(), Failure>, engine: EngineKind) -> Transfer {
        let begun = Instant::now();
        let slot = loop {
            if let Some(slot) = self.0.pop() {
                break slot;
            }
            assert!(begun.elapsed() < PATIENCE, "nothing is submitted");
            std::thread::yield_now();
        };
        let request = wire::decode_request(&slot, |first, words| self.0.fetch_list(first, words)).unwrap();
        let tag = wire::tag_of(&slot);
        let outcome = Outcome { result: outcome, bytes_done: 0, value: 0, engine };
        let ended = memferry_transfer::Completion { tag, inherited: false, outcome };
        self.0.stage(&wire::encode_completion(&ended)).unwrap();
        if self.0.publish() {
            self.0.change_wake_word();
            futex::wake(self.0.wake_word());
        }
        Transfer::of(request)
    }
}
