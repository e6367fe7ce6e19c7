//! Helpers for tests of a client, whose service is embedded or in another process.
//!
//! The including file defines `PATIENCE`, the timeout of a test.

use memferry::{
    Client, Color24, Count2d, Done, Failure, Fill2d, Frame, Output, PixelSize, Plane, Queue, Region, Ticket,
    Transfer, TransferError, fill_2d,
};

pub(crate) const FRAME_BYTES: u64 = 4096;

pub(crate) fn frame(client: &Client) -> Frame {
    client.frame(FRAME_BYTES).alloc().expect("a frame")
}

pub(crate) fn contents(frame: &Frame) -> Vec<u8> {
    let mut bytes = vec![0; frame.length() as usize];
    frame.read(0, &mut bytes).expect("access to the frame");
    bytes
}

/// A transfer that ends only when it is cancelled: it writes the region's first byte 2^38 times.
pub(crate) fn endless(region: impl Into<Region>) -> Transfer {
    let count = Count2d { pixel: PixelSize::Bits8, x_count: 1 << 19, y_count: 1 << 19 };
    let destination = Plane { start: 0, x_step: 0, y_step: 0 };
    let color = Color24::new(0xee).expect("24 bits");
    fill_2d(region, Fill2d { count, destination, color })
}

/// Waits for the result of a transfer. Panics after `PATIENCE`.
pub(crate) fn end_of<T: Output>(queue: &mut Queue, ticket: Ticket<T>) -> Result<Done<T>, TransferError> {
    queue.wait_for(ticket, super::PATIENCE).map(|done| done.expect("the transfer ends in time"))
}

/// The number of bytes done, or the failure.
pub(crate) fn outcome<T>(ended: Result<Done<T>, TransferError>) -> Result<u64, Failure> {
    ended.map(|done| done.bytes_done).map_err(|error| error.failure)
}
