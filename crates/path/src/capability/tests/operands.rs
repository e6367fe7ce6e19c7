//! Each operand of each operation needs its right: READ for a source, WRITE for a destination.

use std::sync::Arc;

use memferry_transfer::{Copy2d, Count2d, Fill2d, Lists, Operations, Plane, Segment, SyncUnit, Synchronized};

use super::*;

const BYTES: u64 = 8;
const COUNT: Count2d = Count2d { pixel: PixelSize::Bits16, x_count: 2, y_count: 2 };
const PLANE: Plane = Plane::contiguous(0, PixelSize::Bits16);

/// One operation of each kind that has operands. Each takes its places in the order of its operands.
fn every_operation(at: [Span; 3]) -> Vec<(Operation<Span>, Vec<Side>)> {
    use Side::{Destination, Source};
    let length = BYTES;
    let [first, second, third] = at;
    let color = memferry_transfer::Color24::new(1).unwrap();
    let copy_2d = Copy2d { count: COUNT, source: PLANE, destination: PLANE, transparent: None };
    let list = |place| Box::new([Segment { place, length }]);
    let lists = Arc::new(Lists { source: list(first), destination: list(second) });
    let synchronized = Synchronized {
        device: Source,
        element: PixelSize::Bits8,
        elements: length as u32,
        frames: 1,
        unit: SyncUnit::Element,
    };
    let pair = || vec![Source, Destination];
    vec![
        (Operation::Copy { source: first, destination: second, length }, pair()),
        (Operation::Fill { destination: first, length, pattern: Pattern::Byte(1) }, vec![Destination]),
        (Operation::Copy2d { source: first, destination: second, shape: copy_2d }, pair()),
        (
            Operation::Fill2d {
                destination: first,
                shape: Fill2d { count: COUNT, destination: PLANE, color },
            },
            vec![Destination],
        ),
        (Operation::ScatterGather { lists }, pair()),
        (
            Operation::Xor { sources: Box::new([first, second]), destination: third, length },
            vec![Source, Source, Destination],
        ),
        (Operation::Compare { first, second, length }, vec![Source, Source]),
        (Operation::Crc { source: first, length, seed: 0 }, vec![Source]),
        (Operation::CopyCrc { source: first, destination: second, length, seed: 0 }, pair()),
        (
            Operation::DualCopy { source: first, destinations: [second, third], length },
            vec![Source, Destination, Destination],
        ),
        (Operation::Synchronized { source: first, destination: second, shape: synchronized }, pair()),
    ]
}

#[test]
fn every_operand_needs_its_right() {
    let mut table = table();
    let mut frame = || table.register(A, Counted::new(100), ALL).unwrap();
    let handles = [frame(), frame(), frame()];
    let places = handles.map(|handle| Span::new(handle, 0));
    let kinds = every_operation(places)
        .iter()
        .fold(Operations::NOP, |kinds, (operation, _)| kinds | operation.kind());
    assert_eq!(kinds, Operations::all(), "an operation is missing here");
    let mut narrowed = |rights| handles.map(|handle| table.derive(A, handle, (0, 100), rights).unwrap());
    let write_only = narrowed(Rights::WRITE);
    let read_only = narrowed(Rights::READ);
    for (index, (operation, sides)) in every_operation(places).into_iter().enumerate() {
        let name = operation.name();
        let admitted = table.admit(A, &Request::new(operation), u64::MAX).expect(name);
        table.release(admitted.into_parts().1);
        for (operand, side) in sides.into_iter().enumerate() {
            let handle = match side {
                Side::Source => write_only[operand],
                Side::Destination => read_only[operand],
            };
            let mut places = places;
            places[operand] = Span::new(handle, 0);
            let request = Request::new(every_operation(places).swap_remove(index).0);
            let refused = table.admit(A, &request, u64::MAX).err();
            assert_eq!(refused, Some(Failure::MissingRight { side, handle }), "{name}, operand {operand}");
        }
    }
}
