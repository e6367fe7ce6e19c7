//! Messages between the service and engine processes: who connects as what, and which frames an engine maps.
//!
//! ```text
//! keeper   AttachEngine(Keeper) ─► NextFrame ─► Map ─► NextFrame(done) ─► ...          forks the engine
//! engine   AttachEngine(Engine) ─► OpenEngine ─► NextFrame ─► ...                      inherits the keeper's mappings
//! ```

use memferry_external::EngineDescription;
use memferry_transfer::{GrantToken, Handle, NodeName};
use serde::{Deserialize, Serialize};

use super::ServiceId;

/// Maximum bytes of an engine's name.
pub const MAX_ENGINE_NAME: usize = 32;

/// Whether an engine may have this name: 1 to [`MAX_ENGINE_NAME`] lower-case letters, digits and hyphens.
///
/// ```
/// use memferry_service::protocol::engine_name_is_valid;
///
/// assert!(engine_name_is_valid("cuda-0"));
/// assert!(!engine_name_is_valid("") && !engine_name_is_valid("CUDA"));
/// ```
pub fn engine_name_is_valid(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_ENGINE_NAME).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// What a session becomes by attaching.
///
/// ```
/// use memferry_service::protocol::{EngineDescription, EngineRole};
///
/// let role = EngineRole::Engine(EngineDescription::default());
/// assert_ne!(role, EngineRole::Keeper);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum EngineRole {
    /// It maps frames while they are registered, before they are sealed, and forks the engine, which inherits the mappings.
    Keeper = 0,
    /// It moves the bytes. It has the frames that its keeper has mapped: between the fork and this message, a keeper asks for no event.
    Engine(EngineDescription) = 1,
}

/// An event for a keeper or an engine.
///
/// ```
/// use memferry_service::protocol::FrameEvent;
/// use memferry_transfer::Handle;
///
/// let event = FrameEvent::Map { frame: Handle::new(7, 1), length: 4096, user: 1000 };
/// assert_ne!(event, FrameEvent::Unmap { frame: Handle::new(7, 1) });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum FrameEvent {
    /// Map the attached memfd of a user, whole and shared, for writing if it allows that. Nothing may touch the mapping before a request names
    /// the frame: until then its owner can truncate it.
    Map { frame: Handle, length: u64, user: u32 } = 0,
    /// No request will name the frame any more: unmap it, or free it.
    Unmap { frame: Handle } = 1,
    /// For a keeper: end the engine with a signal, and start another one.
    Restart = 2,
    /// For an engine: allocate a frame in its own memory, zeroed, and report it as mapped.
    Allocate { frame: Handle, length: u64 } = 3,
    /// For an engine: report a descriptor of a frame in its own memory, for the frame's owner. The frame stays, and requests go on.
    Export { frame: Handle } = 4,
    /// For the link: a frame names memory that another node granted to a user of this one. Report it as mapped. [`Unmap`](Self::Unmap)
    /// ends it.
    Attach {
        frame: Handle,
        length: u64,
        node: NodeName,
        /// The run of that node's service in which the grant was made.
        service: ServiceId,
        token: GrantToken,
        user: u32,
    } = 5,
}

/// What a descriptor of an engine's memory is.
///
/// ```
/// use memferry_service::protocol::ExportKind;
///
/// assert_ne!(ExportKind::Memory, ExportKind::Cuda { device: [0; 16] });
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum ExportKind {
    /// A memfd, to be mapped with `mmap` from its first byte on. It cannot shrink.
    Memory = 0,
    /// Memory of an NVIDIA GPU, for `cuMemImportFromShareableHandle` as a POSIX file descriptor.
    Cuda {
        /// The UUID of the GPU, as `cuDeviceGetUuid_v2` gives it.
        device: [u8; 16],
    } = 1,
}

/// What became of an event.
///
/// ```
/// use memferry_service::protocol::FrameResult;
///
/// assert_ne!(FrameResult::Mapped { is_writable: true }, FrameResult::Failed);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(u8)]
pub enum FrameResult {
    Mapped {
        is_writable: bool,
    } = 0,
    /// It could not be mapped, allocated or exported.
    Failed = 1,
    Unmapped = 2,
    /// The descriptor of the frame's memory is attached.
    Exported {
        kind: ExportKind,
        /// Bytes of the memory, at least those of the frame, which begins with the first one.
        length: u64,
    } = 3,
    /// The engine gives out no descriptors of its memory.
    NotExported = 4,
}

/// The report about an event of a frame.
///
/// ```
/// use memferry_service::protocol::{FrameDone, FrameResult};
/// use memferry_transfer::Handle;
///
/// let done = FrameDone { frame: Handle::new(7, 1), result: FrameResult::Unmapped };
/// assert_eq!(done.frame.index(), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrameDone {
    pub frame: Handle,
    pub result: FrameResult,
}
