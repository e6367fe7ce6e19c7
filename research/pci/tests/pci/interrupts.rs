//! Interrupts: eventfds for INTx, MSI and MSI-X.

use memferry_pci::ioat::{Interrupting, IoatOptions};
use memferry_pci::message::command;
use memferry_registers::ioat::TransferState;

use super::support::{
    BAR0, BOOL, COMPLETING, CONFIG, EVENTFD, Guest, MASK, NO_DATA, Rig, TRIGGER, UNMASK, copy, irqs_payload,
    signals,
};

/// Runs one interrupting copy on a channel.
fn copy_once(rig: &mut Rig, guest: &mut Guest, channel: usize) {
    let count = guest.chain(channel, 64, COMPLETING, copy(0, 0x2000 + 64 * channel as u64));
    rig.count(channel, count);
    rig.run();
    assert_eq!(rig.state(channel), TransferState::Idle);
}

/// A rig of this kind whose channels are armed.
fn armed(signalling: Interrupting) -> (Rig, Guest) {
    let mut rig = Rig::with(IoatOptions { signalling, ..IoatOptions::default() });
    let guest = Guest::new(&mut rig);
    (0..4).for_each(|channel| rig.arm(channel, &guest));
    (rig, guest)
}

/// The accesses of Linux's handler: INTRCTRL, ATTNSTATUS, INTRCTRL.
fn handle(rig: &mut Rig) -> u32 {
    let control = rig.read(BAR0, 3, 1);
    let attention = rig.get32(4);
    rig.write(BAR0, 3, &control);
    attention
}

#[test]
fn a_message_for_each_rise_of_the_line() {
    let (mut rig, mut guest) = armed(Interrupting::Msi);
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 1);
    copy_once(&mut rig, &mut guest, 1);
    assert_eq!(signals(&eventfd), 0, "the line is high already");
    assert_eq!(handle(&mut rig), 0b11);
    rig.rearm(0);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 1);
    assert_eq!(rig.device.interrupts_sent(), 2);
}

#[test]
fn an_interrupt_before_rearming_is_held() {
    let (mut rig, mut guest) = armed(Interrupting::Msi);
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    copy_once(&mut rig, &mut guest, 0);
    handle(&mut rig);
    assert_eq!(signals(&eventfd), 1);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 0, "not armed");
    rig.rearm(0);
    assert_eq!(signals(&eventfd), 1, "it waited for the channel to be armed");
    handle(&mut rig);
    rig.rearm(0);
    assert_eq!(signals(&eventfd), 0, "once");
}

#[test]
fn messages_need_a_bus_master() {
    let (mut rig, mut guest) = armed(Interrupting::Msi);
    let eventfd = rig.eventfd(1, 0);
    copy_once(&mut rig, &mut guest, 0);
    rig.write(CONFIG, 4, &[2, 0]);
    rig.enable_interrupts(false);
    assert_eq!(signals(&eventfd), 0);
    rig.enable();
    assert_eq!(signals(&eventfd), 1);
}

#[test]
fn a_rise_without_a_bus_master_is_sent_later() {
    let (mut rig, mut guest) = armed(Interrupting::Msi);
    let eventfd = rig.eventfd(1, 0);
    rig.enable_interrupts(false);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 1);
    copy_once(&mut rig, &mut guest, 0);
    rig.write(CONFIG, 4, &[2, 0]);
    handle(&mut rig);
    assert_eq!(rig.config16(6) & 8, 0, "the line is low");
    // The second copy's interrupt waited for this.
    rig.rearm(0);
    assert_eq!((signals(&eventfd), rig.config16(6) & 8), (0, 8), "high, and nothing may be sent");
    rig.enable();
    assert_eq!(signals(&eventfd), 1);
    rig.write(CONFIG, 4, &[2, 0]);
    rig.enable();
    assert_eq!(signals(&eventfd), 0, "the line has stayed high");
}

#[test]
fn each_channel_has_its_vector() {
    let (mut rig, mut guest) = armed(Interrupting::MsiX);
    let eventfds: Vec<_> = (0..4).map(|at| rig.eventfd(2, at)).collect();
    rig.enable_interrupts(true);
    for channel in [2, 0, 3] {
        copy_once(&mut rig, &mut guest, channel);
    }
    assert_eq!(eventfds.iter().map(signals).collect::<Vec<_>>(), [1, 0, 1, 1]);
    rig.rearm(2);
    copy_once(&mut rig, &mut guest, 2);
    assert_eq!(signals(&eventfds[2]), 1);
    // A vector without an eventfd loses its messages, the others do not.
    rig.good(command::SET_IRQS, &irqs_payload(EVENTFD | TRIGGER, 2, 2, 1), vec![]);
    rig.rearm(2);
    rig.rearm(0);
    copy_once(&mut rig, &mut guest, 2);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(eventfds.iter().map(signals).collect::<Vec<_>>(), [1, 0, 0, 0]);
}

#[test]
fn the_vector_table_is_memory() {
    let mut rig = Rig::with(IoatOptions { signalling: Interrupting::MsiX, ..IoatOptions::default() });
    rig.write(BAR0, 0x1010, &[1, 2, 3, 4]);
    assert_eq!(rig.read(BAR0, 0x1010, 4), [1, 2, 3, 4]);
    rig.write(BAR0, 0x1800, &[0xFF; 8]);
    assert_eq!(rig.read(BAR0, 0x1800, 8), [0; 8], "pending bits are the device's");
    rig.write(BAR0, 0x103C, &[9; 8]);
    assert_eq!(rig.read(BAR0, 0x103C, 8), [9, 9, 9, 9, 0, 0, 0, 0], "an access across the table's end");
    rig.good(command::RESET, &[], vec![]);
    assert_eq!(rig.read(BAR0, 0x1010, 4), [0; 4]);
}

#[test]
fn intx_masks_itself_until_the_client_unmasks_it() {
    let (mut rig, mut guest) = armed(Interrupting::Intx);
    let eventfd = rig.eventfd(0, 0);
    rig.enable_interrupts(false);
    let set = |rig: &mut Rig, flags| {
        rig.good(command::SET_IRQS, &irqs_payload(flags, 0, 0, 1), vec![]);
    };
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 1);
    assert_eq!(rig.config16(6) & 8, 8, "the status register shows the level");
    set(&mut rig, NO_DATA | UNMASK);
    assert_eq!(signals(&eventfd), 1, "the line is still high");
    handle(&mut rig);
    set(&mut rig, NO_DATA | UNMASK);
    assert_eq!((signals(&eventfd), rig.config16(6) & 8), (0, 0));
    rig.rearm(0);
    set(&mut rig, NO_DATA | MASK);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), 0, "masked");
    rig.write(CONFIG, 4, &0x0406_u16.to_le_bytes());
    set(&mut rig, NO_DATA | UNMASK);
    assert_eq!(signals(&eventfd), 0, "INTx is disabled");
    rig.enable();
    assert_eq!(signals(&eventfd), 1);
}

#[test]
fn a_client_may_trigger_an_interrupt_itself() {
    let mut rig = Rig::new();
    let eventfd = rig.eventfd(1, 0);
    rig.good(command::SET_IRQS, &irqs_payload(NO_DATA | TRIGGER, 1, 0, 1), vec![]);
    assert_eq!(signals(&eventfd), 1);
    for value in [0, 1] {
        let payload = [irqs_payload(BOOL | TRIGGER, 1, 0, 1), vec![value]].concat();
        rig.good(command::SET_IRQS, &payload, vec![]);
        assert_eq!(signals(&eventfd), u64::from(value));
    }
    rig.good(command::SET_IRQS, &irqs_payload(NO_DATA | TRIGGER, 1, 0, 0), vec![]);
    rig.good(command::SET_IRQS, &irqs_payload(NO_DATA | TRIGGER, 1, 0, 1), vec![]);
    assert_eq!(signals(&eventfd), 0, "all are disabled");
}

#[test]
fn a_full_eventfd_does_not_stop_the_device() {
    let (mut rig, mut guest) = armed(Interrupting::Msi);
    let eventfd = rig.eventfd(1, 0);
    rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    rig.enable_interrupts(false);
    copy_once(&mut rig, &mut guest, 0);
    assert_eq!(signals(&eventfd), u64::MAX - 1);
}
