//! Entry, exit and devices of QEMU's n810: DMA registers, buffers, serial line and clock.
//!
//! ```text
//! _start ──► firmware_main ──► run()        Registers, Buffer, Serial, Counter: volatile accesses at fixed addresses
//! exit ──► semihosting call ──► QEMU ends
//! ```
//!
//! Only this module has unsafe code. The machine has one processor and runs without MMU, cache and interrupt handler, so
//! only the DMA engine accesses the same memory concurrently. Addresses are those of the OMAP2420.

#![expect(unsafe_code, reason = "device registers and the buffers of a DMA engine are raw addresses")]

use core::arch::{asm, global_asm};
use core::fmt;
use core::panic::PanicInfo;
use core::ptr::{read_volatile, write_volatile};

use memferry_clock::{Clock, Instant};
use memferry_registers::RegisterIo;

// The processor starts here, in supervisor mode, with interrupts off and without a stack. There is no .data to copy.
global_asm!(
    ".section .text._start",
    ".global _start",
    "_start: ldr sp, =0x81000000",
    "bl firmware_main",
    "b ."
);

/// Entry point of the Rust code.
// SAFETY: no other function of the image has this name. Only `_start` calls it, once, after setting up the stack.
#[unsafe(no_mangle)]
extern "C" fn firmware_main() -> ! {
    let passed = crate::run();
    exit(passed)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    use fmt::Write;
    // A failed write cannot be reported anywhere else.
    let _ = writeln!(Serial, "PANIC {info}");
    exit(false)
}

/// Ends QEMU, with status 0 or 1.
fn exit(passed: bool) -> ! {
    const SYS_EXIT: u32 = 0x18;
    let reason: u32 = if passed { 0x2_0026 } else { 0x2_0023 };
    // SAFETY: with semihosting, the call does not return. Without it, nothing handles the call, and the processor hangs.
    unsafe { asm!("svc 0x123456", in("r0") SYS_EXIT, in("r1") reason, options(noreturn)) }
}

fn load(address: u32) -> u32 {
    // SAFETY: all callers pass the address of a word-sized register of a device that nothing else drives.
    unsafe { read_volatile(address as usize as *const u32) }
}

fn store(address: u32, value: u32) {
    // SAFETY: as in `load`.
    unsafe { write_volatile(address as usize as *mut u32, value) }
}

/// Registers of the system DMA.
pub(crate) struct Registers;

impl Registers {
    const BASE: u32 = 0x4805_6000;
}

impl RegisterIo for Registers {
    fn read(&mut self, offset: u32) -> u32 {
        load(Self::BASE + offset)
    }

    fn write(&mut self, offset: u32, value: u32) {
        store(Self::BASE + offset, value);
    }
}

/// The machine's interrupt controller. The firmware polls it and takes no interrupts.
pub(crate) struct InterruptController;

impl InterruptController {
    const BASE: u32 = 0x480f_e000;
    /// Bit of the input to which the SDMA's line L0 is wired.
    const SDMA_L0: u32 = 1 << 12;

    /// Whether the SDMA's line L0 is high.
    pub(crate) fn line_is_high(&self) -> bool {
        const ITR0: u32 = 0x80;
        load(Self::BASE + ITR0) & Self::SDMA_L0 != 0
    }
}

/// The third serial line.
pub(crate) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        const BASE: u32 = 0x4806_e000;
        const LINE_STATUS: u32 = BASE + 0x14;
        const TRANSMITTER_EMPTY: u32 = 1 << 5;
        for byte in text.bytes() {
            while load(LINE_STATUS) & TRANSMITTER_EMPTY == 0 {}
            store(BASE, byte.into());
        }
        Ok(())
    }
}

/// The 32,768 Hz counter, which starts with the machine.
pub(crate) struct Counter;

impl Clock for Counter {
    fn now(&self) -> Instant {
        const COUNTER: u32 = 0x4800_4010;
        Instant::from_picoseconds(u128::from(load(COUNTER)) * 1_000_000_000_000 / 32_768)
    }
}

/// A buffer that the DMA engine reads or writes.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    address: u32,
}

impl Buffer {
    /// Size of a buffer in bytes.
    pub(crate) const LENGTH: u32 = 1 << 17;
    /// The buffer that the device reads.
    pub(crate) const SOURCE: Self = Self { address: 0x8200_0000 };
    /// The buffer that the device writes.
    pub(crate) const DESTINATION: Self = Self { address: 0x8300_0000 };

    /// Physical address of the byte at `offset`.
    pub(crate) fn at(self, offset: u32) -> u64 {
        u64::from(self.address + offset)
    }

    /// Reads the byte at `offset`, which must be below [`LENGTH`](Self::LENGTH).
    pub(crate) fn get(self, offset: u32) -> u8 {
        assert!(offset < Self::LENGTH);
        // SAFETY: the address is within the buffer, which lies in memory above the image and holds no Rust object.
        unsafe { read_volatile((self.address + offset) as usize as *const u8) }
    }

    /// Writes the byte at `offset`, which must be below [`LENGTH`](Self::LENGTH).
    pub(crate) fn set(self, offset: u32, byte: u8) {
        assert!(offset < Self::LENGTH);
        // SAFETY: as in `get`.
        unsafe { write_volatile((self.address + offset) as usize as *mut u8, byte) }
    }
}
