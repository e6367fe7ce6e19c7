//! The ring of descriptors: writes requests, announces them to the device, and follows their completion.
//!
//! ```text
//!        done        announced     written            positions count from the chain's start, slots wrap around
//! ──────┬─────────────┬────────────┬──────────►
//!       │ device's    │ written    │ free, except one slot that stays empty to keep the completion word unambiguous
//! ```
//!
//! The completion word and CHANSTS each name the last completed descriptor. The driver accepts only descriptors that it
//! has announced. The word may lag behind CHANSTS, so the driver tracks both separately and frees a slot when the word has
//! passed it. CHANSTS may still show the chain before, whose ring was the same: what it shows when a chain begins does not count until
//! it has changed or the word has. A ring whose completion writes are lost fills up until it is rewound. For an XOR with an extension, both
//! name its first descriptor, so the extension is done only when a later descriptor is.

use memferry_clock::Clock;
use memferry_ioat_registers::NarrowIo;
use memferry_ioat_registers::descriptor::{Body, Control, Descriptor, Sources};
use memferry_ioat_registers::{Chanerr, Chansts, DESCRIPTOR_BYTES, Register, TransferState};
use thiserror::Error;

use super::channels::{Channel, State};
use super::device::{Ioat, at};
use super::memory::DmaMemory;
use super::request::{Notice, Operation, Request, RingConfig};
use super::validate::RequestError;

/// Reason why a request was not written to the ring. The ring has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The request breaks a rule.
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("channel {channel} is not open: give it a ring first")]
    NotOpen { channel: u8 },
    /// The channel may still access memory.
    #[error("channel {channel} is quarantined: recover it before it is used")]
    Quarantined { channel: u8 },
    #[error("the ring has {free} free descriptors, the request needs {needed}: wait for completions")]
    RingFull {
        /// Number of free descriptors.
        free: u64,
        /// Number of descriptors of the request.
        needed: u64,
    },
}

/// Progress of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests at positions up to this one are done.
    pub done: u64,
    /// State of the channel when the device reported it.
    pub state: TransferState,
}

/// The error that halted a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Errors that the device reports.
    pub errors: Chanerr,
    /// Position of the failed request.
    pub position: u64,
    /// Address of the failed request's descriptor.
    pub descriptor: u64,
}

impl State {
    /// Position of the descriptor that `status` names as completed, or `before` when `status` names no announced
    /// descriptor after it. `before` is the last position from the same source.
    fn position(&self, status: Chansts, ring: &RingConfig, before: u64) -> u64 {
        let slots = u64::from(ring.slots);
        let completed = status.completed();
        let Some(index) = completed.checked_sub(ring.ring).map(|bytes| bytes / DESCRIPTOR_BYTES) else {
            return before;
        };
        let steps = (index + slots - before % slots) % slots + 1;
        let is_announced = completed != 0 && index < slots && steps <= self.announced - before;
        if is_announced { before + steps } else { before }
    }

    /// Advances the word's position to `done` when no completion write is outstanding.
    fn follow(&mut self) {
        if self.word >= self.noticed {
            self.word = self.done;
        }
    }
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Checks a request and appends its descriptors to the ring. [`ring_doorbell`](Self::ring_doorbell) announces them.
    ///
    /// Returns the request's position; the request is done when [`Progress::done`] has reached it.
    ///
    /// # Errors
    /// The broken rule, or the reason why the ring has no room.
    pub fn write(&mut self, channel: &Channel, request: &Request<'_>) -> Result<u64, WriteError> {
        let index = channel.index();
        request.validate(&self.limits())?;
        let state = *self.state(channel);
        if state.quarantined {
            return Err(WriteError::Quarantined { channel: index });
        }
        let ring = state.ring.ok_or(WriteError::NotOpen { channel: index })?;
        let mut descriptor = describe(request);
        let needed = u64::from(descriptor.slots());
        let free = self.free(channel);
        if needed > free {
            return Err(WriteError::RingFull { free, needed });
        }
        descriptor.next = ring.slot(state.written + 1);
        self.write_descriptor(ring.slot(state.written), &descriptor.encode());
        if let Some(words) = descriptor.encode_extension(ring.slot(state.written + 2)) {
            self.write_descriptor(descriptor.next, &words);
        }
        let position = state.written + 1;
        let state = self.state_mut(channel);
        state.written += needed;
        if request.notice != Notice::Silent {
            state.noticed = position;
        }
        Ok(position)
    }

    /// Number of free descriptors in the ring.
    pub fn free(&self, channel: &Channel) -> u64 {
        let state = self.state(channel);
        let slots = state.ring.map_or(0, |ring| u64::from(ring.slots) - 1);
        slots.saturating_sub(state.written - state.word)
    }

    /// Announces all written descriptors to the device. Does nothing without new ones, or when the channel is quarantined.
    pub fn ring_doorbell(&mut self, channel: &Channel) {
        let state = self.state_mut(channel);
        if state.quarantined || state.announced == state.written {
            return;
        }
        state.announced = state.written;
        let count = state.announced as u16;
        self.io.write16(at(channel, Register::Dmacount), count);
    }

    /// Reads the completion word, without a register access.
    pub fn poll(&mut self, channel: &Channel) -> Progress {
        let ring = self.state(channel).ring;
        let status = Chansts::from_bits(ring.map_or(0, |ring| self.memory.read(ring.completion)));
        let state = self.state_mut(channel);
        if let Some(ring) = ring {
            state.word = state.position(status, &ring, state.word);
            state.done = state.done.max(state.word);
            state.follow();
        }
        Progress { done: state.done, state: status.state() }
    }

    /// Reads CHANSTS, which also shows completions whose writes were not requested or were lost.
    pub fn inspect(&mut self, channel: &Channel) -> Progress {
        let status = self.status(channel);
        let state = self.state_mut(channel);
        // Once something is done, the register shows this chain.
        let is_stale = state.done == 0 && status.completed() == state.stale;
        if let Some(ring) = state.ring
            && !is_stale
        {
            state.done = state.position(status, &ring, state.done);
            state.follow();
        }
        Progress { done: state.done, state: status.state() }
    }

    /// The error that halted the channel; `None` when no error did.
    pub fn failure(&mut self, channel: &Channel) -> Option<Failure> {
        let progress = self.inspect(channel);
        let errors = Chanerr::from_bits(self.io.read(at(channel, Register::Chanerr)));
        let ring = self.state(channel).ring?;
        let halted = progress.state == TransferState::Halted && errors != Chanerr::new();
        halted.then(|| {
            let extension = u64::from(self.ends_in_extension(&ring, progress.done));
            let position = progress.done + extension;
            Failure { errors, position: position + 1, descriptor: ring.slot(position) }
        })
    }

    /// Whether the last completed request has an extension, which occupies the next position.
    fn ends_in_extension(&mut self, ring: &RingConfig, done: u64) -> bool {
        let Some(last) = done.checked_sub(1) else { return false };
        let control = (self.memory.read(ring.slot(last)) >> 32) as u32;
        let words = [u64::from(control) << 32, 0, 0, 0, 0, 0, 0, 0];
        Descriptor::decode(&words).is_ok_and(|descriptor| descriptor.slots() > 1)
    }
}

/// Encodes a request as a descriptor; the caller sets `next`.
fn describe(request: &Request<'_>) -> Descriptor {
    let control = Control::new()
        .with_completion_write(request.notice != Notice::Silent)
        .with_interrupt(request.notice == Notice::Interrupt)
        .with_fence(request.fence);
    let (size, body) = match request.operation {
        Operation::Null => (0, Body::Null),
        Operation::Copy { source, destination, bytes } => (bytes, Body::Copy { source, destination }),
        Operation::Fill { pattern, destination, bytes } => (bytes, Body::Fill { pattern, destination }),
        Operation::Xor { sources, destination, bytes } => {
            let body = Sources::new(sources).map_or(Body::Null, |sources| Body::Xor { sources, destination });
            (bytes, body)
        }
    };
    // Validation limits the length to the device's capacity, which fits 32 bits.
    Descriptor { size: size as u32, control, next: 0, body }
}
