//! An interleaving in the layout of the paper: a column for each process, numbered accesses, and the engine's reactions.
//!
//! ```text
//! LEGITIMATE PROCESS              MALICIOUS PROCESS
//! 1:STORE 2 TO shadow(B)
//! 2:                              LOAD 1 FROM shadow(A)   <- DMA is started: A to B, 2 units
//! ```
//!
//! The moves are applied to the machine again, so a story shows what the machine does.

use std::fmt;

use super::machine::{Access, Kind, Meaning, Protocol, Word};
use super::world::{Breach, Happening, Machine, Move, Role, State, Way};

/// Width of a column in characters.
const WIDTH: usize = 34;

/// One line: an access or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The process whose column it is in; `None` for the engine's own steps.
    pub who: Option<u8>,
    pub text: String,
    pub note: String,
}

/// The lines of a story, with headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// A heading for each process.
    pub heads: Vec<String>,
    pub lines: Vec<Line>,
    /// The breach at its end.
    pub breach: Option<Breach>,
}

/// Maximum number of moves shown after a breach.
const AFTERWARDS: usize = 24;

/// Lays moves out as a story. After a transfer that an honest process did not ask for, the rest of its initiation follows:
/// too late to prevent anything.
pub fn lay_out<P: Protocol>(machine: &Machine<'_, P>, moves: &[Move]) -> Story {
    let mut state = machine.reset();
    let mut lines = Vec::new();
    let mut breach = None;
    for chosen in moves {
        let (after, happening) = machine.apply(&state, *chosen);
        lines.extend(line(*chosen, &happening));
        breach = happening.breach.or(breach);
        state = after;
    }
    if matches!(breach, Some(Breach::NobodyAsked(_) | Breach::BeyondRights(_))) {
        let mut honest = machine.everyone().filter(|who| machine.is_honest(*who));
        if let Some(who) = honest.find(|who| machine.is_initiating(&state, *who)) {
            lines.extend(rest_of_initiation(machine, state, who));
        }
    }
    Story { heads: heads(machine), lines, breach }
}

/// The lines of a process until it reaches a conclusion, with no other process running.
fn rest_of_initiation<P: Protocol>(
    machine: &Machine<'_, P>,
    mut state: State<P::Engine>,
    who: u8,
) -> Vec<Line> {
    let mut lines = Vec::new();
    for _ in 0..AFTERWARDS {
        let own = |chosen: &Move| match chosen {
            Move::Switch { to } => *to == who,
            Move::Step { who: by, .. } => *by == who,
            Move::Drain { .. } | Move::Idle(_) => true,
        };
        let Some(chosen) = machine.moves(&state).into_iter().find(own) else { break };
        let (after, happening) = machine.apply(&state, chosen);
        lines.extend(line(chosen, &happening));
        state = after;
        if happening.meaning.is_some() || happening.breach.is_some() {
            break;
        }
    }
    lines
}

fn heads<P: Protocol>(machine: &Machine<'_, P>) -> Vec<String> {
    let honest = machine.everyone().filter(|who| machine.is_honest(*who)).count();
    let head = |(number, process): (usize, &super::world::Process)| match process.role {
        Role::Honest(_) if honest == 1 => "LEGITIMATE PROCESS".to_owned(),
        Role::Honest(_) => format!("PROCESS {}", number + 1),
        Role::Malicious => "MALICIOUS PROCESS".to_owned(),
    };
    machine.scene.processes.iter().enumerate().map(head).collect()
}

/// A move as a line; a switch has none, since the columns show it.
fn line(chosen: Move, happening: &Happening) -> Option<Line> {
    let notes = [
        happening.starts.map(|transfer| format!("DMA is started: {transfer}")),
        happening.meaning.and_then(|meaning| match meaning {
            Meaning::Started => Some("takes it as started".to_owned()),
            Meaning::Rejected => Some("takes it as rejected".to_owned()),
            Meaning::Continue | Meaning::Again => None,
        }),
    ];
    let note = notes.into_iter().flatten().collect::<Vec<_>>().join("; ");
    let (who, text) = match chosen {
        Move::Switch { .. } => return None,
        Move::Step { who, way, .. } => {
            let text = happening.access.map_or("MB".to_owned(), |access| access_text(access, happening.word));
            let how = match way {
                Way::Direct => "",
                Way::Buffered => " (into the write buffer)",
                Way::Merged(_) => " (merged in the write buffer)",
                Way::Serviced(_) => " (answered by the write buffer)",
            };
            (Some(who), text + how)
        }
        Move::Drain { .. } => {
            let access = happening.access.map_or(String::new(), |access| access_text(access, None));
            (None, format!("the write buffer drains: {access}"))
        }
        Move::Idle(_) => (None, happening.says.to_owned()),
    };
    Some(Line { who, text, note })
}

/// An access in the notation of the paper, with the word that it read.
fn access_text(access: Access, word: Option<Word>) -> String {
    let at = access.at;
    let read = word.map_or("status".to_owned(), |word| format!("{}", word as i16));
    match access.kind {
        Kind::Load => format!("LOAD {read} FROM {at}"),
        Kind::Store => format!("STORE {} TO {at}", access.data),
        Kind::Exchange => format!("EXCHANGE {} FOR {read} AT {at}", access.data),
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads: Vec<String> = self.heads.iter().map(|head| format!("{head:<WIDTH$}")).collect();
        writeln!(f, "    {}", heads.concat().trim_end())?;
        let all = WIDTH * self.heads.len();
        for (number, line) in (1..).zip(&self.lines) {
            let indent = line.who.map_or(0, |who| usize::from(who) * WIDTH);
            let text = match line.who {
                Some(_) => line.text.clone(),
                None => format!("-- {} --", line.text),
            };
            let body = format!("{:indent$}{text}", "");
            let note = if line.note.is_empty() { String::new() } else { format!(" <- {}", line.note) };
            writeln!(f, "{}", format!("{number:>2}: {body:<all$}{note}").trim_end())?;
        }
        match self.breach {
            Some(breach) => writeln!(f, "    {breach}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Breach::NobodyAsked(transfer) => write!(f, "nobody asked for this transfer: {transfer}"),
            Breach::BeyondRights(transfer) => {
                write!(f, "the transfer touches pages beyond the rights of its issuer: {transfer}")
            }
            Breach::Twice(transfer) => write!(f, "one initiation started its transfer twice: {transfer}"),
            Breach::BelievedStarted(who) => {
                write!(f, "process {} takes its transfer as started, and it was not", who + 1)
            }
            Breach::BelievedRejected(who) => {
                write!(f, "process {} takes its transfer as rejected, and it was started", who + 1)
            }
        }
    }
}
