//! The Linux module beside the CPU of each worker: opening it, and the thread that registers clients' memory with it.
//!
//! ```text
//! worker ─ memory of a long transfer, not registered ─► registrar: pins it ─► WorkerCommand::Registered ─► worker
//! control side ─ frames are gone ─► WorkerCommand::Forget ─► worker ─► registrar: unpins them
//! ```
//!
//! Pinning takes about as long as copying, and nobody's transfers wait for it: neither workers nor the control side touch
//! pages. Each worker has a device of its own, so that it takes its own records; memory that several workers use is pinned for
//! each. What goes to the module is [`WorkerEngine`]'s decision.

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

/// Why the module cannot be used.
#[derive(Debug, Error)]
pub enum ModuleError {
    /// Its device cannot be opened.
    #[error("cannot use the Linux module: {0}")]
    Open(#[from] OpenError),
    /// It would only copy by the CPU, which workers do themselves.
    #[error(
        "the Linux module behind {} has no DMA channel; see what its log says of drivers, or serve without it",
        path.display()
    )]
    NoChannels { path: PathBuf },
    /// The thread that registers memory did not start.
    #[error("cannot use the Linux module: {0}")]
    System(#[from] io::Error),
}

/// What the registrar is asked for.
enum Chore {
    Register(Wanted),
    LetGo(Vec<Mapping>, Vec<ModuleMemory>),
}

/// The thread that pins and unpins; it ends with the last worker.
pub(crate) struct Registrar {
    path: PathBuf,
    chores: Sender<Chore>,
    thread: JoinHandle<()>,
}

impl Registrar {
    /// Starts it for the module behind `path`.
    ///
    /// # Errors
    /// [`ModuleError::System`].
    pub(crate) fn start(path: &Path) -> Result<Self, ModuleError> {
        let (chores, todo) = channel();
        // As much as this process may have: what cannot be pinned is moved by the CPU.
        let mut limit = getrlimit(Resource::Memlock);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Memlock, limit);
        let thread =
            std::thread::Builder::new().name("memferry-pins".to_owned()).spawn(move || work(&todo))?;
        Ok(Self { path: path.to_owned(), chores, thread })
    }

    /// A worker's engine with the module beside its CPU.
    ///
    /// # Errors
    /// [`ModuleError`].
    pub(crate) fn beside(
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
        let offload = Offload { worker: Arc::clone(worker), device, chores: self.chores.clone() };
        Ok((WorkerEngine::new(cpu).with_device(engine, found.threshold), offload))
    }

    /// Waits for its end, once all workers have ended.
    pub(crate) fn end(self) {
        drop(self.chores);
        let _ = self.thread.join();
    }
}

/// Memory that is to be pinned for a worker.
struct Wanted {
    worker: Arc<WorkerHandle>,
    device: Arc<ModuleDevice>,
    memory: Mapping,
}

/// Lets go of all it can before it pins the next: a client may have far more pinned, and take it away again, than there is time for.
fn work(todo: &Receiver<Chore>) {
    let mut backlog = VecDeque::new();
    let mut warned = false;
    while let Ok(first) = if backlog.is_empty() { todo.recv().map(Some) } else { Ok(None) } {
        for chore in first.into_iter().chain(todo.try_iter()) {
            match chore {
                Chore::Register(wanted) => backlog.push_back(wanted),
                Chore::LetGo(frames, memory) => {
                    drop(memory);
                    forget(&mut backlog, &frames);
                }
            }
        }
        if let Some(wanted) = backlog.pop_front() {
            pin(wanted, &mut warned);
        }
    }
}

/// What nobody uses any more is not pinned, and not kept mapped until its turn.
fn forget(backlog: &mut VecDeque<Wanted>, frames: &[Mapping]) {
    backlog.retain(|wanted| !frames.iter().any(|frame| frame.is(&wanted.memory)));
}

fn pin(Wanted { worker, device, memory }: Wanted, warned: &mut bool) {
    match device.register(memory.clone()) {
        Ok(registered) => worker.tell(WorkerCommand::Registered(memory, registered)),
        Err(error) => {
            let bytes = memory.length_bytes();
            if std::mem::replace(warned, true) {
                tracing::debug!(bytes, reason = %error, "not pinned for the Linux module");
            } else {
                tracing::warn!(bytes, reason = %error, "not pinned for the Linux module: left to the CPU");
            }
        }
    }
}

/// A worker's side of it.
pub(crate) struct Offload {
    worker: Arc<WorkerHandle>,
    device: Arc<ModuleDevice>,
    chores: Sender<Chore>,
}

impl Offload {
    /// Has memory registered; the answer is a command to the worker, or none where that is not possible.
    pub(crate) fn register(&self, wanted: Vec<Mapping>) {
        for memory in wanted {
            let worker = Arc::clone(&self.worker);
            let device = Arc::clone(&self.device);
            let _ = self.chores.send(Chore::Register(Wanted { worker, device, memory }));
        }
    }

    /// Has memory unpinned, and frames unmapped that may be nobody else's.
    pub(crate) fn let_go(&self, frames: Vec<Mapping>, memory: Vec<ModuleMemory>) {
        let _ = self.chores.send(Chore::LetGo(frames, memory));
    }
}

impl AsFd for Offload {
    /// Readable when the module has ended something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Service, ServiceConfig, StartError};

    #[test]
    fn a_service_says_why_it_cannot_have_the_module() {
        for (path, expected) in [
            ("/nonexistent/memferry", "/nonexistent/memferry is not there; load the module"),
            ("/dev/null", "/dev/null is not the device of the memferry module"),
        ] {
            let config = ServiceConfig { module: Some(path.into()), workers: 2, ..ServiceConfig::default() };
            let Err(error) = Service::start(config) else { panic!("{path} is taken for the module") };
            assert!(matches!(error, StartError::Module(_)));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
