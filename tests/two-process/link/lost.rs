//! Peers that are lost and come back.

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
