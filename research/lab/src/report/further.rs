//! Sections of the report beside claims and figures: sensitivity to parameters, and all parameters with their sources.
//!
//! ```text
//! Sensitivity ──► claim: figures × parameters, in percent      Parameters ──► value, unit, source, mechanism
//! ```
//!
//! Missing and outdated parts are marked as such.

use maud::{Markup, html};

use super::page::Page;
use super::words::rounded;
use crate::sensitivity::{Change, MIN_SHOWN, Origin, Sensitivity, VerdictChange};

/// The table, by claim.
pub(super) fn sensitivity(page: &Page<'_>) -> Markup {
    let Sensitivity { claims, changes, missing, origin: from, .. } = &page.sensitivity;
    html! {
        section id="sensitivity" {
            h2 { "Sensitivity" }
            p {
                                "Change of each figure of a predicted claim when one time of the model is 20 % lower or higher, with all other \
                                 parameters unchanged and reduced sweeps. Figures that are zero, and changes below " (MIN_SHOWN * 100.0) " %, are left out."
            }
            (origin(*from))
            @if claims.is_empty() { p.note { "Nothing to show: no claim here is predicted, or it was " strong { "not run" } "." } }
            @else if !missing.is_empty() {
                p.note { "Not complete: " (missing.len()) " parameters were not run (" (missing.join(", ")) ")." }
            }
            @if claims.is_empty() || !missing.is_empty() || *from != Origin::Here {
                                p { "Computing it again takes a quarter of an hour or more, and resumes an interrupted run: " code { "./x lab --sensitivity" } "." }
            }
            @if !claims.is_empty() { (verdict_changes(page)) }
            @for claim in claims { (figure_changes(claim, changes)) }
        }
    }
}

/// The origin of a table that this run did not make.
fn origin(origin: Origin) -> Markup {
    html! {
        @match origin {
            Origin::Here => {}
            Origin::Project => {
                                p { "This is the committed table, made with the same plans, parameters and criteria." }
            }
            Origin::Before => {
                p.note {
                                        "This is the committed table. Plans, parameters or criteria have changed since it was made, so parts of it \
                                         may be out of date."
                }
            }
        }
    }
}

/// The verdicts that one parameter changes.
fn verdict_changes(page: &Page<'_>) -> Markup {
    let turns = &page.sensitivity.turns;
    html! {
                @if turns.is_empty() { p { strong { "No verdict changes" } " with any parameter." } }
        @else {
                        p { "These verdicts change; those of all other predicted claims stay the same." }
                        div.wide tabindex="0" role="region" aria-label="Verdicts that change" { table {
                                thead { tr { @for head in ["claim", "parameter", "its source", "unchanged", "at -20 %", "at +20 %"] {
                    th scope="col" { (head) }
                } } }
                tbody { @for turn in turns { tr {
                    th scope="row" { a href=(format!("#claim-{}", turn.claim)) { (turn.claim) } }
                    td { (turn.parameter) }
                    td.text { (source(page, turn)) }
                    td { (turn.base.word()) }
                    @for status in turn.lower_higher { td { (status.word()) } }
                } } }
            } }
        }
    }
}

/// The source of the parameter that changes a verdict.
fn source<'a>(page: &'a Page<'_>, turn: &VerdictChange) -> &'a str {
    let paper = page.claims.find(&turn.claim).map(|claim| claim.paper.as_str());
    let own = page.papers.iter().find(|prepared| Some(prepared.name) == paper);
    let list = own.map_or(&[][..], |prepared| prepared.parameters.list());
    list.iter().find(|parameter| parameter.name == turn.parameter).map_or("", |parameter| &parameter.source)
}

fn figure_changes(claim: &str, changes: &[Change]) -> Markup {
    let seen: Vec<&Change> =
        changes.iter().filter(|change| change.claim == claim && change.is_shown()).collect();
    html! {
        details {
            summary { a href=(format!("#claim-{claim}")) { (claim) } ": " (seen.len()) " changes" }
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
                                "All parameters of the models, in one file for each paper; experiments have none of their own. \
                                 \u{201c}Assumed\u{201d} means that a value is neither from a document nor fitted."
            }
            @for paper in page.papers {
                details {
                    summary { (paper.parameters.list().len()) " parameters: " (paper.title) }
                    div.wide tabindex="0" role="region" aria-label=(format!("Parameters of {}", paper.name)) { table {
                                                thead { tr { @for head in ["name", "value", "unit", "what it models", "source"] {
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
