//! Both ends of an engine's queue pairs in one process, for tests.

use std::time::Duration;

use memferry_external::layout::EngineLayout;
use memferry_external::{EngineDescription, EngineEnd, ExternalEngine};
use memferry_shm::frame;
use memferry_shm::mapping::Mapping;
use memferry_shm::parking::Fences;
use memferry_shm::queue_pair::ClientEnd;
use memferry_shm::storage::MappedWords;
use rustix::event::EventfdFlags;

/// A worker's end, with room for so many requests, and the engine's.
pub(crate) fn pair(requests: u32, stall: Duration) -> (ExternalEngine, EngineEnd) {
    let layout = EngineLayout::new(1, 8).unwrap();
    let zeroed = |bytes| frame::allocate_half(bytes).unwrap().1;
    let service = zeroed(layout.service_bytes());
    let own = zeroed(layout.engine_bytes());
    let words = |mapping: &Mapping| MappedWords::new(mapping.clone()).unwrap();
    let (client, half) = layout.halves(&words(&service), &words(&own), 0).unwrap();
    let parked = layout.parked_words(&words(&own)).unwrap();
    let end = ClientEnd::new(layout.pair(), client, half, parked, Fences::Full).unwrap();
    let wake = layout.wake_word(&words(&service)).unwrap();
    let worker = ExternalEngine::new(EngineDescription::default(), (end, wake), (requests, requests), stall);
    let doorbell = rustix::event::eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let end = EngineEnd::new(layout, (service, own), doorbell, Fences::Full).unwrap();
    (worker, end)
}
