//! Layouts against the specification's numbers, round trips of every field, and rules that fit each other.

use memferry_dsa_registers::capability::{Gencap, Grpcap, Opcap, Wqcap};
use memferry_dsa_registers::control::{Cmd, Cmdsts, Command, CommandError, NoCommand, QueueSet};
use memferry_dsa_registers::descriptor::{Descriptor, Flags, Operation, opcode, rules, specific};
use memferry_dsa_registers::error::{SoftwareError, Swerr};
use memferry_dsa_registers::offset::{Portal, Tables, locate_portal, portal};
use memferry_dsa_registers::record::{Head, Record, Status};
use memferry_dsa_registers::table::{Grpflags, Msixperm, QueueLimits, QueueMode, QueueStatus};
use proptest::prelude::*;

#[test]
fn bits_are_where_the_specification_has_them() {
    assert_eq!(Gencap::new().with_overlapping_copy(true).into_bits(), 1 << 1);
    assert_eq!(Gencap::new().with_cache_control(true).into_bits(), 1 << 2);
    assert_eq!(Gencap::new().with_command_capabilities(true).into_bits(), 1 << 4);
    assert_eq!(Gencap::new().with_fault_info(true).into_bits(), 1 << 12);
    assert_eq!(Gencap::new().with_max_transfer(0x1F).into_bits(), 0x1F << 16);
    assert_eq!(Gencap::new().with_max_batch(0xF).into_bits(), 0xF << 21);
    assert_eq!(Gencap::new().with_configurable(true).into_bits(), 1 << 31);
    assert_eq!(Gencap::new().with_batch_of_one(true).into_bits(), 1 << 52);
    assert_eq!(Wqcap::new().with_queues(0xFF).into_bits(), 0xFF << 16);
    assert_eq!(Wqcap::new().with_shared(true).into_bits(), 1 << 48);
    assert_eq!(Wqcap::new().with_operations_control(true).into_bits(), 1 << 54);
    assert_eq!(Grpcap::new().with_progress_limit(true).into_bits(), 1 << 18);
    assert_eq!(Cmd::new().with_code(0x1F).into_bits(), 0x1F << 20);
    assert_eq!(Cmd::new().with_interrupt(true).into_bits(), 1 << 31);
    assert_eq!(Cmdsts::new().with_active(true).into_bits(), 1 << 31);
    assert_eq!(Msixperm::new().with_ignore(true).into_bits(), 1 << 2);
    assert_eq!(Msixperm::new().with_pasid(0xF_FFFF).into_bits(), 0xF_FFFF << 12);
    assert_eq!(Grpflags::new().with_read_buffers_allowed(0xFF).into_bits(), 0xFF << 20);
    assert_eq!(Grpflags::new().with_batch_limit(3).into_bits(), 3 << 36);
    assert_eq!(QueueMode::new().with_pasid_enable(true).into_bits(), 1 << 28);
    assert_eq!(QueueMode::new().with_priority(0xF).into_bits(), 0xF << 4);
    assert_eq!(QueueLimits::new().with_max_batch(0xF).into_bits(), 0xF << 5);
    assert_eq!(QueueStatus::new().with_mode_support(true).into_bits(), 1 << 29);
    assert_eq!(Swerr::new().with_code(0xFF).into_bits(), 0xFF << 8);
    assert_eq!(Swerr::new().with_operation(0xFF).into_bits(), 0xFF << 32);
    assert_eq!(Swerr::new().with_pasid(0xF_FFFF).into_bits(), 0xF_FFFF << 40);
    assert_eq!(Head::new().with_write(true).into_bits(), 1 << 7);
    assert_eq!(Head::new().with_operand(7).into_bits(), 7 << 17);
    assert_eq!(Head::new().with_completed(u32::MAX).into_bits(), 0xFFFF_FFFF << 32);
}

/// Values of Linux's `include/uapi/linux/idxd.h`.
#[test]
fn flags_are_those_of_the_kernel() {
    let flags = [
        (Flags::new().with_fence(true), 0x0001),
        (Flags::new().with_block_on_fault(true), 0x0002),
        (Flags::new().with_record_valid(true), 0x0004),
        (Flags::new().with_request_record(true), 0x0008),
        (Flags::new().with_request_interrupt(true), 0x0010),
        (Flags::new().with_check_result(true), 0x0080),
        (Flags::new().with_to_cache(true), 0x0100),
        (Flags::new().with_record_class_b(true), 0x1000),
        (Flags::new().with_strict_order(true), 0x2000),
        (Flags::new().with_readback(true), 0x4000),
        (Flags::new().with_specific(1), 0x1_0000),
    ];
    for (flag, value) in flags {
        assert_eq!(flag.into_bits(), value);
    }
}

#[test]
fn a_move_has_the_layout_of_the_kernel() {
    let operation = Operation::Move { source: 0x1111, destination: 0x2222, bytes: 0x3333 };
    let descriptor =
        Descriptor::new(&operation, Flags::new().with_to_cache(true)).with_record(0x40).with_interrupt(7);
    assert_eq!(descriptor.words, [0x0300_011C << 32, 0x40, 0x1111, 0x2222, 0x7_0000_3333, 0, 0, 0]);
    let tagged = descriptor.with_pasid(0x1_2345, true);
    assert_eq!(tagged.words[0] as u32, 0x8001_2345);
    assert_eq!((tagged.pasid(), tagged.is_privileged(), tagged.interrupt_handle()), (0x1_2345, true, 7));
}

#[test]
fn commands_round_trip() {
    let set = QueueSet { block: 1, bits: 0x60 };
    let commands = [
        Command::EnableDevice,
        Command::DisableDevice,
        Command::DrainAll,
        Command::AbortAll,
        Command::ResetDevice,
        Command::EnableQueue(200),
        Command::DisableQueues(set),
        Command::DrainQueues(set),
        Command::AbortQueues(set),
        Command::ResetQueues(set),
        Command::DrainPasid(0xF_FFFF),
        Command::AbortPasid(1),
    ];
    let mut codes = 0;
    for command in commands {
        assert_eq!(Command::decode(command.encode(true)), Ok(command));
        codes |= 1_u64 << command.code();
    }
    assert_eq!(codes, Command::ALL);
    assert_eq!(set.queues().collect::<Vec<_>>(), [21, 22]);
    assert_eq!(Command::DrainQueues(set).encode(false).operand(), 0x1_0060);
    assert_eq!(Command::decode(Cmd::new().with_code(13)), Err(NoCommand::Code(13)));
    assert_eq!(Command::decode(Cmd::new().with_code(1).with_operand(1)), Err(NoCommand::Reserved));
    assert_eq!(Command::decode(Cmd::new().with_code(6).with_operand(0x100)), Err(NoCommand::Reserved));
}

#[test]
fn every_code_has_one_meaning() {
    for code in 1..=0xFF {
        let error = CommandError::from_code(code).expect("not zero");
        assert_eq!(error.code(), code);
        assert!(!error.to_string().is_empty());
        if let Some(status) = Status::from_code(code) {
            assert_eq!(status.code(), code);
            assert!(status.to_string().len() > 15, "{status}");
        }
    }
    assert_eq!((CommandError::from_code(0), Status::from_code(0)), (None, None));
    assert_eq!(Status::from_code(0x1A).map(Status::is_software_error), Some(true));
}

#[test]
fn portals_locate_themselves() {
    for queue in [0, 1, 7, 255] {
        for kind in Portal::ALL {
            let at = portal(queue, kind);
            assert_eq!(locate_portal(at), Some((queue.into(), kind)));
            assert_eq!(locate_portal(at + 0xFC0), Some((queue.into(), kind)), "bits 11 to 6 are ignored");
            assert_eq!(locate_portal(at + 8), None);
        }
    }
    assert_eq!(portal(1, Portal::Limited), 0x5000);
    assert_eq!(locate_portal(u64::MAX), None);
}

#[test]
fn tables_are_laid_out_as_the_kernel_reads_them() {
    let tables = Tables { groups: 0x600, queues: 0x800, permissions: 0x400, queue_bytes: 64 };
    assert_eq!(tables.group_queues(2, 3), 0x698);
    assert_eq!(tables.group_engines(1), 0x660);
    assert_eq!(tables.group_flags(1), 0x668);
    assert_eq!(tables.queue(3, 2), 0x8C8);
    assert_eq!(tables.permission(4), 0x420);
}

#[test]
fn sets_of_operations_contain_what_they_are_of() {
    let all = Opcap::of(&opcode::ALL);
    for code in 0..=255 {
        assert_eq!(all.contains(code), opcode::ALL.contains(&code), "{code:#x}");
        assert_eq!(rules(code).is_some(), opcode::ALL.contains(&code), "{code:#x}");
    }
    assert!(all.contains_all(&Opcap::of(&[3, 0x20])));
    assert!(!Opcap::of(&[3]).contains_all(&Opcap::of(&[3, 0x20])));
}

fn operation() -> impl Strategy<Value = Operation> {
    (0..11_usize, any::<[u64; 3]>(), any::<[u32; 2]>()).prop_map(
        |(kind, [a, b, c], [bytes, seed])| match kind {
            0 => Operation::Nop,
            1 => Operation::Batch { list: a, count: bytes },
            2 => Operation::Drain,
            3 => Operation::Move { source: a, destination: b, bytes },
            4 => Operation::Fill { pattern: a, destination: b, bytes },
            5 => Operation::Compare { first: a, second: b, bytes },
            6 => Operation::ComparePattern { pattern: a, source: b, bytes },
            7 => Operation::Dualcast { source: a, destinations: [b, c], bytes },
            8 => Operation::Crc { source: a, bytes, seed },
            9 => Operation::CopyCrc { source: a, destination: b, bytes, seed },
            _ => Operation::Flush { destination: a, bytes },
        },
    )
}

proptest! {
    #[test]
    fn operations_round_trip_and_keep_their_rules(operation in operation(), handle in any::<u16>(), record in any::<u64>()) {
        let plain = Descriptor::new(&operation, Flags::new());
        let descriptor = plain.with_record(record).with_interrupt(handle);
        prop_assert_eq!(descriptor.operation(), Some(operation));
        prop_assert_eq!((descriptor.record(), descriptor.interrupt_handle()), (record, handle));
        let rules = rules(operation.code()).expect("known");
        for (word, reserved) in plain.words.iter().zip(rules.reserved).skip(2) {
            prop_assert_eq!(word & reserved, 0);
        }
        let flags = descriptor.flags().into_bits();
        prop_assert_eq!(flags & !rules.flags.into_bits(), 0);
        prop_assert_eq!(rules.required.into_bits() & !flags, 0);
    }

    #[test]
    fn records_and_errors_round_trip(words in any::<[u64; 4]>()) {
        let [head, address, value, _] = words;
        prop_assert_eq!(Record::from_words(words).into_words(), [head, address, value, 0]);
        let error = SoftwareError::from_words(words);
        prop_assert_eq!(SoftwareError::from_words(error.into_words()), error);
    }
}

#[test]
fn specific_flags_are_bits_16_and_up() {
    let rules = rules(opcode::CRC).expect("known");
    assert_eq!(
        rules.flags.specific(),
        specific::READ_SEED | specific::CRC_AS_IS | specific::DATA_AS_IS | specific::CRC_64
    );
    assert_eq!(rules.flags.with_specific(0).into_bits() >> 16, 0);
}
