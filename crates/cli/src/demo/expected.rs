//! What the picture must come to, computed pixel by pixel: the demo checks its client's work with it.

use crate::picture::Picture;

/// `base` turned by a quarter clockwise, with `badge` laid over it at `at` but for the badge's pixels of the colour `key`.
/// Both have four bytes a pixel.
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

/// The pixel there; `None` outside the picture.
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
    fn a_quarter_clockwise_puts_the_left_column_on_top() {
        let result =
            turned_with_badge(&picture(3, 2, &[0, 1, 2, 3, 4, 5]), &picture(1, 1, &[9]), (2, 0), [0; 3]);
        assert_eq!((result.width, result.height), (2, 3));
        assert_eq!(result.pixels, picture(2, 3, &[3, 0, 4, 1, 5, 2]).pixels);
    }

    #[test]
    fn the_key_and_what_sticks_out_are_left_out() {
        let badge = picture(2, 3, &[7, 1, 9, 2, 8, 3]);
        let result = turned_with_badge(&picture(2, 2, &[0; 4]), &badge, (1, 0), [9; 3]);
        assert_eq!(result.pixels, picture(2, 2, &[0, 7, 0, 0]).pixels);
    }
}
