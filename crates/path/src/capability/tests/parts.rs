//! Revocations in parts: what others do to the table between two parts.

use super::*;

/// A root with `branches` derived capabilities, each with as many below it.
fn tree(branches: u64) -> (Capabilities<Counted>, Handle, Vec<Handle>, Counted) {
    let mut table = Capabilities::new(1000);
    let memory = Counted::new(100);
    let root = table.register(A, memory.clone(), ALL).unwrap();
    let mut below = Vec::new();
    for _ in 0..branches {
        let branch = table.derive(A, root, (0, 50), ALL).unwrap();
        below.push(branch);
        below.extend((0..branches).map(|_| table.derive(A, branch, (0, 10), ALL).unwrap()));
    }
    (table, root, below, memory)
}

fn finish(table: &mut Capabilities<Counted>) {
    while table.advance(1) {}
    table.take_dropped();
}

#[test]
fn a_part_visits_few_nodes() {
    let (mut table, root, below, memory) = tree(9);
    let id = table.begin_revoke(A, root, 1).unwrap();
    assert!(filled(&mut table, A, root, (0, 1)).is_err(), "the capability itself is revoked first");
    let alive = |table: &mut Capabilities<Counted>| {
        below.iter().filter(|handle| filled(table, A, **handle, (0, 1)).is_ok()).count()
    };
    assert_eq!(alive(&mut table), 90);
    assert!(table.advance(20));
    assert!((70..90).contains(&alive(&mut table)));
    assert_eq!(table.take_finished(), []);
    finish(&mut table);
    assert_eq!((table.take_finished(), memory.holders(), table.count(A)), (vec![id], 0, 0));
}

#[test]
fn a_short_revocation_overtakes_a_long_one() {
    let (mut table, root, _, _) = tree(9);
    let other = table.register(B, Counted::new(1), ALL).unwrap();
    let long = table.begin_revoke(A, root, 1).unwrap();
    let short = table.begin_revoke(B, other, 4).unwrap();
    assert_eq!(table.take_finished(), [short]);
    finish(&mut table);
    assert_eq!(table.take_finished(), [long]);
}

#[test]
fn nodes_made_between_parts_are_revoked_too() {
    let (mut table, root, below, memory) = tree(3);
    let last = *below.last().unwrap();
    let id = table.begin_revoke(A, root, 2).unwrap();
    let late = table.derive(A, last, (0, 5), ALL).unwrap();
    let (_, held) = pass(&mut table, (A, late, 5), ALL, B);
    finish(&mut table);
    assert!(filled(&mut table, A, late, (0, 1)).is_err() && filled(&mut table, B, held, (0, 1)).is_err());
    assert_eq!((table.take_finished(), memory.holders()), (vec![id], 0));
}

#[test]
fn overlapping_revocations_end_together() {
    let (mut table, root, below, memory) = tree(4);
    let running = admit_fill(&mut table, A, *below.last().unwrap(), (0, 1)).unwrap();
    let inner = table.begin_revoke(A, below[0], 2).unwrap();
    let outer = table.begin_revoke(A, root, 3).unwrap();
    let whole = table.begin_close(A, 3);
    finish(&mut table);
    assert_eq!(table.take_finished(), [inner]);
    release(&mut table, running);
    table.take_dropped();
    assert_eq!((table.take_finished(), memory.holders()), (vec![outer, whole], 0));
}

#[test]
fn a_reused_slot_is_not_revoked() {
    let (mut table, root, _, _) = tree(2);
    table.begin_revoke(A, root, 3).unwrap();
    table.revoke(A, root).unwrap();
    let fresh: Vec<_> = (0..7).map(|_| table.register(B, Counted::new(9), ALL).unwrap()).collect();
    finish(&mut table);
    assert!(fresh.iter().all(|handle| filled(&mut table, B, *handle, (0, 1)).is_ok()));
}

#[test]
fn only_what_was_never_shared_is_unshared() {
    let (mut table, root, _) = with_root();
    assert!(table.is_unshared(A, root) && !table.is_unshared(B, root));
    let running = admit_fill(&mut table, A, root, (0, 1)).unwrap();
    assert!(!table.is_unshared(A, root));
    release(&mut table, running);
    assert!(table.is_unshared(A, root));
    let derived = table.derive(A, root, (0, 1), ALL).unwrap();
    table.revoke(A, derived).unwrap();
    assert!(!table.is_unshared(A, root) && !table.is_unshared(A, derived));
}
