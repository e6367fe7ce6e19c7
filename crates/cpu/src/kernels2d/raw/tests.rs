//! Tests every 2-D kernel at every level this CPU has, against a pixel-wise oracle, between guard pages.
//!
//! ```text
//! (sizes, pitches, alignments) ─► kernel on memory that begins or ends at a guard page ─► every byte compared
//! ```
//!
//! An access out of range ends the test process. Under Miri, which checks accesses itself, there are no guard pages and few cases.

use std::ptr;

use fastrand::Rng;

use super::super::settle;
use super::*;

const PAGE: usize = 4096;
const PAGES: usize = if cfg!(miri) { 4 } else { 72 };
const ROOM: usize = PAGES * PAGE;
const SIZES: [PixelSize; 3] = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32];

/// Memory between two inaccessible pages.
struct Room(*mut u8);

impl Room {
    #[cfg(not(miri))]
    fn new() -> Self {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, whose first and last page become inaccessible.
        unsafe {
            let start = mmap_anonymous(ptr::null_mut(), ROOM + 2 * PAGE, access, MapFlags::PRIVATE).unwrap();
            mprotect(start, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(start.byte_add(PAGE + ROOM), PAGE, MprotectFlags::empty()).unwrap();
            Self(start.cast::<u8>().add(PAGE))
        }
    }

    #[cfg(miri)]
    fn new() -> Self {
        Self(vec![0u8; ROOM].leak().as_mut_ptr())
    }

    /// Address of `bytes` bytes that lie `away` from the start or the end of the room.
    fn place(&self, (at_end, away): (bool, usize), bytes: usize) -> *mut u8 {
        assert!(away + bytes <= ROOM);
        self.0.wrapping_add(if at_end { ROOM - away - bytes } else { away })
    }

    fn fill(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), ROOM);
        // SAFETY: exactly `ROOM` bytes.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.0, ROOM) };
    }

    fn bytes(&self) -> Vec<u8> {
        // SAFETY: memory of this test only, initialised by the system.
        unsafe { std::slice::from_raw_parts(self.0, ROOM) }.to_vec()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: mapped in `new`; no reference remains.
        unsafe {
            rustix::mm::munmap(self.0.sub(PAGE).cast(), ROOM + 2 * PAGE).unwrap();
        }
        #[cfg(miri)]
        // SAFETY: leaked from such a vector in `new`.
        drop(unsafe { Vec::from_raw_parts(self.0, ROOM, ROOM) });
    }
}

/// A place near either end of a room, at any alignment.
fn random_place(rng: &mut Rng) -> (bool, usize) {
    (rng.bool(), rng.usize(..64))
}

fn noise(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; ROOM];
    rng.fill(&mut bytes);
    bytes
}

/// Calls `test` `cases` times at every level and pixel size.
fn each_case(cases: usize, mut test: impl FnMut(Level, PixelSize, &mut Rng, &[Room; 2], &[Vec<u8>; 2])) {
    let rooms = [Room::new(), Room::new()];
    let mut rng = Rng::with_seed(1);
    let noise = [noise(&mut rng), noise(&mut rng)];
    rooms[0].fill(&noise[0]);
    let cases = if cfg!(miri) { 3 } else { cases };
    for level in Level::available() {
        for size in SIZES {
            for _ in 0..cases {
                rooms[1].fill(&noise[1]);
                test(level, size, &mut rng, &rooms, &noise);
            }
        }
    }
}

/// Rows of `bytes` bytes somewhere in a room.
fn rectangle(room: &Room, rows: usize, bytes: usize, place: (bool, usize), gap: isize, down: bool) -> Rows {
    let pitch = bytes as isize + gap;
    let span = rows.saturating_sub(1) as isize * pitch;
    let lowest = room.place(place, span as usize + bytes);
    if down {
        Rows { first: lowest.wrapping_offset(span), pitch: -pitch }
    } else {
        Rows { first: lowest, pitch }
    }
}

fn offset(room: &Room, at: *const u8) -> usize {
    at.addr() - room.0.addr()
}

fn transposes(
    level: Level,
    size: PixelSize,
    rooms: &[Room; 2],
    noise: &[Vec<u8>; 2],
    band: Band,
    stores: Stores,
) {
    // SAFETY: both rectangles lie in their rooms.
    unsafe { transpose(level, size, band, stores) };
    settle(Stores::Streaming);
    let pixel = size.bytes() as usize;
    let mut expected = noise[1].clone();
    for row in 0..band.rows {
        for column in 0..band.columns {
            let from = offset(&rooms[0], band.from.at(row)) + column * pixel;
            let to = offset(&rooms[1], band.to.at(column)) + row * pixel;
            expected[to..to + pixel].copy_from_slice(&noise[0][from..from + pixel]);
        }
    }
    assert!(rooms[1].bytes() == expected, "{level} {size:?} {stores:?} {band:?}");
}

#[test]
fn transposing_writes_only_the_destination() {
    each_case(120, |level, size, rng, rooms, noise| {
        let pixel = size.bytes() as usize;
        let most = if cfg!(miri) { 40 } else { 200 };
        let rows = rng.usize(..DEPTH_BYTES.min(most) / pixel + 1);
        let columns = rng.usize(..most);
        let gaps = [rng.usize(..70) as isize, rng.usize(..70) as isize];
        let down = [rng.bool(), rng.bool()];
        let from = random_place(rng);
        let to = random_place(rng);
        let from = rectangle(&rooms[0], rows, columns * pixel, from, gaps[0], down[0]);
        let to = rectangle(&rooms[1], columns, rows * pixel, to, gaps[1], down[1]);
        let band = Band { from, to, rows, columns, after: ptr::null_mut() };
        transposes(level, size, rooms, noise, band, Stores::Cached);
    });
}

#[test]
fn streamed_bands_equal_stored_ones() {
    each_case(20, |level, size, rng, rooms, noise| {
        let pixel = size.bytes() as usize;
        let rows = DEPTH_BYTES / pixel;
        let columns = rng.usize(..ROOM / 2 / DEPTH_BYTES);
        let from = (rng.bool(), rng.usize(..64));
        let from = rectangle(&rooms[0], rows, columns * pixel, from, rng.usize(..9) as isize, rng.bool());
        let to = (rng.bool(), 64 * rng.usize(..3));
        let to = rectangle(&rooms[1], columns, DEPTH_BYTES, to, 64 * rng.usize(..3) as isize, rng.bool());
        let stores = if rng.bool() { Stores::Streaming } else { Stores::Cached };
        let band = Band { from, to, rows, columns, after: from.first };
        transposes(level, size, rooms, noise, band, stores);
    });
}

/// A strip of some pixels, and how it is written.
fn strip(rng: &mut Rng, size: PixelSize, rooms: &[Room; 2]) -> (Strip, Stores, [usize; 2]) {
    let longest = if cfg!(miri) {
        100
    } else if rng.usize(..8) == 0 {
        5000
    } else {
        300
    };
    let count = rng.usize(..longest);
    let bytes = count * size.bytes() as usize;
    let from = rooms[0].place(random_place(rng), bytes);
    let to = rooms[1].place(random_place(rng), bytes);
    let stores = if rng.bool() { Stores::Streaming } else { Stores::Cached };
    (Strip { from, to, count }, stores, [offset(&rooms[0], from), offset(&rooms[1], to)])
}

#[test]
fn strips_copy_and_reverse_at_any_alignment() {
    each_case(300, |level, size, rng, rooms, noise| {
        let (strip, stores, [from, to]) = strip(rng, size, rooms);
        let reversed = rng.bool();
        let pixel = size.bytes() as usize;
        // SAFETY: both lie in their rooms.
        unsafe {
            if reversed { reverse(level, size, strip, stores) } else { copy(level, size, strip, stores) }
        }
        settle(Stores::Streaming);
        let mut expected = noise[1].clone();
        for index in 0..strip.count {
            let at = from + pixel * if reversed { strip.count - 1 - index } else { index };
            expected[to + index * pixel..][..pixel].copy_from_slice(&noise[0][at..at + pixel]);
        }
        assert!(rooms[1].bytes() == expected, "{level} {size:?} {stores:?} {strip:?} reversed {reversed}");
    });
}

/// Sets random runs of `run` pixels to the key.
fn keyed(bytes: &mut [u8], pixel: usize, run: usize, key: Color24, rng: &mut Rng) {
    let compared = if pixel == 4 { 3 } else { pixel };
    for pixels in bytes.chunks_mut(pixel * run) {
        if rng.bool() {
            for pixel in pixels.chunks_mut(pixel) {
                let compared = compared.min(pixel.len());
                pixel[..compared].copy_from_slice(&key.value().to_le_bytes()[..compared]);
            }
        }
    }
}

#[test]
fn keyed_pixels_are_skipped() {
    let key = Color24::new(0x00c0_ffee).unwrap();
    each_case(300, |level, size, rng, rooms, noise| {
        let (strip, stores, [from, to]) = strip(rng, size, rooms);
        let pixel = size.bytes() as usize;
        let mut source = noise[0].clone();
        let run = [1, 2, 7, 64, 1000][rng.usize(..5)];
        keyed(&mut source[from..from + strip.count * pixel], pixel, run, key, rng);
        rooms[0].fill(&source);
        // SAFETY: both lie in their rooms.
        unsafe { copy_keyed(level, size, strip, key, stores) };
        settle(Stores::Streaming);
        let mut expected = noise[1].clone();
        for index in 0..strip.count {
            let mut word = [0; 4];
            word[..pixel].copy_from_slice(&source[from + index * pixel..][..pixel]);
            if !key.matches(size, u32::from_le_bytes(word)) {
                expected[to + index * pixel..][..pixel].copy_from_slice(&word[..pixel]);
            }
        }
        assert!(rooms[1].bytes() == expected, "{level} {size:?} {stores:?} {strip:?} runs of {run}");
    });
}

#[test]
#[cfg_attr(miri, ignore = "needs guard pages")]
fn skipped_destinations_are_not_accessed() {
    let key = Color24::new(0x0001_0203).unwrap();
    each_case(60, |level, size, rng, rooms, noise| {
        let pixel = size.bytes() as usize;
        // The last pixels lie in the guard page and have the key's colour.
        let inside = rng.usize(..200);
        let beyond = rng.usize(..100);
        let mut source = noise[0].clone();
        let end = (inside + beyond) * pixel;
        keyed(&mut source[..inside * pixel], pixel, 1 + rng.usize(..20), key, rng);
        let all = &key.value().to_le_bytes()[..pixel];
        source[inside * pixel..end].chunks_mut(pixel).for_each(|pixel| pixel.copy_from_slice(all));
        rooms[0].fill(&source);
        // If pixels are not aligned to lines, vectors cross the end of the page.
        let to = rooms[1].place((true, rng.usize(..pixel)), inside * pixel);
        let strip = Strip { from: rooms[0].0, to, count: inside + beyond };
        // SAFETY: the source lies in its room, and so do those pixels of the destination that may be written.
        unsafe { copy_keyed(level, size, strip, key, Stores::Cached) };
    });
}
