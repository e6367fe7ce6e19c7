//! The memory of a frame at an engine, by descriptor.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use memferry_service::protocol::{Answer, Command, ExportKind};
use memferry_shm::frame::{UnsafeMemory, check_admitted, page_bytes};
use memferry_shm::mapping::{Access, Mapping};
use thiserror::Error;

use super::Frame;
use crate::error::CallError;

/// The memory of a frame at an engine, for this process to map.
///
/// ```
/// use memferry::{ExportKind, Exported};
///
/// fn map(exported: &Exported) -> std::io::Result<Option<memferry::Mapping>> {
///     match exported.kind {
///         ExportKind::Memory => exported.map().map(Some),
///         ExportKind::Cuda { .. } => Ok(None), // the CUDA driver maps it, by the descriptor
///     }
/// }
///
/// # let descriptor = std::fs::File::open("/dev/null")?.into();
/// let kind = ExportKind::Cuda { device: [7; 16] };
/// let of_a_gpu = Exported { descriptor, kind, length: 2 << 20 };
/// assert!(map(&of_a_gpu)?.is_none() && of_a_gpu.map().is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Exported {
    /// Keeps the memory, with all mappings made of it, also when the frame is released.
    pub descriptor: OwnedFd,
    /// What the descriptor is, and for which device.
    pub kind: ExportKind,
    /// Bytes of the memory, rounded up as the engine or its device does. The frame begins with the first one.
    pub length: u64,
}

/// Why [`Frame::export`] failed.
///
/// ```
/// use memferry::{Client, ExportError};
///
/// let near = Client::embedded()?.frame(4096).alloc()?;
/// assert!(matches!(near.export(), Err(ExportError::Call(_))), "it lies in memory of the host");
/// # Ok::<(), memferry::Error>(())
/// ```
#[derive(Debug, Error)]
pub enum ExportError {
    /// The call failed. A refusal says whether the frame, its engine or the machine is the reason.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The engine gave a memfd that it could still shorten, which would end a process that reads it.
    #[error("the engine's memory is not safe to map: {0}; report this to the author of the engine")]
    Memory(UnsafeMemory),
}

impl Frame {
    /// A descriptor of the frame's memory, for frames with a [home](crate::FrameBuilder::home). Only the session that allocated the frame
    /// gets it, for the whole frame.
    ///
    /// It is for reading and writing, and cannot be taken back: a process with it, or with a mapping made of it, keeps the memory, also
    /// after the frame was released or lost with its engine. Grants are not affected: their requests go on and can be
    /// revoked. Nothing orders accesses to the memory and requests: wait for the completion of a request before you use what it wrote.
    ///
    /// ```no_run
    /// use memferry::{Client, ExportKind};
    ///
    /// let client = Client::connect("/run/memferry.sock")?;
    /// let frame = client.frame(1 << 20).home("cuda-0").alloc()?;
    /// let exported = frame.export()?;
    /// if let ExportKind::Cuda { device } = exported.kind {
    ///     // For cuMemImportFromShareableHandle on the GPU with this UUID.
    ///     println!("{} bytes of {device:02x?}", exported.length);
    /// }
    /// # Ok::<(), memferry::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ExportError`]; also for frames in memory of the host, of which the program has the memfd already.
    pub fn export(&self) -> Result<Exported, ExportError> {
        // The capability of a window covers the memory of all blocks in its segment.
        if self.is_window() {
            return Err(CallError::PartOfArena.into());
        }
        let (answer, descriptors) =
            self.0.session.call(Command::Export { handle: self.0.handle }, Vec::new())?;
        let unexpected = || ExportError::Call(CallError::UNEXPECTED);
        let Answer::Exported { kind, length } = answer else { return Err(unexpected()) };
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| unexpected())?;
        if length < self.0.length {
            return Err(unexpected());
        }
        if kind == ExportKind::Memory {
            check_admitted(descriptor.as_fd(), length).map_err(ExportError::Memory)?;
        }
        Ok(Exported { descriptor, kind, length })
    }
}

impl Exported {
    /// Maps memory of the kind [`ExportKind::Memory`] in this process, to be read and written.
    ///
    /// # Errors
    /// `Unsupported` for other kinds; `InvalidInput` for a memfd that is too short or can be shortened; those of `mmap`.
    pub fn map(&self) -> io::Result<Mapping> {
        if self.kind != ExportKind::Memory {
            return Err(io::ErrorKind::Unsupported.into());
        }
        check_admitted(self.descriptor.as_fd(), self.length)
            .map_err(|unsafe_memory| io::Error::new(io::ErrorKind::InvalidInput, unsafe_memory))?;
        let length = usize::try_from(self.length).map_err(|_| io::ErrorKind::InvalidInput)?;
        let descriptor = self.descriptor.as_fd();
        Mapping::shared(descriptor, length, Access::ReadWrite, page_bytes(descriptor)?)
    }
}
