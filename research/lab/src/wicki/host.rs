//! The Pandaboard without the device: its processor, and the times of its operating system's steps.
//!
//! ```text
//! parameters/wicki.toml ──► Host { processor, message, word, invocation, access, switch, mapping }  in picoseconds
//! ```
//!
//! Every figure is a parameter with its source. A change of address space is built from its parts: Barrelfish's kernel cleans and
//! invalidates both level 1 caches, and the lines that the next step needs come back from the next level. Not modelled: the second core, which the thesis
//! does not use. Contention for memory and energy have modules of their own.

use crate::machine::cache::{Backing, Level, Processor, Replacement};
use crate::parameters::{Parameters, ParametersError};

/// Ways of both levels, bytes of a line and of a word: Cortex-A9 TRM, 7.1; OMAP4460 TRM, MPU subsystem.
const L1_WAYS: usize = 4;
const L2_WAYS: usize = 16;
const LINE_BYTES: u64 = 32;
const WORD_BYTES: u64 = 4;

pub const PAGE_BYTES: u64 = 4096;

/// Times of the system's steps, in picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// The core and its caches.
    pub processor: Processor,
    /// The kernel's part of sending a message.
    pub message: u64,
    /// From an interrupt to its handler: through the kernel, and as a message to a driver outside the kernel.
    pub interrupt: u64,
    /// One word of arguments.
    pub word: u64,
    /// Maximum words of a message.
    pub message_words: u64,
    /// An invocation of a capability.
    pub invocation: u64,
    /// One register access of the device.
    pub access: u64,
    /// A change of address space.
    pub switch: u64,
    pub map_page: u64,
    pub unmap_page: u64,
    /// The first access to a page.
    pub page_walk: u64,
    /// Pages mapped by one call.
    pub map_pages: u64,
    /// Bytes that mapped mode maps for each side of a request.
    pub frame_bytes: u64,
}

impl Host {
    /// The board with the given parameters.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let cycle_ns = 1e3 / parameters.get("cpu-clock")?;
        let cycles = |name: &str| parameters.get(name).map(|value| value * cycle_ns);
        let count = |name: &str| parameters.get(name).map(|value| value as u64);
        let picoseconds = |ns: f64| (ns * 1e3).round() as u64;
        let whole = |name: &str| cycles(name).map(picoseconds);
        let ps = count;
        let processor = processor(parameters, cycles)?;
        Ok(Self {
            processor: processor.clone(),
            message: whole("message")?,
            interrupt: ps("interrupt-entry")? + whole("message")?,
            word: whole("message-word")?,
            message_words: count("message-words")?.max(1),
            invocation: whole("invocation")?,
            access: ps("register-access")?,
            switch: switch(parameters, &processor, cycle_ns)?,
            map_page: whole("map-page")?,
            unmap_page: whole("unmap-page")?,
            page_walk: whole("page-walk")?,
            map_pages: count("map-pages")?.max(1),
            frame_bytes: count("bulk-frame")?,
        })
    }

    /// Direct use of the device, as from the kernel: no messages, capabilities or other address spaces.
    #[must_use]
    pub fn direct(&self) -> Self {
        let interrupt = self.interrupt - self.message;
        Self { message: 0, word: 0, interrupt, invocation: 0, switch: 0, ..self.clone() }
    }

    /// Direct use of the device by a processor that takes no time.
    #[must_use]
    pub fn free(&self) -> Self {
        Self { interrupt: 0, access: 0, ..self.direct() }
    }

    /// Picoseconds to send and receive this many words and capabilities, with one capability to a message.
    pub fn call(&self, words: u64, capabilities: u64) -> u64 {
        let messages = words.div_ceil(self.message_words).max(capabilities).max(1);
        messages * self.message + words * self.word
    }

    /// Picoseconds of the kernel to map and unmap the frames of both sides.
    pub fn map_both(&self) -> u64 {
        let pages = self.frame_bytes.div_ceil(PAGE_BYTES);
        let calls = pages.div_ceil(self.map_pages);
        // Each leaf table needs a copy of the capability, the mapping, the unmapping and the deletion of the copy.
        2 * (pages * (self.map_page + self.unmap_page) + 4 * calls * self.invocation)
    }
}

/// Picoseconds of a change of address space: each line of the level 1 data cache is cleaned and invalidated, and the lines that the
/// next step uses are fetched again, from level 2 or, without one, from memory.
fn switch(parameters: &Parameters, processor: &Processor, cycle_ns: f64) -> Result<u64, ParametersError> {
    let lines = parameters.get("l1-size")? / LINE_BYTES as f64;
    let cleaned = lines * parameters.get("l1-maintain")? * cycle_ns;
    let next = processor.levels.get(1).map_or(0.0, |level| level.latency_ns);
    let beyond = if processor.levels.len() > 1 { 0.0 } else { processor.memory.latency_ns };
    let fetched = parameters.get("switch-lines")? * (next + beyond);
    Ok(((cleaned + fetched) * 1e3).round() as u64)
}

fn processor(
    parameters: &Parameters,
    cycles: impl Fn(&str) -> Result<f64, ParametersError>,
) -> Result<Processor, ParametersError> {
    let replacement = Replacement::PseudoRandom;
    let size = |name: &str| parameters.get(name).map(|value| value as u64);
    let l1 = Level {
        size_bytes: size("l1-size")?,
        ways: L1_WAYS,
        replacement,
        latency_ns: 0.0,
        read_ns: 0.0,
        write_ns: 0.0,
        maintain_ns: cycles("l1-maintain")?,
    };
    let l2 = Level {
        size_bytes: size("l2-size")?,
        ways: L2_WAYS,
        replacement,
        latency_ns: cycles("l2-latency")?,
        read_ns: cycles("l2-read")?,
        write_ns: cycles("l2-write")?,
        maintain_ns: cycles("l2-maintain")?,
    };
    Ok(Processor {
        line_bytes: LINE_BYTES,
        word_bytes: WORD_BYTES,
        issue_ns: cycles("cpu-copy-issue")?,
        line_fills: parameters.get("line-fills")? as u32,
        prefetch_lines: parameters.get("prefetch-lines")? as u32,
        levels: [l1, l2].into_iter().filter(|level| level.size_bytes > 0).collect(),
        memory: Backing {
            latency_ns: parameters.get("memory-latency")?,
            bytes_per_ns: parameters.get("memory-bandwidth")? / 1e3,
        },
    })
}
