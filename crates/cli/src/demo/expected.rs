//! What the pictures must come to, computed pixel by pixel: the demo checks its client's work with it.

use crate::picture::Picture;

/// The picture turned by a quarter clockwise.
pub(crate) fn turned(picture: &Picture) -> Picture {
    let width = picture.height;
    let height = picture.width;
    let mut pixels = Vec::with_capacity(picture.pixels.len());
    for y in 0..height {
        for x in 0..width {
            pixels.extend_from_slice(pixel(picture, y, picture.height - 1 - x));
        }
    }
    Picture { width, height, pixels, ..picture.clone() }
}

/// `top` laid over `base` but for pixels of the colour `key`; both of four bytes a pixel.
pub(crate) fn overlaid(base: &Picture, top: &Picture, at: (u32, u32), key: [u8; 3]) -> Picture {
    let mut result = base.clone();
    for y in 0..top.height.min(base.height.saturating_sub(at.1)) {
        for x in 0..top.width.min(base.width.saturating_sub(at.0)) {
            let above = pixel(top, x, y);
            if above[..3] != key {
                let place = index(base, at.0 + x, at.1 + y);
                result.pixels[place..place + 4].copy_from_slice(above);
            }
        }
    }
    result
}

fn index(picture: &Picture, x: u32, y: u32) -> usize {
    (y as usize * picture.width as usize + x as usize) * 4
}

fn pixel(picture: &Picture, x: u32, y: u32) -> &[u8] {
    let place = index(picture, x, y);
    &picture.pixels[place..place + 4]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::{Colours, Kind};

    fn picture(width: u32, height: u32, values: &[u8]) -> Picture {
        let pixels = values.iter().flat_map(|&value| [value, value, value, 255]).collect();
        Picture { width, height, kind: Kind::Rgba8, pixels, colours: Colours::default() }
    }

    #[test]
    fn a_quarter_clockwise_puts_the_left_column_on_top() {
        let result = turned(&picture(3, 2, &[0, 1, 2, 3, 4, 5]));
        assert_eq!((result.width, result.height), (2, 3));
        assert_eq!(result.pixels, picture(2, 3, &[3, 0, 4, 1, 5, 2]).pixels);
    }

    #[test]
    fn the_key_and_what_sticks_out_are_left_out() {
        let result = overlaid(&picture(2, 2, &[0; 4]), &picture(2, 2, &[7, 9, 8, 8]), (1, 0), [9, 9, 9]);
        assert_eq!(result.pixels, picture(2, 2, &[0, 7, 0, 8]).pixels);
    }
}
