//! Memory that only one engine process reaches: here it is memory of its process, a memfd for each frame.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};

use memferry_engine::{
    Access, Descriptor, ExportKind, Exported, Failure, FrameWatcher, Handle, Job, Mapping, NotExported,
    Outcome, Region,
};
use memferry_transfer::Confined;
use memferry_transfer::operation::Reach;

/// That memory. Clones share it.
#[derive(Clone)]
pub(crate) struct OwnMemory {
    bytes: u64,
    frames: Arc<Mutex<BTreeMap<Handle, (Mapping, OwnedFd)>>>,
}

impl FrameWatcher for OwnMemory {
    /// Takes its time, as a device that pins the memory.
    fn mapped(&self, _: Handle, _: &Mapping) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }

    fn unmapping(&self, frame: Handle, memory: &Mapping) {
        let freed = self.frames.lock().unwrap().remove(&frame);
        assert_eq!(freed.is_some(), memory.is_elsewhere());
    }

    fn allocate(&self, frame: Handle, length: u64) -> Option<usize> {
        let mut frames = self.frames.lock().unwrap();
        let used: usize = frames.values().map(|(memory, _)| memory.length_bytes()).sum();
        let fits = used as u64 + length <= self.bytes;
        fits.then(|| {
            let (memory, descriptor) = memfd(length);
            let address = memory.pointer().addr();
            frames.insert(frame, (memory, descriptor));
            address
        })
    }

    fn export(&self, frame: Handle, _: &Mapping) -> Result<Exported, NotExported> {
        let frames = self.frames.lock().unwrap();
        let (memory, descriptor) = &frames[&frame];
        let descriptor = descriptor.try_clone().map_err(|_| NotExported::Failed)?;
        Ok(Exported { descriptor, kind: ExportKind::Memory, length: memory.length_bytes() as u64 })
    }
}

/// Memory of so many bytes, which cannot shrink.
fn memfd(length: u64) -> (Mapping, OwnedFd) {
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create("own-memory", flags).unwrap();
    rustix::fs::ftruncate(&descriptor, length).unwrap();
    rustix::fs::fcntl_add_seals(&descriptor, rustix::fs::SealFlags::SHRINK).unwrap();
    let memory = Mapping::shared(descriptor.as_fd(), length as usize, Access::ReadWrite, 4096).unwrap();
    (memory, descriptor)
}

impl OwnMemory {
    /// Memory of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, frames: Arc::default() }
    }

    /// Carries out a job over host memory and this memory, as the CPU engine does.
    pub(crate) fn perform(&self, job: &Job) -> Outcome {
        let frames = self.frames.lock().unwrap();
        let here = |mapping: &Mapping| {
            let mut own = frames.values().map(|(memory, _)| memory);
            let own = own.find(|own| own.pointer().addr() == mapping.pointer().addr());
            if mapping.is_elsewhere() { own.cloned() } else { Some(mapping.clone()) }
        };
        let found = job.operation().try_map(|_, region, reach| {
            let start = match reach {
                Reach::Walk(plane, _) => plane.start,
                Reach::Bytes(_) => 0,
            };
            let region = here(region.memory())
                .and_then(|memory| Region::new(memory, region.offset(), region.length()));
            region.map(|region| (region, start)).ok_or(())
        });
        let found = Descriptor::new(0, found.unwrap()).unwrap();
        let confined = Confined::new(found.operation(), job.hint()).unwrap();
        memferry_cpu::perform_whole(&confined, None).unwrap_or_else(|| job.failed(Failure::Unsupported, 0))
    }
}
