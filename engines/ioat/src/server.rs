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
use memferry_engine::{Engine, Failure, Job, Operation, Outcome, Pauses, Region, Reports};
use memferry_ioat_registers::Device;
use memferry_shm::storage::MappedWords;
use memferry_transfer::{Descriptor, Engine as _, EngineCompletion, Reach, Ticket};
use thiserror::Error;

use crate::device::Parts;
use crate::frames::Frames;
use crate::memory::Reached;
use crate::open::OpenError;
use crate::vfio::Vfio;
use memferry_vfio::PciAddress;

/// Requests for each channel: one runs, the others begin without a round trip to the service.
pub(crate) const CHANNEL_REQUESTS: u32 = 4;
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
    device: IoatEngine<V::Registers, DeviceWords<MappedWords>, Reached>,
    frames: Frames<V::Domain>,
    /// The request of each channel.
    running: Vec<Option<Running>>,
    waiting: VecDeque<Waiting>,
    completions: Vec<EngineCompletion>,
    pauses: Pauses,
    checked: Instant,
    failures: Reports,
}

struct Waiting {
    job: Job,
    operation: Operation<Region<Reached>>,
}

struct Running {
    job: Job,
    ticket: Ticket,
    done_bytes: u64,
}

impl<V: Vfio> Drop for Server<V> {
    fn drop(&mut self) {
        self.frames.close();
    }
}

impl<V: Vfio> Server<V> {
    pub(crate) fn new(name: &str, address: PciAddress, parts: Parts<V>) -> Self {
        let Parts { vfio, registers, engine: device, frames } = parts;
        let channels = device.capabilities().channels;
        Self {
            address,
            vfio,
            registers,
            device,
            frames,
            running: (0..channels).map(|_| None).collect(),
            waiting: VecDeque::new(),
            completions: Vec::new(),
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
            for _ in 0..self.running.len() * CHANNEL_REQUESTS as usize {
                let Some(job) = engine.next(wait) else { break };
                self.pauses.note_news();
                self.accept(engine, job);
                wait = Duration::ZERO;
            }
            if engine.take_cancels() {
                self.cancel(engine);
            }
            self.start(engine);
            if self.poll(engine)? {
                self.pauses.note_news();
            }
            self.check_device()?;
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.iter().all(Option::is_none)
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

    /// Ends early what the service no longer wants.
    fn cancel(&mut self, engine: &mut Engine) {
        self.waiting.retain(|Waiting { job, .. }| {
            let is_cancelled = engine.is_cancelled(job.id());
            if is_cancelled {
                engine.complete(job.id(), Outcome::refused(Failure::Cancelled));
            }
            !is_cancelled
        });
        for running in self.running.iter().flatten() {
            if engine.is_cancelled(running.job.id()) {
                self.device.cancel(running.ticket);
            }
        }
    }

    /// Gives free channels the requests that wait.
    fn start(&mut self, engine: &mut Engine) {
        let mut any = false;
        for (number, place) in (0..).zip(&mut self.running) {
            while place.is_none()
                && let Some(Waiting { job, operation }) = self.waiting.pop_front()
            {
                let posted = Descriptor::new(number, operation).ok().and_then(|it| self.device.post(it).ok());
                match posted {
                    Some(ticket) => {
                        *place = Some(Running { job, ticket, done_bytes: 0 });
                        any = true;
                    }
                    // Operands overlap in a way that the device cannot do.
                    None => engine.complete(job.id(), Outcome::refused(Failure::Unsupported)),
                }
            }
        }
        if any {
            self.device.ring_doorbell();
        }
    }

    /// Takes what the device has done. Returns whether anything came further.
    fn poll(&mut self, engine: &mut Engine) -> Result<bool, ServeError> {
        if self.running.iter().all(Option::is_none) {
            return Ok(false);
        }
        let now = self.registers.with(|registers| registers.now());
        self.device.poll(now, &mut self.completions);
        if let Some(channel) =
            (0..self.running.len() as u32).find(|channel| self.device.is_quarantined(*channel))
        {
            // The device may still write the memory of its request, so that must not end while this process lives.
            return Err(ServeError::Stuck { device: self.address, channel });
        }
        let mut any = false;
        for EngineCompletion { ticket, outcome } in std::mem::take(&mut self.completions) {
            let channel = ticket.channel;
            let place = self.running.get_mut(channel as usize);
            let Some(running) = place.and_then(|place| place.take_if(|running| running.ticket == ticket))
            else {
                continue;
            };
            any = true;
            if let Err(failure) = outcome.result
                && failure != Failure::Cancelled
            {
                self.report_failure(channel, failure);
            }
            let ended = match outcome.result {
                Ok(()) => running.job.succeeded(),
                // Its channel was reset, so it is over; only a service can say that a channel is faulted.
                Err(Failure::ChannelFaulted) => running.job.failed(Failure::EngineReset, outcome.bytes_done),
                Err(failure) => running.job.failed(failure, outcome.bytes_done),
            };
            engine.complete(running.job.id(), ended);
        }
        for running in self.running.iter_mut().flatten() {
            let done = self.device.bytes_done(running.ticket);
            if done > running.done_bytes {
                running.done_bytes = done;
                engine.progress(running.job.id(), done, false);
                any = true;
            }
        }
        Ok(any)
    }

    fn report_failure(&mut self, channel: u32, failure: Failure) {
        let errors = self.device.last_errors(channel);
        self.failures
            .report(format_args!("a request on channel {channel} failed: {failure} (device: {errors})"));
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
