//! Requests of the service, done by the channels of the device.
//!
//! ```text
//! Engine::next ─► operands as IOVAs ─► waiting ─► a free channel ─► descriptors ─► completion words ─► complete
//! a channel fails ─► it alone is reset, its request fails, the service has the CPU repeat it
//! its reset fails ─► the process ends without completing: that takes all memory from the device
//! ```
//!
//! Requests that the service sends do not depend on each other, so they may run on any channel and end in any order.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use memferry_driven_engines::{DeviceWords, IoatEngine, Shared};
use memferry_engine::{
    Channels, Engine, Failure, Job, Outcome, Pauses, Region, Reports, Waiting, cancel_waiting,
};
use memferry_ioat_registers::{CHANNELS, Device};
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Engine as _, Reach};
use thiserror::Error;

use crate::device::Parts;
use crate::frames::Frames;
use crate::memory::Reached;
use crate::open::OpenError;
use crate::vfio::Vfio;
use memferry_vfio::PciAddress;

/// Requests for each channel: one runs, the others begin without a round trip to the service.
pub(crate) const CHANNEL_REQUESTS: u32 = 4;
/// Requests that are taken before the device is looked at again.
const MOST_TAKEN: u32 = CHANNELS as u32 * CHANNEL_REQUESTS;
/// How often the kernel is asked whether it wants the device back.
const CHECK: Duration = Duration::from_millis(200);
/// Failures of channels that are reported one by one.
const REPORTED_FAILURES: u32 = 20;

/// Why an engine's process ends.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The device cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A thread could not be started.
    #[error("starting the thread that maps frames: {0}")]
    Thread(io::Error),
    /// A channel does not stop.
    #[error(
        "channel {channel} of {device} does not end its reset. The end of this process takes memory from the device; the keeper starts \
         another one, which resets the device"
    )]
    Stuck { device: PciAddress, channel: u32 },
    /// It is not what the engine was announced as.
    #[error("{0} can do other things than when this engine was started: start it again")]
    Changed(PciAddress),
    /// The device is removed, or gets another driver.
    #[error("{0} is wanted back by the kernel: it is removed, or given to another driver")]
    WantedBack(PciAddress),
}

pub(crate) struct Server<V: Vfio> {
    address: PciAddress,
    vfio: V,
    registers: Shared<V::Registers>,
    channels: Channels<IoatEngine<V::Registers, DeviceWords<MappedWords>, Reached>>,
    frames: Frames<V::Domain>,
    waiting: VecDeque<Waiting<Reached>>,
    pauses: Pauses,
    checked: Instant,
    failures: Reports,
}

impl<V: Vfio> Drop for Server<V> {
    fn drop(&mut self) {
        self.frames.close();
    }
}

impl<V: Vfio> Server<V> {
    pub(crate) fn new(name: &str, address: PciAddress, parts: Parts<V>) -> Self {
        let Parts { vfio, registers, engine, frames } = parts;
        Self {
            address,
            vfio,
            registers,
            channels: Channels::new(engine),
            frames,
            waiting: VecDeque::new(),
            pauses: Pauses::new(),
            checked: Instant::now(),
            failures: Reports::new(name, REPORTED_FAILURES),
        }
    }

    /// Follows the frames of the engine.
    pub(crate) fn watch(&self, engine: &mut Engine) -> Result<(), ServeError> {
        self.frames.start().map_err(ServeError::Thread)?;
        engine.watch_frames(self.frames.clone());
        Ok(())
    }

    pub(crate) fn serve(mut self, engine: &mut Engine) -> Result<(), ServeError> {
        loop {
            let mut wait = self.pauses.next(self.is_idle());
            // Requests that are refused at once could come without an end.
            for _ in 0..MOST_TAKEN {
                let Some(job) = engine.next(wait) else { break };
                self.pauses.note_news();
                self.accept(engine, job);
                wait = Duration::ZERO;
            }
            if engine.take_cancels() {
                cancel_waiting(&mut self.waiting, engine);
                self.channels.cancel(engine);
            }
            self.start(engine);
            if self.poll(engine)? {
                self.pauses.note_news();
            }
            self.check_device()?;
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.channels.is_idle()
    }

    fn accept(&mut self, engine: &mut Engine, job: Job) {
        let mut find = self.frames.finder();
        let mut is_mapped = true;
        let operation = job.operation().try_map(|_, region, reach| match reach {
            Reach::Bytes(_) => {
                let memory = region.memory();
                let reached = find(memory).unwrap_or_else(|| {
                    // The others are looked for all the same, so that they are all mapped next.
                    is_mapped = false;
                    Reached { iova: 0, bytes: memory.length_bytes() as u64 }
                });
                Ok((Region::new(reached, region.offset(), region.length()).ok_or(())?, 0))
            }
            // No walk is announced.
            Reach::Walk(..) => Err(()),
        });
        drop(find);
        match operation {
            Ok(operation) if is_mapped => self.waiting.push_back(Waiting { job, operation }),
            // A frame is not mapped, or not yet. The service leaves the request to the CPU.
            _ => engine.complete(job.id(), Outcome::refused(Failure::Unsupported)),
        }
    }

    /// Gives free channels the requests that wait.
    fn start(&mut self, engine: &mut Engine) {
        while self.channels.has_room()
            && let Some(waiting) = self.waiting.pop_front()
        {
            self.channels.start(engine, waiting);
        }
    }

    /// Takes what the device has done. Returns whether anything came further.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool, ServeError> {
        let Self { channels, failures, .. } = self;
        if channels.is_idle() {
            return Ok(false);
        }
        let now = self.registers.with(|registers| registers.now());
        let has_more = channels.poll(now);
        let device = channels.device();
        let mut numbers = 0..device.capabilities().channels;
        if let Some(channel) = numbers.find(|channel| device.is_quarantined(*channel)) {
            // The device may still write the memory of its request, so that must not end while this process lives.
            return Err(ServeError::Stuck { device: self.address, channel });
        }
        let is_further = channels.settle(engine, |device, channel, failure| {
            let errors = device.last_errors(channel);
            failures
                .report(format_args!("a request on channel {channel} failed: {failure} (device: {errors})"));
        });
        Ok(has_more | is_further)
    }

    fn check_device(&mut self) -> Result<(), ServeError> {
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            if self.vfio.is_wanted_back() {
                return Err(ServeError::WantedBack(self.address));
            }
        }
        Ok(())
    }
}
