//! Producer and consumer over a set of frames: the bulk transfer of Wicki 2014, section 4.3, between two processes.
//!
//! ```text
//! Producer: frame(index) ─ free? ─ write ─ put(index, length) ─► LentFrame ─► Consumer: take ─► the consumer's frame
//!   MappedEachRequest   a descriptor comes with each frame: map, copy with the consumer's CPU, unmap
//!   PreMapped           the descriptors come first; the consumer's CPU copies
//!   Offloaded           the grants come first; the engine copies, `window` frames at a time
//! ```
//!
//! The producer chooses the mode. The consumer handles each lent frame by its kind. Frames arrive in the order of the `put`
//! calls.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memferry::{Client, Frame, FrameError};
use thiserror::Error;

use crate::error::{FinishError, ReadError, ReceiveError, SendError};
use crate::frames::SharedFrame;
use crate::lent::{LentFrame, PullError};
use crate::peer::deadline;
use crate::receiver::{Content, Pulled, Receiver};
use crate::sender::{Loan, Sender};

/// How frames reach the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The consumer maps the producer's frame for each request.
    MappedEachRequest,
    /// The consumer maps all frames once, before the first request.
    PreMapped,
    /// The engine copies between the two processes' frames; neither maps the other's.
    Offloaded,
}

/// Why a frame was not put.
#[derive(Debug, Error)]
pub enum PutError {
    /// The producer has no frame of this index.
    #[error("the producer has frames 0 to {last}, not {index}")]
    NoFrame {
        index: usize,
        /// The producer's last index.
        last: usize,
    },
    /// The producer's frames could not be allocated.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The frame was not sent, or the consumer still uses it.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// Why no frame was taken.
#[derive(Debug, Error)]
pub enum TakeError {
    /// The consumer's frames could not be allocated.
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// The message holds bytes, not a frame.
    #[error("message of kind {0} holds bytes; a producer sends frames only")]
    NotFrame(u32),
    /// The frame is longer than the consumer's frames.
    #[error("the producer put a frame of {length} bytes; the consumer's frames hold {available}")]
    TooLong {
        length: u64,
        /// Bytes of each of the consumer's frames.
        available: u64,
    },
    /// The engine did not accept the copy.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The engine's copy failed or timed out.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// The lent range could not be read.
    #[error(transparent)]
    Access(#[from] ReadError),
}

/// Writes frames and lends them to a [`Consumer`] of another process.
#[derive(Debug)]
pub struct Producer {
    sender: Sender,
    frames: Vec<SharedFrame>,
    lent: Vec<Option<Loan>>,
    mode: Mode,
}

impl Producer {
    /// Allocates `count` frames of `bytes` and exports them to the consumer, except with [`Mode::MappedEachRequest`].
    ///
    /// # Errors
    /// [`PutError`].
    pub fn new(
        mut sender: Sender,
        client: &Client,
        (count, bytes): (usize, u64),
        mode: Mode,
    ) -> Result<Self, PutError> {
        let frames =
            (0..count).map(|_| SharedFrame::allocate(client, bytes)).collect::<Result<Vec<_>, _>>()?;
        for frame in &frames {
            match mode {
                Mode::MappedEachRequest => {}
                Mode::PreMapped => sender.export_mapped(frame, None)?,
                Mode::Offloaded => sender.export(frame.frame(), None)?,
            }
        }
        Ok(Self { sender, lent: vec![None; frames.len()], frames, mode })
    }

    fn check(&self, index: usize) -> Result<(), PutError> {
        let last = self.frames.len().saturating_sub(1);
        if index < self.frames.len() { Ok(()) } else { Err(PutError::NoFrame { index, last }) }
    }

    /// Returns a frame to write to. Waits up to `limit` until the consumer has released its last `put`.
    ///
    /// # Errors
    /// [`PutError`].
    pub fn frame(&mut self, index: usize, limit: Option<Duration>) -> Result<&Frame, PutError> {
        self.check(index)?;
        if let Some(loan) = self.lent[index] {
            self.sender.settle(loan, limit)?;
            self.lent[index] = None;
        }
        Ok(self.frames[index].frame())
    }

    /// Puts the first `length` bytes of a frame. Waits up to `limit` for room.
    ///
    /// # Errors
    /// [`PutError`].
    pub fn put(&mut self, index: usize, length: u64, limit: Option<Duration>) -> Result<(), PutError> {
        self.check(index)?;
        let frame = &self.frames[index];
        let kind = index as u32;
        let loan = match self.mode {
            Mode::MappedEachRequest => self.sender.lend_mapped_once(kind, frame, (0, length), limit)?,
            Mode::PreMapped => self.sender.lend_mapped(kind, frame, (0, length), limit)?,
            Mode::Offloaded => self.sender.lend(kind, frame.range(0, length), limit)?,
        };
        self.lent[index] = Some(loan);
        Ok(())
    }

    /// Waits until the consumer has released all frames. Call it before dropping a producer, which revokes its grants.
    ///
    /// # Errors
    /// [`PutError`].
    pub fn drain(&mut self, limit: Option<Duration>) -> Result<(), PutError> {
        (0..self.frames.len()).try_for_each(|index| self.frame(index, limit).map(|_| ()))
    }
}

/// A frame taken from a producer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Index of the consumer's frame that holds the bytes.
    pub frame: usize,
    /// Index of the producer's frame, as the producer stated it.
    pub from: usize,
    pub length: u64,
}

/// Copies the frames of a [`Producer`] into frames of this process.
#[derive(Debug)]
pub struct Consumer {
    receiver: Receiver,
    frames: Vec<Frame>,
    window: usize,
    /// Frames used so far; the frames take turns.
    next: usize,
    /// Destinations of the pulls in progress, oldest first.
    pulling: VecDeque<usize>,
    /// Result to return after the pulls in progress: a mapped frame or an error.
    after_pulls: Option<Result<LentFrame, TakeError>>,
}

impl Consumer {
    /// Allocates `window + 1` frames of `bytes`. The engine copies up to `window` at a time; the additional frame keeps the one
    /// taken last valid until the next call.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn new(receiver: Receiver, client: &Client, window: usize, bytes: u64) -> Result<Self, TakeError> {
        let window = window.max(1);
        let frames = (0..=window).map(|_| client.frame(bytes).alloc()).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { receiver, frames, window, next: 0, pulling: VecDeque::new(), after_pulls: None })
    }

    /// Returns one of the consumer's frames.
    pub fn frame(&self, index: usize) -> Option<&Frame> {
        self.frames.get(index)
    }

    /// Waits up to `limit` for the next frame. The frame taken before may be overwritten.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn take(&mut self, limit: Option<Duration>) -> Result<Taken, TakeError> {
        let deadline = deadline(limit);
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        while self.after_pulls.is_none() && self.pulling.len() < self.window {
            let busy = !self.pulling.is_empty();
            if busy && !self.receiver.ready() {
                break;
            }
            // A slot may carry no message, and the next message may wait for a pull in progress: do not block on it.
            match self.receive_frame(if busy { Some(Duration::ZERO) } else { left() }) {
                Err(TakeError::Receive(ReceiveError::TimedOut)) if busy => break,
                Ok(lent) if !lent.is_mapped() => self.start_pull(lent),
                other => self.after_pulls = Some(other),
            }
        }
        if self.pulling.is_empty() {
            let next = self.after_pulls.take().unwrap_or(Err(ReceiveError::TimedOut.into()));
            return self.copy(&next?);
        }
        let pulled = match self.receiver.finish(left()) {
            Err(FinishError::TimedOut) => return Err(FinishError::TimedOut.into()),
            ended => ended,
        };
        let frame = self.pulling.pop_front().unwrap_or(0);
        let Pulled { kind, length } = pulled?;
        Ok(Taken { frame, from: kind as usize, length })
    }

    fn next_frame(&mut self) -> usize {
        self.next += 1;
        (self.next - 1) % self.frames.len()
    }

    /// Starts a pull. A failure to start is returned after the pulls in progress.
    fn start_pull(&mut self, lent: LentFrame) {
        let index = self.next_frame();
        let length = lent.length();
        let available = self.frames[index].length();
        let started = match length > available {
            true => Err(TakeError::TooLong { length, available }),
            false => self.receiver.pull(lent, &self.frames[index]).map_err(TakeError::from),
        };
        match started {
            Ok(()) => self.pulling.push_back(index),
            Err(error) => self.after_pulls = Some(Err(error)),
        }
    }

    /// Copies a mapped frame with this CPU.
    fn copy(&mut self, lent: &LentFrame) -> Result<Taken, TakeError> {
        let frame = self.next_frame();
        let length = lent.length();
        let available = self.frames[frame].length();
        if length > available {
            return Err(TakeError::TooLong { length, available });
        }
        lent.copy_to(&self.frames[frame], 0)?;
        Ok(Taken { frame, from: lent.kind() as usize, length })
    }

    fn receive_frame(&mut self, limit: Option<Duration>) -> Result<LentFrame, TakeError> {
        let message = self.receiver.receive(limit)?;
        match message.content {
            Content::Range(lent) => Ok(lent),
            Content::Bytes(_) => Err(TakeError::NotFrame(message.kind)),
        }
    }
}
