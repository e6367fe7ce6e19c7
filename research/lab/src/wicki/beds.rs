//! Test beds for the thesis's safety claims: the service on the SDMA's model, and a live service on the CPU.
//!
//! ```text
//! Bed: window into a larger memory ─ 2-D request ─► outcome ─► all of the memory, to find changes
//! ```
//!
//! A request names a window (a capability for the middle of a memory), so that a changed byte outside the window shows.

use memferry::{Client, Frame, Queue, Rights, ServiceConfig, copy_2d, fill_2d};
use memferry_driven::SdmaOptions;
use memferry_models::Ram;
use memferry_models::sdma::{Config, Sdma};
use memferry_transfer::{Copy2d, Failure, Fill2d, Handle, Operation, SessionId, Span, Terms};

use super::service::Service;

/// Bytes of a memory, and of the window in its middle.
pub(super) const MEMORY_BYTES: usize = 4096;
pub(super) const WINDOW_BYTES: usize = 512;
/// Where the window begins.
pub(super) const WINDOW_AT: usize = 2048;

/// A 2-D request over the windows of a source and a destination.
#[derive(Clone, Copy, Debug)]
pub(super) enum Draft {
    Copy(Copy2d),
    Fill(Fill2d),
}

/// An error of the test bed itself.
pub(super) type BedError = String;

/// A service with a source and a destination memory.
pub(super) trait Bed {
    /// Fills the two memories.
    fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError>;

    /// Submits a request and waits for its completion.
    fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError>;

    /// The present contents of the two memories.
    fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError>;
}

fn message(error: impl ToString) -> BedError {
    error.to_string()
}

const BASE: u32 = 0x8000_0000;
const CLIENT: SessionId = SessionId(1);

/// The service in virtual time.
pub(super) struct Simulated {
    service: Service<Ram>,
    windows: [Handle; 2],
}

impl Simulated {
    pub(super) fn new() -> Result<Self, BedError> {
        let device = Sdma::new(Config::default(), Ram::new(BASE.into(), vec![0; 2 * MEMORY_BYTES]));
        let mut service = Service::new(device, 4, SdmaOptions::default()).map_err(message)?;
        let mut window = |memory: usize| {
            let at = BASE + (memory * MEMORY_BYTES + WINDOW_AT) as u32;
            service.frame(CLIENT, at, WINDOW_BYTES as u64).map_err(message)
        };
        let windows = [window(0)?, window(1)?];
        Ok(Self { service, windows })
    }
}

impl Bed for Simulated {
    fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError> {
        let whole = memories.concat();
        self.service.with_device(|device| device.bus_mut().bytes_mut().copy_from_slice(&whole));
        Ok(())
    }

    fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError> {
        let [source, destination] = self.windows.map(|handle| Span::new(handle, 0));
        let operation = match draft {
            Draft::Copy(shape) => Operation::Copy2d { source, destination, shape: *shape },
            Draft::Fill(shape) => Operation::Fill2d { destination, shape: *shape },
        };
        self.service.submit(CLIENT, 1, operation, Terms::default()).map_err(message)?;
        match self.service.run()[..] {
            [(1, outcome)] => Ok(outcome),
            ref ends => Err(format!("{} completions of one request", ends.len())),
        }
    }

    fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError> {
        let whole = self.service.with_device(|device| device.bus().bytes().to_vec());
        let (first, second) = whole.split_at(MEMORY_BYTES);
        Ok([first.to_vec(), second.to_vec()])
    }
}

/// A service in this process, on this machine's CPU.
pub(super) struct Live {
    queue: Queue,
    memories: [Frame; 2],
    windows: [Frame; 2],
}

impl Live {
    pub(super) fn new() -> Result<Self, BedError> {
        let client = Client::embedded_with(ServiceConfig { workers: 1, ..ServiceConfig::default() })
            .map_err(message)?;
        let memory = || client.frame(MEMORY_BYTES as u64).alloc().map_err(message);
        let memories = [memory()?, memory()?];
        let rights = Rights::READ | Rights::WRITE;
        let window = |memory: &Frame| {
            client
                .derive(memory.slice(WINDOW_AT as u64..WINDOW_AT as u64 + WINDOW_BYTES as u64), rights)
                .map_err(message)
        };
        let windows = [window(&memories[0])?, window(&memories[1])?];
        Ok(Self { queue: client.queue(4).map_err(message)?, memories, windows })
    }
}

impl Bed for Live {
    fn load(&mut self, memories: [&[u8]; 2]) -> Result<(), BedError> {
        let mut each = self.memories.iter().zip(memories);
        each.try_for_each(|(frame, bytes)| frame.write(0, bytes).map_err(message))
    }

    fn submit(&mut self, draft: &Draft) -> Result<Result<(), Failure>, BedError> {
        let [source, destination] = self.windows.each_ref().map(|frame| frame.slice(..));
        let transfer = match draft {
            Draft::Copy(shape) => copy_2d(&source, &destination, *shape),
            Draft::Fill(shape) => fill_2d(&destination, *shape),
        };
        let ticket = self.queue.submit(transfer).map_err(message)?;
        Ok(self.queue.wait(ticket).map(drop).map_err(|error| error.failure))
    }

    fn contents(&mut self) -> Result<[Vec<u8>; 2], BedError> {
        let mut found = [vec![0; MEMORY_BYTES], vec![0; MEMORY_BYTES]];
        for (frame, bytes) in self.memories.iter().zip(&mut found) {
            frame.read(0, bytes).map_err(message)?;
        }
        Ok(found)
    }
}
