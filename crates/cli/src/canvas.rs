//! Pictures in frames, and 2-D transfers between them.
//!
//! ```text
//! Picture ─ of ─► Canvas ─ turned, overlaid ─► Transfer (2-D) ─► engine ─► Canvas ─ picture ─► Picture
//! ```
//!
//! A colour key follows the engine's transparent copy (Wicki 2014, 2.3.2.2): 24 bits; the upper eight of a 32-bit pixel are
//! ignored. A pixel in memory is R, G, B, alpha, so R is the lowest byte of its little-endian number and alpha is ignored.

use memferry::{Client, Color24, Frame, Image, Transfer, Turn, copy_2d, turned_copy};

use crate::CommandError;
use crate::picture::{Colours, Kind, Picture};

/// A colour without alpha.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Key {
    red: u8,
    green: u8,
    blue: u8,
}

impl Key {
    /// Parses six hexadecimal digits, as in `ff00ff`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('#').unwrap_or(text);
        let refused = || format!("'{text}' is not a colour; write six hexadecimal digits, as in ff00ff");
        if digits.len() != 6 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let value = u32::from_str_radix(digits, 16).map_err(|_| refused())?;
        let [_, red, green, blue] = value.to_be_bytes();
        Ok(Self { red, green, blue })
    }

    /// The number that pixels of `kind` are compared with.
    fn number(self, kind: Kind) -> Result<Color24, CommandError> {
        let grey = (self.red == self.green && self.green == self.blue).then_some(self.red);
        let value = match (kind, grey) {
            (Kind::Rgb8 | Kind::Rgba8, _) => u32::from_le_bytes([self.red, self.green, self.blue, 0]),
            (Kind::Grey8, Some(grey)) => u32::from(grey),
            // 8 bits of grey become 16 by repeating the byte, so byte order does not matter.
            (Kind::Grey16, Some(grey)) => u32::from(grey) * 257,
            (Kind::Grey8 | Kind::Grey16, None) => {
                return Err("grey pictures need a grey key, as in 808080".into());
            }
            (Kind::GreyAlpha8 | Kind::GreyAlpha16, _) => {
                return Err(format!(
                    "pixels of {} have no colour to compare; convert the picture to RGB",
                    kind.name()
                )
                .into());
            }
        };
        Color24::new(value).ok_or_else(|| "a colour key must fit 24 bits".into())
    }
}

/// A picture in a frame.
pub(crate) struct Canvas {
    frame: Frame,
    image: Image,
    kind: Kind,
    colours: Colours,
}

impl Canvas {
    /// Allocates a frame with the picture's pixels.
    pub(crate) fn of(client: &Client, picture: &Picture) -> Result<Self, CommandError> {
        let frame = client.frame(picture.pixels.len() as u64).alloc()?;
        frame.write(0, &picture.pixels)?;
        let image = Image::packed(picture.width, picture.height, picture.kind.pixel());
        Ok(Self { frame, image, kind: picture.kind, colours: picture.colours.clone() })
    }

    /// Allocates a frame for the turned picture; returns it and the transfer that turns it.
    pub(crate) fn turned(&self, client: &Client, turn: Turn) -> Result<(Self, Transfer), CommandError> {
        let Image { width, height, pixel, .. } = self.image;
        let (width, height) = if turn.swaps_axes() { (height, width) } else { (width, height) };
        let frame = client.frame(self.bytes()).alloc()?;
        let image = Image::packed(width, height, pixel);
        let turned = Self { frame, image, kind: self.kind, colours: self.colours.clone() };
        let shape = turned_copy(&self.image, turn, &turned.image, None)?;
        let transfer = copy_2d(&self.frame, &turned.frame, shape);
        Ok((turned, transfer))
    }

    /// The transfer that lays `top` over this picture, its top left pixel at `at`, cut off at the right and bottom edge.
    pub(crate) fn overlaid(
        &self,
        top: &Self,
        at: (u32, u32),
        key: Option<Key>,
    ) -> Result<Transfer, CommandError> {
        let width = self.image.width.saturating_sub(at.0).min(top.image.width);
        let height = self.image.height.saturating_sub(at.1).min(top.image.height);
        if width == 0 || height == 0 {
            let Image { width, height, .. } = self.image;
            return Err(format!(
                "the top picture would be invisible: {},{} is outside the base's {width} x {height} pixels",
                at.0, at.1
            )
            .into());
        }
        let key = key.map(|key| key.number(self.kind)).transpose()?;
        let source = top.image.crop(0, 0, width, height)?;
        let destination = self.image.crop(at.0, at.1, width, height)?;
        let shape = turned_copy(&source, Turn::Upright, &destination, key)?;
        Ok(copy_2d(&top.frame, &self.frame, shape))
    }

    /// Bytes of the pixels.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.image.width) * u64::from(self.image.height) * self.image.pixel.bytes()
    }

    /// Copies the pixels out of the frame.
    pub(crate) fn picture(&self) -> Result<Picture, CommandError> {
        let mut pixels = vec![0; usize::try_from(self.bytes())?];
        self.frame.read(0, &mut pixels)?;
        let width = self.image.width;
        let height = self.image.height;
        Ok(Picture { width, height, kind: self.kind, pixels, colours: self.colours.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_six_hexadecimal_digits() {
        let key = Key { red: 0x12, green: 0x34, blue: 0x56 };
        assert_eq!(Key::parse("123456"), Ok(key));
        assert_eq!(Key::parse("#123456"), Ok(key));
        for text in ["xyz", "", "12345", "1234567", "+12345", "12345g", "ééé"] {
            assert!(Key::parse(text).unwrap_err().contains("six hexadecimal digits"), "{text}");
        }
    }

    #[test]
    fn keys_match_the_pixels_byte_order() {
        let key = Key::parse("123456").unwrap();
        assert_eq!(key.number(Kind::Rgba8).unwrap().value(), 0x56_3412);
        assert!(key.number(Kind::Grey8).is_err());
        let grey = Key::parse("808080").unwrap();
        assert_eq!(grey.number(Kind::Grey8).unwrap().value(), 0x80);
        assert_eq!(grey.number(Kind::Grey16).unwrap().value(), 0x8080);
        assert!(grey.number(Kind::GreyAlpha8).is_err());
    }
}
