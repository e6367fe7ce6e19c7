//! `copy_to_user` by the engine, in virtual time (Papa 2014, "copy_to_user() via DMA engine", steps 1 to 7).
//!
//! ```text
//! caller ─ call ─► sub-system ─ submit ─► Path: capability, policy ─► IoatEngine ─ driver ─► model ─ Chipset ─► memory
//!    ▲                                                                                        │
//!    └──────────────── wake ◄──────────── handler ◄─────────── interrupt ◄────────────────────┘
//! ```
//!
//! Policy, path, engine and driver are those of live services; only the CPU's time is charged here. A kernel caller sleeps until
//! its copy completes, so each caller has one copy in flight. Each caller runs on its own CPU (the machine has four).

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

use memferry_clock::Instant;
use memferry_driven::{BusMemory, IoatEngine, IoatInitError, IoatOptions, Shared};
use memferry_models::ioat::Ioat;
use memferry_path::{Capabilities, CapabilityError, Path, PathLimits, Policy, QueueKey};
use memferry_registers::ioat::CHANNELS;
use memferry_transfer::{
    Failure, Handle, Operation, Pattern, PriorityClass, Request, Rights, SessionId, Span,
};

use super::chipset::{CALLERS, Caches, Chipset, ChipsetTimes, RingWords, window};
use super::host::{Host, LINE_BYTES};
use crate::machine::cache::{Hierarchy, ProcessorError};
use crate::parameters::{Parameters, ParametersError};
use crate::rng::Rng;

/// Address of the kernel's own lines.
const KERNEL: u64 = 0xE000_0000;
/// Bytes of a window's sources; its destinations have the same size.
const WINDOW_BYTES: u64 = 1 << 28;

/// Why a figure cannot be computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CftuError {
    /// The engine could not be set up.
    #[error("the engine cannot be set up: {0}")]
    Init(#[from] IoatInitError),
    /// A caller's memory was refused.
    #[error("memory is refused: {0}")]
    Frame(#[from] CapabilityError),
    /// The processor cannot be modelled.
    #[error(transparent)]
    Processor(#[from] ProcessorError),
    /// More callers than windows, or memory beyond 32 bits.
    #[error("{callers} callers: at most {CALLERS} have windows in 32 bits")]
    Callers {
        /// The number of callers requested.
        callers: usize,
    },
    #[error("a copy completed with {0}")]
    Failed(Failure),
    /// A copy is in flight, but no event is pending.
    #[error("no event is pending while a copy is in flight")]
    Stalled,
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub host: Host,
    pub chipset: ChipsetTimes,
    /// Seed of pseudo-random choices.
    pub seed: u64,
}

impl Machine {
    /// The machine with the given parameters.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn new(parameters: &Parameters, seed: u64) -> Result<Self, ParametersError> {
        Ok(Self { host: Host::new(parameters)?, chipset: ChipsetTimes::new(parameters)?, seed })
    }

    /// Empty caches.
    ///
    /// # Errors
    /// [`ProcessorError`].
    pub fn caches(&self) -> Result<Caches, ProcessorError> {
        Ok(Rc::new(RefCell::new(Hierarchy::new(&self.host.processor, self.seed)?)))
    }

    /// Picoseconds of `copy_to_user` by the CPU.
    pub fn copy_by_cpu(&self, caches: &Caches, [source, destination]: [u64; 2], length: u64) -> u64 {
        self.host.call + caches.borrow_mut().copy(source, destination, length)
    }

    /// Picoseconds of any work by the CPU, with the loads or stores of a line at half the issue of a copied one each.
    pub fn work_by_cpu(&self, caches: &Caches, work: Work, places: [u64; 2], length: u64) -> u64 {
        if work == Work::Copy {
            return self.copy_by_cpu(caches, places, length);
        }
        let mut caches = caches.borrow_mut();
        let issue = self.host.processor.issue_ns * 1e3 / 2.0 * (work.sources() + 1) as f64;
        let issued = (length.div_ceil(LINE_BYTES) as f64 * issue) as u64;
        // Line by line, so that the sources are read side by side.
        let lines = (0..length).step_by(LINE_BYTES as usize);
        let touched: u64 = lines
            .map(|at| {
                let part = LINE_BYTES.min(length - at);
                let mut source = |index| caches.read(places[0] + index * SOURCE_BYTES + at, part);
                let read: u64 = (0..work.sources()).map(&mut source).sum();
                read + caches.write(places[1] + at, part)
            })
            .sum();
        self.host.call + issued + touched
    }
}

/// What a request does with memory. The slides' engine only copies; later ones set and XOR as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    Copy,
    Set,
    /// The exclusive or of [`XOR_SOURCES`] sources.
    Xor,
}

/// Sources of an XOR: as many as a stripe of four disks has beside its parity, and fewer than a descriptor without extension takes.
pub const XOR_SOURCES: u64 = 4;

/// Bytes from one source of an XOR to the next.
const SOURCE_BYTES: u64 = WINDOW_BYTES / XOR_SOURCES;

impl Work {
    /// Ranges that are read.
    pub const fn sources(self) -> u64 {
        match self {
            Self::Copy => 1,
            Self::Set => 0,
            Self::Xor => XOR_SOURCES,
        }
    }

    /// The request, between these places of a frame whose second half has the destinations.
    fn operation(self, frame: Handle, [from, to]: [u64; 2], length: u64) -> Operation<Span> {
        let source = |index: u64| Span::new(frame, index * SOURCE_BYTES + from);
        let destination = Span::new(frame, WINDOW_BYTES + to);
        match self {
            Self::Copy => Operation::Copy { source: source(0), destination, length },
            Self::Set => Operation::Fill { destination, length, pattern: Pattern::Byte(0) },
            Self::Xor => {
                let sources = (0..XOR_SOURCES).map(source).collect();
                Operation::Xor { sources, destination, length }
            }
        }
    }
}

/// Picoseconds of an offloaded copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// From the call to the return.
    pub all: u64,
    /// The part spent by the CPU on this copy.
    pub cpu: u64,
}

/// A caller of `copy_to_user`.
#[derive(Debug)]
struct Caller {
    session: SessionId,
    queue: QueueKey,
    frame: Handle,
    class: PriorityClass,
    /// When its next copy reaches the doorbell; `None` while a copy is in flight.
    ready: Option<Instant>,
    copies: u64,
    /// When the copy in flight reached the doorbell.
    started: Instant,
    /// Picoseconds of its longest copy.
    longest: u128,
}

/// The engine with its path and its callers.
pub struct Cftu {
    host: Host,
    caches: Caches,
    device: Shared<Ioat<Chipset>>,
    capabilities: Capabilities<BusMemory>,
    path: Path<IoatEngine<Ioat<Chipset>, RingWords>>,
    callers: Vec<Caller>,
    now: Instant,
    /// How late interrupts and wake-ups come.
    lateness: Rng,
}

impl Cftu {
    /// Sets up all four channels under a policy, with a caller for each of these classes, behind these caches.
    ///
    /// # Errors
    /// [`CftuError`].
    pub fn new(
        machine: &Machine,
        caches: &Caches,
        policy: Box<dyn Policy>,
        classes: &[PriorityClass],
    ) -> Result<Self, CftuError> {
        let callers = classes.len();
        let rings = Chipset::rings().filter(|_| callers <= CALLERS).ok_or(CftuError::Callers { callers })?;
        let chipset = Chipset::new(machine.chipset, Rc::clone(caches));
        let device = Shared::new(Ioat::new(machine.chipset.engine, chipset));
        let options = IoatOptions { chunk_bytes: machine.chipset.descriptor_bytes, ..IoatOptions::default() };
        let memory = (RingWords(device.clone()), rings);
        let engine = IoatEngine::new(device.clone(), memory, CHANNELS as u32, options)?;
        let mut path = Path::new(engine, policy, PathLimits { waiting_per_user: CALLERS });
        let mut capabilities = Capabilities::new(2 * CALLERS);
        let mut all = Vec::new();
        for (index, class) in classes.iter().enumerate() {
            let session = SessionId(index as u64 + 1);
            let memory = BusMemory::new(window(index)[0] as u32, 2 * WINDOW_BYTES);
            let memory = memory.ok_or(CftuError::Callers { callers })?;
            let frame = capabilities.register(session, memory, Rights::all())?;
            let queue = path.open_queue(session, index as u32);
            path.grant_class(queue, PriorityClass::High);
            let ready = Some(Instant::ORIGIN);
            let started = Instant::ORIGIN;
            let class = *class;
            let copies = 0;
            let longest = 0;
            all.push(Caller { session, queue, frame, class, ready, copies, started, longest });
        }
        let now = device.with(|device| device.now());
        let host = machine.host.clone();
        let caches = Rc::clone(caches);
        let lateness = Rng::of_neighbour(machine.seed);
        Ok(Self { host, caches, device, capabilities, path, callers: all, now, lateness })
    }

    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Bytes that the engine has written for a caller.
    pub fn written(&self, caller: usize) -> u64 {
        self.device.with(|device| device.bus().written.get(caller).copied().unwrap_or(0))
    }

    /// For each channel, a bit set of the callers whose memory it was given.
    pub fn served(&self) -> [u32; CHANNELS] {
        self.device.with(|device| device.bus().served)
    }

    /// Picoseconds of a caller's longest copy, from doorbell to completion; includes the time so far of one in flight.
    pub fn longest(&self, caller: usize) -> u128 {
        self.callers.get(caller).map_or(0, |caller| match caller.ready {
            Some(_) => caller.longest,
            None => caller.longest.max(self.now.picoseconds() - caller.started.picoseconds()),
        })
    }

    /// Rules of the device that its driver broke.
    pub fn complaints(&self) -> usize {
        self.device.with(|device| device.complaints().len())
    }

    /// The first caller's copy between offsets in its sources and destinations. Returns picoseconds from call to return, in total
    /// and of the CPU.
    ///
    /// # Errors
    /// [`CftuError::Failed`], [`CftuError::Stalled`].
    pub fn copy(&mut self, places: [u64; 2], length: u64) -> Result<Took, CftuError> {
        self.work(Work::Copy, places, length)
    }

    /// Like [`Cftu::copy`], for any work of the engine.
    ///
    /// # Errors
    /// As [`Cftu::copy`].
    pub fn work(&mut self, work: Work, places: [u64; 2], length: u64) -> Result<Took, CftuError> {
        let started = self.now;
        let half = self.host.path_lines / 2 * LINE_BYTES;
        let touched = self.caches.borrow_mut().read(KERNEL, half);
        let there = self.host.call + self.host.submit + touched;
        self.pass(there);
        self.submit(0, work, places, length);
        self.turn();
        while !self.path.has_completions() {
            let wake = self.path.next_wake().ok_or(CftuError::Stalled)?;
            self.advance(wake);
            self.turn();
        }
        let ended: Vec<_> = self.path.take_completions().collect();
        ended.iter().try_for_each(|one| one.completion.outcome.result).map_err(CftuError::Failed)?;
        let touched = self.caches.borrow_mut().read(KERNEL + half, half);
        let back = self.host.interrupt + self.host.wake + touched;
        self.pass(back);
        let all = (self.now.picoseconds() - started.picoseconds()) as u64;
        Ok(Took { all, cpu: there + back })
    }

    /// Like [`Cftu::copy`], with an interrupt and a wake-up that come late by chance. The CPU does other work meanwhile.
    ///
    /// # Errors
    /// As [`Cftu::copy`].
    pub fn copy_with_chance(&mut self, places: [u64; 2], length: u64) -> Result<Took, CftuError> {
        let took = self.copy(places, length)?;
        let late = self.host.late.map(|mean| exponential(&mut self.lateness, mean)).iter().sum::<u64>();
        self.pass(late);
        Ok(Took { all: took.all + late, ..took })
    }

    /// Every caller copies `lengths(caller)` bytes repeatedly until an instant. Calls `observe` at every step of the device,
    /// before the path processes it. Each caller uses its window in order.
    ///
    /// # Errors
    /// [`CftuError::Failed`], [`CftuError::Stalled`].
    pub fn stream(
        &mut self,
        until: Instant,
        mut lengths: impl FnMut(usize) -> u64,
        mut observe: impl FnMut(&Self),
    ) -> Result<(), CftuError> {
        let between = self.host.call + self.host.submit + self.host.interrupt + self.host.wake;
        loop {
            let ready = self.callers.iter().filter_map(|caller| caller.ready).min();
            let next = ready.into_iter().chain(self.path.next_wake()).min().ok_or(CftuError::Stalled)?;
            if next >= until {
                return Ok(());
            }
            self.advance(next);
            observe(self);
            for caller in 0..self.callers.len() {
                if self.callers[caller].ready.is_some_and(|ready| ready <= self.now) {
                    let length = lengths(caller);
                    let places = WINDOW_BYTES / length.next_multiple_of(LINE_BYTES).max(1);
                    let place = self.callers[caller].copies % places.max(1);
                    self.submit(caller, Work::Copy, [place * length.next_multiple_of(LINE_BYTES); 2], length);
                }
            }
            self.turn();
            for completed in self.path.take_completions() {
                completed.completion.outcome.result.map_err(CftuError::Failed)?;
                if let Some(caller) = self.callers.iter_mut().find(|one| one.queue == completed.queue) {
                    caller.ready = Some(self.now.after_picoseconds(between.into()));
                    let time = self.now.picoseconds() - caller.started.picoseconds();
                    caller.longest = caller.longest.max(time);
                }
            }
        }
    }

    /// Like [`Cftu::stream`]; returns each caller's bandwidth after the time `start`.
    ///
    /// # Errors
    /// As [`Cftu::stream`].
    pub fn bandwidths(
        &mut self,
        length: u64,
        [before, counted]: [Duration; 2],
    ) -> Result<Vec<f64>, CftuError> {
        let begin = self.now.after(before);
        self.stream(begin, |_| length, |_| ())?;
        let callers = 0..self.callers.len();
        let first: Vec<u64> = callers.clone().map(|caller| self.written(caller)).collect();
        self.stream(begin.after(counted), |_| length, |_| ())?;
        let moved = callers.zip(first).map(|(caller, first)| self.written(caller) - first);
        Ok(moved.map(|bytes| bytes as f64 / counted.as_nanos() as f64).collect())
    }

    fn pass(&mut self, picoseconds: u64) {
        self.advance(self.now.after_picoseconds(picoseconds.into()));
    }

    fn advance(&mut self, until: Instant) {
        self.now = self.now.max(until);
        self.device.with(|device| device.step(self.now));
    }

    fn submit(&mut self, caller: usize, work: Work, places: [u64; 2], length: u64) {
        let Some(caller) = self.callers.get_mut(caller) else { return };
        let mut request = Request::new(work.operation(caller.frame, places, length));
        request.terms.class = caller.class;
        caller.copies += 1;
        (caller.ready, caller.started) = (None, self.now);
        if let Some(room) = self.path.reserve(caller.queue, u32::MAX) {
            self.path.submit(self.now, room, caller.session.0, &request, &mut self.capabilities);
        }
    }

    /// Starts submitted requests and settles what the device reported.
    fn turn(&mut self) {
        loop {
            self.path.ring_doorbell();
            let more = self.path.run(self.now);
            let started = self.path.must_settle() && self.path.settle(self.now, &mut self.capabilities);
            if !more && !started {
                return;
            }
        }
    }
}

/// A time of this mean, exponentially distributed.
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    (-(1.0 - rng.part()).ln() * mean as f64) as u64
}
