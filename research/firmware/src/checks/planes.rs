//! Checks of transfers with source indexes: strides, rows with gaps, and rotations.
//!
//! Destinations are contiguous, because QEMU's model applies the source's indexes to both sides. Each check covers every
//! element size.

use memferry_drivers::sdma::{
    Addressing, ChannelConfig, Element, Grid, Operation, Picture, Piece, PlanePieces, QuarterTurns, Side,
    TransferSize, Walk, index_of_modify, rotate,
};

use super::{Bench, Failure, compare, fill_buffers};
use crate::hardware::Buffer;

const WIDTH: u32 = 20;
const HEIGHT: u32 = 12;

/// Copies every third element, with an index by the thesis's formula instead of a plan.
pub(super) fn single_index() -> Result<(), Failure> {
    for element in Element::ALL {
        fill_buffers();
        let addressing = Addressing::SingleIndex { element_index: index_of_modify(3, element) };
        let piece = Piece {
            size: TransferSize { element, elements: 50, frames: 2 },
            source: Side::indexed(Buffer::SOURCE.at(0), addressing),
            destination: Side::memory(Buffer::DESTINATION.at(0)),
        };
        Bench::new(0)?.transfer(&ChannelConfig::new(Operation::Copy, piece))?;
        let size = element.bytes();
        compare(|offset| {
            let pixel = offset / size;
            let byte = offset % size;
            (pixel < 100).then(|| Buffer::SOURCE.get(pixel * 3 * size + byte))
        })?;
    }
    Ok(())
}

/// Copies part of a wider picture into a picture without gaps.
pub(super) fn rows_apart() -> Result<(), Failure> {
    for element in Element::ALL {
        fill_buffers();
        let size = element.bytes();
        let pitch = 3 * WIDTH * size;
        let walk = |start, row: u32| Walk { start, step: size.into(), row: row.into() };
        let plan = PlanePieces::copy(
            Grid { element, x_count: WIDTH, y_count: HEIGHT },
            walk(Buffer::SOURCE.at(pitch), pitch),
            walk(Buffer::DESTINATION.at(0), WIDTH * size),
        )?;
        Bench::new(3)?.transfer_all(Operation::Copy, plan)?;
        compare(|offset| {
            let row = offset / (WIDTH * size);
            let column = offset % (WIDTH * size);
            (row < HEIGHT).then(|| Buffer::SOURCE.get(pitch + row * pitch + column))
        })?;
    }
    Ok(())
}

/// Rotates a picture and compares it pixel by pixel. `origin` returns the source pixel that belongs at (x, y).
fn turn(
    turns: QuarterTurns,
    (width, height): (u32, u32),
    origin: fn(u32, u32) -> (u32, u32),
) -> Result<(), Failure> {
    for element in Element::ALL {
        fill_buffers();
        let size = element.bytes();
        let picture =
            |buffer: Buffer, columns: u32| Picture { start: buffer.at(0), pitch_bytes: columns * size };
        let (grid, source, destination) = rotate(
            picture(Buffer::SOURCE, WIDTH),
            picture(Buffer::DESTINATION, width),
            (WIDTH, HEIGHT),
            element,
            turns,
        )?;
        let plan = PlanePieces::copy(grid, source, destination)?;
        Bench::new(4)?.transfer_all(Operation::Copy, plan)?;
        compare(|offset| {
            let pixel = offset / size;
            let byte = offset % size;
            let (x, y) = origin(pixel % width, pixel / width);
            (pixel < width * height).then(|| Buffer::SOURCE.get((y * WIDTH + x) * size + byte))
        })?;
    }
    Ok(())
}

pub(super) fn quarter_turn() -> Result<(), Failure> {
    turn(QuarterTurns::One, (HEIGHT, WIDTH), |x, y| (y, HEIGHT - 1 - x))
}

pub(super) fn half_turn() -> Result<(), Failure> {
    turn(QuarterTurns::Two, (WIDTH, HEIGHT), |x, y| (WIDTH - 1 - x, (HEIGHT - 1).wrapping_sub(y)))
}

pub(super) fn three_quarter_turn() -> Result<(), Failure> {
    turn(QuarterTurns::Three, (HEIGHT, WIDTH), |x, y| ((WIDTH - 1).wrapping_sub(y), x))
}
