//! Opens the Linux module for each worker, and registers clients' memory with it in a separate thread, the registrar.
//!
//! ```text
//! worker ─ unregistered memory of a long transfer ─► registrar: pins it ─► WorkerCommand::Registered ─► worker
//! control side ─ released frames ─► WorkerCommand::Forget ─► worker ─► registrar: unpins them
//! ```
//!
//! Pinning takes about as long as copying, so neither workers nor the control side do it and no transfer waits for it. Each
//! worker opens the device separately to receive its own records; memory that several workers use is pinned once for each.
//! [`WorkerEngine`] decides which transfers go to the module.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use memferry_cpu::CpuEngine;
use memferry_kmod::ModuleEngine;
use memferry_kmod::device::{ModuleDevice, ModuleMemory, OpenError};
use memferry_shm::mapping::Mapping;
use memferry_transfer::Engine;
use rustix::process::{Resource, getrlimit, setrlimit};
use thiserror::Error;

use crate::shared::{WorkerCommand, WorkerHandle};
use crate::worker_engine::WorkerEngine;

pub use crate::protocol::ModuleStatus;

/// Reason for which the module cannot be used.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// The device cannot be opened.
    #[error("cannot use the Linux module: {0}")]
    Open(#[from] OpenError),
    /// It has no DMA channel. Copying by the CPU is what workers do themselves.
    #[error(
        "the Linux module behind {} has no DMA channel; see its messages in dmesg, or serve without the module",
        path.display()
    )]
    NoChannels { path: PathBuf },
    /// The thread that registers memory did not start.
    #[error("cannot use the Linux module: {0}")]
    System(#[from] io::Error),
}

enum Job {
    Register(PinRequest),
    Release(Vec<Mapping>, Vec<ModuleMemory>),
}

/// The thread that pins and unpins memory. It ends after the last worker.
pub(crate) struct Registrar {
    path: PathBuf,
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl Registrar {
    /// Starts the thread for the module at `path`.
    ///
    /// # Errors
    /// [`ModuleError::System`].
    pub(crate) fn start(path: &Path) -> Result<Self, ModuleError> {
        let (jobs, requests) = channel();
        // Raises the limit as far as allowed. The CPU moves memory that cannot be pinned.
        let mut limit = getrlimit(Resource::Memlock);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Memlock, limit);
        let thread = std::thread::Builder::new()
            .name("memferry-pins".to_owned())
            .spawn(move || run_registrar(&requests))?;
        Ok(Self { path: path.to_owned(), jobs, thread })
    }

    /// Builds a worker's engine with the module beside its CPU.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub(crate) fn worker_engine(
        &self,
        cpu: CpuEngine,
        worker: &Arc<WorkerHandle>,
    ) -> Result<(WorkerEngine<ModuleEngine>, Offload), ModuleError> {
        let device = ModuleDevice::open(&self.path)?;
        let found = device.query()?;
        if found.channels == found.faulted_channels {
            return Err(ModuleError::NoChannels { path: self.path.clone() });
        }
        let device = Arc::new(device);
        let engine = ModuleEngine::new(Arc::clone(&device), cpu.capabilities().channels);
        let offload = Offload { worker: Arc::clone(worker), device, jobs: self.jobs.clone() };
        Ok((WorkerEngine::new(cpu).with_device(engine, found.threshold), offload))
    }

    /// Waits until the thread ends. Call it after all workers have ended.
    pub(crate) fn join(self) {
        drop(self.jobs);
        let _ = self.thread.join();
    }
}

/// A request to pin memory for a worker.
struct PinRequest {
    worker: Arc<WorkerHandle>,
    device: Arc<ModuleDevice>,
    memory: Mapping,
}

/// Handles all releases before the next pin, because a client can register and release memory faster than it can be pinned.
fn run_registrar(requests: &Receiver<Job>) {
    let mut backlog = VecDeque::new();
    let mut warned = false;
    while let Ok(first) = if backlog.is_empty() { requests.recv().map(Some) } else { Ok(None) } {
        for job in first.into_iter().chain(requests.try_iter()) {
            match job {
                Job::Register(request) => backlog.push_back(request),
                Job::Release(frames, memory) => {
                    drop(memory);
                    remove_from_backlog(&mut backlog, &frames);
                }
            }
        }
        if let Some(request) = backlog.pop_front() {
            pin(request, &mut warned);
        }
    }
}

/// Removes released frames from the backlog, so that they are neither pinned nor kept mapped.
fn remove_from_backlog(backlog: &mut VecDeque<PinRequest>, frames: &[Mapping]) {
    backlog.retain(|request| !frames.iter().any(|frame| frame.is(&request.memory)));
}

fn pin(PinRequest { worker, device, memory }: PinRequest, warned: &mut bool) {
    match device.register(memory.clone()) {
        Ok(registered) => worker.send(WorkerCommand::Registered(memory, registered)),
        Err(error) => {
            let bytes = memory.length_bytes();
            if std::mem::replace(warned, true) {
                tracing::debug!(bytes, reason = %error, "not pinned for the Linux module");
            } else {
                tracing::warn!(bytes, reason = %error, "not pinned for the Linux module: the CPU moves its bytes");
            }
        }
    }
}

/// A worker's handle of its device and of the registrar.
pub(crate) struct Offload {
    worker: Arc<WorkerHandle>,
    device: Arc<ModuleDevice>,
    jobs: Sender<Job>,
}

impl Offload {
    /// Requests registration of memory. `WorkerCommand::Registered` follows, unless the memory cannot be pinned.
    pub(crate) fn register(&self, memories: Vec<Mapping>) {
        for memory in memories {
            let worker = Arc::clone(&self.worker);
            let device = Arc::clone(&self.device);
            let _ = self.jobs.send(Job::Register(PinRequest { worker, device, memory }));
        }
    }

    /// Requests that memory is unpinned, and frames are unmapped if this was their last reference.
    pub(crate) fn release(&self, frames: Vec<Mapping>, memory: Vec<ModuleMemory>) {
        let _ = self.jobs.send(Job::Release(frames, memory));
    }
}

impl AsFd for Offload {
    /// Readable when the module has completed a transfer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Service, ServiceConfig, StartError};

    #[test]
    fn start_reports_why_the_module_is_unusable() {
        for (path, expected) in [
            ("/nonexistent/memferry", "/nonexistent/memferry is not there; load the module"),
            ("/dev/null", "/dev/null is not the device of the memferry module"),
        ] {
            let config = ServiceConfig { module: Some(path.into()), workers: 2, ..ServiceConfig::default() };
            let Err(error) = Service::start(config, crate::shared::Clients::Here) else {
                panic!("{path} was accepted as the module")
            };
            assert!(matches!(error, StartError::Module(_)));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
