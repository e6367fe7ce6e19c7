//! What a service is started with: workers, channels, policy and quotas. Reading it from files is the command line's.

use std::fmt::{self, Display};
use std::path::PathBuf;

use memferry_cpu::DEFAULT_CHUNK_BYTES;
use memferry_path::{PolicyError, PolicySettings};
use memferry_transfer::PriorityClass;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pinning::Pinning;
use crate::scheduling::SchedulingClass;

/// The most workers a service may have.
pub const MOST_WORKERS: u32 = 64;

/// Bounds on what one user may hold, in all its sessions together, and on what a session may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quotas {
    /// Sessions of a user.
    pub sessions: u32,
    /// Frames a user has registered.
    pub frames: u32,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Queues of a user.
    pub queues: u32,
    /// Capabilities a session holds: frames, derived, offered, accepted and revoked ones.
    pub capabilities: u32,
    /// Requests of a user that may wait for an engine channel or be held by a link, a fence or a loop, for each worker. A list
    /// counts as one more for every 64 of its segments.
    pub waiting: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { sessions: 64, frames: 1024, bytes: 16 << 30, queues: 64, capabilities: 4096, waiting: 1024 }
    }
}

/// What a service is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// workers: threads that move bytes.
    pub workers: u32,
    /// Engine channels of each worker: requests it serves by turns.
    pub channels_per_worker: u32,
    /// Bytes a worker moves for a request before it looks at the next; cancels and deadlines are honoured so often.
    pub chunk_bytes: u64,
    /// Which client gets which engine channel, and who moves on.
    pub policy: PolicySettings,
    pub quotas: Quotas,
    /// Users whose requests may be of the high class.
    pub high_users: Vec<u32>,
    /// Whether workers are kept on CPUs.
    pub pinning: Pinning,
    /// How the kernel schedules workers.
    pub worker_class: SchedulingClass,
    /// The device of the Linux module that moves what is long, if any.
    pub module: Option<PathBuf>,
}

impl Default for ServiceConfig {
    /// One worker for each CPU but one, and as many channels as the thesis's engine has (Wicki 2014, 2.3.1).
    fn default() -> Self {
        Self {
            workers: cpus().saturating_sub(1).clamp(1, 16),
            channels_per_worker: 32,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            policy: PolicySettings::default(),
            quotas: Quotas::default(),
            high_users: Vec::new(),
            pinning: Pinning::default(),
            worker_class: SchedulingClass::default(),
            module: None,
        }
    }
}

/// The smallest and the largest value of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub min: u64,
    pub max: u64,
}

impl Bounds {
    const fn new(min: u64, max: u64) -> Self {
        Self { min, max }
    }

    pub const fn contains(self, value: u64) -> bool {
        self.min <= value && value <= self.max
    }
}

impl Display for Bounds {
    /// Powers of two too large to be read at a glance are written as such.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "from {} to ", self.min)?;
        if self.max.is_power_of_two() && self.max >= 1 << 20 {
            write!(to, "2^{}", self.max.ilog2())
        } else {
            self.max.fmt(to)
        }
    }
}

/// What the numbers of a [`ServiceConfig`] may be.
pub mod bounds {
    use super::{Bounds, MOST_WORKERS};

    pub const WORKERS: Bounds = Bounds::new(1, MOST_WORKERS as u64);
    pub const CHANNELS_PER_WORKER: Bounds = Bounds::new(1, 1024);
    pub const CHUNK_BYTES: Bounds = Bounds::new(64, 1 << 30);
    pub const QUOTA_SESSIONS: Bounds = Bounds::new(1, 65536);
    pub const QUOTA_FRAMES: Bounds = Bounds::new(1, 1 << 20);
    pub const QUOTA_BYTES: Bounds = Bounds::new(1, 1 << 60);
    pub const QUOTA_QUEUES: Bounds = Bounds::new(1, 65536);
    pub const QUOTA_CAPABILITIES: Bounds = Bounds::new(1, 1 << 20);
    pub const QUOTA_WAITING: Bounds = Bounds::new(0, 1 << 20);
}

/// A configured value is outside its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{name} is {value}, it has to be {bounds}")]
pub struct ValueError {
    pub name: &'static str,
    pub value: u64,
    /// What it may be.
    pub bounds: Bounds,
}

/// Why a configuration is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// A value outside its range.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// Numbers of policies that do not go together.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl ServiceConfig {
    /// The highest class the requests of a user may have.
    pub fn class_of(&self, user: u32) -> PriorityClass {
        if self.high_users.contains(&user) { PriorityClass::High } else { PriorityClass::Normal }
    }

    /// Checks every number.
    ///
    /// # Errors
    /// [`ConfigError`] for the first that is outside its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let quotas = &self.quotas;
        let numbers = [
            ("workers", self.workers.into(), bounds::WORKERS),
            ("channels_per_worker", self.channels_per_worker.into(), bounds::CHANNELS_PER_WORKER),
            ("chunk_bytes", self.chunk_bytes, bounds::CHUNK_BYTES),
            ("quotas.sessions", quotas.sessions.into(), bounds::QUOTA_SESSIONS),
            ("quotas.frames", quotas.frames.into(), bounds::QUOTA_FRAMES),
            ("quotas.bytes", quotas.bytes, bounds::QUOTA_BYTES),
            ("quotas.queues", quotas.queues.into(), bounds::QUOTA_QUEUES),
            ("quotas.capabilities", quotas.capabilities.into(), bounds::QUOTA_CAPABILITIES),
            ("quotas.waiting", quotas.waiting.into(), bounds::QUOTA_WAITING),
        ];
        if let Some((name, value, bounds)) =
            numbers.into_iter().find(|(_, value, bounds)| !bounds.contains(*value))
        {
            return Err(ValueError { name, value, bounds }.into());
        }
        Ok(self.policy.check()?)
    }
}

/// CPUs this process may run on.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
