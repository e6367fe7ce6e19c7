//! Statistics of a service and its clients, as sent in answers.

use std::time::Duration;

use memferry_transfer::{Operations, PriorityClass, SessionId};
use serde::{Deserialize, Serialize};

use super::RefusalKind;

/// Identifies a running service: a random number, chosen at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceId(pub u128);

/// User and process of a session, verified by the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub service: ServiceId,
    pub user: u32,
    /// Process id in the service's PID namespace. In the process's own namespace it may differ.
    pub process: u32,
}

/// Capabilities of the engines for the requesting client.
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
}

/// How long sampled requests took, from the worker's taking them to their completion. Only successful requests that were not done
/// at once are sampled.
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ZeroedStatus {
    /// Buffers zeroed by the engine.
    pub buffers: u64,
    pub bytes: u64,
    /// Buffers that the CPU cleared, because the engine failed or did not get them.
    pub failed: u64,
}

/// Maximum number of sessions in a [`Status`], so that it fits a message also with the maximum number of workers.
pub const STATUS_SESSIONS: usize = 100;

/// Resources and statistics of a session.
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
