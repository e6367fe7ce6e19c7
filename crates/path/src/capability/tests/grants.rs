//! Grants: who may accept one, and the range and rights it gives.

use super::*;

#[test]
fn a_grant_gives_its_range_and_rights() {
    let (mut table, root, _) = with_root();
    let part = table.derive(A, root, (10, 50), ALL).unwrap();
    let token = table.grant(A, part, (4, 8), Rights::WRITE, Grantee::Session(B)).unwrap();
    let accepted = table.accept(B, BOB, token).unwrap();
    assert_eq!((accepted.length, accepted.rights, accepted.grantor), (8, Rights::WRITE, A));
    assert_eq!(filled(&mut table, B, accepted.handle, (0, 8)), Ok((14, 8)));
    let outside = Failure::OutOfBounds { side: Side::Destination, available: 8 };
    assert_eq!(filled(&mut table, B, accepted.handle, (1, 8)), Err(outside));
}

#[test]
fn only_the_named_session_accepts_a_grant() {
    let (mut table, root, _) = with_root();
    let token = table.grant(A, root, (0, 8), Rights::READ, Grantee::Session(B)).unwrap();
    let none = Err(CapabilityError::NoSuchGrant(token));
    assert_eq!(table.accept(C, BOB, token), none);
    assert_eq!(table.accept(A, ALICE, token), none);
    table.accept(B, ALICE, token).unwrap();
}

#[test]
fn all_sessions_of_a_user_can_accept_its_grant() {
    let (mut table, root, _) = with_root();
    let token = table.grant(A, root, (0, 8), Rights::WRITE, Grantee::User(BOB)).unwrap();
    let first = table.accept(B, BOB, token).unwrap().handle;
    let second = table.accept(C, BOB, token).unwrap().handle;
    assert_ne!(first, second);
    assert_eq!(table.accept(C, ALICE, token), Err(CapabilityError::NoSuchGrant(token)));
    assert_eq!(filled(&mut table, B, first, (0, 8)), Ok((0, 8)));
    let foreign = Failure::UnknownHandle { side: Side::Destination, handle: second };
    assert_eq!(filled(&mut table, B, second, (0, 8)), Err(foreign));
}

#[test]
fn only_grants_can_be_accepted() {
    let (mut table, root, _) = with_root();
    let derived = table.derive(A, root, (0, 8), ALL).unwrap();
    let forged = Handle::new(99, 1);
    for handle in [root, derived, forged, Handle::from_bits(0), Handle::from_bits(u64::MAX)] {
        let token = GrantToken::from_handle(handle);
        assert_eq!(table.accept(B, BOB, token), Err(CapabilityError::NoSuchGrant(token)));
        assert_eq!(table.accept(A, ALICE, token), Err(CapabilityError::NoSuchGrant(token)));
    }
}

#[test]
fn a_revoked_grant_cannot_be_accepted() {
    let (mut table, root, _) = with_root();
    let token = table.grant(A, root, (0, 8), ALL, Grantee::Session(B)).unwrap();
    let running = admit_fill(&mut table, A, root, (0, 1)).unwrap();
    table.revoke(A, root).unwrap();
    assert_eq!(table.accept(B, BOB, token), Err(CapabilityError::NoSuchGrant(token)));
    release(&mut table, running);
    assert_eq!(table.accept(B, BOB, token), Err(CapabilityError::NoSuchGrant(token)));
}

#[test]
fn a_token_is_no_handle_for_transfers() {
    let (mut table, root, _) = with_root();
    let token = table.grant(A, root, (0, 8), ALL, Grantee::Session(B)).unwrap().handle();
    let lacks = Failure::MissingRight { side: Side::Destination, handle: token };
    assert_eq!(filled(&mut table, A, token, (0, 1)), Err(lacks));
    let unknown = Failure::UnknownHandle { side: Side::Destination, handle: token };
    assert_eq!(filled(&mut table, B, token, (0, 1)), Err(unknown));
}

#[test]
fn passing_on_needs_grant_at_each_step() {
    let (mut table, root, _) = with_root();
    let private = table.derive(A, root, (0, 100), Rights::READ | Rights::WRITE).unwrap();
    let refused = table.grant(A, private, (0, 8), Rights::READ, Grantee::Session(B));
    assert_eq!(refused, Err(CapabilityError::NotGrantable(private)));

    let (_, held) = pass(&mut table, (A, root, 100), Rights::READ, B);
    let refused = table.grant(B, held, (0, 8), Rights::READ, Grantee::Session(C));
    assert_eq!(refused, Err(CapabilityError::NotGrantable(held)));

    let (_, held) = pass(&mut table, (A, root, 100), Rights::READ | Rights::GRANT, B);
    let token = table.grant(B, held, (0, 100), Rights::READ, Grantee::Session(C)).unwrap();
    let passed = table.accept(C, BOB, token).unwrap();
    assert_eq!(passed.grantor, B, "the session that passed it on, not the owner of the memory");
    let passed_on = passed.handle;
    let refused = table.grant(C, passed_on, (0, 8), Rights::READ, Grantee::Session(A));
    assert_eq!(refused, Err(CapabilityError::NotGrantable(passed_on)));
    let wanted = Rights::WRITE;
    let more = CapabilityError::Rights { handle: held, held: Rights::READ | Rights::GRANT, wanted };
    assert_eq!(table.grant(B, held, (0, 8), wanted, Grantee::Session(C)), Err(more));
}

#[test]
fn only_the_holder_may_grant_derive_or_revoke() {
    let (mut table, root, _) = with_root();
    let unknown = CapabilityError::Unknown(root);
    assert_eq!(table.derive(B, root, (0, 1), Rights::READ), Err(unknown));
    assert_eq!(table.grant(B, root, (0, 1), Rights::READ, Grantee::Session(B)), Err(unknown));
    assert_eq!(table.revoke(B, root), Err(unknown));
    assert_eq!(filled(&mut table, A, root, (0, 100)), Ok((0, 100)));
}

#[test]
fn only_a_link_accepts_for_users_of_other_nodes() {
    let (mut table, root, _) = with_root();
    let [near, far]: [NodeName; 2] = ["near", "far"].map(|name| name.parse().unwrap());
    let to = Grantee::Remote { node: far, user: BOB };
    let token = table.grant(A, root, (4, 8), Rights::READ, to).unwrap();
    let none = Err(CapabilityError::NoSuchGrant(token));
    assert_eq!(table.accept(B, BOB, token), none, "not as a user of this node");
    for (node, user) in [(near, BOB), (far, ALICE), (NodeName::from_bytes([0; 16]), BOB)] {
        assert_eq!(table.accept_for(C, (node, user), token), none);
    }
    let local = table.grant(A, root, (0, 8), Rights::READ, Grantee::User(BOB)).unwrap();
    assert_eq!(table.accept_for(C, (far, BOB), local), Err(CapabilityError::NoSuchGrant(local)));
    let accepted = table.accept_for(C, (far, BOB), token).unwrap();
    assert_eq!((accepted.length, accepted.rights, accepted.grantor), (8, Rights::READ, A));
    table.revoke(A, token.handle()).unwrap();
    assert_eq!(table.accept_for(C, (far, BOB), token), none);
}
