//! Grants for a limited time: when their capabilities stop giving access, and that nothing below them lasts longer.

use super::*;

/// A table with a clock, in which A holds a root of 100 bytes with all rights.
fn timed() -> (Capabilities<Counted>, Ticks, Handle) {
    let clock = Ticks::default();
    let mut table = table().with_clock(clock.clone());
    let root = table.register(A, Counted::new(100), ALL).unwrap();
    (table, clock, root)
}

fn granted_for(table: &mut Capabilities<Counted>, handle: Handle, nanoseconds: u64) -> GrantToken {
    let lasts = Some(Duration::from_nanos(nanoseconds));
    table.grant_for(A, handle, (0, 100), ALL, Grantee::User(BOB), lasts).unwrap()
}

#[test]
fn a_grant_gives_access_until_its_end() {
    let (mut table, clock, root) = timed();
    let token = granted_for(&mut table, root, 10);
    let held = table.accept(B, BOB, token).unwrap().handle;
    clock.pass(9);
    assert_eq!(filled(&mut table, B, held, (0, 8)), Ok((0, 8)));
    let running = admit_fill(&mut table, B, held, (0, 8)).unwrap();
    clock.pass(1);
    let expired = Failure::Expired { side: Side::Destination, handle: held };
    assert_eq!(filled(&mut table, B, held, (0, 8)), Err(expired));
    assert_eq!(table.accept(C, BOB, token), Err(CapabilityError::ExpiredGrant(token)));
    // Others learn nothing of it.
    assert_eq!(table.accept(C, ALICE, token), Err(CapabilityError::NoSuchGrant(token)));
    assert_eq!(filled(&mut table, A, root, (0, 8)), Ok((0, 8)), "the owner's own capability");
    // What runs goes on, and the revocation waits for it.
    table.revoke(A, token.handle()).unwrap();
    assert!(table.take_finished().is_empty());
    release(&mut table, running);
    assert_eq!(table.take_finished().len(), 1);
    let revoked = Failure::Revoked { side: Side::Destination, handle: held };
    assert_eq!(filled(&mut table, B, held, (0, 8)), Err(revoked), "revoked rather than expired");
}

#[test]
fn nothing_below_a_grant_lasts_longer() {
    let (mut table, clock, root) = timed();
    let token = granted_for(&mut table, root, 10);
    let held = table.accept(B, BOB, token).unwrap().handle;
    let derived = table.derive(B, held, (0, 8), ALL).unwrap();
    let hour = Some(Duration::from_secs(3600));
    let longer = table.grant_for(B, derived, (0, 8), ALL, Grantee::Session(C), hour).unwrap();
    let endless = table.grant(B, derived, (0, 8), ALL, Grantee::Session(C)).unwrap();
    let shorter =
        table.grant_for(B, derived, (0, 8), ALL, Grantee::Session(C), Some(Duration::from_nanos(3)));
    let passed =
        [longer, endless, shorter.unwrap()].map(|token| table.accept(C, ALICE, token).unwrap().handle);
    let ends = |table: &mut Capabilities<Counted>| {
        passed.map(|handle| {
            let expired = Failure::Expired { side: Side::Destination, handle };
            match filled(table, C, handle, (0, 8)) {
                Ok(_) => true,
                Err(failure) => {
                    assert_eq!(failure, expired);
                    false
                }
            }
        })
    };
    assert_eq!(ends(&mut table), [true; 3]);
    clock.pass(3);
    assert_eq!(ends(&mut table), [true, true, false]);
    clock.pass(7);
    assert_eq!(ends(&mut table), [false; 3]);
    let over = CapabilityError::Expired(derived);
    assert_eq!(table.derive(B, derived, (0, 1), ALL), Err(over));
    assert_eq!(table.grant(B, derived, (0, 1), ALL, Grantee::Session(C)), Err(over));
}

#[test]
fn extreme_times_are_no_special_case() {
    let (mut table, clock, root) = timed();
    let at_once = granted_for(&mut table, root, 0);
    assert_eq!(table.accept(B, BOB, at_once), Err(CapabilityError::ExpiredGrant(at_once)));
    clock.pass(u64::MAX - 5);
    for lasts in [Duration::MAX, Duration::from_nanos(100)] {
        let token = table.grant_for(A, root, (0, 8), ALL, Grantee::User(BOB), Some(lasts)).unwrap();
        let held = table.accept(B, BOB, token).unwrap().handle;
        assert_eq!(filled(&mut table, B, held, (0, 8)), Ok((0, 8)), "{lasts:?}");
    }
}

#[test]
fn a_failure_names_the_operand_that_expired() {
    let (mut table, clock, root) = timed();
    let token = granted_for(&mut table, root, 10);
    let held = table.accept(B, BOB, token).unwrap().handle;
    let own = table.register(B, Counted::new(100), ALL).unwrap();
    let copy = |from, to| Request::copy(Span::new(from, 0), Span::new(to, 0), 8);
    let admitted = table.admit(B, &copy(held, own), u64::MAX).unwrap();
    let limit = admitted.limit().expect("it ends with the grant");
    let repeated = admitted.again();
    assert_eq!(repeated.limit(), Some(limit), "a round of a loop ends as well");
    assert!(!table.has_passed(&limit));
    release(&mut table, admitted);
    let unlimited = table.admit(B, &copy(own, own), u64::MAX).unwrap();
    assert_eq!(unlimited.limit(), None);
    release(&mut table, unlimited);
    clock.pass(10);
    assert!(table.has_passed(&limit));
    for (request, side) in [(copy(held, own), Side::Source), (copy(own, held), Side::Destination)] {
        let refused = table.admit(B, &request, u64::MAX).map(drop);
        assert_eq!(refused, Err(Failure::Expired { side, handle: held }));
    }
    assert_eq!(limit.failure(), Failure::Expired { side: Side::Source, handle: held });
}
