//! Counterexamples of initiation protocols, laid out as in TR 182: a column for each process, accesses numbered.
//!
//! ```text
//! LISTED: protocol, scene, statement of the paper ──► exploration ──► shortest breach ──► story ──► columns
//! ```
//!
//! Each is found again for every report, by the exploration behind the claims. `./x lab initiation` shows more of them.

use maud::{Markup, html};

use super::pictures::inlined;
use crate::markatos::diagram;
use crate::markatos::explore::Bounds;
use crate::markatos::protocols::find;
use crate::markatos::scenes;
use crate::markatos::story::Story;
use crate::markatos::world::{Breach, Scene};

/// A counterexample of the report.
struct Listed {
    protocol: &'static str,
    scene: fn() -> Scene,
    /// The breach to show; the first one if absent.
    breach: Option<fn(&Breach) -> bool>,
    claim: &'static str,
    /// The statement of the paper that it answers.
    to: &'static str,
    /// Arguments of `./x lab initiation` that show it.
    arguments: &'static str,
}

const fn listed(
    protocol: &'static str,
    scene: fn() -> Scene,
    claim: &'static str,
    to: &'static str,
    arguments: &'static str,
) -> Listed {
    Listed { protocol, scene, breach: None, claim, to, arguments }
}

const LISTED: &[Listed] = &[
    Listed {
        breach: Some(
            |breach| matches!(breach, Breach::NobodyAsked(transfer) if (transfer.source.0, transfer.destination.0) == (2, 1)),
        ),
        ..listed(
            "repeated-3",
            scenes::attacked,
            "markatos-figure-5",
            "Figure 5: three accesses. The attacker's C arrives in the victim's B. The shortest way is one access shorter than \
             the paper's.",
            "--attack",
        )
    },
    Listed {
        breach: Some(|breach| *breach == Breach::BelievedRejected(0)),
        ..listed(
            "repeated-4",
            scenes::readable_source,
            "markatos-figure-6",
            "Figure 6: four accesses, and an attacker who may read the source. The transfer starts, but its owner sees a \
                         rejection.",
            "--attack",
        )
    },
    listed(
        "repeated-5",
        scenes::shared_destination,
        "markatos-five-access",
        "Footnote 8: five accesses, and two honest processes that share the destination without a lock.",
        "",
    ),
    listed(
        "repeated-5",
        scenes::readable_destination,
        "markatos-five-access",
        "Beyond the paper: five accesses already fail if the destination is shared for reading.",
        "--attack",
    ),
    listed(
        "repeated-5",
        scenes::without_clamp,
        "markatos-size",
        "Sizes: an engine that does not stop at the end of a page.",
        "--attack",
    ),
    listed(
        "repeated-5-no-barriers",
        scenes::buffered,
        "markatos-barriers",
        "Footnote 7: five accesses without memory barriers, on a CPU with a write buffer.",
        "--processes 1",
    ),
    listed(
        "repeated-5-aliased",
        scenes::attacked,
        "markatos-state-machine",
        "Section 4.1: pages that are equal in the twelve compared bits.",
        "--attack",
    ),
    listed(
        "shrimp-2-unmodified",
        scenes::attacked,
        "markatos-shrimp-2",
        "Section 2.5: the second SHRIMP method on a kernel whose context switch does not invalidate.",
        "--attack",
    ),
    listed(
        "flash-unmodified",
        scenes::attacked,
        "markatos-flash",
        "Section 2.6: FLASH's method on a kernel whose context switch does not announce the running process.",
        "--attack",
    ),
    listed(
        "pal-unmasked",
        scenes::attacked,
        "markatos-pal",
        "Section 2.7: PAL code that can be interrupted between its two accesses.",
        "--attack",
    ),
    listed(
        "keys-unchecked",
        scenes::attacked,
        "markatos-keys",
        "Section 3.1: register contexts that open without a comparison of the key.",
        "--attack",
    ),
    listed(
        "extended-no-ids",
        scenes::attacked,
        "markatos-extended-shadow",
        "Section 3.2: shadow addresses without the process's id.",
        "--attack",
    ),
    listed(
        "pal",
        || scenes::on_two_cpus(scenes::attacked()),
        "markatos-two-cpus",
        "Ours: PAL code as in the paper, with two CPUs that issue at the same time.",
        "--attack --two-cpus",
    ),
];

impl Listed {
    /// The story of the wanted breach, or of the first one.
    fn story(&self) -> Option<Story> {
        let entry = find(self.protocol)?;
        let scene = (self.scene)();
        let bounds = if self.breach.is_some() { Bounds::ALL } else { Bounds::FIRST_BREACH };
        let found = entry.protocol.explore(&scene, bounds);
        let (_, moves) = found.shortest(self.breach.unwrap_or(|_| true))?;
        Some(entry.protocol.story(&scene, moves))
    }
}

/// The counterexamples of the claims selected by `is_shown`.
pub(super) fn counterexamples_of(is_shown: impl Fn(&str) -> bool) -> Markup {
    let all: Vec<&Listed> = LISTED.iter().filter(|listed| is_shown(listed.claim)).collect();
    html! {
        @if !all.is_empty() {
            h3 { "Counterexamples" }
            p {
                                "The shortest interleavings that break a protocol, found by breadth-first search. Each process has a column; \
                                 accesses are in order, as in the paper."
            }
            @for listed in all { (counterexample(listed)) }
        }
        @if is_shown("markatos-state-machine") { (state_machine()) }
    }
}

fn counterexample(listed: &Listed) -> Markup {
    html! {
        section.counterexample {
            h4 { code { (listed.protocol) } }
            p { (listed.to) " Decides " a href=(format!("#claim-{}", listed.claim)) { (listed.claim) } "." }
            @match listed.story() {
                Some(story) => (laid_out(&story)),
                                None => p.note { "No interleaving was found that breaks it." },
            }
            p.again { "Reproduce: " code { (format!("./x lab initiation {} {}", listed.protocol, listed.arguments).trim_end()) } }
        }
    }
}

/// A story, laid out as in the paper.
fn laid_out(story: &Story) -> Markup {
    let processes = story.heads.len();
    html! {
        div.wide tabindex="0" role="region" aria-label="Interleaving" { table.story {
                        thead { tr { th {} @for head in &story.heads { th scope="col" { (head) } } th scope="col" { "result" } } }
            tbody { @for (number, line) in (1..).zip(&story.lines) { tr {
                th scope="row" { (number) }
                @match line.who {
                    Some(who) => @for column in 0..processes {
                        td { @if column == usize::from(who) { (line.text) } }
                    },
                    None => td colspan=(processes) { em { (line.text) } },
                }
                td { @if !line.note.is_empty() { "\u{2190} " (line.note) } }
            } } }
        } }
        @if let Some(breach) = story.breach { p { strong { (breach.to_string()) } } }
    }
}

/// The state diagram of figure 8.
fn state_machine() -> Markup {
    let title = "State machine of repeated passing, drawn from the model";
    let summary = "States S0 to S4 on a circle. The label of an arc lists its accesses and the values that loads return.";
    html! {
        figure.figure id="state-machine" {
            figcaption {
                h4 { "The prototype's state machine" }
                p.place { "Figure 8; decides " a href="#claim-markatos-state-machine" { "markatos-state-machine" } "." }
                                p { "The paper's figure has five states, the accesses between them, and the status that each load reads. This one is \
                                     drawn from the transition function that the exploration runs." }
            }
            div.wide { div.diagram { (inlined(&diagram::svg(), (720, 720), title, summary)) } }
            p.again { "Reproduce: " code { "./x lab initiation --diagram FILE" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counterexample_ends_in_a_breach() {
        for listed in LISTED {
            let story = listed.story().unwrap_or_else(|| panic!("{} does not break", listed.protocol));
            assert!(story.breach.is_some() && !story.lines.is_empty(), "{}", listed.protocol);
        }
    }
}
