//! The CPU engine's 2-D copies equal a pixel-by-pixel walk, for every turn and walk order.
//!
//! ```text
//! (turn, size, pitches, order of the walk, chunk) ─► CpuEngine, resumed chunk by chunk ─► every byte compared
//! ```
//!
//! The conformance suite tests small, odd shapes; these are large enough for bands, tiles and tails. The
//! kernels run at the process's level.

use memferry_clock::Instant;
use memferry_cpu::CpuEngine;
use memferry_cpu::level::{self, Level};
use memferry_shm::mapping::Mapping;
use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{
    CacheHint, Color24, Copy2d, Count2d, Descriptor, Engine, Fill2d, Operation, PixelSize, Plane, Region,
};

const SIZES: [PixelSize; 3] = [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32];
const KEY: Color24 = Color24::new(0x0005_0505).unwrap();

fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = memferry_conformance::noise(length, seed);
    // Few distinct values, so that some pixels of every size match the key.
    bytes.iter_mut().filter(|byte| **byte < 200).for_each(|byte| *byte = 5);
    bytes
}

/// The same pixels in another order: axes swapped, from the right, from the bottom.
fn reordered(shape: &Copy2d, swap: bool, from_right: bool, from_bottom: bool) -> Copy2d {
    let Count2d { pixel, x_count, y_count } = shape.count;
    let count = if swap { Count2d { pixel, x_count: y_count, y_count: x_count } } else { shape.count };
    let plane = |plane: &Plane| {
        let at = |x: u32, y: u32| {
            let x = if from_right { count.x_count - 1 - x } else { x };
            let y = if from_bottom { count.y_count - 1 - y } else { y };
            plane.offset_of(&shape.count, if swap { y } else { x }, if swap { x } else { y })
        };
        let step = |from: i128, to: i128| i64::try_from(to - from).unwrap();
        let x_step = if count.x_count > 1 { step(at(0, 0), at(1, 0)) } else { 0 };
        let y_step = if count.y_count > 1 { step(at(count.x_count - 1, 0), at(0, 1)) } else { 0 };
        Plane { start: u64::try_from(at(0, 0)).unwrap(), x_step, y_step }
    };
    Copy2d { count, source: plane(&shape.source), destination: plane(&shape.destination), ..*shape }
}

/// The expected destination, copied pixel by pixel.
fn expected(shape: &Copy2d, source: &[u8], destination: &[u8]) -> Vec<u8> {
    let size = shape.count.pixel.bytes() as usize;
    let mut bytes = destination.to_vec();
    for y in 0..shape.count.y_count {
        for x in 0..shape.count.x_count {
            let from = shape.source.offset_of(&shape.count, x, y) as usize;
            let to = shape.destination.offset_of(&shape.count, x, y) as usize;
            let mut word = [0; 4];
            word[..size].copy_from_slice(&source[from..from + size]);
            let pixel = u32::from_le_bytes(word);
            if shape.transparent.is_none_or(|color| !color.matches(shape.count.pixel, pixel)) {
                bytes[to..to + size].copy_from_slice(&word[..size]);
            }
        }
    }
    bytes
}

fn perform(operation: Operation<Region<Mapping>>, hint: CacheHint, chunk_bytes: u64) {
    let mut engine = CpuEngine::new(1, chunk_bytes);
    let total = operation.total_bytes();
    engine.post(Descriptor::new(0, operation).unwrap().with_hint(hint)).unwrap();
    engine.ring_doorbell();
    let mut finished = Vec::new();
    while finished.is_empty() {
        engine.poll(Instant::ORIGIN, &mut finished);
    }
    assert_eq!((finished[0].outcome.result, finished[0].outcome.bytes_done), (Ok(()), total));
}

fn region(bytes: &[u8]) -> (Mapping, Region<Mapping>) {
    let mapping = Mapping::owned(bytes.to_vec());
    (mapping.clone(), Region::new(mapping, 0, bytes.len() as u64).unwrap())
}

fn contents(mapping: &Mapping) -> Vec<u8> {
    let mut bytes = vec![0; mapping.length_bytes()];
    mapping.read(0, &mut bytes).unwrap();
    bytes
}

/// Copies and compares every byte.
fn check(shape: &Copy2d, bytes: [&[u8]; 2], hint: CacheHint, chunk_bytes: u64) {
    let [(_, source), (mapping, destination)] = bytes.map(region);
    perform(Operation::Copy2d { source, destination, shape: *shape }, hint, chunk_bytes);
    let expected = expected(shape, bytes[0], bytes[1]);
    assert!(contents(&mapping) == expected, "{shape:?} {hint:?} in chunks of {chunk_bytes}");
}

/// A picture with `gap` bytes between rows, `origin` bytes after the start.
fn image(width: u32, height: u32, pixel: PixelSize, origin: u64, gap: u64) -> Image {
    let packed = Image::packed(width, height, pixel);
    Image { origin, pitch_bytes: packed.pitch_bytes + gap, ..packed }
}

fn turns(width: u32, height: u32, test: impl Fn(&Copy2d, [&[u8]; 2])) {
    for (index, (pixel, turn)) in
        SIZES.into_iter().flat_map(|size| Turn::ALL.map(|turn| (size, turn))).enumerate()
    {
        let (wide, high) = if turn.swaps_axes() { (height, width) } else { (width, height) };
        let aligned = index as u64 % 2 * (64 - u64::from(wide) * pixel.bytes() % 64);
        let from = image(width, height, pixel, index as u64 % 5, index as u64 % 3);
        let to = image(wide, high, pixel, index as u64 % 7 * pixel.bytes(), aligned);
        let length =
            |image: &Image| image.extent().unwrap().map_or(0, |end| end.first + end.length) as usize + 9;
        let bytes = [noise(length(&from), 3), noise(length(&to), 4)];
        for transparent in [None, Some(KEY)] {
            let shape = turned_copy(&from, turn, &to, transparent).unwrap();
            test(&shape, [&bytes[0], &bytes[1]]);
        }
    }
}

#[test]
fn every_turn_equals_the_oracle() {
    let pictures: &[_] = if cfg!(miri) {
        &[(1, 3), (5, 4)]
    } else {
        &[(1, 1), (1, 9), (9, 1), (3, 5), (64, 64), (65, 63), (20, 301), (300, 17), (129, 520), (530, 260)]
    };
    for &(width, height) in pictures {
        turns(width, height, |shape, bytes| {
            for (hint, chunk_bytes) in [(CacheHint::Keep, 1 << 20), (CacheHint::Stream, 20_000)] {
                check(shape, bytes, hint, chunk_bytes);
            }
        });
    }
}

#[test]
fn any_walk_order_gives_the_same_picture() {
    let (width, height) = if cfg!(miri) { (3, 4) } else { (70, 290) };
    turns(width, height, |shape, bytes| {
        for order in 1..8 {
            let shape = reordered(shape, order & 1 != 0, order & 2 != 0, order & 4 != 0);
            check(&shape, bytes, CacheHint::Stream, 5000);
        }
    });
}

#[test]
fn any_fill_order_covers_the_same_pixels() {
    let (width, height) = if cfg!(miri) { (3, 4) } else { (70, 90) };
    for pixel in SIZES {
        let picture = image(width, height, pixel, 5, 3);
        let Fill2d { count, destination, color } = picture.fill(Color24::new(0x00ab_cdef).unwrap()).unwrap();
        let copy = Copy2d { count, source: destination, destination, transparent: None };
        let before = noise(picture.extent().unwrap().unwrap().length as usize + 20, 5);
        let walked = |shape: &Copy2d| {
            let (mapping, destination) = region(&before);
            let shape = Fill2d { count: shape.count, destination: shape.destination, color };
            perform(Operation::Fill2d { destination, shape }, CacheHint::Auto, 3000);
            contents(&mapping)
        };
        let mut colored = before.clone();
        let word = &color.value().to_le_bytes()[..pixel.bytes() as usize];
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            let at = destination.offset_of(&count, x, y) as usize;
            colored[at..at + word.len()].copy_from_slice(word);
        }
        for order in 0..8 {
            let shape = reordered(&copy, order & 1 != 0, order & 2 != 0, order & 4 != 0);
            assert!(walked(&shape) == colored, "{shape:?}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri starts no processes, and has the portable level only")]
fn pictures_are_equal_at_every_level() {
    for level in Level::available() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--skip", "at_every_level"])
            .env(level::VARIABLE, level.name())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && output.contains("3 passed"), "{level}: {output}");
    }
}
