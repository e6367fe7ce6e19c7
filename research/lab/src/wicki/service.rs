//! The thesis's driver service on the device's model: capabilities, the path, the SDMA as an engine (Wicki 2014, 3.4).
//!
//! ```text
//! request ─► Path ─ admit, place ─► SdmaEngine ─ driver ─► Counted: register accesses ─► model ─ interrupt ─► completion
//! ```
//!
//! With memory for descriptors the device follows scatter-gather lists itself.
//!
//! Single-threaded, in virtual time; runs the code of live workers. Only the device and reads of its clock take time. The
//! processor's time is charged by [`clients`](super::clients), from the counts kept here.

use core::time::Duration;

use memferry_clock::Instant;
use memferry_driven::{BusMemory, ListMemory, RequestLines, SdmaEngine, SdmaOptions, Shared};
use memferry_drivers::sdma::{InitError, Settings};
use memferry_models::Bus;
use memferry_models::sdma::Sdma;
use memferry_path::{
    Capabilities, CapabilityError, Grantee, Path, PathLimits, PolicyKind, QueueCompletion, QueueKey,
};
use memferry_registers::{Device, RegisterIo};
use memferry_transfer::{
    Engine, Failure, GrantToken, Handle, Operation, Request, Rights, SessionId, Span, Task, Terms,
};

/// The interrupt line of the engine.
const LINE: usize = 0;
/// Entries of the capability table.
const TABLE: usize = 128;
/// Maximum requests of one user that wait for a channel.
const WAITING: usize = 64;

/// A device whose register accesses are counted.
#[derive(Debug)]
pub struct Counted<D> {
    device: D,
    accesses: u64,
    /// Words of descriptors written.
    words: u64,
}

impl<D> Counted<D> {
    pub const fn device(&mut self) -> &mut D {
        &mut self.device
    }
}

impl<D: RegisterIo> RegisterIo for Counted<D> {
    fn read(&mut self, offset: u32) -> u32 {
        self.accesses += 1;
        self.device.read(offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        self.accesses += 1;
        self.device.write(offset, value);
    }
}

impl<D: Device> Device for Counted<D> {
    fn advance(&mut self, now: Instant) {
        self.device.advance(now);
    }

    fn now(&self) -> Instant {
        self.device.now()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.device.next_wake()
    }

    fn is_high(&self, line: usize) -> bool {
        self.device.is_high(line)
    }
}

/// Memory of the device's bus for descriptors.
struct Descriptors<B: Bus> {
    device: Shared<Counted<Sdma<B>>>,
    memory: BusMemory,
}

impl<B: Bus> core::fmt::Debug for Descriptors<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "descriptors in {:?}", self.memory)
    }
}

impl<B: Bus> ListMemory for Descriptors<B> {
    fn memory(&self) -> BusMemory {
        self.memory
    }

    fn write(&mut self, first: usize, words: &[u32]) {
        let at = u64::from(self.memory.address()) + 4 * first as u64;
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.device.with(|counted| {
            counted.words += words.len() as u64;
            // The engine keeps within the memory; a device that reads garbage reports an error.
            let _ = counted.device.bus_mut().write(at, &bytes);
        });
    }
}

/// Why the service or a frame could not be set up, or a request failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ServiceError {
    /// The device could not be set up.
    #[error("the device cannot be set up: {0}")]
    Init(#[from] InitError),
    /// The capability table refused the frame.
    #[error("the frame is refused: {0}")]
    Frame(#[from] CapabilityError),
    /// A frame outside the device's 32 bits.
    #[error("a frame of {length} bytes from {address:#x} reaches beyond 32 bits: place it lower")]
    Address { address: u64, length: u64 },
    /// The client's queue is closed or full.
    #[error("the queue of session {session} is closed or full")]
    Queue { session: u64 },
    #[error("request {tag} completed with {failure}")]
    Failed { tag: u64, failure: Failure },
    /// Clients wait, but the device has no pending events.
    #[error("the device has no pending events while {waiting} requests wait")]
    Stalled {
        /// Requests without a completion.
        waiting: usize,
    },
}

type Engined<B> = SdmaEngine<Counted<Sdma<B>>>;

/// The service around one device.
pub struct Service<B: Bus> {
    device: Shared<Counted<Sdma<B>>>,
    capabilities: Capabilities<BusMemory>,
    path: Path<SdmaEngine<Counted<Sdma<B>>>>,
    queues: Vec<(SessionId, QueueKey)>,
    now: Instant,
}

impl<B: Bus + 'static> Service<B> {
    /// Like [`Service::new`], with `length` bytes from `address` for the descriptors of linked lists.
    ///
    /// # Errors
    /// [`ServiceError::Init`], [`ServiceError::Address`].
    pub fn with_lists(
        device: Sdma<B>,
        channels: u32,
        options: SdmaOptions,
        (address, length): (u32, u64),
    ) -> Result<Self, ServiceError> {
        let outside = ServiceError::Address { address: address.into(), length };
        let memory = BusMemory::new(address, length).ok_or(outside)?;
        Self::built(device, channels, options, |engine, device| {
            engine.with_lists(Box::new(Descriptors { device, memory }))
        })
    }
}

impl<B: Bus> Service<B> {
    /// Creates a service that uses `channels` of the device's channels, without clients.
    ///
    /// # Errors
    /// [`ServiceError::Init`].
    pub fn new(device: Sdma<B>, channels: u32, options: SdmaOptions) -> Result<Self, ServiceError> {
        Self::built(device, channels, options, |engine, _| engine)
    }

    fn built(
        device: Sdma<B>,
        channels: u32,
        options: SdmaOptions,
        finish: impl FnOnce(Engined<B>, Shared<Counted<Sdma<B>>>) -> Engined<B>,
    ) -> Result<Self, ServiceError> {
        let device = Shared::new(Counted { device, accesses: 0, words: 0 });
        let engine = finish(SdmaEngine::new(device.clone(), channels, options)?, device.clone());
        let path = Path::new(engine, PolicyKind::Shared.build(), PathLimits { waiting_per_user: WAITING });
        let now = device.with(|device| device.now());
        device.with(|device| device.accesses = 0);
        Ok(Self { device, capabilities: Capabilities::new(TABLE), path, queues: Vec::new(), now })
    }

    /// The options of the thesis's driver: each request is one hardware transfer, and the driver waits for its end.
    pub fn patient(fifo_depth: u8) -> SdmaOptions {
        let chunk_bytes = 1 << 32;
        let patience = Duration::from_secs(60);
        let settings = Settings { fifo_depth, ..Settings::default() };
        SdmaOptions { chunk_bytes, patience, settings, ..SdmaOptions::default() }
    }

    /// Accesses the device's model.
    pub fn with_device<T>(&self, access: impl FnOnce(&mut Sdma<B>) -> T) -> T {
        self.device.with(|device| access(device.device()))
    }

    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Advances the time while the processor does something else; the device continues.
    pub fn pass(&mut self, picoseconds: u64) {
        self.now = self.now.after_picoseconds(u128::from(picoseconds));
        self.device.with(|device| device.advance(self.now));
    }

    /// Register accesses since the last call.
    pub fn take_accesses(&mut self) -> u64 {
        self.device.with(|device| std::mem::take(&mut device.accesses))
    }

    /// Words of descriptors written since the last call.
    pub fn take_words(&mut self) -> u64 {
        self.device.with(|device| std::mem::take(&mut device.words))
    }

    /// Registers memory as a frame of a session.
    ///
    /// # Errors
    /// [`ServiceError::Address`], [`ServiceError::Frame`].
    pub fn frame(&mut self, session: SessionId, address: u32, length: u64) -> Result<Handle, ServiceError> {
        let outside = ServiceError::Address { address: address.into(), length };
        let memory = BusMemory::new(address, length).ok_or(outside)?;
        Ok(self.capabilities.register(session, memory, Rights::all())?)
    }

    /// Registers a device's registers for the client that is its driver. The frame cannot be granted.
    ///
    /// # Errors
    /// [`ServiceError::Address`], [`ServiceError::Frame`].
    pub fn device_frame(
        &mut self,
        session: SessionId,
        address: u32,
        length: u64,
        lines: RequestLines,
    ) -> Result<Handle, ServiceError> {
        let memory = BusMemory::device(address, length, lines)
            .ok_or(ServiceError::Address { address: address.into(), length })?;
        Ok(self.capabilities.register(session, memory, Rights::READ | Rights::WRITE)?)
    }

    /// Grants a byte of a session's capability to others, for reading.
    ///
    /// # Errors
    /// [`CapabilityError`].
    pub fn grant(
        &mut self,
        session: SessionId,
        handle: Handle,
        grantee: Grantee,
    ) -> Result<GrantToken, CapabilityError> {
        self.capabilities.grant(session, handle, (0, 1), Rights::READ, grantee)
    }

    /// Resets the device. Failed channels work again, and their memory leaves quarantine.
    ///
    /// # Errors
    /// [`ServiceError::Init`].
    pub fn reset(&mut self) -> Result<(), ServiceError> {
        let engine = self.path.engine_mut();
        engine.reset()?;
        for channel in 0..engine.capabilities().channels {
            self.path.channel_was_reset(channel, &mut self.capabilities);
        }
        Ok(())
    }

    /// Accepts a request and starts it if a channel is free.
    ///
    /// # Errors
    /// [`ServiceError::Queue`].
    pub fn submit(
        &mut self,
        session: SessionId,
        tag: u64,
        operation: Operation<Span>,
        terms: Terms,
    ) -> Result<(), ServiceError> {
        let known = self.queues.iter().find(|(owner, _)| *owner == session).map(|(_, queue)| *queue);
        let queue = known.unwrap_or_else(|| {
            let queue = self.path.open_queue(session, 0);
            self.queues.push((session, queue));
            queue
        });
        let room = self.path.reserve(queue, u32::MAX).ok_or(ServiceError::Queue { session: session.0 })?;
        let request = Request { task: Task::Transfer(operation), terms };
        self.path.submit(self.now, room, tag, &request, &mut self.capabilities);
        self.path.ring_doorbell();
        Ok(())
    }

    /// One turn of the event loop: configures and starts accepted requests, and settles what the device reported.
    pub fn turn(&mut self) {
        loop {
            self.path.ring_doorbell();
            self.path.run(self.now);
            self.now = self.now.max(self.device.with(|device| device.now()));
            if !self.path.must_settle() || !self.path.settle(self.now, &mut self.capabilities) {
                return;
            }
        }
    }

    pub fn take_completions(&mut self) -> Vec<QueueCompletion> {
        self.path.take_completions().collect()
    }

    /// Whether the device has an interrupt pending.
    pub fn interrupts(&self) -> bool {
        self.device.with(|device| device.is_high(LINE))
    }

    /// Advances the device to its next interrupt; false if it has nothing left to do.
    pub fn idle(&mut self) -> bool {
        let has_interrupt = self.device.with(|device| {
            while !device.is_high(LINE) {
                let Some(wake) = device.next_wake() else { return false };
                device.advance(wake);
            }
            true
        });
        self.now = self.now.max(self.device.with(|device| device.now()));
        has_interrupt
    }

    /// Runs the event loop, without processor time, until nothing is left to do. Returns tags with outcomes, in the order of
    /// completion.
    pub fn run(&mut self) -> Vec<(u64, Result<(), Failure>)> {
        let mut ends = Vec::new();
        loop {
            self.turn();
            let completed = self.take_completions();
            ends.extend(completed.iter().map(|one| (one.completion.tag, one.completion.outcome.result)));
            match self.path.next_wake() {
                Some(wake) => self.now = self.now.max(wake),
                None => return ends,
            }
        }
    }
}
