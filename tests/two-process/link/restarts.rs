//! Services that are started again: tokens of the run before are good for nothing.

use memferry::{Client, Frame, PeerReason, Rights, copy};
use memferry_conformance::noise;

use super::harness::wait_until;
use super::{
    MIB, Node, STALL_MS, Way, accept, arguments, connected, contents, engine, failure, grant, host, refused,
    two_nodes,
};

/// A frame with these bytes.
fn filled(client: &Client, seed: u64) -> Frame {
    let frame = client.frame(MIB).alloc().unwrap();
    frame.write(0, &noise(1 << 20, seed)).unwrap();
    frame
}

/// Waits until the owner's link is back, as the refusal of a byte of `remote` or its arrival shows.
fn answer(client: &Client, remote: &Frame, own: &Frame) -> Option<memferry::Failure> {
    let mut queue = client.queue(4).unwrap();
    let mut answer = None;
    wait_until("an answer of the owner's node", || {
        answer = failure(queue.run(copy(remote.slice(..8), own.slice(..8))));
        answer != Some(memferry::Failure::PeerLost)
    });
    answer
}

#[test]
fn a_token_of_an_earlier_run_names_no_grant_of_this_one() {
    let (mut alpha, beta): (Node, Node) = two_nodes(Way::Encrypted);
    let owner = alpha.client();
    let theirs = filled(&owner, 1);
    let (_grant, used) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let (_other_grant, unused) = grant(&alpha, &theirs, &owner, Rights::READ, &beta);
    let client = beta.client();
    let before = accept(&client, used);
    let own = host(&client, MIB);
    let mut queue = client.queue(4).unwrap();
    connected(&mut queue, &before, &own, [&alpha, &beta]);
    alpha.service.replace(&arguments(&engine(STALL_MS)));
    // The next run makes the same numbers for other memory of the same user.
    let owner = alpha.client();
    let secret = filled(&owner, 2);
    let granted: Vec<_> = (0..8)
        .map(|_| grant(&alpha, &secret, &owner, Rights::READ, &beta))
        .map(|granted| granted.1)
        .collect();
    let same = |token: memferry::RemoteToken| granted.iter().find(|other| other.token == token.token);
    assert!(same(used).is_some() && same(unused).is_some(), "the numbers are others: {granted:?}");
    assert_ne!(granted[0].service, used.service);
    assert_eq!(answer(&client, &before, &own), refused(PeerReason::EarlierRun));
    let late = accept(&client, unused);
    assert_eq!(answer(&client, &late, &own), refused(PeerReason::EarlierRun));
    let fresh = accept(&client, *same(unused).unwrap());
    assert_eq!(answer(&client, &fresh, &own), None);
    queue.run(copy(&fresh, &own)).unwrap();
    assert!(contents(&own) == contents(&secret));
}
