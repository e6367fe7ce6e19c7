//! The slides' machine: times of its processor, caches and kernel.
//!
//! ```text
//! parameters ──► Host: Processor (caches, memory), call, submit, interrupt, wake, the kernel's own lines
//! ```
//!
//! Values only; [`cftu`](super::cftu) uses them.

use crate::machine::cache::{Backing, Level, Processor, Replacement};
use crate::parameters::{Parameters, ParametersError};

/// Bytes of the slides' copies (Cache Pollution).
pub const PIECE: u64 = 16_064;
/// Bytes of a cache line, in both levels.
pub const LINE_BYTES: u64 = 64;
const L1_WAYS: usize = 8;
const L2_WAYS: usize = 16;

/// The processor, and the times of its kernel in picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    pub processor: Processor,
    pub call: u64,
    /// From the call to the doorbell.
    pub submit: u64,
    /// From the interrupt until the sleeper is woken.
    pub interrupt: u64,
    pub wake: u64,
    /// Means of what the interrupt and the woken caller come later than that.
    pub late: [u64; 2],
    /// Lines of the kernel's own data that an offload accesses.
    pub path_lines: u64,
    /// A cycle of the processor.
    pub cycle: f64,
}

impl Host {
    /// The machine with the given parameters.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn new(parameters: &Parameters) -> Result<Self, ParametersError> {
        let cycle_ns = 1e3 / parameters.get("cpu-clock")?;
        let ns = |name: &str| parameters.get(name).map(|value| (value * 1e3).round() as u64);
        Ok(Self {
            processor: processor(parameters, cycle_ns)?,
            call: ns("call")?,
            submit: ns("submit")?,
            interrupt: ns("interrupt")?,
            wake: ns("wake")?,
            late: [ns("interrupt-late")?, ns("wake-late")?],
            path_lines: parameters.get("path-lines")? as u64,
            cycle: cycle_ns * 1e3,
        })
    }

    /// Bytes of the last cache.
    pub fn last_cache(&self) -> u64 {
        self.processor.levels.last().map_or(0, |level| level.size_bytes)
    }

    /// Bytes of one way of the last cache.
    pub fn last_way(&self) -> u64 {
        self.last_cache() / L2_WAYS as u64
    }
}

fn processor(parameters: &Parameters, cycle_ns: f64) -> Result<Processor, ParametersError> {
    let cycles = |name: &str| parameters.get(name).map(|value| value * cycle_ns);
    let size = |name: &str| parameters.get(name).map(|value| value as u64);
    let replacement = Replacement::LeastRecent;
    let l1 = Level {
        size_bytes: size("l1-size")?,
        ways: L1_WAYS,
        replacement,
        latency_ns: 0.0,
        read_ns: 0.0,
        write_ns: 0.0,
        maintain_ns: 0.0,
    };
    let l2 = Level {
        size_bytes: size("l2-size")?,
        ways: L2_WAYS,
        latency_ns: cycles("l2-latency")?,
        read_ns: cycles("l2-read")?,
        write_ns: cycles("l2-write")?,
        ..l1
    };
    Ok(Processor {
        line_bytes: LINE_BYTES,
        word_bytes: 8,
        issue_ns: cycles("copy-issue")?,
        line_fills: parameters.get("line-fills")? as u32,
        prefetch_lines: 0,
        levels: vec![l1, l2],
        memory: Backing {
            latency_ns: parameters.get("memory-latency")?,
            bytes_per_ns: parameters.get("memory-bandwidth")? / 1e3,
        },
    })
}
