//! Random accesses and descriptors: nothing panics, equal calls have equal traces, and a reset always recovers the device.
//!
//! ```text
//! seed ──► accesses to registers and portals, words in memory, faults ──► model ──► the same trace twice
//! ```

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::control::Command;
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation, opcode};
use memferry_dsa_registers::offset::{self, Portal, portal};
use memferry_models::Bus;
use memferry_models::dsa::{Config, Pci};
use proptest::prelude::*;

use super::support::{BASE, Board, DEDICATED, LIST, RECORDS, SHARED, SIZE, moved, pattern};

/// An access; most are sensible.
#[derive(Clone, Debug)]
enum Access {
    Read(u64, usize),
    Write(u64, Vec<u8>),
    Post(u32, [u64; 8]),
    Enqueue(u32, [u64; 8]),
    List(u8, [u64; 8]),
    Command(u32),
    Absent(u32),
    Pci(u8),
    Stick(u8),
    Wait(u32),
}

/// Words of a descriptor: sensible fields, one of which may be anything.
fn words() -> impl Strategy<Value = [u64; 8]> {
    let place = 0..SIZE as u64 - 0x2_8000;
    let sensible = (0..12_usize, any::<u32>(), place.clone(), place.clone(), place, 0..9000_u32, 0..64_u64);
    (sensible, prop::option::weighted(0.3, (0..8_usize, any::<u64>()))).prop_map(
        |((kind, flags, first, second, third, size, record), spoiled)| {
            let code = *opcode::ALL.get(kind).unwrap_or(&0x15);
            let list = code == opcode::BATCH;
            let size = if list { size % 9 } else { size };
            let flags = flags & 0x4190 | 0xC;
            let mut words = [0; 8];
            words[0] = u64::from(flags) << 32 | u64::from(code) << 56;
            words[1] = RECORDS + 32 * record;
            words[2] = if list { LIST } else { BASE + first };
            words[3] = BASE + second;
            words[4] = u64::from(size) | (record % 10) << 32;
            if code == opcode::DUALCAST {
                words[5] = BASE + (third & !0xFFF) + second % 4096;
            }
            if let Some((index, value)) = spoiled {
                words[index] ^= value;
            }
            words
        },
    )
}

fn access() -> impl Strategy<Value = Access> {
    let known = prop_oneof![
        Just(0x00_u64),
        Just(0x10),
        Just(0x80),
        Just(0x88),
        Just(0x90),
        Just(0x98),
        Just(0xA8),
        Just(0xC0),
        Just(0xE0),
        (0..9_u64).prop_map(|vector| 0x400 + 8 * vector),
        (0..4_u64, 0..6_u64).prop_map(|(group, register)| 0x600 + 64 * group + 8 * register),
        (0..8_u64, 0..16_u64).prop_map(|(queue, word)| 0x800 + 64 * queue + 4 * word),
    ];
    let place = prop_oneof![6 => known, 1 => 0..0x1_0000_u64, 1 => any::<u64>()];
    let width = prop_oneof![Just(1_usize), Just(2), Just(4), Just(8), 0..12_usize];
    prop_oneof![
        2 => (place.clone(), width.clone()).prop_map(|(place, width)| Access::Read(place, width)),
        2 => (place, width, any::<[u8; 12]>()).prop_map(|(place, width, bytes)| Access::Write(place, bytes[..width].to_vec())),
        6 => (0..3_u32, words()).prop_map(|(queue, words)| Access::Post(queue, words)),
        3 => (0..3_u32, words()).prop_map(|(queue, words)| Access::Enqueue(queue, words)),
        3 => (0..8_u8, words()).prop_map(|(index, words)| Access::List(index, words)),
        3 => prop_oneof![(1..13_u32, 0..4_u32).prop_map(|(code, operand)| code << 20 | operand | 1 << 31), any::<u32>()].prop_map(Access::Command),
        1 => any::<u32>().prop_map(Access::Absent),
        1 => any::<u8>().prop_map(Access::Pci),
        1 => any::<u8>().prop_map(Access::Stick),
        5 => any::<u32>().prop_map(Access::Wait),
    ]
}

fn perform(board: &mut Board, access: &Access, seen: &mut Vec<u64>) {
    match access {
        Access::Read(place, width) => {
            let mut bytes = vec![0xEE; *width];
            board.dsa.read(*place, &mut bytes);
            seen.extend(bytes.iter().map(|byte| u64::from(*byte)));
        }
        Access::Write(place, bytes) => board.dsa.write(*place, bytes),
        Access::Post(queue, words) => board.dsa.post(portal(*queue, Portal::Limited), *words),
        Access::Enqueue(queue, words) => {
            seen.push(board.dsa.enqueue(portal(*queue, Portal::Unlimited), *words).into())
        }
        Access::List(index, words) => board.put(LIST + 64 * u64::from(*index), words),
        Access::Command(value) => board.dsa.write32(offset::CMD, *value),
        Access::Absent(value) => {
            let address = BASE + u64::from(*value) % SIZE as u64;
            match value % 4 {
                0 => board.dsa.faults().absent(address),
                1 => board.dsa.faults().read_only(address),
                2 => board.dsa.faults().bus_error_at(address..=address),
                _ => board.dsa.faults().touch(address),
            }
        }
        Access::Pci(value) if *value < 20 => {
            board.dsa.set_pci(Pci { bus_master: value % 2 == 0, pasid: value % 3 == 0, ..Pci::default() });
        }
        Access::Pci(_) => {}
        Access::Stick(value) if *value < 40 => board.dsa.faults().stick(usize::from(*value) % 5),
        Access::Stick(value) => board.dsa.faults().release(usize::from(*value) % 5),
        Access::Wait(nanoseconds) => {
            let until = board.dsa.now().after_picoseconds(u128::from(nanoseconds % 20_000) * 1000);
            seen.extend(board.dsa.step(until).map(|at| at.nanoseconds()));
        }
    }
    seen.push(board.dsa.take_messages());
}

/// Values read, answers, wake times, messages, and memory.
fn trace(accesses: &[Access], translated: bool) -> (Vec<u64>, Vec<u8>) {
    let mut board = Board::engines(Config { translated, ..Config::default() }, 0b11, &[DEDICATED, SHARED]);
    let mut seen = Vec::new();
    accesses.iter().for_each(|access| perform(&mut board, access, &mut seen));
    seen.push(board.dsa.complaints().len() as u64);
    (seen, board.dsa.bus().bytes().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_accesses_never_panic(accesses in prop::collection::vec(access(), 1..80), translated in any::<bool>()) {
        prop_assert!(trace(&accesses, translated) == trace(&accesses, translated));
    }

    #[test]
    fn a_reset_always_recovers_the_device(accesses in prop::collection::vec(access(), 1..60)) {
        let mut board = Board::new(&[DEDICATED, SHARED]);
        let mut seen = Vec::new();
        accesses.iter().for_each(|access| perform(&mut board, access, &mut seen));
        board.dsa.faults().clear();
        // A command may be in progress.
        board.run();
        prop_assert_eq!(board.command(Command::ResetDevice), None);
        prop_assert_eq!(board.dsa.pending(), 0);
        board.dsa.set_pci(Pci::default());
        board.group(0, 1, 1);
        board.queue(0, &DEDICATED);
        prop_assert_eq!(board.command(Command::EnableDevice), None);
        prop_assert_eq!(board.command(Command::EnableQueue(0)), None);
        board.dsa.bus_mut().write(BASE, &pattern()).expect("on the board");
        let descriptor = board.describe(moved(0, 0x4000, 5000), Flags::new());
        prop_assert_eq!(board.execute(&descriptor).head.status(), 1);
        prop_assert!(board.memory(BASE + 0x4000, 5000) == &pattern()[..5000]);
    }

    /// Of any descriptors, those with a record's address that they may use end, each with one record; memory outside what they name stays.
    #[test]
    fn descriptors_end_and_stay_in_their_buffers(all in prop::collection::vec(words(), 1..16)) {
        let mut board = Board::dedicated();
        let mut descriptors: Vec<Descriptor> = all.into_iter().map(|words| Descriptor { words }).collect();
        for (index, descriptor) in (0..).zip(&mut descriptors) {
            descriptor.words[1] = RECORDS + 0x1000 + 32 * index;
            board.put(descriptor.words[1], &[0; 4]);
        }
        descriptors.retain(|descriptor| descriptor.code() != opcode::BATCH);
        let before = board.memory(BASE, SIZE).to_vec();
        let mut may_change = vec![false; SIZE];
        for descriptor in &descriptors {
            let bytes = u64::from(descriptor.size());
            let writes = descriptor.operation().map_or([None; 2], |operation| operation.writes());
            let ranges = writes.into_iter().flatten().map(|start| (start, bytes)).chain([(descriptor.record(), 32)]);
            for (start, bytes) in ranges {
                let first = start.saturating_sub(BASE).min(SIZE as u64) as usize;
                let end = start.saturating_add(bytes).saturating_sub(BASE).min(SIZE as u64) as usize;
                may_change[first..end.max(first)].fill(true);
            }
            board.post(descriptor);
        }
        board.run();
        prop_assert_eq!(board.dsa.pending(), 0);
        for descriptor in &descriptors {
            let flags = descriptor.flags();
            let told = board.status(descriptor) != 0;
            prop_assert!(told || !flags.record_valid() || !flags.request_record(), "{}", descriptor);
        }
        let after = board.memory(BASE, SIZE);
        for (index, (old, new)) in before.iter().zip(after).enumerate() {
            prop_assert!(old == new || may_change[index], "{index:#x} changed");
        }
    }
}

#[test]
fn an_empty_batch_of_faults_does_not_hang() {
    let mut board = Board::dedicated();
    board.dsa.faults().absent(LIST);
    let batch = board.describe(Operation::Batch { list: LIST, count: 2 }, Flags::new());
    assert_eq!(board.execute(&batch).head.status(), 6);
}
