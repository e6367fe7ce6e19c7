//! Test fixture: one device and one memory in virtual time.
//!
//! ```text
//! register access or clock read ──► time passes ──► the device steps
//! ```
//!
//! Tests access memory directly; the driver cannot.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_drivers::sdma::{
    CacheMaintenance, Channel, ChannelConfig, Event, NonCacheable, Operation, Piece, Sdma, Settings, Trusted,
};
use memferry_models::Ram;
use memferry_models::sdma as model;
use memferry_registers::RegisterIo;

/// Address and size of memory.
pub(crate) const BASE: u64 = 0x8000_0000;
pub(crate) const SIZE: u64 = 0x4_0000;

/// Duration of a register access: a few hundred nanoseconds on the peripheral interconnect.
const ACCESS: Duration = Duration::from_nanos(200);

/// Maximum wait for an event.
const PATIENCE: Duration = Duration::from_millis(50);

/// The device, shared by the driver's register access and its clock.
pub(crate) struct Machine {
    pub(crate) device: RefCell<model::Sdma<Ram>>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let bytes = (0..SIZE).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect();
        let device = model::Sdma::new(model::Config::default(), Ram::new(BASE, bytes));
        Self { device: RefCell::new(device) }
    }

    /// An initialized driver of the device.
    pub(crate) fn driver(&self) -> (Driver<'_>, Trusted) {
        let (mut driver, trusted) = Sdma::new(Bus(self), Present(self));
        driver.initialize(&Settings::default()).expect("the device resets");
        (driver, trusted)
    }

    pub(crate) fn memory(&self) -> Vec<u8> {
        self.device.borrow().bus().bytes().to_vec()
    }

    pub(crate) fn set_memory(&self, address: u64, bytes: &[u8]) {
        let at = (address - BASE) as usize;
        self.device.borrow_mut().bus_mut().bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub(crate) fn pass(&self, time: Duration) {
        let mut device = self.device.borrow_mut();
        let until = device.now().after(time);
        device.step(until);
    }

    /// Asserts that the device has no complaints.
    pub(crate) fn assert_no_complaints(&self) {
        let complaints = self.device.borrow_mut().take_complaints();
        let words: Vec<String> = complaints.iter().map(ToString::to_string).collect();
        assert_eq!(words, Vec::<String>::new());
    }
}

pub(crate) type Driver<'a> = Sdma<Bus<'a>, Present<'a>>;

pub(crate) struct Bus<'a>(&'a Machine);

impl RegisterIo for Bus<'_> {
    fn read(&mut self, offset: u32) -> u32 {
        self.0.pass(ACCESS);
        self.0.device.borrow_mut().read(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.0.pass(ACCESS);
        self.0.device.borrow_mut().write(offset, value);
    }
}

pub(crate) struct Present<'a>(&'a Machine);

impl Clock for Present<'_> {
    fn now(&self) -> Instant {
        self.0.device.borrow().now()
    }
}

/// Polls until the channel reports an event.
pub(crate) fn wait(machine: &Machine, driver: &mut Driver<'_>, channel: &Channel) -> Event {
    let deadline = Present(machine).now().after(PATIENCE);
    while Present(machine).now() < deadline {
        if let Some(event) = driver.poll(channel) {
            return event;
        }
    }
    panic!("channel {} reported nothing", channel.index());
}

/// Runs the pieces one after the other; panics on any event other than a successful end.
pub(crate) fn transfer(machine: &Machine, operation: Operation, pieces: impl Iterator<Item = Piece>) {
    let (mut driver, _trusted) = machine.driver();
    let channel = driver.allocate().unwrap();
    let mut caches = NonCacheable;
    for piece in pieces {
        let config = ChannelConfig::new(operation, piece);
        config.prepare_caches(&mut caches);
        driver.configure(&channel, &config, None).unwrap();
        driver.enable(&channel).unwrap();
        let event = wait(machine, &mut driver, &channel);
        assert!(event.is_end() && event.error().is_none(), "{event:?}");
        while driver.is_running(&channel) {}
        config.finish_caches(&mut caches);
    }
    caches.invalidate(BASE, SIZE);
    driver.release(channel).unwrap();
    machine.assert_no_complaints();
}

/// `memory` with the changed bytes applied.
pub(crate) fn changed(mut memory: Vec<u8>, changes: BTreeMap<u64, u8>) -> Vec<u8> {
    for (address, byte) in changes {
        memory[(address - BASE) as usize] = byte;
    }
    memory
}
