//! Memory for requests: a few frames and a model of their contents.

use memferry::{Client, Frame};
use memferry_conformance::noise;
use memferry_conformance::requests::{FRAME_BYTES, FRAMES};

use super::transfers::LONG;
use crate::output::Stop;
use crate::random::Random;

/// The frames of one run of requests.
pub(super) struct Cell {
    pub(super) frames: Vec<Frame>,
    pub(super) model: Vec<Vec<u8>>,
    /// Whether the frames are long.
    pub(super) long: bool,
}

impl Cell {
    pub(super) fn new(client: &Client, long: bool, random: &mut Random) -> Result<Self, Stop> {
        let (count, bytes) = if long { (3, LONG) } else { (FRAMES, FRAME_BYTES) };
        let mut cell = Self { frames: Vec::new(), model: Vec::new(), long };
        for number in 0..count {
            let frame = client.frame(bytes).alloc()?;
            // Some frames are equal, so that comparisons do not end at the first byte.
            let seed = if number == 1 { random.next() } else { random.next() % 4 };
            let bytes = noise(bytes as usize, seed);
            frame.write(0, &bytes)?;
            cell.frames.push(frame);
            cell.model.push(bytes);
        }
        Ok(cell)
    }

    /// Reads the contents of the frames.
    pub(super) fn contents(&self) -> Result<Vec<Vec<u8>>, Stop> {
        let read = |frame: &Frame| {
            let mut bytes = vec![0; frame.length() as usize];
            frame.read(0, &mut bytes)?;
            Ok(bytes)
        };
        self.frames.iter().map(read).collect()
    }
}
