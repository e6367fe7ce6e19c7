//! Slots of requests: the shipped decoder for all forms of a header, all handles and all lengths; and the formulas of `smt/slot.smt2` against
//! the shipped encoder and decoder.
//!
//! ```text
//! 2^16 forms of a header × words at their boundaries ─► decode_request ─► accepted, or one of the faults that `faults` finds
//! 2^32 handles, 2^32 lengths ─► decode_plain ─► encode_short ─► the same words
//! ```

use memferry_clock::Instant;
use memferry_proof::{Formulas, Value};
use memferry_transfer::wire::{
    LONG, SUBMISSION_WORDS, ShortSlot, SlotError, SubmissionSlot, decode_plain, decode_request, encode_short,
    tag_of,
};
use memferry_transfer::{CacheHint, Handle, Operation, PriorityClass, Request, Span, Task, Terms, WhenBusy};

/// A fault by the rules of docs/protocol.md, which the decoder may report. There may be several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    Opcode,
    Reserved,
    Width,
    Value,
    /// A short slot of an operation that only long ones have.
    Length,
    Count,
    /// The list is not in the list area.
    List,
}

impl Fault {
    fn of(error: SlotError) -> Self {
        match error {
            SlotError::Opcode(_) => Self::Opcode,
            SlotError::Reserved => Self::Reserved,
            SlotError::Width(_) => Self::Width,
            SlotError::Value => Self::Value,
            SlotError::Length => Self::Length,
            SlotError::Count(_) => Self::Count,
            SlotError::List => Self::List,
            other => panic!("no slot of a request has {other:?}"),
        }
    }
}

const FILL: u64 = 3;
const COPY_2D: u64 = 4;
const FILL_2D: u64 = 5;
const SCATTER_GATHER: u64 = 6;
const XOR: u64 = 7;
const CRC: u64 = 9;
const COPY_CRC: u64 = 10;
const REPEAT: u64 = 12;
const SYNCHRONIZED: u64 = 13;
/// Operations of short slots.
const SHORT: [u64; 5] = [1, 2, FILL, 8, CRC];

/// Every fault of a slot.
fn faults(slot: &SubmissionSlot) -> Vec<Fault> {
    let opcode = slot[0] >> 16 & 0xff;
    let mut found = Vec::new();
    let mut note = |fault, is_there| found.extend(if is_there { Some(fault) } else { None });
    note(Fault::Opcode, !(1..=13).contains(&opcode));
    note(Fault::Reserved, slot[0] >> 27 & 3 == 3 || slot[0] >> 29 & 3 == 3);
    if slot[0] & LONG == 0 {
        note(Fault::Length, !SHORT.contains(&opcode));
        if opcode == FILL {
            let width = slot[2] & 0xffff_ffff_ffff;
            note(Fault::Width, !(1..=4).contains(&width));
            note(Fault::Value, (1..4).contains(&width) && slot[1] << 32 >> 32 >> (8 * width) != 0);
        }
        return found;
    }
    let width = slot[1] & 0xff;
    let is_transparent = slot[1] & 0x100 != 0;
    note(Fault::Reserved, slot[1] >> 9 != 0 || is_transparent && opcode != COPY_2D);
    match opcode {
        FILL => {
            note(Fault::Width, !(1..=4).contains(&width));
            note(Fault::Value, (1..=4).contains(&width) && slot[3] >> (8 * width) != 0);
        }
        COPY_2D | FILL_2D | SYNCHRONIZED => note(Fault::Width, ![1, 2, 4].contains(&width)),
        _ => note(Fault::Width, width != 0),
    }
    match opcode {
        COPY_2D => note(Fault::Value, slot[12] >> 24 != 0 || !is_transparent && slot[12] != 0),
        FILL_2D => note(Fault::Value, slot[12] >> 24 != 0),
        REPEAT => note(Fault::Value, slot[3] >> 32 != 0),
        CRC => note(Fault::Value, slot[5] >> 32 != 0),
        COPY_CRC => note(Fault::Value, slot[8] >> 32 != 0),
        SYNCHRONIZED => {
            let packet = slot[8] >> 16;
            let is_unit = match slot[8] & 0xfeff {
                0 | 1 | 3 => packet == 0,
                2 => (1..=0xffff).contains(&packet),
                _ => false,
            };
            note(Fault::Value, !is_unit);
        }
        SCATTER_GATHER => note(Fault::Count, slot[4] << 32 >> 32 > 1024 || slot[4] >> 32 > 1024),
        XOR => note(Fault::Count, !(1..=64).contains(&slot[4])),
        _ => {}
    }
    // The harness's list area is empty.
    let words = if opcode == XOR { slot[4] } else { slot[4] >> 32 | slot[4] << 32 >> 32 };
    note(Fault::List, [SCATTER_GATHER, XOR].contains(&opcode) && words != 0);
    found
}

/// The terms of a header that has no fault, and of the word of a deadline.
fn terms(header: u64, deadline: u64) -> Terms {
    let has = |bit: u32| header >> bit & 1 == 1;
    Terms {
        when_busy: if has(24) { WhenBusy::Refuse } else { WhenBusy::Wait },
        linked: has(25),
        fenced: has(26),
        hint: [CacheHint::Auto, CacheHint::Keep, CacheHint::Stream][(header >> 27 & 3) as usize],
        class: [PriorityClass::Normal, PriorityClass::Low, PriorityClass::High][(header >> 29 & 3) as usize],
        deadline: (deadline != 0).then(|| Instant::from_nanoseconds(deadline)),
    }
}

/// Compares the answers for a slot.
fn compare(slot: &SubmissionSlot, decode: impl Fn(&SubmissionSlot) -> Result<Request, SlotError>) {
    let faults = faults(slot);
    match decode(slot) {
        Err(error) => {
            assert!(faults.contains(&Fault::of(error)), "{slot:x?}: {error:?} is none of {faults:?}")
        }
        Ok(request) => {
            assert_eq!(faults, [], "{slot:x?}: accepted");
            let deadline = if slot[0] & LONG != 0 { slot[2] } else { 0 };
            assert_eq!(request.terms, terms(slot[0], deadline), "{slot:x?}");
            let opcode = match &request.task {
                Task::Repeat { .. } => REPEAT,
                Task::Transfer(operation) => opcode_of(operation),
            };
            assert_eq!(opcode, slot[0] >> 16 & 0xff, "{slot:x?}");
        }
    }
}

fn opcode_of(operation: &Operation<Span>) -> u64 {
    match operation {
        Operation::Nop => 1,
        Operation::Copy { .. } => 2,
        Operation::Fill { .. } => FILL,
        Operation::Copy2d { .. } => COPY_2D,
        Operation::Fill2d { .. } => FILL_2D,
        Operation::ScatterGather { .. } => SCATTER_GATHER,
        Operation::Xor { .. } => XOR,
        Operation::Compare { .. } => 8,
        Operation::Crc { .. } => CRC,
        Operation::CopyCrc { .. } => COPY_CRC,
        Operation::DualCopy { .. } => 11,
        Operation::Synchronized { .. } => SYNCHRONIZED,
    }
}

fn shipped(slot: &SubmissionSlot) -> Result<Request, SlotError> {
    decode_request(slot, |_, words| (words == 0).then(Vec::new))
}

/// Values of an operand's word at which a rule begins or ends.
const WORDS: [u64; 15] = [
    0,
    1,
    2,
    3,
    0x103,
    0xff,
    0x100,
    0xffff,
    0x1_0000,
    0x1_0002,
    0xff_ffff,
    0x100_0000,
    0xffff_ffff,
    1 << 32,
    u64::MAX,
];

/// Compares the forms of headers, opcodes from `opcodes`, with words of operands. Returns how many slots there were.
fn compare_forms(
    opcodes: impl Iterator<Item = u64>,
    decode: impl Fn(&SubmissionSlot) -> Result<Request, SlotError>,
) -> u64 {
    let mut slots = 0;
    for opcode in opcodes {
        for flags in 0..0x100 {
            let header = flags << 24 | opcode << 16;
            for word in WORDS {
                let mut slot = [word; SUBMISSION_WORDS];
                slot[0] = word & !0xffff_ffff | header;
                let widths = (0..=0x202).chain([0x400, 1 << 32, 1 << 63]);
                for width in widths {
                    // The width of a long slot, and of a fill in a short one.
                    let at = if header & LONG != 0 { 1 } else { 2 };
                    slot[at] = width;
                    compare(&slot, &decode);
                    slots += 1;
                }
            }
        }
    }
    slots
}

#[test]
fn forms_of_known_operations_are_decoded_by_the_rules() {
    assert!(compare_forms([1, FILL, SYNCHRONIZED].into_iter(), shipped) > 1_000_000);
}

#[test]
#[ignore = "takes minutes without optimization; ./x test --full proof runs it"]
fn all_forms_are_decoded_by_the_rules() {
    assert!(compare_forms(0..=0xff, shipped) > 500_000_000);
}

#[test]
#[should_panic(expected = "accepted")]
fn broken_decoder_that_ignores_reserved_bits() {
    compare_forms([1].into_iter(), |slot| {
        let mut slot = *slot;
        slot[1] &= 0x1ff;
        shipped(&slot)
    });
}

/// Decodes and encodes copies whose source is each of `handles`, and whose length has the same bits.
fn round_trips(handles: impl Iterator<Item = u32>, decode: impl Fn(&ShortSlot) -> Option<Operation<Span>>) {
    for bits in handles {
        let word = u64::from(bits);
        let slot = [0xabcd_0000_0000 | 2 << 16, word | !word << 32, word << 48 | 77, word >> 16 << 48 | 99];
        let operation = decode(&slot).expect("a plain copy");
        let Operation::Copy { source, destination, length } = operation else { panic!("no copy") };
        assert_eq!((source.offset, destination.offset, length), (77, 99, word));
        assert_eq!(encode_short(0xabcd, &Request::new(operation)), Some(slot));
    }
}

fn plain(slot: &ShortSlot) -> Option<Operation<Span>> {
    decode_plain(slot).map(|plain| plain.operation())
}

#[test]
fn handles_and_lengths_survive() {
    round_trips((0..=u32::MAX).step_by(65_521).chain((0..32).map(|bit| 1 << bit)), plain);
}

#[test]
#[ignore = "takes minutes without optimization; ./x test --full proof runs it"]
fn all_handles_and_lengths_survive() {
    round_trips(0..=u32::MAX, plain);
}

#[test]
#[should_panic(expected = "assertion")]
fn broken_decoder_with_indices_of_19_bits() {
    round_trips((0..32).map(|bit| 1 << bit), |slot| match plain(slot)? {
        Operation::Copy { mut source, destination, length } => {
            source.handle = Handle::new(source.handle.index() & 0x7_ffff, source.handle.generation());
            Some(Operation::Copy { source, destination, length })
        }
        other => Some(other),
    });
}

struct Formula(Formulas);

impl Formula {
    fn value(&self, name: &str, operands: &[Value]) -> u64 {
        match self.0.value(name, operands) {
            Value::Bits(value, _) => value as u64,
            other => panic!("{name} is {other:?}"),
        }
    }
}

#[test]
fn formulas_are_those_of_the_shipped_code() {
    let formula = Formula(Formulas::of(include_str!("../smt/slot.smt2")));
    let mut random = fastrand::Rng::with_seed(33);
    // A random number of random bits: small numbers, and those around a power of two.
    let mut number = |bits: u32| (random.u64(..) >> random.u32(64 - bits..64)).wrapping_sub(random.u64(..2));
    for _ in 0..20_000 {
        let spans =
            [(); 2].map(|()| Span::new(Handle::new(number(21) as u32, number(13) as u32), number(49)));
        let length = number(33);
        let [source, destination] = spans;
        let mut fits = true;
        let mut handles = [Value::of32(0); 2];
        for (bits, span) in handles.iter_mut().zip(spans) {
            let operands = [Value::of32(span.handle.index()), Value::of32(span.handle.generation())];
            fits &= formula.0.holds("handle-fits", &operands);
            *bits = formula.0.value("handle", &operands);
        }
        let [from, to] = spans.map(|span| Value::of64(span.offset));
        let long = Value::of64(length);
        fits &= formula.0.holds("words-fit", &[from, to, long]);
        let tag = number(32) as u32;
        let slot = encode_short(tag, &Request::new(Operation::Copy { source, destination, length }));
        assert_eq!(slot.is_some(), fits, "{spans:?} {length}");
        let Some(slot) = slot else { continue };
        let words = [
            formula.value("handles-word", &handles),
            formula.value("from-word", &[from, long]),
            formula.value("to-word", &[to, long]),
        ];
        assert_eq!(slot[1..], words);
    }
    for _ in 0..20_000 {
        let slot = [2 << 16, number(64), number(64), number(64)];
        decoded_by(&formula, &slot);
    }
    for _ in 0..20_000 {
        headers_by(&formula, [number(3), number(3) % 3, number(3) % 3, number(32)].map(|one| one as u32));
    }
}

fn decoded_by(formula: &Formula, slot: &ShortSlot) {
    let [_, handles, from, to] = slot.map(Value::of64);
    let Some(Operation::Copy { source, destination, length }) = plain(slot) else { panic!("no copy") };
    assert_eq!(length, formula.value("length-of", &[from, to]));
    for (name, span, word) in [("source-of", source, from), ("destination-of", destination, to)] {
        let bits = formula.0.value(name, &[handles]);
        assert_eq!(u64::from(span.handle.index()), formula.value("index-of", &[bits]));
        assert_eq!(u64::from(span.handle.generation()), formula.value("generation-of", &[bits]));
        assert_eq!(span.offset, formula.value("offset-of", &[word]));
    }
}

fn headers_by(formula: &Formula, [flags, hint, class, tag]: [u32; 4]) {
    let has = |bit: u32| flags >> bit & 1 == 1;
    let terms = Terms {
        when_busy: if has(0) { WhenBusy::Refuse } else { WhenBusy::Wait },
        linked: has(1),
        fenced: has(2),
        hint: [CacheHint::Auto, CacheHint::Keep, CacheHint::Stream][hint as usize],
        class: [PriorityClass::Normal, PriorityClass::Low, PriorityClass::High][class as usize],
        deadline: None,
    };
    let request = Request { task: Task::Transfer(Operation::Nop), terms };
    let [header, ..] = encode_short(tag, &request).expect("a short slot");
    let byte = |value: u32| Value::Bits(u128::from(value), 8);
    let operands = [byte(1), byte(flags & 7), byte(hint), byte(class), Value::of32(tag), Value::Bits(0, 16)];
    assert_eq!(header, formula.value("header", &operands));
    let word = [Value::of64(header)];
    assert!(!formula.0.holds("is-long", &word));
    assert_eq!(u64::from(tag_of(header)), formula.value("tag-of", &word));
    for (name, expected) in
        [("opcode-of", 1), ("flags-of", flags & 7), ("hint-of", hint), ("class-of", class)]
    {
        assert_eq!(formula.value(name, &word), u64::from(expected), "{name}");
    }
    let decoded = shipped(&{
        let mut slot = [0; SUBMISSION_WORDS];
        slot[0] = header;
        slot
    });
    assert_eq!(decoded, Ok(request));
}
