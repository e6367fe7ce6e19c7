//! Grants that the owner's link uses in place (`Rights::DIRECT`): every byte right, and none moved after the answer to a revocation.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use memferry::{Client, Failure, Frame, Grant, Grantee, PeerReason, Queue, RemoteToken, Rights, copy};
use memferry_conformance::noise;
use rustix::process::{Signal, kill_process};

use super::files::peer;
use super::harness::{SOON, wait_until};
use super::hostile::Hostile;
use super::{
    BOTH, MIB, Node, Way, accept, connected, contents, failure, grant, host, in_place_of_link, proven_host,
    refused, two_nodes, user,
};

const DIRECT: Rights = BOTH.union(Rights::DIRECT);
/// What the owner writes when a revocation was answered: no other bytes of a test are so.
const AFTER: [u8; 64] = [0xee; 64];

/// Two nodes, of which the first one's administrator allows `direct`.
fn direct_nodes(way: Way) -> (Node, Node) {
    let (mut alpha, beta) = two_nodes(way);
    drop(alpha.link.take());
    allow(&alpha);
    alpha.start_link();
    (alpha, beta)
}

/// Allows it for the last peer of a node's configuration.
fn allow(node: &Node) {
    let path = node.service.socket.with_file_name("link.toml");
    File::options().append(true).open(path).unwrap().write_all(b"direct = true\n").unwrap();
}

/// A frame of alpha's that its link has, granted to beta, and one of beta's.
struct Bed {
    owner: Client,
    theirs: Frame,
    client: Client,
    own: Frame,
    queue: Queue,
    _first: Grant,
}

fn bed(alpha: &Node, beta: &Node, length: u64) -> Bed {
    let owner = alpha.client();
    let client = beta.client();
    let mut queue = client.queue(16).unwrap();
    let small = owner.frame(4096).alloc().unwrap();
    let (first, token) = grant(alpha, &small, &owner, Rights::READ, beta);
    // From then on both links are ready.
    let own = proven_host((&client, &mut queue), &accept(&client, token), length, [alpha, beta]);
    let theirs = host(&owner, length);
    Bed { owner, theirs, client, own, queue, _first: first }
}

#[test]
fn marked_grants_are_used_in_place_and_no_others() {
    for way in Way::all() {
        let (alpha, beta) = direct_nodes(way);
        let mut bed = bed(&alpha, &beta, 4 * MIB);
        let copied = |bed: &mut Bed, rights: Rights, seed: u64| {
            let before = peer(&alpha).direct;
            let (granted, token) = grant(&alpha, &bed.theirs, &bed.owner, rights, &beta);
            let remote = accept(&bed.client, token);
            for (at, length) in [(0, 4 * MIB), (5, MIB + 3), (MIB + 1, (16 << 10) - 1), (7, 1)] {
                let range = at..at + length;
                let [from, to] = [at as usize, (at + length) as usize];
                bed.theirs.write(0, &noise(4 << 20, seed)).unwrap();
                bed.own.write(0, &noise(4 << 20, seed + 1)).unwrap();
                let mut expected = contents(&bed.own);
                expected[from..to].copy_from_slice(&contents(&bed.theirs)[from..to]);
                bed.queue.run(copy(remote.slice(range.clone()), bed.own.slice(range.clone()))).unwrap();
                assert!(contents(&bed.own) == expected, "{way:?}: {length} bytes read");
                bed.own.write(0, &noise(4 << 20, seed + 2)).unwrap();
                let mut expected = contents(&bed.theirs);
                expected[from..to].copy_from_slice(&contents(&bed.own)[from..to]);
                bed.queue.run(copy(bed.own.slice(range.clone()), remote.slice(range))).unwrap();
                assert!(contents(&bed.theirs) == expected, "{way:?}: {length} bytes written");
            }
            granted.revoke().unwrap();
            peer(&alpha).direct - before
        };
        // 16 pieces of 256 KiB and four and a bit, each way. The other two copies, and the bit, are too short.
        assert_eq!(copied(&mut bed, DIRECT, 1), 2 * (16 + 4), "{way:?}: {}", alpha.told());
        assert_eq!(copied(&mut bed, BOTH, 4), 0, "{way:?}: the grant is not marked");
        assert_eq!(peer(&alpha).served.failed, 0, "{way:?}");
    }
}

#[test]
fn without_the_administrator_no_memory_is_used_in_place() {
    let (alpha, beta) = two_nodes(Way::Encrypted);
    let mut bed = bed(&alpha, &beta, MIB);
    bed.theirs.write(0, &noise(1 << 20, 1)).unwrap();
    let (_granted, token) = grant(&alpha, &bed.theirs, &bed.owner, DIRECT, &beta);
    bed.queue.run(copy(accept(&bed.client, token), &bed.own)).unwrap();
    assert!(contents(&bed.own) == contents(&bed.theirs));
    assert_eq!(peer(&alpha).direct, 0);
}

#[test]
fn memory_that_the_link_does_not_have_is_copied_by_the_service() {
    let (mut alpha, beta) = two_nodes(Way::Encrypted);
    let owner = alpha.client();
    // The next link's keeper begins when this frame is sealed.
    let theirs = owner.frame(MIB).alloc().unwrap();
    theirs.write(0, &noise(1 << 20, 1)).unwrap();
    drop(alpha.link.take());
    allow(&alpha);
    alpha.start_link();
    let (_granted, token) = grant(&alpha, &theirs, &owner, DIRECT, &beta);
    let client = beta.client();
    let mut queue = client.queue(16).unwrap();
    let remote = accept(&client, token);
    let own = proven_host((&client, &mut queue), &remote, MIB, [&alpha, &beta]);
    queue.run(copy(&remote, &own)).unwrap();
    assert!(contents(&own) == contents(&theirs));
    queue.run(copy(own.slice(..100_000), remote.slice(7..100_007))).unwrap();
    assert!(contents(&own)[..100_000] == contents(&theirs)[7..100_007]);
    assert_eq!(peer(&alpha).direct, 0);
}

/// No part of the bytes is what the owner wrote after the answer.
fn has_none_of_after(bytes: &[u8]) -> bool {
    !bytes.chunks(AFTER.len()).any(|chunk| chunk == AFTER)
}

#[test]
fn nothing_moves_in_direct_memory_after_the_answer() {
    for way in Way::all() {
        let (alpha, beta) = direct_nodes(way);
        let mut bed = bed(&alpha, &beta, 4 * MIB);
        let before = peer(&alpha).direct;
        let mut interrupted = [0; 2];
        for round in 0..40_u64 {
            let (granted, token) = grant(&alpha, &bed.theirs, &bed.owner, DIRECT, &beta);
            let remote = accept(&bed.client, token);
            connected(&mut bed.queue, &remote, &bed.own, [&alpha, &beta]);
            let writes = round % 2 == 0;
            let (from, to) = if writes { (&bed.own, &bed.theirs) } else { (&bed.theirs, &bed.own) };
            from.write(0, &noise(4 << 20, round)).unwrap();
            to.write(0, &vec![0; 4 << 20]).unwrap();
            let transfer = if writes { copy(&bed.own, &remote) } else { copy(&remote, &bed.own) };
            let ticket = bed.queue.submit(transfer).unwrap();
            let wanted = round * 97 * 1024 % (2 * MIB);
            wait_until("bytes to be moved", || {
                let mut some = [0; 16];
                to.read(wanted, &mut some).unwrap();
                some != [0; 16]
            });
            granted.revoke().unwrap();
            // What is read from now on is seen at the other node, what is written here.
            let after = if writes { contents(&bed.theirs) } else { AFTER.repeat((4 << 20) / AFTER.len()) };
            bed.theirs.write(0, &after).unwrap();
            if let Err(error) = bed.queue.wait(ticket) {
                let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
                assert!(reasons.contains(&Some(error.failure)), "{way:?}: {error}");
                interrupted[usize::from(writes)] += u32::from(error.bytes_done > 0);
            }
            assert!(contents(&bed.theirs) == after, "{way:?}, {round}: written after the answer");
            assert!(has_none_of_after(&contents(&bed.own)), "{way:?}, {round}: read after the answer");
        }
        assert!(interrupted.iter().all(|times| *times > 0), "{way:?}: {interrupted:?} in mid-flight");
        assert!(peer(&alpha).direct > before, "{way:?}");
    }
}

#[test]
fn two_nodes_that_use_each_others_memory_in_place_do_not_wait_for_each_other() {
    const ROUNDS: usize = 20;
    const PIECE: u64 = 64 << 10;
    let (mut alpha, mut beta) = two_nodes(Way::Encrypted);
    for node in [&mut alpha, &mut beta] {
        drop(node.link.take());
        allow(node);
        node.start_link();
    }
    let mut beds = [bed(&alpha, &beta, MIB), bed(&beta, &alpha, MIB)];
    let granted = [(&alpha, &beta), (&beta, &alpha)].map(|(owner, user)| {
        let of = &beds[usize::from(owner.name == beta.name)];
        let (grant, token) = grant(owner, &of.theirs, &of.owner, DIRECT, user);
        (grant, accept(&of.client, token))
    });
    beds.iter().zip(1..).for_each(|(bed, seed)| bed.theirs.write(0, &noise(1 << 20, seed)).unwrap());
    // More at a time than the engine of a node takes: all that it has may wait for the other node.
    std::thread::scope(|scope| {
        for (bed, (_, remote)) in beds.iter_mut().zip(&granted) {
            let told = || format!("{}\n{}", alpha.told(), beta.told());
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let pieces = (0..16).map(|at| at * PIECE..(at + 1) * PIECE);
                    let submit = |piece| {
                        bed.queue.submit(copy(remote.slice(Clone::clone(&piece)), bed.own.slice(piece)))
                    };
                    let tickets: Vec<_> = pieces.map(submit).map(Result::unwrap).collect();
                    for ticket in tickets {
                        bed.queue.wait(ticket).unwrap_or_else(|error| panic!("{error}: {}", told()));
                    }
                }
            });
        }
    });
    for bed in &beds {
        assert!(contents(&bed.own) == contents(&bed.theirs));
    }
}

#[test]
fn a_peer_that_stands_still_does_not_keep_direct_memory() {
    for way in Way::all().into_iter().map(|way| if way == Way::Tcp { Way::Narrow } else { way }) {
        let (alpha, beta) = direct_nodes(way);
        let mut bed = bed(&alpha, &beta, 4 * MIB);
        let link = alpha.engine();
        for round in 0..3 {
            bed.theirs.write(0, &noise(4 << 20, round)).unwrap();
            let (granted, token) = grant(&alpha, &bed.theirs, &bed.owner, DIRECT, &beta);
            let remote = accept(&bed.client, token);
            connected(&mut bed.queue, &remote, &bed.own, [&alpha, &beta]);
            let tickets: Vec<_> =
                (0..4).map(|_| bed.queue.submit(copy(&remote, &bed.own)).unwrap()).collect();
            let before = peer(&alpha).direct;
            wait_until("an access in place", || peer(&alpha).direct > before);
            kill_process(beta.engine(), Signal::STOP).unwrap();
            let since = Instant::now();
            granted.revoke().unwrap();
            let took = since.elapsed();
            bed.theirs.write(0, &AFTER.repeat((4 << 20) / AFTER.len())).unwrap();
            kill_process(beta.engine(), Signal::CONT).unwrap();
            for ticket in tickets {
                let ended = bed.queue.wait(ticket).map_err(|error| error.failure).err();
                let reasons = [PeerReason::Revoked, PeerReason::NoSuchGrant].map(refused);
                let is_expected =
                    ended.is_none() || ended == Some(Failure::PeerLost) || reasons.contains(&ended);
                assert!(is_expected, "{way:?}: {ended:?}");
            }
            assert!(has_none_of_after(&contents(&bed.own)), "{way:?}: read after the answer");
            assert!(took < SOON / 4, "{way:?}: the answer took {took:?}");
        }
        assert_eq!(alpha.engine(), link, "{way:?}: {}", alpha.told());
    }
}

#[test]
fn a_link_that_is_killed_leaves_direct_memory_alone() {
    for way in Way::all() {
        let (alpha, beta) = direct_nodes(way);
        let mut bed = bed(&alpha, &beta, 4 * MIB);
        let (granted, token) = grant(&alpha, &bed.theirs, &bed.owner, DIRECT, &beta);
        let remote = accept(&bed.client, token);
        bed.own.write(0, &noise(4 << 20, 5)).unwrap();
        let tickets: Vec<_> = (0..4).map(|_| bed.queue.submit(copy(&bed.own, &remote)).unwrap()).collect();
        let before = peer(&alpha).direct;
        wait_until("an access in place", || peer(&alpha).direct > before);
        kill_process(alpha.engine(), Signal::KILL).unwrap();
        for ticket in tickets {
            let ended = bed.queue.wait(ticket).map_err(|error| error.failure).err();
            assert!(ended.is_none() || ended == Some(Failure::PeerLost), "{way:?}: {ended:?}");
        }
        granted.revoke().unwrap();
        let after = contents(&bed.theirs);
        // The next link has it mapped, too, and the grant is gone.
        let (_again, token) = grant(&alpha, &bed.theirs, &bed.owner, DIRECT, &beta);
        connected(&mut bed.queue, &accept(&bed.client, token), &bed.own, [&alpha, &beta]);
        assert!(failure(bed.queue.run(copy(&bed.own, &remote))).is_some(), "{way:?}");
        assert!(contents(&bed.theirs) == after, "{way:?}: written after the answer");
    }
}

#[test]
fn direct_grants_have_their_limits_and_their_end() {
    let (alpha, beta) = direct_nodes(Way::Encrypted);
    let mut bed = bed(&alpha, &beta, MIB);
    bed.theirs.write(0, &noise(1 << 20, 2)).unwrap();
    let narrow = bed.owner.derive(bed.theirs.slice(4096..MIB / 2), DIRECT.union(Rights::GRANT)).unwrap();
    let to = Grantee::Remote { node: beta.name, user: user() };
    let lasts = Duration::from_secs(3);
    let granted = bed.owner.grant_for(&narrow, Rights::READ | Rights::DIRECT, to, lasts).unwrap();
    let token = granted.remote_token(alpha.name).unwrap();
    let begun = Instant::now();
    // The token claims more than there is.
    let claims = RemoteToken { length: MIB, rights: BOTH, ..token };
    let remote = accept(&bed.client, claims);
    let long = 64 << 10;
    let run = |queue: &mut Queue, from: u64| {
        failure(queue.run(copy(remote.slice(from..from + long), bed.own.slice(..long))))
    };
    let within = run(&mut bed.queue, 7);
    if begun.elapsed() < lasts {
        assert_eq!(within, None);
        assert!(contents(&bed.own)[..long as usize] == contents(&bed.theirs)[4103..4103 + long as usize]);
    }
    let outside = failure(bed.queue.run(copy(remote.slice(MIB / 2..), bed.own.slice(..MIB / 2))));
    let to_write = failure(bed.queue.run(copy(bed.own.slice(..long), remote.slice(..long))));
    if begun.elapsed() < lasts {
        assert_eq!(outside, refused(PeerReason::OutOfBounds));
        assert_eq!(to_write, refused(PeerReason::MissingRight));
    }
    wait_until("the grant to end", || {
        [PeerReason::Expired, PeerReason::NoSuchGrant].map(refused).contains(&run(&mut bed.queue, 0))
    });
    // Revoked by what it was derived from.
    let again = bed.owner.grant(&narrow, DIRECT, to).unwrap();
    let remote = accept(&bed.client, again.remote_token(alpha.name).unwrap());
    assert_eq!(failure(bed.queue.run(copy(remote.slice(..long), bed.own.slice(..long)))), None);
    drop(narrow);
    let whole = bed.owner.derive(&bed.theirs, Rights::READ | Rights::GRANT).unwrap();
    let unmarked = bed.owner.grant(&whole, DIRECT, to);
    assert!(unmarked.is_err(), "who does not have the right cannot give it");
}

#[test]
fn a_hostile_peer_gets_nothing_by_direct_grants() {
    let (mut alpha, mut beta) = two_nodes(Way::Encrypted);
    drop(alpha.link.take());
    let (listener, config) = in_place_of_link(&mut beta);
    allow(&alpha);
    alpha.start_link();
    let mut hostile = Hostile::meet(&listener, &config);
    let owner = alpha.client();
    let theirs = host(&owner, MIB);
    theirs.write(0, &noise(1 << 20, 8)).unwrap();
    let all = contents(&theirs);
    let chunk = 128 << 10;
    let (plain, token) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let attachment = hostile.attach(token, user()).unwrap();
    assert!(hostile.access(attachment, (0, chunk), None).unwrap() == all[..chunk as usize]);
    assert_eq!(peer(&alpha).direct, 0, "the grant is not marked, whatever the peer asks");
    let (direct, token) = grant(&alpha, &theirs, &owner, Rights::READ | Rights::DIRECT, &beta);
    assert_eq!(hostile.attach(token, user() + 1), Err(PeerReason::NoSuchGrant));
    let attachment = hostile.attach(token, user()).unwrap();
    assert!(hostile.access(attachment, (1, chunk), None).unwrap() == all[1..=chunk as usize]);
    assert_eq!(peer(&alpha).direct, 1);
    let payload = vec![0x77; chunk as usize];
    for (piece, payload, expected) in [
        ((MIB - 5, chunk), None, PeerReason::OutOfBounds),
        ((u64::MAX, chunk), None, PeerReason::OutOfBounds),
        ((0, chunk), Some(&payload[..]), PeerReason::MissingRight),
    ] {
        assert_eq!(hostile.access(attachment, piece, payload), Err(expected), "{piece:?}");
    }
    assert_eq!(hostile.access(attachment + 1, (0, chunk), None), Err(PeerReason::NoSuchGrant));
    direct.revoke().unwrap();
    theirs.write(0, &[0xee; 1 << 20]).unwrap();
    let late = hostile.access(attachment, (0, chunk), None);
    assert!(matches!(late, Err(PeerReason::Revoked | PeerReason::NoSuchGrant)), "{late:?}");
    assert_eq!(peer(&alpha).direct, 1);
    drop(plain);
}
