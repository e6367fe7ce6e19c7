//! The bytes that transfers write: images, memory of this process, refused fills.

use memferry::{
    Color24, Failure, Image, Pattern, PixelSize, Side, Turn, copy, copy_2d, fill, fill_2d, turned_copy,
};
use memferry_conformance::noise;

use super::*;

/// The source of a pixel (`x`, `y`) of the turned image, in a source of `width` x `height` pixels.
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

#[test]
fn images_are_cropped_and_turned_pixel_by_pixel() {
    let client = client();
    let from = frame(&client);
    let to = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let bytes = noise(FRAME_BYTES as usize, 7);
    from.write(0, &bytes).expect("access to the frame");
    for pixel in [PixelSize::Bits8, PixelSize::Bits16, PixelSize::Bits32] {
        let size = pixel.bytes() as usize;
        let canvas = Image { origin: 12, width: 24, height: 17, pitch_bytes: 101, pixel };
        let source = canvas.crop(3, 2, 19, 13).expect("inside the canvas");
        for turn in Turn::ALL {
            let (width, height) = if turn.swaps_axes() { (13, 19) } else { (19, 13) };
            let target = Image { origin: 5, width, height, pitch_bytes: 109, pixel };
            let blank = vec![0xaa; FRAME_BYTES as usize];
            to.write(0, &blank).expect("access to the frame");
            let shape = turned_copy(&source, turn, &target, None).expect("sizes that fit");
            let ticket = queue.submit(copy_2d(&from, &to, shape)).expect("room");
            assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(19 * 13 * size as u64));

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
fn an_image_fill_keeps_the_gaps_between_rows() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let image = Image { origin: 8, width: 3, height: 4, pitch_bytes: 20, pixel: PixelSize::Bits32 };
    let shape = image.fill(Color24::new(0x0a_0b0c).expect("24 bits")).expect("a good image");
    let ticket = queue.submit(fill_2d(to.slice(100..), shape)).expect("room");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(48));
    let mut expected = vec![0; FRAME_BYTES as usize];
    for (row, column) in (0..4).flat_map(|row| (0..3).map(move |column| (row, column))) {
        expected[108 + row * 20 + column * 4..][..4].copy_from_slice(&[0x0c, 0x0b, 0x0a, 0]);
    }
    assert!(contents(&to) == expected);
}

#[test]
fn a_fill_of_a_partial_pattern_is_refused() {
    let client = client();
    let to = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let ticket = queue.submit(fill(to.slice(0..7), Pattern::Word(1))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Err(Failure::FillLength { pattern_bytes: 4 }));
    let ticket = queue.submit(fill(to.slice(4090..4097), Pattern::Byte(1))).expect("room");
    let completion = end_of(&mut queue, ticket);
    let outside = Failure::OutOfBounds { side: Side::Destination, available: FRAME_BYTES };
    assert_eq!(outcome(completion), Err(outside));
    assert!(contents(&to) == [0; FRAME_BYTES as usize]);
}

#[test]
fn registered_vectors_are_moved_in_place() {
    let client = client();
    let shared = frame(&client);
    let mut queue = client.queue(2).expect("a queue");
    let bytes = noise(1001, 3);
    let own = client.register_owned(bytes.clone()).expect("an embedded service");
    assert_eq!(own.length(), 1001);
    let ticket = queue.submit(copy(&own, shared.slice(7..2007))).expect("room");
    assert_eq!(outcome(end_of(&mut queue, ticket)), Ok(1001));
    assert_eq!(contents(&shared)[7..1008], bytes);

    let back = client.register_owned(vec![0; 10]).expect("an embedded service");
    let ticket = queue.submit(copy(shared.slice(8..17), back.slice(1..10))).expect("room");
    end_of(&mut queue, ticket).expect("done");
    assert_eq!(contents(&back)[1..], bytes[1..10]);
    let ticket = queue.submit(fill(back.slice(1..11), Pattern::Byte(1))).expect("room");
    assert_eq!(
        outcome(end_of(&mut queue, ticket)),
        Err(Failure::OutOfBounds { side: Side::Destination, available: 10 })
    );
}
