//! Transfers by descriptors in a guest's memory, each page of it a window of its own, and resets in the middle.

use std::time::Duration;

use memferry_pci::message::command;
use memferry_registers::ioat::descriptor::{Body, Control};
use memferry_registers::ioat::{Chancmd, Chanerr, TransferState};

use super::support::{BASE, COMPLETING, CONFIG, Guest, PAGE, Rig, copy, signals, sources};

fn before(from: u64, length: u64) -> Vec<u8> {
    (from..from + length).map(Guest::pattern).collect()
}

/// Runs one descriptor on channel 0.
fn run_one(rig: &mut Rig, guest: &mut Guest, size: u32, body: Body) {
    rig.arm(0, guest);
    guest.restart(0);
    let count = guest.chain(0, size, COMPLETING, body);
    rig.count(0, count);
    rig.run();
}

#[test]
fn copies_cross_windows() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    run_one(&mut rig, &mut guest, 20_000, copy(0x7FD, 0x10_FF3));
    assert!(guest.read(BASE + 0x10_FF3, 20_000) == before(0x7FD, 20_000));
    assert_eq!(guest.read(BASE + 0x10_FF2, 1), before(0x10_FF2, 1), "no byte before");
    assert_eq!(guest.read(BASE + 0x10_FF3 + 20_000, 1), before(0x10_FF3 + 20_000, 1), "no byte behind");
    let status = rig.status(0);
    assert_eq!((status.state(), status.completed()), (TransferState::Idle, guest.slot(0, 0)));
    assert_eq!(guest.completed(0), status);
    assert_eq!(signals(&eventfd), 1);
    let traffic = rig.device.memory().traffic();
    assert_eq!((traffic.bytes_read, traffic.bytes_written, traffic.refused), (20_064, 20_008, 0));
}

#[test]
fn a_descriptor_may_lie_in_two_windows() {
    // Descriptors are aligned, so only a window that ends within one cuts it.
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let at = guest.slot(0, 0);
    let count = guest.chain(0, 100, COMPLETING, copy(5, 0x2000));
    let mut whole = vec![0; PAGE as usize];
    whole[..64].copy_from_slice(&guest.read(at, 64));
    rig.unmap(at, PAGE);
    for (piece, offset) in [(24, 0), (40, 24), (PAGE - 64, 64)] {
        let file = super::support::memfd(PAGE);
        rustix::io::pwrite(&file, &whole[offset as usize..][..piece as usize], 8).unwrap();
        rig.map(&file, 8, at + offset, piece);
    }
    rig.arm(0, &guest);
    rig.count(0, count);
    rig.run();
    assert_eq!(guest.read(BASE + 0x2000, 100), before(5, 100));
}

#[test]
fn fills_repeat_their_pattern() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let body = Body::Fill { pattern: 0x0807_0605_0403_0201, destination: BASE + 0xFF9 };
    run_one(&mut rig, &mut guest, 9000, body);
    let expected: Vec<u8> = (0..9000).map(|at| (at % 8 + 1) as u8).collect();
    assert!(guest.read(BASE + 0xFF9, 9000) == expected);
}

#[test]
fn xor_of_eight_sources() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let from = [0x10, 0x1011, 0x2FF0, 0x3001, 0x4002, 0x5003, 0x6004, 0x7005];
    run_one(&mut rig, &mut guest, 5000, Body::Xor { sources: sources(&from), destination: BASE + 0x1_0123 });
    let expected: Vec<u8> =
        (0..5000).map(|at| from.iter().fold(0, |byte, from| byte ^ Guest::pattern(from + at))).collect();
    assert!(guest.read(BASE + 0x1_0123, 5000) == expected);
    assert_eq!(rig.state(0), TransferState::Idle);
}

#[test]
fn a_check_of_an_xor_compares() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    for from in [&[0x10, 0x1011][..], &[0x10, 0x1011, 0x2FF0, 0x3001, 0x4002, 0x5003]] {
        let xor = Body::Xor { sources: sources(from), destination: BASE + 0x1_0123 };
        run_one(&mut rig, &mut guest, 5000, xor);
        let check = Body::XorCheck { sources: sources(from), expected: BASE + 0x1_0123 };
        run_one(&mut rig, &mut guest, 5000, check);
        assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Idle, Chanerr::new()));
        let place = BASE + 0x1_0123 + 4999;
        let changed = guest.read(place, 1)[0] ^ 0x40;
        guest.write(place, &[changed]);
        let memory = guest.read(BASE, 0x2_0000);
        run_one(&mut rig, &mut guest, 5000, check);
        let expected = Chanerr::new().with_xor_p_or_crc(true);
        assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Halted, expected));
        assert_eq!(guest.completed(0).state(), TransferState::Halted);
        assert!(guest.read(BASE, 0x2_0000) == memory, "a check writes nothing");
        let errors = rig.get32(0xA8);
        rig.set32(0xA8, errors);
    }
}

#[test]
fn a_chain_runs_on_each_channel() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    for channel in 0..4 {
        rig.arm(channel, &guest);
        for part in 0..6 {
            let at = 0x8000 * channel as u64 + 0x800 * part;
            guest.chain(channel, 0x800, COMPLETING, copy(at, at + 0x4000));
        }
        let count = guest.chain(channel, 0, COMPLETING, Body::Null);
        rig.count(channel, count);
    }
    rig.run();
    for channel in 0..4 {
        assert_eq!(rig.state(channel), TransferState::Idle);
        let at = 0x8000 * channel as u64;
        assert!(guest.read(BASE + at + 0x4000, 0x3000) == before(at, 0x3000), "channel {channel}");
        assert_eq!(guest.completed(channel).completed(), guest.slot(channel, 6));
    }
}

/// Resets in the middle of a long copy by `reset`, and runs one afterwards.
fn reset_in_the_middle(reset: impl Fn(&mut Rig)) {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    rig.arm(0, &guest);
    let count = guest.chain(0, 0x8000, COMPLETING, copy(0, 0x1_0000));
    rig.count(0, count);
    rig.run_for(Duration::from_micros(3));
    assert_eq!(rig.state(0), TransferState::Active);
    reset(&mut rig);
    let memory = guest.read(BASE, 0x4_0000);
    rig.run();
    assert!(guest.read(BASE, 0x4_0000) == memory, "nothing is written after the reset");
    assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Halted, Chanerr::new()));
    assert_eq!(rig.config16(4), 0, "no longer bus master");
    rig.enable();
    run_one(&mut rig, &mut guest, 0x8000, copy(0, 0x1_0000));
    assert!(guest.read(BASE + 0x1_0000, 0x8000) == before(0, 0x8000));
}

#[test]
fn a_device_reset_in_mid_transfer() {
    reset_in_the_middle(|rig| {
        rig.good(command::RESET, &[], vec![]);
    });
}

#[test]
fn a_function_level_reset_in_mid_transfer() {
    reset_in_the_middle(|rig| {
        rig.write(CONFIG, 0x68, &0x8000_u16.to_le_bytes());
        assert_eq!(rig.config16(0x68), 0, "the bit reads as zero");
    });
}

#[test]
fn a_channel_reset_in_mid_transfer() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    rig.arm(0, &guest);
    let count = guest.chain(0, 0x8000, Control::new(), copy(0, 0x1_0000));
    rig.count(0, count);
    rig.run_for(Duration::from_micros(3));
    rig.command(0, Chancmd::new().with_reset(true));
    rig.run();
    assert_eq!(rig.state(0), TransferState::Halted);
    run_one(&mut rig, &mut guest, 100, copy(7, 0x1_0000));
    assert_eq!(guest.read(BASE + 0x1_0000, 100), before(7, 100));
}

#[test]
fn a_gone_client_leaves_nothing() {
    let mut rig = Rig::new();
    let mut guest = Guest::new(&mut rig);
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    rig.arm(0, &guest);
    let count = guest.chain(0, 0x8000, COMPLETING, copy(0, 0x1_0000));
    rig.count(0, count);
    rig.run_for(Duration::from_micros(3));
    rig.device.disconnect();
    let memory = guest.read(BASE, 0x4_0000);
    while let Some(due) = rig.device.next_wake() {
        rig.device.advance(due);
    }
    assert!(guest.read(BASE, 0x4_0000) == memory);
    assert_eq!((signals(&eventfd), rig.device.memory().traffic().windows), (0, 0));
}
