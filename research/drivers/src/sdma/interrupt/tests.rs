//! The interrupt handler against scripted registers.

extern crate std;

use std::collections::VecDeque;
use std::vec::Vec;

use super::super::device::tests::{Tested, at, copy, ready};
use super::*;

fn pend(sdma: &mut Tested, line: Line, events: &[(u8, Csr)]) {
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
fn every_pending_channel_of_the_line_is_reported_and_cleared() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[1] = u32::MAX;
    let block = Csr::new().with_block(true);
    pend(&mut sdma, Line::L1, &[(0, block), (7, block.with_frame(true)), (31, Csr::new().with_drop(true))]);
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
fn status_is_cleared_by_writing_the_bits_that_were_read() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1 << 3;
    let status = Csr::new().with_block(true).with_half_frame(true);
    pend(&mut sdma, Line::L0, &[(3, status)]);
    handle(&mut sdma, Line::L0);
    let expected = [(at(3, Register::Csr), status.into_bits()), (offset::irq_status(0), 1 << 3)];
    assert_eq!(sdma.io.writes, expected);
}

#[test]
fn event_that_comes_while_the_line_is_cleared_is_not_lost() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    pend(&mut sdma, Line::L0, &[(0, Csr::new())]);
    let reads = [Csr::new().with_frame(true), Csr::new().with_block(true)].map(Csr::into_bits);
    sdma.io.script.insert(at(0, Register::Csr), VecDeque::from(reads));
    let (events, handled) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [(0, std::vec![Cause::EndOfFrame]), (0, std::vec![Cause::EndOfBlock])]);
    assert_eq!(handled.events, 2);
}

#[test]
fn channel_that_reports_without_end_does_not_hold_the_handler() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    pend(&mut sdma, Line::L0, &[(0, Csr::new())]);
    let stuck = Csr::new().with_drop(true).into_bits();
    sdma.io.script.insert(at(0, Register::Csr), std::iter::repeat_n(stuck, 100).collect());
    assert_eq!(handle(&mut sdma, Line::L0).1.events, ROUNDS);
}

#[test]
fn channels_of_other_lines_are_left_alone() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1 << 2;
    pend(&mut sdma, Line::L0, &[(1, Csr::new().with_block(true)), (2, Csr::new().with_block(true))]);
    let (events, _) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [(2, std::vec![Cause::EndOfBlock])]);
    assert_eq!(sdma.io.values[&offset::irq_status(0)], 1 << 1);
}

#[test]
fn line_without_an_event_behind_it_counts_as_spurious() {
    let (mut sdma, _trusted) = ready();
    sdma.lines[0] = 1;
    pend(&mut sdma, Line::L0, &[(0, Csr::new().with_sync(true))]);
    let (events, handled) = handle(&mut sdma, Line::L0);
    assert_eq!(events, [], "being synchronized is a state, not an event");
    assert_eq!(handled, Handled { events: 0, spurious: 1 });
}

#[test]
fn polling_finds_an_event_whose_interrupt_was_lost() {
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
fn line_is_enabled_for_one_channel_without_old_interrupts() {
    let (mut sdma, _trusted) = ready();
    let channel = sdma.take(4).unwrap();
    sdma.lines[2] = 1;
    sdma.set_line(&channel, Line::L2, true);
    assert_eq!(sdma.io.writes, [(offset::irq_status(2), 1 << 4), (offset::irq_enable(2), 1 << 4 | 1)]);
    sdma.set_line(&channel, Line::L2, false);
    assert_eq!(sdma.io.values[&offset::irq_enable(2)], 1);
}

#[test]
fn each_cause_has_the_same_bit_to_enable_and_to_report() {
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
fn errors_are_told_from_progress() {
    let errors = Cause::ALL.into_iter().filter(|cause| cause.is_error()).count();
    assert_eq!(errors, 4);
    let status = Csr::new().with_half_frame(true).with_transaction_error(true);
    assert_eq!(Event { channel: 0, status }.error(), Some(Cause::TransactionError));
}
