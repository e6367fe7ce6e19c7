//! What the report adds to claims and figures: how they move with the parameters, and every parameter with its source.
//!
//! ```text
//! Sensitivity ──► claim: figures × parameters, in percent      Parameters ──► value, unit, source, mechanism
//! ```
//!
//! What was not run is said to be not run.

use maud::{Markup, html};

use super::page::Page;
use super::words::rounded;
use crate::sensitivity::Change;

/// Changes below this fraction are left out of the page; the CSV has them.
const SEEN: f64 = 0.005;

/// The table, by claim.
pub(super) fn sensitivity(page: &Page<'_>) -> Markup {
    let (changes, missing) = (&page.sensitivity.changes, &page.sensitivity.missing);
    let mut claims: Vec<&str> = changes.iter().map(|change| change.claim.as_str()).collect();
    claims.dedup();
    html! {
        section id="sensitivity" {
            h2 { "Sensitivity" }
            p {
                "How each figure of a predicted claim moves when one time of the model is 20 % lower or higher, all else as it \
                 was, with reduced sweeps. Changes below 0.5 % are left out."
            }
            @if changes.is_empty() { p.note { strong { "Not run." } } }
            @else if !missing.is_empty() {
                p.note { "Not complete: " (missing.len()) " parameters were not run (" (missing.join(", ")) ")." }
            }
            @if changes.is_empty() || !missing.is_empty() {
                p { "It takes an hour or more, and goes on where it was broken off: " code { "./x lab --sensitivity" } "." }
            }
            @for claim in claims { (moved(claim, changes)) }
        }
    }
}

fn moved(claim: &str, changes: &[Change]) -> Markup {
    let own = || changes.iter().filter(|change| change.claim == claim);
    let is_seen =
        |change: &&Change| change.lower_higher.iter().any(|part| part.is_nan() || part.abs() >= SEEN);
    let seen: Vec<&Change> = own().filter(is_seen).collect();
    html! {
        details {
            summary { a href=(format!("#claim-{claim}")) { (claim) } ": " (seen.len()) " of " (own().count()) " changes are seen" }
            div.wide tabindex="0" role="region" aria-label=(format!("Sensitivity of {claim}")) { table {
                thead { tr { @for head in ["figure", "base", "parameter", "at -20 %", "at +20 %"] { th scope="col" { (head) } } } }
                tbody { @for change in seen { tr {
                    th scope="row" { @if change.figure.is_empty() { "value" } @else { (change.figure) } }
                    td { (change.base) }
                    td { (change.parameter) }
                    @for part in change.lower_higher { td { (percent(part)) } }
                } } }
            } }
        }
    }
}

fn percent(fraction: f64) -> String {
    if fraction.is_nan() { "gone".to_owned() } else { format!("{:+} %", rounded(fraction * 100.0)) }
}

/// Every parameter of every model.
pub(super) fn parameters(page: &Page<'_>) -> Markup {
    html! {
        section id="parameters" {
            h2 { "Parameters" }
            p {
                "All that the models rest on, in one file for each paper; no experiment has a parameter of its own. What is \
                 \u{201c}assumed\u{201d} is neither from a document nor fitted."
            }
            @for paper in page.papers {
                details {
                    summary { (paper.parameters.list().len()) " parameters: " (paper.title) }
                    div.wide tabindex="0" role="region" aria-label=(format!("Parameters of {}", paper.name)) { table {
                        thead { tr { @for head in ["name", "value", "unit", "what it stands for", "source"] {
                            th scope="col" { (head) }
                        } } }
                        tbody { @for parameter in paper.parameters.list() { tr {
                            th scope="row" { (parameter.name) }
                            td { (parameter.value) }
                            td { (parameter.unit) }
                            td.text { (parameter.mechanism) }
                            td.text { (parameter.source) }
                        } } }
                    } }
                }
            }
        }
    }
}
