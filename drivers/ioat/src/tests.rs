//! The driver with scripted registers and memory: the order of its writes, and the requests it refuses.

extern crate std;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec::Vec;

use core::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_ioat_registers::offset::channel as offset;
use memferry_ioat_registers::{Chansts, Register, TransferState};
use memferry_ioat_registers::{NarrowIo, RegisterIo};
use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_micros(5);
const RING: RingConfig = RingConfig { ring: 0x1_0000_1000, slots: 8, completion: 0x2008 };

/// Registers by byte, with a log of writes.
#[derive(Debug, Default)]
struct Registers {
    bytes: BTreeMap<u32, u8>,
    /// Offset, width in bytes and value of each write.
    writes: Vec<(u32, u32, u32)>,
    /// The device ignores commands: their bits stay set.
    unresponsive: bool,
    /// Writes before each clearing of errors outside the registers.
    cleared_after: Vec<usize>,
}

impl Registers {
    fn get(&self, offset: u32, width: u32) -> u32 {
        (0..width).map(|at| u32::from(*self.bytes.get(&(offset + at)).unwrap_or(&0)) << (8 * at)).sum()
    }

    fn set(&mut self, offset: u32, width: u32, value: u32) {
        for at in 0..width {
            self.bytes.insert(offset + at, (value >> (8 * at)) as u8);
        }
    }

    fn put(&mut self, offset: u32, width: u32, value: u32) {
        self.writes.push((offset, width, value));
        let is = |register: Register| (0..4).any(|channel| self::offset(channel, register) == offset);
        let clears = is(Register::Chanerr) || (is(Register::Chancmd) && !self.unresponsive);
        self.set(offset, width, if clears { 0 } else { value });
    }
}

impl RegisterIo for Registers {
    fn read(&mut self, offset: u32) -> u32 {
        self.get(offset, 4)
    }
    fn write(&mut self, offset: u32, value: u32) {
        self.put(offset, 4, value);
    }
}

impl NarrowIo for Registers {
    fn read8(&mut self, offset: u32) -> u8 {
        self.get(offset, 1) as u8
    }
    fn write8(&mut self, offset: u32, value: u8) {
        self.put(offset, 1, value.into());
    }
    fn read16(&mut self, offset: u32) -> u16 {
        self.get(offset, 2) as u16
    }
    fn write16(&mut self, offset: u32, value: u16) {
        self.put(offset, 2, value.into());
    }
    fn clear_other_errors(&mut self) {
        self.cleared_after.push(self.writes.len());
    }
}

#[derive(Debug, Default)]
struct Words(BTreeMap<u64, u64>);

impl DmaMemory for Words {
    fn read(&mut self, address: u64) -> u64 {
        *self.0.get(&address).unwrap_or(&0)
    }
    fn write(&mut self, address: u64, word: u64) {
        self.0.insert(address, word);
    }
}

/// A clock that advances by a microsecond on each read.
#[derive(Debug, Default)]
struct Ticks(Cell<u64>);

impl Clock for Ticks {
    fn now(&self) -> Instant {
        self.0.set(self.0.get() + 1000);
        Instant::from_nanoseconds(self.0.get())
    }
}

type Tested = Ioat<Registers, Words, Ticks>;

fn at(register: Register) -> u32 {
    offset(1, register)
}

fn device() -> Registers {
    let mut registers = Registers::default();
    registers.set(0, 4, 0x1404);
    registers.set(8, 1, 0x32);
    registers.set(0x10, 4, 0x140);
    registers
}

fn ready() -> (Tested, Channel) {
    let mut driver = Ioat::new(device(), Words::default(), Ticks::default());
    driver.initialize().unwrap();
    let channel = driver.take(1).unwrap();
    driver.open(&channel, RING, TIMEOUT).unwrap();
    driver.io.writes.clear();
    (driver, channel)
}

fn copy(bytes: u64) -> Request<'static> {
    Request::new(Operation::Copy { source: 0x5000, destination: 0x6000, bytes })
}

fn completion_word(state: TransferState, slot: u64) -> u64 {
    Chansts::new().with_state(state).with_completed(RING.ring + 64 * slot).into_bits()
}

#[test]
fn refuses_unusable_devices() {
    let refused = |offset, width, value| {
        let mut registers = device();
        registers.set(offset, width, value);
        Ioat::new(registers, Words::default(), Ticks::default()).initialize()
    };
    assert_eq!(refused(8, 1, 0x12), Err(InitError::TooOld { major: 1, minor: 2 }));
    assert_eq!(refused(0, 1, 0), Err(InitError::NoChannels));
    assert_eq!(refused(1, 1, 3), Err(InitError::TransfersTooShort { bytes: 8 }));
    let mut driver = Ioat::new(device(), Words::default(), Ticks::default());
    assert_eq!(driver.take(0), Err(TakeError::NotInitialized));
    driver.initialize().unwrap();
    assert_eq!(
        (driver.channels(), driver.limits()),
        (4, Limits { longest: 1 << 20, fills: true, xor: true })
    );
}

#[test]
fn opening_resets_and_writes_the_chain_last() {
    let mut driver = Ioat::new(device(), Words::default(), Ticks::default());
    driver.initialize().unwrap();
    let channel = driver.take(1).unwrap();
    driver.io.set(at(Register::Chanerr), 4, 0x100);
    driver.io.writes.clear();
    driver.open(&channel, RING, TIMEOUT).unwrap();
    let expected = [
        (at(Register::Chancmd), 1, 0x20),
        (at(Register::Chanerr), 4, 0x100),
        (at(Register::Chancmp), 4, 0x2008),
        (at(Register::Chancmp) + 4, 4, 0),
        (at(Register::Chanctrl), 2, 0x11D),
        (at(Register::Chainaddr), 4, 0x1000),
        (at(Register::Chainaddr) + 4, 4, 1),
    ];
    assert_eq!(driver.io.writes, expected);
    assert_eq!(driver.io.cleared_after, [2], "after CHANERR, before the chain");
    assert_eq!(driver.memory.0[&RING.completion], 0);
}

#[test]
fn refuses_each_broken_ring_rule() {
    let broken = [
        (RingConfig { ring: 0x1020, ..RING }, RingError::Misaligned { address: 0x1020 }),
        (RingConfig { completion: 0x2004, ..RING }, RingError::CompletionMisaligned { address: 0x2004 }),
        (RingConfig { completion: 0, ..RING }, RingError::NoCompletion),
        (RingConfig { slots: 3, ..RING }, RingError::TooSmall { slots: 3 }),
        (RingConfig { slots: 0x8001, ..RING }, RingError::TooLarge { slots: 0x8001 }),
        (RingConfig { ring: !0xFF, ..RING }, RingError::LeavesAddressSpace { address: !0xFF }),
        (
            RingConfig { completion: RING.ring + 64, ..RING },
            RingError::CompletionInRing { address: RING.ring + 64 },
        ),
    ];
    let (mut driver, channel) = ready();
    for (ring, error) in broken {
        assert_eq!(ring.validate(), Err(error));
        assert_eq!(driver.open(&channel, ring, TIMEOUT), Err(OpenError::Ring(error)));
    }
    assert_eq!(driver.io.writes, [], "a refused ring writes no register");
    for slots in [4, 0x8000] {
        assert_eq!(RingConfig { slots, ..RING }.validate(), Ok(()));
    }
}

#[test]
fn refuses_each_broken_request_rule() {
    let limits = Limits { longest: 4096, fills: true, xor: true };
    let nine = [0_u64; 9];
    let xor = |count: usize, bytes| Operation::Xor { sources: &nine[..count], destination: 0, bytes };
    let fill = Operation::Fill { pattern: 0, destination: 0, bytes: 1 };
    let far = Operation::Copy { source: 0, destination: u64::MAX - 1, bytes: 3 };
    let check = |operation, limits: &Limits| Request::new(operation).validate(limits);
    assert_eq!(check(copy(0).operation, &limits), Err(RequestError::NoBytes));
    assert_eq!(check(copy(4097).operation, &limits), Err(RequestError::TooLong { bytes: 4097, limit: 4096 }));
    assert_eq!(check(fill, &Limits { fills: false, ..limits }), Err(RequestError::NoFills));
    assert_eq!(check(xor(2, 1), &Limits { xor: false, ..limits }), Err(RequestError::NoXor));
    assert_eq!(check(xor(1, 1), &limits), Err(RequestError::TooFewSources { sources: 1 }));
    assert_eq!(check(xor(9, 1), &limits), Err(RequestError::TooManySources { sources: 9 }));
    assert_eq!(check(xor(2, 0), &limits), Err(RequestError::NoBytes));
    let leaves = RequestError::LeavesAddressSpace { address: u64::MAX - 1, bytes: 3 };
    assert_eq!(check(far, &limits), Err(leaves));
    for operation in [Operation::Null, copy(4096).operation, fill, xor(2, 4096), xor(8, 1)] {
        assert_eq!(check(operation, &limits), Ok(()));
    }
}

#[test]
fn links_and_counts_until_the_ring_is_full() {
    let (mut driver, channel) = ready();
    let sources = [0x100_u64, 0x200, 0x300, 0x400, 0x500, 0x600];
    let xor = Request {
        operation: Operation::Xor { sources: &sources, destination: 0x700, bytes: 64 },
        notice: Notice::Interrupt,
        fence: true,
    };
    let positions =
        [driver.write(&channel, &copy(10)), driver.write(&channel, &xor), driver.write(&channel, &copy(20))];
    assert_eq!(positions, [Ok(1), Ok(2), Ok(4)]);
    assert_eq!(driver.io.writes, [], "writing descriptors accesses no register");
    driver.ring_doorbell(&channel);
    driver.ring_doorbell(&channel);
    assert_eq!(
        driver.io.writes,
        [(at(Register::Dmacount), 2, 4)],
        "the second doorbell has nothing to announce"
    );
    let word = |slot: u64, index: u64| driver.memory.0[&(RING.ring + 64 * slot + 8 * index)];
    assert_eq!([word(0, 0), word(0, 1), word(0, 2)], [8 << 32 | 10, 0x5000, 0x6000]);
    assert_eq!([word(0, 3), word(1, 3), word(2, 3)], [1, 2, 3].map(|slot| RING.ring + 64 * slot));
    assert_eq!(word(1, 0), 0x8700_0099_0000_0040);
    assert_eq!([word(2, 0), word(2, 1)], [0x600, 0]);
    assert_eq!(driver.free(&channel), 3);
    for bytes in 1..=3 {
        driver.write(&channel, &copy(bytes)).unwrap();
    }
    assert_eq!(driver.write(&channel, &copy(1)), Err(WriteError::RingFull { free: 0, needed: 1 }));
    driver.ring_doorbell(&channel);
    driver.memory.0.insert(RING.completion, completion_word(TransferState::Active, 1));
    assert_eq!(driver.poll(&channel), Progress { done: 2, state: TransferState::Active });
    assert_eq!(driver.free(&channel), 2, "the extension is not done before a later descriptor");
    assert_eq!(driver.write(&channel, &xor), Ok(8));
    let last = RING.ring + 64 * 7 + 24;
    assert_eq!(driver.memory.0[&last], RING.ring, "the last slot links to the first");
}

#[test]
fn ignores_impossible_and_stale_words() {
    let (mut driver, channel) = ready();
    for bytes in 1..=5 {
        driver.write(&channel, &copy(bytes)).unwrap();
    }
    driver.ring_doorbell(&channel);
    for impossible in [
        0,
        u64::MAX,
        64,
        completion_word(TransferState::Idle, 5),
        completion_word(TransferState::Idle, 7),
        RING.ring - 64,
    ] {
        driver.memory.0.insert(RING.completion, impossible);
        assert_eq!(driver.poll(&channel).done, 0, "{impossible:#x}");
    }
    let status = completion_word(TransferState::Active, 3);
    driver.io.set(at(Register::Chansts), 4, status as u32);
    driver.io.set(at(Register::Chansts) + 4, 4, (status >> 32) as u32);
    assert_eq!(driver.inspect(&channel).done, 4);
    driver.memory.0.insert(RING.completion, completion_word(TransferState::Active, 0));
    assert_eq!(
        driver.poll(&channel).done,
        4,
        "an older word neither takes progress back nor counts as a lap ahead"
    );
    assert_eq!(driver.free(&channel), 7 - 4, "the word's position frees slots");
    driver.memory.0.insert(RING.completion, completion_word(TransferState::Idle, 4));
    assert_eq!((driver.poll(&channel).done, driver.free(&channel)), (5, 7));
}

#[test]
fn a_status_of_the_chain_before_is_no_progress() {
    let (mut driver, channel) = ready();
    let show = |driver: &mut Tested, state, slot| {
        let status = completion_word(state, slot);
        driver.io.set(at(Register::Chansts), 4, status as u32);
        driver.io.set(at(Register::Chansts) + 4, 4, (status >> 32) as u32);
    };
    let submit = |driver: &mut Tested| {
        for bytes in 1..=5 {
            driver.write(&channel, &copy(bytes)).unwrap();
        }
        driver.ring_doorbell(&channel);
    };
    submit(&mut driver);
    show(&mut driver, TransferState::Suspended, 2);
    assert_eq!(driver.inspect(&channel).done, 3);
    driver.rewind(&channel).unwrap();
    submit(&mut driver);
    assert_eq!(driver.inspect(&channel).done, 0, "of the chain before");
    show(&mut driver, TransferState::Halted, 2);
    driver.io.set(at(Register::Chanerr), 4, 0x100);
    assert_eq!(driver.failure(&channel).map(|failure| failure.position), Some(1));
    driver.recover(&channel, TIMEOUT).unwrap();
    submit(&mut driver);
    assert_eq!(driver.inspect(&channel).done, 0, "a recovery keeps it too");
    show(&mut driver, TransferState::Active, 1);
    assert_eq!(driver.inspect(&channel).done, 2);
    show(&mut driver, TransferState::Idle, 2);
    assert_eq!(driver.inspect(&channel).done, 3, "the same descriptor, now of this chain");
    driver.rewind(&channel).unwrap();
    submit(&mut driver);
    driver.memory.0.insert(RING.completion, completion_word(TransferState::Active, 0));
    assert_eq!(
        (driver.poll(&channel).done, driver.inspect(&channel).done),
        (1, 3),
        "the word has shown this chain"
    );
}

#[test]
fn a_seized_device_has_all_channels_reset_and_free() {
    let mut driver = Ioat::new(device(), Words::default(), Ticks::default());
    driver.initialize().unwrap();
    for channel in 0..4 {
        driver.io.set(offset(channel, Register::Chanctrl), 2, 0x100);
    }
    assert_eq!(driver.take(2), Err(TakeError::InUse { index: 2 }));
    driver.io.writes.clear();
    driver.seize(TIMEOUT).unwrap();
    let resets = (0..4).map(|channel| (offset(channel, Register::Chancmd), 1, 0x20));
    assert!(resets.into_iter().all(|reset| driver.io.writes.contains(&reset)), "{:?}", driver.io.writes);
    assert_eq!(driver.io.cleared_after.len(), 4);
    for channel in 0..4 {
        let channel = driver.take(channel).unwrap();
        driver.open(&channel, RING, TIMEOUT).unwrap();
    }
    driver.io.unresponsive = true;
    assert_eq!(driver.seize(TIMEOUT), Err(StopError::NotReset { channel: 0, waited: TIMEOUT }));
}

#[test]
fn quarantines_a_channel_after_the_timeout() {
    let (mut driver, channel) = ready();
    driver.io.unresponsive = true;
    let waited = TIMEOUT;
    assert_eq!(driver.suspend(&channel, TIMEOUT), Err(StopError::NotSuspended { channel: 1, waited }));
    let before = driver.clock.0.get();
    assert_eq!(driver.recover(&channel, TIMEOUT), Err(StopError::NotReset { channel: 1, waited }));
    assert!(driver.clock.0.get() - before < 10_000);
    assert!(driver.is_quarantined(&channel));
    assert_eq!(driver.write(&channel, &copy(1)), Err(WriteError::Quarantined { channel: 1 }));
    driver.io.unresponsive = false;
    // Even an idle channel stays quarantined until a reset succeeds.
    driver.io.set(at(Register::Chansts), 4, u32::from(TransferState::Idle.into_bits()));
    assert_eq!(driver.rewind(&channel), Err(StopError::Quarantined { channel: 1 }));
    assert!(driver.is_quarantined(&channel));
    driver.recover(&channel, TIMEOUT).unwrap();
    assert_eq!(driver.write(&channel, &copy(1)), Ok(1));
}

#[test]
fn gives_back_only_channels_that_do_not_work() {
    let (mut driver, mut channel) = ready();
    driver.io.set(at(Register::Chansts), 4, u32::from(TransferState::Active.into_bits()));
    channel = driver.release(channel).unwrap_err();
    assert_eq!(
        (driver.take(1), driver.io.writes.as_slice()),
        (Err(TakeError::Taken { index: 1 }), [].as_slice())
    );
    driver.io.set(at(Register::Chansts), 4, u32::from(TransferState::Suspended.into_bits()));
    driver.release(channel).unwrap();
    assert_eq!(driver.io.writes, [(at(Register::Chanctrl), 2, 0)]);
    let channel = driver.take(1).unwrap();
    driver.open(&channel, RING, TIMEOUT).unwrap();
    driver.io.unresponsive = true;
    assert!(driver.recover(&channel, TIMEOUT).is_err() && driver.is_quarantined(&channel));
    driver.io.writes.clear();
    driver.release(channel).unwrap();
    assert_eq!(
        (driver.take(1), driver.io.writes.as_slice()),
        (Err(TakeError::Taken { index: 1 }), [].as_slice())
    );
}

#[test]
fn resumes_and_rewinds_only_stopped_channels() {
    let (mut driver, channel) = ready();
    let mut outcomes = |state: TransferState| {
        driver.io.set(at(Register::Chansts), 4, u32::from(state.into_bits()));
        driver.io.writes.clear();
        let succeeded = (driver.resume(&channel).is_ok(), driver.rewind(&channel).is_ok());
        (succeeded, driver.io.writes.first().copied())
    };
    let resume = Some((at(Register::Chancmd), 1, 0x10));
    assert_eq!(outcomes(TransferState::Suspended), ((true, true), resume));
    assert_eq!(outcomes(TransferState::Idle).0, (false, true));
    assert_eq!(outcomes(TransferState::Active), ((false, false), None));
    assert_eq!(outcomes(TransferState::Halted), ((false, false), None));
}

#[test]
fn rearms_channels_before_it_enables_the_line() {
    let (mut driver, _channel) = ready();
    driver.io.set(3, 1, 6);
    driver.io.set(4, 4, 0b1011);
    let mut reported = Vec::new();
    assert_eq!(driver.handle_interrupt(|channel| reported.push(channel)), Handled { channels: 1 });
    assert_eq!(reported, [1], "only taken channels are reported");
    assert_eq!(driver.io.writes, [(at(Register::Chanctrl), 2, 0x11D), (3, 1, 1)]);
    driver.io.set(3, 1, 0);
    assert_eq!(driver.handle_interrupt(|_| panic!("no channel needs attention")), Handled { channels: 0 });
}

proptest! {
    #[test]
    fn no_word_completes_unannounced_requests(words in prop::collection::vec(any::<u64>(), 1..40), near in any::<u64>()) {
        let (mut driver, channel) = ready();
        let mut done = 0;
        for (index, word) in words.into_iter().enumerate() {
            let written = driver.write(&channel, &copy(1));
            if near >> (index % 64) & 1 == 1 {
                driver.ring_doorbell(&channel);
            }
            let word = if index % 3 == 0 { word } else { completion_word(TransferState::Active, word % 9) };
            driver.memory.0.insert(RING.completion, word);
            let progress = driver.poll(&channel);
            prop_assert!(progress.done >= done && progress.done <= driver.states[1].announced);
            prop_assert!(driver.free(&channel) <= 7 && (written.is_ok() || driver.states[1].written - done == 7));
            done = progress.done;
        }
    }
}
