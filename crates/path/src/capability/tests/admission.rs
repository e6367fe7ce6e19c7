//! Admission: each failure, on both sides of each operation, with integers at their limits.

use memferry_clock::Instant;
use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{Color24, Copy2d, Count2d, Descriptor, Fill2d, Plane, WhenBusy};

use super::*;

const MAX: u64 = u64::MAX;
const DESTINATION: Side = Side::Destination;

/// Four pixels of two bytes from the start.
const COUNT: Count2d = Count2d { pixel: PixelSize::Bits16, x_count: 2, y_count: 2 };
const PLANE: Plane = Plane::contiguous(0, PixelSize::Bits16);

fn fill_2d(destination: Span, count: Count2d, plane: Plane) -> Request {
    let color = Color24::new(1).unwrap();
    Request::fill_2d(destination, Fill2d { count, destination: plane, color })
}

fn copy_2d(source: Span, destination: Span, count: Count2d, planes: [Plane; 2]) -> Request {
    let [from, to] = planes;
    Request::copy_2d(source, destination, Copy2d { count, source: from, destination: to, transparent: None })
}

/// Every operation with this destination, moving eight bytes.
fn writing(source: Span, destination: Span) -> [Request; 4] {
    let [copy, copy_2d] = reading(source, destination);
    let fill = Request::fill(destination, 8, Pattern::Word(1));
    [copy, fill, copy_2d, fill_2d(destination, COUNT, PLANE)]
}

/// Every operation with this source, moving eight bytes.
fn reading(source: Span, destination: Span) -> [Request; 2] {
    let copy = Request::copy(source, destination, 8);
    [copy, copy_2d(source, destination, COUNT, [PLANE; 2])]
}

/// The failure of a refused request, which leaves nothing in flight: a revocation finishes at once.
fn refused(table: &mut Capabilities<Counted>, session: SessionId, request: &Request) -> Failure {
    let failure = table
        .admit(session, request, MAX)
        .expect_err(request.operation().map_or("repeat", |operation| operation.name()));
    let root = table.register(session, Counted::new(1), ALL).unwrap();
    let revocation = table.revoke(session, root).unwrap();
    assert_eq!(table.take_finished(), [revocation]);
    failure
}

/// A table in which A holds 100 bytes in the middle of 200, with all rights.
fn with_middle() -> (Capabilities<Counted>, Handle) {
    let mut table = table();
    let root = table.register(A, Counted::new(200), ALL).unwrap();
    let middle = table.derive(A, root, (50, 100), ALL).unwrap();
    (table, middle)
}

fn check_both_sides(
    table: &mut Capabilities<Counted>,
    good: Handle,
    bad: Handle,
    failure: impl Fn(Side) -> Failure,
) {
    let good = Span::new(good, 0);
    let bad = Span::new(bad, 0);
    for request in writing(good, bad) {
        assert_eq!(
            refused(table, A, &request),
            failure(DESTINATION),
            "{}",
            request.operation().map_or("repeat", |operation| operation.name())
        );
    }
    for request in reading(bad, good) {
        assert_eq!(
            refused(table, A, &request),
            failure(Side::Source),
            "{}",
            request.operation().map_or("repeat", |operation| operation.name())
        );
    }
}

#[test]
fn every_operation_admits_good_handles() {
    let (mut table, handle) = with_middle();
    for request in writing(Span::new(handle, 50), Span::new(handle, 0)) {
        let admitted = table.admit(A, &request, 8).unwrap();
        assert_eq!((admitted.session(), admitted.terms().deadline), (A, None));
        let (operation, claims) = admitted.into_parts();
        assert_eq!(operation.total_bytes(), 8);
        Descriptor::new(0, operation).unwrap();
        table.release(claims);
    }
    let revocation = table.revoke(A, handle).unwrap();
    assert_eq!(table.take_finished(), [revocation]);
}

#[test]
fn bad_handles_are_distinguished_on_both_sides() {
    let (mut table, good) = with_middle();
    let foreign = table.register(B, Counted::new(100), ALL).unwrap();
    check_both_sides(&mut table, good, foreign, |side| Failure::UnknownHandle { side, handle: foreign });

    let old = table.register(A, Counted::new(100), ALL).unwrap();
    table.revoke(A, old).unwrap();
    table.take_finished();
    check_both_sides(&mut table, good, old, |side| Failure::StaleHandle { side, handle: old });

    let (token, taken) = pass(&mut table, (B, foreign, 100), ALL, A);
    table.revoke(B, token).unwrap();
    table.take_finished();
    check_both_sides(&mut table, good, taken, |side| Failure::Revoked { side, handle: taken });

    let token = table.grant(A, good, (0, 100), ALL, Grantee::Session(B)).unwrap().handle();
    check_both_sides(&mut table, good, token, |side| Failure::MissingRight { side, handle: token });
    let unfit = table.derive(A, good, (0, 100), Rights::GRANT).unwrap();
    check_both_sides(&mut table, good, unfit, |side| Failure::MissingRight { side, handle: unfit });
    let short = table.derive(A, good, (0, 7), ALL).unwrap();
    check_both_sides(&mut table, good, short, |side| Failure::OutOfBounds { side, available: 7 });
}

#[test]
fn the_source_is_checked_first() {
    let (mut table, _) = with_middle();
    let one = Handle::new(70, 1);
    let other = Handle::new(71, 1);
    for request in reading(Span::new(one, 0), Span::new(other, 0)) {
        let unknown = Failure::UnknownHandle { side: Side::Source, handle: one };
        assert_eq!(refused(&mut table, A, &request), unknown);
    }
}

#[test]
fn ranges_end_within_their_capability() {
    let (mut table, handle) = with_middle();
    for (offset, length) in [(0, 0), (100, 0), (0, 100), (99, 1), (1, 99)] {
        assert_eq!(filled(&mut table, A, handle, (offset, length)), Ok((50 + offset, length)));
    }
    let outside = |side| Failure::OutOfBounds { side, available: 100 };
    let beyond = [
        (0, 101),
        (1, 100),
        (100, 1),
        (101, 0),
        (MAX, 0),
        (MAX, 1),
        (1, MAX),
        (MAX, MAX),
        (0, MAX),
        (2, MAX),
    ];
    for (offset, length) in beyond {
        let far = Span::new(handle, offset);
        assert_eq!(refused(&mut table, A, &fill(handle, offset, length)), outside(DESTINATION));
        let reads = Request::copy(far, Span::new(handle, 0), length);
        assert_eq!(refused(&mut table, A, &reads), outside(Side::Source));
        if length <= 100 {
            let writes = Request::copy(Span::new(handle, 0), far, length);
            assert_eq!(refused(&mut table, A, &writes), outside(DESTINATION));
        }
    }
}

#[test]
fn a_fills_length_is_a_multiple_of_its_pattern() {
    let (mut table, handle) = with_middle();
    let color = Color24::new(1).unwrap();
    for pattern in [Pattern::Byte(1), Pattern::Half(1), Pattern::Word(1), Pattern::Color(color)] {
        let pattern_bytes = pattern.length_bytes();
        for length in (0..=9).chain([MAX]) {
            let admitted = table.admit(A, &Request::fill(Span::new(handle, 0), length, pattern), MAX);
            match (length % pattern_bytes, length) {
                (1.., _) => assert_eq!(admitted.unwrap_err(), Failure::FillLength { pattern_bytes }),
                (0, MAX) => assert!(matches!(admitted, Err(Failure::OutOfBounds { .. }))),
                (0, _) => release(&mut table, admitted.unwrap()),
            }
        }
    }
}

fn xor(sources: &[Span], destination: Span, length: u64) -> Request {
    Request::new(Operation::Xor { sources: sources.into(), destination, length })
}

#[test]
fn xor_sources_may_not_overlap_in_part() {
    let (mut table, handle) = with_middle();
    let at = |offset| Span::new(handle, offset);
    for (from, to, length) in [(0, 8, 8), (8, 0, 8), (8, 8, 8), (0, 1, 1), (3, 4, 0), (4, 4, 0), (0, 92, 8)] {
        let admitted = table.admit(A, &xor(&[at(from)], at(to), length), MAX).unwrap();
        release(&mut table, admitted);
    }
    for (from, to, length) in [(0, 7, 8), (7, 0, 8), (8, 9, 2), (0, 1, 99), (1, 0, 99)] {
        let overlap = Failure::Overlap { operand: 0 };
        assert_eq!(refused(&mut table, A, &xor(&[at(from)], at(to), length)), overlap);
    }
    let sources: Vec<_> = [0, 40, 40, 41, 20, 30].map(at).into();
    let overlap = Failure::Overlap { operand: 3 };
    assert_eq!(
        refused(&mut table, A, &xor(&sources, at(40), 10)),
        overlap,
        "must name the first overlapping source"
    );
}

#[test]
fn a_dual_copy_may_not_overlap_in_part() {
    let (mut table, handle) = with_middle();
    let dual = |[from, one, other]: [u64; 3], length| {
        let at = |offset| Span::new(handle, offset);
        Request::new(Operation::DualCopy { source: at(from), destinations: [at(one), at(other)], length })
    };
    for (places, length) in [([0, 8, 16], 8), ([8, 0, 8], 8), ([0, 8, 8], 8), ([0, 1, 2], 1), ([3, 4, 5], 0)]
    {
        let admitted = table.admit(A, &dual(places, length), MAX).unwrap();
        release(&mut table, admitted);
    }
    for (places, operand) in [([0, 7, 20], 0), ([20, 0, 27], 0), ([0, 20, 27], 1), ([40, 27, 20], 1)] {
        assert_eq!(refused(&mut table, A, &dual(places, 8)), Failure::Overlap { operand });
    }
}

#[test]
fn derived_and_granted_handles_show_overlap() {
    let (mut table, middle) = with_middle();
    let low = table.derive(A, middle, (0, 60), ALL).unwrap();
    let high = table.derive(A, middle, (40, 60), ALL).unwrap();
    let higher = table.derive(A, high, (5, 20), ALL).unwrap();
    let overlap = Failure::Overlap { operand: 0 };
    let one = |from, at, to, start| xor(&[Span::new(from, at)], Span::new(to, start), 8);
    // Bytes 45 to 53 of the middle, through four handles.
    for (handle, offset) in [(middle, 45), (low, 45), (high, 5), (higher, 0)] {
        let same = table.admit(A, &one(low, 45, handle, offset), MAX).unwrap();
        release(&mut table, same);
        assert_eq!(refused(&mut table, A, &one(low, 44, handle, offset)), overlap);
        assert_eq!(refused(&mut table, A, &one(handle, offset, middle, 52)), overlap);
        let apart = table.admit(A, &one(handle, offset, middle, 53), MAX).unwrap();
        release(&mut table, apart);
    }
    // The same through two grants that B accepted.
    let (_, first) = pass(&mut table, (A, low, 60), ALL, B);
    let (_, second) = pass(&mut table, (A, higher, 20), ALL, B);
    assert_eq!(refused(&mut table, B, &one(first, 44, second, 0)), overlap);
    let same = table.admit(B, &one(first, 45, second, 0), MAX).unwrap();
    release(&mut table, same);
}

#[test]
fn overlap_is_checked_after_rights_and_bounds() {
    let (mut table, handle) = with_middle();
    let write_only = table.derive(A, handle, (0, 100), Rights::WRITE).unwrap();
    let missing = Failure::MissingRight { side: Side::Source, handle: write_only };
    let into = Span::new(handle, 1);
    assert_eq!(refused(&mut table, A, &xor(&[Span::new(write_only, 0)], into, 8)), missing);
    let outside = Failure::OutOfBounds { side: DESTINATION, available: 100 };
    for (offset, length) in [(1, 100), (MAX, 8), (MAX - 3, 8)] {
        let far = Span::new(handle, offset);
        assert_eq!(refused(&mut table, A, &xor(&[Span::new(handle, 0)], far, length)), outside);
    }
}

#[test]
fn two_registrations_are_not_compared() {
    let mut table = table();
    let memory = Counted::new(100);
    let one = table.register(A, memory.clone(), ALL).unwrap();
    let other = table.register(A, memory, ALL).unwrap();
    let admitted = table.admit(A, &xor(&[Span::new(one, 0)], Span::new(other, 4), 8), MAX).unwrap();
    release(&mut table, admitted);
}

#[test]
fn requests_longer_than_the_limit_are_refused() {
    let (mut table, handle) = with_middle();
    let known = Span::new(handle, 0);
    for destination in [known, Span::new(Handle::from_bits(0), 0)] {
        for request in writing(known, destination) {
            assert_eq!(table.admit(A, &request, 7).unwrap_err(), Failure::TooLong { limit: 7 });
        }
    }
    for request in writing(known, known) {
        let admitted = table.admit(A, &request, 8).unwrap();
        release(&mut table, admitted);
    }
    // 2^66 bytes saturate to u64::MAX.
    let count = Count2d { pixel: PixelSize::Bits32, x_count: u32::MAX, y_count: u32::MAX };
    let endless = fill_2d(known, count, Plane { start: 0, x_step: 0, y_step: 0 });
    assert_eq!(table.admit(A, &endless, MAX - 1).unwrap_err(), Failure::TooLong { limit: MAX - 1 });
}

#[test]
fn empty_requests_still_check_their_handles() {
    let (mut table, handle) = with_middle();
    let (operation, claims) = table.admit(A, &Request::new(Operation::Nop), 0).unwrap().into_parts();
    assert_eq!((operation, &claims), (Operation::Nop, &Claims::none()));
    table.release(claims);

    let none = Count2d { x_count: 0, ..COUNT };
    for plane in [PLANE, Plane { start: MAX, x_step: i64::MIN, y_step: i64::MAX }] {
        let request = fill_2d(Span::new(handle, 0), none, plane);
        let (operation, claims) = table.admit(A, &request, 0).unwrap().into_parts();
        Descriptor::new(0, operation).unwrap();
        table.release(claims);
        let forged = Handle::new(70, 1);
        let unknown = Failure::UnknownHandle { side: DESTINATION, handle: forged };
        assert_eq!(refused(&mut table, A, &fill_2d(Span::new(forged, 0), none, plane)), unknown);
    }
}

/// Walks over 28 bytes that begin in each of the four corners: `[x_step, y_step, start]`.
const WALKS: [[i64; 3]; 4] = [[3, 14, 0], [-3, 26, 6], [3, -26, 20], [-3, -14, 26]];
const WALKED: Count2d = Count2d { pixel: PixelSize::Bits16, x_count: 3, y_count: 2 };

#[test]
fn a_walk_may_not_leave_by_one_byte() {
    let mut table = table();
    let root = table.register(A, Counted::new(100), ALL).unwrap();
    let exact = table.derive(A, root, (10, 28), ALL).unwrap();
    let outside = |side| Failure::OutOfBounds { side, available: 28 };
    let span = Span::new(exact, 0);
    for [x_step, y_step, start] in WALKS {
        let plane = Plane { start: start as u64, x_step, y_step };
        let fits = table.admit(A, &copy_2d(span, span, WALKED, [plane; 2]), MAX).unwrap();
        release(&mut table, fits);
        // One byte too early, unless the walk starts at byte 0, and one too late.
        let below = start.checked_sub(1).filter(|start| *start >= 0);
        for start in below.into_iter().chain([start + 1]) {
            let leaving = Plane { start: start as u64, ..plane };
            assert_eq!(refused(&mut table, A, &fill_2d(span, WALKED, leaving)), outside(DESTINATION));
            let writes = copy_2d(span, span, WALKED, [plane, leaving]);
            assert_eq!(refused(&mut table, A, &writes), outside(DESTINATION));
            let reads = copy_2d(span, span, WALKED, [leaving, plane]);
            assert_eq!(refused(&mut table, A, &reads), outside(Side::Source));
        }
        let shorter = table.derive(A, root, (10, 27), ALL).unwrap();
        let short = Failure::OutOfBounds { side: DESTINATION, available: 27 };
        assert_eq!(refused(&mut table, A, &fill_2d(Span::new(shorter, 0), WALKED, plane)), short);
    }
}

#[test]
fn a_walks_region_is_the_bytes_it_touches() {
    let (mut table, handle) = with_middle();
    let other_root = table.register(A, Counted::new(200), ALL).unwrap();
    let written = table.derive(A, other_root, (50, 100), ALL).unwrap();
    for [x_step, y_step, start] in WALKS {
        for (offset, extra) in [(0, 0), (5, 0), (0, 7), (30, 42)] {
            let plane = Plane { start: start as u64 + extra, x_step, y_step };
            let other = Plane { start: start as u64, ..plane };
            let source = Span::new(handle, offset);
            let destination = Span::new(written, 0);
            let request = copy_2d(source, destination, WALKED, [plane, other]);
            let (operation, claims) = table.admit(A, &request, MAX).unwrap().into_parts();
            table.release(claims);
            let Operation::Copy2d { source, destination, shape } = &operation else {
                panic!("a 2-D copy became {}", operation.name())
            };
            assert_eq!((source.offset(), source.length()), (50 + offset + extra, 28));
            assert_eq!((destination.offset(), destination.length()), (50, 28));
            assert_eq!((shape.source, shape.destination), (other, other));
            Descriptor::new(0, operation.clone()).unwrap();
        }
    }
}

#[test]
fn extreme_walks_are_refused_without_overflow() {
    let (mut table, handle) = with_middle();
    let outside = Failure::OutOfBounds { side: DESTINATION, available: 100 };
    let large = Count2d { pixel: PixelSize::Bits32, x_count: u32::MAX, y_count: u32::MAX };
    for step in [i64::MIN, -1, 1, i64::MAX] {
        for (offset, start) in [(0, 0), (0, MAX), (MAX, 0), (MAX, MAX), (1, MAX), (MAX - 3, 0)] {
            let plane = Plane { start, x_step: step, y_step: step };
            let request = fill_2d(Span::new(handle, offset), large, plane);
            assert_eq!(refused(&mut table, A, &request), outside);
        }
    }
    let none = Count2d { y_count: 0, ..large };
    let far = fill_2d(Span::new(handle, 1), none, Plane { start: MAX, x_step: 0, y_step: 0 });
    assert_eq!(refused(&mut table, A, &far), outside);
}

#[test]
fn the_terms_of_a_request_pass_through() {
    let (mut table, handle) = with_middle();
    let deadline = Instant::from_nanoseconds(7);
    let request = fill(handle, 0, 1).refuse_when_busy().with_deadline(deadline);
    let admitted = table.admit(A, &request, MAX).unwrap();
    assert_eq!((admitted.terms().when_busy, admitted.terms().deadline), (WhenBusy::Refuse, Some(deadline)));
    release(&mut table, admitted);
}

/// A picture of 4 x 4 bytes, 8 bytes a row.
fn picture(origin: u64) -> Image {
    Image { origin, width: 4, height: 4, pitch_bytes: 8, pixel: PixelSize::Bits8 }
}

fn turned(handle: Handle, source: &Image, turn: Turn, destination: &Image) -> Request {
    let shape = turned_copy(source, turn, destination, None).unwrap();
    Request::copy_2d(Span::new(handle, 0), Span::new(handle, 0), shape)
}

#[test]
fn a_picture_is_not_turned_in_its_own_place() {
    let (mut table, handle) = with_middle();
    for turn in Turn::ALL.into_iter().filter(|turn| *turn != Turn::Upright) {
        for place in [picture(0), picture(2), picture(17)] {
            let request = turned(handle, &picture(0), turn, &place);
            assert_eq!(refused(&mut table, A, &request), Failure::Overlap { operand: 0 }, "{turn:?}");
        }
        // Beside it, in rows of the same picture, and below it.
        for place in [picture(4), picture(32)] {
            let admitted = table.admit(A, &turned(handle, &picture(0), turn, &place), MAX).unwrap();
            release(&mut table, admitted);
        }
    }
    // The same memory by another handle.
    let other = table.derive(A, handle, (8, 60), ALL).unwrap();
    let shape = turned_copy(&picture(8), Turn::Rotate180, &picture(0), None).unwrap();
    let request = Request::copy_2d(Span::new(handle, 0), Span::new(other, 0), shape);
    assert_eq!(refused(&mut table, A, &request), Failure::Overlap { operand: 0 });
}

#[test]
fn a_picture_is_shifted_over_itself_as_by_memmove() {
    let (mut table, handle) = with_middle();
    for (to, from_the_end) in [(0, false), (9, true), (1, true), (8, true)] {
        for (from, to, from_the_end) in [(0, to, from_the_end), (to, 0, false)] {
            let request = turned(handle, &picture(from), Turn::Upright, &picture(to));
            let admitted = table.admit(A, &request, MAX).unwrap();
            let Operation::Copy2d { shape, .. } = admitted.operation() else { unreachable!() };
            assert_eq!(shape.source.x_step < 0, from_the_end, "{from} to {to}");
            assert_eq!(shape.destination.x_step < 0, from_the_end);
            release(&mut table, admitted);
        }
    }
}
