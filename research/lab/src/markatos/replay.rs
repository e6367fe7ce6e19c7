//! The command `memferry-lab initiation`: shows the effect of a protocol, access by access.
//!
//! ```text
//! PROTOCOL [--processes N] [--attack] ──► scenes ──► the shortest breach, as a story, or that there is none
//! --diagram FILE ──► figure 8 as SVG
//! ./x lab --deep ──► larger scenes, all states of them or up to the depth that is printed
//! ```
//!
//! The caller prints the story and may wait after each line (`--step`).

use std::fmt::Write as _;

use super::explore::{Bounds, Exploration};
use super::protocols::{CATALOGUE, Entry, find};
use super::scenes;
use super::story::Story;
use super::world::{Move, Scene};

/// The scenes to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub protocol: String,
    /// 1 (with a write buffer), 2 or 3.
    pub processes: u8,
    /// Whether one of several processes is malicious.
    pub attack: bool,
    pub cpus: u8,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    #[error("there is no protocol `{name}`; choose one of: {known}")]
    Unknown { name: String, known: String },
    /// An attack without a second process.
    #[error("one process has no victim: give --processes 2 or 3 with --attack")]
    Alone,
    /// A number of processes that is not supported.
    #[error("{processes} processes cannot be explored: give 1, 2 or 3")]
    Processes { processes: u8 },
}

/// A line on the protocol, then the scenes with their stories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The protocol in a line.
    pub head: String,
    /// Scenes with their findings.
    pub scenes: Vec<(String, Option<Story>)>,
}

/// Explores the scenes of a request.
///
/// # Errors
/// [`ReplayError`].
pub fn replay(request: &Request) -> Result<Shown, ReplayError> {
    let entry = find(&request.protocol).ok_or_else(|| ReplayError::Unknown {
        name: request.protocol.clone(),
        known: CATALOGUE.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
    })?;
    let scenes = match (request.processes, request.attack) {
        (1, false) => vec![scenes::buffered()],
        (1, true) => return Err(ReplayError::Alone),
        (2, false) => vec![scenes::two_honest(), scenes::shared_destination()],
        (2, true) => {
            vec![
                scenes::attacked(),
                scenes::readable_source(),
                scenes::readable_destination(),
                scenes::without_clamp(),
            ]
        }
        (3, false) => vec![scenes::three_honest()],
        (3, true) => vec![scenes::three_attacked()],
        (processes, _) => return Err(ReplayError::Processes { processes }),
    };
    let head = match entry.lacks {
        Some(lacks) => format!("{}: without {lacks}", entry.name),
        None => format!("{}: {}", entry.name, entry.source),
    };
    let shown = scenes.into_iter().map(|scene| show(entry, Scene { cpus: request.cpus, ..scene }));
    Ok(Shown { head, scenes: shown.collect() })
}

/// A scene's line, and the story of its shortest breach.
fn show(entry: &Entry, scene: Scene) -> (String, Option<Story>) {
    let bounds = Bounds { states: 1_000_000, ..Bounds::ALL };
    let found = entry.protocol.explore(&scene, bounds);
    let mut line = format!("{}, {} CPU{}: ", scene.name, scene.cpus, if scene.cpus == 1 { "" } else { "s" });
    let counted = counted(&found);
    let _ = match found.shortest(|_| true) {
        Some((_, moves)) => write!(line, "broken after {} moves ({counted})", moves.len()),
        None if found.complete => write!(line, "safe ({counted})"),
        None => write!(line, "nothing found so far ({counted})"),
    };
    let story = found.shortest(|_| true).map(|(_, moves): (_, &[Move])| entry.protocol.story(&scene, moves));
    (line, story)
}

fn counted(found: &Exploration) -> String {
    let all = if found.complete { "all" } else { "not all" };
    format!("{} states, {} moves, depth {}; {all} visited", found.states, found.moves, found.depth)
}

/// One line of the larger exploration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deep {
    /// Protocol, scene and counts.
    pub line: String,
    /// Whether a protocol broke here that holds in the small scenes.
    pub broke: bool,
}

/// Explores a protocol in scenes too large for every run: three processes, two of which copy there and back, on one CPU and
/// on two. With more than `most` states, all states up to some depth are visited.
pub fn deep(entry: &Entry, most: usize) -> Vec<Deep> {
    let holds = |scene: &Scene| entry.protocol.explore(scene, Bounds::FIRST_BREACH).breaches.is_empty();
    let larger = [scenes::three_attacked(), scenes::there_and_back(scenes::three_honest())];
    let mut lines = Vec::new();
    for (scene, small) in larger.into_iter().zip([scenes::attacked(), scenes::two_honest()]) {
        for cpus in [1, 2] {
            let scene = Scene { cpus, ..scene.clone() };
            let small = Scene { cpus, ..small.clone() };
            let found = entry.protocol.explore(&scene, Bounds { states: most, ..Bounds::ALL });
            let broke = !found.breaches.is_empty() && holds(&small);
            let how = if found.breaches.is_empty() { "nothing breaks" } else { "broken" };
            let name = entry.name;
            let line = format!("{name:<26} {}, {cpus} CPU: {how} ({})", scene.name, counted(&found));
            lines.push(Deep { line, broke });
        }
    }
    lines
}
