//! Memory that requests are tried on: a few frames and what is in them by this process's own reckoning.

use memferry::{Client, Frame};
use memferry_conformance::noise;
use memferry_conformance::requests::{FRAME_BYTES, FRAMES};

use super::transfers::LONG;
use crate::random::Random;
use crate::saying::Stop;

/// Frames that one run of requests works on at a time.
pub(super) struct Cell {
    pub(super) frames: Vec<Frame>,
    pub(super) model: Vec<Vec<u8>>,
    /// Its frames are long.
    pub(super) long: bool,
}

impl Cell {
    pub(super) fn new(client: &Client, long: bool, random: &mut Random) -> Result<Self, Stop> {
        let (count, bytes) = if long { (3, LONG) } else { (FRAMES, FRAME_BYTES) };
        let mut cell = Self { frames: Vec::new(), model: Vec::new(), long };
        for number in 0..count {
            let frame = client.frame(bytes).alloc()?;
            // Some are alike, so that comparisons go on for a while.
            let seed = if number == 1 { random.next() } else { random.next() % 4 };
            let bytes = noise(bytes as usize, seed);
            frame.write(0, &bytes)?;
            cell.frames.push(frame);
            cell.model.push(bytes);
        }
        Ok(cell)
    }

    /// What is in its frames now.
    pub(super) fn contents(&self) -> Result<Vec<Vec<u8>>, Stop> {
        let read = |frame: &Frame| {
            let mut bytes = vec![0; frame.length() as usize];
            frame.read(0, &mut bytes)?;
            Ok(bytes)
        };
        self.frames.iter().map(read).collect()
    }
}
