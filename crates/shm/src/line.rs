//! Cache lines that a thread is about to read, to be asked for in advance.
//!
//! ```text
//! an address ─► Line ─ prefetch ─► the line moves to this core's caches while the thread goes on; or nothing happens
//! ```
//!
//! A prefetch accesses no memory as far as a program can tell, at any address, so nothing has to be mapped there. It does not wait.

/// The cache line of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line(usize);

impl Line {
    #[inline]
    pub(crate) const fn at(address: usize) -> Self {
        Self(address)
    }

    /// Asks for the line. Does nothing on CPUs other than x86-64.
    #[inline]
    pub fn prefetch(self) {
        prefetch(self.0);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn prefetch(address: usize) {
    use std::arch::asm;
    // SAFETY: a prefetch accesses no memory architecturally, at any address.
    unsafe { asm!("prefetcht0 [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn prefetch(_address: usize) {}
