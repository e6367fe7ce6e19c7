//! Memory of this node that the link uses in place, for grants that allow it.
//!
//! ```text
//! Owner: copy(granted, window) ─► service: checks, claims ─► job of this engine ─► Hold: the granted memory, mapped here
//!                                          claim ends ◄─ completed ◄─ this thread has copied its bytes, once
//! ```
//!
//! The window is a frame without memory that only this process can name. A copy from or to it is a request like any other, so the service checks
//! rights, range and expiry, and counts it in flight. It brings the granted memory, as this engine has it mapped. The memory is used until
//! the job is completed, and a revocation waits for that as for each request of an engine: for one copy of this thread. Neither UCX nor a peer gets
//! an address or a key.

use memferry_engine::{Failure, Job, Mapping, Operation, guarded};

use crate::message::CHUNK_BYTES;

/// Granted memory, until its job is completed.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) job: Job,
    memory: Mapping,
    offset: u64,
    length: u64,
    /// The slot of the access.
    pub(crate) slot: u32,
    pub(crate) writes: bool,
}

impl Hold {
    /// What a job holds that copies to or from the window at this address; `None` for another job.
    pub(crate) fn of(job: &Job, window: usize) -> Option<Self> {
        let Operation::Copy { source, destination, length } = job.operation() else { return None };
        let is_window = |memory: &Mapping| memory.is_elsewhere() && memory.pointer().addr() == window;
        let writes = is_window(source.memory());
        let (far, near) = if writes { (source, destination) } else { (destination, source) };
        if !is_window(far.memory()) || near.memory().is_elsewhere() {
            return None;
        }
        let slot = u32::try_from(far.offset() / CHUNK_BYTES).ok()?;
        let memory = near.memory().clone();
        Some(Self { job: job.clone(), memory, offset: near.offset(), length: *length, slot, writes })
    }

    /// Bytes of the access.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Copies the bytes, as many as there are.
    ///
    /// # Errors
    /// [`Failure::MemoryFault`] if a page cannot be had, or there are not so many.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> Result<(), Failure> {
        if bytes.len() as u64 != self.length {
            return Err(Failure::MemoryFault);
        }
        match guarded([&self.memory], || self.memory.read(self.offset, bytes)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Failure::MemoryFault),
        }
    }

    /// Replaces the bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.len() as u64 != self.length {
            return Err(Failure::MemoryFault);
        }
        match guarded([&self.memory], || self.memory.write(self.offset, bytes)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Failure::MemoryFault),
        }
    }
}

#[cfg(test)]
mod tests {
    use memferry_engine::{Descriptor, Region, WorkId};

    use super::*;

    const WINDOW: usize = 1 << 48;

    fn job(source: Region<Mapping>, destination: Region<Mapping>) -> Job {
        let length = source.length();
        let operation = Operation::Copy { source, destination, length };
        Job::new(WorkId { worker: 0, tag: 1 }, Descriptor::new(0, operation).unwrap())
    }

    fn far(address: usize, slot: u64) -> Region<Mapping> {
        let window = Mapping::elsewhere(address, 8 * CHUNK_BYTES as usize).unwrap();
        Region::new(window, slot * CHUNK_BYTES, 4).unwrap()
    }

    fn near(memory: &Mapping) -> Region<Mapping> {
        Region::new(memory.clone(), 2, 4).unwrap()
    }

    #[test]
    fn only_copies_with_the_window_hold_memory() {
        let memory = Mapping::owned(vec![7; 8]);
        let read = Hold::of(&job(near(&memory), far(WINDOW, 3)), WINDOW).unwrap();
        let bytes = |hold: &Hold| {
            let mut bytes = [9; 4];
            hold.read(&mut bytes).map(|()| bytes)
        };
        assert_eq!((read.slot, read.writes, bytes(&read)), (3, false, Ok([7; 4])));
        let write = Hold::of(&job(far(WINDOW, 5), near(&memory)), WINDOW).unwrap();
        assert_eq!((write.slot, write.writes, write.write(&[1, 2, 3, 4])), (5, true, Ok(())));
        assert_eq!(bytes(&read), Ok([1, 2, 3, 4]));
        assert_eq!(write.write(&[1, 2, 3]), Err(Failure::MemoryFault), "not as many as were allowed");
        assert_eq!(read.read(&mut [0; 5]), Err(Failure::MemoryFault));
        // A frame of another node, two of them, and memory of this node only.
        for job in [
            job(near(&memory), far(WINDOW + 1, 0)),
            job(far(WINDOW, 0), far(WINDOW + 1, 0)),
            job(far(WINDOW, 0), far(WINDOW, 1)),
            job(near(&memory), near(&Mapping::owned(vec![0; 8]))),
        ] {
            assert!(Hold::of(&job, WINDOW).is_none(), "{job:?}");
        }
    }
}
