//! The engine's side: two pictures and an operation on them, and the same pictures for OpenCV.
//!
//! ```text
//! random bytes ─► source, destination (memfds, or memory of this process) ─► perform_whole ─► destination
//!       └ files for the other side ─► OpenCV ─► a file ─► compared with the destination
//! ```
//!
//! This module sets no targets.

use std::os::fd::OwnedFd;

use memferry_cpu::perform_whole;
use memferry_shm::frame::{self, Pages};
use memferry_shm::mapping::Mapping;
use memferry_transfer::image::{Image, Turn, turned_copy};
use memferry_transfer::{CacheHint, Color24, Confined, Operation, PixelSize, Region};

use super::opencv::{Opencv, path_of};
use crate::BenchError;
use crate::timing::{each_ns, random_bytes};

/// Bytes compared at a time.
const PIECE: usize = 1 << 20;
/// The key's bytes in memory; a pixel's fourth byte is not compared.
const KEY: [u8; 3] = [1, 2, 3];

/// The operation on a picture.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    Rotate90,
    Rotate180,
    Rotate270,
    Transpose,
    FlipHorizontal,
    FlipVertical,
    /// A copy that skips pixels of the key, random half of all pixels.
    KeyedRandom,
    /// The same with runs of 64 pixels.
    KeyedRuns,
}

impl Work {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Rotate90 => "rotate 90",
            Self::Rotate180 => "rotate 180",
            Self::Rotate270 => "rotate 270",
            Self::Transpose => "transpose",
            Self::FlipHorizontal => "flip left to right",
            Self::FlipVertical => "flip upside down",
            Self::KeyedRandom => "colour key, every second pixel at random,",
            Self::KeyedRuns => "colour key, runs of 64 pixels,",
        }
    }

    /// The part of the group it belongs to.
    pub(super) fn part(self) -> &'static str {
        match self {
            Self::Rotate90 => "rotate",
            Self::KeyedRandom | Self::KeyedRuns => "keyed",
            _ => "flips",
        }
    }

    /// The command for OpenCV's process.
    pub(super) fn command(self) -> &'static str {
        match self {
            Self::Rotate90 => "rotate90",
            Self::Rotate180 => "rotate180",
            Self::Rotate270 => "rotate270",
            Self::Transpose => "transpose",
            Self::FlipHorizontal => "flip-horizontal",
            Self::FlipVertical => "flip-vertical",
            Self::KeyedRandom | Self::KeyedRuns => "keyed",
        }
    }

    fn turn(self) -> Turn {
        match self {
            Self::Rotate90 => Turn::Rotate90,
            Self::Rotate180 => Turn::Rotate180,
            Self::Rotate270 => Turn::Rotate270,
            Self::Transpose => Turn::Transpose,
            Self::FlipHorizontal => Turn::FlipHorizontal,
            Self::FlipVertical => Turn::FlipVertical,
            Self::KeyedRandom | Self::KeyedRuns => Turn::Upright,
        }
    }

    /// Length of runs of pixels that have the key's colour or not.
    fn run(self) -> Option<usize> {
        match self {
            Self::KeyedRandom => Some(1),
            Self::KeyedRuns => Some(64),
            _ => None,
        }
    }
}

/// Memory of the pictures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Memfds on both sides.
    Frames,
    /// Memory of each side's allocator.
    Own,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Frames => "in memfds",
            Self::Own => "in memory of their own",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Own => "arrays",
        }
    }
}

/// A source and a destination, and the operation on them.
pub(super) struct Pictures {
    work: Work,
    kind: Kind,
    side: u32,
    pixel_bytes: u64,
    bytes: usize,
    operation: Operation<Region<Mapping>>,
    /// Memfds with the source's and the destination's bytes, and one for OpenCV's result.
    files: [(OwnedFd, Mapping); 3],
    destination: Mapping,
}

impl Pictures {
    /// Square pictures of `side` x `side` random pixels.
    pub(super) fn new(work: Work, side: u32, pixel_bytes: u64, kind: Kind) -> Result<Self, BenchError> {
        let pixel = PixelSize::from_bytes(pixel_bytes).ok_or("pixels must have 1, 2 or 4 bytes")?;
        let image = Image::packed(side, side, pixel);
        let bytes = usize::try_from(u64::from(side) * image.pitch_bytes)?;
        let mut source = random_bytes(bytes, 7);
        let destination = random_bytes(bytes, 11);
        let key = work.run().map(|run| {
            let chances = random_bytes(bytes / run, 13);
            for (pixels, chance) in source.chunks_mut(run * 4).zip(&chances) {
                if chance & 1 == 1 {
                    pixels.chunks_mut(4).for_each(|pixel| pixel[..3].copy_from_slice(&KEY));
                }
            }
            u32::from_le_bytes([KEY[0], KEY[1], KEY[2], 0])
        });
        let allocate = || frame::allocate(bytes as u64, Pages::Ordinary);
        let files = [allocate()?, allocate()?, allocate()?];
        files[0].1.write(0, &source)?;
        files[1].1.write(0, &destination)?;
        let [source, destination] = match kind {
            Kind::Frames => [files[0].1.clone(), files[1].1.clone()],
            Kind::Own => [source, destination].map(Mapping::owned),
        };
        let shape = turned_copy(&image, work.turn(), &image, key.and_then(Color24::new))?;
        let region = |mapping: &Mapping| {
            Region::new(mapping.clone(), 0, bytes as u64).ok_or("the picture's memory is too short")
        };
        let operation =
            Operation::Copy2d { source: region(&source)?, destination: region(&destination)?, shape };
        Ok(Self { work, kind, side, pixel_bytes, bytes, operation, files, destination })
    }

    /// Bytes of one picture.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Performs the operation `count` times; returns nanoseconds per execution.
    pub(super) fn run(&self, count: usize) -> Result<f64, BenchError> {
        let confined = Confined::new(&self.operation, CacheHint::Auto)
            .map_err(|leaves| format!("a picture exceeds its memory: {leaves}"))?;
        each_ns(count, || match perform_whole(&confined, None).map(|outcome| outcome.result) {
            Some(Ok(())) => Ok(()),
            outcome => Err(format!("the engine did not turn the picture: {outcome:?}").into()),
        })
    }

    /// Gives OpenCV the same pictures, runs both sides once, and checks that the results are equal.
    pub(super) fn compare(&self, opencv: &mut Opencv) -> Result<(), BenchError> {
        let [source, destination, result] = &self.files;
        let [source, destination] = [&source.0, &destination.0].map(path_of);
        let Self { side, pixel_bytes, .. } = self;
        opencv
            .ask(&format!("open {} {side} {side} {pixel_bytes} {source} {destination}", self.kind.word()))?;
        opencv.run(self.work.command(), 1)?;
        opencv.ask(&format!("result {}", path_of(&result.0)))?;
        self.run(1)?;
        let mut ours = vec![0; PIECE];
        let mut theirs = vec![0; PIECE];
        for at in (0..self.bytes).step_by(PIECE) {
            self.destination.read(at as u64, &mut ours)?;
            result.1.read(at as u64, &mut theirs)?;
            if ours != theirs {
                return Err(
                    format!("{}: the engine and OpenCV made different pictures", self.work.name()).into()
                );
            }
        }
        Ok(())
    }
}
