//! The device behind its messages: one work queue of type user, and the processes that have it open.
//!
//! ```text
//! open ─► an address space with a number ─► write: 64 bytes ── what idxd checks ──► portal of the model
//! release ─► the queue is drained ─► the number is free
//! ```
//!
//! What `write()` does is idxd's (drivers/dma/idxd/cdev.c of Linux 6.1 and later): whole descriptors only, and what is behind the last whole one is not taken; no
//! batches, since a device of the first version that runs them unseen is unsafe (INTEL-SA-01084); completion records aligned to 32 bytes; callers with
//! another address space than the opener's get EPERM. The first descriptor that is refused ends the call, with the bytes taken before, or its error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use memferry_clock::{Clock, Instant};
use memferry_dsa::{CommandFailure, ConfigurationError, Dsa, Group, InitError, WorkQueue};
use memferry_dsa_registers::RegisterIo;
use memferry_dsa_registers::control::Command;
use memferry_dsa_registers::descriptor::{Descriptor, opcode};
use memferry_dsa_registers::offset::{Portal, portal};
use memferry_dsa_registers::record::{BYTES as RECORD, Status};
use memferry_models::dsa::{Config, Dsa as Model, Pci, Timing};
use rustix::io::Errno;
use thiserror::Error;

use super::message::{self, Body, HEADER, Malformed, Request, WRITE_BODY, parse, reply};
use super::space::{Process, Spaces};
use crate::pace::Timed;

/// Bytes of a write that come in one message: a thousand descriptors.
const MOST_WRITTEN: u32 = 64 << 10;
/// A buffer for any request.
pub(crate) const BUFFER: usize = HEADER + WRITE_BODY + MOST_WRITTEN as usize;
const DESCRIPTOR: usize = 64;
/// Spaces that the device can tell apart.
const MOST_SPACES: u32 = 1 << 20;
/// The space of a dedicated queue, which has one file at a time.
const ONLY_SPACE: u32 = 1;
/// The device's own time that commands may take. Reading the clock costs a microsecond of it.
const PATIENCE: Duration = Duration::from_millis(500);
/// The device's only work queue.
const QUEUE: u8 = 0;

/// The work queue that the file leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CharacterOptions {
    /// Its name, as in `wq0.0`; the file is in `/dev/dsa`.
    pub name: String,
    /// Descriptors that it holds.
    pub entries: u16,
    /// Any number of processes may open it, each descriptor says whose it is, and a full queue answers EAGAIN.
    pub is_shared: bool,
    /// Descriptors may wait for absent pages.
    pub block_on_fault: bool,
}

/// Why there is no such device.
#[derive(Debug, Error)]
pub enum MakeError {
    #[error("'{0}' is no name of a file in /dev/dsa: use letters, digits and dots, as in wq0.0")]
    Name(String),
    #[error(transparent)]
    Init(#[from] InitError),
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    #[error(transparent)]
    Command(#[from] CommandFailure),
}

/// The model's registers. Reading the clock lets its time go on.
#[derive(Clone, Debug)]
struct Registers(Rc<RefCell<Model<Spaces>>>);

impl RegisterIo for Registers {
    fn read32(&mut self, offset: u32) -> u32 {
        self.0.borrow_mut().read32(offset)
    }

    fn write32(&mut self, offset: u32, value: u32) {
        self.0.borrow_mut().write32(offset, value);
    }
}

impl Clock for Registers {
    fn now(&self) -> Instant {
        let mut model = self.0.borrow_mut();
        let now = model.now().after(Duration::from_micros(1));
        model.step(now);
        now
    }
}

/// What the device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) opens: u64,
    pub(crate) descriptors: u64,
    pub(crate) refused: u64,
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
}

/// A work queue as a character device. No message panics it.
#[derive(Debug)]
pub struct CharacterDevice {
    options: CharacterOptions,
    model: Registers,
    control: Dsa<Registers, Registers>,
    /// The space of each open file.
    files: BTreeMap<u64, u32>,
    next_file: u64,
    counts: Counts,
    report: Vec<String>,
}

impl CharacterDevice {
    /// A device of the first generation with one enabled work queue.
    ///
    /// # Errors
    /// [`MakeError`].
    pub fn new(options: CharacterOptions) -> Result<Self, MakeError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let name = &options.name;
        if name.is_empty() || name.len() > 32 || name.starts_with('.') || !name.bytes().all(is_plain) {
            return Err(MakeError::Name(options.name));
        }
        // Bursts of a page: each costs system calls here.
        let timing = Timing { burst_lines: 64, ..Timing::default() };
        let config = Config { timing, translated: true, ..Config::default() };
        let mut model = Model::new(config, Spaces::default());
        model.set_pci(Pci { pasid: true, page_requests: true, ..Pci::default() });
        let model = Registers(Rc::new(RefCell::new(model)));
        let mut control = Dsa::new(model.clone(), model.clone());
        control.initialize(PATIENCE)?;
        let group = Group { engines: 0b1111, read_buffers_reserved: 0, read_buffers_allowed: None };
        let queue = WorkQueue {
            size: options.entries,
            group: 0,
            dedicated: !options.is_shared,
            threshold: options.entries,
            priority: 10,
            block_on_fault: options.block_on_fault,
            // 2 MiB and 32: what idxd gives a queue.
            max_transfer: Some(21),
            max_batch: Some(5),
            pasid: Some(ONLY_SPACE),
        };
        control.configure(&[group], &[queue])?;
        control.enable(PATIENCE)?;
        control.enable_queue(QUEUE, PATIENCE)?;
        Ok(Self {
            options,
            model,
            control,
            files: BTreeMap::new(),
            next_file: 1,
            counts: Counts::default(),
            report: Vec::new(),
        })
    }

    /// The path of the file.
    pub fn path(&self) -> String {
        format!("/dev/dsa/{}", self.options.name)
    }

    /// Does what a request says. Returns the reply, if it gets one.
    pub fn handle(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        match parse(message) {
            Ok(request) => self.answer(&request),
            Err(malformed) => self.refuse(&malformed),
        }
    }

    fn refuse(&mut self, malformed: &Malformed) -> Option<Vec<u8>> {
        self.report.push(malformed.to_string());
        malformed.unique().map(|unique| reply(unique, Err(Errno::IO)))
    }

    fn answer(&mut self, request: &Request<'_>) -> Option<Vec<u8>> {
        let thread = request.thread;
        let answer = match request.body {
            Body::Init { major, minor } => {
                message::init_body(major, minor, MOST_WRITTEN, &format!("dsa/{}", self.options.name))
            }
            Body::Open => self.open(thread).map(message::open_body),
            Body::Write { file, bytes } => self.write(file, thread, bytes).map(message::write_body),
            Body::Release { file } => self.release(file).map(|()| Vec::new()),
            // As of files without that call.
            Body::Read => Err(Errno::INVAL),
            Body::Ioctl => Err(Errno::NOTTY),
            Body::Interrupt => return None,
            Body::Other => Err(Errno::NOSYS),
        };
        if let Err(errno) = answer {
            self.counts.refused += 1;
            return Some(reply(request.unique, Err(errno)));
        }
        answer.ok().map(|body| reply(request.unique, Ok(&body)))
    }

    fn open(&mut self, thread: u32) -> Result<u64, Errno> {
        if !self.options.is_shared && !self.files.is_empty() {
            return Err(Errno::BUSY);
        }
        let process = Process::of(thread).map_err(|error| {
            Errno::from_io_error(&error).filter(|errno| *errno == Errno::MFILE).unwrap_or(Errno::NODEV)
        })?;
        let is_taken = |space: &u32| self.files.values().any(|taken| taken == space);
        let space = (ONLY_SPACE..MOST_SPACES).find(|space| !is_taken(space)).ok_or(Errno::NOSPC)?;
        self.model.0.borrow_mut().bus_mut().insert(space, process);
        let file = self.next_file;
        self.next_file += 1;
        self.files.insert(file, space);
        self.counts.opens += 1;
        Ok(file)
    }

    fn write(&mut self, file: u64, thread: u32, bytes: &[u8]) -> Result<u32, Errno> {
        let space = *self.files.get(&file).ok_or(Errno::BADF)?;
        let is_openers = self.model.0.borrow().bus().get(space).is_some_and(|process| process.is_of(thread));
        if !is_openers {
            return Err(Errno::PERM);
        }
        let mut taken = 0;
        for part in bytes.chunks_exact(DESCRIPTOR) {
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| part[8 * at + byte]));
            let descriptor = Descriptor { words: core::array::from_fn(word) };
            match self.submit(&descriptor, space) {
                Ok(()) => taken += DESCRIPTOR as u32,
                Err(_) if taken > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(taken)
    }

    fn submit(&mut self, descriptor: &Descriptor, space: u32) -> Result<(), Errno> {
        if descriptor.code() == opcode::BATCH || !descriptor.record().is_multiple_of(RECORD) {
            return Err(Errno::INVAL);
        }
        let mut model = self.model.0.borrow_mut();
        let offset = portal(QUEUE.into(), Portal::Limited);
        if !self.options.is_shared {
            // Posted: a full queue drops it, and the error register has that.
            model.post(offset, descriptor.words);
        } else if !model.enqueue(offset, descriptor.with_pasid(space, false).words) {
            return Err(Errno::AGAIN);
        }
        self.counts.descriptors += 1;
        Ok(())
    }

    /// The kernel waits for descriptors before it takes the address space away.
    fn release(&mut self, file: u64) -> Result<(), Errno> {
        let space = self.files.remove(&file).ok_or(Errno::BADF)?;
        let drained = match self.options.is_shared {
            true => self.control.command(Command::DrainPasid(space), PATIENCE),
            false => self.control.drain_queue(QUEUE, PATIENCE).map(drop),
        };
        if let Err(failure) = drained {
            self.report.push(format!("{} was not drained: {failure}", self.path()));
        }
        // What the device still has of it gets page faults from now on.
        self.model.0.borrow_mut().bus_mut().remove(space);
        Ok(())
    }

    /// Lines for a person: errors that no completion record could take, and broken rules.
    pub fn take_report(&mut self) -> Vec<String> {
        while let Some(error) = self.control.take_error() {
            let status = error.status;
            let code = status.code();
            let words = Status::from_code(code)
                .map_or_else(|| format!("code {code:#04x}"), |status| status.to_string());
            let operation = status.operation();
            let address = error.address;
            self.report.push(format!(
                "error of a descriptor: {words}, operation {operation:#04x}, address {address:#x}"
            ));
        }
        let complaints = self.model.0.borrow_mut().take_complaints();
        self.report.extend(complaints.iter().map(|complaint| format!("complaint: {complaint}")));
        std::mem::take(&mut self.report)
    }

    /// Runs the device until `now` of its own time.
    pub fn step(&mut self, now: Instant) {
        self.model.0.borrow_mut().step(now);
    }

    /// Descriptors that it has.
    pub fn pending(&self) -> usize {
        self.model.0.borrow().pending()
    }

    pub(crate) fn counts(&self) -> Counts {
        let model = self.model.0.borrow();
        let Spaces { bytes_read, bytes_written, .. } = *model.bus();
        Counts { bytes_read, bytes_written, ..self.counts }
    }
}

impl Timed for CharacterDevice {
    fn advance(&mut self, now: Instant) -> Option<Instant> {
        self.model.0.borrow_mut().step(now)
    }

    fn now(&self) -> Instant {
        self.model.0.borrow().now()
    }

    fn next_wake(&self) -> Option<Instant> {
        self.model.0.borrow().next_wake()
    }
}
