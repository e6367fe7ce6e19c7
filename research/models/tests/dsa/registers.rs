//! Registers: capabilities, what is writable when, enable checks, commands, halts (5.1, 5.2, 5.7, 9.2).

use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::capability::{Offsets, Opcap, Wqcap};
use memferry_dsa_registers::control::{Cmd, Cmdsts, Command, CommandError, DeviceState, Gensts, QueueSet};
use memferry_dsa_registers::descriptor::opcode;
use memferry_dsa_registers::offset;
use memferry_dsa_registers::table::{Grpflags, word};
use memferry_models::dsa::{Config, Pci, Reason};

use super::support::{Board, DEDICATED, SHARED, TABLES, Wq};

fn gensts(board: &mut Board) -> Gensts {
    Gensts::from_bits(board.dsa.read32(offset::GENSTS))
}

#[test]
fn capabilities_and_tables_are_read_at_every_width() {
    let mut board = Board::with(Config::default());
    assert_eq!(board.dsa.read32(offset::VERSION), 0x100);
    let queues = Wqcap::from_bits(board.dsa.read64(offset::WQCAP));
    assert_eq!((queues.queues(), queues.total_size(), queues.entry_bytes()), (8, 128, 64));
    let offsets = Offsets::from_bits(board.dsa.read64(offset::OFFSETS));
    assert_eq!((offsets.groups(), offsets.queues(), offsets.permissions()), (6, 8, 4));
    let words = [0, 8, 16, 24].map(|at| board.dsa.read64(offset::OPCAP + at));
    assert_eq!(Opcap(words), Opcap::of(&opcode::ALL));
    for width in [1_usize, 2, 4, 8] {
        let mut bytes = [0; 8];
        for at in (0..8).step_by(width) {
            board.dsa.read(u64::from(offset::GENCAP) + at as u64, &mut bytes[at..at + width]);
        }
        assert_eq!(u64::from_le_bytes(bytes), board.dsa.read64(offset::GENCAP));
    }
    assert_eq!(board.reasons(), []);
    let mut bytes = [0; 8];
    board.dsa.read(0x11, &mut bytes[..4]);
    board.dsa.read(0x10, &mut bytes[..3]);
    board.dsa.read(0x3000, &mut bytes);
    board.dsa.read(u64::MAX - 7, &mut bytes);
    assert_eq!(
        board.reasons(),
        [Reason::Misaligned, Reason::Misaligned, Reason::NoSuchRegister, Reason::NoSuchRegister]
    );
}

#[test]
fn narrow_writes_change_their_bytes_only() {
    let mut board = Board::with(Config::default());
    let size = u64::from(TABLES.queue(2, word::SIZE));
    board.dsa.write(size, &[0x34, 0x12, 0, 0, 7, 0, 0, 0]);
    board.dsa.write(size + 1, &[0x56]);
    assert_eq!(board.dsa.read32(size as u32), 0x5634);
    assert_eq!(board.dsa.read32(size as u32 + 4), 7, "eight bytes are two registers");
}

#[test]
fn configuration_is_read_only_while_enabled() {
    let mut board = Board::dedicated();
    board.dsa.write32(TABLES.queue(0, word::SIZE), 8);
    board.dsa.write32(TABLES.queue(0, word::MODE), 0);
    board.dsa.write64(TABLES.group_engines(0), 1);
    board.dsa.write32(offset::GENCFG, 0);
    board.dsa.write32(offset::GENCAP, 1);
    board.dsa.write64(TABLES.group_engines(0), 0b1111);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::SIZE)), 16);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::MODE)), DEDICATED.mode.into_bits());
    assert_eq!(board.dsa.read64(TABLES.group_engines(0)), 0b1111);
    assert_eq!(
        board.reasons(),
        [Reason::ReadOnly; 4],
        "a write of zeros to GENCFG, or of what a register holds, is no complaint"
    );
    board.dsa.write32(TABLES.queue(0, word::THRESHOLD), 5);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::THRESHOLD)), 5, "thresholds can always be set");
    assert_eq!(board.command(Command::DisableDevice), None);
    board.dsa.write32(TABLES.queue(0, word::SIZE), 8);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::SIZE)), 8);
}

#[test]
fn each_device_enable_check_has_its_error() {
    type Case = (fn(&mut Board), CommandError);
    let cases: [Case; 11] = [
        (|board| board.dsa.set_pci(Pci { bus_master: false, ..Pci::default() }), CommandError::NoBusMaster),
        (|board| board.dsa.write32(TABLES.queue(0, word::SIZE), 129), CommandError::QueueSizes),
        (|board| board.group(0, 1, 0), CommandError::GroupIncomplete),
        (|board| board.group(0, 0, 1), CommandError::GroupIncomplete),
        (|board| board.group(1, 1, 2), CommandError::GroupQueues),
        (|board| board.dsa.write32(TABLES.queue(1, word::SIZE), 1), CommandError::GroupQueues),
        (|board| board.group(0, 0b11, 1), CommandError::GroupQueues),
        (|board| board.dsa.write64(TABLES.group_queues(0, 3), 1), CommandError::GroupQueues),
        (|board| board.group(0, 1, 0x11), CommandError::GroupEngines),
        (|board| board.dsa.write64(TABLES.group_flags(0), 3 << 20), CommandError::ReadBuffers),
        (
            |board| {
                let flags = Grpflags::new().with_read_buffers_allowed(96).with_read_buffers_reserved(97);
                board.dsa.write64(TABLES.group_flags(0), flags.into_bits());
            },
            CommandError::ReadBuffers,
        ),
    ];
    for (index, (change, error)) in cases.into_iter().enumerate() {
        let mut board = Board::with(Config::default());
        board.group(0, 1, 1);
        board.queue(0, &DEDICATED);
        change(&mut board);
        assert_eq!(board.command(Command::EnableDevice), Some(error), "case {index}");
        assert_eq!(gensts(&mut board).state(), DeviceState::Disabled);
    }
}

#[test]
fn each_queue_enable_check_has_its_error() {
    let cases = [
        (Wq { mode: DEDICATED.mode.with_priority(0), ..DEDICATED }, CommandError::QueuePriority),
        (Wq { mode: DEDICATED.mode.with_block_on_fault(true), ..DEDICATED }, CommandError::QueueBlockOnFault),
        (SHARED, CommandError::QueuePasid),
        (Wq { mode: SHARED.mode.with_pasid_enable(false), ..SHARED }, CommandError::QueuePasid),
        (Wq { limits: DEDICATED.limits.with_max_batch(0), ..DEDICATED }, CommandError::QueueBatch),
        (Wq { limits: DEDICATED.limits.with_max_batch(11), ..DEDICATED }, CommandError::QueueBatch),
    ];
    for (queue, error) in cases {
        let mut board = Board::with(Config::default());
        board.group(0, 1, 1);
        board.queue(0, &queue);
        assert_eq!(board.command(Command::EnableQueue(0)), Some(CommandError::DeviceNotEnabled));
        assert_eq!(board.command(Command::EnableDevice), None);
        assert_eq!(board.command(Command::EnableQueue(0)), Some(error));
    }
    let mut board = Board::dedicated();
    assert_eq!(board.command(Command::EnableQueue(0)), Some(CommandError::QueueNotDisabled));
    assert_eq!(board.command(Command::EnableQueue(1)), Some(CommandError::QueueEmpty));
    assert_eq!(board.command(Command::EnableQueue(8)), Some(CommandError::NoSuchQueue));
    assert_eq!(board.command(Command::EnableDevice), Some(CommandError::DeviceNotDisabled));
    let beyond = QueueSet { block: 1, bits: 1 };
    assert_eq!(board.command(Command::DisableQueues(beyond)), Some(CommandError::NoSuchQueue));
}

#[test]
fn commands_are_one_at_a_time_and_known() {
    let mut board = Board::dedicated();
    for (cmd, error) in [
        (Cmd::new().with_code(0), CommandError::UnknownCommand),
        (Cmd::new().with_code(13), CommandError::UnknownCommand),
        (Cmd::new().with_code(31), CommandError::UnknownCommand),
        (Cmd::new().with_code(3).with_operand(1), CommandError::ReservedField),
        (Cmd::new().with_code(3).with_reserved(1), CommandError::ReservedField),
    ] {
        board.dsa.write32(offset::CMD, cmd.into_bits());
        assert_eq!(board.ended(), Some(error));
    }
    board.dsa.write32(offset::GENCTRL, 1);
    board.dsa.write32(offset::CMD, Command::DrainAll.encode(true).into_bits());
    board.dsa.write32(offset::CMD, Command::ResetDevice.encode(true).into_bits());
    assert!(Cmdsts::from_bits(board.dsa.read32(offset::CMDSTS)).active());
    assert_eq!(board.ended(), None);
    assert_eq!(gensts(&mut board).state(), DeviceState::Enabled, "the second one was discarded");
    assert_eq!(board.dsa.read32(offset::INTCAUSE), 0b11);
    assert_eq!(board.dsa.take_messages(), 1);
    board.dsa.write32(offset::INTCAUSE, 0b10);
    assert_eq!(board.dsa.read32(offset::INTCAUSE), 0b01, "a one clears its bit");
    assert_eq!(board.take_error().status.code(), 0x52);
}

#[test]
fn a_change_of_pci_configuration_halts() {
    let mut board = Board::dedicated();
    board.dsa.write32(offset::GENCTRL, 0b11);
    board.dsa.set_pci(Pci { bus_master: false, page_requests: true, ..Pci::default() });
    assert_eq!(gensts(&mut board).state(), DeviceState::Halted);
    assert_eq!((board.dsa.read32(offset::INTCAUSE), board.dsa.take_messages()), (0b1_0001, 1));
    assert_eq!(board.take_error().status.code(), 0x51);
    assert_eq!(board.command(Command::DrainAll), Some(CommandError::HaltedDevice));
    assert_eq!(board.command(Command::ResetDevice), None);
    assert_eq!(gensts(&mut board).state(), DeviceState::Disabled);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::SIZE)), 0, "and the configuration is gone");
    let mut disabled = Board::with(Config::default());
    disabled.dsa.set_pci(Pci { bus_master: false, ..Pci::default() });
    assert_eq!(gensts(&mut disabled).state(), DeviceState::Disabled, "then it is harmless");
}

#[test]
fn a_reset_has_the_initial_values_of_the_specification() {
    let mut board = Board::dedicated();
    board.dsa.write32(TABLES.permission(1), 0xFFFF_FFFF);
    assert_eq!(board.dsa.read32(TABLES.permission(1)), 0xFFFF_F00C);
    assert_eq!(board.command(Command::ResetDevice), None);
    assert_eq!(board.dsa.read32(offset::GENCFG), 96);
    assert_eq!(board.dsa.read64(TABLES.group_flags(3)), 96 << 20);
    assert_eq!(board.dsa.read64(TABLES.group_queues(0, 0)), 0);
    assert_eq!(board.dsa.read32(TABLES.permission(1)), 0);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::OPERATIONS)), 0x0003_027F);
    assert_eq!(board.dsa.read32(TABLES.queue(0, word::OPERATIONS + 1)), 1);
}
