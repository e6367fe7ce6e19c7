//! The effects of each fault of a schedule on a guest.

use std::time::Duration;

use memferry_pci::ioat::IoatOptions;
use memferry_pci::schedule;
use memferry_registers::ioat::{Chancmd, Chanerr, TransferState};

use super::support::{BASE, COMPLETING, Guest, Rig, copy, signals};

/// A device with this schedule, and a chain of four copies of 512 bytes on channel 0, which is not started yet.
fn rig(text: &str) -> (Rig, Guest, u16) {
    let faults = schedule::parse(text, 4).unwrap();
    let mut rig = Rig::with(IoatOptions { faults, ..IoatOptions::default() });
    let mut guest = Guest::new(&mut rig);
    rig.arm(0, &guest);
    for part in 0..4 {
        guest.chain(0, 512, COMPLETING, copy(0x200 * part, 0x8000 + 0x200 * part));
    }
    (rig, guest, 4)
}

/// How many of the four copies have reached memory, which is always the first ones.
fn copied(guest: &Guest) -> usize {
    let done: Vec<bool> = (0..4)
        .map(|part| {
            let expected: Vec<u8> = (0x200 * part..0x200 * (part + 1)).map(Guest::pattern).collect();
            guest.read(BASE + 0x8000 + 0x200 * part, 512) == expected
        })
        .collect();
    assert!(done.is_sorted_by(|a, b| a >= b), "{done:?}");
    done.iter().filter(|done| **done).count()
}

#[test]
fn an_error_halts_at_its_descriptor() {
    let (mut rig, guest, count) = rig("channel 0 descriptor 3 halt write-data");
    rig.count(0, count);
    rig.run();
    assert_eq!(copied(&guest), 2);
    assert_eq!((rig.state(0), rig.errors(0)), (TransferState::Halted, Chanerr::new().with_write_data(true)));
    let completed = guest.completed(0);
    assert_eq!((completed.state(), completed.completed()), (TransferState::Halted, guest.slot(0, 1)));
    // The driver starts again behind it; numbers go on.
    let errors = rig.get32(0xA8);
    rig.set32(0xA8, errors);
    rig.arm(0, &guest);
    rig.count(0, count);
    rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (4, TransferState::Idle));
}

#[test]
fn a_lost_completion_is_made_up_by_the_next() {
    let (mut rig, guest, _) = rig("channel 0 descriptor 2 lose completion");
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    rig.count(0, 2);
    rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (2, TransferState::Idle));
    assert_eq!(guest.completed(0).completed(), guest.slot(0, 0), "the last one is missing");
    assert_eq!(signals(&eventfd), 1, "the interrupt comes");
    rig.count(0, 3);
    rig.run();
    assert_eq!(guest.completed(0).completed(), guest.slot(0, 2));
}

#[test]
fn a_lost_interrupt_leaves_the_completion() {
    let (mut rig, guest, _) = rig("channel 0 descriptor 1 lose interrupt");
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    rig.count(0, 1);
    rig.run();
    assert_eq!((guest.completed(0).completed(), signals(&eventfd)), (guest.slot(0, 0), 0));
    rig.count(0, 2);
    rig.run();
    assert_eq!(signals(&eventfd), 1);
}

#[test]
fn a_slow_engine_waits_before_each_descriptor() {
    let (mut usual, _, count) = rig("");
    usual.count(0, count);
    let quick = usual.run();
    let (mut rig, guest, count) = rig("channel any descriptor 1..3 slow 2ms");
    rig.count(0, count);
    rig.run_for(Duration::from_micros(3900));
    assert_eq!(copied(&guest), 1);
    let end = rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (4, TransferState::Idle));
    assert!((6_000_000..6_000_000 + 4 * quick).contains(&end), "{end} ns, {quick} ns without faults");
}

#[test]
fn a_stuck_channel_continues_after_its_time() {
    let (mut rig, guest, count) = rig("channel 0 descriptor 2 stick for 5ms");
    rig.count(0, count);
    rig.run_for(Duration::from_micros(4900));
    assert_eq!((copied(&guest), rig.state(0)), (1, TransferState::Active));
    rig.command(0, Chancmd::new().with_suspend(true));
    rig.run_for(Duration::from_micros(50));
    assert_eq!(rig.state(0), TransferState::Active, "it ignores commands");
    rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (4, TransferState::Idle));
}

#[test]
fn a_stuck_channel_continues_after_a_reset() {
    let (mut rig, guest, count) = rig("channel 0 descriptor 2 stick until reset");
    rig.count(0, count);
    rig.run();
    rig.run_for(Duration::from_secs(10));
    assert_eq!((copied(&guest), rig.state(0)), (1, TransferState::Active));
    rig.command(0, Chancmd::new().with_reset(true));
    rig.run();
    assert_eq!(rig.state(0), TransferState::Halted);
    rig.arm(0, &guest);
    rig.count(0, count);
    rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (4, TransferState::Idle));
}

#[test]
fn a_channel_stuck_for_ever_does_not_reset() {
    let (mut rig, guest, count) = rig("channel 0 descriptor 2 stick forever");
    rig.count(0, count);
    rig.run();
    rig.command(0, Chancmd::new().with_reset(true));
    rig.run_for(Duration::from_secs(10));
    assert_eq!(rig.read(super::support::BAR0, 0x84, 1), [0x20], "the reset does not end");
    assert_eq!(copied(&guest), 1);
    // A reset of the whole device ends it, and the schedule begins again.
    rig.good_reset();
    rig.arm(0, &guest);
    rig.count(0, 1);
    rig.run();
    assert_eq!(rig.state(0), TransferState::Idle);
}

#[test]
fn a_channels_fault_is_no_others() {
    let (mut rig, mut guest, count) = rig("channel 1 descriptor 2.. every 2 halt read-data");
    rig.arm(1, &guest);
    for part in 0..4 {
        guest.chain(1, 64, COMPLETING, copy(0, 0x4000 + 64 * part));
    }
    rig.count(0, count);
    rig.count(1, count);
    rig.run();
    assert_eq!((copied(&guest), rig.state(0)), (4, TransferState::Idle));
    assert_eq!((rig.state(1), guest.completed(1).completed()), (TransferState::Halted, guest.slot(1, 0)));
}

#[test]
fn null_descriptors_have_faults_too() {
    use memferry_registers::ioat::descriptor::Body;
    for (text, at) in [("slow 1ms", 1_000_000), ("stick for 1ms", 1_000_000)] {
        let faults = schedule::parse(&format!("channel 0 descriptor 1 {text}"), 4).unwrap();
        let mut rig = Rig::with(IoatOptions { faults, ..IoatOptions::default() });
        let mut guest = Guest::new(&mut rig);
        rig.arm(0, &guest);
        let count = guest.chain(0, 0, COMPLETING, Body::Null);
        rig.count(0, count);
        rig.run_for(Duration::from_micros(900));
        assert_eq!(rig.state(0), TransferState::Active, "{text}");
        assert!(rig.run() >= at);
        assert_eq!(
            (rig.state(0), guest.completed(0).completed()),
            (TransferState::Idle, guest.slot(0, 0)),
            "{text}"
        );
    }
}

impl Rig {
    fn good_reset(&mut self) {
        self.good(memferry_pci::message::command::RESET, &[], vec![]);
        self.enable();
    }
}
