//! Registering and deriving: ranges and rights only shrink, and quotas hold.

use super::*;

#[test]
fn a_derived_range_counts_from_its_parents_start() {
    let (mut table, root, _) = with_root();
    let middle = table.derive(A, root, (10, 50), ALL).unwrap();
    let inner = table.derive(A, middle, (5, 20), ALL).unwrap();
    assert_eq!(filled(&mut table, A, inner, (0, 20)), Ok((15, 20)));
    assert_eq!(filled(&mut table, A, inner, (19, 1)), Ok((34, 1)));
    let outside = Failure::OutOfBounds { side: Side::Destination, available: 20 };
    assert_eq!(filled(&mut table, A, inner, (0, 21)), Err(outside));
}

#[test]
fn ranges_that_leave_the_parent_are_refused() {
    let (mut table, root, _) = with_root();
    for (offset, length) in [(0, 100), (100, 0), (0, 0), (99, 1), (1, 99)] {
        table.derive(A, root, (offset, length), ALL).unwrap();
    }
    let max = u64::MAX;
    for (offset, length) in
        [(0, 101), (1, 100), (101, 0), (100, 1), (max, 0), (max, 1), (1, max), (max, max), (0, max), (max, 2)]
    {
        let refused = CapabilityError::OutOfRange { handle: root, offset, length, available: 100 };
        assert_eq!(table.derive(A, root, (offset, length), ALL), Err(refused));
        let granted = table.grant(A, root, (offset, length), ALL, Grantee::Session(B));
        assert_eq!(granted, Err(refused));
    }
}

#[test]
fn empty_memory_gives_only_empty_ranges() {
    let mut table = table();
    let root = table.register(A, Counted::new(0), ALL).unwrap();
    let empty = table.derive(A, root, (0, 0), ALL).unwrap();
    assert_eq!(filled(&mut table, A, empty, (0, 0)), Ok((0, 0)));
    assert!(matches!(table.derive(A, root, (0, 1), ALL), Err(CapabilityError::OutOfRange { .. })));
    assert!(matches!(table.derive(A, root, (1, 0), ALL), Err(CapabilityError::OutOfRange { .. })));
}

#[test]
fn narrowing_the_largest_memory_fits() {
    let mut table = table();
    let root = table.register(A, Counted::new(u64::MAX), ALL).unwrap();
    let last = table.derive(A, root, (u64::MAX - 1, 1), ALL).unwrap();
    assert_eq!(filled(&mut table, A, last, (0, 1)), Ok((u64::MAX - 1, 1)));
    let outside = Failure::OutOfBounds { side: Side::Destination, available: 1 };
    assert_eq!(filled(&mut table, A, last, (1, 1)), Err(outside));
    assert_eq!(filled(&mut table, A, last, (u64::MAX, 1)), Err(outside));
}

#[test]
fn only_held_rights_can_be_given() {
    let (mut table, root, _) = with_root();
    for bits in 1..16 {
        let held = Rights::from_bits_truncate(bits);
        let parent = table.derive(A, root, (0, 100), held).unwrap();
        for wanted in (0..16).map(Rights::from_bits_truncate) {
            let derived = table.derive(A, parent, (0, 100), wanted);
            if wanted.is_empty() || !held.contains(wanted) {
                assert_eq!(derived, Err(CapabilityError::Rights { handle: parent, held, wanted }));
            } else {
                table.revoke(A, derived.unwrap()).unwrap();
            }
        }
        table.revoke(A, parent).unwrap();
    }
}

#[test]
fn narrower_rights_hold_at_admission() {
    let (mut table, root, _) = with_root();
    let readable = table.derive(A, root, (0, 100), Rights::READ).unwrap();
    let writable = table.derive(A, root, (0, 100), Rights::WRITE).unwrap();
    let copy = |source, destination| Request::copy(Span::new(source, 0), Span::new(destination, 50), 50);
    let admitted = table.admit(A, &copy(readable, writable), u64::MAX).unwrap();
    release(&mut table, admitted);
    for (source, destination, side, handle) in [
        (writable, writable, Side::Source, writable),
        (readable, readable, Side::Destination, readable),
        (writable, readable, Side::Source, writable),
    ] {
        let refused = table.admit(A, &copy(source, destination), u64::MAX).unwrap_err();
        assert_eq!(refused, Failure::MissingRight { side, handle });
    }
}

#[test]
fn a_quota_counts_held_capabilities() {
    let mut table: Capabilities<Counted> = Capabilities::new(3);
    let quota = CapabilityError::Quota { limit: 3 };
    let root = table.register(A, Counted::new(8), ALL).unwrap();
    let derived = table.derive(A, root, (0, 8), ALL).unwrap();
    let token = table.grant(A, root, (0, 8), Rights::READ, Grantee::Session(B)).unwrap();
    let memory = Counted::new(8);
    assert_eq!(table.register(A, memory.clone(), ALL), Err(quota));
    assert_eq!(memory.holders(), 0);
    assert_eq!(table.derive(A, root, (0, 8), ALL), Err(quota));
    assert_eq!(table.grant(A, root, (0, 8), ALL, Grantee::Session(B)), Err(quota));
    table.revoke(A, derived).unwrap();
    assert_eq!(table.count(A), 2);
    table.derive(A, root, (0, 8), ALL).unwrap();
    assert_eq!((table.count(A), table.count(B)), (3, 0));

    // Each session has its own quota; accepted capabilities count in the acceptor's.
    for accepted in 1..=3 {
        table.accept(B, BOB, token).unwrap();
        assert_eq!(table.count(B), accepted);
    }
    assert_eq!(table.accept(B, BOB, token), Err(quota));
    table.close(B);
    assert_eq!(table.count(B), 0);
    table.accept(B, BOB, token).unwrap();
}

#[test]
fn a_zero_quota_refuses_all() {
    let mut table = Capabilities::new(0);
    let refused = table.register(A, Counted::new(1), ALL);
    assert_eq!(refused, Err(CapabilityError::Quota { limit: 0 }));
}

#[test]
fn only_the_first_handle_is_that_of_registered_memory() {
    let mut table = table();
    let root = table.register(A, Counted::new(100), ALL).unwrap();
    assert!(table.registered(A, root).unwrap().is_some());
    let derived = table.derive(A, root, (0, 100), ALL).unwrap();
    assert!(table.registered(A, derived).unwrap().is_none());
    let token = table.grant(A, root, (0, 100), ALL, Grantee::Session(B)).unwrap();
    assert!(table.registered(A, token.handle()).unwrap().is_none());
    let accepted = table.accept(B, 0, token).unwrap().handle;
    assert!(table.registered(B, accepted).unwrap().is_none());
    for (session, handle) in [(B, root), (A, accepted), (A, Handle::new(99, 1))] {
        assert_eq!(table.registered(session, handle).err(), Some(CapabilityError::Unknown(handle)));
    }
    table.revoke(A, root).unwrap();
    assert!(table.registered(A, root).is_err());
    // What is below is revoked as well; its holder keeps a tombstone.
    assert_eq!(table.registered(B, accepted).err(), Some(CapabilityError::Revoked(accepted)));
}
