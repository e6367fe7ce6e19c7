//! Pages of this process, made present for the device.

#![expect(unsafe_code, reason = "advice about pages: changes no byte")]

use std::io;

use memferry_engine::Mapping;
use rustix::mm::Advice;

/// Makes pages present, for writing too if `write`. `start` is a multiple of the page. Needs Linux 5.14.
///
/// # Errors
/// If a page is not mapped so, or has no memory behind it, as behind the end of a file. No signal comes then.
pub(crate) fn populate(start: usize, bytes: usize, write: bool) -> io::Result<()> {
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: the kernel does what a load or a store of the same value by this process would do, and no byte changes.
    Ok(unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(start), bytes, advice) }?)
}

/// Keeps memory of completion records present as well as it can: the device may not wait for these pages.
pub(crate) fn keep_present(memory: &Mapping) {
    let bytes = memory.length_bytes();
    let _ = populate(memory.pointer().expose_provenance(), bytes, true);
    // Without the right to lock memory, the kernel can still swap them; then the device fails the descriptor.
    // SAFETY: pages of a mapping that lives on.
    let _ = unsafe { rustix::mm::mlock(memory.pointer().cast(), bytes) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use memferry_engine::Access;
    use memferry_shm::frame;

    use super::*;

    #[test]
    fn pages_of_a_frame_can_be_touched() {
        let (file, memory) = frame::allocate_half(8192).unwrap();
        let start = memory.pointer().expose_provenance();
        assert!(populate(start, 8192, true).is_ok());
        let reading = Mapping::shared(file.as_fd(), 8192, Access::ReadOnly, 4096).unwrap();
        let start = reading.pointer().expose_provenance();
        assert!(populate(start, 4096, false).is_ok());
        assert!(populate(start, 4096, true).is_err(), "it may not be written");
    }

    #[test]
    fn pages_behind_the_end_cannot_be_touched() {
        let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        let memory = Mapping::shared(file.as_fd(), 8192, Access::ReadWrite, 4096).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        let start = memory.pointer().expose_provenance();
        assert!(populate(start, 4096, true).is_ok());
        for write in [false, true] {
            assert!(populate(start + 4096, 4096, write).is_err());
        }
        assert!(populate(4096, 4096, false).is_err(), "nothing is mapped there");
    }
}
