//! Computes the expected picture pixel by pixel, to check the demo client's work.

use crate::picture::Picture;

/// `base` rotated by 90 degrees clockwise, with `badge` laid over it at `at`. Pixels of the badge in the colour `key` are
/// transparent. Both pictures have four bytes per pixel.
pub(crate) fn turned_with_badge(base: &Picture, badge: &Picture, at: (u32, u32), key: [u8; 3]) -> Picture {
    let width = base.height;
    let height = base.width;
    let mut pixels = Vec::with_capacity(base.pixels.len());
    for y in 0..height {
        for x in 0..width {
            let above = x.checked_sub(at.0).zip(y.checked_sub(at.1)).and_then(|(x, y)| pixel(badge, x, y));
            let below = pixel(base, y, base.height - 1 - x);
            pixels.extend(above.filter(|above| above[..3] != key).or(below).unwrap_or_default());
        }
    }
    Picture { width, height, pixels, ..base.clone() }
}

/// A pixel; `None` outside the picture.
fn pixel(picture: &Picture, x: u32, y: u32) -> Option<[u8; 4]> {
    let place = (y as usize * picture.width as usize + x as usize) * 4;
    let inside = x < picture.width && y < picture.height;
    inside.then(|| std::array::from_fn(|part| picture.pixels[place + part]))
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
    fn a_quarter_turn_puts_the_left_column_on_top() {
        let result =
            turned_with_badge(&picture(3, 2, &[0, 1, 2, 3, 4, 5]), &picture(1, 1, &[9]), (2, 0), [0; 3]);
        assert_eq!((result.width, result.height), (2, 3));
        assert_eq!(result.pixels, picture(2, 3, &[3, 0, 4, 1, 5, 2]).pixels);
    }

    #[test]
    fn key_pixels_and_overhang_are_dropped() {
        let badge = picture(2, 3, &[7, 1, 9, 2, 8, 3]);
        let result = turned_with_badge(&picture(2, 2, &[0; 4]), &badge, (1, 0), [9; 3]);
        assert_eq!(result.pixels, picture(2, 2, &[0, 7, 0, 0]).pixels);
    }
}
