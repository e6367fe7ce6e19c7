//! Pages of this process, made present for the device.

#![expect(unsafe_code, reason = "advice about pages: changes no byte")]

use std::io;

use memferry_engine::Mapping;
use rustix::mm::Advice;

/// Makes pages present of which only the address is known, for writing too if `write`. `start` is a multiple of the page. Needs Linux 5.14.
///
/// # Errors
/// If a page is not mapped so, or has no memory behind it, as behind the end of a file. No signal comes then.
pub(crate) fn populate(start: usize, bytes: usize, write: bool) -> io::Result<()> {
    let advice = if write { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    // SAFETY: the kernel does what a load or a store of the same value by this process would do, and no byte changes.
    Ok(unsafe { rustix::mm::madvise(std::ptr::with_exposed_provenance_mut(start), bytes, advice) }?)
}

/// Makes the pages of completion records present and keeps them so: the device does not wait for them. A record that it cannot write
/// is lost, and so is the end of its descriptor.
///
/// # Errors
/// If the pages cannot be locked, as with a limit that is too low. They are present now, unless there is no memory, and can be swapped out.
pub(crate) fn keep_present(memory: &Mapping) -> io::Result<()> {
    let bytes = memory.length_bytes();
    let present = memory.make_present(0, bytes);
    // SAFETY: it changes no byte, whatever is mapped there.
    unsafe { rustix::mm::mlock(memory.pointer().cast(), bytes) }?;
    present
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
        assert!(populate(4096, 4096, false).is_err(), "nothing is mapped there");
    }

    #[test]
    fn pages_that_cannot_be_locked_are_an_error() {
        let (_, memory) = frame::allocate_half(8192).unwrap();
        // Two pages are less than any limit that is not 0.
        assert!(keep_present(&memory).is_ok());
        let nothing = Mapping::elsewhere(8192, 4096).unwrap();
        assert!(keep_present(&nothing).is_err(), "nothing is mapped there");
    }
}
