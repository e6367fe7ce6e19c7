//! The I/OAT engine's view of the system: memory behind the 5000X, the snooped caches of the processors, and its rings.
//!
//! ```text
//! engine's access ─┬─► memory ─────────────────────────────────────────────┐ later of both
//!                  └─► snoop ─ modified lines ─► front-side bus, one by one ┴──► served
//! ring region: stored and inspected (which channel was given whose memory); other bytes are only counted
//! ```
//!
//! A snoop runs in parallel with memory's own access, so only its additional time is waited for. An access removes the lines that
//! it writes from the caches, and leaves those that it reads clean. The engine's own tests check the contents.

use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::Instant;
use memferry_driven::{BusMemory, Shared};
use memferry_drivers::ioat::DmaMemory;
use memferry_models::ioat::{Config, Ioat, Timing};
use memferry_models::{Access, AccessKind, Bus, BusError, Ram};
use memferry_registers::ioat::CHANNELS;
use memferry_registers::ioat::descriptor::{Body, Descriptor, WORDS};

use super::host::LINE_BYTES;
use crate::machine::cache::Hierarchy;
use crate::parameters::{Parameters, ParametersError};

/// The caches, shared by the processor and the chipset.
pub type Caches = Rc<RefCell<Hierarchy>>;

/// Address of the rings. Each channel has space for 255 descriptors and the completion word.
const RINGS: u32 = 0xF000_0000;
const RING_BYTES: u64 = 256 * 64;
/// The caller's number is in the address bits from this one on.
const WINDOW_BITS: u32 = 29;
/// Maximum number of callers, by the windows below the rings.
pub const CALLERS: usize = 7;

/// The first byte of a caller's sources and destinations, each of 256 MiB.
pub fn window(caller: usize) -> [u64; 2] {
    let first = (caller as u64) << WINDOW_BITS;
    [first, first + (1 << (WINDOW_BITS - 1))]
}

/// Times of engine and snoops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChipsetTimes {
    pub engine: Config,
    /// Picoseconds until a processor answers a snoop.
    pub snoop_answer: u64,
    /// Picoseconds of a memory read, in parallel with the snoop.
    pub memory: u64,
    /// Picoseconds to transfer a line on the front-side bus.
    pub line: u64,
    /// Maximum bytes of a descriptor.
    pub descriptor_bytes: u64,
}

impl ChipsetTimes {
    /// The times with the given parameters.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let count = |name: &str| parameters.get(name).map(|value| value.round() as u64);
        let timing = Timing {
            cycle: count("engine-cycle")?,
            bus_bytes: count("way-bytes")? as u32,
            turn: count("way-turn")?,
            burst_bytes: count("burst")? as u32,
            outstanding: count("outstanding")? as u32,
            read_latency: count("read-latency")?,
            write_latency: count("write-latency")?,
            start: count("engine-start")?,
            decode: count("engine-decode")?,
            ..Timing::default()
        };
        let ps = |name: &str| parameters.get(name).map(|value| (value * 1e3).round() as u64);
        Ok(Self {
            engine: Config { timing, ..Config::default() },
            snoop_answer: ps("snoop-answer")?,
            memory: ps("memory-latency")?,
            line: (LINE_BYTES as f64 / parameters.get("memory-bandwidth")? * 1e6).round() as u64,
            descriptor_bytes: count("descriptor-bytes")?,
        })
    }
}

/// The engine's side of the chipset.
#[derive(Debug)]
pub struct Chipset {
    rings: Ram,
    caches: Caches,
    times: ChipsetTimes,
    /// When the front-side bus has transferred the modified lines.
    bus_free: Instant,
    /// Bytes written to each caller's window.
    pub written: [u64; CALLERS + 1],
    /// For each channel, a bit set of the callers whose memory it was given.
    pub served: [u32; CHANNELS],
}

impl Chipset {
    /// Memory without any transfers so far.
    pub fn new(times: ChipsetTimes, caches: Caches) -> Self {
        let rings = Ram::new(RINGS.into(), vec![0; RING_BYTES as usize * CHANNELS]);
        let written = [0; CALLERS + 1];
        let served = [0; CHANNELS];
        Self { rings, caches, times, bus_free: Instant::ORIGIN, written, served }
    }

    pub fn rings() -> Option<BusMemory> {
        BusMemory::new(RINGS, RING_BYTES * CHANNELS as u64)
    }

    /// Inspects a descriptor that the engine reads.
    fn inspect(&mut self, address: u64, bytes: &[u8]) {
        let channel = (address - u64::from(RINGS)) / RING_BYTES;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        if let Ok(Descriptor { body: Body::Copy { destination, .. }, .. }) = Descriptor::decode(&words)
            && let Some(served) = self.served.get_mut(channel as usize)
        {
            *served |= 1 << (destination >> WINDOW_BITS);
        }
    }
}

impl Bus for Chipset {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        if address < RINGS.into() {
            return Ok(());
        }
        self.rings.read(address, bytes)?;
        self.inspect(address, bytes);
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        if address < RINGS.into() {
            self.written[(address >> WINDOW_BITS) as usize] += bytes.len() as u64;
            return Ok(());
        }
        self.rings.write(address, bytes)
    }

    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        let Access { address, bytes, kind } = access;
        let write = kind != AccessKind::Read;
        let modified = self.caches.borrow_mut().snoop(address, bytes.into(), write);
        if modified == 0 {
            return arrival;
        }
        let answered = arrival.after_picoseconds(self.times.snoop_answer.into());
        let carried = u128::from(modified * self.times.line);
        self.bus_free = self.bus_free.max(answered).after_picoseconds(carried);
        let hidden = arrival.after_picoseconds(self.times.memory.into());
        let late = self.bus_free.picoseconds().saturating_sub(hidden.picoseconds());
        arrival.after_picoseconds(late)
    }
}

/// The processor's access to the rings.
#[derive(Debug)]
pub struct RingWords(pub Shared<Ioat<Chipset>>);

impl DmaMemory for RingWords {
    fn read(&mut self, address: u64) -> u64 {
        let mut bytes = [0; 8];
        // The driver stays inside its rings.
        let read = self.0.with(|device| device.bus_mut().rings.read(address, &mut bytes));
        debug_assert!(read.is_ok(), "{address:#x}");
        u64::from_le_bytes(bytes)
    }

    fn write(&mut self, address: u64, word: u64) {
        let bytes = word.to_le_bytes();
        let written = self.0.with(|device| device.bus_mut().rings.write(address, &bytes));
        debug_assert!(written.is_ok(), "{address:#x}");
    }
}
