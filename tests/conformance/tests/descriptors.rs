//! `Descriptor::new` accepts exactly the operations that, by the oracle, stay within their regions.
//!
//! ```text
//! random walks over a small region ──► oracle::fits == Descriptor::new
//! ```

use memferry_conformance::SimMemory;
use memferry_conformance::oracle::{self, Place};
use memferry_transfer::{Copy2d, Count2d, Descriptor, Operation, PixelSize, Plane, Region};
use proptest::prelude::*;

fn plane() -> impl Strategy<Value = Plane> {
    let step = prop_oneof![20 => -12..12_i64, 1 => any::<i64>()];
    (prop_oneof![20 => 0..80_u64, 1 => any::<u64>()], step.clone(), step)
        .prop_map(|(start, x_step, y_step)| Plane { start, x_step, y_step })
}

fn shape() -> impl Strategy<Value = Copy2d> {
    let pixel = prop_oneof![Just(PixelSize::Bits8), Just(PixelSize::Bits16), Just(PixelSize::Bits32)];
    (pixel, 0..7_u32, 0..7_u32, plane(), plane()).prop_map(
        |(pixel, x_count, y_count, source, destination)| {
            let count = Count2d { pixel, x_count, y_count };
            Copy2d { count, source, destination, transparent: None }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn descriptors_accept_what_stays_inside(shape in shape(), lengths in [0..100_u64, 0..100]) {
        let memory = SimMemory::new(vec![0; 100]);
        let place = |length| Place { memory: 0, offset: 0, length };
        let source = place(lengths[0]);
        let destination = place(lengths[1]);
        let operation = Operation::Copy2d { source, destination, shape };
        let region = |place: &Place| Region::new(memory.clone(), place.offset, place.length).unwrap();
        let made = Descriptor::new(0, oracle::renamed(&operation, region));
        prop_assert_eq!(made.map(|_| ()), oracle::fits(&operation));
    }
}
