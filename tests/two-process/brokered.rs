//! Runs the tests of an embedded client against a service in another process.
//!
//! ```text
//! served, terms, signals, futures, shared of the client's end_to_end tests ─► client() here: its own service process
//! ```

mod harness;

#[path = "../../crates/memferry/tests/end_to_end/futures.rs"]
mod futures;
#[path = "../../crates/memferry/tests/end_to_end/served.rs"]
mod served;
#[path = "../../crates/memferry/tests/end_to_end/shared.rs"]
mod shared;
#[path = "../../crates/memferry/tests/end_to_end/signals.rs"]
mod signals;
#[path = "../../crates/memferry/tests/end_to_end/terms.rs"]
mod terms;

use std::cell::RefCell;
use std::time::Duration;

use harness::Service;
use memferry::Client;
use shared::*;

const PATIENCE: Duration = harness::SOON;

thread_local! {
    /// The services of the test on this thread, stopped when it ends.
    static SERVICES: RefCell<Vec<Service>> = const { RefCell::new(Vec::new()) };
}

/// A client of a new service with one worker, three engine channels and chunks of 64 bytes.
fn client() -> Client {
    let user = rustix::process::geteuid().as_raw().to_string();
    let arguments = ["--workers", "1", "--channels", "3", "--chunk", "64", "--high-user", user.as_str()];
    let service = Service::start(&arguments);
    let client = service.client();
    SERVICES.with_borrow_mut(|services| services.push(service));
    client
}

/// Waits for a condition.
fn until(condition: impl Fn() -> bool) {
    harness::wait_until("the condition", condition);
}
