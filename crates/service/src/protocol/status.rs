//! Statistics of a service and its clients, as sent in answers.

use std::time::Duration;

use memferry_transfer::{Operations, PriorityClass, SessionId};
use serde::{Deserialize, Serialize};

use super::RefusalKind;

/// Identifies a running service: a random number, chosen at its start.
///
/// ```
/// use memferry_service::protocol::ServiceId;
///
/// // Two peers that see the same number are clients of one service.
/// assert_eq!(ServiceId(7), ServiceId(7));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ServiceId(pub u128);

/// User and process of a session, verified by the service.
///
/// ```
/// use memferry_service::protocol::{Identity, ServiceId};
///
/// let expected_user = 1000;
/// let peer = Identity { service: ServiceId(7), user: 1000, process: 4242 };
/// assert_eq!(peer.user, expected_user, "accept its grants only then");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub service: ServiceId,
    pub user: u32,
    /// Process id in the service's PID namespace. In the process's own namespace it may differ.
    pub process: u32,
}

/// Capabilities of the engines for the requesting client.
///
/// ```
/// use memferry_service::protocol::EngineStatus;
/// use memferry_transfer::{Operations, PriorityClass};
///
/// /// Whether a copy of so many bytes may be submitted whole.
/// fn fits(engine: &EngineStatus, bytes: u64) -> bool {
///     engine.operations.contains(Operations::COPY) && bytes <= engine.longest_bytes
/// }
///
/// let engine = EngineStatus {
///     operations: Operations::COPY,
///     longest_bytes: 1 << 30,
///     immediate_bytes: 4096,
///     preemption_bytes: Some(256 << 10),
///     channels: 32,
///     engines: 1,
///     class: PriorityClass::Normal,
/// };
/// assert!(fits(&engine, 1 << 20));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Supported kinds of operations. Requests of other kinds complete as unsupported.
    pub operations: Operations,
    /// Maximum length of a transfer, bytes visited.
    pub longest_bytes: u64,
    /// Transfers of up to this many bytes complete at once, without a channel; 0: none.
    pub immediate_bytes: u64,
    /// Cancels and deadlines take effect after at most this many bytes; `None`: only between transfers.
    pub preemption_bytes: Option<u64>,
    /// Number of channels per engine.
    pub channels: u32,
    pub engines: u32,
    /// The highest priority class the client may use.
    pub class: PriorityClass,
}

/// Statistics of the service.
///
/// ```
/// use memferry_service::protocol::{Status, WorkerStatus};
///
/// let worker = WorkerStatus { busy: 30, channels: 32, ..WorkerStatus::default() };
/// let status = Status { workers: vec![worker; 2], ..Status::default() };
/// let busy: u64 = status.workers.iter().map(|worker| worker.busy).sum();
/// assert_eq!(busy, 60);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Process id of the service.
    pub process: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Name of the policy that assigns engine channels.
    pub policy: String,
    /// Slices that the priority policy has started.
    pub slices: u64,
    /// Bytes of suspended requests that moved during a slice. Any value but zero is a fault.
    pub strayed_bytes: u64,
    /// Total number of open sessions.
    pub open_sessions: u64,
    /// The requesting session first, then others up to [`STATUS_SESSIONS`].
    pub sessions: Vec<SessionStatus>,
    pub workers: Vec<WorkerStatus>,
    /// Buffers of pools that were zeroed in the background.
    pub zeroed: ZeroedStatus,
    /// Work of the Linux module, if it is used. The workers' counts include it.
    pub module: Option<ModuleStatus>,
    pub latency: LatencyStatus,
    pub refused: RefusedStatus,
    /// The engine processes of the configuration. The workers' counts include their work.
    pub engines: Vec<ExternalStatus>,
}

/// A configured engine process.
///
/// ```
/// use memferry_service::protocol::ExternalStatus;
///
/// let engine = ExternalStatus { transfers: 10, redone: 1, ..ExternalStatus::default() };
/// assert!(!engine.is_connected && engine.redone < engine.transfers);
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExternalStatus {
    pub name: String,
    /// The user that it runs as.
    pub user: u32,
    /// Whether it gets transfers now.
    pub is_connected: bool,
    /// Its process, if it is connected.
    pub process: Option<u32>,
    /// Frames that it has.
    pub frames: u32,
    /// Bytes of its own memory that clients can have frames in, while it is connected.
    pub memory_bytes: u64,
    /// How many of them are in frames, or not freed yet.
    pub memory_used: u64,
    /// Transfers that it ended.
    pub transfers: u64,
    /// Destination bytes of these transfers.
    pub bytes: u64,
    /// Transfers that it failed, and that CPU workers repeated.
    pub redone: u64,
}

/// How long sampled requests took, from the worker's taking them to their completion. Only successful requests that were not done
/// at once are sampled.
///
/// ```
/// use memferry_service::protocol::LatencyStatus;
///
/// let mut latency = LatencyStatus::default();
/// latency.buckets[2] = 9;
/// let within_32_us: u64 = latency.buckets[..=2].iter().sum();
/// assert_eq!((LatencyStatus::bound(2).as_micros(), within_32_us), (32, 9));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Bucket N counts samples of at most [`LatencyStatus::bound`] of N that were in no bucket before it; the last one counts all others.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// Sum of the samples.
    pub nanoseconds: u64,
}

/// Number of buckets in a [`LatencyStatus`].
pub const LATENCY_BUCKETS: usize = 22;

impl LatencyStatus {
    /// The upper bound of a bucket but the last: 8 microseconds, and twice as much for each further one.
    pub const fn bound(bucket: usize) -> Duration {
        Duration::from_micros(8 << bucket)
    }

    /// The bucket of a time.
    pub(crate) fn bucket(time: Duration) -> usize {
        (0..LATENCY_BUCKETS - 1).find(|bucket| time <= Self::bound(*bucket)).unwrap_or(LATENCY_BUCKETS - 1)
    }

    /// The sum of two workers' statistics.
    pub(crate) fn plus(mut self, other: Self) -> Self {
        for (sum, more) in self.buckets.iter_mut().zip(other.buckets) {
            *sum = sum.wrapping_add(more);
        }
        self.nanoseconds = self.nanoseconds.wrapping_add(other.nanoseconds);
        self
    }
}

/// What the service refused on its control socket. Requests that fail in a queue are not counted here.
///
/// ```
/// use memferry_service::protocol::{RefusalKind, RefusedStatus};
///
/// let refused = RefusedStatus::default();
/// let quota = RefusalKind::ALL.iter().position(|kind| *kind == RefusalKind::Quota);
/// assert_eq!(quota.map(|kind| refused.commands[kind]), Some(0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct RefusedStatus {
    /// Refused commands for each [`RefusalKind`], in its order.
    pub commands: [u64; RefusalKind::ALL.len()],
    /// Clients that were turned away before they had a session.
    pub turned_away: u64,
    /// Sessions that were ended because the client broke a rule.
    pub violations: u64,
}

/// Free buffers of pools that were zeroed. Only a service in the pool's own process does that.
///
/// ```
/// use memferry_service::protocol::ZeroedStatus;
///
/// let zeroed = ZeroedStatus { buffers: 10, bytes: 720_896, failed: 0 };
/// assert_eq!(zeroed.bytes / zeroed.buffers, 72_089);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ZeroedStatus {
    /// Buffers zeroed by the engine.
    pub buffers: u64,
    pub bytes: u64,
    /// Buffers that the CPU cleared, because the engine failed or did not get them.
    pub failed: u64,
}

/// Maximum number of sessions in a [`Status`], so that it fits a message also with the maximum number of workers.
pub const STATUS_SESSIONS: usize = 80;

/// Resources and statistics of a session.
///
/// ```
/// use memferry_service::protocol::SessionStatus;
/// use memferry_transfer::SessionId;
///
/// /// Whether a session has requests that no engine channel was free for.
/// fn is_starved(session: &SessionStatus) -> bool {
///     session.outstanding > 0 && session.waiting == session.outstanding
/// }
///
/// let session = SessionStatus {
///     session: SessionId(1),
///     user: 1000,
///     process: 4242,
///     queues: 1,
///     frames: 2,
///     bytes: 8192,
///     requests: 9,
///     outstanding: 4,
///     waiting: 4,
///     failures: 0,
///     bytes_moved: 4096,
/// };
/// assert!(is_starved(&session));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    pub session: SessionId,
    pub user: u32,
    pub process: u32,
    pub queues: u32,
    pub frames: u32,
    pub bytes: u64,
    /// Requests received from its queue pairs.
    pub requests: u64,
    /// Of these, requests not completed yet.
    pub outstanding: u64,
    /// Of the outstanding ones, those that waited for an engine channel at the worker's latest sample.
    pub waiting: u64,
    /// Of the requests, those that failed.
    pub failures: u64,
    /// Destination bytes visited for this session.
    pub bytes_moved: u64,
}

/// Statistics of a worker.
///
/// ```
/// use memferry_service::protocol::WorkerStatus;
///
/// let worker = WorkerStatus { requests: 1000, failures: 1, ..WorkerStatus::default() };
/// assert!(worker.failures * 100 <= worker.requests, "at most one request in a hundred fails");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Queue pairs served now.
    pub queues: u64,
    pub requests: u64,
    /// Of these, requests that failed.
    pub failures: u64,
    pub bytes: u64,
    /// Number of times it went to sleep.
    pub parks: u64,
    /// Requests that waited for an engine channel at the latest sample.
    pub waiting: u64,
    /// Busy engine channels at that sample.
    pub busy: u64,
    /// Number of engine channels.
    pub channels: u32,
    /// Bytes moved for the classes low, normal and high, up to that sample.
    pub class_bytes: [u64; 3],
}

/// Statistics of the Linux module.
///
/// ```
/// use memferry_service::protocol::ModuleStatus;
///
/// let module = ModuleStatus { transfers: 2, bytes: 2 << 20, dma_bytes: 1 << 20, redone: 0 };
/// assert_eq!(module.bytes - module.dma_bytes, 1 << 20, "moved by the CPU, in the kernel");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModuleStatus {
    /// Completed transfers, including cancelled ones.
    pub transfers: u64,
    /// Destination bytes of these transfers.
    pub bytes: u64,
    /// Of these, bytes moved by DMA engines. The CPU moved the others in the kernel.
    pub dma_bytes: u64,
    /// Failed transfers, which a worker's CPU repeated.
    pub redone: u64,
}

impl ModuleStatus {
    /// The sum of two workers' statistics.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            transfers: self.transfers.wrapping_add(other.transfers),
            bytes: self.bytes.wrapping_add(other.bytes),
            dma_bytes: self.dma_bytes.wrapping_add(other.dma_bytes),
            redone: self.redone.wrapping_add(other.redone),
        }
    }
}
