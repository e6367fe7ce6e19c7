//! PNG pictures as pixels that the engine can move: one, two or four bytes each.
//!
//! ```text
//! PNG file ─► decode, within limits ─► Picture (packed pixels) ─► encode ─► PNG file
//! grey 8 bits: 1 byte   grey 16, grey and alpha 8: 2   RGB, RGBA 8, grey and alpha 16: 4
//! ```
//!
//! RGB is decoded to RGBA with an opaque alpha and encoded as RGB again. Palettes and small depths become 8-bit grey or RGB.
//! Samples of 16 bits stay big-endian as in the file, since pixels are only moved. Colour profiles are kept, other metadata is
//! dropped. 16-bit RGB is refused: its pixels have more than four bytes.

use std::borrow::Cow;
use std::io::{BufRead, BufReader, Seek};
use std::path::Path;

use memferry::PixelSize;
use png::{BitDepth, ColorType, Decoder, Encoder, Info, Limits, Transformations};

use crate::{CommandError, files};

/// Pixels of a picture at most: 256 MiB at four bytes each.
const MAX_PIXELS: u64 = 64 << 20;
/// Bytes that the decoder may allocate for itself.
const DECODER_BYTES: usize = 64 << 20;

/// The format of a pixel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Grey8,
    Grey16,
    GreyAlpha8,
    GreyAlpha16,
    /// In memory, with an opaque alpha.
    Rgb8,
    Rgba8,
}

impl Kind {
    fn of(color: ColorType, depth: BitDepth) -> Option<Self> {
        match (color, depth) {
            (ColorType::Grayscale, BitDepth::Eight) => Some(Self::Grey8),
            (ColorType::Grayscale, BitDepth::Sixteen) => Some(Self::Grey16),
            (ColorType::GrayscaleAlpha, BitDepth::Eight) => Some(Self::GreyAlpha8),
            (ColorType::GrayscaleAlpha, BitDepth::Sixteen) => Some(Self::GreyAlpha16),
            (ColorType::Rgb, BitDepth::Eight) => Some(Self::Rgb8),
            (ColorType::Rgba, BitDepth::Eight) => Some(Self::Rgba8),
            _ => None,
        }
    }

    const fn format(self) -> (ColorType, BitDepth) {
        match self {
            Self::Grey8 => (ColorType::Grayscale, BitDepth::Eight),
            Self::Grey16 => (ColorType::Grayscale, BitDepth::Sixteen),
            Self::GreyAlpha8 => (ColorType::GrayscaleAlpha, BitDepth::Eight),
            Self::GreyAlpha16 => (ColorType::GrayscaleAlpha, BitDepth::Sixteen),
            Self::Rgb8 => (ColorType::Rgb, BitDepth::Eight),
            Self::Rgba8 => (ColorType::Rgba, BitDepth::Eight),
        }
    }

    /// Size of a pixel in memory.
    pub(crate) const fn pixel(self) -> PixelSize {
        match self {
            Self::Grey8 => PixelSize::Bits8,
            Self::Grey16 | Self::GreyAlpha8 => PixelSize::Bits16,
            Self::GreyAlpha16 | Self::Rgb8 | Self::Rgba8 => PixelSize::Bits32,
        }
    }

    /// The name for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Grey8 => "8-bit grey",
            Self::Grey16 => "16-bit grey",
            Self::GreyAlpha8 => "8-bit grey with alpha",
            Self::GreyAlpha16 => "16-bit grey with alpha",
            Self::Rgb8 => "RGB",
            Self::Rgba8 => "RGBA",
        }
    }
}

/// The file's description of its colours.
#[derive(Clone, Default)]
pub(crate) struct Colours {
    srgb: Option<png::SrgbRenderingIntent>,
    gamma: Option<png::ScaledFloat>,
    chromaticities: Option<png::SourceChromaticities>,
    profile: Option<Vec<u8>>,
}

/// A decoded picture: packed rows with pixels of `kind.pixel()` bytes.
#[derive(Clone)]
pub(crate) struct Picture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) kind: Kind,
    pub(crate) pixels: Vec<u8>,
    pub(crate) colours: Colours,
}

impl Picture {
    /// Reads a PNG file.
    pub(crate) fn load(path: &Path) -> Result<Self, CommandError> {
        let (file, _) = files::open_source(path)?;
        Self::decode(BufReader::new(file))
            .map_err(|error| format!("cannot use {} as a picture: {error}", path.display()).into())
    }

    /// Decodes a complete PNG; a truncated one is refused.
    pub(crate) fn decode(source: impl BufRead + Seek) -> Result<Self, CommandError> {
        let mut decoder = Decoder::new_with_limits(source, Limits { bytes: DECODER_BYTES });
        decoder.set_transformations(Transformations::EXPAND);
        let mut reader = decoder.read_info()?;
        let (width, height) = reader.info().size();
        let count = u64::from(width) * u64::from(height);
        if count > MAX_PIXELS {
            return Err(
                format!("it has {width} x {height} pixels; the maximum is {MAX_PIXELS} in all").into()
            );
        }
        if reader.info().is_animated() {
            return Err("it is animated; only still pictures are supported".into());
        }
        let (color, depth) = reader.output_color_type();
        let kind = Kind::of(color, depth)
            .ok_or("it has several channels of 16 bits each; the engine's pixels have at most 32 bits")?;
        let length = reader.output_buffer_size().ok_or("its pixels do not fit the address space")?;
        let mut pixels = vec![0; length];
        reader.next_frame(&mut pixels)?;
        reader.finish()?;
        let info = reader.info();
        let colours = Colours {
            srgb: info.srgb,
            gamma: info.gama_chunk,
            chromaticities: info.chrm_chunk,
            profile: info.icc_profile.as_deref().map(<[u8]>::to_vec),
        };
        if kind == Kind::Rgb8 {
            pixels = opaque(&pixels);
        }
        Ok(Self { width, height, kind, pixels, colours })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, CommandError> {
        let mut info = Info::with_size(self.width, self.height);
        (info.color_type, info.bit_depth) = self.kind.format();
        info.srgb = self.colours.srgb;
        info.source_gamma = self.colours.gamma;
        info.source_chromaticities = self.colours.chromaticities;
        info.icc_profile = self.colours.profile.as_deref().map(Cow::Borrowed);
        let mut encoded = Vec::new();
        let mut writer = Encoder::with_info(&mut encoded, info)?.write_header()?;
        if self.kind == Kind::Rgb8 {
            let samples: Vec<u8> =
                self.pixels.chunks_exact(4).flat_map(|pixel| &pixel[..3]).copied().collect();
            writer.write_image_data(&samples)?;
        } else {
            writer.write_image_data(&self.pixels)?;
        }
        writer.finish()?;
        Ok(encoded)
    }

    /// Writes a PNG file. An existing file is overwritten after the picture is encoded.
    pub(crate) fn save(&self, path: &Path) -> Result<(), CommandError> {
        let encoded = self.encode()?;
        std::fs::write(path, encoded)
            .map_err(|error| format!("cannot write {}: {error}", path.display()).into())
    }

    /// Converts the picture to RGB, or RGBA if it has alpha. `None` for samples of 16 bits.
    pub(crate) fn in_colours(self) -> Option<Self> {
        let (pixels, kind) = match self.kind {
            Kind::Rgb8 | Kind::Rgba8 => return Some(self),
            Kind::Grey8 => {
                (self.pixels.iter().flat_map(|&grey| [grey, grey, grey, 255]).collect(), Kind::Rgb8)
            }
            Kind::GreyAlpha8 => (grey_alpha_as_rgba(&self.pixels), Kind::Rgba8),
            Kind::Grey16 | Kind::GreyAlpha16 => return None,
        };
        // A grey profile does not describe colours.
        Some(Self { kind, pixels, colours: Colours { profile: None, ..self.colours }, ..self })
    }
}

fn opaque(samples: &[u8]) -> Vec<u8> {
    samples.chunks_exact(3).flat_map(|rgb| [rgb[0], rgb[1], rgb[2], 255]).collect()
}

fn grey_alpha_as_rgba(samples: &[u8]) -> Vec<u8> {
    samples.chunks_exact(2).flat_map(|pair| [pair[0], pair[0], pair[0], pair[1]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn picture(kind: Kind) -> Picture {
        let bytes = 5 * 3 * kind.pixel().bytes() as usize;
        let mut pixels: Vec<u8> = (0..bytes).map(|index| (index * 37) as u8).collect();
        if kind == Kind::Rgb8 {
            pixels.chunks_exact_mut(4).for_each(|pixel| pixel[3] = 255);
        }
        Picture { width: 5, height: 3, kind, pixels, colours: Colours::default() }
    }

    #[test]
    fn every_kind_round_trips() {
        use Kind::{Grey8, Grey16, GreyAlpha8, GreyAlpha16, Rgb8, Rgba8};
        for kind in [Grey8, Grey16, GreyAlpha8, GreyAlpha16, Rgb8, Rgba8] {
            let original = picture(kind);
            let decoded = Picture::decode(Cursor::new(original.encode().unwrap())).unwrap();
            assert_eq!((decoded.width, decoded.height, decoded.kind), (5, 3, kind));
            assert_eq!(decoded.pixels, original.pixels, "{kind:?}");
        }
    }

    #[test]
    fn damaged_files_do_not_panic() {
        let encoded = picture(Kind::Rgba8).encode().unwrap();
        for length in 0..encoded.len() {
            assert!(Picture::decode(Cursor::new(&encoded[..length])).is_err(), "cut to {length}");
        }
        for index in 0..encoded.len() {
            let mut broken = encoded.clone();
            broken[index] ^= 0x55;
            let _ = Picture::decode(Cursor::new(broken));
        }
    }

    #[test]
    fn colour_of_16_bits_is_refused() {
        let mut encoded = Vec::new();
        let mut encoder = Encoder::new(&mut encoded, 1, 1);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Sixteen);
        encoder.write_header().unwrap().write_image_data(&[1, 2, 3, 4, 5, 6]).unwrap();
        let refused = Picture::decode(Cursor::new(encoded)).err().unwrap().to_string();
        assert!(refused.contains("16 bits"), "{refused}");
    }

    #[test]
    fn only_8_bit_grey_becomes_colour() {
        let grey = Picture { width: 1, height: 1, pixels: vec![7], ..picture(Kind::Grey8) };
        let colours = grey.in_colours().unwrap();
        assert_eq!((colours.kind, colours.pixels), (Kind::Rgb8, vec![7, 7, 7, 255]));
        assert!(picture(Kind::Grey16).in_colours().is_none());
    }
}
