//! What a service is started with: workers, channels, policy and quotas. Reading it from files is the command line's.

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

/// What one number of a [`ServiceConfig`] may be.
#[derive(Clone, Copy)]
pub struct Limit {
    /// Its name, that of the field.
    pub name: &'static str,
    /// The least it may be.
    pub least: u64,
    pub most: u64,
    pub allowed: &'static str,
    pub of: fn(&ServiceConfig) -> u64,
}

/// What every number may be.
pub const LIMITS: [Limit; 9] = [
    limit("workers", (1, MOST_WORKERS as u64), "from 1 to 64", |config| config.workers.into()),
    limit("channels_per_worker", (1, 1024), "from 1 to 1024", |config| config.channels_per_worker.into()),
    limit("chunk_bytes", (64, 1 << 30), "from 64 to 2^30", |config| config.chunk_bytes),
    limit("quotas.sessions", (1, 65536), "from 1 to 65536", |config| config.quotas.sessions.into()),
    limit("quotas.frames", (1, 1 << 20), "from 1 to 2^20", |config| config.quotas.frames.into()),
    limit("quotas.bytes", (1, 1 << 60), "from 1 to 2^60", |config| config.quotas.bytes),
    limit("quotas.queues", (1, 65536), "from 1 to 65536", |config| config.quotas.queues.into()),
    limit("quotas.capabilities", (1, 1 << 20), "from 1 to 2^20", |config| config.quotas.capabilities.into()),
    limit("quotas.waiting", (0, 1 << 20), "from 0 to 2^20", |config| config.quotas.waiting.into()),
];

const fn limit(
    name: &'static str,
    (least, most): (u64, u64),
    allowed: &'static str,
    of: fn(&ServiceConfig) -> u64,
) -> Limit {
    Limit { name, least, most, allowed, of }
}

/// A configured value is outside its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{name} is {value}, it has to be {allowed}")]
pub struct ValueError {
    pub name: &'static str,
    pub value: u64,
    /// What it may be.
    pub allowed: &'static str,
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
        for limit in LIMITS {
            let value = (limit.of)(self);
            if !(limit.least..=limit.most).contains(&value) {
                return Err(ValueError { name: limit.name, value, allowed: limit.allowed }.into());
            }
        }
        Ok(self.policy.check()?)
    }
}

/// CPUs this process may run on.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
