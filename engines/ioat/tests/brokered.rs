//! Clients of a service that has an I/OAT engine, which somebody else has started. Guests run these tests (`./x guest ioat`); the laboratory runs
//! the scenes on the model.
//!
//! `MEMFERRY_TEST_SOCKET` names the service's socket. Without it only the suite's own test runs, embedded.

#[path = "../../../crates/memferry/tests/end_to_end/served.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod served;
#[path = "../../../crates/memferry/tests/end_to_end/shared.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod shared;

#[path = "brokered/scenes.rs"]
mod scenes;

use std::path::PathBuf;
use std::time::Duration;

use memferry::Client;
use shared::*;

const PATIENCE: Duration = Duration::from_secs(30);
const SOCKET: &str = "MEMFERRY_TEST_SOCKET";
/// A file that ends the load when it is there.
const STOP: &str = "MEMFERRY_TEST_STOP";

fn path(variable: &str) -> PathBuf {
    std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set")).into()
}

fn client() -> Client {
    match std::env::var_os(SOCKET) {
        Some(socket) => Client::connect(socket).expect("a service"),
        None => Client::embedded().expect("an embedded service"),
    }
}

#[test]
#[ignore = "needs a service with an I/OAT engine"]
fn the_conformance_suite_passes() {
    scenes::conformance(&client, 80);
}

#[test]
#[ignore = "needs a service with an I/OAT engine"]
fn operations_are_done_by_the_device() {
    scenes::operations(&client());
}

#[test]
#[ignore = "needs a service with an I/OAT engine"]
fn a_released_frame_is_unmapped() {
    scenes::release(&client);
}

#[test]
#[ignore = "needs a service with an I/OAT engine, and somebody who kills that"]
fn a_killed_engine_loses_nothing() {
    let stop = path(STOP);
    scenes::load_until(&client(), |_| stop.exists());
}

#[test]
#[ignore = "needs a service with an engine whose descriptors stray"]
fn a_stray_descriptor_fails_its_channel_only() {
    scenes::straying(&client());
}
