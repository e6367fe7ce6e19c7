//! Synchronized transfers, which a device's request line drives.

use core::time::Duration;

use memferry_conformance::EngineFixture;
use memferry_driven::{BusMemory, RequestLines, SdmaOptions};
use memferry_transfer::engine::RefusalReason;
use memferry_transfer::{
    Descriptor, Engine, EngineCompletion, EngineKind, Failure, Operation, Outcome, PixelSize, Region, Side,
    SyncUnit, Synchronized,
};

use super::{Fixture, REGISTER};

const LINES: RequestLines = RequestLines { readable: Some(35), writable: Some(34) };

fn register() -> BusMemory {
    BusMemory::device(REGISTER, 4, LINES).expect("in 32 bits")
}

fn transfer(
    (channel, device): (u32, Side),
    memory: BusMemory,
    (elements, frames, unit): (u32, u32, SyncUnit),
) -> Descriptor<BusMemory> {
    let shape = Synchronized { device, element: PixelSize::Bits32, elements, frames, unit };
    let port = Region::new(register(), 0, 4);
    let memory = Region::new(memory, 0, shape.total_bytes());
    let port = port.expect("inside");
    let memory = memory.expect("inside");
    let (source, destination) = if device == Side::Source { (port, memory) } else { (memory, port) };
    Descriptor::new(channel, Operation::Synchronized { source, destination, shape }).expect("inside")
}

impl Fixture {
    /// Signals a request and lets the device serve it.
    fn request(&mut self, line: usize) -> bool {
        let accepted = self.device.with(|device| device.request(line));
        self.pass();
        accepted
    }

    /// Lets some time pass and polls.
    fn pass(&mut self) -> Vec<EngineCompletion> {
        let mut completions = Vec::new();
        for _ in 0..3 {
            self.now = self.now.after(Duration::from_micros(50));
            self.engine.poll(self.now, &mut completions);
        }
        completions
    }
}

fn words(count: u32) -> Vec<u8> {
    (0..count).flat_map(|word| (0x0101_0101 * (word + 1)).to_le_bytes()).collect()
}

#[test]
fn each_request_moves_its_unit_into_memory() {
    for (unit, elements) in [
        (SyncUnit::Element, 1),
        (SyncUnit::Frame, 4),
        (SyncUnit::Packet { elements: 6 }, 6),
        (SyncUnit::Block, 12),
    ] {
        let mut fixture = Fixture::new(1, SdmaOptions::default());
        let memory = fixture.allocate(&[0; 48]);
        fixture.device.with(|device| device.bus_mut().receive(&words(12)));
        let ticket = fixture.engine.post(transfer((0, Side::Source), memory, (4, 3, unit))).expect("free");
        fixture.engine.ring_doorbell();
        assert!(fixture.pass().is_empty());
        assert_eq!(fixture.contents(&memory), [0; 48], "nothing moves before a request");
        for request in 1..12 / elements {
            assert!(fixture.request(35));
            let moved = 4 * (request * elements) as usize;
            let expected: Vec<u8> = words(12)[..moved].iter().copied().chain(vec![0; 48 - moved]).collect();
            assert_eq!(fixture.contents(&memory), expected, "{unit:?}, request {request}");
        }
        assert!(fixture.device.with(|device| device.request(35)));
        let ends = fixture.pass();
        assert_eq!(
            ends,
            [EngineCompletion {
                ticket,
                outcome: Outcome { result: Ok(()), bytes_done: 48, value: 0, engine: EngineKind::Simulated }
            }]
        );
        assert_eq!(fixture.contents(&memory), words(12));
        let clean =
            |device: &mut super::Modelled| device.complaints().is_empty() && device.bus().underflows() == 0;
        assert!(fixture.device.with(clean));
    }
}

#[test]
fn requests_drive_writes_to_a_device() {
    let mut fixture = Fixture::new(1, SdmaOptions::default());
    let memory = fixture.allocate(&words(6));
    fixture.engine.post(transfer((0, Side::Destination), memory, (2, 3, SyncUnit::Frame))).expect("free");
    fixture.engine.ring_doorbell();
    fixture.pass();
    for frame in 1..=2 {
        assert!(fixture.request(34));
        assert_eq!(fixture.device.with(|device| device.bus().sent().to_vec()), words(2 * frame));
    }
    assert!(!fixture.request(35), "the other line starts nothing");
    fixture.device.with(|device| device.request(34));
    assert_eq!(fixture.pass()[0].outcome.result, Ok(()));
    assert_eq!(fixture.device.with(|device| device.bus().sent().to_vec()), words(6));
}

#[test]
fn waits_without_limit_and_cancels_at_once() {
    let mut fixture =
        Fixture::new(1, SdmaOptions { patience: Duration::from_millis(1), ..SdmaOptions::default() });
    let memory = fixture.allocate(&[0; 48]);
    fixture.device.with(|device| device.bus_mut().receive(&words(12)));
    let descriptor = transfer((0, Side::Source), memory, (4, 3, SyncUnit::Element));
    let ticket = fixture.engine.post(descriptor).expect("free");
    fixture.engine.ring_doorbell();
    fixture.pass();
    assert!(fixture.request(35) && fixture.request(35));
    assert_eq!(fixture.engine.next_wake(), None, "only the device can wake it");
    fixture.now = fixture.now.after(Duration::from_secs(60));
    assert!(fixture.pass().is_empty());
    fixture.engine.cancel(ticket);
    let ends = fixture.finish();
    assert_eq!(
        ends,
        [EngineCompletion {
            ticket,
            outcome: Outcome {
                result: Err(Failure::Cancelled),
                bytes_done: 8,
                value: 0,
                engine: EngineKind::Simulated
            }
        }]
    );
    assert_eq!(fixture.contents(&memory)[..8], words(2));
    assert!(!fixture.request(35), "no transfer uses the line");
    assert_eq!(fixture.device.with(|device| device.bus().unread()), 40);
}

#[test]
fn an_early_request_fails_the_transfer() {
    let mut fixture = Fixture::new(1, SdmaOptions::default());
    let memory = fixture.allocate(&[0; 48]);
    fixture.device.with(|device| device.bus_mut().receive(&words(12)));
    fixture.engine.post(transfer((0, Side::Source), memory, (4, 3, SyncUnit::Frame))).expect("free");
    fixture.engine.ring_doorbell();
    fixture.pass();
    let accepted = fixture.device.with(|device| [device.request(35), device.request(35)]);
    assert_eq!(accepted, [true, false]);
    let ends = fixture.pass();
    assert_eq!(ends[0].outcome.result, Err(Failure::RequestDropped));
    let done = ends[0].outcome.bytes_done as usize;
    assert!(done < 48 && fixture.contents(&memory)[..done] == words(12)[..done], "{ends:?}");
}

#[test]
fn transfers_of_one_line_run_in_post_order() {
    let mut fixture = Fixture::new(3, SdmaOptions::default());
    let memories = [0; 3].map(|_| fixture.allocate(&[0; 8]));
    fixture.device.with(|device| device.bus_mut().receive(&words(6)));
    for (channel, memory) in [(2, memories[0]), (0, memories[1]), (1, memories[2])] {
        let descriptor = transfer((channel, Side::Source), memory, (2, 1, SyncUnit::Block));
        fixture.engine.post(descriptor).expect("free");
    }
    fixture.engine.ring_doorbell();
    let mut order = Vec::new();
    for _ in 0..3 {
        fixture.pass();
        assert!(fixture.device.with(|device| device.request(35)));
        order.extend(fixture.pass().iter().map(|end| end.ticket.channel));
    }
    assert_eq!(order, [2, 0, 1]);
    let found: Vec<u8> = memories.iter().flat_map(|memory| fixture.contents(memory)).collect();
    assert_eq!(found, words(6));
}

#[test]
fn plain_memory_and_missing_lines_are_refused() {
    let mut fixture = Fixture::new(1, SdmaOptions::default());
    let memory = fixture.allocate(&[0; 64]);
    let lineless = BusMemory::device(REGISTER, 4, RequestLines { readable: None, writable: Some(34) });
    let lineless = lineless.expect("in 32 bits");
    let shape = |elements, frames| Synchronized {
        device: Side::Source,
        element: PixelSize::Bits32,
        elements,
        frames,
        unit: SyncUnit::Element,
    };
    let region = |memory, offset, length| Region::new(memory, offset, length).expect("inside");
    let synchronized = |source, destination, shape| Operation::Synchronized { source, destination, shape };
    let refused = [
        synchronized(region(memory, 0, 4), region(memory, 16, 16), shape(4, 1)),
        synchronized(region(lineless, 0, 4), region(memory, 16, 16), shape(4, 1)),
        synchronized(region(register(), 0, 4), region(register(), 0, 4), shape(1, 1)),
        synchronized(region(register(), 0, 4), region(memory, 17, 16), shape(4, 1)),
        Operation::Copy { source: region(register(), 0, 4), destination: region(memory, 0, 4), length: 4 },
        Operation::Copy { source: region(memory, 0, 4), destination: region(register(), 0, 4), length: 4 },
    ];
    for operation in refused {
        let descriptor = Descriptor::new(0, operation).expect("inside");
        let refused = fixture.engine.post(descriptor).expect_err("it must be refused");
        assert_eq!(refused.reason, RefusalReason::Unsupported, "{:?}", refused.descriptor);
    }
    let nothing = synchronized(region(register(), 0, 4), region(memory, 0, 0), shape(0, 7));
    fixture.engine.post(Descriptor::new(0, nothing).expect("inside")).expect("nothing to do");
    fixture.engine.ring_doorbell();
    assert_eq!(fixture.finish()[0].outcome.result, Ok(()));
}
