//! `memferry overlay`: one PNG picture laid over another by one 2-D transfer with a transparent colour.
//!
//! Pixels are replaced, never blended: a top pixel that is not of the key's colour takes the base pixel's place with its
//! own alpha. What would stick out at the right or the bottom is cut off.

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
    /// PNG file below.
    base: PathBuf,
    /// PNG file above.
    top: PathBuf,
    /// PNG file to write; one that is there is overwritten.
    output: PathBuf,
    /// Where the top's upper left pixel goes, counted from the base's.
    #[arg(long, value_name = "X,Y", value_parser = place, allow_hyphen_values = true)]
    at: (u32, u32),
    /// Colour of the top that is left out, as RRGGBB; its alpha does not matter.
    #[arg(long, value_name = "RRGGBB", value_parser = Key::parse)]
    key: Key,
    /// Socket of a service to go through; without one, the engine is embedded.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

fn place(text: &str) -> Result<(u32, u32), String> {
    let number = |part: &str| part.trim().parse::<i64>();
    let Some((Ok(x), Ok(y))) = text.split_once(',').map(|(x, y)| (number(x), number(y))) else {
        return Err(format!("'{text}' is no place; write two numbers of pixels, as in 10,20"));
    };
    if x < 0 || y < 0 {
        return Err("the top may not begin left of or above the base".to_owned());
    }
    match (u32::try_from(x), u32::try_from(y)) {
        (Ok(x), Ok(y)) => Ok((x, y)),
        _ => Err(format!("{text} is beyond any picture")),
    }
}

/// Makes both pictures of one kind of pixel.
pub(crate) fn alike(base: Picture, top: Picture) -> Result<(Picture, Picture), CommandError> {
    if base.kind == top.kind && matches!(base.kind, Kind::Grey8 | Kind::Grey16) {
        return Ok((base, top));
    }
    let names = (base.kind.name(), top.kind.name());
    let (Some(mut base), Some(mut top)) = (base.in_colours(), top.in_colours()) else {
        return Err(
            format!("{} and {} do not go together; convert one picture first", names.0, names.1).into()
        );
    };
    if base.kind != top.kind {
        (base.kind, top.kind) = (Kind::Rgba8, Kind::Rgba8);
    }
    Ok((base, top))
}

/// Lays one picture over another.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let (base, top) = alike(Picture::load(&arguments.base)?, Picture::load(&arguments.top)?)?;
    let mut mover = Mover::open(arguments.socket.as_deref())?;
    let below = Canvas::of(mover.client(), &base)?;
    let above = Canvas::of(mover.client(), &top)?;
    let transfer = below.overlaid(&above, arguments.at, Some(arguments.key))?;
    let cpu = thread_cpu();
    let started = Instant::now();
    let completion = mover.carry_out(transfer)?;
    let took = started.elapsed();
    let spent = thread_cpu().saturating_sub(cpu);
    let result = below.picture()?;
    result.save(&arguments.output)?;
    let seen = completion.bytes_done;
    if seen < above.bytes() {
        say!("the top is cut off at the edge: {} of its {} are seen", Bytes(seen), Bytes(above.bytes()));
    }
    say!(
        "{} ({} x {} pixels, {}): {} visited in {}, {} of this thread's CPU time",
        arguments.output.display(),
        result.width,
        result.height,
        result.kind.name(),
        Bytes(seen),
        Time(took),
        Time(spent)
    );
    say!("engine: {}", mover.describe(completion.engine));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Colours;

    #[test]
    fn places_are_two_numbers_within_a_picture() {
        assert_eq!(place("3,4"), Ok((3, 4)));
        assert!(place("-1,4").unwrap_err().contains("left of or above"));
        assert!(place("3,99999999999").unwrap_err().contains("beyond any picture"));
        for text in ["", "3", "3,", "a,b", "1,2,3"] {
            assert!(place(text).unwrap_err().contains("two numbers"), "{text}");
        }
    }

    #[test]
    fn pictures_are_made_alike_or_refused() {
        let picture = |kind: Kind| Picture {
            width: 1,
            height: 1,
            kind,
            pixels: vec![9; kind.pixel().bytes() as usize],
            colours: Colours::default(),
        };
        let kinds =
            |base, top| alike(picture(base), picture(top)).map(|(base, top)| (base.kind, top.kind)).ok();
        assert_eq!(kinds(Kind::Grey16, Kind::Grey16), Some((Kind::Grey16, Kind::Grey16)));
        assert_eq!(kinds(Kind::Grey8, Kind::Rgb8), Some((Kind::Rgb8, Kind::Rgb8)));
        assert_eq!(kinds(Kind::Rgb8, Kind::GreyAlpha8), Some((Kind::Rgba8, Kind::Rgba8)));
        assert_eq!(kinds(Kind::Grey16, Kind::Rgb8), None);
    }
}
