//! The name of an engine process, for workers, which know nothing else of the registry of engines.

/// Identifies one process of an engine: a later one of the same engine has another number, so late news of an earlier one is recognised.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct EngineId {
    /// The engine's position in the configuration.
    pub(crate) index: usize,
    /// Which of its processes, counted from 1.
    pub(crate) number: u32,
}

impl EngineId {
    /// Names the places that this process has at a worker.
    pub(crate) const fn group(self) -> u64 {
        (self.number as u64) << 32 | self.index as u64
    }
}
