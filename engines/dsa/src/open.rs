//! Opens work queues, and chooses the way of descriptors to them.

use memferry_driven_engines::{DSA_SLOTS, DeviceWords, DsaEngine, DsaOptions};
use memferry_dsa::registers::descriptor;
use memferry_dsa::registers::record;
use memferry_dsa::{ByWrite, Portal, Queue, QueueConfig, Refused};
use memferry_shm::frame::{self, AllocateError};
use memferry_shm::storage::MappedWords;

use crate::error::OpenError;
use crate::kernel::{Kernel, Mode, NotMapped, QueueFile};
use crate::linux::Monotonic;
use crate::memory::{Reached, Touch};
use crate::name::QueueName;
use crate::settings::Settings;

/// Batches of a queue that may be outstanding.
const LISTS: u16 = 8;
/// Requests of a batch at most.
const LONGEST_LIST: u32 = 32;
/// How often a descriptor is offered to a shared queue that is full, before other work comes first.
const ATTEMPTS: u32 = 16;
/// Requests of a service that a queue works on at a time.
const MOST_CHANNELS: u16 = 32;
/// Bytes of a descriptor: some 10 µs of a device. A cancel takes effect between descriptors.
const CHUNK_BYTES: u64 = 256 << 10;

/// The way of descriptors to a queue. The file keeps the process bound to it.
#[derive(Debug)]
pub(crate) enum Way<F: QueueFile> {
    Mapped { portal: F::Portal, _file: F },
    Written(ByWrite<F>),
}

impl<F: QueueFile> Portal for Way<F> {
    fn submit(&mut self, descriptor: &descriptor::Descriptor) -> Result<(), Refused> {
        match self {
            Self::Mapped { portal, .. } => portal.submit(descriptor),
            Self::Written(file) => file.submit(descriptor),
        }
    }

    fn takes_batches(&self) -> bool {
        match self {
            Self::Mapped { portal, .. } => portal.takes_batches(),
            Self::Written(file) => file.takes_batches(),
        }
    }
}

/// The engine of one queue.
pub(crate) type QueueEngine<F> = DsaEngine<Monotonic, Way<F>, DeviceWords<MappedWords>, Touch, Reached>;

/// An open queue, ready for requests.
pub(crate) struct Opened<F: QueueFile> {
    pub(crate) engine: QueueEngine<F>,
    /// For people to read: how descriptors get there.
    pub(crate) way: String,
    /// For people to read: what may go wrong.
    pub(crate) warning: Option<String>,
}

/// Requests of a service that a queue works on at a time.
pub(crate) fn channels(settings: &Settings) -> u32 {
    settings.entries.min(MOST_CHANNELS).into()
}

/// Opens a queue in the process that will use it.
pub(crate) fn open<K: Kernel>(kernel: &K, queue: QueueName) -> Result<Opened<K::File>, OpenError> {
    let settings = Settings::read(kernel, queue)?;
    let file = kernel.open(queue).map_err(|source| OpenError::Open { queue, source })?;
    let (way, said) = way(file, &settings);
    let limits = settings.limits;
    let has_batches = way.takes_batches() && limits.largest_batch > 1;
    let list_length = if has_batches { limits.largest_batch.min(LONGEST_LIST) as u16 } else { 0 };
    let lists = if has_batches { LISTS } else { 0 };
    let record_bytes = record::BYTES * DSA_SLOTS as u64;
    let list_bytes = descriptor::BYTES * u64::from(lists) * u64::from(list_length);
    let (_, memory) = frame::allocate_half(record_bytes + list_bytes)
        .map_err(|source| OpenError::Memory { queue, source })?;
    let warning = kernel.keep_present(&memory).err().map(|error| {
        format!(
            "warning: {queue}: its completion records cannot be locked in memory: {error}. If one is swapped out when the device writes it, the \
             engine waits in vain and starts again: raise LimitMEMLOCK= of its unit to {} KiB for each queue",
            memory.length_bytes().div_ceil(1024)
        )
    });
    let base = memory.pointer().expose_provenance() as u64;
    let words = MappedWords::new(memory).ok_or(OpenError::Memory { queue, source: AllocateError::Empty })?;
    let config = QueueConfig {
        records: base,
        list: base + record_bytes,
        lists,
        list_length,
        entries: settings.entries,
        attempts: if settings.mode == Mode::Shared { ATTEMPTS } else { 1 },
    };
    let records = DeviceWords::new(words, base);
    let inner =
        Queue::new(way, records, limits, config).map_err(|source| OpenError::Queue { queue, source })?;
    let options = DsaOptions {
        chunk_bytes: CHUNK_BYTES,
        batch: usize::from(list_length).max(1),
        // Below the two seconds after which a service takes the engine for stalled.
        patience: std::time::Duration::from_millis(500),
        // The caller decides when to poll.
        period: std::time::Duration::ZERO,
        ..DsaOptions::default()
    };
    let engine = DsaEngine::new(Monotonic, inner, Touch, channels(&settings), options);
    let mode = if settings.mode == Mode::Shared { "shared" } else { "dedicated" };
    let batches = match (has_batches, limits.largest_batch) {
        (true, _) => format!("batches of up to {list_length}"),
        (false, 0..=1) => "no batches: the queue's operations leave them out".to_owned(),
        (false, _) => "no batches: write() takes none".to_owned(),
    };
    let group = settings.group;
    Ok(Opened { engine, way: format!("{queue} ({mode}, group {group}): {said}; {batches}"), warning })
}

/// By the portal if it can be mapped, else by write().
fn way<F: QueueFile>(file: F, settings: &Settings) -> (Way<F>, String) {
    match file.map(settings.mode) {
        Ok(portal) => {
            let instruction = if settings.mode == Mode::Shared { "ENQCMD" } else { "MOVDIR64B" };
            (Way::Mapped { portal, _file: file }, format!("by its portal, with {instruction}"))
        }
        Err(why) => {
            let remedy = match &why {
                NotMapped::Refused(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    " (portals need CAP_SYS_RAWIO since INTEL-SA-01084)"
                }
                _ => "",
            };
            (
                Way::Written(ByWrite(file)),
                format!("by write(), which is slower: its portal cannot be mapped: {why}{remedy}"),
            )
        }
    }
}

/// Whether a queue can be opened now. It is closed again, for the process that will use it.
pub(crate) fn try_open<K: Kernel>(kernel: &K, queue: QueueName) -> Result<Settings, OpenError> {
    let settings = Settings::read(kernel, queue)?;
    kernel.open(queue).map_err(|source| OpenError::Open { queue, source })?;
    Ok(settings)
}

#[cfg(test)]
mod tests;
