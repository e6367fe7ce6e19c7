//! The example engine in C carries out the conformance suite's requests, brokered, for clients of one user and of two.
//!
//! ```text
//! request_suite ─ client of each user in turn ─► service ─► the example engine, a user of its own       memory == the oracle's
//!                 └ frames of the others by grants
//! ```

mod harness;

#[path = "../../../crates/memferry/tests/end_to_end/served.rs"]
mod served;
#[path = "../../../crates/memferry/tests/end_to_end/shared.rs"]
#[allow(dead_code, reason = "shared with the client's tests, which use more of it")]
mod shared;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Example, Killed, Known, PATIENCE, Socket, own_user, start_service, wait_until};
use memferry::{Client, ExternalStatus};
use memferry_conformance::requests;
use rustix::process::Uid;
use served::User;
use shared::*;

/// The users of the engine and of the two clients, strangers to each other.
const STRANGERS: [u32; 3] = [60_003, 60_001, 60_002];

thread_local! {
    /// Service, keeper, program and socket of the test on this thread, stopped and removed when it ends.
    static RUNNING: RefCell<Vec<(Killed, Killed, Example, Socket)>> = const { RefCell::new(Vec::new()) };
}

/// Starts a service and the example engine, to which every request goes that it may have. Returns the service's socket.
fn start(name: &str, known: &Known) -> PathBuf {
    let socket = Socket::fresh(name);
    let path = socket.0.clone();
    let example = Example::compile(name);
    let service = start_service(&path, known);
    let keeper = example.start(&path, known.user, "0");
    RUNNING.with_borrow_mut(|running| running.push((service, keeper, example, socket)));
    let client = Client::connect(&path).expect("a service");
    wait_until("the engine to be connected", || state(&client).is_connected);
    path
}

/// A client of a user, with half of the suite's frames. The service takes the user from the thread that connects, and memory belongs to
/// the user of the thread that allocates it.
fn user(number: u32, socket: &Path) -> User {
    let connect = || {
        if number != own_user() {
            rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(number), Uid::ROOT).expect("root");
        }
        User::new(Client::connect(socket).expect("a service"), requests::FRAMES / 2)
    };
    std::thread::scope(|scope| scope.spawn(connect).join()).expect("connected")
}

fn state(client: &Client) -> ExternalStatus {
    client.status().expect("a status").engines.remove(0)
}

/// The client of the request suite.
fn client() -> Client {
    Client::connect(start("suite", &Known::own(Some(1)))).expect("a service")
}

#[test]
fn requests_of_two_users_match_the_oracle() {
    let [engine, one, other] = if Uid::is_root(rustix::process::getuid()) {
        STRANGERS
    } else {
        println!("only root can act as other users: two clients of one user instead");
        [own_user(); 3]
    };
    let known = Known { user: engine, clients: vec![one, other], shortest_bytes: Some(1) };
    let socket = start("users", &known);
    let witness = Client::connect(&socket).expect("a service");
    let users = [one, other].map(|number| user(number, &socket));
    wait_until("the frames to be mapped", || state(&witness).frames as usize == requests::FRAMES);
    served::run_request_suite(users.into());
    wait_until("the counters", || state(&witness).transfers > 200);
    assert_eq!(state(&witness).redone, 0);
    assert!(state(&witness).is_connected, "the engine broke a rule");
}
