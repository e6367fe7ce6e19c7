//! Runs the interrupt handler with scripted registers.

extern crate std;

use std::collections::VecDeque;
use std::vec::Vec;

use memferry_registers::sdma::Cicr;

use super::super::cause::Interrupts;
use super::super::device::tests::{Tested, at, copy, ready};
use super::*;

/// Makes channels pending on a line, with their status.
fn set_pending(sdma: &mut Tested, line: Line, events: &[(u8, Csr)]) {
    for (channel, status) in events {
        *sdma.io.values.entry(offset::irq_status(line.index())).or_insert(0) |= 1 << channel;
        sdma.io.values.insert(at(*channel, Register::Csr), status.into_bits());
    }
}

fn handle(sdma: &mut Tested, line: Line) -> (Vec<(u8, Vec<Cause>)>, Handled) {
    let mut events = Vec::new();
    let handled = sdma.handle_interrupt(line, |event| events.push((event.channel, event.causes().collect())));
    (events, handled)
}

#[test]
fn reports_and_clears_every_pending_channel() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[1] = u32::MAX;
    let block = Csr::new().with_block(true);
    set_pending(
        &mut sdma,
        Line::L1,
        &[(0, block), (7, block.with_frame(true)), (31, Csr::new().with_drop(true))],
    );
    let (events, handled) = handle(&mut sdma, Line::L1);
    let expected = [
        (0, std::vec![Cause::EndOfBlock]),
        (7, std::vec![Cause::EndOfFrame, Cause::EndOfBlock]),
        (31, std::vec![Cause::Drop]),
    ];
    assert_eq!(events, expected);
    assert_eq!(handled, Handled { events: 3, spurious: 0 });
    assert_eq!(sdma.io.values[&offset::irq_status(1)], 0);
    assert_eq!(sdma.io.values[&at(7, Register::Csr)], 0);
    assert_eq!(handle(&mut sdma, Line::L1).0, []);
}

#[test]
fn clears_exactly_the_bits_it_read() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1 << 3;
    let status = Csr::new().with_block(true).with_half_frame(true);
    set_pending(&mut sdma, Line::L0, &[(3, status)]);
    handle(&mut sdma, Line::L0);
    let expected = [(at(3, Register::Csr), status.into_bits()), (offset::irq_status(0), 1 << 3)];
    assert_eq!(sdma.io.writes, expected);
}

#[test]
fn reports_an_event_during_the_clearing() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    set_pending(&mut sdma, Line::L0, &[(0, Csr::new())]);
    let reads = [Csr::new().with_frame(true), Csr::new().with_block(true)].map(Csr::into_bits);
    sdma.io.script.insert(at(0, Register::Csr), VecDeque::from(reads));
    let (events, handled) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [(0, std::vec![Cause::EndOfFrame]), (0, std::vec![Cause::EndOfBlock])]);
    assert_eq!(handled.events, 2);
}

#[test]
fn bounds_the_events_of_a_channel() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    set_pending(&mut sdma, Line::L0, &[(0, Csr::new())]);
    let stuck = Csr::new().with_drop(true).into_bits();
    sdma.io.script.insert(at(0, Register::Csr), std::iter::repeat_n(stuck, 100).collect());
    assert_eq!(handle(&mut sdma, Line::L0).1.events, ROUNDS);
}

#[test]
fn ignores_channels_of_other_lines() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1 << 2;
    set_pending(&mut sdma, Line::L0, &[(1, Csr::new().with_block(true)), (2, Csr::new().with_block(true))]);
    let (events, _) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [(2, std::vec![Cause::EndOfBlock])]);
    assert_eq!(sdma.io.values[&offset::irq_status(0)], 1 << 1);
}

#[test]
fn counts_a_line_without_event_as_spurious() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    set_pending(&mut sdma, Line::L0, &[(0, Csr::new().with_sync(true))]);
    let (events, handled) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [], "the synchronized bit is a state, not an event");
    assert_eq!(handled, Handled { events: 0, spurious: 1 });
}

#[test]
fn polling_finds_an_event_without_interrupt() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(4).unwrap();
    sdma.configure(&channel, &copy(), None).unwrap();
    assert_eq!(sdma.poll(&channel), None);
    sdma.io.values.insert(at(4, Register::Csr), Csr::new().with_block(true).into_bits());
    let event = sdma.poll(&channel).unwrap();
    assert!(event.is_end() && event.error().is_none());
    assert_eq!(sdma.poll(&channel), None);
}

#[test]
fn clears_old_interrupts_when_enabling_a_line() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(4).unwrap();
    sdma.lines[2] = 1;
    sdma.set_line(&channel, Line::L2, true);
    assert_eq!(sdma.io.writes, [(offset::irq_status(2), 1 << 4), (offset::irq_enable(2), 1 << 4 | 1)]);
    sdma.set_line(&channel, Line::L2, false);
    assert_eq!(sdma.io.values[&offset::irq_enable(2)], 1);
}

#[test]
fn causes_have_the_same_bit_in_cicr_and_csr() {
    for cause in Cause::ALL {
        let bits = Interrupts::NONE.with(cause).cicr().into_bits();
        let causes: Vec<Cause> = Event { channel: 0, status: Csr::from_bits(bits) }.causes().collect();
        assert_eq!(causes, [cause]);
    }
    let all = Cause::ALL.into_iter().fold(Interrupts::NONE, Interrupts::with);
    assert_eq!(all.cicr(), Cicr::ALL);
    assert!(!all.without(Cause::Drop).contains(Cause::Drop));
}

#[test]
fn distinguishes_errors_from_progress() {
    let errors = Cause::ALL.into_iter().filter(|cause| cause.is_error()).count();
    assert_eq!(errors, 4);
    let status = Csr::new().with_half_frame(true).with_transaction_error(true);
    assert_eq!(Event { channel: 0, status }.error(), Some(Cause::TransactionError));
}
