//! The Linux module beside the CPU of each lane: opening it, and the thread that registers clients' memory with it.
//!
//! ```text
//! lane ─ memory of a long transfer, not registered ─► registrar: pins it ─► LaneCommand::Registered ─► lane
//! control side ─ frames are gone ─► LaneCommand::Forget ─► lane ─► registrar: unpins them
//! ```
//!
//! Pinning takes about as long as copying, and nobody's transfers wait for it: neither lanes nor the control side touch
//! pages. Each lane has a device of its own, so that it takes its own records; memory that several lanes use is pinned for
//! each. What goes to the module is [`LaneEngine`]'s decision.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use memferry_cpu::CpuEngine;
use memferry_kmod::KernelEngine;

use crate::worker_engine::LaneEngine;
use memferry_kmod::device::{KernelDevice, KernelMemory, OpenError};
use memferry_shm::mapping::Mapping;
use memferry_transfer::Engine;
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::counters::Counter;
use crate::lane::{LaneCommand, LaneHandle};

/// Why the module cannot be used.
#[derive(Debug, Error)]
pub enum KernelError {
    /// Its device cannot be opened.
    #[error("cannot use the kernel module: {0}")]
    Open(#[from] OpenError),
    /// It would only copy by the CPU, which lanes do themselves.
    #[error(
        "the kernel module behind {} has no DMA channel; see what its log says of drivers, or serve without it",
        path.display()
    )]
    NoChannels { path: PathBuf },
    /// The thread that registers memory did not start.
    #[error("cannot use the kernel module: {0}")]
    System(#[from] io::Error),
}

/// What the module has done for a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelStatus {
    /// Transfers that it ended.
    pub transfers: u64,
    /// Destination bytes of them.
    pub bytes: u64,
    /// Of these, moved by DMA engines; the kernel's CPU moved the others.
    pub dma_bytes: u64,
    /// Transfers that it failed at, which CPU lanes did again.
    pub redone: u64,
}

impl KernelStatus {
    /// That of two lanes.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            transfers: self.transfers.wrapping_add(other.transfers),
            bytes: self.bytes.wrapping_add(other.bytes),
            dma_bytes: self.dma_bytes.wrapping_add(other.dma_bytes),
            redone: self.redone.wrapping_add(other.redone),
        }
    }
}

/// The same for one lane, which writes it.
#[derive(Default)]
pub(crate) struct KernelCounters {
    transfers: Counter,
    bytes: Counter,
    dma_bytes: Counter,
    redone: Counter,
}

impl KernelCounters {
    /// What the lane's engine has done.
    pub(crate) fn look(&self, engine: &LaneEngine<KernelEngine>) {
        let (Some(counts), Some(module)) = (engine.counts(), engine.device()) else { return };
        self.transfers.set(counts.transfers);
        self.bytes.set(counts.bytes);
        self.dma_bytes.set(module.bytes_by_dma());
        self.redone.set(counts.redone);
    }

    pub(crate) fn status(&self) -> KernelStatus {
        KernelStatus {
            transfers: self.transfers.get(),
            bytes: self.bytes.get(),
            dma_bytes: self.dma_bytes.get(),
            redone: self.redone.get(),
        }
    }
}

/// What the registrar is asked for.
enum Chore {
    Register(Wanted),
    LetGo(Vec<Mapping>, Vec<KernelMemory>),
}

/// The thread that pins and unpins; it ends with the last lane.
pub(crate) struct Registrar {
    path: PathBuf,
    chores: Sender<Chore>,
    thread: JoinHandle<()>,
}

impl Registrar {
    /// Starts it for the module behind `path`.
    ///
    /// # Errors
    /// [`KernelError::System`].
    pub(crate) fn start(path: &Path) -> Result<Self, KernelError> {
        let (chores, todo) = channel();
        // As much as this process may have: what cannot be pinned is moved by the CPU.
        let mut limit = getrlimit(Resource::Memlock);
        limit.current = limit.maximum;
        let _ = setrlimit(Resource::Memlock, limit);
        let thread =
            std::thread::Builder::new().name("memferry-pins".to_owned()).spawn(move || work(&todo))?;
        Ok(Self { path: path.to_owned(), chores, thread })
    }

    /// A lane's engine with the module beside its CPU.
    ///
    /// # Errors
    /// [`KernelError`].
    pub(crate) fn beside(
        &self,
        cpu: CpuEngine,
        lane: &Arc<LaneHandle>,
    ) -> Result<(LaneEngine<KernelEngine>, Offload), KernelError> {
        let device = KernelDevice::open(&self.path)?;
        let found = device.query()?;
        if found.channels == found.faulted_channels {
            return Err(KernelError::NoChannels { path: self.path.clone() });
        }
        let device = Arc::new(device);
        let engine = KernelEngine::new(Arc::clone(&device), cpu.capabilities().channels);
        let offload = Offload { lane: Arc::clone(lane), device, chores: self.chores.clone() };
        Ok((LaneEngine::new(cpu).with_device(engine, found.threshold), offload))
    }

    /// Waits for its end, once all lanes have ended.
    pub(crate) fn end(self) {
        drop(self.chores);
        let _ = self.thread.join();
    }
}

/// Memory that is to be pinned for a lane.
struct Wanted {
    lane: Arc<LaneHandle>,
    device: Arc<KernelDevice>,
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

fn pin(Wanted { lane, device, memory }: Wanted, warned: &mut bool) {
    match device.register(memory.clone()) {
        Ok(registered) => lane.tell(LaneCommand::Registered(memory, registered)),
        Err(error) => {
            let bytes = memory.length_bytes();
            if std::mem::replace(warned, true) {
                tracing::debug!(bytes, reason = %error, "not pinned for the kernel module");
            } else {
                tracing::warn!(bytes, reason = %error, "not pinned for the kernel module: left to the CPU");
            }
        }
    }
}

/// A lane's side of it.
pub(crate) struct Offload {
    lane: Arc<LaneHandle>,
    device: Arc<KernelDevice>,
    chores: Sender<Chore>,
}

impl Offload {
    /// Has memory registered; the answer is a command to the lane, or none where that is not possible.
    pub(crate) fn register(&self, wanted: Vec<Mapping>) {
        for memory in wanted {
            let lane = Arc::clone(&self.lane);
            let device = Arc::clone(&self.device);
            let _ = self.chores.send(Chore::Register(Wanted { lane, device, memory }));
        }
    }

    /// Has memory unpinned, and frames unmapped that may be nobody else's.
    pub(crate) fn let_go(&self, frames: Vec<Mapping>, memory: Vec<KernelMemory>) {
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
            let config = ServiceConfig { kernel: Some(path.into()), lanes: 2, ..ServiceConfig::default() };
            let Err(error) = Service::start(config) else { panic!("{path} is taken for the module") };
            assert!(matches!(error, StartError::Kernel(_)));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
