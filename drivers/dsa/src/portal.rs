//! The way of a descriptor to its work queue.
//!
//! ```text
//! dedicated, mapped   MOVDIR64B   posted: nothing comes back, the driver counts the queue's entries
//! shared, mapped      ENQCMD      the device answers: taken, or Busy
//! file of the kernel  write       ByWrite: single descriptors; the kernel answers
//! ```

use memferry_dsa_registers::descriptor::Descriptor;
use thiserror::Error;

/// Why a portal did not take a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum Refused {
    /// The shared work queue has no room now (3.3.1).
    #[error("the work queue is full: try again, or let the CPU do it")]
    Busy,
    /// This way leads to no work queue any more, or never did.
    #[error("the work queue takes no descriptors this way: it was disabled, or access to it was withdrawn")]
    Closed,
}

/// Submits descriptors to one work queue.
///
/// An implementation writes the 64 bytes as a whole, after everything that was written to memory before.
pub trait Portal {
    /// Submits one descriptor. A posted store cannot tell whether the device took it and returns `Ok`.
    ///
    /// # Errors
    /// [`Refused`]; the device does not execute the descriptor then.
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused>;

    /// Whether batch descriptors may be submitted this way.
    fn takes_batches(&self) -> bool {
        true
    }
}

impl<T: Portal + ?Sized> Portal for &mut T {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        (**self).submit(descriptor)
    }

    fn takes_batches(&self) -> bool {
        (**self).takes_batches()
    }
}

/// A file that takes descriptors by `write`, as Linux's work queues of type user do.
pub trait DescriptorFile {
    /// Writes a descriptor, lowest byte first; the bytes that were taken.
    ///
    /// # Errors
    /// [`Refused`]: `Busy` for `EAGAIN`, `Closed` for any other error.
    fn write(&mut self, bytes: &[u8; 64]) -> Result<usize, Refused>;
}

/// A portal by `write`. It takes no batches: on affected machines the kernel refuses them.
#[derive(Clone, Copy, Debug)]
pub struct ByWrite<F>(pub F);

impl<F: DescriptorFile> Portal for ByWrite<F> {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        let mut bytes = [0; 64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(descriptor.words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        // A file that takes a part of a descriptor is no work queue's.
        if self.0.write(&bytes)? == bytes.len() { Ok(()) } else { Err(Refused::Closed) }
    }

    fn takes_batches(&self) -> bool {
        false
    }
}
