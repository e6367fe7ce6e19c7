//! The four calls of the thesis's driver (Wicki 2014, listings 1 and 4) on the SDMA model, through the service's path:
//! capabilities, policy, channels, completions by interrupt; one event loop in virtual time.
//!
//! ```text
//! request ─► Path ─ admit, place ─► SdmaEngine ─ driver ─► model ─ interrupt ─► settle ─► completion
//! ```

use core::time::Duration;

use memferry_driven::SdmaOptions;
use memferry_lab::wicki::service::Service;
use memferry_models::Ram;
use memferry_models::sdma::{Config, Sdma, Timing};
use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{
    Color24, Count2d, Failure, Fill2d, Handle, Operation, Pattern, PixelSize, Plane, SessionId, Span, Terms,
    WhenBusy,
};

const BASE: u32 = 0x8000_0000;
const CLIENT: SessionId = SessionId(1);
const STRANGER: SessionId = SessionId(2);

/// The position of a frame in the memory.
type Place = std::ops::Range<usize>;

/// The service on a device with memory that has contents.
struct Machine {
    service: Service<Ram>,
    used: usize,
}

impl Machine {
    fn new(channels: u32) -> Self {
        let device = Sdma::new(Config::default(), Ram::new(BASE.into(), vec![0; 1 << 20]));
        let options = SdmaOptions { patience: Duration::from_millis(5), ..SdmaOptions::default() };
        Self { service: Service::new(device, channels, options).expect("the model resets"), used: 0 }
    }

    /// Registers a frame of a session with these contents.
    fn frame(&mut self, session: SessionId, bytes: &[u8]) -> (Handle, Place) {
        let place = self.used..self.used + bytes.len();
        self.used = place.end.next_multiple_of(4096);
        self.service.with_device(|device| device.bus_mut().bytes_mut()[place.clone()].copy_from_slice(bytes));
        let frame = self.service.frame(session, BASE + place.start as u32, bytes.len() as u64);
        (frame.expect("there is room"), place)
    }

    fn contents(&self, place: Place) -> Vec<u8> {
        self.service.with_device(|device| device.bus().bytes()[place].to_vec())
    }

    fn submit(&mut self, tag: u64, operation: Operation<Span>, terms: Terms) {
        self.service.submit(CLIENT, tag, operation, terms).expect("the queue is open");
    }

    fn run(&mut self) -> Vec<(u64, Result<(), Failure>)> {
        self.service.run()
    }
}

fn span(handle: Handle, offset: u64) -> Span {
    Span { handle, offset }
}

fn noise(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn the_four_calls_of_the_thesis_are_right() {
    let mut machine = Machine::new(32);
    let picture = noise(64 * 32 * 4);
    let (source, _) = machine.frame(CLIENT, &picture);
    let length = picture.len() as u64;
    let frames: Vec<_> = (0..4).map(|_| machine.frame(CLIENT, &vec![0; picture.len()])).collect();
    let turned = {
        let image = Image::packed(64, 32, PixelSize::Bits32);
        turned_copy(&image, Turn::Rotate90, &Image::packed(32, 64, PixelSize::Bits32), None)
            .expect("sizes fit")
    };
    let count = Count2d { pixel: PixelSize::Bits16, x_count: 8, y_count: 4 };
    let column = Plane { start: 2, x_step: 64, y_step: 2 - 7 * 64 };
    let calls = [
        Operation::Copy { source: span(source, 0), destination: span(frames[0].0, 0), length },
        Operation::Fill { destination: span(frames[1].0, 0), length, pattern: Pattern::Byte(0x5a) },
        Operation::Copy2d { source: span(source, 0), destination: span(frames[2].0, 0), shape: turned },
        Operation::Fill2d {
            destination: span(frames[3].0, 0),
            shape: Fill2d { count, destination: column, color: Color24::new(0xabcd).expect("24 bits") },
        },
    ];
    for (tag, call) in (0..).zip(calls) {
        machine.submit(tag, call, Terms::default());
    }
    let mut ends = machine.run();
    ends.sort_by_key(|(tag, _)| *tag);
    assert_eq!(ends, [0, 1, 2, 3].map(|tag| (tag, Ok(()))));
    assert_eq!(machine.contents(frames[0].1.clone()), picture);
    assert_eq!(machine.contents(frames[1].1.clone()), vec![0x5a; picture.len()]);
    let rotated = machine.contents(frames[2].1.clone());
    for (x, y) in [(0, 0), (63, 0), (0, 31), (63, 31), (17, 5)] {
        let from = (y * 64 + x) * 4;
        let to = (x * 32 + 31 - y) * 4;
        assert_eq!(rotated[to..to + 4], picture[from..from + 4], "pixel ({x}, {y})");
    }
    let filled = machine.contents(frames[3].1.clone());
    let painted = |at: usize| (0..4).any(|y| (0..8).any(|x| at / 2 == (2 + x * 64 + y * 2) / 2));
    assert!((0..filled.len()).all(|at| filled[at] == if painted(at) { [0xcd, 0xab][at % 2] } else { 0 }));
}

#[test]
fn busy_channels_delay_or_refuse() {
    let mut machine = Machine::new(2);
    let (source, _) = machine.frame(CLIENT, &noise(4096));
    let (destination, _) = machine.frame(CLIENT, &[0; 4096]);
    let copy =
        || Operation::Copy { source: span(source, 0), destination: span(destination, 0), length: 4096 };
    for tag in 0..3 {
        machine.submit(tag, copy(), Terms::default());
    }
    machine.submit(3, copy(), Terms { when_busy: WhenBusy::Refuse, ..Terms::default() });
    let mut ends = machine.run();
    ends.sort_by_key(|(tag, _)| *tag);
    let refused = Err(Failure::ChannelsBusy { channels: 2 });
    assert_eq!(ends, [(0, Ok(())), (1, Ok(())), (2, Ok(())), (3, refused)]);
}

#[test]
fn memory_outside_a_frame_is_protected() {
    let mut machine = Machine::new(1);
    let (own, memory) = machine.frame(CLIENT, &[1; 64]);
    let (foreign, others) = machine.frame(STRANGER, &[2; 64]);
    let copy = |source, destination, length| Operation::Copy { source, destination, length };
    machine.submit(0, copy(span(foreign, 0), span(own, 0), 64), Terms::default());
    machine.submit(1, copy(span(own, 0), span(foreign, 0), 64), Terms::default());
    machine.submit(2, copy(span(own, 0), span(own, 1), 64), Terms::default());
    assert!(machine.run().iter().all(|(_, outcome)| outcome.is_err()));
    assert_eq!((machine.contents(memory), machine.contents(others)), (vec![1; 64], vec![2; 64]));
}

#[test]
fn a_lost_interrupt_fails_one_request() {
    let mut machine = Machine::new(1);
    let (frame, _) = machine.frame(CLIENT, &[1; 4096]);
    let fill = || Operation::Fill { destination: span(frame, 0), length: 4096, pattern: Pattern::Byte(7) };
    machine.service.with_device(|device| device.faults().lose_interrupts(1));
    for tag in 0..3 {
        machine.submit(tag, fill(), Terms::default());
    }
    assert_eq!(machine.run(), [(0, Err(Failure::EngineTimedOut)), (1, Ok(())), (2, Ok(()))]);
}

#[test]
fn a_reset_restores_a_failed_channel() {
    // Reads are so slow that a long transfer times out during one and cannot drain in time.
    let timing = Timing { read_latency: 100_000_000, ..Timing::default() };
    let config = Config { timing, ..Config::default() };
    let device = Sdma::new(config, Ram::new(BASE.into(), vec![0; 1 << 20]));
    let patience = Duration::from_micros(350);
    let drain = Duration::from_micros(1);
    let options = SdmaOptions { patience, drain, ..SdmaOptions::default() };
    let mut machine =
        Machine { service: Service::new(device, 1, options).expect("the model resets"), used: 0 };
    let (source, _) = machine.frame(CLIENT, &noise(8192));
    let (destination, place) = machine.frame(CLIENT, &[0; 8192]);
    let copy =
        |length| Operation::Copy { source: span(source, 0), destination: span(destination, 0), length };
    for (tag, length) in [(0, 8192), (1, 64)] {
        machine.submit(tag, copy(length), Terms::default());
    }
    assert_eq!(machine.run(), [(0, Err(Failure::ChannelFaulted)), (1, Err(Failure::ChannelFaulted))]);
    machine.service.reset().expect("the device resets");
    machine.submit(2, copy(64), Terms::default());
    assert_eq!(machine.run(), [(2, Ok(()))]);
    assert_eq!(machine.contents(place)[..64], noise(64));
}
