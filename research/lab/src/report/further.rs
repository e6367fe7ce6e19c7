//! Sections of the report beside claims and figures: bands over the ranges of the parameters, and all parameters with their sources.
//!
//! ```text
//! Bands ──► claim: votes; figures: lowest, highest, parameters they follow      Parameters ──► value, range, sources, mechanism
//! ```
//!
//! Missing and outdated parts are marked as such.

use maud::{Markup, html};

use super::page::Page;
use super::words::rounded;
use crate::bands::{Band, Bands, MACHINES, Origin, Votes};
use crate::parameters::Parameter;

/// The bands, by claim.
pub(super) fn bands(page: &Page<'_>) -> Markup {
    let Bands { screened, votes, origin: from, .. } = &page.bands;
    let known = |votes: &&Votes| page.claims.find(&votes.claim).is_some();
    html! {
        section id="sensitivity" {
            h2 { "Error bars" }
            p {
                "Every parameter of a paper's model has a range with its source, listed below. " (MACHINES) " machines, quasi-random \
                 points (Halton) of all ranges together, give each figure its lowest and highest value and each claim its votes, \
                 with reduced sweeps. A machine on which a calibrated claim fails is not the paper's and is not counted. A parameter \
                 that is fitted on each machine is solved for the figure that it is calibrated to, and not drawn. A claim that holds \
                 on some machines and not on others is undecided."
            }
            (origin(*from))
            @if votes.is_empty() {
                p.note { "Nothing to show: no claim here is predicted, or it was " strong { "not run" } "." }
            }
            @if *from != Origin::Here {
                p { "Computing it again takes half an hour or more, and resumes an interrupted run: " code { "./x lab --sensitivity" } "." }
            }
            @for paper in page.papers.iter().filter(|paper| !paper.is_study() && paper.has_judges()) {
                @if screened.iter().all(|one| one.paper != paper.name) {
                    p.note { (paper.name) ": its machines were " strong { "not run" } ", so its verdicts are those of the parameters' own values." }
                }
            }
            @for one in screened { p {
                (one.paper) ": of " (one.tried) " machines tried, " (one.counted) " keep the calibrated claims."
                @if !one.fitted.is_empty() {
                    " On " (one.unfit) " others a fitted parameter ended at an end of its range, and a calibrated claim failed. Fitted on \
                     the counted machines:"
                    @for (at, fitted) in one.fitted.iter().enumerate() {
                        @if at > 0 { "," } " " (fitted.parameter) " " (fitted.low) " to " (fitted.high)
                    }
                    "."
                }
            } }
            @for votes in votes.iter().filter(known) { (votes_and_bands(page, votes)) }
        }
    }
}

/// The origin of a table that this run did not make.
fn origin(origin: Origin) -> Markup {
    html! {
        @match origin {
            Origin::Here => {}
            Origin::Project => {
                p { "This is the committed table, made with the same plans, parameters, ranges and criteria." }
            }
            Origin::Before => {
                p.note {
                    "This is the committed table. Plans, parameters, ranges or criteria have changed since it was made, so parts of \
                     it may be out of date."
                }
            }
        }
    }
}

fn votes_and_bands(page: &Page<'_>, votes: &Votes) -> Markup {
    let claim = votes.claim.as_str();
    let seen: Vec<&Band> = page.bands.of(claim).collect();
    html! {
        details {
            summary {
                a href=(format!("#claim-{claim}")) { (claim) } ": holds on " (votes.holds) " of " (votes.machines) " machines"
            }
            div.wide tabindex="0" role="region" aria-label=(format!("Bands of {claim}")) { table {
                thead { tr { @for head in ["figure", "base", "lowest", "highest", "follows most"] { th scope="col" { (head) } } } }
                tbody { @for band in seen { tr {
                    th scope="row" { @if band.figure.is_empty() { "value" } @else { (band.figure) } }
                    @for value in [band.base, band.low, band.high] { td { (rounded(value)) } }
                    td.text { (follows(band)) }
                } } }
            } }
        }
    }
}

/// The parameters that a figure follows, with the sign and the rank correlation.
fn follows(band: &Band) -> String {
    let each: Vec<String> = band.follows.iter().map(|(name, part)| format!("{name} ({part:+})")).collect();
    each.join(", ")
}

/// What a parameter may be.
fn range(parameter: &Parameter) -> String {
    match (&parameter.range, &parameter.choices) {
        (Some([low, high]), _) => format!("{low} to {high}"),
        (None, Some(choices)) => choices.iter().map(f64::to_string).collect::<Vec<_>>().join(", "),
        (None, None) if parameter.exact.is_some() => "exact".to_owned(),
        (None, None) => String::new(),
    }
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
                                                thead { tr { @for head in ["name", "value", "unit", "range", "what it models", "source", "source of the range"] {
                            th scope="col" { (head) }
                        } } }
                        tbody { @for parameter in paper.parameters.list() { tr {
                            th scope="row" { (parameter.name) }
                            td { (parameter.value) }
                            td { (parameter.unit) }
                            td { (range(parameter)) }
                            td.text { (parameter.mechanism) }
                            td.text { (parameter.source) }
                            td.text { (parameter.within.as_ref().or(parameter.exact.as_ref()).map_or("", String::as_str)) }
                        } } }
                    } }
                }
            }
        }
    }
}
