//! Ranges: the formulas of `smt/range.smt2` against the shipped table of capabilities, for operands at all boundaries.

use memferry_path::Capabilities;
use memferry_proof::{Formulas, Value};
use memferry_transfer::{Failure, Memory, Operation, Region, Rights, SessionId, Side, Span};

const SESSION: SessionId = SessionId(1);

/// Memory that has a length and no bytes.
#[derive(Clone, Debug)]
struct Length(u64);

impl Memory for Length {
    fn length(&self) -> u64 {
        self.0
    }
}

struct Formula(Formulas);

impl Formula {
    fn new() -> Self {
        Self(Formulas::of(include_str!("../smt/range.smt2")))
    }

    fn holds(&self, name: &str, operands: [u64; 3]) -> bool {
        self.0.holds(name, &operands.map(Value::of64))
    }

    fn place(&self, outer: u64, offset: u64) -> u64 {
        match self.0.value("place", &[Value::of64(outer), Value::of64(offset)]) {
            Value::Bits(value, _) => value as u64,
            other => panic!("{other:?} is no place"),
        }
    }
}

/// Small numbers, and those at which a sum of two of them overflows or just does not.
const BOUNDARIES: [u64; 14] = [
    0,
    1,
    2,
    3,
    4095,
    4096,
    4097,
    (1 << 63) - 1,
    1 << 63,
    (1 << 63) + 1,
    u64::MAX - 4096,
    u64::MAX - 2,
    u64::MAX - 1,
    u64::MAX,
];

#[test]
fn formulas_are_those_of_the_shipped_table() {
    let formula = Formula::new();
    for memory in BOUNDARIES {
        let mut table = Capabilities::new(usize::MAX);
        let root = table.register(SESSION, Length(memory), Rights::all()).expect("no quota");
        for outer in BOUNDARIES {
            for outer_length in BOUNDARIES {
                let is_inside = formula.holds("is-inside", [outer, outer_length, memory]);
                assert_eq!(Region::new(Length(memory), outer, outer_length).is_some(), is_inside);
                let derived = table.derive(SESSION, root, (outer, outer_length), Rights::all());
                assert_eq!(derived.is_ok(), is_inside, "{outer} {outer_length} in {memory}");
                if let Ok(handle) = derived {
                    in_derived(&formula, &table, handle, (outer, outer_length));
                }
            }
        }
    }
}

fn in_derived(
    formula: &Formula,
    table: &Capabilities<Length>,
    handle: memferry_transfer::Handle,
    (outer, outer_length): (u64, u64),
) {
    for offset in BOUNDARIES {
        for length in BOUNDARIES {
            let span = Span::new(handle, offset);
            let region = table.operand(SESSION, Side::Source, span, length);
            let copy = Operation::Copy { source: span, destination: span, length };
            let copied = table.borrowed(SESSION, &copy, u64::MAX);
            let is_inside = formula.holds("is-inside", [offset, length, outer_length]);
            assert_eq!((region.is_some(), copied.is_ok()), (is_inside, is_inside));
            let Ok(Operation::Copy { source, .. }) = copied else { continue };
            let expected = (formula.place(outer, offset), length);
            assert_eq!((source.offset(), source.length()), expected);
            let region = region.expect("was inside");
            assert_eq!((region.offset(), region.length()), expected);
        }
    }
}

#[test]
fn overlaps_are_those_of_the_formula() {
    let formula = Formula::new();
    let mut table = Capabilities::new(usize::MAX);
    let root = table.register(SESSION, Length(u64::MAX), Rights::all()).expect("no quota");
    for one in BOUNDARIES {
        for other in BOUNDARIES {
            for length in BOUNDARIES {
                let sources = Box::new([Span::new(root, one)]);
                let xor = Operation::Xor { sources, destination: Span::new(root, other), length };
                let answer = table.borrowed(SESSION, &xor, u64::MAX);
                let is_inside = |at| formula.holds("is-inside", [at, length, u64::MAX]);
                if !is_inside(one) || !is_inside(other) {
                    assert!(matches!(answer, Err(Failure::OutOfBounds { .. })), "{one} {other} {length}");
                } else if formula.holds("overlap-in-part", [one, other, length]) {
                    assert_eq!(answer.err(), Some(Failure::Overlap { operand: 0 }), "{one} {other} {length}");
                } else {
                    assert!(answer.is_ok(), "{one} {other} {length}");
                }
            }
        }
    }
}
