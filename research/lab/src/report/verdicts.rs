//! The claims in the report: a table of all, and a card for each with statement, rows and reasons.
//!
//! ```text
//! Claims, rows ──┬─► overview: one line for each row; failed rows also in a list above
//!                └─► card: statement, the paper's value, simulated row, live row, command
//! ```
//!
//! A simulated and a live row never share a line.

use maud::{Markup, html};

use super::page::Page;
use super::words::{FEW, band, expected, figure, found, kind, marked, parts, statements};
use crate::claims::{Claim, Place};
use crate::verdict::{Basis, End, Figures, Status, Verdict, split_unit};

/// The number of rows by place and status, and the number of predicted number claims.
pub(super) fn counts(page: &Page<'_>) -> Markup {
    let place = |place: Place| {
        let rows = || page.report.rows().iter().filter(move |row| row.place == place);
        let count = |status| rows().filter(|row| row.status == status).count();
        marked(
            place,
            html! {
                tr {
                    th scope="row" { (place.word()) }
                    @for status in Status::ALL { td { (count(status)) } }
                }
            },
        )
    };
    let [predicted, simulated, all] = page.report.numbers(page.claims);
    html! {
        div.wide { table {
            thead { tr { th { "rows" } @for status in Status::ALL { th scope="col" { (status.word()) } } } }
            tbody { (place(Place::Simulated)) (place(Place::Live)) }
        } }
        @if all > 0 { p {
                        (predicted) " of the " (simulated) " number claims with a simulated row are predicted; the figures of the others were \
                         fitted or follow from fitted ones. At least half of the number claims must be predicted. There are " (all) " number \
                         claims in all; those without a simulated row are only measured live."
        } }
    }
}

/// The predictions of each paper by verdict: what its models can predict, and what not.
pub(super) fn predictions(page: &Page<'_>) -> Markup {
    const SHOWN: [Status; 3] = [Status::Pass, Status::Fail, Status::Undecided];
    let of = |paper: &str, status: Status| -> Vec<&Verdict> {
        let is_of = |row: &&Verdict| page.claims.find(&row.id).is_some_and(|claim| claim.paper == paper);
        let rows = page.report.rows().iter().filter(|row| row.basis == Some(Basis::Predicted));
        rows.filter(is_of).filter(|row| row.status == status).collect()
    };
    let own = || page.papers.iter().filter(|paper| !paper.is_study());
    let papers = own().filter(|paper| SHOWN.iter().any(|status| !of(paper.name, *status).is_empty()));
    html! {
        table.predictions {
            thead { tr { th scope="col" { "paper" } @for status in SHOWN { th scope="col" { (badge(status)) } } } }
            tbody { @for paper in papers { tr {
                th scope="row" { a href=(format!("#paper-{}", paper.name)) { (paper.title.split(':').next().unwrap_or_default()) } }
                @for status in SHOWN {
                    @let rows = of(paper.name, status);
                    td { strong { (rows.len()) } @for row in &rows { " " a href=(anchor(&row.id)) { (without_paper(&row.id)) } } }
                }
            } } }
        }
    }
}

/// A claim's name without that of its paper, which stands beside it.
fn without_paper(id: &str) -> &str {
    id.split_once('-').map_or(id, |(_, rest)| rest)
}

/// The failed claims, each with the reason.
pub(super) fn failed(page: &Page<'_>) -> Markup {
    let one = |row: &Verdict| {
        let (broken, reason, _) = parts(&row.why);
        html! {
            li {
                a href=(anchor(&row.id)) { code { (row.id) } }
                ": " (broken.unwrap_or(&row.why))
                @if let Some(reason) = reason { ". " em { "Because " (reason) "." } }
            }
        }
    };
    let rows: Vec<&Verdict> = page.report.rows().iter().filter(|row| row.status == Status::Fail).collect();
    html! {
        @if rows.iter().all(|row| row.place == Place::Live) { p { "No simulated row of this report fails." } }
                @else { p { "Claims that the simulation does not confirm, with the reason if an experiment found one:" } }
        ul { @for row in rows { (marked(row.place, one(row))) } }
    }
}

pub(super) fn overview(page: &Page<'_>) -> Markup {
    let line = |claim: &Claim, row: &Verdict| {
        html! {
            tr class=(row.place.word()) {
                th scope="row" { a href=(anchor(&row.id)) { code { (row.id) } } }
                td { (badge(row.status)) }
                td { (row.place.word()) }
                td { (row.basis.map_or("-", |basis| basis.word())) }
                td { (expected(claim).unwrap_or_else(|| kind(claim.kind).to_owned())) }
                td { (found(row)) }
                td { (band(row)) }
                td { (claim.section) }
            }
        }
    };
    html! {
        div.wide tabindex="0" role="region" aria-label="All claims" { table.claims {
            thead { tr {
                @for head in ["claim", "verdict", "where", "basis", "paper's value", "ours", "low to high", "in the paper"] {
                    th scope="col" { (head) }
                }
            } }
            tbody {
                @for claim in page.claims.list() { @for row in rows(page, claim) {
                    (marked(row.place, line(claim, row)))
                } }
            }
        } }
    }
}

/// One claim with its statement and rows.
pub(super) fn card(page: &Page<'_>, claim: &Claim) -> Markup {
    let figures: Vec<&str> = page
        .papers
        .iter()
        .flat_map(|paper| &paper.plans)
        .filter(|plan| plan.claims.contains(&claim.id))
        .map(|plan| plan.figure.as_str())
        .collect();
    html! {
        article.claim id=(format!("claim-{}", claim.id)) {
            h4 { code { (claim.id) } }
            p.says { (claim.says) }
            p.place {
                @if claim.ours { "Ours, beside the paper's " } @else { "In the paper: " }
                (claim.section) "; a " (kind(claim.kind)) "."
                @if let Some(expected) = expected(claim) { " The paper's value: " strong { (expected) } "." }
            }
            @if let Some(note) = &claim.note { p.note { (note) } }
            @for row in rows(page, claim) { (marked(row.place, verdict(page, claim, row))) }
            @if !figures.is_empty() {
                p { "Drawn in " @for (number, figure) in figures.iter().enumerate() {
                    @if number > 0 { ", " }
                    a href=(format!("#figure-{figure}")) { (figure) }
                } "." }
            }
            p.again { "Reproduce: " code { "./x lab --only " (claim.id) } }
        }
    }
}

/// One row with its figures and reason.
fn verdict(page: &Page<'_>, claim: &Claim, row: &Verdict) -> Markup {
    let (broken, reason, holds) = parts(&row.why);
    html! {
        div class=(format!("verdict {}", row.place.word())) {
            p.head {
                (badge(row.status)) " " strong { (row.place.word()) }
                @if let Some(basis) = row.basis { ", " (basis.word()) }
                @if !matches!(row.figures, Figures::One(None)) { ": " (found(row)) }
                @if let (Some(End::One(_)), band) = (&row.low, band(row)) { ", " (band) " within the parameters' ranges" }
            }
            @if row.place == Place::Live && row.status != Status::NotRun {
                p.place { "On " (page.machine.processor()) ", " (page.machine.time) "." }
            }
            (checks(broken, holds))
            @if let Some(reason) = reason { p { strong { "Because " } (reason) "." } }
            @else if broken.is_some() { p { "No experiment here shows why." } }
            (named(claim, row))
        }
    }
}

/// What broke and what holds, a line each.
fn checks(broken: Option<&str>, holds: Option<&str>) -> Markup {
    let [broken, holds] = [broken, holds].map(|part| part.map(statements));
    let line = |word: &str, words: &str| {
        html! { tr { th scope="row" { (word) } td { (words) } } }
    };
    html! {
        table.checks { tbody {
            @for words in broken.iter().flatten() { (line("does not hold", words)) }
            @for words in holds.iter().flatten() { (line(if broken.is_some() { "holds" } else { "" }, words)) }
        } }
    }
}

/// The figures of a row with many of them, beside the paper's.
fn named(claim: &Claim, row: &Verdict) -> Markup {
    let Figures::Named(values) = &row.figures else { return html! {} };
    let there = |name: &String| claim.values.as_ref().and_then(|values| values.get(name));
    let has_there = claim.values.is_some();
    html! {
        @if values.len() > FEW || has_there {
            details open[has_there] {
                summary { (values.len()) " figures" }
                div.wide { table {
                    thead { tr {
                        th { "figure" } @if has_there { th { "paper" } } th { "ours" }
                        @if row.low.is_some() { th { "lowest" } th { "highest" } }
                    } }
                    tbody { @for (name, value) in values { tr {
                        @let (words, unit) = split_unit(name, row.unit.as_deref());
                        th scope="row" { (words) }
                        @if has_there { td { @match there(name) { Some(there) => (figure(*there, unit)), None => "", } } }
                        td { (figure(*value, unit)) }
                        @if let (Some(End::Named(low)), Some(End::Named(high))) = (&row.low, &row.high) {
                            @for end in [low, high] { td { (end.get(name).map_or(String::new(), |value| figure(*value, unit))) } }
                        }
                    } } }
                } }
            }
        }
    }
}

fn rows<'a>(page: &'a Page<'_>, claim: &'a Claim) -> impl Iterator<Item = &'a Verdict> {
    page.report.rows().iter().filter(move |row| row.id == claim.id)
}

fn anchor(id: &str) -> String {
    format!("#claim-{id}")
}

fn badge(status: Status) -> Markup {
    html! { span class=(format!("badge {}", status.word())) { (status.word()) } }
}
