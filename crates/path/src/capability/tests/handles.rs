//! Handles: failures of foreign, forged, stale and revoked ones.

use super::*;

fn failure_of(table: &mut Capabilities<Counted>, session: SessionId, handle: Handle) -> Failure {
    filled(table, session, handle, (0, 1)).expect_err("the handle is valid")
}

fn unknown(handle: Handle) -> Failure {
    Failure::UnknownHandle { side: Side::Destination, handle }
}

fn stale(handle: Handle) -> Failure {
    Failure::StaleHandle { side: Side::Destination, handle }
}

fn revoked(handle: Handle) -> Failure {
    Failure::Revoked { side: Side::Destination, handle }
}

#[test]
fn a_handle_is_valid_in_its_session_only() {
    let (mut table, root, _) = with_root();
    assert_eq!(failure_of(&mut table, B, root), unknown(root));
    assert_eq!(filled(&mut table, A, root, (0, 1)), Ok((0, 1)));
}

#[test]
fn forged_handles_name_nothing() {
    let (mut table, root, _) = with_root();
    for forged in [
        Handle::new(root.index() + 1, 1),
        Handle::new(u32::MAX, 1),
        Handle::new(root.index(), root.generation() + 1),
        Handle::new(root.index(), u32::MAX),
        Handle::from_bits(u64::MAX),
    ] {
        assert_eq!(failure_of(&mut table, A, forged), unknown(forged));
        assert_eq!(table.derive(A, forged, (0, 1), ALL), Err(CapabilityError::Unknown(forged)));
        assert_eq!(table.revoke(A, forged), Err(CapabilityError::Unknown(forged)));
    }
    // The generation of the null handle is below the first of every slot.
    let null = Handle::from_bits(0);
    assert_eq!(failure_of(&mut table, B, null), unknown(null));
    assert!(filled(&mut table, A, null, (0, 1)).is_err());
}

#[test]
fn a_released_handle_is_stale() {
    let (mut table, old, _) = with_root();
    table.revoke(A, old).unwrap();
    assert_eq!(failure_of(&mut table, A, old), stale(old));
    assert_eq!(failure_of(&mut table, B, old), unknown(old));
    assert_eq!(table.revoke(A, old), Err(CapabilityError::Unknown(old)));

    let new = table.register(A, Counted::new(5), ALL).unwrap();
    assert_eq!((new.index(), new.generation()), (old.index(), old.generation() + 1));
    assert_eq!(failure_of(&mut table, A, old), stale(old));
    assert_eq!(filled(&mut table, A, new, (0, 5)), Ok((0, 5)));
}

#[test]
fn a_reused_slot_is_unknown_to_its_old_holder() {
    let (mut table, old, _) = with_root();
    table.revoke(A, old).unwrap();
    let new = table.register(B, Counted::new(5), ALL).unwrap();
    assert_eq!(new.index(), old.index());
    // Only the latest holder of a slot is remembered.
    assert_eq!(failure_of(&mut table, A, old), unknown(old));
    assert_eq!(failure_of(&mut table, A, new), unknown(new));
    assert_eq!(filled(&mut table, B, new, (0, 5)), Ok((0, 5)));
}

#[test]
fn each_reuse_of_a_slot_has_a_new_generation() {
    let mut table = table();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let handle = table.register(A, Counted::new(1), ALL).unwrap();
        assert_eq!(handle.index(), 0);
        assert!(seen.insert(handle));
        table.revoke(A, handle).unwrap();
    }
}

#[test]
fn a_slot_rests_when_short_requests_cannot_name_it() {
    let mut table = table();
    let mut cycle = || {
        let handle = table.register(A, Counted::new(1), ALL).unwrap();
        table.revoke(A, handle).unwrap();
        handle
    };
    for generation in 1..=wire::MAX_SHORT_GENERATION {
        assert_eq!(cycle(), Handle::new(0, generation));
    }
    assert_eq!(cycle(), Handle::new(1, 1));
    // Without end the table would grow as long as memory comes and goes.
    table.table.worn = (2..).take(MAX_WORN).collect();
    table.table.free.clear();
    table.table.worn[MAX_WORN - 1] = 0;
    assert_eq!(table.register(A, Counted::new(1), ALL), Ok(Handle::new(0, wire::MAX_SHORT_GENERATION + 1)));
    assert_eq!(table.register(A, Counted::new(1), ALL), Ok(Handle::new(2, 1)), "a new slot");
}

#[test]
fn a_slot_of_the_last_generation_is_retired() {
    let (mut table, first, _) = with_root();
    table.revoke(A, first).unwrap();
    table.table.parts[0][0].generation = u32::MAX - 1;
    let mut issued = Vec::new();
    for generation in [u32::MAX - 1, u32::MAX] {
        let handle = table.register(A, Counted::new(1), ALL).unwrap();
        assert_eq!(handle, Handle::new(0, generation));
        table.revoke(A, handle).unwrap();
        // The next handle of a worn slot, if it has one.
        table.table.free.append(&mut table.table.worn);
        issued.push(handle);
    }
    assert_eq!(table.register(A, Counted::new(1), ALL), Ok(Handle::new(1, 1)), "the slot was used again");
    for handle in issued.into_iter().chain([first, Handle::new(0, 0)]) {
        assert!(filled(&mut table, A, handle, (0, 1)).is_err(), "{handle} names something");
    }
}

#[test]
fn a_tombstone_reports_revoked_until_released() {
    let (mut table, root, _) = with_root();
    let (token, held) = pass(&mut table, (A, root, 100), ALL, B);
    table.revoke(A, token).unwrap();
    assert_eq!(failure_of(&mut table, B, held), revoked(held));
    assert_eq!(table.derive(B, held, (0, 1), ALL), Err(CapabilityError::Revoked(held)));
    let granted = table.grant(B, held, (0, 1), ALL, Grantee::Session(C));
    assert_eq!(granted, Err(CapabilityError::Revoked(held)));
    assert_eq!(table.count(B), 1);
    // The grantor gets no tombstone, and keeps its root.
    assert_eq!(failure_of(&mut table, A, token), stale(token));
    assert_eq!(filled(&mut table, A, root, (0, 100)), Ok((0, 100)));

    let forgetting = table.revoke(B, held).unwrap();
    assert!(table.take_finished().contains(&forgetting));
    assert_eq!(failure_of(&mut table, B, held), stale(held));
    assert_eq!(table.count(B), 0);
}

#[test]
fn a_peers_own_grants_leave_no_tombstones() {
    let (mut table, root, _) = with_root();
    let (_, held) = pass(&mut table, (A, root, 100), ALL, B);
    let (token, passed_on) = pass(&mut table, (B, held, 100), ALL, C);
    table.revoke(A, root).unwrap();
    assert_eq!(failure_of(&mut table, B, held), revoked(held));
    assert_eq!(failure_of(&mut table, B, token), stale(token));
    assert_eq!(failure_of(&mut table, C, passed_on), revoked(passed_on));
    assert_eq!([A, B, C].map(|session| table.count(session)), [0, 1, 1]);
}

#[test]
fn a_growing_table_moves_no_capability() {
    let mut table = Capabilities::new(3 * PART_SLOTS);
    let memory = Counted::new(5);
    let mut handles = Vec::new();
    let mut places = Vec::new();
    for index in 0..2 * PART_SLOTS as u32 + 1 {
        let handle = table.register(A, memory.clone(), ALL).unwrap();
        assert_eq!(handle.index(), index);
        places.push(table.table.at(index).map(std::ptr::from_ref));
        handles.push(handle);
    }
    for (handle, place) in handles.iter().zip(places) {
        assert_eq!(table.table.at(handle.index()).map(std::ptr::from_ref), place);
        assert_eq!(filled(&mut table, A, *handle, (0, 5)), Ok((0, 5)));
    }
    table.close(A);
    assert_eq!((table.count(A), table.table.free.len()), (0, handles.len()));
}
