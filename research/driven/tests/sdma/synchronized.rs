//! Synchronized transfers, driven request by request.
//!
//! The device's register is a word of memory: the tests check how much each request moves.

use std::time::Duration;

use memferry_drivers::sdma::{
    Channel, ChannelConfig, ConfigureError, Element, Operation, Piece, Port, Settings, Side, StopError,
    SyncUnit, Synchronization, TransferSize,
};

use super::machine::{BASE, Driver, Machine, SIZE, wait};

const REGISTER: u64 = BASE + 0x100;
const BUFFER: u64 = BASE + SIZE / 2;
const LINE: u32 = 17;

fn config(by: Port, unit: SyncUnit) -> ChannelConfig {
    let device = Side::device(REGISTER);
    let memory = Side::memory(BUFFER);
    let (source, destination) = if by == Port::Source { (device, memory) } else { (memory, device) };
    let size = TransferSize { element: Element::Bits32, elements: 4, frames: 3 };
    let sync =
        Synchronization { request: LINE, unit, by, prefetch: false, buffering: by == Port::Destination };
    let config = ChannelConfig::new(Operation::Copy, Piece { size, source, destination });
    ChannelConfig { synchronization: Some(sync), ..config }
}

#[test]
fn each_request_moves_its_unit_from_a_device() {
    for (unit, elements) in [
        (SyncUnit::Element, 1),
        (SyncUnit::Frame, 4),
        (SyncUnit::Packet { elements: 6 }, 6),
        (SyncUnit::Block, 12),
    ] {
        let machine = Machine::new();
        machine.set_memory(BUFFER, &[0; 64]);
        machine.set_memory(REGISTER, &[0x11, 0x22, 0x33, 0x44]);
        let (mut driver, _trusted) = machine.driver();
        let channel = driver.allocate().unwrap();
        driver.configure(&channel, &config(Port::Source, unit), None).unwrap();
        driver.enable(&channel).unwrap();
        machine.pass(Duration::from_micros(50));
        let moved = || {
            let memory = machine.memory();
            let words = memory[(BUFFER - BASE) as usize..][..64].chunks(4);
            words.take_while(|word| *word == [0x11, 0x22, 0x33, 0x44]).count()
        };
        assert_eq!(moved(), 0, "nothing moves without a request");
        for request in 1..=12 / elements {
            assert!(machine.device.borrow_mut().request(LINE as usize));
            machine.pass(Duration::from_micros(50));
            assert_eq!(moved(), request * elements, "{unit:?}");
        }
        assert!(wait(&machine, &mut driver, &channel).is_end());
        machine.assert_no_complaints();
    }
}

#[test]
fn destination_requests_end_the_transfer() {
    for prefetch in [false, true] {
        let machine = Machine::new();
        let (mut driver, _trusted) = machine.driver();
        let channel = driver.allocate().unwrap();
        let mut config = config(Port::Destination, SyncUnit::Frame);
        config.synchronization.as_mut().unwrap().prefetch = prefetch;
        driver.configure(&channel, &config, None).unwrap();
        driver.enable(&channel).unwrap();
        for _ in 0..3 {
            assert_eq!(driver.poll(&channel), None);
            assert!(machine.device.borrow_mut().request(LINE as usize));
            machine.pass(Duration::from_micros(50));
        }
        assert!(wait(&machine, &mut driver, &channel).is_end());
        let memory = machine.memory();
        let last = (BUFFER - BASE) as usize + 44;
        assert_eq!(memory[0x100..0x104], memory[last..last + 4], "the last word is in the register");
        machine.assert_no_complaints();
    }
}

/// A channel that has read one element of its device and buffers it for a burst.
fn holding(machine: &Machine, driver: &mut Driver<'_>) -> Channel {
    machine.set_memory(BUFFER, &[0; 64]);
    machine.set_memory(REGISTER, &[0x11, 0x22, 0x33, 0x44]);
    let mut config = config(Port::Source, SyncUnit::Element);
    config.synchronization.as_mut().unwrap().buffering = true;
    config.suspend_sensitive = true;
    let channel = driver.allocate().unwrap();
    driver.configure(&channel, &config, None).unwrap();
    driver.enable(&channel).unwrap();
    assert!(machine.device.borrow_mut().request(LINE as usize));
    machine.pass(Duration::from_micros(50));
    assert_eq!(first_word(machine), [0; 4], "it is buffered until a burst is full");
    channel
}

fn first_word(machine: &Machine) -> [u8; 4] {
    machine.memory()[(BUFFER - BASE) as usize..].first_chunk().copied().unwrap()
}

#[test]
fn stopped_channel_writes_buffered_data() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = holding(&machine, &mut driver);
    driver.stop(&channel, Duration::from_millis(1)).unwrap();
    assert_eq!(first_word(&machine), [0x11, 0x22, 0x33, 0x44]);
    machine.assert_no_complaints();
}

#[test]
fn undrainable_channel_is_quarantined() {
    let machine = Machine::new();
    let (mut driver, _trusted) = machine.driver();
    let channel = holding(&machine, &mut driver);
    // A debugger's suspend keeps the channel from draining.
    machine.device.borrow_mut().set_suspend(true);
    let stopped = driver.stop(&channel, Duration::from_micros(100));
    assert!(matches!(stopped, Err(StopError::NotDrained { channel: 0, .. })), "{stopped:?}");
    let again = config(Port::Source, SyncUnit::Block);
    let refused = driver.configure(&channel, &again, None);
    assert_eq!(refused, Err(ConfigureError::Quarantined { channel: 0 }));
    machine.device.borrow_mut().set_suspend(false);
    driver.initialize(&Settings::default()).unwrap();
    driver.configure(&channel, &again, None).unwrap();
    driver.enable(&channel).unwrap();
    assert!(machine.device.borrow_mut().request(LINE as usize));
    assert!(wait(&machine, &mut driver, &channel).is_end());
    machine.assert_no_complaints();
}
