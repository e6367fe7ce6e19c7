//! The frames that requests name: host memory of clients, pinned while it is here, and VRAM in which they have frames.
//!
//! ```text
//! mapped(frame)    ─► HostMemory, pinned ─┐ by the address of
//! allocate(length) ─► Vram, zeroed ───────┴ its first byte    ─► finder: places, for a job
//! export(frame)    ─► a descriptor of its allocation
//! unmapping(frame) ─► unpinned, or given back
//! ```

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use memferry_engine::{ExportKind, Exported, FrameWatcher, Handle, Mapping, NotExported, report};

use crate::device::Device;
use crate::host::HostMemory;
use crate::place::Place;
use crate::vram::{Vram, VramPool};

/// The frames of an engine's process. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Frames(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// The engine's, for lines to the administrator.
    name: String,
    device: Arc<Device>,
    pool: Arc<VramPool>,
    known: Mutex<Known>,
    reported_unpinned: AtomicBool,
    /// A failed allocation was reported.
    reported_exhausted: AtomicBool,
    /// A failed export was reported.
    reported_not_exported: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    host: BTreeMap<usize, Arc<HostMemory>>,
    vram: BTreeMap<usize, Arc<Vram>>,
}

impl Frames {
    /// No frames, and a pool of VRAM for those of clients.
    pub(crate) fn new(name: &str, device: &Arc<Device>, memory_bytes: u64) -> Self {
        Self(Arc::new(Shared {
            name: name.to_owned(),
            device: Arc::clone(device),
            pool: VramPool::new(device, memory_bytes),
            known: Mutex::default(),
            reported_unpinned: AtomicBool::new(false),
            reported_exhausted: AtomicBool::new(false),
            reported_not_exported: AtomicBool::new(false),
        }))
    }

    /// Finds whole memories, of the operands of one request: frames come and go only after that.
    pub(crate) fn finder(&self) -> impl Fn(&Mapping) -> Option<Place> {
        let known = self.known();
        move |memory| {
            let whole = 0..memory.length_bytes() as u64;
            if memory.is_elsewhere() {
                known.vram.get(&address(memory))?.place(whole)
            } else {
                known.host.get(&address(memory))?.place(whole)
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line to the administrator, unless it was written before.
    fn report_once(&self, was_reported: &AtomicBool, what: std::fmt::Arguments<'_>) {
        if !was_reported.swap(true, Ordering::Relaxed) {
            report(&self.0.name, what);
        }
    }
}

impl FrameWatcher for Frames {
    fn pins(&self, memory: &Mapping) -> bool {
        HostMemory::can_pin(&self.0.device, memory).is_ok()
    }

    fn mapped(&self, _: Handle, memory: &Mapping) {
        let pinned = HostMemory::new(&self.0.device, memory.clone());
        if let Some(why) = pinned.not_pinned() {
            self.report_once(
                &self.0.reported_unpinned,
                format_args!("a frame is not pinned, so it is slow: {why}"),
            );
        }
        let _replaced = self.known().host.insert(address(memory), pinned);
    }

    fn unmapping(&self, _: Handle, memory: &Mapping) {
        // Dropped after the lock is released: the driver may take its time.
        let _freed = if memory.is_elsewhere() {
            (self.known().vram.remove(&address(memory)), None)
        } else {
            (None, self.known().host.remove(&address(memory)))
        };
    }

    fn allocate(&self, _: Handle, length: u64) -> Option<usize> {
        match self.0.pool.allocate(length) {
            Ok(vram) => {
                let address = usize::try_from(vram.address().0).ok()?;
                self.known().vram.insert(address, vram);
                Some(address)
            }
            Err(why) => {
                let what = format_args!("no frame of {length} bytes: {why}");
                self.report_once(&self.0.reported_exhausted, what);
                None
            }
        }
    }

    fn export(&self, _: Handle, memory: &Mapping) -> Result<Exported, NotExported> {
        let vram = self.known().vram.get(&address(memory)).cloned().ok_or(NotExported::Failed)?;
        match vram.export() {
            Ok(descriptor) => {
                let kind = ExportKind::Cuda { device: self.0.device.uuid() };
                Ok(Exported { descriptor, kind, length: vram.mapped_bytes() })
            }
            Err(why) => {
                self.report_once(
                    &self.0.reported_not_exported,
                    format_args!("a frame is not exported: {why}"),
                );
                Err(NotExported::Failed)
            }
        }
    }
}

/// Tells mappings apart: the address of this process, or that of the device, which no mapping of this process has.
fn address(memory: &Mapping) -> usize {
    memory.pointer().addr()
}
