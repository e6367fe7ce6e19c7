//! What the 2-D kernels need of a vector: lanes of 16 bytes, moved, interleaved, reversed and stored.
//!
//! ```text
//! Vector ◄── avx512::Wide (4 lanes)  avx2::Half (2)  neon::Lane (1)  portable::Plain (1)
//!   └─► tiles, strips, keyed: generic, inlined into functions that enable the level's instructions
//! ```
//!
//! Every method is inlined, or its instructions would not be: only the functions of a level enable them. No kernel here.

use memferry_transfer::Color24;

/// Bytes of a lane.
pub(super) const LANE: usize = 16;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Lanes of 16 bytes. Methods with a parameter `E` see pixels of so many bytes: 1, 2 or 4.
pub(super) trait Vector: Copy {
    /// Bytes of it: a divisor of [`LINE`].
    const BYTES: usize;

    /// All bits zero.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn zeroed() -> Self;

    /// Loads from any address.
    ///
    /// # Safety
    /// The CPU has the level; the bytes can be read.
    unsafe fn load(from: *const u8) -> Self;

    /// Stores to any address.
    ///
    /// # Safety
    /// The CPU has the level; the bytes can be written.
    unsafe fn store(self, to: *mut u8);

    /// Stores past the caches, where the level has that, to an address that is a multiple of its bytes.
    ///
    /// # Safety
    /// As for `store`; a fence comes before anybody is told.
    unsafe fn stream(self, to: *mut u8);

    /// Stores its lanes `apart` bytes from one another.
    ///
    /// # Safety
    /// The CPU has the level; the bytes can be written.
    unsafe fn store_lanes(self, to: *mut u8, apart: usize);

    /// Pixels of both in turn, lane by lane: those of the lower halves, those of the upper.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn zip<const E: usize>(self, other: Self) -> (Self, Self);

    /// Its pixels in opposite order.
    ///
    /// # Safety
    /// The CPU has the level.
    unsafe fn reversed<const E: usize>(self) -> Self;

    /// A bit for each pixel that is not of the colour, the first pixel's the lowest.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn opaque<const E: usize>(self, key: Color24) -> u64 {
        // SAFETY: the caller's promise.
        let pixels = unsafe { self.spilled() };
        let mut bits = 0;
        for index in 0..Self::BYTES / E {
            let mut word = [0; 4];
            word[..E].copy_from_slice(&pixels.0[index * E..][..E]);
            let difference = (u32::from_le_bytes(word) ^ key.value()) & compared::<E>();
            bits |= u64::from(difference != 0) << index;
        }
        bits
    }

    /// Stores the pixels whose bits are set and touches no other.
    ///
    /// # Safety
    /// The CPU has the level; the pixels of set bits can be written.
    #[inline(always)]
    unsafe fn store_pixels<const E: usize>(self, to: *mut u8, bits: u64) {
        // SAFETY: the caller's promise.
        unsafe { store_single::<Self, E>(self, to, bits) }
    }

    /// Its bytes in memory of this function alone.
    ///
    /// # Safety
    /// The CPU has the level.
    #[inline(always)]
    unsafe fn spilled(self) -> Spilled {
        let mut bytes = Spilled([0; LINE]);
        // SAFETY: a vector is no longer than a line.
        unsafe { self.store(bytes.0.as_mut_ptr()) };
        bytes
    }

    /// Asks for a line to be brought near, though not into the nearest cache: what waits for that one is few, and there the
    /// lines of a tile would drive each other out. Any address will do.
    fn prefetch(at: *const u8);

    /// Asks for a line that is to be loaded soon, once, and not again. Any address will do.
    fn prefetch_once(at: *const u8);
}

#[repr(C, align(64))]
pub(super) struct Spilled(pub(super) [u8; LINE]);

/// The bits of a pixel that are compared with a colour, as `Color24::matches` does.
pub(super) const fn compared<const E: usize>() -> u32 {
    match E {
        1 => 0xff,
        2 => 0xffff,
        _ => 0x00ff_ffff,
    }
}

/// Stores the pixels whose bits are set, one by one.
///
/// # Safety
/// As for [`Vector::store_pixels`].
#[inline(always)]
pub(super) unsafe fn store_single<V: Vector, const E: usize>(vector: V, to: *mut u8, mut bits: u64) {
    // SAFETY: the caller's promise; a set bit's index is below the number of pixels.
    unsafe {
        let pixels = vector.spilled();
        while bits != 0 {
            let offset = bits.trailing_zeros() as usize * E;
            copy_pixel::<E>(pixels.0.as_ptr().add(offset), to.add(offset));
            bits &= bits - 1;
        }
    }
}

/// Copies one pixel.
///
/// # Safety
/// It can be read and written.
#[inline(always)]
pub(super) unsafe fn copy_pixel<const E: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match E {
            1 => to.write(from.read()),
            2 => to.cast::<u16>().write_unaligned(from.cast::<u16>().read_unaligned()),
            _ => to.cast::<u32>().write_unaligned(from.cast::<u32>().read_unaligned()),
        }
    }
}
