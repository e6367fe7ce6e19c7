//! The example engines in C and Python carry out the conformance suite's requests, brokered, for clients of one user and of two.
//!
//! ```text
//! request_suite ─ client of each user in turn ─► service ─► an example engine, a user of its own       memory == the oracle's
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

/// Starts a service and an example engine, to which every request goes that it may have. Returns the service's socket.
fn start(name: &str, example: Example, known: &Known) -> PathBuf {
    let socket = Socket::fresh(name);
    let path = socket.0.clone();
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
        User::new(Client::connect(socket).expect("a service"), requests::FRAMES / 2, frame)
    };
    std::thread::scope(|scope| scope.spawn(connect).join()).expect("connected")
}

fn state(client: &Client) -> ExternalStatus {
    client.status().expect("a status").engines.remove(0)
}

/// The client of the request suite.
fn client() -> Client {
    Client::connect(start("suite", Example::compile("suite"), &Known::own(Some(1)))).expect("a service")
}

/// Runs the suite for two users, through an engine of a third one.
fn run_for_two_users(name: &str, example: Example) {
    let [engine, one, other] = if Uid::is_root(rustix::process::getuid()) {
        STRANGERS
    } else {
        println!("only root can act as other users: two clients of one user instead");
        [own_user(); 3]
    };
    let known = Known { user: engine, clients: vec![one, other], shortest_bytes: Some(1) };
    let socket = start(name, example, &known);
    let witness = Client::connect(&socket).expect("a service");
    let users = [one, other].map(|number| user(number, &socket));
    wait_until("the frames to be mapped", || {
        state(&witness).frames as usize == requests::FRAMES + users.len()
    });
    served::run_request_suite(users.into(), 200);
    wait_until("the counters", || state(&witness).transfers > 200);
    assert_eq!(state(&witness).redone, 0);
    assert!(state(&witness).is_connected, "the engine broke a rule");
}

#[test]
fn requests_of_two_users_match_the_oracle() {
    run_for_two_users("users", Example::compile("users"));
}

#[test]
fn requests_match_the_oracle_in_python() {
    if let Some(example) = Example::python("python") {
        run_for_two_users("python", example);
    }
}

#[test]
fn the_example_in_python_refuses_bad_input() {
    let Some(example) = Example::python("refuses") else { return };
    let errors = |arguments: &[&str], code| {
        let output = example.command().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let complete = ["--socket", "/nonexistent/memferry.sock", "--name", "copies"];
    for wrong in [&["--socket"][..], &["--other", "1"], &["--shortest", "abc"], &["--shortest", "-1"]] {
        let error = errors(&[&complete[..], wrong].concat(), 2);
        assert!(error.contains("usage:"), "{error}");
    }
    let absent = errors(&complete, 1);
    assert!(absent.contains("cannot connect to the service at /nonexistent/memferry.sock"), "{absent}");
    let long = errors(&[&complete[..], &["--shortest", "18446744073709551615"]].concat(), 1);
    assert!(long.contains("the engine's description is wrong"), "{long}");
    let lines = std::fs::read_to_string(example.program()).unwrap().lines().count();
    assert!(lines < 500, "{lines} lines");
}
