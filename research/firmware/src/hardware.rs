//! The machine: registers, memory, the serial line, the clock, the way in and the way out of QEMU's n810.
//!
//! ```text
//! _start ──► firmware_main ──► run()        Registers, Buffer, Serial, Counter: volatile accesses at fixed addresses
//! exit ──► semihosting call ──► QEMU ends
//! ```
//!
//! The only place of the firmware with unsafe code. There is one processor, no MMU, no cache and no interrupt handler:
//! whatever is accessed here is accessed by nobody else but the DMA engine. Addresses are those of the OMAP2420.

#![expect(unsafe_code, reason = "device registers and the buffers of a DMA engine are raw addresses")]

use core::arch::{asm, global_asm};
use core::fmt;
use core::panic::PanicInfo;
use core::ptr::{read_volatile, write_volatile};

use memferry_clock::{Clock, Instant};
use memferry_registers::RegisterIo;

// The processor enters here, in supervisor mode, with interrupts off and no stack; the image has no .data to copy.
global_asm!(
    ".section .text._start",
    ".global _start",
    "_start: ldr sp, =0x81000000",
    "bl firmware_main",
    "b ."
);

/// The first Rust function.
// SAFETY: no other function of the image has this name, which `_start` calls once, with a stack.
#[unsafe(no_mangle)]
extern "C" fn firmware_main() -> ! {
    let passed = crate::run();
    exit(passed)
}

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    use fmt::Write;
    // Nothing can be done about a line that does not take its text.
    let _ = writeln!(Serial, "PANIC {info}");
    exit(false)
}

/// Ends QEMU, with status 0 or 1.
fn exit(passed: bool) -> ! {
    const SYS_EXIT: u32 = 0x18;
    let reason: u32 = if passed { 0x2_0026 } else { 0x2_0023 };
    // SAFETY: with semihosting on, this call does not return; without, nothing handles it and the processor hangs.
    unsafe { asm!("svc 0x123456", in("r0") SYS_EXIT, in("r1") reason, options(noreturn)) }
}

fn load(address: u32) -> u32 {
    // SAFETY: every address given is that of a word-sized register of a device that nothing else drives.
    unsafe { read_volatile(address as usize as *const u32) }
}

fn store(address: u32, value: u32) {
    // SAFETY: as in `load`.
    unsafe { write_volatile(address as usize as *mut u32, value) }
}

/// The registers of the system DMA.
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

/// The machine's interrupt controller, looked at instead of taking interrupts.
pub(crate) struct InterruptController;

impl InterruptController {
    const BASE: u32 = 0x480f_e000;
    /// The input that the SDMA's line L0 is wired to.
    const SDMA_L0: u32 = 1 << 12;

    /// Whether the SDMA holds its line L0 up.
    pub(crate) fn sees_sdma(&self) -> bool {
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

/// The counter of 32,768 steps a second, which begins with the machine.
pub(crate) struct Counter;

impl Clock for Counter {
    fn now(&self) -> Instant {
        const COUNTER: u32 = 0x4800_4010;
        Instant::from_picoseconds(u128::from(load(COUNTER)) * 1_000_000_000_000 / 32_768)
    }
}

/// Memory that the device moves.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    address: u32,
}

impl Buffer {
    /// Bytes of a buffer.
    pub(crate) const LENGTH: u32 = 1 << 17;
    /// Read by the device.
    pub(crate) const SOURCE: Self = Self { address: 0x8200_0000 };
    /// Written by the device.
    pub(crate) const DESTINATION: Self = Self { address: 0x8300_0000 };

    /// The physical address of an offset.
    pub(crate) fn at(self, offset: u32) -> u64 {
        u64::from(self.address + offset)
    }

    /// The byte at an offset below the length.
    pub(crate) fn get(self, offset: u32) -> u8 {
        assert!(offset < Self::LENGTH);
        // SAFETY: within the buffer, which lies in memory above the image and holds no Rust object.
        unsafe { read_volatile((self.address + offset) as usize as *const u8) }
    }

    /// Sets the byte at an offset below the length.
    pub(crate) fn set(self, offset: u32, byte: u8) {
        assert!(offset < Self::LENGTH);
        // SAFETY: as in `get`.
        unsafe { write_volatile((self.address + offset) as usize as *mut u8, byte) }
    }
}
