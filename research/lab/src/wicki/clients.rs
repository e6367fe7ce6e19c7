//! Clients of the service on the board's one core, in virtual time (Wicki 2014, 4.2).
//!
//! ```text
//! barrier ─► ready: client, client, ... ─► core ─ call: words, messages ─► driver's inbox; the core switches to the driver
//! driver: capabilities identified, path, registers ─► device works ─► interrupt ─► driver ─ reply ─► client
//! ```
//!
//! One address space runs at a time, to the end of its step. The last message of a call switches to its receiver (Barrelfish's
//! `LMP_SEND_FLAGS_DEFAULT`); a sender with more work queues behind the others. An interrupt is a message to the driver, taken
//! between steps. Each client measures its own calls. The driver is the shipped path on the device's model; its core time is
//! charged by its counted actions.

use std::collections::VecDeque;

use memferry_clock::Instant;
use memferry_models::sdma::{Config, Sdma};
use memferry_models::{Bus, BusError, Dram, DramTiming};
use memferry_path::QueueCompletion;
use memferry_transfer::{
    Color24, Copy2d, Count2d, Handle, Lists, Operation, Pattern, PixelSize, Plane, Segment, SessionId, Span,
    Terms,
};

use super::host::Host;
use super::service::{Service, ServiceError};

/// Start of the board's memory.
const MEMORY: u64 = 0x8000_0000;
/// Memory of a client, half of it for sources (section 4.2.1: 128 MiB each); more if its frames need it.
const CLIENT_BYTES: u64 = 128 << 20;
/// Channels of the device.
const CHANNELS: u32 = 32;
/// Largest number of elements in a frame of the thesis's benchmark.
const MAX_ELEMENTS: u64 = (1 << 24) - 1;

/// Where the descriptors of linked lists lie, behind all frames, and their bytes: 64 of each channel.
const LISTS: u32 = 0xF000_0000;
const LIST_BYTES: u64 = 32 * 64 * 32;

/// Memory without contents, since only time matters here, but for the descriptors of linked lists.
#[derive(Clone, Debug, Default)]
pub struct Blank {
    lists: Vec<u8>,
}

impl Blank {
    /// The place of an access to the descriptors.
    fn place(address: u64, length: usize) -> Option<std::ops::Range<usize>> {
        let begin = usize::try_from(address.checked_sub(LISTS.into())?).ok()?;
        let end = begin.checked_add(length)?;
        (end as u64 <= LIST_BYTES).then_some(begin..end)
    }
}

impl Bus for Blank {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        if let Some(kept) = Self::place(address, bytes.len()).and_then(|place| self.lists.get(place)) {
            bytes.copy_from_slice(kept);
        }
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        if let Some(place) = Self::place(address, bytes.len()) {
            self.lists.resize(self.lists.len().max(LIST_BYTES as usize), 0);
            self.lists[place].copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// A call of the driver's interface (listings 1 and 4 of the thesis).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Call {
    Simple,
    /// `mem_fill`: one capability and a value.
    Fill,
    /// `mem_copy_2d` with a colour that it leaves out.
    Transparent,
    /// `mem_copy_2d`: two capabilities with starts and modifiers, counts, colour.
    TwoDimensional,
    /// Left for later by the thesis (5.3): one call with a list of frames of each side.
    ScatterGather,
}

impl Call {
    /// Words of its arguments, including the call's number: two starts and two modifiers a side, two counts, the colour, and
    /// one word for pixel size and transparency.
    fn words(self) -> u64 {
        match self {
            Self::Simple => 1,
            Self::Fill => 2,
            Self::TwoDimensional | Self::Transparent => 1 + 2 * 4 + 2 + 1 + 1,
            // The number of frames; each frame is a capability.
            Self::ScatterGather => 2,
        }
    }

    /// Capabilities of a pair of frames.
    const fn sides(self) -> u64 {
        match self {
            Self::Fill => 1,
            Self::Simple | Self::Transparent | Self::TwoDimensional | Self::ScatterGather => 2,
        }
    }

    /// The call as a request over whole frames of `length` bytes.
    fn operation(self, frames: &[(Handle, Handle)], length: u64) -> Operation<Span> {
        let span = |handle| Span { handle, offset: 0 };
        let list = |side: fn(&(Handle, Handle)) -> Handle| {
            frames.iter().map(|pair| Segment { place: span(side(pair)), length }).collect()
        };
        let (source, destination) =
            frames.first().copied().unwrap_or((Handle::from_bits(0), Handle::from_bits(0)));
        let source = span(source);
        let destination = span(destination);
        match self {
            Self::Simple => Operation::Copy { source, destination, length },
            Self::Fill => Operation::Fill { destination, length, pattern: Pattern::Byte(7) },
            Self::ScatterGather => {
                let lists = Lists { source: list(|pair| pair.0), destination: list(|pair| pair.1) };
                Operation::ScatterGather { lists: lists.into() }
            }
            Self::TwoDimensional | Self::Transparent => {
                let rows = length.div_ceil(MAX_ELEMENTS).next_power_of_two();
                let x_count = (length / rows) as u32;
                let y_count = rows as u32;
                let count = Count2d { pixel: PixelSize::Bits8, x_count, y_count };
                let along = Plane { start: 0, x_step: 1, y_step: 1 };
                // The memory holds zeros, of which this value matches none.
                let transparent = if self == Self::Transparent { Color24::new(1) } else { None };
                let shape = Copy2d { count, source: along, destination: along, transparent };
                Operation::Copy2d { source, destination, shape }
            }
        }
    }
}

/// The load of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Number of clients, released at once.
    pub clients: usize,
    pub call: Call,
    /// Bytes of each transfer.
    pub length: u64,
    /// Transfers of each client.
    pub transfers: usize,
    /// Outstanding transfers allowed for each client.
    pub outstanding: usize,
    /// Frames of each side that a client uses by turns.
    pub frames: usize,
    /// Whether the driver takes a client's next call only after its reply to the previous one, as the thesis's does (Barrelfish's
    /// `usr/drivers/omap44xx/sdma/service.c`).
    pub in_turn: bool,
}

impl Work {
    /// Frames of each side in one call.
    const fn named(&self) -> usize {
        match self.call {
            Call::ScatterGather => self.frames,
            Call::Simple | Call::Fill | Call::Transparent | Call::TwoDimensional => 1,
        }
    }

    /// Capabilities of one call.
    const fn capabilities(&self) -> u64 {
        self.call.sides() * self.named() as u64
    }

    /// One transfer for each of several clients.
    pub const fn once(clients: usize, call: Call, length: u64) -> Self {
        Self { clients, call, length, transfers: 1, outstanding: 1, frames: 1, in_turn: false }
    }
}

/// The measured times, in picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// For each client, the time of each transfer by the client's clock.
    pub latencies: Vec<Vec<u64>>,
    /// From the first call to the last reply.
    pub elapsed: u64,
    /// Busy time of the core in this interval.
    pub busy: u64,
    /// Number of switches to another address space.
    pub switches: u64,
}

impl Outcome {
    pub fn mean_latency(&self) -> f64 {
        let all = || self.latencies.iter().flatten();
        all().map(|latency| *latency as f64).sum::<f64>() / all().count().max(1) as f64
    }

    /// Total bytes in a picosecond: the sum of what each client measured for its transfers of `length` bytes.
    pub fn aggregate(&self, length: u64) -> f64 {
        let of = |latencies: &Vec<u64>| {
            let bytes = length * latencies.len() as u64;
            bytes as f64 / latencies.iter().sum::<u64>().max(1) as f64
        };
        self.latencies.iter().map(of).sum()
    }
}

/// Times of the device and of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTimes {
    pub config: Config,
    pub memory: DramTiming,
    /// The FIFO depth that the driver sets.
    pub fifo_depth: u8,
}

/// The memory that the device sees.
type Memory = Dram<Blank>;

/// Runs the clients on a device with these times.
///
/// # Errors
/// [`ServiceError`], if the work does not fit the board's memory.
pub fn serve(host: &Host, device: &DeviceTimes, work: &Work) -> Result<Outcome, ServiceError> {
    let options = Service::<Memory>::patient(device.fifo_depth);
    served_by(host, work, Service::with_lists(model(device), CHANNELS, options, (LISTS, LIST_BYTES))?)
}

/// Like [`serve`], by a driver without linked lists: each part of a list is a transfer.
///
/// # Errors
/// [`ServiceError`], if the work does not fit the board's memory.
pub fn serve_by_parts(host: &Host, device: &DeviceTimes, work: &Work) -> Result<Outcome, ServiceError> {
    let options = Service::<Memory>::patient(device.fifo_depth);
    served_by(host, work, Service::new(model(device), CHANNELS, options)?)
}

fn model(device: &DeviceTimes) -> Sdma<Memory> {
    Sdma::new(device.config, Dram::new(device.memory, Blank::default()))
}

fn served_by(host: &Host, work: &Work, service: Service<Memory>) -> Result<Outcome, ServiceError> {
    let mut core = Core::new(host, service, work)?;
    core.run()?;
    Ok(core.outcome())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Domain {
    Client(usize),
    Driver,
}

#[derive(Debug)]
struct Client {
    session: SessionId,
    frames: Vec<(Handle, Handle)>,
    /// The time of each call, and its latency after its reply.
    calls: Vec<(Instant, Option<u64>)>,
    replies: VecDeque<usize>,
    /// Calls that the driver has taken and not yet answered.
    taken: usize,
}

impl Client {
    fn in_flight(&self) -> usize {
        self.calls.iter().filter(|(_, latency)| latency.is_none()).count()
    }
}

struct Core<'a> {
    host: &'a Host,
    work: &'a Work,
    service: Service<Memory>,
    clients: Vec<Client>,
    loaded: Option<Domain>,
    ready: VecDeque<Domain>,
    /// Calls that the driver has not yet taken.
    inbox: VecDeque<(usize, usize)>,
    /// Completions that the driver has not yet answered.
    ended: VecDeque<u64>,
    /// Whether an interrupt is pending for the driver.
    interrupted: bool,
    started: Instant,
    busy: u64,
    switches: u64,
}

impl<'a> Core<'a> {
    fn new(host: &'a Host, mut service: Service<Memory>, work: &'a Work) -> Result<Self, ServiceError> {
        let mut clients = Vec::new();
        let count = work.frames.max(1) as u64;
        let half = (CLIENT_BYTES / 2).max(count * work.length.next_power_of_two());
        for index in 0..work.clients as u64 {
            let session = SessionId(index + 1);
            let mut frame = |at: u64| {
                let address = MEMORY + index * 2 * half + at;
                let outside = ServiceError::Address { address, length: work.length };
                service.frame(session, u32::try_from(address).map_err(|_| outside)?, work.length)
            };
            let places = (0..count).map(|at| at * (half / count));
            let frames =
                places.map(|at| Ok((frame(at)?, frame(half + at)?))).collect::<Result<_, ServiceError>>();
            clients.push(Client {
                session,
                frames: frames?,
                calls: Vec::new(),
                replies: VecDeque::new(),
                taken: 0,
            });
        }
        Ok(Self {
            host,
            work,
            ready: (0..work.clients).map(Domain::Client).collect(),
            // The last message of the barrier switched to the first client.
            loaded: Some(Domain::Client(0)),
            clients,
            inbox: VecDeque::new(),
            ended: VecDeque::new(),
            interrupted: false,
            started: service.now(),
            busy: 0,
            switches: 0,
            service,
        })
    }

    fn charge(&mut self, picoseconds: u64) {
        self.service.pass(picoseconds);
        self.busy += picoseconds;
    }

    fn run(&mut self) -> Result<(), ServiceError> {
        while self.waiting() > 0 {
            if self.service.interrupts() && !self.interrupted {
                self.interrupted = true;
                self.charge(self.host.interrupt);
                self.queue(Domain::Driver);
            }
            let Some(domain) = self.ready.pop_front() else {
                if !self.service.idle() {
                    return Err(ServiceError::Stalled { waiting: self.waiting() });
                }
                continue;
            };
            if self.loaded != Some(domain) {
                self.charge(self.host.switch);
                self.switches += 1;
                self.loaded = Some(domain);
            }
            match domain {
                Domain::Driver => self.drive()?,
                Domain::Client(index) => self.call(index),
            }
        }
        Ok(())
    }

    /// Number of transfers without a reply.
    fn waiting(&self) -> usize {
        let replied = |client: &Client| client.calls.iter().filter(|(_, latency)| latency.is_some()).count();
        self.clients.iter().map(|client| self.work.transfers - replied(client)).sum()
    }

    fn queue(&mut self, domain: Domain) {
        if !self.ready.contains(&domain) {
            self.ready.push_back(domain);
        }
    }

    fn switch_to(&mut self, domain: Domain) {
        self.ready.retain(|ready| *ready != domain);
        self.ready.push_front(domain);
    }

    /// A client's step: takes replies, and makes the next call allowed.
    fn call(&mut self, index: usize) {
        let now = self.service.now();
        let client = &mut self.clients[index];
        while let Some(call) = client.replies.pop_front() {
            let (made, latency) = &mut client.calls[call];
            *latency = u64::try_from(now.picoseconds() - made.picoseconds()).ok();
        }
        let may_call = |client: &Client| {
            client.calls.len() < self.work.transfers && client.in_flight() < self.work.outstanding.max(1)
        };
        if !may_call(client) {
            return;
        }
        self.inbox.push_back((index, client.calls.len()));
        client.calls.push((now, None));
        let has_more = may_call(client);
        self.charge(self.host.call(self.work.call.words(), self.work.capabilities()));
        self.switch_to(Domain::Driver);
        if has_more {
            self.queue(Domain::Client(index));
        }
    }

    /// The driver's step: processes completions, then sends one reply, which switches to its client, or else takes new calls.
    fn drive(&mut self) -> Result<(), ServiceError> {
        loop {
            if std::mem::take(&mut self.interrupted) {
                self.turn();
            }
            for QueueCompletion { completion, .. } in self.service.take_completions() {
                let tag = completion.tag;
                completion.outcome.result.map_err(|failure| ServiceError::Failed { tag, failure })?;
                self.ended.push_back(tag);
            }
            if let Some(tag) = self.ended.pop_front() {
                self.reply(tag);
                return Ok(());
            }
            let Some((index, call)) = self.next_call() else { return Ok(()) };
            self.clients[index].taken += 1;
            self.charge(self.work.capabilities() * self.host.invocation);
            let client = &self.clients[index];
            let first = call % client.frames.len();
            let named = &client.frames[first..(first + self.work.named()).min(client.frames.len())];
            let operation = self.work.call.operation(named, self.work.length);
            let tag = (call * self.work.clients + index) as u64;
            self.service.submit(client.session, tag, operation, Terms::default())?;
            if self.service.interrupts() {
                self.charge(self.host.interrupt);
            }
            self.turn();
        }
    }

    /// The oldest call that the driver may take.
    fn next_call(&mut self) -> Option<(usize, usize)> {
        let may_be_taken = |index: usize| !self.work.in_turn || self.clients[index].taken == 0;
        let at = self.inbox.iter().position(|(index, _)| may_be_taken(*index))?;
        self.inbox.remove(at)
    }

    /// A turn of the shipped event loop, charged by its register accesses.
    fn turn(&mut self) {
        self.service.turn();
        let accesses = self.service.take_accesses();
        let words = self.service.take_words();
        self.charge(accesses * self.host.access + words * self.host.word);
    }

    fn reply(&mut self, tag: u64) {
        let call = tag as usize / self.work.clients;
        let index = tag as usize % self.work.clients;
        self.charge(self.host.call(2, 0));
        self.clients[index].replies.push_back(call);
        self.clients[index].taken -= 1;
        self.switch_to(Domain::Client(index));
        if self.interrupted || !self.ended.is_empty() || !self.inbox.is_empty() {
            self.queue(Domain::Driver);
        }
    }

    fn outcome(&self) -> Outcome {
        let latency = |client: &Client| client.calls.iter().filter_map(|(_, latency)| *latency).collect();
        let elapsed = self.service.now().picoseconds() - self.started.picoseconds();
        Outcome {
            latencies: self.clients.iter().map(latency).collect(),
            elapsed: elapsed as u64,
            busy: self.busy,
            switches: self.switches,
        }
    }
}

#[cfg(test)]
mod tests;
