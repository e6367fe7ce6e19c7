//! The alternative to copies: process_vm_readv from a process that holds random bytes, into a private buffer.
//!
//! ```text
//! holder, asleep ═ process_vm_readv ═► buffer
//! ```
//!
//! One system call per copy. Source and destination stay the same, both page-aligned as frames are.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::BenchError;
use crate::children::Holder;
use crate::timing::Aligned;

pub(crate) struct Peer {
    holder: Holder,
    buffer: Aligned,
}

impl Peer {
    /// A holder and a buffer of `bytes` each. Start it before pinning the thread.
    pub(crate) fn start(bytes: usize) -> Result<Self, BenchError> {
        Ok(Self { holder: Holder::start(bytes)?, buffer: Aligned::random(bytes, 5) })
    }

    /// Reads the first `bytes`.
    ///
    /// # Errors
    /// Those of the system call, or a short read.
    pub(crate) fn read(&mut self, bytes: usize) -> Result<(), BenchError> {
        let process = Pid::from_raw(i32::try_from(self.holder.process())?);
        let remote = [RemoteIoVec { base: self.holder.address(), len: bytes }];
        let local = &mut [IoSliceMut::new(&mut self.buffer.bytes_mut()[..bytes])];
        let read = process_vm_readv(process, local, &remote)?;
        if read == bytes {
            Ok(())
        } else {
            Err(format!("process_vm_readv read {read} of {bytes} bytes").into())
        }
    }

    pub(crate) fn buffer(&self) -> &[u8] {
        self.buffer.bytes()
    }
}
