//! Revoking and closing: the requests they wait for, and when memory leaves the table.

use super::*;

/// Whether each session's handle gives access.
fn good(table: &mut Capabilities<Counted>, handles: &[(SessionId, Handle)]) -> Vec<bool> {
    handles.iter().map(|(session, handle)| filled(table, *session, *handle, (0, 1)).is_ok()).collect()
}

#[test]
fn revoking_covers_the_subtree_across_sessions() {
    let (mut table, root, memory) = with_root();
    let derived = table.derive(A, root, (0, 50), ALL).unwrap();
    let (_, held) = pass(&mut table, (A, derived, 50), ALL, B);
    let narrowed = table.derive(B, held, (0, 10), ALL).unwrap();
    let (_, passed_on) = pass(&mut table, (B, narrowed, 10), ALL, C);
    let sibling = table.derive(A, root, (50, 50), ALL).unwrap();
    let all = [(A, root), (A, derived), (B, held), (B, narrowed), (C, passed_on), (A, sibling)];
    assert_eq!(good(&mut table, &all), [true; 6]);

    let revocation = table.revoke(A, derived).unwrap();
    assert_eq!(good(&mut table, &all), [true, false, false, false, false, true]);
    assert_eq!(table.take_finished(), [revocation]);
    table.take_dropped();
    assert_eq!(memory.holders(), 2);

    table.revoke(A, root).unwrap();
    assert_eq!(good(&mut table, &all), [false; 6]);
    table.take_dropped();
    assert_eq!(memory.holders(), 0);
}

#[test]
fn a_close_waits_for_all_that_is_held() {
    let (mut table, root, _) = with_root();
    let other = table.register(A, Counted::new(5), ALL).unwrap();
    let [first, second] = [root, other].map(|handle| admit_fill(&mut table, A, handle, (0, 1)).unwrap());
    let closing = table.close(A);
    release(&mut table, first);
    assert_eq!(table.take_finished(), [], "a request still uses the other one");
    release(&mut table, second);
    assert_eq!(table.take_finished(), [closing]);
}

#[test]
fn a_revocation_waits_for_requests_below_it() {
    let (mut table, root, memory) = with_root();
    let (_, held) = pass(&mut table, (A, root, 100), ALL, B);
    let child = table.derive(B, held, (0, 10), ALL).unwrap();
    let first = admit_fill(&mut table, B, child, (0, 1));
    let second = admit_fill(&mut table, B, child, (1, 1));
    let first = first.unwrap();
    let second = second.unwrap();
    assert!(!table.uses_revoked(first.claims()));

    let revocation = table.revoke(A, root).unwrap();
    assert!(table.uses_revoked(first.claims()));
    assert_eq!(table.take_finished(), []);
    let refused = Failure::Revoked { side: Side::Destination, handle: child };
    assert_eq!(filled(&mut table, B, child, (0, 1)), Err(refused));
    release(&mut table, first);
    assert_eq!(table.take_finished(), []);
    release(&mut table, second);
    assert_eq!(table.take_finished(), [revocation]);
    assert_eq!(table.take_finished(), []);
    table.take_dropped();
    assert_eq!(memory.holders(), 0);
}

#[test]
fn memory_is_freed_after_its_last_request() {
    let (mut table, root, memory) = with_root();
    let (granted, held) = pass(&mut table, (A, root, 50), ALL, B);
    table.revoke(A, granted).unwrap();
    assert!(filled(&mut table, B, held, (0, 1)).is_err());
    assert_eq!(table.take_freed(), [], "its owner still has it");
    assert!(!table.take_dropped().is_empty());
    let (_, held) = pass(&mut table, (A, root, 50), ALL, B);
    let running = admit_fill(&mut table, B, held, (0, 1)).unwrap();
    table.revoke(A, root).unwrap();
    assert_eq!(table.take_freed(), [], "a request still uses it");
    release(&mut table, running);
    assert_eq!(table.take_freed(), std::slice::from_ref(&memory));
    table.take_dropped();
    assert_eq!(memory.holders(), 0);
}

#[test]
fn nested_revocations_wait_independently() {
    let (mut table, root, _) = with_root();
    let child = table.derive(A, root, (0, 10), ALL).unwrap();
    let on_root = admit_fill(&mut table, A, root, (0, 1)).unwrap();
    let on_child = admit_fill(&mut table, A, child, (0, 1)).unwrap();
    let inner = table.revoke(A, child).unwrap();
    let outer = table.revoke(A, root).unwrap();
    let again = table.revoke(A, child).unwrap();
    assert!(inner != outer && outer != again);
    assert_eq!(table.take_finished(), []);
    release(&mut table, on_child);
    assert_eq!(table.take_finished(), [inner, again]);
    release(&mut table, on_root);
    assert_eq!(table.take_finished(), [outer]);
    assert_eq!(table.count(A), 0);
}

#[test]
fn one_release_can_finish_several_revocations() {
    let (mut table, root, _) = with_root();
    let (token, held) = pass(&mut table, (A, root, 100), ALL, B);
    let running = admit_fill(&mut table, B, held, (0, 1)).unwrap();
    let by_grantor = table.revoke(A, token).unwrap();
    let by_holder = table.revoke(B, held).unwrap();
    let by_end = table.close(A);
    assert_eq!(table.take_finished(), []);
    release(&mut table, running);
    assert_eq!(table.take_finished(), [by_grantor, by_holder, by_end]);
    assert_eq!((table.count(A), table.count(B)), (0, 0));
}

#[test]
fn a_revocation_waits_for_earlier_ones_below() {
    let (mut table, root, _) = with_root();
    let (token, held) = pass(&mut table, (A, root, 100), ALL, B);
    let running = admit_fill(&mut table, B, held, (0, 1)).unwrap();
    let of_grant = table.revoke(A, token).unwrap();
    // Nothing is in flight on the grant itself, only on the capability accepted under it.
    let of_root = table.revoke(A, root).unwrap();
    assert_eq!((table.take_finished(), table.count(A)), (vec![], 2));
    release(&mut table, running);
    assert_eq!((table.take_finished(), table.count(A)), (vec![of_grant, of_root], 0));
}

#[test]
fn repeated_revocations_all_finish() {
    let (mut table, root, memory) = with_root();
    let (token, held) = pass(&mut table, (A, root, 100), ALL, B);
    let running = admit_fill(&mut table, B, held, (0, 1)).unwrap();
    let mut expected: Vec<_> = (0..20).map(|_| table.revoke(A, token).unwrap()).collect();
    assert!(table.take_caught());
    expected.extend((0..20).map(|_| table.revoke(A, root).unwrap()));
    expected.push(table.close(A));
    // The later revocations affect no further requests.
    assert!(!table.take_caught());
    release(&mut table, running);
    assert_eq!(table.take_finished(), expected);
    table.take_dropped();
    assert_eq!((memory.holders(), table.count(A), table.count(B)), (0, 0, 1));
    table.revoke(B, held).unwrap();
    assert_eq!(table.count(B), 0);
}

#[test]
fn one_capability_used_twice_stays_until_release() {
    let (mut table, root, _) = with_root();
    let copy = Request::copy(Span::new(root, 0), Span::new(root, 50), 50);
    let running = table.admit(A, &copy, u64::MAX).unwrap();
    let revocation = table.revoke(A, root).unwrap();
    assert_eq!(table.take_finished(), []);
    release(&mut table, running);
    assert_eq!(table.take_finished(), [revocation]);
}

#[test]
fn memory_in_flight_stays_in_the_table() {
    let (mut table, root, memory) = with_root();
    let (operation, claims) = admit_fill(&mut table, A, root, (0, 1)).unwrap().into_parts();
    let closing = table.close(A);
    // A failed engine drops its region although the hardware may still write; the claim keeps the memory.
    drop(operation);
    assert_eq!(table.take_dropped(), []);
    assert_eq!(memory.holders(), 1);
    assert!(!table.has_news());

    table.release(claims);
    assert!(table.has_news());
    assert_eq!(table.take_dropped(), std::slice::from_ref(&memory));
    assert_eq!(memory.holders(), 0);
    assert_eq!(table.take_finished(), [closing]);
    assert!(!table.has_news());
}

#[test]
fn quarantined_memory_outlives_the_table() {
    let (mut table, root, memory) = with_root();
    let other = Counted::new(10);
    table.register(A, other.clone(), ALL).unwrap();
    let (operation, claims) = admit_fill(&mut table, A, root, (0, 1)).unwrap().into_parts();
    table.quarantine(&claims);
    drop((operation, table, claims));
    assert_eq!((memory.holders(), other.holders()), (1, 0));
}

#[test]
fn closing_revokes_what_a_session_holds_and_granted() {
    let (mut table, root, memory) = with_root();
    let other_memory = Counted::new(7);
    let other = table.register(B, other_memory.clone(), ALL).unwrap();
    let (_, held) = pass(&mut table, (A, root, 100), ALL, B);
    let (_, taken) = pass(&mut table, (B, other, 7), ALL, A);
    let closing = table.close(A);
    assert_eq!(table.take_finished(), [closing]);
    table.take_dropped();
    assert_eq!((memory.holders(), table.count(A)), (0, 0));
    assert_eq!(good(&mut table, &[(B, other), (B, held), (A, taken)]), [true, false, false]);
    table.close(B);
    table.take_dropped();
    assert_eq!((other_memory.holders(), table.count(B)), (0, 0));
}

#[test]
fn closing_an_empty_session_finishes_at_once() {
    let mut table = table();
    let closing = table.close(C);
    assert_eq!(table.take_finished(), [closing]);
}

#[test]
fn handles_of_a_closed_session_stay_invalid() {
    let (mut table, root, _) = with_root();
    let running = admit_fill(&mut table, A, root, (0, 1)).unwrap();
    table.close(A);
    assert_eq!(table.count(A), 1);
    let refused = Failure::Revoked { side: Side::Destination, handle: root };
    assert_eq!(filled(&mut table, A, root, (0, 1)), Err(refused));
    // A slot with a request in flight is not reused.
    let new = table.register(A, Counted::new(1), ALL).unwrap();
    assert_ne!(new.index(), root.index());
    release(&mut table, running);
    assert_eq!(table.count(A), 1);
    let stale = Failure::StaleHandle { side: Side::Destination, handle: root };
    assert_eq!(filled(&mut table, A, root, (0, 1)), Err(stale));
}

#[test]
fn owners_are_the_sessions_that_registered() {
    let (mut table, root, memory) = with_root();
    pass(&mut table, (A, root, 100), ALL, B);
    table.derive(A, root, (0, 1), ALL).unwrap();
    let other = table.register(C, memory.clone(), ALL).unwrap();
    table.register(B, Counted::new(1), ALL).unwrap();
    assert_eq!(table.owners(|named| *named == memory), [A, C]);
    table.revoke(A, root).unwrap();
    assert_eq!(table.owners(|named| *named == memory), [C]);
    table.revoke(C, other).unwrap();
    assert_eq!(table.owners(|_| true), [B]);
    assert_eq!(table.owners(|_| false), []);
}
