//! The vector operations that the 2-D kernels need: lanes of 16 bytes, moved, interleaved, reversed and stored.
//!
//! ```text
//! Vector ◄── avx512::Wide (4 lanes)  avx2::Half (2)  neon::Lane (1)  portable::Plain (1)
//!   └─► tiles, strips, keyed: generic, inlined into functions that enable the level's instructions
//! ```
//!
//! Every method is inlined, because only the functions of a level enable its instructions.

use memferry_transfer::Color24;

/// Bytes of a lane.
pub(super) const LANE: usize = 16;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;

/// Lanes of 16 bytes. The parameter `E` is the bytes per pixel: 1, 2 or 4.
pub(super) trait Vector: Copy {
    /// Size in bytes: a divisor of [`LINE`].
    const BYTES: usize;

    /// All bits zero.
    ///
    /// # Safety
    /// The CPU supports the level.
    unsafe fn zeroed() -> Self;

    /// Loads from any address.
    ///
    /// # Safety
    /// The CPU supports the level; the bytes are readable.
    unsafe fn load(from: *const u8) -> Self;

    /// Stores to any address.
    ///
    /// # Safety
    /// The CPU supports the level; the bytes are writable.
    unsafe fn store(self, to: *mut u8);

    /// Stores past the caches, if the level supports it, to an address that is a multiple of its size.
    ///
    /// # Safety
    /// As for `store`; a fence is needed before completion is reported.
    unsafe fn stream(self, to: *mut u8);

    /// Stores its lanes `apart` bytes from each other.
    ///
    /// # Safety
    /// The CPU supports the level; the bytes are writable.
    unsafe fn store_lanes(self, to: *mut u8, apart: usize);

    /// Interleaves pixels of both, lane by lane: those of the lower halves, then those of the upper.
    ///
    /// # Safety
    /// The CPU supports the level.
    unsafe fn zip<const E: usize>(self, other: Self) -> (Self, Self);

    /// Reverses the order of pixels.
    ///
    /// # Safety
    /// The CPU supports the level.
    unsafe fn reversed<const E: usize>(self) -> Self;

    /// A bit per pixel that differs from the colour, lowest bit first.
    ///
    /// # Safety
    /// The CPU supports the level.
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

    /// Stores only the pixels whose bits are set.
    ///
    /// # Safety
    /// The CPU supports the level; the pixels of set bits are writable.
    #[inline(always)]
    unsafe fn store_pixels<const E: usize>(self, to: *mut u8, bits: u64) {
        // SAFETY: the caller's promise.
        unsafe { store_single::<Self, E>(self, to, bits) }
    }

    /// Stores the vector to local memory.
    ///
    /// # Safety
    /// The CPU supports the level.
    #[inline(always)]
    unsafe fn spilled(self) -> Spilled {
        let mut bytes = Spilled([0; LINE]);
        // SAFETY: a vector is no longer than a line.
        unsafe { self.store(bytes.0.as_mut_ptr()) };
        bytes
    }

    /// Prefetches a line into an outer cache: the innermost accepts few outstanding misses, and the lines of a tile would evict
    /// each other there. Any address is allowed.
    fn prefetch(at: *const u8);

    /// Prefetches a line that is loaded once. Any address is allowed.
    fn prefetch_once(at: *const u8);
}

#[repr(C, align(64))]
pub(super) struct Spilled(pub(super) [u8; LINE]);

/// The bits of a pixel compared with a colour, as in `Color24::matches`.
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
/// The pixel is readable and writable.
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
