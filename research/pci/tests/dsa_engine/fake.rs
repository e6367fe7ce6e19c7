//! idxd whose device is the model, in the engine's process: a thread that reaches the process's memory by addresses, as the device does.
//!
//! ```text
//! QueueFile, Portal ─► model (Mutex) ◄─ thread, in the machine's time ─► process_vm_readv, process_vm_writev of this process
//! ```
//!
//! Files in the stage's folder say how it differs from a device that works; they are looked at on each submission.

use std::io::{self, IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Wall};

use memferry_clock::{Clock, Instant};
use memferry_dsa::registers::RegisterIo;
use memferry_dsa::registers::descriptor::{Descriptor, opcode};
use memferry_dsa::registers::offset::{Portal as Kind, portal};
use memferry_dsa::{DescriptorFile, Dsa, Group, Portal, Refused, WorkQueue};
use memferry_engine::Mapping;
use memferry_engine_dsa::{Kernel, Mode, NotMapped, QueueFile, QueueName};
use memferry_models::dsa::{Config, Dsa as Model, Pci};
use memferry_models::{Bus, BusError};
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

const PASID: u32 = 5;

/// The address space of this process. Pages that it has not are page faults of the device.
#[derive(Debug)]
pub(crate) struct OwnSpace;

fn remote(address: u64, bytes: usize) -> RemoteIoVec {
    RemoteIoVec { base: address as usize, len: bytes }
}

impl Bus for OwnSpace {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), BusError> {
        let length = bytes.len();
        let read = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(bytes)], &[remote(address, length)]);
        if read == Ok(length) { Ok(()) } else { Err(BusError) }
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), BusError> {
        let write = |at: usize, part: &[u8]| {
            let to = remote(address + at as u64, part.len());
            let written = process_vm_writev(Pid::this(), &[IoSlice::new(part)], &[to]);
            if written == Ok(part.len()) { Ok(()) } else { Err(BusError) }
        };
        // A completion record has its status in the first word, and the device writes it as a whole.
        if bytes.len() == 32 {
            write(8, &bytes[8..])?;
            return write(0, &bytes[..8]);
        }
        write(0, bytes)
    }
}

#[derive(Debug)]
struct Device {
    model: Mutex<Model<OwnSpace>>,
    submitted: Condvar,
    is_closed: AtomicBool,
    origin: Wall,
    folder: PathBuf,
}

impl Device {
    fn lock(&self) -> MutexGuard<'_, Model<OwnSpace>> {
        self.model.lock().unwrap()
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    fn note(&self, file: &str) {
        if !self.has(file) {
            std::fs::write(self.folder.join(file), "").unwrap();
        }
    }

    /// The thread: moves what was submitted.
    fn work(&self) {
        let mut model = self.lock();
        while !self.is_closed.load(Ordering::Relaxed) {
            // The time of configuration was virtual.
            let now = Instant::from_nanoseconds(100_000_000).after(self.origin.elapsed());
            model.step(now);
            let pause = if model.next_wake().is_some() {
                Duration::from_micros(5)
            } else {
                Duration::from_millis(20)
            };
            model = self.submitted.wait_timeout(model, pause).unwrap().0;
        }
    }
}

/// The model's registers, and time that goes on while the driver waits.
#[derive(Clone, Debug)]
struct Registers(Arc<Device>);

impl RegisterIo for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        self.0.lock().read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.0.lock().write32(offset, value);
    }
}

impl Clock for Registers {
    fn now(&self) -> Instant {
        let mut model = self.0.lock();
        let now = model.now().after(Duration::from_micros(1));
        model.step(now);
        now
    }
}

/// The kernel of a stage.
#[derive(Debug)]
pub(crate) struct Fake {
    folder: PathBuf,
}

impl Fake {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    fn has(&self, file: &str) -> bool {
        self.folder.join(file).exists()
    }

    fn entries(&self) -> u16 {
        let text = std::fs::read_to_string(self.folder.join("entries")).ok();
        text.map_or(16, |text| text.parse().expect("a number"))
    }

    fn device(&self) -> Arc<Device> {
        let is_shared = self.has("shared");
        let config = Config { translated: true, ..Config::default() };
        let mut model = Model::new(config, OwnSpace);
        model.set_pci(Pci { pasid: true, ..Pci::default() });
        let device = Arc::new(Device {
            model: Mutex::new(model),
            submitted: Condvar::new(),
            is_closed: AtomicBool::new(false),
            origin: Wall::now(),
            folder: self.folder.clone(),
        });
        let registers = Registers(Arc::clone(&device));
        let mut control = Dsa::new(registers.clone(), registers);
        let timeout = Duration::from_millis(50);
        control.initialize(timeout).expect("the model's version");
        let group = Group { engines: 0b1111, read_buffers_reserved: 0, read_buffers_allowed: None };
        let queue = WorkQueue {
            size: self.entries(),
            group: 0,
            dedicated: !is_shared,
            threshold: self.entries(),
            priority: 10,
            block_on_fault: false,
            max_transfer: None,
            // Batches of 16.
            max_batch: Some(4),
            pasid: Some(PASID),
        };
        control.configure(&[group], &[queue]).expect("within the rules");
        control.enable(timeout).expect("valid");
        control.enable_queue(0, timeout).expect("valid");
        device
    }
}

impl Kernel for Fake {
    type File = FakeQueue;

    fn attribute(&self, path: &str) -> io::Result<String> {
        let mode = if self.has("shared") { "shared" } else { "dedicated" };
        let entries = self.entries().to_string();
        let state = if self.has("disabled") { "disabled" } else { "enabled" };
        let file = path.strip_prefix("dsa0/").ok_or(io::ErrorKind::NotFound)?;
        let file = file.strip_prefix("wq0.0/").or_else(|| file.strip_prefix("wq0.1/")).unwrap_or(file);
        Ok(match file {
            "type" => "user",
            "state" => state,
            "mode" => mode,
            "size" | "threshold" => &entries,
            "group_id" => "0",
            "pasid_enabled" => "1",
            "max_transfer_size" => "2097152",
            "max_batch_size" => "16",
            // As Sapphire Rapids, whose overlapping moves the model has, too.
            "gen_cap" => "0x40915f010f",
            "op_cap" => "00000001,003f03ff",
            _ => return Err(io::ErrorKind::NotFound.into()),
        }
        .to_owned())
    }

    fn names(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(vec!["wq0.0".to_owned(), "wq0.1".to_owned()])
    }

    fn open(&self, _: QueueName) -> io::Result<FakeQueue> {
        if self.has("taken") {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let device = self.device();
        let worker = Arc::clone(&device);
        let thread = std::thread::spawn(move || worker.work());
        let way = ModelPortal { device, is_shared: self.has("shared"), submissions: 0 };
        Ok(FakeQueue { way, thread: Some(thread), unmapped: self.has("unmapped") })
    }

    /// The model's thread has the kernel make pages present.
    fn keep_present(&self, _: &Mapping) -> io::Result<()> {
        Ok(())
    }
}

/// A portal of the model's only queue.
#[derive(Clone, Debug)]
pub(crate) struct ModelPortal {
    device: Arc<Device>,
    is_shared: bool,
    submissions: u64,
}

impl ModelPortal {
    /// Makes pages absent, as the stage's files say.
    fn inject(&mut self, model: &mut Model<OwnSpace>, descriptor: &Descriptor) {
        self.submissions += 1;
        let folder = &self.device.folder;
        if self.device.has("gone") {
            let [.., destination, _, _, _, _] = descriptor.words;
            model.faults().absent(destination + 0x8000);
            return;
        }
        model.faults().clear();
        if self.device.has("stuck") {
            (0..4).for_each(|engine| model.faults().stick(engine));
        }
        let every =
            std::fs::read_to_string(folder.join("absent")).ok().and_then(|text| text.parse::<u64>().ok());
        let is_batch = descriptor.words[0] >> 56 == u64::from(opcode::BATCH);
        if every.is_some_and(|every| self.submissions.is_multiple_of(every)) && !is_batch {
            // A page of the first operand, and of nothing beside it: completion records must be present. The next submission finds it
            // present.
            let last = u64::from(descriptor.words[4] as u32).saturating_sub(1);
            model.faults().absent(descriptor.words[2].wrapping_add(last.min(0x1000)));
            self.device.note("faulted");
        }
    }
}

impl Portal for ModelPortal {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        let device = Arc::clone(&self.device);
        if device.has("full") {
            return Err(Refused::Busy);
        }
        let mut model = device.lock();
        self.inject(&mut model, descriptor);
        if descriptor.words[0] >> 56 == u64::from(opcode::BATCH) && descriptor.words[4] as u32 > 1 {
            device.note("batched");
        }
        let offset = portal(0, Kind::Limited);
        let is_taken = if self.is_shared {
            model.enqueue(offset, descriptor.with_pasid(PASID, false).words)
        } else {
            model.post(offset, descriptor.words);
            true
        };
        device.submitted.notify_all();
        if is_taken { Ok(()) } else { Err(Refused::Busy) }
    }
}

/// An open queue. At its end it waits for the device, as the kernel does.
#[derive(Debug)]
pub(crate) struct FakeQueue {
    way: ModelPortal,
    thread: Option<JoinHandle<()>>,
    unmapped: bool,
}

impl Drop for FakeQueue {
    fn drop(&mut self) {
        self.way.device.is_closed.store(true, Ordering::Relaxed);
        self.way.device.submitted.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl DescriptorFile for FakeQueue {
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused> {
        if self.way.device.has("disabled") {
            return Err(Refused::Closed);
        }
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[8 * at + byte]));
        let descriptor = Descriptor { words: core::array::from_fn(word) };
        self.way.submit(&descriptor).map(|()| 64)
    }
}

impl QueueFile for FakeQueue {
    type Portal = ModelPortal;

    fn map(&self, _: Mode) -> Result<ModelPortal, NotMapped> {
        if self.unmapped {
            return Err(NotMapped::Refused(io::ErrorKind::PermissionDenied.into()));
        }
        Ok(self.way.clone())
    }
}
