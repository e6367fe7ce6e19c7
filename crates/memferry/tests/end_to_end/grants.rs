//! Grants between two sessions of the service that this process shares.

use memferry::{AccessError, CallError, Failure, Grantee, Pattern, Rights, Side};

use super::*;

#[test]
fn a_grant_lets_a_peer_move_within_its_range_and_rights_until_it_is_revoked() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another");
    let shared = frame(&owner);
    let private = frame(&peer);
    shared.write(0, &[5; FRAME_BYTES as usize]).expect("the frame's own bytes");
    let token = owner.grant(&shared.range(100, 50), Rights::READ, Grantee::Session(peer.session()));
    let token = token.expect("granted");
    let granted = peer.accept(token).expect("accepted");
    assert_eq!((granted.length(), granted.rights()), (50, Rights::READ));
    assert_eq!((granted.grantor(), shared.grantor()), (Some(owner.session()), None));
    assert_eq!(granted.read(0, &mut [0]), Err(AccessError::NotMapped));

    let mut queue = peer.queue(4).expect("a queue");
    let mut outcome_of = |transfer: Transfer| {
        let ticket = queue.submit(transfer).expect("room");
        outcome(queue.wait(ticket, PATIENCE).expect("a completion"))
    };
    let read = |length| Transfer::copy(&granted.range(0, length), &private.all()).expect("fits");
    assert_eq!(outcome_of(read(50)), Ok(50));
    assert_eq!(contents(&private)[..51], [[5; 50].as_slice(), &[0]].concat());
    assert_eq!(outcome_of(read(51)), Err(Failure::OutOfBounds { side: Side::Source, available: 50 }));
    let lacks = Failure::MissingRight { side: Side::Destination, handle: granted.handle() };
    assert_eq!(outcome_of(Transfer::fill(&granted.all(), Pattern::Byte(1))), Err(lacks));
    let narrower = peer.derive(&granted.range(10, 5), Rights::READ).expect("derived");
    assert_eq!(narrower.write(0, &[1]), Err(AccessError::NotMapped));
    assert_eq!(outcome_of(Transfer::copy(&narrower.all(), &private.all()).expect("fits")), Ok(5));
    let widened = peer.derive(&granted.range(10, 5), Rights::WRITE);
    assert!(matches!(widened, Err(CallError::Refused(_))));

    owner.revoke(token).expect("revoked");
    let revoked = Failure::Revoked { side: Side::Source, handle: granted.handle() };
    assert_eq!(outcome_of(read(50)), Err(revoked));
    assert!(matches!(peer.accept(token), Err(CallError::Refused(_))));
}

#[test]
fn revoking_a_grant_ends_the_peers_transfers_first() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another");
    let shared = frame(&owner);
    let rights = Rights::READ | Rights::WRITE;
    let token = owner.grant(&shared.all(), rights, Grantee::Session(peer.session())).expect("granted");
    let granted = peer.accept(token).expect("accepted");
    let mut queue = peer.queue(4).expect("a queue");
    let running = queue.submit(endless(&granted)).expect("room");
    while contents(&shared)[0] == 0 {
        std::thread::yield_now();
    }
    owner.revoke(token).expect("revoked");
    shared.write(0, &[0]).expect("the frame's own bytes");
    let completion = queue.wait(running, PATIENCE).expect("a completion");
    assert_eq!(completion.outcome, Err(Failure::Cancelled));
    assert_eq!(contents(&shared)[0], 0, "the peer wrote after the revocation");
}
