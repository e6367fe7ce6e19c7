//! A worker under the control of a test: it completes each request with the outcome that the test gives, and moves no bytes.
//!
//! ```text
//! Queue ─ submit ─► ring ─► ScriptedWorker::complete(outcome, engine) ─► ring ─► Queue
//!                                  └─► the transfer: the test runs it later, as an engine that was not stopped would
//! ```
//!
//! Tests of failed engine channels need no device this way. The client and its memory belong to a real service.

use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry_shm::frame;
use memferry_shm::queue_pair::{Layout, ServiceEnd, futex};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{EngineKind, Failure, Outcome, wire};
use rustix::event::EventfdFlags;

use crate::client::Client;
use crate::queue::Queue;
use crate::transfer::Transfer;

/// The result of a transfer whose engine channel failed.
pub(crate) const FAULTED: Result<(), Failure> = Err(Failure::ChannelFaulted);
/// Timeout that ends a failing test; longer than a passing one takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The service's end of a queue pair.
pub(crate) struct ScriptedWorker(ServiceEnd<MappedWords>);

impl ScriptedWorker {
    /// A queue of `client` that its service does not know, and the worker of this queue.
    pub(crate) fn with_queue(client: &Client, capacity: u32) -> (Queue, Self) {
        let session = Arc::clone(client.queue(2).unwrap().session());
        let layout = Layout::new(capacity).unwrap();
        let own = frame::allocate_half(layout.client_bytes()).unwrap().1;
        let own_words = MappedWords::new(own.clone()).unwrap();
        let (peer, mapping) = frame::allocate_sealed(layout.service_words() as u64 * 8, false).unwrap();
        let peer_words = MappedWords::new(mapping).unwrap();
        let doorbell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let end = ServiceEnd::new(layout, own_words, peer_words, session.fences).unwrap();
        let parked = frame::allocate_sealed(4096, false).unwrap().0;
        let queue = Queue::open(session, u32::MAX, (layout, own), vec![peer, doorbell, parked]).unwrap();
        (queue, Self(end))
    }

    /// Closes the queue, as a service that ends does.
    pub(crate) fn close(&self) {
        self.0.close();
    }

    /// Waits for the next request and completes it. Returns the transfer, which keeps no frames alive.
    pub(crate) fn complete(&mut self, result: Result<(), Failure>, engine: EngineKind) -> Transfer {
        let started = Instant::now();
        let slot = loop {
            if let Some(slot) = self.0.pop() {
                break slot;
            }
            assert!(started.elapsed() < PATIENCE, "no request was submitted in time");
            std::thread::yield_now();
        };
        let request = wire::decode_request(&slot, |first, words| self.0.fetch_list(first, words)).unwrap();
        let tag = u64::from(wire::tag_of(slot[0]));
        let outcome = Outcome { result, bytes_done: 0, value: 0, engine };
        let completion = memferry_transfer::Completion { tag, inherited: false, outcome };
        self.0.stage(&wire::encode_completion(&completion)).unwrap();
        if self.0.publish() {
            self.0.change_wake_word();
            futex::wake(self.0.wake_word());
        }
        Transfer::of(request)
    }
}
