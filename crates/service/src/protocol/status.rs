//! What a service tells about itself and its clients. Numbers for people and programs; nothing is decided by them here.

use memferry_transfer::{Operations, PriorityClass, SessionId};
use serde::{Deserialize, Serialize};

/// What tells one service from all others: made at random when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceId(pub u128);

/// Whose a session is, by the service's own knowledge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub service: ServiceId,
    pub user: u32,
    /// Its process, as the service sees it: processes in a PID namespace of their own have another number there.
    pub process: u32,
}

/// What the engines of a service can do for the asking client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Kinds of operations; a request of another kind completes as unsupported.
    pub operations: Operations,
    /// Longest transfer, bytes visited.
    pub longest_bytes: u64,
    /// Transfers up to this many bytes are done at once, without a channel; 0: none are.
    pub immediate_bytes: u64,
    /// Cancel and deadline are honoured after at most this many bytes; `None`: only between transfers.
    pub preemption_bytes: Option<u64>,
    /// Channels of each engine.
    pub channels: u32,
    pub engines: u32,
    /// The highest priority class the client may use.
    pub class: PriorityClass,
}

/// How the service is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// Process of the service.
    pub process: u32,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// The policy of its engine channels.
    pub policy: String,
    /// Slices that the priority policy has begun.
    pub slices: u64,
    /// Bytes of suspended requests that moved within a slice: none, or something is wrong.
    pub strayed_bytes: u64,
    /// Sessions open in all.
    pub open_sessions: u64,
    /// What they hold: the asking one, then others as far as a message goes.
    pub sessions: Vec<SessionStatus>,
    pub workers: Vec<WorkerStatus>,
    /// Buffers of pools, zeroed in the background.
    pub zeroed: ZeroedStatus,
    /// The Linux module, when the service uses it: part of what workers have done.
    pub module: Option<ModuleStatus>,
}

/// What was done to buffers of pools while nobody had them. Only a service in the pool's own process does that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ZeroedStatus {
    /// Buffers that the engine zeroed.
    pub buffers: u64,
    pub bytes: u64,
    /// Buffers that the engine failed at or was not given, which the CPU cleared.
    pub failed: u64,
}

/// Sessions a [`Status`] names at most: with the most workers there can be, it still fits a message.
pub const STATUS_SESSIONS: usize = 100;

/// What a session holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionStatus {
    pub session: SessionId,
    pub user: u32,
    pub process: u32,
    pub queues: u32,
    pub frames: u32,
    pub bytes: u64,
    /// Requests taken from its queue pairs.
    pub requests: u64,
    /// Of these, not completed yet.
    pub outstanding: u64,
    /// Of the outstanding ones, waiting for an engine channel when their worker last looked.
    pub waiting: u64,
    /// Of the requests, completed with a failure.
    pub failures: u64,
    /// Destination bytes visited for it.
    pub bytes_moved: u64,
}

/// What a worker has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Queue pairs it serves.
    pub queues: u64,
    pub requests: u64,
    /// Of these, completed with a failure.
    pub failures: u64,
    pub bytes: u64,
    /// Times it went to sleep.
    pub parks: u64,
    /// Requests that waited for an engine channel when it last looked.
    pub waiting: u64,
    /// Engine channels that were busy then.
    pub busy: u64,
    /// Engine channels it has.
    pub channels: u32,
    /// Bytes moved for requests of the classes low, normal and high, when it last looked.
    pub class_bytes: [u64; 3],
}

/// What the Linux module has done for a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ModuleStatus {
    /// Transfers that it ended.
    pub transfers: u64,
    /// Destination bytes of them.
    pub bytes: u64,
    /// Of these, moved by DMA engines; the kernel's CPU moved the others.
    pub dma_bytes: u64,
    /// Transfers that it failed at, which CPUs did again.
    pub redone: u64,
}

impl ModuleStatus {
    /// That of two workers.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            transfers: self.transfers.wrapping_add(other.transfers),
            bytes: self.bytes.wrapping_add(other.bytes),
            dma_bytes: self.dma_bytes.wrapping_add(other.dma_bytes),
            redone: self.redone.wrapping_add(other.redone),
        }
    }
}
