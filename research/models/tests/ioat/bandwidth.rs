//! Bandwidth through the shared memory port: the limit of one channel, the limit of all, and fair sharing.

use super::support::{Board, COMPLETING, copy};
use memferry_clock::Instant;
use memferry_models::ioat::{Config, Ioat, Timing};
use memferry_models::{Access, AccessKind, Bus, BusError, Ram};
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor};
use memferry_registers::{NarrowIo, RegisterIo};

const BYTES: u64 = 0x8000;

/// Nanoseconds in which the last and the first of `channels` channels finish; each copies `BYTES` in four descriptors.
fn duration(timing: Timing, channels: usize) -> (u64, u64) {
    let mut board = Board::with(Config { timing, ..Config::default() });
    for channel in 0..channels {
        board.arm(channel);
        for piece in 0..4 {
            let at = BYTES / 4 * piece;
            board.chain(
                channel,
                (BYTES / 4) as u32,
                COMPLETING,
                copy(at, 0x10000 + BYTES * channel as u64 + at),
            );
        }
    }
    (0..channels).for_each(|channel| board.count(channel));
    let mut ends = [0; 4];
    while let Some(due) = board.ioat.next_wake() {
        board.ioat.step(due);
        for (channel, end) in ends.iter_mut().enumerate().take(channels) {
            let done = board.completion_word(channel).completed() == board.slot(channel, 3);
            if done && *end == 0 {
                *end = due.nanoseconds();
            }
        }
    }
    let ends = &ends[..channels];
    (*ends.iter().max().unwrap(), *ends.iter().min().unwrap())
}

#[test]
fn outstanding_bursts_limit_one_channel() {
    let timing = Timing::default();
    let (alone, _) = duration(timing, 1);
    let burst = 2 * (timing.turn + 256 / 32) + timing.read_latency + timing.write_latency;
    let bursts = BYTES / 256 / u64::from(timing.outstanding);
    let floor = bursts * burst * timing.cycle / 1000;
    assert!(alone >= floor && alone < floor * 5 / 4, "{alone} ns, at least {floor} ns");
    let (twice, _) = duration(Timing { outstanding: 8, ..timing }, 1);
    assert!(twice * 3 < alone * 2, "{twice} ns with twice the bursts, {alone} ns");
}

#[test]
fn channels_share_the_port_equally() {
    let timing = Timing { bus_bytes: 8, ..Timing::default() };
    let (all, first) = duration(timing, 4);
    let floor = 4 * BYTES / 256 * 2 * (timing.turn + 256 / 8) * timing.cycle / 1000;
    assert!(all >= floor && all < floor * 11 / 10, "{all} ns, at least {floor} ns");
    assert!(first * 20 > all * 19, "the first ends at {first} ns, the last at {all} ns");
    let (alone, _) = duration(timing, 1);
    assert!(alone * 2 < all, "one alone takes {alone} ns of {all} ns");
}

#[test]
fn every_timing_parameter_has_an_effect() {
    let normal = duration(Timing::default(), 1).0;
    let slower: [fn(&mut Timing); 9] = [
        |timing| timing.cycle *= 2,
        |timing| timing.bus_bytes /= 4,
        |timing| timing.turn += 20,
        |timing| timing.burst_bytes = 64,
        |timing| timing.outstanding = 2,
        |timing| timing.read_latency *= 2,
        |timing| timing.write_latency *= 2,
        |timing| timing.start *= 10,
        |timing| timing.pipeline = 1,
    ];
    for (index, slow) in slower.iter().enumerate() {
        let mut timing = Timing::default();
        slow(&mut timing);
        let found = duration(timing, 1).0;
        assert!(found > normal, "parameter {index}: {found} ns, {normal} ns without");
    }
}

/// Memory whose reads above 0x1000 take a microsecond.
struct Slow(Ram);

impl Bus for Slow {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        self.0.read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.0.write(address, bytes)
    }

    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        let slow = access.kind == AccessKind::Read && access.address >= 0x1000;
        if slow { arrival.after_picoseconds(1_000_000) } else { arrival }
    }
}

#[test]
fn slow_memory_delays_its_own_reads() {
    let [quick, slow] = [0_u32, 0x1000].map(|from| {
        let mut ioat = Ioat::new(Config::default(), Slow(Ram::new(0, vec![0; 0x4000])));
        let body = Body::Copy { source: from.into(), destination: 0x2000 };
        let descriptor = Descriptor { size: 256, control: Control::new(), next: 0, body };
        let words = descriptor.encode();
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        ioat.bus_mut().write(0x400, &bytes).unwrap();
        ioat.write(0x90, 0x400);
        ioat.write(0x94, 0);
        ioat.write16(0x86, 1);
        while let Some(due) = ioat.next_wake() {
            ioat.step(due);
        }
        ioat.now().nanoseconds()
    });
    assert_eq!(slow, quick + 1000);
}
