//! Interrupts, errors, and device faults.
//!
//! No wait may hang, and every end must be reported.

use std::time::Duration;

use memferry_drivers::sdma::{Cause, ChannelConfig, Handled, Line, LinearPieces, Operation};

use super::machine::{BASE, Machine, SIZE, wait};

fn copy(length: u64) -> ChannelConfig {
    let piece = LinearPieces::copy(BASE, BASE + SIZE / 2, length).unwrap().next().unwrap();
    ChannelConfig::new(Operation::Copy, piece)
}

#[test]
fn all_channels_interrupt_on_their_lines() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channels: Vec<_> = (0..32).map(|_| driver.allocate().unwrap()).collect();
    for channel in &channels {
        driver.set_line(channel, Line::ALL[usize::from(channel.index()) % 4], true);
        driver.configure(channel, &copy(64), None).unwrap();
    }
    for channel in &channels {
        driver.enable(channel).unwrap();
    }
    machine.pass(Duration::from_millis(1));
    for line in Line::ALL {
        assert!(machine.device.borrow().line(line.index()));
        let mut ended = Vec::new();
        let handled = driver.handle_interrupt(line, |event| {
            assert!(event.is_end() && event.error().is_none(), "{event:?}");
            ended.push(usize::from(event.channel));
        });
        assert_eq!(handled, Handled { events: 8, spurious: 0 });
        assert_eq!(ended, (0..8).map(|nth| 4 * nth + line.index()).collect::<Vec<_>>());
        assert!(!machine.device.borrow().line(line.index()));
    }
    machine.assert_no_complaints();
}

#[test]
fn bus_error_is_reported_by_its_cause() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = driver.allocate().unwrap();
    let bad = BASE as u32 + 0x100;
    machine.device.borrow_mut().faults().bus_error_at(bad..=bad);
    driver.configure(&channel, &copy(0x1000), None).unwrap();
    driver.enable(&channel).unwrap();
    assert_eq!(wait(&machine, &mut driver, &channel).error(), Some(Cause::TransactionError));
    driver.stop(&channel, Duration::from_millis(1)).unwrap();
    machine.device.borrow_mut().faults().clear();
    driver.configure(&channel, &copy(0x1000), None).unwrap();
    driver.enable(&channel).unwrap();
    assert!(wait(&machine, &mut driver, &channel).is_end());
    machine.assert_no_complaints();
}

#[test]
fn lost_interrupt_is_found_by_polling() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = driver.allocate().unwrap();
    driver.set_line(&channel, Line::L1, true);
    machine.device.borrow_mut().faults().lose_interrupts(1);
    driver.configure(&channel, &copy(64), None).unwrap();
    driver.enable(&channel).unwrap();
    machine.pass(Duration::from_millis(1));
    assert!(!machine.device.borrow().line(1), "the interrupt was lost");
    assert!(driver.poll(&channel).is_some_and(|event| event.is_end()));
    for _ in 0..2 {
        driver.configure(&channel, &copy(64), None).unwrap();
        driver.enable(&channel).unwrap();
        machine.pass(Duration::from_millis(1));
        assert!(machine.device.borrow().line(1), "the next interrupt arrives");
        assert_eq!(driver.handle_interrupt(Line::L1, |_| {}).events, 1);
    }
    machine.assert_no_complaints();
}

#[test]
fn stopped_copy_is_finished_by_its_rest() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = driver.allocate().unwrap();
    let config = copy(0x1_0000);
    driver.configure(&channel, &config, None).unwrap();
    driver.enable(&channel).unwrap();
    machine.pass(Duration::from_micros(20));
    let progress = driver.stop(&channel, Duration::from_millis(1)).unwrap();
    assert!(!progress.ended);
    let length = 0x1_0000;
    let half = SIZE as usize / 2;
    let memory = machine.memory();
    assert_ne!(memory[..length], memory[half..half + length], "it was stopped before its end");
    let mut left = 0;
    for piece in progress.pieces_left(&config).unwrap().unwrap() {
        left += piece.size.bytes();
        driver.configure(&channel, &config.with_piece(piece), None).unwrap();
        driver.enable(&channel).unwrap();
        assert!(wait(&machine, &mut driver, &channel).is_end());
        while driver.is_running(&channel) {}
    }
    assert!(left < length as u64, "finished bytes are not repeated");
    let memory = machine.memory();
    assert_eq!(memory[..length], memory[half..half + length]);
    machine.assert_no_complaints();
}

#[test]
fn stuck_copy_is_stopped() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = driver.take(5).unwrap();
    driver.configure(&channel, &copy(0x1000), None).unwrap();
    driver.enable(&channel).unwrap();
    machine.device.borrow_mut().faults().stick(5);
    machine.pass(Duration::from_millis(1));
    assert_eq!(driver.poll(&channel), None);
    let progress = driver.stop(&channel, Duration::from_micros(100)).unwrap();
    assert!(!progress.ended);
    machine.device.borrow_mut().faults().clear();
    driver.configure(&channel, &copy(0x1000), None).unwrap();
    driver.enable(&channel).unwrap();
    assert!(wait(&machine, &mut driver, &channel).is_end());
    machine.assert_no_complaints();
}
