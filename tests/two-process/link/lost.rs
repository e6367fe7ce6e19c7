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
