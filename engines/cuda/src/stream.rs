//! Streams: the device's ordered channels.
//!
//! ```text
//! submit ─► waiting ─► running: steps are given to the driver, then a write of the job's number to a word ─► poll: completions
//!              └─ cancel                                                       (pinned memory, read without a system call)
//! ```
//!
//! The driver's streams run in order, so the word says how far one has come. What a step does wrong on the device itself loses the
//! context; the word then never changes, so a stream that stands still asks the driver from time to time.

#![expect(unsafe_code, reason = "calls of the driver, which access memory later: invariant G")]

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::checks::{Copy, JobError, check_calls};
use crate::device::Device;
use crate::driver::{CallError, Code, DeviceAddress, DeviceCopy, Driver, Element, PinnedWords, StreamHandle};
use crate::gather;
use crate::job::{Job, Manner, Planner, Step, row_copies};

/// The word with the number of the last job that is done, alone in its cache line.
const DONE_WORD: usize = 0;
const FIRST_TABLE_WORD: usize = 16;
/// Polls without progress after which the driver is asked whether the context is lost.
const POLLS_BETWEEN_QUERIES: u32 = 256;

/// Settings of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Jobs that the driver has at a time; more wait here, where they can be cancelled.
    pub depth: usize,
    /// Lists whose pieces are shorter than this on average go to the gather kernel. The default was measured with an H200 on PCIe 5, where
    /// batches were slower than the kernel up to it (`./x bench gpu --only manners`).
    pub kernel_below_bytes: u64,
    /// Other lists go to the driver in one call, where it takes them so.
    pub uses_batches: bool,
    /// Smaller numbers come first; the driver brings them into its range.
    pub priority: i32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { depth: 8, kernel_below_bytes: 64 << 10, uses_batches: true, priority: 0 }
    }
}

/// Names a job of one stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// The end of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completion {
    pub ticket: Ticket,
    pub result: Result<(), JobError>,
}

/// How the steps of jobs were given to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Copies with a call for each.
    pub copies: u64,
    pub batches: u64,
    pub kernels: u64,
    pub rectangles: u64,
    pub fills: u64,
    /// Steps that the driver refused in the better manner and got in a plainer one.
    pub fallbacks: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    job: Job,
    steps: Vec<Step>,
}

/// Its job keeps the memory until the number was seen in the word.
#[derive(Debug)]
struct Running {
    ticket: Ticket,
    number: u32,
    job: Job,
    result: Result<(), JobError>,
}

/// One stream of a device. Jobs begin and end in the order of their submission, and each accepted one that is not cancelled completes once.
///
/// After the loss of the context every job ends with [`JobError::Lost`]. The memory of those that had begun is kept for good, because
/// the device may still access it until the process has ended.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    handle: StreamHandle,
    planner: Planner,
    depth: usize,
    /// `None` only while it is dropped.
    words: Option<PinnedWords>,
    waiting: VecDeque<Waiting>,
    running: VecDeque<Running>,
    last_ticket: u64,
    last_number: u32,
    polls: u32,
    counts: Counts,
}

impl Stream {
    /// Opens a stream.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn open(device: &Arc<Device>, settings: Settings) -> Result<Self, CallError> {
        let depth = settings.depth.clamp(1, 64);
        let words = table_word(0, depth) + tables(depth) * gather::TABLE_WORDS;
        let words = device.call(|driver| PinnedWords::new(driver, words))?;
        let handle = match device.call(|driver| driver.create_stream(settings.priority)) {
            Ok(handle) => handle,
            Err(error) => {
                _ = device.call(|driver| words.free(driver));
                return Err(error);
            }
        };
        let planner = Planner {
            max_pitch_bytes: device.abilities().max_pitch_bytes,
            has_batches: settings.uses_batches && device.driver().has_batches(),
            has_kernel: device.gather().is_some(),
            kernel_below_bytes: settings.kernel_below_bytes,
        };
        Ok(Self {
            device: Arc::clone(device),
            handle,
            planner,
            depth,
            words: Some(words),
            waiting: VecDeque::new(),
            running: VecDeque::new(),
            last_ticket: 0,
            last_number: 0,
            polls: 0,
            counts: Counts::default(),
        })
    }

    /// Takes a job, and begins it if it need not wait. The caller limits how many jobs wait.
    ///
    /// # Errors
    /// The job is wrong; then it does not complete.
    pub fn submit(&mut self, mut job: Job) -> Result<Ticket, JobError> {
        let steps = self.planner.steps(&mut job)?;
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.waiting.push_back(Waiting { ticket, job, steps });
        self.start_waiting();
        Ok(ticket)
    }

    /// Takes back a job that has not begun; it does not complete then. False: it has begun, or ended.
    pub fn cancel(&mut self, ticket: Ticket) -> bool {
        let found = self.waiting.iter().position(|waiting| waiting.ticket == ticket);
        found.and_then(|index| self.waiting.remove(index)).is_some()
    }

    /// Appends the completions since the last call, and begins jobs that waited.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) {
        let before = completions.len();
        if self.device.lost().is_none() {
            self.take_done(completions);
            self.start_waiting();
        }
        if completions.len() > before {
            self.polls = 0;
        } else if !self.running.is_empty() {
            self.polls += 1;
            if self.polls >= POLLS_BETWEEN_QUERIES {
                self.polls = 0;
                self.query(completions);
            }
        }
        if let Some(code) = self.device.lost() {
            self.fail_all(code, completions);
        }
    }

    /// Jobs that were accepted and have neither completed nor been cancelled.
    pub fn outstanding(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn words(&self) -> &PinnedWords {
        self.words.as_ref().expect("they go with the stream")
    }

    fn take_done(&mut self, completions: &mut Vec<Completion>) {
        let done = self.words().load(DONE_WORD);
        // Numbers wrap round; those of running jobs are close to each other.
        let is_done = |running: &Running| done.wrapping_sub(running.number) <= u32::MAX / 2;
        while let Some(running) = self.running.pop_front_if(|running| is_done(running)) {
            completions.push(Completion { ticket: running.ticket, result: running.result });
        }
    }

    /// Asks the driver how the stream is. An error of any code loses the context: otherwise the running jobs might never end.
    fn query(&mut self, completions: &mut Vec<Completion>) {
        match self.device.call(|driver| driver.is_idle(self.handle)) {
            Ok(false) => {}
            Ok(true) => {
                self.take_done(completions);
                // An idle stream has also written the word.
                if !self.running.is_empty() {
                    self.device.lose(Code::Unknown);
                }
            }
            Err(error) => self.device.lose(error.code),
        }
    }

    fn fail_all(&mut self, code: Code, completions: &mut Vec<Completion>) {
        let mut fail = |ticket| completions.push(Completion { ticket, result: Err(JobError::Lost(code)) });
        for running in self.running.drain(..) {
            fail(running.ticket);
            // G: the device may still access its memory.
            std::mem::forget(running.job);
        }
        for waiting in self.waiting.drain(..) {
            fail(waiting.ticket);
        }
    }

    fn start_waiting(&mut self) {
        while self.running.len() < self.depth && self.device.lost().is_none() {
            let Some(Waiting { ticket, job, steps }) = self.waiting.pop_front() else { return };
            self.last_number = self.last_number.wrapping_add(1);
            let number = self.last_number;
            // First, so that the memory is kept whatever happens to the steps.
            self.running.push_back(Running { ticket, number, job, result: Ok(()) });
            let issued = steps.iter().try_for_each(|step| self.issue(number, step));
            if let (Err(error), Some(running)) = (issued, self.running.back_mut()) {
                running.result = Err(error.into());
            }
            self.mark_done(number);
        }
    }

    /// Has the stream write the job's number after its steps, also after those of a job that failed halfway.
    fn mark_done(&mut self, number: u32) {
        let word = self.words().address(DONE_WORD);
        let write = |driver: &Driver| {
            // SAFETY: G: the word is the stream's, which frees it only when the driver's stream is idle.
            unsafe { driver.write_value(self.handle, word, number) }
        };
        if self.device.call(write).is_ok() {
            return;
        }
        // Without the write nobody would learn that the steps have ended: wait for them here.
        match self.device.call(|driver| driver.synchronize(self.handle)) {
            Ok(()) => self.words().store(DONE_WORD, number),
            Err(error) => self.device.lose(error.code),
        }
    }

    /// Gives a step of the last running job to the driver.
    fn issue(&mut self, number: u32, step: &Step) -> Result<(), CallError> {
        let stream = self.handle;
        let device = Arc::clone(&self.device);
        match step {
            Step::Copies(copies, manner) => self.issue_copies(number, copies, *manner),
            Step::Rows { from, to, row_bytes, rows } => {
                self.counts.rectangles += 1;
                // SAFETY: G: the running job keeps the rows, which were checked to lie in its places.
                let copied =
                    device.call(|driver| unsafe { driver.copy_2d(stream, *to, *from, (*row_bytes, *rows)) });
                match copied {
                    // The driver may refuse distances within the device that it did not choose itself.
                    Err(error) if error.code == Code::InvalidValue && check_calls(*rows).is_ok() => {
                        self.counts.fallbacks += 1;
                        let copies: Vec<Copy> = row_copies(*from, *to, *row_bytes, *rows).collect();
                        self.issue_copies(number, &copies, Manner::OneByOne)
                    }
                    other => other,
                }
            }
            Step::Fill { to, element, count } => {
                self.counts.fills += 1;
                // SAFETY: G: the running job keeps the range, which lies in its place.
                device.call(|driver| unsafe { driver.fill(stream, *to, *element, *count) })
            }
            Step::FillRows { to, element, count, rows } => {
                self.counts.fills += 1;
                // SAFETY: G: as above.
                device.call(|driver| unsafe { driver.fill_2d(stream, *to, *element, (*count, *rows)) })
            }
        }
    }

    /// Copies that may run in any order if the manner is not one by one. A manner that the driver refuses is replaced by the next
    /// plainer one: repeating what it has begun is harmless, because no copy reads what another one writes.
    fn issue_copies(&mut self, number: u32, copies: &[Copy], manner: Manner) -> Result<(), CallError> {
        let device = Arc::clone(&self.device);
        let refused = match manner {
            Manner::Kernel => {
                self.counts.kernels += 1;
                self.issue_kernel(number, copies)
            }
            Manner::Batch => {
                self.counts.batches += 1;
                let copies: Vec<DeviceCopy> = copies.iter().filter_map(by_device).collect();
                // SAFETY: G: the running job keeps all ranges, which lie in its places.
                device.call(|driver| unsafe { driver.copy_batch(self.handle, &copies) })
            }
            Manner::OneByOne => {
                self.counts.copies += copies.len() as u64;
                return copies.iter().try_for_each(|copy| {
                    // SAFETY: G: as above.
                    device.call(|driver| unsafe { driver.copy(self.handle, copy.to, copy.from, copy.length) })
                });
            }
        };
        match refused {
            Err(error) if !error.code.loses_context() => {
                self.counts.fallbacks += 1;
                let is_next_batch = manner == Manner::Kernel && self.planner.has_batches;
                let next = if is_next_batch { Manner::Batch } else { Manner::OneByOne };
                self.issue_copies(number, copies, next)
            }
            other => other,
        }
    }

    /// Writes the table of this job and launches the kernel. The table's last job is done: no more jobs run than there are tables.
    fn issue_kernel(&self, number: u32, copies: &[Copy]) -> Result<(), CallError> {
        let missing = || CallError {
            call: "cuLaunchKernel",
            operands: format!("{} pieces", copies.len()),
            code: Code::NotFound,
        };
        let function = self.device.gather().ok_or_else(missing)?;
        if copies.len() > gather::TABLE_PIECES {
            return Err(missing());
        }
        let table = table_word(number, self.depth);
        for (index, copy) in copies.iter().filter_map(by_device).enumerate() {
            gather::write_piece(self.words(), table, index, (copy.from, copy.to, copy.length));
        }
        let blocks = gather::blocks(copies.len(), self.device.abilities().multiprocessors);
        let table = (self.words().address(table), copies.len() as u32);
        self.device.call(|driver| {
            // SAFETY: G: the running job keeps all ranges, the stream the table; the function is the kernel of this name.
            unsafe { driver.gather(self.handle, function, (blocks, gather::THREADS), table) }
        })
    }
}

impl Drop for Stream {
    /// Waits for what runs. What waits is dropped without a completion.
    fn drop(&mut self) {
        let is_idle = self.device.lost().is_none()
            && self.device.call(|driver| driver.synchronize(self.handle)).is_ok();
        let words = self.words.take();
        if !is_idle {
            // G: the device may still access all this.
            std::mem::forget((std::mem::take(&mut self.running), words));
            return;
        }
        _ = self.device.call(|driver| driver.destroy_stream(self.handle));
        if let Some(words) = words {
            _ = self.device.call(|driver| words.free(driver));
        }
    }
}

/// Tables of a stream: a power of two, so that the numbers of running jobs have different ones also where the numbers wrap round.
fn tables(depth: usize) -> usize {
    depth.next_power_of_two()
}

/// The first word of the table of a job.
fn table_word(number: u32, depth: usize) -> usize {
    FIRST_TABLE_WORD + number as usize % tables(depth) * gather::TABLE_WORDS
}

fn by_device(copy: &Copy) -> Option<DeviceCopy> {
    Some(DeviceCopy { from: copy.from.by_device()?, to: copy.to.by_device()?, length: copy.length })
}

/// Zeroes memory of the device that nobody uses yet, and waits for it.
pub(crate) fn zero(device: &Device, start: DeviceAddress, length: u64) -> Result<(), CallError> {
    let stream = device.call(|driver| driver.create_stream(0))?;
    let zeroed = device.call(|driver| {
        // SAFETY: G: memory of the device that this thread has just mapped.
        unsafe { driver.fill(stream, start, Element::One(0), length) }
    });
    let zeroed = zeroed.and_then(|()| {
        let ended = device.call(|driver| driver.synchronize(stream));
        // The fill may still run in memory that the caller unmaps now.
        ended.inspect_err(|error| device.lose(error.code))
    });
    _ = device.call(|driver| driver.destroy_stream(stream));
    zeroed
}
