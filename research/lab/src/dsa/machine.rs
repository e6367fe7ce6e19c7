//! The device with work queues, its memory, and the ways to it.
//!
//! ```text
//! Machine::new ── driver's control half: reset, groups, work queues, enabled ──► Shared<model>
//! queue(number) ──► the driver's data half over ModelPortal and RamWords
//! ```

use core::time::Duration;

use memferry_clock::Instant;
use memferry_driven::Shared;
use memferry_dsa::registers::descriptor::{Descriptor, Operation};
use memferry_dsa::registers::offset::{Portal as Kind, portal};
use memferry_dsa::{
    CommandFailure, ConfigurationError, DmaMemory, Dsa, Group, InitError, Limits, Portal, Queue, QueueConfig,
    QueueError, Refused, SubmitError, WorkQueue,
};
use memferry_models::Ram;
use memferry_models::dsa::{Config, Dsa as Model, Pci, Timing};
use memferry_path::CapabilityError;
use memferry_transfer::Failure;

use crate::parameters::{Parameters, ParametersError};

pub(super) type Device = Model<Ram>;

/// Where memory begins. It is within 32 bits, as bus addresses of the lab are.
pub(super) const BASE: u64 = 0x1000_0000;
/// Bytes of the sources; the destinations, behind them, are as many.
pub(super) const AREA: u64 = 4 << 20;
/// Behind both: completion records and lists of each queue.
const OWN: u64 = BASE + 2 * AREA;
/// Bytes of the records and of the lists of one queue.
const RECORDS_BYTES: u64 = 0x1_0000;
const LISTS_BYTES: u64 = 0x2_0000;
const QUEUES: u64 = 4;
/// The address space of a shared work queue.
const PASID: u32 = 5;
/// Maximum time of a command.
pub(super) const TIMEOUT: Duration = Duration::from_millis(1);
/// Requests of the largest batch, as a power of two.
const LARGEST_BATCH: u8 = 7;

/// Why a line cannot be computed.
#[derive(Debug, thiserror::Error)]
pub(super) enum DsaError {
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    #[error("the device cannot be initialized: {0}")]
    Init(#[from] InitError),
    #[error("the device cannot be configured: {0}")]
    Configuration(#[from] ConfigurationError),
    #[error("the device cannot be enabled: {0}")]
    Command(#[from] CommandFailure),
    #[error("a work queue cannot be used: {0}")]
    Queue(#[from] QueueError),
    #[error("a request was not submitted: {0}")]
    Submit(#[from] SubmitError),
    #[error("memory is refused: {0}")]
    Capability(#[from] CapabilityError),
    #[error("a request ended with {0}")]
    Failed(Failure),
    /// The driver's outcome, in words.
    #[error("a request ended with {0}")]
    Ended(String),
    #[error("a work queue is missing")]
    NoQueue,
    #[error("no event is pending while a request is in flight")]
    Stalled,
}

/// The processor's access to records and lists.
#[derive(Clone, Debug)]
pub(super) struct RamWords(Shared<Device>);

impl RamWords {
    const fn place(address: u64) -> usize {
        address.wrapping_sub(BASE) as usize
    }
}

impl DmaMemory for RamWords {
    fn read(&mut self, address: u64) -> u64 {
        let at = Self::place(address);
        self.0.with(|device| {
            let bytes = device.bus().bytes().get(at..at.saturating_add(8));
            bytes.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes)
        })
    }

    fn write(&mut self, address: u64, word: u64) {
        let at = Self::place(address);
        self.0.with(|device| {
            if let Some(bytes) = device.bus_mut().bytes_mut().get_mut(at..at.saturating_add(8)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        });
    }
}

/// A portal of the model.
#[derive(Clone, Debug)]
pub(super) struct ModelPortal {
    device: Shared<Device>,
    queue: u32,
    shared: bool,
}

impl Portal for ModelPortal {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        let offset = portal(self.queue, Kind::Limited);
        self.device.with(|device| {
            if !self.shared {
                device.post(offset, descriptor.words);
                return Ok(());
            }
            let taken = device.enqueue(offset, descriptor.with_pasid(PASID, false).words);
            if taken { Ok(()) } else { Err(Refused::Busy) }
        })
    }
}

/// What a machine has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Engines of the one group.
    pub(super) engines: u32,
    /// Work queues of the group, with equal parts of the device's entries.
    pub(super) queues: u8,
    /// They are shared: the device answers whether it took a descriptor.
    pub(super) shared: bool,
}

/// The times of the model.
pub(super) fn timing(parameters: &Parameters) -> Result<Timing, ParametersError> {
    let time = |name| parameters.get(name).map(|value| value as u64);
    Ok(Timing {
        portal: time("portal")?,
        dispatch: time("dispatch")?,
        decode: time("decode")?,
        line: time("line")?,
        read_latency: time("read-latency")?,
        write_latency: time("write-latency")?,
        ..Timing::default()
    })
}

/// An enabled device with enabled work queues.
pub(super) struct Machine {
    pub(super) device: Shared<Device>,
    control: Dsa<Shared<Device>, Shared<Device>>,
    shared: bool,
    entries: u16,
}

impl Machine {
    pub(super) fn new(timing: Timing, setup: &Setup) -> Result<Self, DsaError> {
        let config = Config { timing, ..Config::default() };
        let bytes = 2 * AREA + QUEUES * (RECORDS_BYTES + LISTS_BYTES);
        let mut model = Model::new(config, Ram::new(BASE, vec![0; bytes as usize]));
        model.set_pci(Pci { pasid: setup.shared, ..Pci::default() });
        let device = Shared::new(model);
        let mut control = Dsa::new(device.clone(), device.clone());
        let has = control.initialize(TIMEOUT)?;
        let entries = has.queues.total_size() / u16::from(setup.queues.max(1));
        let engines = (1 << setup.engines) - 1;
        let group = Group { engines, read_buffers_reserved: 0, read_buffers_allowed: None };
        let queue = WorkQueue {
            size: entries,
            group: 0,
            dedicated: !setup.shared,
            threshold: entries,
            priority: 10,
            block_on_fault: false,
            max_transfer: None,
            max_batch: Some(LARGEST_BATCH),
            pasid: setup.shared.then_some(PASID),
        };
        control.configure(&[group], &vec![queue; setup.queues.into()])?;
        control.enable(TIMEOUT)?;
        for queue in 0..setup.queues {
            control.enable_queue(queue, TIMEOUT)?;
        }
        Ok(Self { device, control, shared: setup.shared, entries })
    }

    /// A client's side of a work queue. `own` names the memory of its records and lists: clients of a shared queue have different ones.
    pub(super) fn queue<const SLOTS: usize>(
        &mut self,
        queue: u8,
        own: u64,
        (lists, list_length): (u16, u16),
    ) -> Result<Queue<ModelPortal, RamWords, SLOTS>, DsaError> {
        let limits: Limits = self.control.limits(queue).ok_or(DsaError::NoQueue)?;
        let portal = ModelPortal { device: self.device.clone(), queue: queue.into(), shared: self.shared };
        let records = OWN + own * (RECORDS_BYTES + LISTS_BYTES);
        let config = QueueConfig {
            records,
            list: records + RECORDS_BYTES,
            lists,
            list_length,
            entries: self.entries,
            attempts: 1,
        };
        Ok(Queue::new(portal, RamWords(self.device.clone()), limits, config)?)
    }

    pub(super) fn now(&self) -> Instant {
        self.device.with(|device| device.now())
    }

    /// Lets the device work until a time.
    pub(super) fn advance(&self, until: Instant) {
        self.device.with(|device| device.step(until));
    }

    /// Time of the device's next event.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.device.with(|device| device.next_wake())
    }
}

/// The `index`-th move of `bytes` bytes: its places go round both areas.
pub(super) fn nth_move(index: u64, bytes: u64) -> Operation {
    let places = AREA / bytes.next_multiple_of(64).min(AREA);
    let at = index % places * bytes.next_multiple_of(64);
    Operation::Move { source: BASE + at, destination: BASE + AREA + at, bytes: bytes as u32 }
}
