//! The ring: descriptors written, told to the device by count, and found done by the completion word.
//!
//! ```text
//!        done          told         written            positions count from the chain's start, slots go round
//! ──────┬─────────────┬────────────┬──────────►
//!       │ device's    │ written    │ free: one slot always stays empty, so that the word is not ambiguous
//! ```
//!
//! The completion word and CHANSTS name the descriptor done last; they are believed where they name one that the device was told of.
//! The word may lag behind CHANSTS, so each is followed by itself, and a slot is free when both have passed it: a ring
//! whose completion writes got lost fills up, until it is rewound. Of an XOR with an extension they name the first
//! descriptor, so the extension counts as done with what follows it.

use memferry_clock::Clock;
use memferry_registers::NarrowIo;
use memferry_registers::ioat::descriptor::{Body, Control, Descriptor, Sources};
use memferry_registers::ioat::{Chanerr, Chansts, DESCRIPTOR_BYTES, Register, TransferState};
use thiserror::Error;

use super::channels::{Channel, State};
use super::device::{Ioat, at};
use super::memory::DmaMemory;
use super::request::{Notice, Operation, Request, RingConfig};
use super::validate::RequestError;

/// Why a request was not written. Nothing was written then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// It breaks a rule.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The channel has no ring.
    #[error("channel {channel} is not open: give it a ring first")]
    NotOpen { channel: u8 },
    /// It may still touch memory.
    #[error("channel {channel} is quarantined: recover it before it is used")]
    Quarantined { channel: u8 },
    /// The ring has not so many free descriptors.
    #[error("the ring has {free} free descriptors, the request takes {needed}: wait for some to be done")]
    RingFull {
        /// How many there are.
        free: u64,
        /// How many it takes.
        needed: u64,
    },
}

/// How far a channel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests at positions up to this one are done.
    pub done: u64,
    /// What the channel is doing, as of when this was told.
    pub state: TransferState,
}

/// Why a channel halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What the device found.
    pub errors: Chanerr,
    /// Position of the request that it was found in.
    pub position: u64,
    pub descriptor: u64,
}

impl State {
    /// How far a status tells that the chain is done, if `before` is what its source told last.
    fn position(&self, status: Chansts, ring: &RingConfig, before: u64) -> u64 {
        let slots = u64::from(ring.slots);
        let completed = status.completed();
        let Some(index) = completed.checked_sub(ring.ring).map(|bytes| bytes / DESCRIPTOR_BYTES) else {
            return before;
        };
        let steps = (index + slots - before % slots) % slots + 1;
        let is_told = completed != 0 && index < slots && steps <= self.told - before;
        if is_told { before + steps } else { before }
    }

    /// Nothing that was asked for is still to come by the word.
    fn follow(&mut self) {
        if self.word >= self.noticed {
            self.word = self.done;
        }
    }
}

impl<Io: NarrowIo, M: DmaMemory, C: Clock> Ioat<Io, M, C> {
    /// Checks a request and writes its descriptors behind those before; the device is not told. Its position: it is done when
    /// [`Progress::done`] is not below.
    ///
    /// # Errors
    /// [`WriteError`].
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

    /// Descriptors that may be written before others are done.
    pub fn free(&self, channel: &Channel) -> u64 {
        let state = self.state(channel);
        let slots = state.ring.map_or(0, |ring| u64::from(ring.slots) - 1);
        slots.saturating_sub(state.written - state.word)
    }

    /// Tells the device of what was written.
    pub fn ring_doorbell(&mut self, channel: &Channel) {
        let state = self.state_mut(channel);
        if state.quarantined || state.told == state.written {
            return;
        }
        state.told = state.written;
        let count = state.told as u16;
        self.io.write16(at(channel, Register::Dmacount), count);
    }

    /// Looks at the completion word: costs no register access.
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

    /// Looks at CHANSTS: sees also what was not written, or got lost.
    pub fn inspect(&mut self, channel: &Channel) -> Progress {
        let status = self.status(channel);
        let state = self.state_mut(channel);
        if let Some(ring) = state.ring {
            state.done = state.position(status, &ring, state.done);
            state.follow();
        }
        Progress { done: state.done, state: status.state() }
    }

    /// Why the channel halted, if it did for an error.
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

    /// Whether the request done last has an extension, which stands where the next one would.
    fn ends_in_extension(&mut self, ring: &RingConfig, done: u64) -> bool {
        let Some(last) = done.checked_sub(1) else { return false };
        let control = (self.memory.read(ring.slot(last)) >> 32) as u32;
        let words = [u64::from(control) << 32, 0, 0, 0, 0, 0, 0, 0];
        Descriptor::decode(&words).is_ok_and(|descriptor| descriptor.slots() > 1)
    }
}

/// A request as a descriptor that leads nowhere yet.
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
    // The length was checked against the device's limit, which the field holds.
    Descriptor { size: size as u32, control, next: 0, body }
}
