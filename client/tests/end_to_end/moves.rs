//! What transfers do to memory: random ones as the oracle has it, images pixel by pixel.

use memferry::{Channel, Failure, Image, Pattern, Side, TransferError, Turn, turned_copy};
use memferry_conformance::requests::{self, Draft, RequestFixture, request_suite};
use memferry_transfer::{Operation, Segment};

use super::*;

/// A client as the suite for requests drives it.
struct Served {
    frames: Vec<Frame>,
    channel: Channel,
}

impl RequestFixture for Served {
    fn run(&mut self, draft: &Draft) -> requests::Served {
        let transfer = match transfer(draft, &self.frames) {
            Ok(transfer) => transfer,
            Err(TransferError::Unequal { one_bytes, .. }) => {
                // The library sees what the service would say.
                let outcome = Err(Failure::SegmentTotals { source_bytes: one_bytes });
                return requests::Served { outcome, bytes_done: 0, value: 0 };
            }
            Err(error) => panic!("{error}"),
        };
        let ticket = self.channel.submit(transfer).expect("room in the ring");
        let Completion { outcome, bytes_done, value, .. } =
            self.channel.wait(ticket, PATIENCE).expect("a completion");
        requests::Served { outcome, bytes_done, value }
    }

    fn fill(&mut self, frame: usize, bytes: &[u8]) {
        self.frames[frame].write(0, bytes).expect("the frame's own bytes");
    }

    fn contents(&mut self, frame: usize) -> Vec<u8> {
        contents(&self.frames[frame])
    }
}

/// The draft as a client writes it down.
fn transfer(draft: &Draft, frames: &[Frame]) -> Result<Transfer, TransferError> {
    let range = |(frame, offset): &(usize, u64), length| frames[*frame].range(*offset, length);
    let segments = |list: &[Segment<(usize, u64)>]| -> Vec<_> {
        list.iter().map(|segment| range(&segment.place, segment.length)).collect()
    };
    match draft {
        Operation::Nop => Ok(Transfer::nop()),
        Operation::Copy { source, destination, length } => {
            Transfer::copy(&range(source, *length), &range(destination, *length))
        }
        Operation::Fill { destination, length, pattern } => {
            Ok(Transfer::fill(&range(destination, *length), *pattern))
        }
        Operation::Copy2d { source, destination, shape } => {
            Ok(Transfer::copy_2d(&range(source, 0), &range(destination, 0), *shape))
        }
        Operation::Fill2d { destination, shape } => Ok(Transfer::fill_2d(&range(destination, 0), *shape)),
        Operation::ScatterGather { lists } => {
            Transfer::scatter_gather(&segments(&lists.source), &segments(&lists.destination))
        }
        Operation::Xor { sources, destination, length } => {
            let sources: Vec<_> = sources.iter().map(|source| range(source, *length)).collect();
            Transfer::xor(&sources, &range(destination, *length))
        }
        Operation::Compare { first, second, length } => {
            Transfer::compare(&range(first, *length), &range(second, *length))
        }
        Operation::Crc { source, length, seed } => Ok(Transfer::crc32c(&range(source, *length), *seed)),
        Operation::CopyCrc { source, destination, length, seed } => {
            Transfer::copy_crc32c(&range(source, *length), &range(destination, *length), *seed)
        }
        Operation::DualCopy { source, destinations: [one, other], length } => {
            Transfer::dual_copy(&range(source, *length), [&range(one, *length), &range(other, *length)])
        }
    }
}

#[test]
fn requests_of_every_kind_are_as_the_oracle_has_them() {
    let client = client();
    let frames = (0..requests::FRAMES).map(|_| frame(&client)).collect();
    let channel = client.open_channel(8).expect("a channel");
    request_suite(Served { frames, channel }, 200);
}

fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Where a pixel of the turned picture comes from, for a source of `width` x `height`.
fn origin(turn: Turn, (x, y): (u32, u32), (width, height): (u32, u32)) -> (u32, u32) {
    match turn {
        Turn::Upright => (x, y),
        Turn::FlipHorizontal => (width - 1 - x, y),
        Turn::FlipVertical => (x, height - 1 - y),
        Turn::Rotate90 => (y, height - 1 - x),
        Turn::Rotate180 => (width - 1 - x, height - 1 - y),
        Turn::Rotate270 => (width - 1 - y, x),
        Turn::Transpose => (y, x),
    }
}

const TURNS: [Turn; 7] = [
    Turn::Upright,
    Turn::FlipHorizontal,
    Turn::FlipVertical,
    Turn::Rotate90,
    Turn::Rotate180,
    Turn::Rotate270,
    Turn::Transpose,
];

#[test]
fn images_are_cropped_and_turned_pixel_by_pixel() {
    let client = client();
    let (from, to) = (frame(&client), frame(&client));
    let mut channel = client.open_channel(2).expect("a channel");
    let bytes = noise(7, FRAME_BYTES as usize);
    from.write(0, &bytes).expect("the frame's own bytes");
    for pixel in [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32] {
        let size = pixel.bytes() as usize;
        let canvas = Image { origin: 12, width: 24, height: 17, pitch_bytes: 101, pixel };
        let source = canvas.crop(3, 2, 19, 13).expect("inside the canvas");
        for turn in TURNS {
            let (width, height) = if turn.swaps_axes() { (13, 19) } else { (19, 13) };
            let target = Image { origin: 5, width, height, pitch_bytes: 109, pixel };
            let blank = vec![0xaa; FRAME_BYTES as usize];
            to.write(0, &blank).expect("the frame's own bytes");
            let shape = turned_copy(&source, turn, &target, None).expect("sizes that fit");
            let ticket = channel.submit(Transfer::copy_2d(&from.all(), &to.all(), shape)).expect("room");
            let completion = channel.wait(ticket, PATIENCE).expect("a completion");
            assert_eq!(outcome(completion), Ok(19 * 13 * size as u64));

            let mut expected = blank;
            for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
                let (column, row) = origin(turn, (x, y), (19, 13));
                let read = 12 + (row + 2) as usize * 101 + (column + 3) as usize * size;
                let written = 5 + y as usize * 109 + x as usize * size;
                expected[written..written + size].copy_from_slice(&bytes[read..read + size]);
            }
            assert!(contents(&to) == expected, "{turn:?} of {pixel:?}");
        }
    }
}

#[test]
fn a_filled_image_leaves_the_gaps_between_rows_alone() {
    let client = client();
    let (to, mut channel) = (frame(&client), client.open_channel(2).expect("a channel"));
    let image = Image { origin: 8, width: 3, height: 4, pitch_bytes: 20, pixel: PixelSize::Bits32 };
    let fill = image.fill(Color24::new(0x0a_0b0c).expect("24 bits")).expect("a good image");
    let ticket = channel.submit(Transfer::fill_2d(&to.range(100, 0), fill)).expect("room");
    assert_eq!(outcome(channel.wait(ticket, PATIENCE).expect("a completion")), Ok(48));
    let mut expected = vec![0; FRAME_BYTES as usize];
    for (row, column) in (0..4).flat_map(|row| (0..3).map(move |column| (row, column))) {
        expected[108 + row * 20 + column * 4..][..4].copy_from_slice(&[0x0c, 0x0b, 0x0a, 0]);
    }
    assert!(contents(&to) == expected);
}

#[test]
fn a_fill_that_its_pattern_does_not_divide_is_refused() {
    let client = client();
    let (to, mut channel) = (frame(&client), client.open_channel(2).expect("a channel"));
    let ticket = channel.submit(Transfer::fill(&to.range(0, 7), Pattern::Word(1))).expect("room");
    let completion = channel.wait(ticket, PATIENCE).expect("a completion");
    assert_eq!(outcome(completion), Err(Failure::FillLength { pattern_bytes: 4 }));
    let ticket = channel.submit(Transfer::fill(&to.range(4090, 7), Pattern::Byte(1))).expect("room");
    let completion = channel.wait(ticket, PATIENCE).expect("a completion");
    let outside = Failure::OutOfBounds { side: Side::Destination, available: FRAME_BYTES };
    assert_eq!(outcome(completion), Err(outside));
    assert!(contents(&to) == [0; FRAME_BYTES as usize]);
}

#[test]
fn memory_of_this_process_can_be_moved_where_it_lies() {
    let client = client();
    let (shared, mut channel) = (frame(&client), client.open_channel(2).expect("a channel"));
    let bytes = noise(3, 1001);
    let own = client.register_owned(bytes.clone()).expect("an embedded service");
    assert_eq!(own.length(), 1001);
    let ticket = channel.submit(Transfer::copy(&own.all(), &shared.range(7, 2000)).expect("fits"));
    let completion = channel.wait(ticket.expect("room"), PATIENCE).expect("a completion");
    assert_eq!(outcome(completion), Ok(1001));
    assert_eq!(contents(&shared)[7..1008], bytes);

    let back = client.register_owned(vec![0; 10]).expect("an embedded service");
    let ticket = channel.submit(Transfer::copy(&shared.range(8, 9), &back.range(1, 9)).expect("fits"));
    channel.wait(ticket.expect("room"), PATIENCE).expect("a completion").outcome.expect("done");
    assert_eq!(contents(&back)[1..], bytes[1..10]);
    let ticket = channel.submit(Transfer::fill(&back.range(1, 10), Pattern::Byte(1))).expect("room");
    let completion = channel.wait(ticket, PATIENCE).expect("a completion");
    assert_eq!(outcome(completion), Err(Failure::OutOfBounds { side: Side::Destination, available: 10 }));
}
