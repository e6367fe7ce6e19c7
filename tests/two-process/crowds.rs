//! Many clients, and a service that runs out of resources.
//!
//! ```text
//! hundreds of sessions ─ killed, aborted, dropped ─► no session and no descriptor remains, the service continues
//! limits of the service's process lowered ─► clients get an error, the service continues
//! log lines as JSON ─► each one parses
//! ```
//!
//! No test sleeps: it waits for the other process.

mod harness;

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use harness::{
    Raw, Role, Service, assert_moves_bytes, endless, fresh_directory, next_order, report, role_socket,
    wait_until,
};
use memferry::{CallError, Client, Failure, FrameError, OpenError, Queue, fill, nop};
use memferry_service::protocol::{RefusalKind, Violation};
use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Sessions of each role.
const SESSIONS: usize = 50;

/// Opens many sessions, each with requests in progress, and ends as ordered.
#[test]
fn role_opens_many_sessions() {
    let Some(socket) = role_socket() else { return };
    let open = |_| {
        let client = Client::connect(&socket).unwrap();
        let frame = client.frame(4096).alloc().unwrap();
        let mut queue = client.queue(4).unwrap();
        let done = queue.submit(nop().refuse_when_busy()).unwrap();
        // Other processes may use every engine channel.
        match harness::wait_for(&mut queue, done).map_err(|error| error.failure) {
            Ok(_) | Err(Failure::ChannelsBusy { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        for _ in 0..2 {
            let _endless = queue.submit(endless(&frame)).unwrap();
        }
        (client, frame, queue)
    };
    let sessions: Vec<_> = (0..SESSIONS).map(open).collect();
    report("open");
    match next_order().as_str() {
        "abort" => std::process::abort(),
        _ => drop(sessions),
    }
}

fn descriptors(service: &Service) -> usize {
    service.descriptors()
}

#[test]
fn a_thousand_clients_leak_nothing() {
    let service = Service::start(&["--quota-sessions=5000", "--quota-queues=5000", "--channels=64"]);
    let observer = service.client();
    let mut settled = None;
    for round in 0..5 {
        let start = |_| Role::start("role_opens_many_sessions", &service.socket);
        let mut roles: Vec<_> = (0..4).map(start).collect();
        roles.iter_mut().for_each(|role| assert_eq!(role.receive_line(), "open"));
        assert_eq!(observer.status().unwrap().open_sessions as usize, 1 + roles.len() * SESSIONS);
        for (number, role) in roles.iter_mut().enumerate() {
            match number % 3 {
                0 => role.kill(),
                1 => role.send_line("abort"),
                _ => role.send_line("drop"),
            }
        }
        service.wait_for_sessions(&observer, 1);
        assert_moves_bytes(&observer);
        // The service keeps memory of queue pairs for the user's next client; the first round shows how much.
        match settled {
            None => {
                wait_until("queues gone", || {
                    observer.status().unwrap().workers.iter().all(|worker| worker.queues == 0)
                });
                // Two memories per queue pair are kept; everything else is closed.
                let kept = 2 * roles.len() * SESSIONS;
                wait_until("descriptors closed", || descriptors(&service) < kept + 60);
                settled = Some(descriptors(&service));
            }
            Some(before) => wait_until("descriptors closed", || descriptors(&service) <= before + 4),
        }
        drop(roles);
        assert!(round < 5);
    }
    drop(observer);
    let last = service.client();
    service.wait_for_sessions(&last, 1);
    let frames = || service.proc("maps").matches("memferry-frame").count();
    wait_until("frames unmapped", || frames() == 0);
    service.assert_serves();
}

#[test]
fn status_counts_requests_and_failures() {
    let service = Service::start(&["--channels=2", "--workers=1"]);
    let client = service.client();
    let frame = client.frame(8192).alloc().unwrap();
    let mut queue = client.queue(16).unwrap();
    let fill = fill(&frame, memferry::Pattern::Byte(1));
    let filled = queue.submit(fill).unwrap();
    harness::done(&mut queue, filled);
    let tickets: Vec<_> = (0..5).map(|_| queue.submit(endless(&frame)).unwrap()).collect();
    let own = || {
        let status = client.status().unwrap();
        (status.sessions[0].clone(), status.workers[0])
    };
    wait_until("five taken", || own().0.requests == 6);
    let (session, _) = own();
    assert_eq!((session.outstanding, session.failures, session.bytes_moved), (5, 0, 8192));
    // A single user leaves an eighth of the engine channels free for others; an eighth of two is none.
    wait_until("two run, three wait", || (own().1.busy, own().1.waiting) == (2, 3));
    assert_eq!(own().1.channels, 2);
    for ticket in &tickets {
        queue.cancel(*ticket).unwrap();
        assert_eq!(harness::failure(&mut queue, *ticket), Failure::Cancelled);
    }
    wait_until("all ended", || own().0.outstanding == 0 && own().1.busy == 0 && own().1.waiting == 0);
    assert_eq!(own().0.failures, 5);
    // The counts of a closed queue remain, and none of its requests is outstanding.
    let _endless = queue.submit(endless(&frame)).unwrap();
    wait_until("taken", || own().0.outstanding == 1);
    drop(queue);
    wait_until("gone", || own().0.outstanding == 0 && own().0.queues == 0 && own().1.queues == 0);
    assert_eq!((own().0.requests, own().0.failures), (7, 5));
}

/// Lowers a limit of the service's process.
fn limit(service: &Service, resource: Resource, most: u64) {
    let process = Pid::from_raw(service.child.id() as i32);
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    rustix::process::prlimit(process, resource, limit).unwrap();
}

/// Lets the service open `spare` more descriptors. A new descriptor gets the lowest free number.
fn leave_descriptors(service: &Service, spare: usize) {
    let is_free = |number: &u64| {
        let path = format!("/proc/{}/fd/{number}", service.child.id());
        std::fs::symlink_metadata(path).is_err()
    };
    let first_forbidden = (0..).filter(is_free).nth(spare).unwrap();
    limit(service, Resource::Nofile, first_forbidden);
}

#[test]
fn without_descriptors_queues_and_frames_are_refused() {
    let service = Service::start(&[]);
    let first = service.client();
    let before = descriptors(&service);
    leave_descriptors(&service, 3);
    // The attendant has the sockets of clients, so connections take none of the service's descriptors.
    let others: Vec<_> = (0..20).map(|_| Client::connect(&service.socket).unwrap()).collect();
    let frame = first.frame(4096).alloc().unwrap();
    let mut queues = Vec::new();
    let refused = loop {
        match first.queue(4) {
            Ok(queue) => queues.push(queue),
            Err(refused) => break refused,
        }
        assert!(queues.len() < 20);
    };
    assert!(
        matches!(&refused, OpenError::Call(CallError::Refused(refusal)) if refusal.kind == RefusalKind::System),
        "{refused:?}",
    );
    assert!(refused.to_string().contains("try again later"), "{refused}");
    leave_descriptors(&service, 0);
    let refused = first.frame(4096).alloc().err().unwrap();
    assert!(refused.to_string().contains("out of descriptors"), "{refused}");
    // The refusals ended no session.
    first.status().unwrap();
    drop((others, frame, queues));
    service.wait_for_sessions(&first, 1);
    // The service keeps its halves of the queues for this user.
    wait_until("descriptors closed", || descriptors(&service) <= before + 3);
    first.status().unwrap();
    service.assert_idle();
}

#[test]
fn without_memory_queues_are_refused() {
    let service = Service::start(&[]);
    let client = service.client();
    assert_moves_bytes(&client);
    let status = service.proc("status");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let kilobytes: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    limit(&service, Resource::As, (kilobytes << 10) + (3 << 20));
    let mut queues: Vec<Queue> = Vec::new();
    let refused = loop {
        match client.queue(4096) {
            Ok(queue) => queues.push(queue),
            Err(refused) => break refused,
        }
        assert!(queues.len() < 60, "memory does not run out");
    };
    assert!(
        matches!(&refused, OpenError::Call(CallError::Refused(refusal)) if refusal.kind == RefusalKind::System),
        "{refused:?}"
    );
    assert!(refused.to_string().contains("no memory or descriptors for another queue"), "{refused}");
    // A frame needs address space too: it is refused, and the session continues.
    assert!(matches!(client.frame(64 << 20).alloc(), Err(FrameError::Call(CallError::Refused(_)))));
    client.status().unwrap();
    drop(queues);
    // The service answers before its worker has released the queues and their memory.
    wait_until("memory of the closed queues", || client.queue(4).is_ok());
    assert_moves_bytes(&client);
}

#[test]
fn json_log_lines_name_client_and_reason() {
    let directory = fresh_directory();
    let socket = directory.join("s");
    let log = directory.join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_memferry"));
    command
        .args(["serve", "--no-config", "--log-format=json", "--quota-sessions=3", "--socket"])
        .arg(&socket);
    command.env("MEMFERRY_LOG", "debug").stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
    let mut child = command.spawn().unwrap();
    let mut first_line = [0; 9];
    child.stdout.as_mut().unwrap().read_exact(&mut first_line).unwrap();
    let client = Client::connect(&socket).unwrap();
    assert!(client.queue(3).is_err());
    let rude = Raw::open(&socket);
    rude.send(b"\"nonsense\n\\", &[]);
    assert_eq!(rude.farewell(), Violation::Malformed);
    let worked = client.session().0;
    // A client that only looks, as each query of the metrics does, gets no line.
    let looking = Client::connect(&socket).unwrap();
    looking.status().unwrap();
    let looked = looking.session().0;
    drop(looking);
    let many: Vec<_> = (0..4).map(|_| Client::connect(&socket)).collect();
    assert!(many.iter().any(Result::is_err));
    client.set_policy(memferry::PolicySettings::of(memferry::PolicyKind::Weighted)).unwrap();
    drop((many, client));
    // A service that fails to start logs the reason in the same format.
    let mut second = Command::new(env!("CARGO_BIN_EXE_memferry"));
    second.args(["serve", "--no-config", "--log-format=json", "--socket"]).arg(&socket);
    let failed = String::from_utf8(second.output().unwrap().stderr).unwrap();
    let line: serde_json::Value = serde_json::from_str(failed.trim_end()).unwrap();
    assert!(line["reason"].as_str().unwrap().contains("a service is already listening on"), "{line}");
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&log).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
    };
    let count = |message: &str| lines().iter().filter(|line| line["message"] == message).count();
    wait_until("all disconnected", || count("disconnected") == count("connected"));
    rustix::process::kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    for (message, fields) in [
        ("ready", &["socket", "workers"][..]),
        ("connected", &["session", "user", "process"]),
        ("disconnected", &["session", "user", "process", "reason"]),
        ("policy changed", &["session", "user", "process", "policy", "settings"]),
        ("violation", &["session", "user", "process", "reason"]),
        ("refused", &["user", "reason"]),
        ("stopped", &[]),
    ] {
        let lines = lines();
        let of_kind: Vec<_> = lines.iter().filter(|line| line["message"] == message).collect();
        assert!(!of_kind.is_empty(), "{message}: {lines:?}");
        for (line, field) in of_kind.iter().flat_map(|line| fields.iter().map(move |field| (line, field))) {
            assert!(!line[field].is_null(), "{field} is not in {line}");
        }
        assert!(of_kind.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()));
    }
    let connected = |session: u64| {
        lines().iter().any(|line| line["message"] == "connected" && line["session"] == session)
    };
    assert!(connected(worked) && !connected(looked));
    std::fs::remove_dir_all(&directory).unwrap();
}
