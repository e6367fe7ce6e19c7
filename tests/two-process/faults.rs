//! Processes that die, fork, revoke a grant or lose their memory during a transfer.

#![expect(unsafe_code, reason = "forks, and breaks one of its own mappings to make memory fail")]

mod harness;

use std::time::{Duration, Instant};

use harness::{
    Role, SOON, Service, Sleeper, endless, endless_copy, fork_a_sleeper, next_order, report, role_socket,
    wait_until,
};
use memferry::{
    CallError, Client, Failure, GrantToken, Grantee, Pattern, Queue, Rights, Side, SubmitReason, Ticket,
    TicketId, TransferError, copy, fill, nop, zero,
};
use rustix::process::Signal;

#[test]
fn role_starts_transfers_and_is_killed() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(socket).unwrap();
    let frame = client.frame(1 << 20).alloc().unwrap();
    let mut queue = client.queue(8).unwrap();
    for _ in 0..8 {
        let _endless = queue.submit(endless(&frame)).unwrap();
    }
    report("started");
    next_order();
}

#[test]
fn a_client_killed_mid_transfer_is_forgotten() {
    let service = Service::start(&["--channels=2"]);
    let observer = service.client();
    let frames = || service.proc("maps").matches("memferry-frame").count();
    let before = frames();
    for _ in 0..3 {
        let mut role = Role::start("role_starts_transfers_and_is_killed", &service.socket);
        assert_eq!(role.receive_line(), "started");
        assert!(frames() > before);
        role.kill();
        service.wait_for_sessions(&observer, 1);
        harness::assert_moves_bytes(&observer);
        wait_until("frames unmapped", || frames() == before);
    }
}

#[test]
fn a_killed_service_ends_each_ticket_once() {
    let mut service = Service::start(&["--channels=2"]);
    let client = service.client();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(8).unwrap();
    let tickets: Vec<_> = (0..8).map(|_| queue.submit(endless(&frame)).unwrap()).collect();
    service.signal(Signal::KILL);
    service.wait();
    let killed = Instant::now();
    let mut lost = Vec::new();
    for _ in 0..8 {
        let TransferError { id, failure, .. } = harness::wait_for_any(&mut queue).unwrap_err();
        assert_eq!(failure, Failure::ServiceLost);
        lost.push(id);
    }
    // A waiter checks every 100 ms; the rest is slack for a busy machine.
    assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
    lost.sort();
    let mut submitted: Vec<TicketId> = tickets.iter().map(|ticket| ticket.id()).collect();
    submitted.sort();
    assert_eq!(lost, submitted);
    assert_eq!(queue.poll(), None);
    assert_eq!(harness::failure(&mut queue, tickets[0]), Failure::UnknownTicket);
    assert_eq!(queue.submit(nop()).unwrap_err().reason, SubmitReason::ServiceLost);
    assert!(matches!(client.status(), Err(CallError::ServiceLost)));
    // Embedded mode is not affected, and a new service can be connected to.
    harness::assert_moves_bytes(&Client::embedded().unwrap());
    let again = Service::start(&[]);
    again.assert_serves();
}

#[test]
fn polling_reports_a_lost_service() {
    let service = Service::start(&[]);
    let client = service.client();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(2).unwrap();
    let ticket = queue.submit(endless(&frame)).unwrap();
    service.signal(Signal::KILL);
    let started = Instant::now();
    let ended = loop {
        if let Some(ended) = queue.poll() {
            break ended;
        }
        assert!(started.elapsed() < SOON);
    };
    let TransferError { id, failure, .. } = ended.unwrap_err();
    assert_eq!((id, failure), (ticket.id(), Failure::ServiceLost));
}

#[test]
fn a_clean_exit_ends_every_request() {
    let mut service = Service::start(&["--channels=1", "--grace-ms=50"]);
    let client = service.client();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(8).unwrap();
    let filled = queue.submit(fill(&frame, Pattern::Byte(1))).unwrap();
    harness::done(&mut queue, filled);
    let running = queue.submit(endless(&frame)).unwrap();
    let long = client.frame(1 << 20).alloc().unwrap();
    let waiting: Vec<_> = (0..5).map(|_| queue.submit(zero(&long)).unwrap()).collect();
    // Once a request is refused for lack of an engine channel, the worker has taken the others.
    let probe = queue.submit(endless(&frame).refuse_when_busy()).unwrap();
    assert!(matches!(harness::failure(&mut queue, probe), Failure::ChannelsBusy { .. }));
    service.signal(Signal::TERM);
    assert!(service.wait().success());
    assert!(!service.socket.exists());
    for ticket in waiting {
        assert_eq!(harness::failure(&mut queue, ticket), Failure::ServiceStopping);
    }
    assert_eq!(harness::failure(&mut queue, running), Failure::Cancelled);
    assert_eq!(queue.submit(nop()).unwrap_err().reason, SubmitReason::ServiceLost);
}

/// Accepts a grant, copies from it endlessly, and reports how that and another try ended.
#[test]
fn role_copies_from_a_grant() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(socket).unwrap();
    report(client.session());
    let token: GrantToken = next_order().parse().unwrap();
    let granted = client.accept(token).unwrap();
    let own = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(4).unwrap();
    let written = queue.submit(copy(&own, &granted)).unwrap();
    report(harness::failure(&mut queue, written));
    let ticket = queue.submit(endless_copy(&granted, &own)).unwrap();
    // Requests start in order: once this one is done, the first one runs.
    let next = queue.submit(nop()).unwrap();
    harness::done(&mut queue, next);
    report("copying");
    report(harness::failure(&mut queue, ticket));
    let again = queue.submit(copy(&granted, &own)).unwrap();
    report(harness::failure(&mut queue, again));
    report(client.accept(token).unwrap_err());
    next_order();
}

#[test]
fn revocation_ends_the_transfers_of_others() {
    let service = Service::start(&[]);
    let owner = service.client();
    let frame = owner.frame(4096).alloc().unwrap();
    frame.write(0, b"old").unwrap();
    let mut role = Role::start("role_copies_from_a_grant", &service.socket);
    let peer: u64 = role.receive_line().parse().unwrap();
    let to = Grantee::Session(memferry::SessionId(peer));
    let grant = owner.grant(frame.slice(..4096), Rights::READ, to).unwrap();
    assert!(matches!(owner.accept(grant.token()), Err(CallError::Refused(_))), "granted to another session");
    role.send_line(&grant.token().to_string());
    assert!(role.receive_line().contains("lacks the right"), "the grant is for reading");
    assert_eq!(role.receive_line(), "copying");
    grant.revoke().unwrap();
    assert_eq!(role.receive_line(), "cancelled");
    assert!(role.receive_line().contains("was revoked"));
    assert!(role.receive_line().contains("names no grant"));
    let mut queue = owner.queue(2).unwrap();
    let ticket = queue.submit(fill(&frame, Pattern::Byte(0))).unwrap();
    harness::done(&mut queue, ticket);
}

#[test]
fn a_closed_grantor_revokes_its_grants() {
    let service = Service::start(&[]);
    let owner = service.client();
    let peer = service.client();
    let frame = owner.frame(4096).alloc().unwrap();
    let user = Grantee::User(rustix::process::geteuid().as_raw());
    let granted = peer.accept(owner.grant(&frame, Rights::all(), user).unwrap().token()).unwrap();
    let mut queue = peer.queue(4).unwrap();
    let ticket = queue.submit(endless(&granted)).unwrap();
    // Requests start in order: once this one is done, the first one runs.
    let next = queue.submit(nop()).unwrap();
    harness::done(&mut queue, next);
    drop(frame);
    drop(owner);
    assert_eq!(harness::failure(&mut queue, ticket), Failure::Cancelled);
    let again = queue.submit(fill(&granted, Pattern::Byte(0))).unwrap();
    let failure = harness::failure(&mut queue, again);
    assert_eq!(failure, Failure::Revoked { side: Side::Destination, handle: granted.handle() });
}

/// Checks in a forked child that every call reports the fork; returns the exit status, 0 if all do.
fn check_in_child(client: &Client, queue: &mut Queue, ticket: Ticket) -> i32 {
    let forked = |error: TransferError| error.failure == Failure::Forked;
    let submit = queue.submit(nop()).is_err_and(|error| matches!(error.reason, SubmitReason::Forked(_)));
    let wait = queue.wait_for(ticket, Duration::ZERO).is_err_and(forked);
    let cancel = queue.cancel(ticket).is_err_and(forked);
    let poll = queue.poll().is_none();
    let status = matches!(client.status(), Err(CallError::Forked(_)));
    i32::from(!(submit && wait && cancel && poll && status))
}

#[test]
fn a_forked_child_disturbs_nothing() {
    let service = Service::start(&[]);
    for client in [service.client(), Client::embedded().unwrap()] {
        let frame = client.frame(4096).alloc().unwrap();
        let mut queue = client.queue(4).unwrap();
        let ticket = queue.submit(endless(&frame)).unwrap();
        let staged = queue.stage(nop()).unwrap();
        // SAFETY: the child only makes calls that need no other thread, and leaves by _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            harness::set_alarm();
            let status = check_in_child(&client, &mut queue, ticket);
            // New memory of the child may be placed where the parent has the rings. Dropping the queue must not unmap it.
            let mut own: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 256 << 10]).collect();
            drop((queue, frame, client));
            own.iter_mut().for_each(|bytes| bytes.fill(2));
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: waits for the child forked above.
        unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(status, 0, "the child's exit status");
        assert_eq!(queue.wait_for(ticket, Duration::from_millis(1)), Ok(None));
        queue.cancel(ticket).unwrap();
        assert_eq!(harness::failure(&mut queue, ticket), Failure::Cancelled);
        queue.wait(staged).unwrap();
        harness::assert_moves_bytes(&client);
    }
}

/// Keeps its connection open in a forked child and is killed.
#[test]
fn role_forks_and_dies() {
    let Some(socket) = role_socket() else { return };
    let client = Client::connect(socket).unwrap();
    let frame = client.frame(4096).alloc().unwrap();
    let mut queue = client.queue(2).unwrap();
    let _endless = queue.submit(endless(&frame)).unwrap();
    report(fork_a_sleeper());
    next_order();
}

#[test]
fn a_dead_clients_child_keeps_no_session() {
    let service = Service::start(&[]);
    let observer = service.client();
    let mut role = Role::start("role_forks_and_dies", &service.socket);
    let child = Sleeper::of(&mut role);
    role.kill();
    service.wait_for_sessions(&observer, 1);
    child.assert_lives();
}

/// A service in this process. On each order, the pages of the largest frame are replaced by pages beyond the end of a file, so
/// that access fails as it does on a failing machine.
#[test]
fn role_serves_with_failing_memory() {
    use std::os::fd::AsRawFd;
    let Some(socket) = role_socket() else { return };
    std::thread::spawn(|| {
        loop {
            next_order();
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let range = |line: &str| {
                let (start, end) = line.split_once(' ')?.0.split_once('-')?;
                let parse = |text| usize::from_str_radix(text, 16).ok();
                Some((parse(start)?, parse(end)?))
            };
            let frames = maps.lines().filter(|line| line.contains("memferry-frame")).filter_map(range);
            let (start, end) = frames.max_by_key(|(start, end)| end - start).unwrap();
            let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: replaces one of this process's own mappings in place; an access raises SIGBUS.
            let mapped =
                unsafe { libc::mmap(start as *mut _, end - start, protection, flags, empty.as_raw_fd(), 0) };
            assert_ne!(mapped, libc::MAP_FAILED);
            report("broken");
        }
    });
    let options = memferry_daemon::DaemonOptions {
        socket,
        mode: 0o600,
        service: memferry::ServiceConfig::default(),
        grace: Duration::ZERO,
        sandbox: false,
    };
    memferry_daemon::serve(&options, || report("ready")).unwrap();
}

#[test]
fn failing_memory_ends_its_owner_only() {
    let directory = harness::fresh_directory();
    let socket = directory.join("socket");
    let mut role = Role::start("role_serves_with_failing_memory", &socket);
    assert_eq!(role.receive_line(), "ready");
    let owner = Client::connect(&socket).unwrap();
    let peer = Client::connect(&socket).unwrap();
    let failing = owner.frame(1 << 20).alloc().unwrap();
    let mut of_owner = owner.queue(4).unwrap();
    let user = Grantee::User(rustix::process::geteuid().as_raw());
    let granted = peer.accept(owner.grant(&failing, Rights::READ, user).unwrap().token()).unwrap();
    let own = peer.frame(1 << 19).alloc().unwrap();
    let mut of_peer = peer.queue(4).unwrap();
    role.send_line("break");
    assert_eq!(role.receive_line(), "broken");
    // The peer touches the owner's memory first: its request fails, its session continues.
    let ticket = of_peer.submit(copy(granted.slice(..1 << 19), &own)).unwrap();
    assert_eq!(harness::failure(&mut of_peer, ticket), Failure::MemoryFault);
    wait_until("the owner's session ends", || {
        matches!(owner.status(), Err(CallError::Ended(_) | CallError::ServiceLost))
    });
    assert_eq!(of_owner.submit(nop()).unwrap_err().reason, SubmitReason::ServiceLost);
    let ticket = of_peer.submit(copy(granted.slice(..1 << 19), &own)).unwrap();
    let failure = harness::failure(&mut of_peer, ticket);
    assert!(matches!(failure, Failure::Revoked { .. } | Failure::MemoryFault), "{failure}");
    harness::assert_moves_bytes(&peer);
    drop(of_owner);
    role.kill();
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn an_idle_service_does_not_run() {
    let service = Service::start(&["--workers=2"]);
    let client = service.client();
    let mut queue = client.queue(4).unwrap();
    harness::assert_moves_bytes(&client);
    service.assert_idle();
    let frame = client.frame(4096).alloc().unwrap();
    let ticket = queue.submit(endless(&frame)).unwrap();
    let next = queue.submit(nop()).unwrap();
    harness::done(&mut queue, next);
    assert!(!service.is_quiet(), "the check for quiet also passes on a busy service");
    queue.cancel(ticket).unwrap();
    assert_eq!(harness::failure(&mut queue, ticket), Failure::Cancelled);
    service.assert_idle();
}
