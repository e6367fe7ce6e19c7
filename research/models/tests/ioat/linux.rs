//! What Linux's driver needs of the device: checks of an XOR, 64 address bits, DCACTRL, held interrupts, and planned faults.

use core::time::Duration;

use super::support::{BASE, Board, COMPLETING, copy, pattern, xor};
use memferry_clock::Instant;
use memferry_models::ioat::{Config, Ioat, Planned, PlannedFault, Reason, Unarmed, Until};
use memferry_models::{Bus, Ram};
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor, Sources};
use memferry_registers::ioat::offset::channel as offset;
use memferry_registers::ioat::{Chanerr, General, Intrctrl, Register, TransferState};
use memferry_registers::{NarrowIo, RegisterIo};

fn check(from: &[u64], expected: u64) -> Body {
    let sources: Vec<u64> = from.iter().map(|from| BASE + from).collect();
    Body::XorCheck { sources: Sources::new(&sources).expect("2 to 8"), expected: BASE + expected }
}

#[test]
fn a_check_compares_every_source() {
    let from = [0x10, 0x1111, 0x2222, 0x3300, 0x4444, 0x5555, 0x6666, 0x7700];
    for count in 2..=8 {
        let mut board = Board::armed();
        board.chain(0, 3000, COMPLETING.with_fence(true), xor(&from[..count], 0x1_0001));
        board.chain(0, 3000, COMPLETING, check(&from[..count], 0x1_0001));
        board.count(0);
        board.run();
        assert_eq!((board.state(0), board.errors(0)), (TransferState::Idle, Chanerr::new()), "{count}");
        for spoilt in from[..count].iter().chain(&[0x1_0001]) {
            let at = (BASE + spoilt + 2999) as usize - BASE as usize;
            board.ioat.bus_mut().bytes_mut()[at] ^= 1;
            let memory = board.ioat.bus().bytes().to_vec();
            board.arm(0);
            board.chain(0, 3000, Control::new(), check(&from[..count], 0x1_0001));
            board.count(0);
            board.run();
            assert_eq!(board.errors(0), Chanerr::new().with_xor_p_or_crc(true), "{count}, {spoilt:#x}");
            assert_eq!(board.ioat.bus().bytes()[..0x2_0000], memory[..0x2_0000]);
            board.ioat.write(offset(0, Register::Chanerr), u32::MAX >> 13);
            board.ioat.bus_mut().bytes_mut()[at] ^= 1;
        }
    }
}

#[test]
fn a_masked_failure_of_a_check_goes_on() {
    let mut board = Board::armed();
    board.ioat.write(offset(0, Register::ChanerrMask), Chanerr::new().with_xor_p_or_crc(true).into_bits());
    board.chain(0, 100, COMPLETING, check(&[0, 0x1000], 0x2000));
    board.chain(0, 100, COMPLETING, copy(0, 0x4000));
    board.count(0);
    board.run();
    assert!(board.state(0) == TransferState::Idle && board.status(0).soft_error());
    assert_eq!(board.memory(BASE + 0x4000, 100), &pattern()[..100]);
}

#[test]
fn a_check_needs_the_capability() {
    let capability = Config::default().capability.with_xor(false);
    let mut board = Board::with(Config { capability, ..Config::default() });
    board.arm(0);
    board.chain(0, 100, COMPLETING, check(&[0, 0x1000], 0x2000));
    board.count(0);
    board.run();
    assert_eq!(board.errors(0), Chanerr::new().with_control(true));
}

#[test]
fn addresses_have_64_bits() {
    let base = 0xFFF_0000_0000_u64;
    let mut ioat = Ioat::new(Config::default(), Ram::new(base, (0..=255).cycle().take(0x4000).collect()));
    let body = Body::Copy { source: base + 3, destination: base + 0x2000 };
    let descriptor = Descriptor { size: 1000, control: COMPLETING, next: 0, body };
    let bytes: Vec<u8> = descriptor.encode().iter().flat_map(|word| word.to_le_bytes()).collect();
    ioat.bus_mut().write(base + 0x1000, &bytes).unwrap();
    for (register, value) in [(Register::Chancmp, base + 0x3000), (Register::Chainaddr, base + 0x1000)] {
        ioat.write(offset(0, register), value as u32);
        ioat.write(offset(0, register) + 4, (value >> 32) as u32);
    }
    ioat.write16(offset(0, Register::Dmacount), 1);
    ioat.step(Instant::from_nanoseconds(100_000));
    let memory = ioat.bus().bytes();
    assert_eq!(memory[0x2000..0x2000 + 1000], memory[3..1003]);
    let completed = u64::from_le_bytes(memory[0x3000..0x3008].try_into().unwrap());
    assert_eq!(completed, base + 0x1000 + 1, "idle");
}

#[test]
fn missing_channels_have_no_registers() {
    let mut board = Board::with(Config { channels: 2, ..Config::default() });
    assert_eq!(board.ioat.read8(General::Chancnt.offset()), 2);
    board.arm(1);
    assert_eq!(board.reasons(), []);
    board.ioat.write16(offset(2, Register::Dmacount), 1);
    assert_eq!(board.ioat.read(offset(3, Register::Chanerr)), 0);
    assert_eq!(board.reasons(), [Reason::NoSuchRegister; 2]);
}

#[test]
fn dcactrl_keeps_what_is_written() {
    let mut board = Board::new();
    let at = offset(3, Register::Dcactrl);
    board.ioat.write(at, 0xFFFF_FFFF);
    assert_eq!((board.ioat.read(at), board.reasons()), (0xFFFF_FFFF, vec![]));
    board.command(3, memferry_registers::ioat::Chancmd::new().with_reset(true));
    board.run();
    assert_eq!(board.ioat.read(at), 0);
}

#[test]
fn an_unarmed_interrupt_is_held_or_lost() {
    for (unarmed, expected) in [(Unarmed::Held, true), (Unarmed::Lost, false)] {
        let mut board = Board::with(Config { unarmed, ..Config::default() });
        board.arm(0);
        let enabled = Intrctrl::new().with_master_enable(true).into_bits();
        board.ioat.write8(General::Intrctrl.offset(), enabled);
        for _ in 0..2 {
            board.chain(0, 64, COMPLETING.with_interrupt(true), copy(0, 0x2000));
            board.count(0);
            board.run();
        }
        assert!(board.ioat.line(0));
        board.ioat.read(General::Attnstatus.offset());
        assert!(!board.ioat.line(0), "the second one waits or is lost");
        board.ioat.write16(offset(0, Register::Chanctrl), 1);
        assert_eq!(board.ioat.line(0), expected);
        board.ioat.read(General::Attnstatus.offset());
        board.ioat.write16(offset(0, Register::Chanctrl), 1);
        assert!(!board.ioat.line(0), "it is held once");
    }
}

#[test]
fn messages_wait_for_the_master_enable() {
    let mut board = Board::armed();
    let vectors = Intrctrl::new().with_msix_vector_control(true);
    board.ioat.write8(General::Intrctrl.offset(), vectors.into_bits());
    for channel in [1, 3] {
        board.chain(channel, 64, COMPLETING.with_interrupt(true), copy(0, 0x2000));
        board.count(channel);
    }
    board.run();
    assert_eq!(board.ioat.take_messages(), 0);
    board.ioat.write8(General::Intrctrl.offset(), vectors.with_master_enable(true).into_bits());
    assert_eq!((board.ioat.take_messages(), board.ioat.take_messages()), (0b1010, 0));
    assert!(!board.ioat.line(0));
}

/// A board whose channel 0 has ten copies of 64 bytes, and this fault at descriptor `first`.
fn planned(first: u64, fault: PlannedFault) -> Board {
    let mut board = Board::armed();
    board.ioat.faults().plan(Planned { channel: Some(0), first, last: first, step: 1, fault });
    for part in 0..10 {
        board.chain(0, 64, COMPLETING, copy(0x40 * part, 0x4000 + 0x40 * part));
    }
    board
}

fn copied(board: &Board) -> usize {
    let part =
        |part: usize| board.memory(BASE + 0x4000 + 0x40 * part as u64, 64) == &pattern()[0x40 * part..][..64];
    (0..10).filter(|at| part(*at)).count()
}

#[test]
fn a_planned_fault_waits_for_the_descriptors_before() {
    for first in 1..=10 {
        let mut board = planned(first, PlannedFault::Halt(Chanerr::new().with_length(true)));
        board.count(0);
        board.run();
        assert_eq!(copied(&board) as u64, first - 1);
        assert_eq!(board.errors(0), Chanerr::new().with_length(true));
        let mut board = planned(first, PlannedFault::Stick(Until::Never));
        board.count(0);
        board.run();
        assert_eq!((copied(&board) as u64, board.state(0)), (first - 1, TransferState::Active));
    }
}

#[test]
fn a_suspend_does_not_count_twice() {
    // Suspended and resumed at any time, the fifth descriptor is still the fifth.
    for nanoseconds in (100..4000).step_by(37) {
        let mut board = planned(5, PlannedFault::Halt(Chanerr::new().with_length(true)));
        board.count(0);
        board.run_until(nanoseconds);
        board.suspend(0);
        board.run();
        if board.state(0) == TransferState::Suspended {
            board.resume(0);
            board.run();
        }
        assert_eq!((copied(&board), board.state(0)), (4, TransferState::Halted), "{nanoseconds}");
        board.ioat.take_complaints();
    }
}

#[test]
fn a_slow_descriptor_may_be_suspended() {
    let mut board = planned(2, PlannedFault::Slow(Duration::from_millis(1)));
    board.count(0);
    board.run_until(100_000);
    board.suspend(0);
    board.run_until(200_000);
    assert_eq!((copied(&board), board.state(0)), (1, TransferState::Suspended));
    board.resume(0);
    board.run();
    assert_eq!((copied(&board), board.state(0)), (10, TransferState::Idle));
}
