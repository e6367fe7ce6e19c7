//! What `memferry serve` can be told, by its command line or in a file.
//!
//! ```text
//! command line ─► Options ┐
//! file         ─► Options ┴─ over ─► resolve, with defaults ─► Settings
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use memferry_service::config::{Quotas, ServiceConfig};
use memferry_service::{Pinning, PolicyKind, SchedulingClass};

use super::policy::{PolicyOptions, policy};
use crate::socket;

/// How log lines are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Every option; what is `None` was not said.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// Socket to listen on [default: memferry.sock in the user's run-time directory, /run for root]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Permissions of the socket, octal: who may connect [default: 666]
    #[arg(long, value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// workers [default: one for each CPU but one, at most 16]
    #[arg(long)]
    pub(crate) workers: Option<u32>,
    /// Engine channels of each worker [default: 32]
    #[arg(long)]
    pub(crate) channels: Option<u32>,
    /// Bytes a worker moves for one request before it looks at the next [default: 262144]
    #[arg(long)]
    pub(crate) chunk: Option<u64>,
    /// Whether workers are kept on CPUs: spread or off [default: spread]
    #[arg(long, value_parser = pinning)]
    pub(crate) pin_workers: Option<Pinning>,
    /// How the kernel schedules workers: inherited, batch, idle or fifo [default: inherited]
    #[arg(long, value_parser = class)]
    pub(crate) worker_class: Option<SchedulingClass>,
    /// Device of the Linux module that moves what is long by DMA engines, such as /dev/memferry, or off [default: off]
    #[arg(long, value_name = "PATH", value_parser = module_path)]
    pub(crate) module_device: Option<ModulePath>,
    /// Which client gets which engine channel: shared, exclusive, priority, deadline, weighted or rate-limit [default: shared]
    #[arg(long, value_parser = policy)]
    pub(crate) policy: Option<PolicyKind>,
    #[command(flatten)]
    pub(crate) numbers: PolicyOptions,
    /// Sessions a user may hold [default: 64]
    #[arg(long)]
    pub(crate) quota_sessions: Option<u32>,
    /// Frames a user may register [default: 1024]
    #[arg(long)]
    pub(crate) quota_frames: Option<u32>,
    /// Bytes of frames a user may register [default: 17179869184]
    #[arg(long)]
    pub(crate) quota_bytes: Option<u64>,
    /// Client channels a user may open [default: 64]
    #[arg(long)]
    pub(crate) quota_queues: Option<u32>,
    /// Capabilities a session may hold [default: 4096]
    #[arg(long)]
    pub(crate) quota_capabilities: Option<u32>,
    /// Requests of a user that may wait, or be held by links, fences and loops, for each worker; 64 segments count as one
    /// [default: 1024]
    #[arg(long)]
    pub(crate) quota_waiting: Option<u32>,
    /// User, by number, whose requests may be of the high priority class; may be given again [default: none]
    #[arg(long = "high-user", value_name = "UID")]
    pub(crate) high_users: Option<Vec<u32>>,
    /// Milliseconds running requests may go on when the service stops [default: 2000]
    #[arg(long)]
    pub(crate) grace_ms: Option<u64>,
    /// Whether to confine the process with seccomp [default: true]
    #[arg(long, value_name = "BOOL")]
    pub(crate) sandbox: Option<bool>,
    /// How log lines are written [default: text]
    #[arg(long, value_enum)]
    pub(crate) log_format: Option<LogFormat>,
}

/// Every option, decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    pub(crate) socket: PathBuf,
    pub(crate) mode: u32,
    pub(crate) service: ServiceConfig,
    pub(crate) grace: Duration,
    pub(crate) sandbox: bool,
    pub(crate) log_format: LogFormat,
}

impl Options {
    /// These, and where they say nothing, those of `file`.
    pub(crate) fn over(self, file: Self) -> Self {
        Self {
            socket: self.socket.or(file.socket),
            mode: self.mode.or(file.mode),
            workers: self.workers.or(file.workers),
            channels: self.channels.or(file.channels),
            chunk: self.chunk.or(file.chunk),
            pin_workers: self.pin_workers.or(file.pin_workers),
            worker_class: self.worker_class.or(file.worker_class),
            module_device: self.module_device.or(file.module_device),
            policy: self.policy.or(file.policy),
            numbers: self.numbers.over(file.numbers),
            quota_sessions: self.quota_sessions.or(file.quota_sessions),
            quota_frames: self.quota_frames.or(file.quota_frames),
            quota_bytes: self.quota_bytes.or(file.quota_bytes),
            quota_queues: self.quota_queues.or(file.quota_queues),
            quota_capabilities: self.quota_capabilities.or(file.quota_capabilities),
            quota_waiting: self.quota_waiting.or(file.quota_waiting),
            high_users: self.high_users.or(file.high_users),
            grace_ms: self.grace_ms.or(file.grace_ms),
            sandbox: self.sandbox.or(file.sandbox),
            log_format: self.log_format.or(file.log_format),
        }
    }

    /// These, with the defaults for what nobody said.
    pub(crate) fn resolve(self) -> Settings {
        let defaults = ServiceConfig::default();
        let quotas = Quotas {
            sessions: self.quota_sessions.unwrap_or(defaults.quotas.sessions),
            frames: self.quota_frames.unwrap_or(defaults.quotas.frames),
            bytes: self.quota_bytes.unwrap_or(defaults.quotas.bytes),
            queues: self.quota_queues.unwrap_or(defaults.quotas.queues),
            capabilities: self.quota_capabilities.unwrap_or(defaults.quotas.capabilities),
            waiting: self.quota_waiting.unwrap_or(defaults.quotas.waiting),
        };
        let service = ServiceConfig {
            workers: self.workers.unwrap_or(defaults.workers),
            channels_per_worker: self.channels.unwrap_or(defaults.channels_per_worker),
            chunk_bytes: self.chunk.unwrap_or(defaults.chunk_bytes),
            policy: self.numbers.resolve(self.policy, defaults.policy),
            quotas,
            high_users: self.high_users.unwrap_or(defaults.high_users),
            pinning: self.pin_workers.unwrap_or(Pinning::Spread),
            worker_class: self.worker_class.unwrap_or(defaults.worker_class),
            module: self.module_device.map_or(defaults.module, |said| said.0),
        };
        Settings {
            socket: self.socket.unwrap_or_else(socket::default_path),
            mode: self.mode.unwrap_or(0o666),
            service,
            grace: Duration::from_millis(self.grace_ms.unwrap_or(2000)),
            sandbox: self.sandbox.unwrap_or(true),
            log_format: self.log_format.unwrap_or_default(),
        }
    }
}

pub(crate) fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).map_err(|_| format!("'{text}' is no octal number"))?;
    if mode <= 0o777 { Ok(mode) } else { Err(format!("{text} is no file permission; the largest is 777")) }
}

/// The device of the Linux module, or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ModulePath(pub(crate) Option<PathBuf>);

pub(crate) fn module_path(text: &str) -> Result<ModulePath, String> {
    match text {
        "off" => Ok(ModulePath(None)),
        path if Path::new(path).is_absolute() => Ok(ModulePath(Some(path.into()))),
        _ => Err(format!("'{text}' is neither \"off\" nor an absolute path such as \"/dev/memferry\"")),
    }
}

pub(crate) fn pinning(text: &str) -> Result<Pinning, String> {
    named("way to pin workers", text, &Pinning::ALL)
}

pub(crate) fn class(text: &str) -> Result<SchedulingClass, String> {
    named("scheduling class", text, &SchedulingClass::ALL)
}

/// The one of that name.
pub(super) fn named<T: Copy>(what: &str, text: &str, all: &[(T, &str)]) -> Result<T, String> {
    all.iter().find(|(_, name)| *name == text).map(|(value, _)| *value).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|(_, name)| *name).collect();
        format!("there is no {what} '{text}'; choose one of {}", names.join(", "))
    })
}
