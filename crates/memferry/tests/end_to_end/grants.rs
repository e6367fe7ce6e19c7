//! Grants between two sessions of the process's shared service.

use memferry::{
    AccessError, CallError, Failure, GrantToken, Grantee, Pattern, Rights, Side, Transfer, copy, fill,
};

use super::*;

#[test]
fn a_grant_is_bounded_until_revoked() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another client");
    let shared = frame(&owner);
    let private = frame(&peer);
    shared.write(0, &[5; FRAME_BYTES as usize]).expect("access to the frame");
    let grant = owner.grant(shared.slice(100..150), Rights::READ, Grantee::Session(peer.session()));
    let grant = grant.expect("granted");
    let token = grant.token();
    let granted = peer.accept(token).expect("accepted");
    assert_eq!((granted.length(), granted.rights()), (50, Rights::READ));
    assert_eq!((granted.grantor(), shared.grantor()), (Some(owner.session()), None));
    assert_eq!(granted.read(0, &mut [0]), Err(AccessError::NotMapped));

    let mut queue = peer.queue(4).expect("a queue");
    let mut outcome_of = |transfer: Transfer| {
        let ticket = queue.submit(transfer).expect("room");
        outcome(end_of(&mut queue, ticket))
    };
    let read = |length| copy(granted.slice(..length), &private);
    assert_eq!(outcome_of(read(50)), Ok(50));
    assert_eq!(contents(&private)[..51], [[5; 50].as_slice(), &[0]].concat());
    assert_eq!(outcome_of(read(51)), Err(Failure::OutOfBounds { side: Side::Source, available: 50 }));
    let lacks = Failure::MissingRight { side: Side::Destination, handle: granted.handle() };
    assert_eq!(outcome_of(fill(&granted, Pattern::Byte(1))), Err(lacks));
    let narrower = peer.derive(granted.slice(10..15), Rights::READ).expect("derived");
    assert_eq!(narrower.write(0, &[1]), Err(AccessError::NotMapped));
    assert_eq!(outcome_of(copy(&narrower, &private)), Ok(5));
    let widened = peer.derive(granted.slice(10..15), Rights::WRITE);
    assert!(matches!(widened, Err(CallError::Refused(_))));

    grant.revoke().expect("revoked");
    let revoked = Failure::Revoked { side: Side::Source, handle: granted.handle() };
    assert_eq!(outcome_of(read(50)), Err(revoked));
    assert!(matches!(peer.accept(token), Err(CallError::Refused(_))));
}

#[test]
fn a_grant_for_a_time_ends_by_itself() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another client");
    let shared = frame(&owner);
    let private = frame(&peer);
    shared.write(0, &[5; FRAME_BYTES as usize]).expect("access to the frame");
    let to = Grantee::Session(peer.session());
    // On a busy machine it may expire before it is accepted.
    let granted = loop {
        let lasts = std::time::Duration::from_millis(30);
        let grant = owner.grant_for(&shared, Rights::all(), to, lasts).expect("granted");
        if let Ok(granted) = peer.accept(grant.token()) {
            break granted;
        }
    };
    let mut queue = peer.queue(4).expect("a queue");
    let expired = Failure::Expired { side: Side::Source, handle: granted.handle() };
    let ended = loop {
        let ticket = queue.submit(copy(&granted, &private)).expect("room");
        match outcome(end_of(&mut queue, ticket)) {
            Ok(bytes) => assert_eq!(bytes, FRAME_BYTES),
            Err(failure) => break failure,
        }
    };
    assert_eq!(ended, expired);
    let derived = peer.derive(&granted, Rights::READ);
    let Err(CallError::Refused(refused)) = derived else { panic!("derived from an expired grant") };
    assert!(refused.message.contains("expired"), "{refused}");
    let over = owner.grant_for(&shared, Rights::READ, to, std::time::Duration::ZERO).expect("granted");
    let refused = peer.accept(over.token()).expect_err("it has expired");
    assert!(refused.to_string().contains("expired"), "{refused}");
    over.revoke().expect("an expired grant can be revoked");
}

#[test]
fn revoke_returns_after_the_peers_transfers_end() {
    let owner = Client::embedded().expect("a client");
    let peer = Client::embedded().expect("another client");
    let shared = frame(&owner);
    let rights = Rights::READ | Rights::WRITE;
    let grant = owner.grant(&shared, rights, Grantee::Session(peer.session())).expect("granted");
    let granted = peer.accept(grant.token()).expect("accepted");
    let mut queue = peer.queue(4).expect("a queue");
    let running = queue.submit(endless(&granted)).expect("room");
    while contents(&shared)[0] == 0 {
        std::thread::yield_now();
    }
    grant.revoke().expect("revoked");
    shared.write(0, &[0]).expect("access to the frame");
    assert_eq!(outcome(end_of(&mut queue, running)), Err(Failure::Cancelled));
    assert_eq!(contents(&shared)[0], 0, "the peer wrote after the revocation");
}

#[test]
fn a_token_survives_its_grant_and_a_text_form() {
    let owner = Client::embedded().expect("a client");
    let shared = frame(&owner);
    let user = Grantee::User(rustix::process::geteuid().as_raw());
    let grant = owner.grant(&shared, Rights::READ, user).expect("granted");
    let text = grant.token().to_string();
    // Dropping the grant does not revoke it.
    drop(grant);
    let token: GrantToken = text.parse().expect("a number");
    assert_eq!(GrantToken::from_raw(token.to_raw()), token);
    let granted = owner.accept(token).expect("accepted");
    assert_eq!(granted.length(), FRAME_BYTES);
    owner.revoke(token).expect("revoked");
    assert!(matches!(owner.accept(token), Err(CallError::Refused(_))));
    assert!("17x".parse::<GrantToken>().is_err());
}

#[test]
fn inverted_slices_are_not_granted_or_derived() {
    let owner = Client::embedded().expect("a client");
    let shared = frame(&owner);
    let inverted = shared.slice(FRAME_BYTES + 1..);
    let to = Grantee::Session(owner.session());
    for refused in
        [owner.grant(&inverted, Rights::READ, to).map(drop), owner.derive(&inverted, Rights::READ).map(drop)]
    {
        let Err(CallError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.message, "the slice 4097..4096 ends before it begins");
    }
}
