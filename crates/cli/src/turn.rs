//! `memferry rotate` and `memferry flip`: turn a PNG picture with one 2-D transfer.
//!
//! The engine reads the source with strides and writes rows. This thread decodes, waits and encodes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{ArgGroup, Args};
use memferry::Turn;

use crate::CommandError;
use crate::canvas::Canvas;
use crate::measure::{Bytes, Time, thread_cpu};
use crate::mover::Mover;
use crate::output::say;
use crate::picture::Picture;

/// Arguments of `rotate`.
#[derive(Args)]
pub(crate) struct RotateArguments {
    /// PNG file to read.
    input: PathBuf,
    /// PNG file to write; an existing file is overwritten.
    output: PathBuf,
    /// Degrees clockwise: 90, 180 or 270.
    #[arg(long, value_name = "DEGREES", value_parser = quarters, allow_negative_numbers = true)]
    by: Turn,
    /// Socket of the service to use; by default the engine is embedded.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Arguments of `flip`.
#[derive(Args)]
#[command(group = ArgGroup::new("direction").required(true))]
pub(crate) struct FlipArguments {
    /// PNG file to read.
    input: PathBuf,
    /// PNG file to write; an existing file is overwritten.
    output: PathBuf,
    /// Swap left and right.
    #[arg(long, group = "direction")]
    horizontal: bool,
    /// Swap top and bottom.
    #[arg(long, group = "direction")]
    vertical: bool,
    /// Socket of the service to use; by default the engine is embedded.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

fn quarters(text: &str) -> Result<Turn, String> {
    match text {
        "90" => Ok(Turn::Rotate90),
        "180" => Ok(Turn::Rotate180),
        "270" => Ok(Turn::Rotate270),
        _ => Err(format!("cannot rotate by '{text}' degrees; choose 90, 180 or 270")),
    }
}

/// Runs `memferry rotate`.
pub(crate) fn rotate(arguments: &RotateArguments) -> Result<(), CommandError> {
    turn(&arguments.input, &arguments.output, arguments.by, arguments.socket.as_deref())
}

/// Runs `memferry flip`.
pub(crate) fn flip(arguments: &FlipArguments) -> Result<(), CommandError> {
    let direction = if arguments.horizontal { Turn::FlipHorizontal } else { Turn::FlipVertical };
    turn(&arguments.input, &arguments.output, direction, arguments.socket.as_deref())
}

fn turn(input: &Path, output: &Path, turn: Turn, socket: Option<&Path>) -> Result<(), CommandError> {
    let picture = Picture::load(input)?;
    let mut mover = Mover::open(socket)?;
    let source = Canvas::of(mover.client(), &picture)?;
    let (turned, transfer) = source.turned(mover.client(), turn)?;
    let cpu = thread_cpu();
    let started = Instant::now();
    let completion = mover.run(transfer)?;
    let elapsed = started.elapsed();
    let cpu_time = thread_cpu().saturating_sub(cpu);
    let turned = turned.picture()?;
    turned.save(output)?;
    say!(
        "{} ({} x {} pixels, {}): {} moved in {}, {} of this thread's CPU time",
        output.display(),
        turned.width,
        turned.height,
        turned.kind.name(),
        Bytes(completion.bytes_done),
        Time(elapsed),
        Time(cpu_time)
    );
    say!("engine: {}", mover.describe(completion.engine));
    Ok(())
}
