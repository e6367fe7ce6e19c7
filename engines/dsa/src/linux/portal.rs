//! A portal of a work queue, mapped.

#![expect(unsafe_code, reason = "a mapped portal: invariant Q")]

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use memferry_dsa::registers::PAGE_BYTES;
use memferry_dsa::registers::descriptor::{BYTES, Descriptor};
use memferry_dsa::{Portal, Refused};
use rustix::mm::{MapFlags, ProtFlags};

use super::store::{Line, enqcmd, movdir64b};
use crate::kernel::Mode;

/// The page of a work queue's portal. The engine makes it only for a mode whose instruction the CPU has.
#[derive(Debug)]
pub struct Mapped {
    base: NonNull<u8>,
    mode: Mode,
    /// Where in the page the next descriptor goes; the device does not care.
    next: usize,
}

impl Mapped {
    /// Maps the portal of a dedicated queue: the page at `offset` of a device's file, as VFIO has it. Without MOVDIR64B, a submission
    /// ends the process by SIGILL.
    ///
    /// # Errors
    /// Those of the call.
    pub fn of_device(device: &File, offset: u64) -> io::Result<Self> {
        Self::new(device, offset, Mode::Dedicated)
    }

    /// Maps the portal. The CPU has the instruction for `mode`.
    pub(super) fn new(queue: &File, offset: u64, mode: Mode) -> io::Result<Self> {
        // The kernel maps portals for stores only, and not for children of a fork.
        let flags = MapFlags::SHARED;
        // SAFETY: a fresh mapping at an address that Linux chooses overlaps no other.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                PAGE_BYTES as usize,
                ProtFlags::WRITE,
                flags,
                queue,
                offset,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, mode, next: 0 })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; nothing points into it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), PAGE_BYTES as usize) };
    }
}

impl Portal for Mapped {
    fn submit(&mut self, descriptor: &Descriptor) -> Result<(), Refused> {
        let line = Line(descriptor.words);
        let to = self.base.as_ptr().wrapping_add(self.next);
        self.next = (self.next + BYTES as usize) % PAGE_BYTES as usize;
        // SAFETY: a line of the mapped page. Without the instruction, which `new`'s caller checks or does not mind, it traps and stores
        // nothing. The owner keeps D, or an IOMMU keeps the device to memory that is mapped for it (V).
        let is_taken = unsafe {
            match self.mode {
                Mode::Dedicated => {
                    movdir64b(to, &line);
                    true
                }
                Mode::Shared => enqcmd(to, &line),
            }
        };
        if is_taken { Ok(()) } else { Err(Refused::Busy) }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::linux::Instructions;

    #[test]
    fn descriptors_go_through_the_page_in_turn() {
        if !Instructions::of_this_cpu().movdir64b {
            println!("skipped: no MOVDIR64B");
            return;
        }
        let page = rustix::fs::memfd_create("portal", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&page, 2 * PAGE_BYTES).unwrap();
        let page = File::from(page);
        let mut portal = Mapped::of_device(&page, PAGE_BYTES).unwrap();
        for number in 0..65 {
            portal.submit(&Descriptor { words: [number; 8] }).unwrap();
        }
        for (at, number) in [(0, 64), (64, 1), (4032, 63)] {
            let mut bytes = [0; 64];
            page.read_exact_at(&mut bytes, PAGE_BYTES + at).unwrap();
            assert_eq!(bytes, core::array::from_fn(|byte| if byte % 8 == 0 { number } else { 0 }));
        }
        println!("executed: MOVDIR64B");
    }

    #[test]
    fn an_empty_file_has_no_portal() {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        assert!(Mapped::of_device(&null, 0).is_err());
    }
}
