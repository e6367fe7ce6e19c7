//! Memory that a program of the core uses beside the device.
//!
//! ```text
//! device's access ──► Beside: the program's reads that arrive before it ──► memory, then the device's own
//! ```
//!
//! The program fetches line after line, as many at once as the core has line fill buffers. What that does to both is in
//! `contention`.

use memferry_clock::Instant;
use memferry_models::{Access, AccessKind, Bus, BusError, DramTiming};

use crate::parameters::{Parameters, ParametersError};

/// Bytes of a line of the core's caches.
const LINE_BYTES: u64 = 32;
/// Where the program's memory begins, 512 MiB behind the frames of the transfers.
const PROGRAM: u64 = 0xA000_0000;

/// A program that reads line after line from memory.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    address: u64,
    /// Picoseconds from a line to the next one, as far as the program computes.
    think: u64,
    /// Picoseconds from the core to the controller, and from its first data back.
    ways: [u64; 2],
    /// When each line fill buffer is free.
    fills: Vec<Instant>,
    /// When the program asks for its next line.
    next: Instant,
    lines: u64,
}

impl Reader {
    /// A program that computes for so many cycles on each line and begins `offset` bytes into its memory, which has this timing.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub(super) fn new(
        parameters: &Parameters,
        timing: &DramTiming,
        cycles: f64,
        offset: u64,
    ) -> Result<Self, ParametersError> {
        let cycle = 1e6 / parameters.get("cpu-clock")?;
        // The parameter has the whole latency behind level 2, of which memory's own part is left to the model of memory.
        let memory = timing.activate + timing.read + timing.burst;
        let latency = parameters.get("memory-latency")? * 1e3 + parameters.get("l2-latency")? * cycle;
        let way = (latency as u64).saturating_sub(memory) / 2;
        let fills = parameters.get("line-fills")?.max(1.0) as usize;
        Ok(Self {
            address: PROGRAM + offset,
            think: (cycles * cycle) as u64,
            ways: [way, way],
            fills: vec![Instant::ORIGIN; fills],
            next: Instant::ORIGIN,
            lines: 0,
        })
    }

    /// Sends the reads that arrive at memory before `until`.
    fn advance(&mut self, bus: &mut impl Bus, until: Instant) {
        while let Some(free) = self.fills.iter_mut().min() {
            let asked = self.next.max(*free);
            let arrival = asked.after_picoseconds(self.ways[0].into());
            if arrival >= until {
                return;
            }
            let access = Access { address: self.address, bytes: LINE_BYTES as u32, kind: AccessKind::Read };
            *free = bus.serve(arrival, access).after_picoseconds(self.ways[1].into());
            self.next = asked.after_picoseconds(self.think.into());
            self.address += LINE_BYTES;
            self.lines += 1;
        }
    }
}

/// Memory that a program of the core may use beside the device.
#[derive(Clone, Debug)]
pub(super) struct Beside<B> {
    bus: B,
    reader: Option<Reader>,
}

impl<B: Bus> Beside<B> {
    pub(super) const fn new(bus: B) -> Self {
        Self { bus, reader: None }
    }

    pub(super) const fn bus_mut(&mut self) -> &mut B {
        &mut self.bus
    }

    pub(super) fn let_read(&mut self, reader: Reader) {
        self.reader = Some(reader);
    }

    /// The lines that the program has asked for until an instant.
    pub(super) fn lines_until(&mut self, until: Instant) -> u64 {
        let Self { bus, reader } = self;
        reader.as_mut().map_or(0, |reader| {
            reader.advance(bus, until);
            reader.lines
        })
    }
}

impl<B: Bus> Bus for Beside<B> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        self.bus.read(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        self.bus.write(address, bytes)
    }

    fn serve(&mut self, arrival: Instant, access: Access) -> Instant {
        self.lines_until(arrival);
        self.bus.serve(arrival, access)
    }
}
