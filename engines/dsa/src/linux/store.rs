//! The instructions that store a descriptor to a portal as a whole.
//!
//! ENQCMD was never executed: it needs a CPU, a device and a kernel that give the process an address space on it.

#![expect(unsafe_code, reason = "instructions without an intrinsic: invariant Q")]

/// Which of the instructions this CPU has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instructions {
    pub movdir64b: bool,
    pub enqcmd: bool,
}

/// A descriptor as the instructions read it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u64; 8]);

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::asm;
    use core::arch::x86_64::{__cpuid, __cpuid_count};

    use super::{Instructions, Line};

    /// Leaf 7, ECX: bits 28 and 29.
    const MOVDIR64B: u32 = 1 << 28;
    const ENQCMD: u32 = 1 << 29;

    impl Instructions {
        /// What CPUID says, which the kernel may know better: it hides ENQCMD where no process can have an address space on a device.
        pub fn of_this_cpu() -> Self {
            #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
            // SAFETY: every CPU of this architecture has CPUID.
            let flags = unsafe { if __cpuid(0).eax < 7 { 0 } else { __cpuid_count(7, 0).ecx } };
            Self { movdir64b: flags & MOVDIR64B != 0, enqcmd: flags & ENQCMD != 0 }
        }
    }

    /// Stores a line at once, after all stores before.
    ///
    /// # Safety
    /// The CPU has MOVDIR64B, or a trap may end the process. `to` is a multiple of 64, and its 64 bytes may be written. If they are a portal, the descriptor names only
    /// memory that the device may use until its record is written (Q).
    pub(in super::super) unsafe fn movdir64b(to: *mut u8, line: &Line) {
        // SAFETY: the caller's promise. The source is a whole line. The store is weakly ordered, so the fence makes the records and
        // lists that were written before visible first.
        unsafe {
            asm!("sfence", "movdir64b {to}, [{from}]", to = in(reg) to, from = in(reg) line,
                options(nostack, preserves_flags));
        }
    }

    /// Offers a line to a shared work queue; returns whether it was taken.
    ///
    /// # Safety
    /// As for [`movdir64b`], with ENQCMD; `to` is in the portal of a shared queue that this process has open.
    pub(in super::super) unsafe fn enqcmd(to: *mut u8, line: &Line) -> bool {
        let full: u8;
        // SAFETY: as above. The zero flag says that the queue did not take it.
        unsafe {
            asm!("sfence", "enqcmd {to}, [{from}]", "setz {full}", to = in(reg) to, from = in(reg) line,
                full = out(reg_byte) full, options(nostack));
        }
        full == 0
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{enqcmd, movdir64b};

#[cfg(not(target_arch = "x86_64"))]
mod other {
    use super::{Instructions, Line};

    impl Instructions {
        /// No other architecture has them.
        pub fn of_this_cpu() -> Self {
            Self::default()
        }
    }

    /// Never called.
    ///
    /// # Safety
    /// None.
    pub(in super::super) unsafe fn movdir64b(_: *mut u8, _: &Line) {}

    /// Never called.
    ///
    /// # Safety
    /// None.
    pub(in super::super) unsafe fn enqcmd(_: *mut u8, _: &Line) -> bool {
        false
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use other::{enqcmd, movdir64b};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_sees_the_same_instructions() {
        let Ok(text) = std::fs::read_to_string("/proc/cpuinfo") else { return };
        let has = |flag: &str| text.split_whitespace().any(|word| word == flag);
        let found = Instructions::of_this_cpu();
        assert_eq!(found.movdir64b, has("movdir64b"));
        // The kernel takes it from its list without shared virtual memory.
        assert!(found.enqcmd || !has("enqcmd"));
    }

    #[test]
    fn movdir64b_stores_a_whole_line() {
        if !Instructions::of_this_cpu().movdir64b {
            println!("skipped: no MOVDIR64B");
            return;
        }
        let mut lines = [Line([0; 8]), Line([7; 8]), Line([7; 8])];
        let line = Line([1, 2, 3, 4, 5, 6, 7, u64::MAX]);
        // SAFETY: the CPU has it; ordinary memory of this test, 64 bytes aligned to 64.
        unsafe { movdir64b((&raw mut lines[1]).cast(), &line) };
        assert_eq!(lines.map(|line| line.0), [[0; 8], line.0, [7; 8]]);
        println!("executed: MOVDIR64B");
    }
}
