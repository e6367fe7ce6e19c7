//! Producer and consumer over a set of frames: the bulk transfer of Wicki 2014, section 4.3, between two processes.
//!
//! ```text
//! Producer: frame(index) ─ free again? ─ write ─ put(index, length) ─► LentFrame ─► Consumer: take ─► a frame of its own
//!   MappedEachRequest   the descriptor comes with each lent; mapped, copied by the consumer's CPU, unmapped
//!   PreMapped           the descriptors come first; copied by the consumer's CPU
//!   Offloaded           grants come first; the engine copies, `window` at a time
//! ```
//!
//! The producer chooses the mode; the consumer does with each lent what it is good for. Frames come in the order they were
//! put.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use memferry::{Client, Frame, FrameError};
use thiserror::Error;

use crate::error::{FinishError, PullError, ReadError, ReceiveError, SendError};
use crate::frames::SharedFrame;
use crate::receiver::{Content, LentFrame, Pulled, Receiver};
use crate::sender::{Loan, Sender};

/// How frames reach the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// The consumer maps the producer's frame for each request.
    MappedEachRequest,
    /// The consumer mapped all frames before.
    PreMapped,
    /// The engine copies between the two processes' frames; neither maps the other's.
    Offloaded,
}

/// A frame was not put.
#[derive(Debug, Error)]
pub enum PutError {
    /// There is no such frame.
    #[error("the producer has frames 0 to {last}, not {index}")]
    NoFrame {
        index: usize,
        /// The last there is.
        last: usize,
    },
    /// The set of frames could not be made.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// It was not sent, or the consumer did not let go of it.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// No frame was taken.
#[derive(Debug, Error)]
pub enum TakeError {
    /// The consumer's frames could not be made.
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    /// Bytes came instead of a frame.
    #[error("message of kind {0} holds bytes; a producer sends frames only")]
    NotFrame(u32),
    /// It is longer than the consumer's frames.
    #[error("a frame of {length} bytes was put; the consumer's hold {available}")]
    TooLong {
        length: u64,
        /// Bytes of each of the consumer's frames.
        available: u64,
    },
    /// The engine was not asked.
    #[error(transparent)]
    Pull(#[from] PullError),
    /// The engine did not do it, or not in time.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// What the producer lent leaves its memory.
    #[error(transparent)]
    Access(#[from] ReadError),
}

/// Writes frames and puts them.
#[derive(Debug)]
pub struct Producer {
    sender: Sender,
    frames: Vec<SharedFrame>,
    lent: Vec<Option<Loan>>,
    mode: Mode,
}

impl Producer {
    /// A producer with `count` frames of `bytes`, known to the consumer beforehand unless each request maps anew.
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

    /// A frame to write to; waits until the consumer is done with what it was put with before, at most for `limit`.
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

    /// Puts the first `length` bytes of a frame; waits for room, at most for `limit`.
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

    /// Waits until the consumer is done with all that was put. Call it before dropping a producer, which ends its grants.
    ///
    /// # Errors
    /// [`PutError`].
    pub fn drain(&mut self, limit: Option<Duration>) -> Result<(), PutError> {
        (0..self.frames.len()).try_for_each(|index| self.frame(index, limit).map(|_| ()))
    }
}

/// A frame that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The consumer's frame that its bytes are in.
    pub frame: usize,
    /// The producer's frame that they were in, by its own word.
    pub from: usize,
    pub length: u64,
}

/// Takes what a producer puts into frames of its own.
#[derive(Debug)]
pub struct Consumer {
    receiver: Receiver,
    frames: Vec<Frame>,
    window: usize,
    /// Frames used since the beginning; they take turns.
    next: usize,
    /// The frames that are being pulled to, oldest first.
    pulling: VecDeque<usize>,
    /// What came behind what is being pulled and cannot be pulled itself.
    behind: Option<Result<LentFrame, TakeError>>,
}

impl Consumer {
    /// A consumer with frames of `bytes`, which has the engine copy up to `window` of them at a time. It has one frame more, so
    /// that one taken is the caller's until the next call.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn new(receiver: Receiver, client: &Client, window: usize, bytes: u64) -> Result<Self, TakeError> {
        let window = window.max(1);
        let frames = (0..=window).map(|_| client.frame(bytes).alloc()).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { receiver, frames, window, next: 0, pulling: VecDeque::new(), behind: None })
    }

    /// A frame of the consumer's.
    pub fn frame(&self, index: usize) -> Option<&Frame> {
        self.frames.get(index)
    }

    /// Waits for the next frame, at most for `limit`. What was taken before may be overwritten.
    ///
    /// # Errors
    /// [`TakeError`].
    pub fn take(&mut self, limit: Option<Duration>) -> Result<Taken, TakeError> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let left = || deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        while self.behind.is_none() && self.pulling.len() < self.window {
            let busy = !self.pulling.is_empty();
            if busy && !self.receiver.ready() {
                break;
            }
            // With something under way a slot may be no message, and the message after it may wait for what is under way.
            match self.lend(if busy { Some(Duration::ZERO) } else { left() }) {
                Err(TakeError::Receive(ReceiveError::TimedOut)) if busy => break,
                Ok(lent) if !lent.is_mapped() => self.begin(lent),
                other => self.behind = Some(other),
            }
        }
        if self.pulling.is_empty() {
            let next = self.behind.take().unwrap_or(Err(ReceiveError::TimedOut.into()));
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

    /// Has the engine begin; what cannot be begun is told in its turn.
    fn begin(&mut self, lent: LentFrame) {
        let index = self.next_frame();
        let length = lent.length();
        let available = self.frames[index].length();
        let begun = match length > available {
            true => Err(TakeError::TooLong { length, available }),
            false => self.receiver.pull(lent, &self.frames[index]).map_err(TakeError::from),
        };
        match begun {
            Ok(()) => self.pulling.push_back(index),
            Err(error) => self.behind = Some(Err(error)),
        }
    }

    /// Copies what is mapped here.
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

    fn lend(&mut self, limit: Option<Duration>) -> Result<LentFrame, TakeError> {
        let message = self.receiver.receive(limit)?;
        match message.content {
            Content::Range(lent) => Ok(lent),
            Content::Bytes(_) => Err(TakeError::NotFrame(message.kind)),
        }
    }
}
