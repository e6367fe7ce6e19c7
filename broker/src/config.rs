//! What a service is started with: lanes, channels, policy and quotas. Reading it from files is the command line's.

use memferry_engines::cpu::DEFAULT_CHUNK_BYTES;
use memferry_path::PolicyKind;
use serde::{Deserialize, Serialize};

/// Bounds on what one user may hold, in all its sessions together, and on what a session may.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quotas {
    /// Sessions of a user.
    pub sessions: u32,
    /// Frames a user has registered.
    pub frames: u32,
    /// Bytes of these frames.
    pub bytes: u64,
    /// Client channels (queue pairs) of a user.
    pub channels: u32,
    /// Capabilities a session holds: frames, derived, offered, accepted and revoked ones.
    pub capabilities: u32,
    /// Requests of a session that may wait for an engine channel.
    pub waiting: u32,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { sessions: 64, frames: 1024, bytes: 16 << 30, channels: 64, capabilities: 4096, waiting: 1024 }
    }
}

/// What a service is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceConfig {
    /// CPU copy lanes: threads that move bytes.
    pub lanes: u32,
    /// Engine channels of each lane: requests it serves by turns.
    pub channels_per_lane: u32,
    /// Bytes a lane moves for a request before it looks at the next; cancels and deadlines are honoured so often.
    pub chunk_bytes: u64,
    /// Which client gets which engine channel.
    pub policy: PolicyKind,
    /// Bounds for clients.
    pub quotas: Quotas,
}

impl Default for ServiceConfig {
    /// One lane for each CPU but one, and as many channels as the thesis's engine has (Wicki 2014, 2.3.1).
    fn default() -> Self {
        Self {
            lanes: cpus().saturating_sub(1).clamp(1, 16),
            channels_per_lane: 32,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            policy: PolicyKind::Shared,
            quotas: Quotas::default(),
        }
    }
}

/// CPUs this process may run on.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}
