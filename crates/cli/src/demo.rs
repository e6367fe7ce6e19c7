//! `memferry demo`: a service and two clients, each as its own user if possible, in five steps.
//!
//! ```text
//! demo ─ starts ─► service, client A, client B
//!      ─ Order ──► A, B ─ Report ─► checked here, printed
//! 1 a file from A to B   2 pictures   3 refusals   4 revocation   5 status and the end
//! ```
//!
//! `--engines` tells another story, about [engine processes](far), and `--nodes 2` one about [two nodes](nodes). A step with an unexpected
//! result ends the demo with an error. Processes and files are removed in any case. The demo checks the clients' reports against its own
//! computation where possible.

mod client;
mod expected;
mod far;
mod lines;
mod nodes;
mod stage;
mod story;

use std::io::{Cursor, Read};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

pub(crate) use client::{ClientArguments, run as run_client};

use crate::output::say;
use crate::picture::Picture;
use crate::{CommandError, files, overlay};
use stage::Stage;
use story::Story;

/// Bytes of the file that the demo moves at most.
const MAX_BYTES: u64 = 64 << 20;

/// The default picture: a ferry at sunset.
const FERRY: &[u8] = include_bytes!("demo/ferry.png");
/// A round badge to lay over the picture, on a background of the colour [`KEY`].
const BADGE: &[u8] = include_bytes!("demo/badge.png");
/// The colour of the badge that is transparent.
const KEY: [u8; 3] = [255, 0, 255];

/// Arguments of `demo`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// File that A shares with B, up to its first 64 MiB; by default this program.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// PNG picture to turn, with 8 bits per channel; by default a ferry at sunset.
    #[arg(long, value_name = "PNG")]
    image: Option<PathBuf>,
    /// Directory for the resulting picture; it is created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Show engine processes and their memory instead, with the programs of this directory (`./x demo --engines` builds them): a range of an
    /// accelerator's memory is granted, copied, revoked in mid-flight and lost with its engine.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["image", "out"])]
    engines: Option<PathBuf>,
    /// Show two nodes instead (`./x demo --nodes 2` builds what it needs): a file goes from one to the other by a grant that is checked at
    /// its owner's, with a refusal, a link that is killed, and a revocation.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..=2), requires = "link", conflicts_with_all = ["image", "out", "engines"])]
    nodes: Option<u32>,
    /// The program memferry-link, for --nodes.
    #[arg(long, value_name = "PROGRAM", requires = "nodes")]
    link: Option<PathBuf>,
}

/// The inputs and the output of the demo.
struct Inputs {
    file: Vec<u8>,
    file_name: String,
    picture: Picture,
    badge: Picture,
    output: PathBuf,
}

/// The file to share, and what to call it.
fn file(arguments: &Arguments) -> Result<(Vec<u8>, String), CommandError> {
    let (path, file_name) = match &arguments.file {
        Some(path) => (path.clone(), path.display().to_string()),
        None => (PathBuf::from("/proc/self/exe"), "this program's own file".to_owned()),
    };
    let mut file = Vec::new();
    files::open_source(&path)?
        .0
        .take(MAX_BYTES)
        .read_to_end(&mut file)
        .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    if file.is_empty() {
        return Err(format!("{} is empty; choose a file with contents", path.display()).into());
    }
    Ok((file, file_name))
}

fn inputs(arguments: &Arguments) -> Result<Inputs, CommandError> {
    let (file, file_name) = file(arguments)?;
    let picture = match &arguments.image {
        Some(path) => Picture::load(path)?,
        None => Picture::decode(Cursor::new(FERRY))?,
    };
    let (picture, badge) = overlay::convert_alike(picture, Picture::decode(Cursor::new(BADGE))?)?;
    let output = arguments.out.join("memferry-demo.png");
    std::fs::create_dir_all(&arguments.out)
        .map_err(|error| format!("cannot create the directory {}: {error}", arguments.out.display()))?;
    Ok(Inputs { file, file_name, picture, badge, output })
}

/// Runs the demo.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    let started = Instant::now();
    tell(arguments)?;
    say!("\nAll five steps succeeded, in {:.1} s.", started.elapsed().as_secs_f64());
    Ok(())
}

fn tell(arguments: &Arguments) -> Result<(), CommandError> {
    if let Some(programs) = &arguments.engines {
        let (file, _) = file(arguments)?;
        let stage = Stage::build()?;
        return far::Story::open(&stage, &file, programs)?.tell();
    }
    if let (Some(_), Some(link)) = (arguments.nodes, &arguments.link) {
        let (file, _) = file(arguments)?;
        let stage = Stage::build()?;
        return nodes::tell(&stage, file, link);
    }
    let inputs = inputs(arguments)?;
    let stage = Stage::build()?;
    let mut story = Story::open(&stage, &inputs)?;
    story.file()?;
    story.pictures()?;
    story.refusals()?;
    story.revocation()?;
    story.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_badge_is_a_circle_on_the_key_colour() {
        let badge = Picture::decode(Cursor::new(BADGE)).unwrap();
        let keyed = badge.pixels.chunks_exact(4).filter(|pixel| pixel[..3] == KEY).count() as f32;
        let outside = 256.0 * 256.0 - std::f32::consts::PI * 120.0 * 120.0;
        assert!((keyed / outside - 1.0).abs() < 0.02, "{keyed} of {outside}");
        assert_eq!(badge.pixels[..3], KEY);
    }

    #[test]
    fn the_ferry_has_1024_by_768_pixels() {
        let ferry = Picture::decode(Cursor::new(FERRY)).unwrap();
        assert_eq!((ferry.width, ferry.height, ferry.pixels.len()), (1024, 768, 1024 * 768 * 4));
    }
}
