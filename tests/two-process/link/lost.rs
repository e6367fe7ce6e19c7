//! Peers that are lost and come back.

use memferry_link::{Greeting, UcxPeer};

use super::*;

#[test]
fn a_lost_peer_fails_each_request_once_and_comes_back() {
    for way in Way::all() {
        let (mut alpha, beta) = two_nodes(way);
        let owner = alpha.client();
        let theirs = owner.frame(8 * MIB).alloc().unwrap();
        theirs.write(0, &noise(8 << 20, 5)).unwrap();
        let (_grant, token) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
        let client = beta.client();
        let remote = accept(&client, token);
        let own = host(&client, 8 * MIB);
        let mut queue = client.queue(16).unwrap();
        connected(&mut queue, &remote, &own, [&alpha, &beta]);
        // Stopped: the other side notices that it is silent.
        let engine = alpha.engine();
        let failed = fails(&mut queue, &remote, &own, || kill_process(engine, Signal::STOP).unwrap());
        assert!(
            !failed.is_empty() && failed.iter().all(|one| *one == Failure::PeerLost),
            "{way:?}: {failed:?}"
        );
        kill_process(engine, Signal::CONT).unwrap();
        connected(&mut queue, &remote, &own, [&alpha, &beta]);
        // Killed: its keeper starts another one, and the frame is good again.
        let failed = fails(&mut queue, &remote, &own, || kill_process(engine, Signal::KILL).unwrap());
        assert!(
            !failed.is_empty() && failed.iter().all(|one| *one == Failure::PeerLost),
            "{way:?}: {failed:?}"
        );
        connected(&mut queue, &remote, &own, [&alpha, &beta]);
        queue.run(copy(&remote, &own)).unwrap();
        assert!(contents(&own) == contents(&theirs), "{way:?}");
        // Gone, keeper and all, and started again by the administrator.
        drop(alpha.link.take());
        wait_until("the link to be missed", || {
            failure(queue.run(copy(remote.slice(..8), own.slice(..8)))) == Some(Failure::PeerLost)
        });
        alpha.start_link();
        connected(&mut queue, &remote, &own, [&alpha, &beta]);
    }
}

#[test]
fn requests_for_an_absent_peer_do_not_keep_the_link_from_others() {
    let address = own_address();
    let places = ["alpha", "beta", "gamma"].map(|name| (name, &*address, vec![]));
    let mut nodes = nodes(Way::Encrypted, &places);
    drop(nodes[2].link.take());
    let [alpha, beta, gamma] = &nodes[..] else { panic!("three nodes") };
    let owner = beta.client();
    let client = alpha.client();
    let theirs = owner.frame(4096).alloc().unwrap();
    let (_grant, token) = grant(beta, &theirs, &owner, Rights::READ, alpha);
    let mut queue = client.queue(4).unwrap();
    let remote = accept(&client, token);
    let own = proven_host((&client, &mut queue), &remote, MIB, [alpha, beta]);
    // As many pieces as there may be, each time, and at once there is nobody to ask.
    let absent = accept(&client, any_token(gamma, MIB));
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 256, y_count: 256 };
    let plane = |x_step| Plane { start: 0, x_step, y_step: x_step };
    let shape = Copy2d { count, source: plane(2), destination: plane(1), transparent: None };
    let losses = || alpha.told().matches("the link to beta is lost").count();
    let losses_before = losses();
    let mut reads = 0;
    let ended = Instant::now() + Duration::from_millis(TIMEOUT_MS);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut flood = client.queue(64).unwrap();
            let mut tickets = std::collections::VecDeque::new();
            while Instant::now() < ended {
                while tickets.len() < 64 {
                    tickets.push_back(flood.submit(copy_2d(&absent, &own, shape)).unwrap());
                }
                let failed = flood.wait(tickets.pop_front().unwrap()).unwrap_err();
                assert_eq!(failed.failure, Failure::PeerLost);
            }
        });
        while Instant::now() < ended {
            let failed = failure(queue.run(copy(remote.slice(..100), own.slice(..100))));
            assert_eq!(failed, None, "{}\n{}", alpha.told(), beta.told());
            reads += 1;
        }
    });
    // The link came to its peers often within a peer's time limit.
    assert!(reads >= 9 && losses() == losses_before, "{reads} reads: {}", alpha.told());
}

#[test]
fn bytes_go_encrypted_where_ucx_delivers_nothing() {
    if !Way::all().contains(&Way::Tcp) {
        println!("skipped: this machine has no UCX");
        return;
    }
    let (alpha, mut beta) = two_nodes_with(Way::Tcp, 600, STALL_MS);
    let (listener, config) = in_place_of_link(&mut beta);
    let client = alpha.client();
    let own = host(&client, 4096);
    let mut queue = client.queue(4).unwrap();
    let remote = accept(&client, any_token(&beta, MIB));
    let attachment = memferry_link::message::Attachment { number: 1, length: MIB, rights: BOTH };
    // The peer sends the node's own address back: UCX delivers all to the node itself, which takes nothing with this key.
    let echo = |theirs: &Greeting| {
        let ucx = theirs.ucx.clone().map(|UcxPeer { address, .. }| UcxPeer { address, key: 7 });
        Greeting { ucx, require_encryption: false }
    };
    for number in 0..4 {
        let (mut peer, theirs) = Hostile::meet_as(&listener, &config, echo);
        assert_eq!(theirs.ucx.is_some(), number < 3, "connection {number}: {}", alpha.told());
        let mut ticket = queue.submit(copy(remote.slice(..101), own.slice(..101))).unwrap();
        let first = std::thread::scope(|scope| {
            let first = scope.spawn(|| peer.receive());
            while !first.is_finished() {
                // Without a connection a request fails, and no message tells of it.
                if queue.wait_for(ticket, Duration::from_millis(5)).is_err() {
                    ticket = queue.submit(copy(remote.slice(..101), own.slice(..101))).unwrap();
                }
            }
            first.join().unwrap()
        });
        let Some((Message::Attach { id, .. }, _)) = first else { panic!("{first:?}: {}", alpha.told()) };
        peer.send(&Message::Attached { id, outcome: Ok(attachment) }, &[]);
        if number == 3 {
            let Some((Message::Access { operation, .. }, _)) = peer.receive() else {
                panic!("{}", alpha.told());
            };
            peer.send(&Message::Done { operation, outcome: Ok(0) }, &[9; 101]);
            queue.wait(ticket).unwrap();
            break;
        }
        let ended = loop {
            let _ = peer.writer.send(&Message::Ping.encode(0));
            if let Some(ended) = queue.wait_for(ticket, Duration::from_millis(50)).transpose() {
                break ended;
            }
        };
        assert_eq!(ended.map(drop).unwrap_err().failure, Failure::PeerLost);
    }
    assert_eq!(contents(&own)[..101], [9; 101]);
    assert!(alpha.told().contains("UCX delivered nothing to or from beta"), "{}", alpha.told());
    let status = memferry_link::ask(&alpha.service.socket.with_file_name("status.sock")).unwrap();
    assert!(status.peers[0].ucx_rests.is_some_and(|seconds| (200..=300).contains(&seconds)), "{status:?}");
}
