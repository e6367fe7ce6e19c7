//! Configuration of a service: workers, engine channels, policy and quotas. The command line reads it from files.

use std::fmt::{self, Display};
use std::path::PathBuf;
use std::time::Duration;

use memferry_cpu::DEFAULT_CHUNK_BYTES;
use memferry_path::{PolicyError, PolicySettings};
use memferry_transfer::PriorityClass;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::pinning::Pinning;
use crate::protocol::{MAX_ENGINE_NAME, engine_name_is_valid};
use crate::scheduling::SchedulingClass;

/// Maximum number of workers of a service.
pub const MAX_WORKERS: u32 = memferry_shm::queue_pair::MAX_WORKERS as u32;

/// Maximum number of engine processes of a service.
pub const MAX_ENGINES: usize = 16;

/// Limits on one user, over all its sessions, and on one session.
///
/// ```
/// use memferry_service::{Quotas, ServiceConfig};
///
/// let quotas = Quotas { sessions: 2, bytes: 64 << 20, ..Quotas::default() };
/// let config = ServiceConfig { quotas, ..ServiceConfig::default() };
/// assert!(config.check().is_ok());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quotas {
    /// Open sessions per user.
    pub sessions: u32,
    /// Registered frames per user.
    pub frames: u32,
    /// Bytes in these frames.
    pub bytes: u64,
    /// Open queues per user.
    pub queues: u32,
    /// Capabilities per session: frames, derived, granted, accepted and revoked ones.
    pub capabilities: u32,
    /// Requests per user and worker that may wait for an engine channel or be held by a link, a fence or a loop. A list
    /// counts one more for every 64 of its segments.
    pub waiting: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { sessions: 64, frames: 1024, bytes: 16 << 30, queues: 64, capabilities: 4096, waiting: 1024 }
    }
}

/// Configuration of a service.
///
/// ```
/// use memferry_service::ServiceConfig;
///
/// let config = ServiceConfig { workers: 2, high_users: vec![1000], ..ServiceConfig::default() };
/// assert!(config.check().is_ok());
/// assert!(config.class_of(1000) > config.class_of(1001));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// Number of threads that move bytes.
    pub workers: u32,
    /// Engine channels per worker: the requests it serves in turns.
    pub channels_per_worker: u32,
    /// Bytes a worker moves for a request before it continues with the next. Cancels and deadlines take effect in between.
    pub chunk_bytes: u64,
    /// Assigns engine channels to clients and paces running requests.
    pub policy: PolicySettings,
    pub quotas: Quotas,
    /// Users who may submit requests of the high class.
    pub high_users: Vec<u32>,
    /// Whether each worker stays on one CPU.
    pub pinning: Pinning,
    /// Scheduling class of the workers (sched(7)).
    pub worker_class: SchedulingClass,
    /// Device node of the Linux module, which moves long transfers; `None`: the CPU moves all.
    pub module: Option<PathBuf>,
    /// Engine processes that may connect. A transfer goes to the first one that suits.
    pub engines: Vec<EngineConfig>,
}

/// Whose frames an engine process maps, or who gets its memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FramesOf {
    /// Those of all users.
    All,
    /// Those of these users.
    Users(Vec<u32>),
}

/// An engine process that may connect.
///
/// ```
/// use memferry_service::{EngineConfig, ServiceConfig};
///
/// let engines = vec![EngineConfig::new("example", 1000)];
/// assert!(ServiceConfig { engines, ..ServiceConfig::default() }.check().is_ok());
/// let engines = vec![EngineConfig::new("No Name", 1000)];
/// assert!(ServiceConfig { engines, ..ServiceConfig::default() }.check().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineConfig {
    /// The name under which it connects.
    pub name: String,
    /// The user that it runs as.
    pub user: u32,
    pub frames_of: FramesOf,
    /// Whom it may give its own memory by descriptor. What such a user holds counts for nobody once the frame is released.
    pub exports_to: FramesOf,
    /// Shortest transfer that it gets; `None`: what it announces, but more than workers do at once.
    pub shortest_bytes: Option<u64>,
    /// A request without progress for so long ends its connection.
    pub stall: Duration,
}

impl EngineConfig {
    /// An engine of that name and user, for the frames of all users, which gives out no memory by descriptor.
    pub fn new(name: &str, user: u32) -> Self {
        let name = name.to_owned();
        let stall = Duration::from_secs(2);
        let exports_to = FramesOf::Users(Vec::new());
        Self { name, user, frames_of: FramesOf::All, exports_to, shortest_bytes: None, stall }
    }
}

impl Default for ServiceConfig {
    /// A worker for each CPU but one, at most 16, and as many channels as the thesis's engine (Wicki 2014, 2.3.1).
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
            engines: Vec::new(),
        }
    }
}

/// Inclusive range of a setting.
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
    /// Writes large powers of two as `2^n`, which is easier to read.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "from {} to ", self.min)?;
        if self.max.is_power_of_two() && self.max >= 1 << 20 {
            write!(to, "2^{}", self.max.ilog2())
        } else {
            self.max.fmt(to)
        }
    }
}

/// Valid ranges of the numbers in a [`ServiceConfig`].
pub mod bounds {
    use super::{Bounds, MAX_WORKERS};

    pub const WORKERS: Bounds = Bounds::new(1, MAX_WORKERS as u64);
    pub const CHANNELS_PER_WORKER: Bounds = Bounds::new(1, 1024);
    pub const CHUNK_BYTES: Bounds = Bounds::new(64, 1 << 30);
    pub const QUOTA_SESSIONS: Bounds = Bounds::new(1, 65536);
    pub const QUOTA_FRAMES: Bounds = Bounds::new(1, 1 << 20);
    pub const QUOTA_BYTES: Bounds = Bounds::new(1, 1 << 60);
    pub const QUOTA_QUEUES: Bounds = Bounds::new(1, 65536);
    pub const QUOTA_CAPABILITIES: Bounds = Bounds::new(1, 1 << 20);
    pub const QUOTA_WAITING: Bounds = Bounds::new(0, 1 << 20);
    pub const ENGINE_STALL_MS: Bounds = Bounds::new(10, 3_600_000);
    pub const ENGINE_SHORTEST: Bounds = Bounds::new(0, 1 << 40);
}

/// A configured value is outside its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("{name} is {value}, it has to be {bounds}")]
pub struct ValueError {
    pub name: &'static str,
    pub value: u64,
    pub bounds: Bounds,
}

/// Reason for which a configuration is refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ConfigError {
    /// A value outside its range.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// Policy settings that contradict each other.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// An engine's name that is not allowed.
    #[error(
        "an engine is called {0:?}; a name has 1 to {MAX_ENGINE_NAME} lower-case letters, digits and hyphens"
    )]
    EngineName(String),
    /// Two engines of one name.
    #[error("two engines are called {0}; give each a name of its own")]
    EngineTwice(String),
}

impl ServiceConfig {
    /// The highest class that requests of a user may have.
    pub fn class_of(&self, user: u32) -> PriorityClass {
        if self.high_users.contains(&user) { PriorityClass::High } else { PriorityClass::Normal }
    }

    /// Checks that every number is in its range.
    ///
    /// # Errors
    /// [`ConfigError`] for the first invalid one.
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
        self.check_engines()?;
        Ok(self.policy.check()?)
    }

    fn check_engines(&self) -> Result<(), ConfigError> {
        let count = self.engines.len() as u64;
        let bounds = Bounds::new(0, MAX_ENGINES as u64);
        if !bounds.contains(count) {
            return Err(ValueError { name: "number of engines", value: count, bounds }.into());
        }
        for (index, engine) in self.engines.iter().enumerate() {
            if !engine_name_is_valid(&engine.name) {
                return Err(ConfigError::EngineName(engine.name.clone()));
            }
            if self.engines[..index].iter().any(|other| other.name == engine.name) {
                return Err(ConfigError::EngineTwice(engine.name.clone()));
            }
            let stall = u64::try_from(engine.stall.as_millis()).unwrap_or(u64::MAX);
            let shortest = engine.shortest_bytes.unwrap_or(0);
            for (name, value, bounds) in [
                ("engines.stall-ms", stall, bounds::ENGINE_STALL_MS),
                ("engines.shortest", shortest, bounds::ENGINE_SHORTEST),
            ] {
                if !bounds.contains(value) {
                    return Err(ValueError { name, value, bounds }.into());
                }
            }
        }
        Ok(())
    }
}

/// CPUs this process may run on.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
