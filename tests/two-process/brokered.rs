//! What an embedded client can do, a client of a service in another process can too: the same tests, brokered.
//!
//! ```text
//! served, terms, signals, futures of the client's end_to_end tests ─► client() here: a service process for each
//! ```

mod harness;

#[path = "../../crates/memferry/tests/end_to_end/futures.rs"]
mod futures;
#[path = "../../crates/memferry/tests/end_to_end/served.rs"]
mod served;
#[path = "../../crates/memferry/tests/end_to_end/signals.rs"]
mod signals;
#[path = "../../crates/memferry/tests/end_to_end/terms.rs"]
mod terms;

use std::cell::RefCell;
use std::time::Duration;

use harness::Service;
use memferry::{Client, Color24, Completion, Count2d, Fill2d, Frame, PixelSize, Plane, Transfer};

const FRAME_BYTES: u64 = 4096;
const PATIENCE: Option<Duration> = Some(harness::SOON);

thread_local! {
    /// Services of the test on this thread, ended with it.
    static SERVICES: RefCell<Vec<Service>> = const { RefCell::new(Vec::new()) };
}

/// A client of a service of its own: one worker, three queues, 64 bytes at a time.
fn client() -> Client {
    let user = rustix::process::geteuid().as_raw().to_string();
    let arguments = ["--workers", "1", "--channels", "3", "--chunk", "64", "--high-user", user.as_str()];
    let service = Service::start(&arguments);
    let client = service.client();
    SERVICES.with_borrow_mut(|services| services.push(service));
    client
}

fn frame(client: &Client) -> Frame {
    client.allocate(FRAME_BYTES).expect("a frame")
}

fn contents(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; frame.length() as usize];
    frame.read(0, &mut bytes).expect("the frame's own bytes");
    bytes
}

/// Waits until it is so.
fn until(so: impl Fn() -> bool) {
    harness::wait_until("it", so);
}

/// A transfer that ends only when it is told to: 2^38 times the frame's first byte.
fn endless(frame: &Frame) -> Transfer {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(0xee).expect("24 bits");
    Transfer::fill_2d(&frame.all(), Fill2d { count, destination, color })
}

fn outcome(completion: Completion) -> Result<u64, memferry::Failure> {
    completion.outcome.map(|()| completion.bytes_done)
}
