//! Descriptors: what each operation does, and how each broken rule is reported (5.4, 5.8.1, 8.3).

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation, opcode, rules, specific};
use memferry_dsa_registers::offset::{self, Portal, portal};
use memferry_dsa_registers::record::Status;
use memferry_dsa_registers::table::{Msixperm, QueueMode};
use memferry_models::dsa::Config;

use super::support::{BASE, Board, DEDICATED, RECORDS, SHARED, TABLES, Wq, moved, pattern};

const NONE: Flags = Flags::new();

fn status_of(change: impl FnOnce(&mut Board, Descriptor) -> Descriptor, operation: Operation) -> u8 {
    let mut board = Board::dedicated();
    let plain = board.describe(operation, NONE);
    let changed = change(&mut board, plain);
    board.execute(&changed).head.status()
}

/// An operation of each code, with operands that are all right.
fn sound(code: u8) -> Operation {
    let at = |offset| BASE + offset;
    match code {
        opcode::NOP => Operation::Nop,
        opcode::BATCH => Operation::Batch { list: at(0x8000), count: 2 },
        opcode::DRAIN => Operation::Drain,
        opcode::MOVE => moved(0, 0x4000, 64),
        opcode::FILL => Operation::Fill { pattern: 7, destination: at(0x4000), bytes: 64 },
        opcode::COMPARE => Operation::Compare { first: at(0), second: at(0x4000), bytes: 64 },
        opcode::COMPARE_PATTERN => Operation::ComparePattern { pattern: 0, source: at(0), bytes: 64 },
        opcode::DUALCAST => {
            Operation::Dualcast { source: at(0), destinations: [at(0x4000), at(0x8000)], bytes: 64 }
        }
        opcode::CRC => Operation::Crc { source: at(0), bytes: 64, seed: 0 },
        opcode::COPY_CRC => Operation::CopyCrc { source: at(0), destination: at(0x4000), bytes: 64, seed: 0 },
        _ => Operation::Flush { destination: at(0), bytes: 64 },
    }
}

#[test]
fn every_code_is_performed_or_unsupported() {
    for code in 0..=255 {
        let mut board = Board::dedicated();
        let mut descriptor = board.describe(sound(code), NONE);
        descriptor.words[0] = descriptor.words[0] & !(0xFF << 56) | u64::from(code) << 56;
        let status = board.execute(&descriptor).head.status();
        let expected = match code {
            // Its list has descriptors that are no operations.
            opcode::BATCH => Status::BatchFailed,
            _ if opcode::ALL.contains(&code) => Status::Success,
            _ => Status::UnsupportedOperation,
        };
        assert_eq!(status, expected.code(), "{code:#x}");
        assert_eq!(board.dsa.pending(), 0);
    }
}

#[test]
fn every_flag_is_allowed_or_named_as_invalid() {
    for code in opcode::ALL.into_iter().filter(|code| *code != opcode::BATCH) {
        let known = rules(code).expect("known").flags.into_bits();
        for bit in 0..24 {
            let flag = 1_u32 << bit;
            let mut board = Board::dedicated();
            let plain = board.describe(sound(code), NONE);
            let descriptor = plain.with_flags(Flags::from_bits(plain.flags().into_bits() | flag));
            let record = board.execute(&descriptor);
            if record.head.status() == Status::InvalidFlags.code() {
                assert_eq!(record.value & u64::from(flag), u64::from(flag), "{code:#x}: flag {bit}");
            } else {
                assert_ne!(known & flag, 0, "{code:#x}: flag {bit} ended with {:#x}", record.head.status());
                // The compared bytes differ, which the flag to check the result shows.
                let is_crc = matches!(code, opcode::CRC | opcode::COPY_CRC);
                let expected = match flag {
                    0x80 => 2,
                    // The seed is at no address.
                    0x1_0000 if is_crc => Status::ReadError.code(),
                    _ => 1,
                };
                assert_eq!(record.head.status(), expected, "{code:#x}: flag {bit}");
            }
        }
    }
}

#[test]
fn flags_depend_on_the_device_and_its_queue() {
    let with = |flags: Flags| {
        status_of(
            |_, plain| plain.with_flags(Flags::from_bits(plain.flags().into_bits() | flags.into_bits())),
            moved(0, 0x4000, 8),
        )
    };
    let invalid = Status::InvalidFlags.code();
    assert_eq!(with(NONE.with_fence(true)), invalid, "outside a batch");
    assert_eq!(with(NONE.with_block_on_fault(true)), invalid, "not enabled for the queue");
    assert_eq!(with(NONE.with_to_cache(true)), 1);
    assert_eq!(with(NONE.with_to_cache(true).with_readback(true)), 1);
    assert_eq!(with(NONE.with_cache_control_3(true)), invalid, "no durable writes");
    assert_eq!(with(NONE.with_cache_control_3(true).with_readback(true)), 1, "table 8-4");
    assert_eq!(with(NONE.with_cache_control_3(true).with_to_cache(true)), invalid, "reserved in table 8-4");
    let weak = Config { general: Config::default().general.with_cache_control(false), ..Config::default() };
    let mut board = Board::engines(weak, 1, &[DEDICATED]);
    let descriptor = board.describe(moved(0, 0x4000, 8), NONE.with_to_cache(true));
    assert_eq!(board.execute(&descriptor).value, 0x100, "the flag is named");
}

#[test]
fn results_need_a_record() {
    for code in [opcode::COMPARE, opcode::COMPARE_PATTERN, opcode::CRC, opcode::COPY_CRC] {
        let status =
            status_of(|_, plain| plain.with_flags(plain.flags().with_request_record(false)), sound(code));
        assert_eq!(status, Status::InvalidFlags.code());
    }
    let silent =
        status_of(|_, plain| plain.with_flags(plain.flags().with_request_record(false)), Operation::Drain);
    assert_eq!(silent, Status::InvalidFlags.code(), "nobody would hear of it");
}

#[test]
fn every_reserved_bit_is_checked() {
    for code in opcode::ALL {
        let reserved = rules(code).expect("known").reserved;
        for (word, reserved) in reserved.into_iter().enumerate().skip(2) {
            for bit in (0..64).filter(|bit| reserved >> bit & 1 == 1) {
                let change = |_: &mut Board, mut plain: Descriptor| {
                    plain.words[word] |= 1 << bit;
                    plain
                };
                let status = status_of(change, sound(code));
                assert_eq!(status, Status::ReservedField.code(), "{code:#x}: word {word}, bit {bit}");
            }
        }
        let handle = |_: &mut Board, mut plain: Descriptor| {
            plain.words[4] |= 1 << 32;
            plain
        };
        assert_eq!(
            status_of(handle, sound(code)),
            Status::ReservedField.code(),
            "a handle without interrupt"
        );
    }
}

#[test]
fn sizes_are_limited_by_the_queue() {
    for code in opcode::ALL {
        if matches!(code, opcode::NOP | opcode::BATCH | opcode::DRAIN) {
            continue;
        }
        for (bytes, expected) in
            [(0, Status::InvalidSize), ((1 << 20) + 1, Status::InvalidSize), (u32::MAX, Status::InvalidSize)]
        {
            let change = |_: &mut Board, mut plain: Descriptor| {
                plain.words[4] = bytes.into();
                plain
            };
            assert_eq!(status_of(change, sound(code)), expected.code(), "{code:#x}: {bytes} bytes");
        }
    }
}

#[test]
fn buffers_must_not_overlap_but_in_a_move() {
    let near = |destination: u64| Operation::CopyCrc {
        source: BASE,
        destination: BASE + destination,
        bytes: 64,
        seed: 0,
    };
    assert_eq!(status_of(|_, plain| plain, near(63)), Status::Overlap.code());
    assert_eq!(status_of(|_, plain| plain, near(64)), 1);
    let dual = |first: u64, second: u64| Operation::Dualcast {
        source: BASE,
        destinations: [BASE + first, BASE + second],
        bytes: 64,
    };
    assert_eq!(status_of(|_, plain| plain, dual(0x1001, 0x2002)), Status::DualcastMisaligned.code());
    assert_eq!(status_of(|_, plain| plain, dual(0x1001, 0x1001)), Status::Overlap.code());
    assert_eq!(status_of(|_, plain| plain, dual(0x0, 0x1000)), Status::Overlap.code());
    let strict =
        Config { general: Config::default().general.with_overlapping_copy(false), ..Config::default() };
    let mut board = Board::engines(strict, 1, &[DEDICATED]);
    let descriptor = board.describe(moved(0, 8, 64), NONE);
    assert_eq!(board.execute(&descriptor).head.status(), Status::Overlap.code());
}

#[test]
fn operations_do_what_they_say() {
    let mut board = Board::dedicated();
    let mut expected = pattern();
    let before = pattern();
    let at = |address: u64| (address - BASE) as usize;
    let move_down = board.describe(moved(0x1010, 0x1000, 5000), NONE);
    assert_eq!(board.execute(&move_down).head.into_bits(), 1);
    expected.copy_within(0x1010..0x1010 + 5000, 0x1000);
    let move_up = board.describe(moved(0x4000, 0x4801, 7000), NONE);
    assert_eq!(board.execute(&move_up).head.into_bits(), 1);
    expected.copy_within(0x4000..0x4000 + 7000, 0x4801);
    let fill = board.describe(
        Operation::Fill { pattern: 0x0706_0504_0302_0100, destination: BASE + 0x8003, bytes: 5001 },
        NONE,
    );
    assert_eq!(board.execute(&fill).head.status(), 1);
    (0..5001).for_each(|index| expected[0x8003 + index] = (index % 8) as u8);
    let dual = Operation::Dualcast {
        source: BASE + 0x20,
        destinations: [BASE + 0xA007, BASE + 0xD007],
        bytes: 6000,
    };
    let dual = board.describe(dual, NONE);
    assert_eq!(board.execute(&dual).head.status(), 1);
    expected.copy_within(0x20..0x20 + 6000, 0xA007);
    expected.copy_within(0x20..0x20 + 6000, 0xD007);
    assert!(board.memory(BASE, 0x2_0000) == &expected[..0x2_0000]);
    let compare = Operation::Compare { first: BASE + 0xA007, second: BASE + 0xD007, bytes: 6000 };
    let same = board.describe(compare, NONE);
    assert_eq!((board.execute(&same).head.result(), board.record(&same).head.completed()), (0, 0));
    board.put(
        BASE + 0xD007 + 4001,
        &[!u64::from_le_bytes(before[at(BASE) + 0x20 + 4001..][..8].try_into().expect("eight"))],
    );
    let differs = board.describe(compare, NONE);
    assert_eq!((board.execute(&differs).head.result(), board.record(&differs).head.completed()), (1, 4001));
    let value =
        Operation::ComparePattern { pattern: 0x0706_0504_0302_0100, source: BASE + 0x8003, bytes: 5001 };
    let equal = board.describe(value, NONE);
    assert_eq!(board.execute(&equal).head.result(), 0);
    let flush = board.describe(Operation::Flush { destination: BASE, bytes: 70_000 }, NONE);
    assert_eq!(board.execute(&flush).head.status(), 1);
    assert_eq!(board.reasons(), []);
}

#[test]
fn an_expected_result_decides_the_status() {
    for (expected, bytes, status) in [(0, 64, 2), (1, 64, 1)] {
        let mut board = Board::dedicated();
        let compare = Operation::Compare { first: BASE, second: BASE + 0x4000, bytes };
        let mut descriptor = board.describe(compare, NONE.with_check_result(true));
        descriptor.words[5] = expected;
        assert_eq!(board.execute(&descriptor).head.status(), status, "they differ, {expected} is expected");
    }
}

#[test]
fn a_crc_is_of_iscsi_and_takes_its_seed_from_memory() {
    let mut board = Board::dedicated();
    board.put(BASE, &[0; 4]);
    let crc = |board: &mut Board, operation, flags, seed: Option<u64>| {
        let mut descriptor = board.describe(operation, flags);
        if let Some(address) = seed {
            descriptor.words[6] = address;
        }
        let record = board.execute(&descriptor);
        assert_eq!(record.head.status(), 1);
        record.value
    };
    let zeros = Operation::Crc { source: BASE, bytes: 32, seed: 0 };
    assert_eq!(crc(&mut board, zeros, NONE, None), 0x8A91_36AA);
    let half = Operation::CopyCrc { source: BASE, destination: BASE + 0x100, bytes: 16, seed: 0 };
    let first = crc(&mut board, half, NONE, None);
    board.put(BASE + 0x200, &[first]);
    let rest = Operation::Crc { source: BASE + 0x100, bytes: 16, seed: 0 };
    let reads = NONE.with_specific(specific::READ_SEED);
    assert_eq!(crc(&mut board, rest, reads, Some(BASE + 0x200)), 0x8A91_36AA);
    let mut misaligned = board.describe(rest, reads);
    misaligned.words[6] = BASE + 0x202;
    assert_eq!(board.execute(&misaligned).head.status(), Status::AddressMisaligned.code());
    let mut unread = board.describe(rest, NONE);
    unread.words[6] = BASE + 0x200;
    assert_eq!(board.execute(&unread).head.status(), Status::ReservedField.code());
}

#[test]
fn a_fault_stops_a_move_where_the_record_says() {
    for (from, to, absent, write, reversed) in [
        (0x1000, 0x8000, 0x9000_u64, true, false),
        (0x1000, 0x8000, 0x2000, false, false),
        (0x1800, 0x2000, 0x1000, false, true),
    ] {
        let mut board = Board::dedicated();
        board.dsa.faults().absent(BASE + absent);
        let descriptor = board.describe(moved(from, to, 0x1800), NONE);
        let before = board.memory(BASE, 0x1_0000).to_vec();
        let record = board.execute(&descriptor);
        assert_eq!((record.head.status(), record.head.write()), (3, write));
        assert_eq!(record.head.result(), u8::from(reversed));
        assert_eq!(record.fault_address / 4096, (BASE + absent) / 4096);
        let done = record.head.completed() as usize;
        let mut expected = before;
        let skip = if reversed { 0x1800 - done } else { 0 };
        expected.copy_within(from as usize + skip..from as usize + skip + done, to as usize + skip);
        assert!(board.memory(BASE, 0x1_0000) == expected, "{done} bytes");
        assert!(done > 0);
    }
}

#[test]
fn block_on_fault_waits_for_the_page() {
    let waits = Wq { mode: DEDICATED.mode.with_block_on_fault(true), ..DEDICATED };
    for resolvable in [true, false] {
        let mut board = Board::new(&[waits]);
        let descriptor = board.describe(moved(0, 0x4000, 0x3000), NONE.with_block_on_fault(true));
        if resolvable {
            board.dsa.faults().absent(BASE + 0x5000);
        } else {
            board.dsa.faults().unresolvable(BASE + 0x5000);
        }
        let started = board.dsa.now();
        let record = board.execute(&descriptor);
        let waited = board.dsa.now().nanoseconds() - started.nanoseconds();
        assert!(waited >= 20_000, "{waited} ns");
        assert_eq!(record.head.status(), if resolvable { 1 } else { 4 });
        assert_eq!(record.head.completed(), if resolvable { 0 } else { 0x1000 });
        let there = board.memory(BASE + 0x4000, 0x3000) == &pattern()[..0x3000];
        assert_eq!(there, resolvable);
    }
}

#[test]
fn bus_errors_are_hardware_errors_or_page_faults() {
    for translated in [false, true] {
        for (place, code) in [(0x1234_u64, Status::ReadError), (0x5678, Status::WriteError)] {
            let config = Config { translated, ..Config::default() };
            let mut board = Board::engines(config, 1, &[DEDICATED]);
            board.dsa.faults().bus_error_at(BASE + place..=BASE + place);
            let descriptor = board.describe(moved(0x1000, 0x5000, 0x1000), NONE);
            let record = board.execute(&descriptor);
            let expected = if translated { Status::PageFault } else { code };
            assert_eq!(record.head.status(), expected.code());
            if translated {
                assert_eq!(record.fault_address / 4096, (BASE + place) / 4096);
                assert!(u64::from(record.head.completed()) <= place % 4096);
            }
        }
    }
    let mut board = Board::dedicated();
    let outside = board.describe(Operation::Move { source: 0x10, destination: BASE, bytes: 8 }, NONE);
    assert_eq!(board.execute(&outside).head.status(), Status::ReadError.code());
    let wraps = board.describe(Operation::Fill { pattern: 0, destination: u64::MAX - 3, bytes: 100 }, NONE);
    assert_eq!(board.execute(&wraps).head.status(), Status::WriteError.code());
}

#[test]
fn errors_without_a_record_go_to_the_error_register() {
    let mut board = Board::dedicated();
    let misaligned = Descriptor::new(&moved(0, 0x4000, 8), NONE).with_record(RECORDS + 16);
    board.post(&misaligned);
    board.run();
    let error = board.take_error();
    assert_eq!(
        (error.status.code(), error.status.operation(), error.status.queue()),
        (0x1B, opcode::MOVE, 0)
    );
    assert!(error.status.descriptor_valid() && error.status.queue_valid() && !error.status.batch());
    assert_ne!(board.memory(BASE + 0x4000, 8), &pattern()[..8], "it was discarded");
    let silent = Descriptor::new(&moved(0, 0x4000, 0), NONE);
    board.post(&silent);
    board.run();
    assert_eq!(board.take_error().status.code(), Status::InvalidSize.code());
    let reserved = Descriptor::new(&moved(0, 0x4000, 8), NONE.with_request_record(true));
    board.post(&reserved);
    board.run();
    let error = board.take_error();
    assert_eq!((error.status.code(), error.information), (Status::InvalidFlags.code(), 0x8));
    let absent = board.describe(moved(0, 0x4000, 8), NONE);
    board.dsa.faults().absent(absent.record());
    board.post(&absent);
    board.run();
    let error = board.take_error();
    assert_eq!((error.status.code(), error.address, error.status.write()), (0x1A, absent.record(), true));
    let foreign = Descriptor::new(&moved(0, 0x4000, 8), NONE).with_record(0x40);
    board.post(&foreign);
    board.post(&foreign);
    board.run();
    let error = board.take_error();
    assert_eq!((error.status.code(), error.status.overflow()), (0x1A, true), "the second one did not fit");
    assert_eq!(board.take_error().status.into_bits() & 0b11, 0, "it is acknowledged");
}

#[test]
fn interrupts_come_after_records_and_by_permission() {
    let mut board = Board::dedicated();
    let plain = board.describe(Operation::Nop, NONE);
    board.post(&plain.with_interrupt(2));
    while board.dsa.take_messages() == 0 {
        let wake = board.dsa.next_wake().expect("an interrupt");
        board.dsa.step(wake);
    }
    assert_eq!(board.status(&plain), 1, "the record is there");
    board.dsa.write32(TABLES.permission(2), Msixperm::new().with_ignore(true).into_bits());
    let ignored = board.describe(Operation::Nop, NONE).with_interrupt(2);
    assert_eq!(board.execute(&ignored).head.status(), 1);
    assert_eq!(board.dsa.take_messages(), 0);
    board.dsa.write32(TABLES.permission(3), Msixperm::new().with_pasid_enable(true).into_bits());
    for handle in [3, 9, u16::MAX] {
        let refused = board.describe(moved(0, 0x4000, 8), NONE).with_interrupt(handle);
        assert_eq!(board.execute(&refused).head.status(), Status::InvalidInterruptHandle.code());
        assert_eq!(board.dsa.take_messages(), 0);
        assert_eq!(board.take_error().information, u32::from(handle), "it is reported twice");
    }
}

#[test]
fn user_mode_needs_permission_for_interrupts() {
    for (permitted, privileged) in [(false, false), (true, false)] {
        let mut board = Board::with(Config::default());
        board.dsa.set_pci(memferry_models::dsa::Pci { pasid: true, ..Default::default() });
        board.dsa.write32(offset::GENCFG, if permitted { 1 << 12 } else { 0 });
        board.group(0, 1, 1);
        board.queue(0, &SHARED);
        let commands = [
            memferry_dsa_registers::control::Command::EnableDevice,
            memferry_dsa_registers::control::Command::EnableQueue(0),
        ];
        commands.into_iter().for_each(|command| assert_eq!(board.command(command), None));
        board
            .dsa
            .write32(TABLES.permission(1), Msixperm::new().with_pasid_enable(true).with_pasid(5).into_bits());
        let descriptor = board.describe(Operation::Nop, NONE).with_interrupt(1).with_pasid(5, privileged);
        assert!(board.dsa.enqueue(portal(0, Portal::Limited), descriptor.words));
        board.run();
        assert_eq!(board.status(&descriptor), if permitted { 1 } else { Status::InvalidFlags.code() });
        let other = board.describe(Operation::Nop, NONE).with_interrupt(1).with_pasid(6, false);
        assert!(board.dsa.enqueue(portal(0, Portal::Limited), other.words));
        board.run();
        assert_ne!(board.status(&other), 1, "the vector is of another address space");
    }
}

#[test]
fn privilege_in_a_shared_queue_needs_the_capability() {
    let mut board = Board::new(&[SHARED]);
    let descriptor = board.describe(moved(0, 0x4000, 8), NONE).with_pasid(5, true);
    assert!(board.dsa.enqueue(portal(0, Portal::Limited), descriptor.words));
    board.run();
    assert_eq!(board.status(&descriptor), 0, "the record is not trusted");
    assert_eq!(board.take_error().status.code(), 0x1D);
    let mode: QueueMode = SHARED.mode;
    assert!(!mode.dedicated());
}
