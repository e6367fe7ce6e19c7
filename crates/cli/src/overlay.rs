//! `memferry overlay`: lays one PNG picture over another with one 2-D transfer and a transparent colour.
//!
//! Pixels are replaced and not blended: a top pixel of another colour than the key replaces the base pixel, alpha included.
//! Parts beyond the right or bottom edge are cut off.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use crate::CommandError;
use crate::canvas::{Canvas, Key};
use crate::measure::{Bytes, Time, thread_cpu};
use crate::mover::Mover;
use crate::output::say;
use crate::picture::{Kind, Picture};

/// Arguments of `overlay`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Base picture, a PNG file.
    base: PathBuf,
    /// Top picture, a PNG file.
    top: PathBuf,
    /// PNG file to write; an existing file is overwritten.
    output: PathBuf,
    /// Position of the top picture's upper left pixel in the base picture.
    #[arg(long, value_name = "X,Y", value_parser = position, allow_hyphen_values = true)]
    at: (u32, u32),
    /// Transparent colour of the top picture, as RRGGBB; alpha is ignored.
    #[arg(long, value_name = "RRGGBB", value_parser = Key::parse)]
    key: Key,
    /// Socket of the service to use; by default the engine is embedded.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

fn position(text: &str) -> Result<(u32, u32), String> {
    let number = |part: &str| part.trim().parse::<i64>();
    let Some((Ok(x), Ok(y))) = text.split_once(',').map(|(x, y)| (number(x), number(y))) else {
        return Err(format!("'{text}' is not a position; write two numbers of pixels, as in 10,20"));
    };
    if x < 0 || y < 0 {
        return Err("the top picture must not start left of or above the base".to_owned());
    }
    match (u32::try_from(x), u32::try_from(y)) {
        (Ok(x), Ok(y)) => Ok((x, y)),
        _ => Err(format!("{text} is beyond any picture; write the position in pixels of the base")),
    }
}

/// Converts both pictures to the same kind of pixel.
pub(crate) fn convert_alike(base: Picture, top: Picture) -> Result<(Picture, Picture), CommandError> {
    if base.kind == top.kind && matches!(base.kind, Kind::Grey8 | Kind::Grey16) {
        return Ok((base, top));
    }
    let names = (base.kind.name(), top.kind.name());
    let (Some(mut base), Some(mut top)) = (base.in_colours(), top.in_colours()) else {
        return Err(
            format!("{} and {} cannot be combined; convert one picture first", names.0, names.1).into()
        );
    };
    if base.kind != top.kind {
        (base.kind, top.kind) = (Kind::Rgba8, Kind::Rgba8);
    }
    Ok((base, top))
}

/// Runs `memferry overlay`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let (base, top) = convert_alike(Picture::load(&arguments.base)?, Picture::load(&arguments.top)?)?;
    let mut mover = Mover::open(arguments.socket.as_deref())?;
    let below = Canvas::of(mover.client(), &base)?;
    let above = Canvas::of(mover.client(), &top)?;
    let transfer = below.overlaid(&above, arguments.at, Some(arguments.key))?;
    let cpu = thread_cpu();
    let started = Instant::now();
    let completion = mover.run(transfer)?;
    let elapsed = started.elapsed();
    let cpu_time = thread_cpu().saturating_sub(cpu);
    let result = below.picture()?;
    result.save(&arguments.output)?;
    let visible = completion.bytes_done;
    if visible < above.bytes() {
        say!(
            "the top is cut off at the edge: {} of its {} are visible",
            Bytes(visible),
            Bytes(above.bytes())
        );
    }
    say!(
        "{} ({} x {} pixels, {}): {} processed in {}, {} of this thread's CPU time",
        arguments.output.display(),
        result.width,
        result.height,
        result.kind.name(),
        Bytes(visible),
        Time(elapsed),
        Time(cpu_time)
    );
    say!("engine: {}", mover.describe(completion.engine));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Colours;

    #[test]
    fn positions_are_two_numbers() {
        assert_eq!(position("3,4"), Ok((3, 4)));
        assert!(position("-1,4").unwrap_err().contains("left of or above"));
        assert!(position("3,99999999999").unwrap_err().contains("beyond any picture"));
        for text in ["", "3", "3,", "a,b", "1,2,3"] {
            assert!(position(text).unwrap_err().contains("two numbers"), "{text}");
        }
    }

    #[test]
    fn pictures_get_a_common_kind() {
        let picture = |kind: Kind| Picture {
            width: 1,
            height: 1,
            kind,
            pixels: vec![9; kind.pixel().bytes() as usize],
            colours: Colours::default(),
        };
        let kinds = |base, top| {
            convert_alike(picture(base), picture(top)).map(|(base, top)| (base.kind, top.kind)).ok()
        };
        assert_eq!(kinds(Kind::Grey16, Kind::Grey16), Some((Kind::Grey16, Kind::Grey16)));
        assert_eq!(kinds(Kind::Grey8, Kind::Rgb8), Some((Kind::Rgb8, Kind::Rgb8)));
        assert_eq!(kinds(Kind::Rgb8, Kind::GreyAlpha8), Some((Kind::Rgba8, Kind::Rgba8)));
        assert_eq!(kinds(Kind::Grey16, Kind::Rgb8), None);
    }
}
