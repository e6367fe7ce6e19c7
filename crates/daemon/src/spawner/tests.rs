//! A spawner and its attendants, forked from the test's process.

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;
use crate::listener::Listener;
use crate::messages::{ClientId, Received, ToAttendant};
use crate::testing::{folder, run_one_by_one, runs_alone, wait_readable};

const USER: u32 = 4_000_002;

fn answer(spawner: &Spawner) -> Spawned {
    wait_readable(spawner.socket());
    spawner.receive().unwrap().unwrap()
}

/// Number of the process of a pidfd.
fn number_of(process: &OwnedFd) -> u32 {
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).unwrap();
    about.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok()).unwrap()
}

#[test]
fn one_by_one() {
    run_one_by_one("spawner::tests::");
}

#[test]
#[ignore = "one_by_one runs it"]
fn attendants_serve_their_channels() {
    assert!(runs_alone());
    let spawner = Spawner::start(Traces::default(), false).unwrap();
    let channels = [0, 1].map(|number| spawner.spawn(USER + number).unwrap());
    for (number, channel) in (0..).zip(&channels) {
        let spawned = answer(&spawner);
        assert_eq!(spawned.user, USER + number);
        let client = ClientId(number.into());
        for message in [ToAttendant::Adopt { client }, ToAttendant::HandedOver] {
            messages::send(channel.as_fd(), &message, &[], true).unwrap();
        }
        wait_readable(channel);
        let Received::Message(message, _) = messages::receive::<FromAttendant>(channel.as_fd()) else {
            panic!("no answer")
        };
        assert_eq!(message, FromAttendant::Ended { client, violation: None });
    }
    assert!(spawner.receive().unwrap().is_none());
}

#[test]
#[ignore = "one_by_one runs it"]
fn attendants_hold_nothing_of_the_service() {
    assert!(runs_alone());
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let spawner = Spawner::start(Traces::default(), false).unwrap();
    let channel = spawner.spawn(USER).unwrap();
    let number = number_of(&answer(&spawner).process.unwrap());
    drop(writer);
    // Neither of the two processes has the other end.
    wait_readable(&reader);
    // An answer shows that it has started.
    let client = ClientId(1);
    for message in [ToAttendant::Adopt { client }, ToAttendant::HandedOver] {
        messages::send(channel.as_fd(), &message, &[], true).unwrap();
    }
    wait_readable(&channel);
    let open = std::fs::read_dir(format!("/proc/{number}/fd")).unwrap();
    let open: Vec<_> = open.flat_map(|entry| std::fs::read_link(entry.unwrap().path())).collect();
    let count = |kind: &str| open.iter().filter(|path| path.to_string_lossy().starts_with(kind)).count();
    assert_eq!(count("/dev/null"), 3, "{open:?}");
    // Its channel, and once more for the report of a panic; then epoll and eventfd.
    assert_eq!(count("socket:"), 2, "{open:?}");
    assert_eq!(open.len(), 7, "{open:?}");
}

#[test]
#[ignore = "one_by_one runs it"]
fn attendants_end_with_the_spawner() {
    assert!(runs_alone());
    let spawner = Spawner::start(Traces::default(), false).unwrap();
    let channel = spawner.spawn(USER).unwrap();
    let process = answer(&spawner).process.unwrap();
    drop(spawner);
    wait_readable(&process);
    drop(channel);
}

#[test]
#[ignore = "one_by_one runs it"]
fn the_files_of_the_socket_are_removed() {
    assert!(runs_alone());
    let folder = folder("traces");
    let path = folder.join("s");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let spawner = Spawner::start(listener.traces(), false).unwrap();
    let _channel = spawner.spawn(USER).unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    spawner.remove_traces();
    // Fails unless it is empty.
    std::fs::remove_dir(&folder).unwrap();
}

#[test]
#[ignore = "one_by_one runs it"]
fn the_socket_of_another_service_stays() {
    assert!(runs_alone());
    let folder = folder("other-traces");
    let path = folder.join("s");
    let listener = Listener::bind(&path, 0o600).unwrap();
    let spawner = Spawner::start(listener.traces(), false).unwrap();
    std::fs::rename(&path, folder.join("old")).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    spawner.remove_traces();
    assert!(path.exists());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
#[ignore = "one_by_one runs it"]
fn a_spawner_that_is_gone_is_an_error() {
    assert!(runs_alone());
    let (socket, theirs) = pair().unwrap();
    let spawner = Spawner { socket };
    drop(theirs);
    assert!(spawner.spawn(USER).is_err());
    assert!(spawner.receive().is_err());
    spawner.remove_traces();
}
