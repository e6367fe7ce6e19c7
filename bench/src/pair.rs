//! A client with a queue and two frames: the fixture of nearly every measurement.
//!
//! ```text
//! source, random bytes ─ copy: submit, poll until done ─► destination ─ Reader ─► this core's registers
//! ```
//!
//! The client polls, because measurements are about moving bytes, and a sleeping wait adds a wake-up that depends on its length.
//! The same calls serve an embedded service and one in another process.

use std::ops::Range;

use memferry::{CallError, Client, Frame, GrantToken, Output, Queue, Region, Ticket, copy, nop};

use crate::BenchError;
use crate::timing::random_bytes;

/// Bytes read at a time: they fit the first-level cache.
const PAGE: usize = 4096;
const LINE: u64 = 64;

/// Two frames with their client and queue.
pub(crate) struct Pair {
    pub(crate) client: Client,
    pub(crate) queue: Queue,
    pub(crate) source: Frame,
    pub(crate) destination: Frame,
}

impl Pair {
    /// Two frames of `bytes`, both written; the source's bytes are random.
    pub(crate) fn new(client: Client, bytes: u64) -> Result<Self, BenchError> {
        let source = client.frame(bytes).alloc()?;
        let destination = client.frame(bytes).alloc()?;
        let mut queue = client.queue(64)?;
        fill(&source, bytes)?;
        let ticket = queue.submit(copy(&source, &destination))?;
        queue.wait(ticket)?;
        Ok(Self { client, queue, source, destination })
    }

    /// Two frames of random bytes in this process's memory, on its present pages. Needs an embedded client.
    pub(crate) fn of_own_memory(client: Client, bytes: usize) -> Result<Self, BenchError> {
        let source = client.register_owned(random_bytes(bytes, 11))?;
        let destination = client.register_owned(random_bytes(bytes, 13))?;
        let queue = client.queue(64)?;
        Ok(Self { client, queue, source, destination })
    }

    /// The first `bytes` of both frames.
    pub(crate) fn ranges(&self, bytes: u64) -> (Region, Region) {
        (self.source.slice(..bytes), self.destination.slice(..bytes))
    }

    /// Copies the first `bytes`, and polls until done.
    pub(crate) fn copy(&mut self, bytes: u64) -> Result<(), BenchError> {
        let (source, destination) = self.ranges(bytes);
        let ticket = self.queue.submit(copy(&source, &destination))?;
        poll_for(&mut self.queue, ticket)
    }

    /// Makes sure that the worker is awake.
    pub(crate) fn wake(&mut self) -> Result<(), BenchError> {
        for _ in 0..200 {
            self.nop()?;
        }
        Ok(())
    }

    /// A round trip without data.
    pub(crate) fn nop(&mut self) -> Result<(), BenchError> {
        let ticket = self.queue.submit(nop())?;
        self.queue.wait(ticket)?;
        Ok(())
    }
}

/// Fills a frame with random bytes.
fn fill(frame: &Frame, bytes: u64) -> Result<(), BenchError> {
    const PIECE: u64 = 1 << 20;
    for offset in (0..bytes).step_by(PIECE as usize) {
        let length = (bytes - offset).min(PIECE);
        frame.write(offset, &random_bytes(length as usize, offset + 11))?;
    }
    Ok(())
}

/// Polls until the transfer is done; it must be the only one outstanding.
pub(crate) fn poll_for<T: Output>(queue: &mut Queue, ticket: Ticket<T>) -> Result<(), BenchError> {
    loop {
        if let Some(completion) = queue.poll() {
            if completion?.id != ticket.id() {
                return Err("received the completion of another transfer".into());
            }
            return Ok(());
        }
    }
}

/// Polls until nothing is outstanding, and takes every completion, also of transfers that completed early.
pub(crate) fn drain(queue: &mut Queue) -> Result<(), BenchError> {
    loop {
        match queue.poll() {
            Some(completion) => drop(completion?),
            None if queue.outstanding() == 0 => return Ok(()),
            None => std::hint::spin_loop(),
        }
    }
}

/// Sends the service a command that it refuses at once: a message, a table look-up, an answer.
pub(crate) fn ask_over_socket(client: &Client) -> Result<(), BenchError> {
    match client.revoke(GrantToken::from_raw(0)) {
        Err(CallError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(()) => Err("the service revoked what was never granted".into()),
    }
}

/// Reads moved bytes, page by page into a private page.
pub(crate) struct Reader([u8; PAGE]);

impl Reader {
    pub(crate) fn new() -> Self {
        Self([0; PAGE])
    }

    /// Reads all of the first `bytes` of a frame.
    pub(crate) fn frame(&mut self, frame: &Frame, bytes: u64) -> Result<(), BenchError> {
        self.part(frame, 0..bytes)
    }

    /// Reads all of a part of a frame.
    pub(crate) fn part(&mut self, frame: &Frame, part: Range<u64>) -> Result<(), BenchError> {
        for offset in part.clone().step_by(PAGE) {
            let length = (part.end - offset).min(PAGE as u64) as usize;
            frame.read(offset, &mut self.0[..length])?;
            std::hint::black_box(&self.0);
        }
        Ok(())
    }

    /// Reads one line of each page of a frame's first `bytes`, and the last line.
    pub(crate) fn frame_lightly(&mut self, frame: &Frame, bytes: u64) -> Result<(), BenchError> {
        for offset in (0..bytes).step_by(PAGE).chain([bytes.saturating_sub(LINE)]) {
            frame.read(offset, &mut self.0[..LINE.min(bytes) as usize])?;
            std::hint::black_box(&self.0);
        }
        Ok(())
    }

    /// Reads every byte of a buffer, as [`frame`](Self::frame) does.
    pub(crate) fn buffer(&mut self, buffer: &[u8]) {
        for piece in buffer.chunks(PAGE) {
            self.0[..piece.len()].copy_from_slice(piece);
            std::hint::black_box(&self.0);
        }
    }

    /// Reads one line of each page of a buffer, and the last line.
    pub(crate) fn buffer_lightly(&mut self, buffer: &[u8]) {
        let last = buffer.len().saturating_sub(LINE as usize);
        for offset in (0..buffer.len()).step_by(PAGE).chain([last]) {
            let end = (offset + LINE as usize).min(buffer.len());
            self.0[..end - offset].copy_from_slice(&buffer[offset..end]);
            std::hint::black_box(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use memferry::Rights;

    use super::*;

    #[test]
    fn a_failed_transfer_ends_a_measurement() {
        let client = Client::embedded().unwrap();
        let mut pair = Pair::new(client.clone(), 4096).unwrap();
        let readable = client.derive(&pair.destination, Rights::READ).unwrap();
        let refused = || copy(&pair.source, &readable);
        let [first, second] = [refused(), refused()];
        let _drained = pair.queue.submit(first).unwrap();
        assert!(drain(&mut pair.queue).is_err());
        let ticket = pair.queue.submit(second).unwrap();
        assert!(poll_for(&mut pair.queue, ticket).is_err());
        pair.nop().unwrap();
        assert!(drain(&mut pair.queue).is_ok());
    }
}
