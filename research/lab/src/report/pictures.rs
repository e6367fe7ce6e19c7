//! Figures in the report, each with the paper's values over our lines, and a switch for the scale of the vertical axis.
//!
//! ```text
//! Table ──► charts, some with lines of their own ──► drawn wide and narrow, as planned and on the other scale
//!       ──► legend, the paper's values in words, numbers, files to save, the command
//! ```
//!
//! Every line is simulated; live figures appear only in rows. The style sheet decides which picture is visible; there is no
//! script.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};
use memferry_charts::{DrawError, Scale, Spot, mark};

use super::downloads::downloads;
use super::words::rounded;
use crate::claims::Claims;
use crate::figures::beside::{Apart, Known, in_words, values};
use crate::figures::{ChartStyle, drawn};
use crate::plan::Plan;
use crate::table::{Series, Table};

/// Pictures for wide and narrow windows: class, size, labels on the x axis, height of letters.
const WIDE: (&str, (u32, u32), usize, u32) = ("wide-picture", (880, 500), 14, 14);
const NARROW: (&str, (u32, u32), usize, u32) = ("narrow-picture", (400, 360), 5, 13);

pub(super) fn picture(table: &Table, claims: &Claims) -> Markup {
    let plan = &table.plan;
    html! {
        figure.figure id=(format!("figure-{}", plan.figure)) {
            figcaption {
                h4 { (plan.title) }
                p.place {
                    (numbered(plan)) "; " code { (plan.figure) } "; simulated"
                    @if !plan.claims.is_empty() { ". Decides " (decided(plan, claims)) }
                    "."
                }
                p { (plan.shows) }
            }
            @match zoomed(table) {
                Ok(pictures) => (pictures),
                Err(error) => p.note { "It cannot be drawn: " (error) "." },
            }
            (theirs(table))
            (numbers(table))
            (downloads(table))
        }
    }
}

/// A figure whose experiment failed or was not run.
pub(super) fn absent(plan: &Plan, why: &str) -> Markup {
    html! {
        figure.figure id=(format!("figure-{}", plan.figure)) {
            figcaption {
                h4 { (plan.title) }
                p.place { (numbered(plan)) "; " code { (plan.figure) } }
                p { (plan.shows) }
            }
            p.note { strong { "Not drawn: " } (why) "." }
        }
    }
}

/// Its number in the paper, or that the paper does not have it.
fn numbered(plan: &Plan) -> String {
    let mut letters = plan.number.chars();
    match letters.next() {
        Some(first) if first.is_ascii_digit() => format!("Figure {}", plan.number),
        Some(first) => format!("{}{}", first.to_ascii_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

/// The claims that it helps to decide; those in this report are links.
fn decided(plan: &Plan, claims: &Claims) -> Markup {
    html! {
        @for (number, claim) in plan.claims.iter().enumerate() {
            @if number > 0 { ", " }
            @if claims.find(claim).is_some() { a href=(format!("#claim-{claim}")) { (claim) } } @else { (claim) }
        }
    }
}

/// The picture as planned and, if possible, on the other scale.
fn zoomed(table: &Table) -> Result<Markup, DrawError> {
    let plan = &table.plan;
    let planned = charts(table, plan.y.scale)?;
    let (name, other) = match plan.y.scale {
        Scale::Linear => ("logarithmic", Scale::Log10),
        Scale::Log2 | Scale::Log10 => ("linear", Scale::Linear),
    };
    let planned_name = if plan.y.scale == Scale::Linear { "linear" } else { "logarithmic" };
    let Ok(zoomed) = charts(table, other) else {
        return Ok(html! { div.zoom { div.first { (planned) } } });
    };
    let id = |which: &str| format!("zoom-{}-{which}", plan.figure);
    Ok(html! {
        div.zoom {
            "Upright axis: "
            input type="radio" name=(id("y")) id=(id("1")) checked;
            label for=(id("1")) { (planned_name) }
            input type="radio" name=(id("y")) id=(id("2"));
            label for=(id("2")) { (name) }
            div.first { (planned) }
            div.second { (zoomed) }
        }
    })
}

/// The charts of a figure, wide and narrow, each with its legend.
fn charts(table: &Table, y_scale: Scale) -> Result<Markup, DrawError> {
    let apart = values(&table.plan.figure).and_then(|values| values.apart.as_ref());
    let parts = apart.map_or_else(|| vec![(None, table.clone())], |apart| parts(table, apart));
    let mut all = Vec::new();
    for (title, part) in &parts {
        all.push(html! {
            @if let Some(title) = title { p.part { (title) } }
            (wide_and_narrow(part, y_scale)?)
            (legend(part))
        });
    }
    Ok(html! { @for chart in all { (chart) } })
}

/// The table's lines in charts of their own, those with lines only.
fn parts<'a>(table: &Table, apart: &'a Apart) -> Vec<(Option<&'a str>, Table)> {
    let (lines, others): (Vec<Series>, Vec<Series>) =
        table.series.iter().cloned().partition(|series| series.label.contains(&apart.lines));
    let part = |title: &'a String, series| (Some(title.as_str()), Table { plan: table.plan.clone(), series });
    let both = [part(&apart.title, lines), part(&apart.others, others)];
    both.into_iter().filter(|(_, part)| !part.series.is_empty()).collect()
}

fn wide_and_narrow(table: &Table, y_scale: Scale) -> Result<Markup, DrawError> {
    let draw =
        |(class, size, x_labels, letters): (&str, (u32, u32), usize, u32)| -> Result<Markup, DrawError> {
            let text = drawn(table, ChartStyle { size, x_labels, y_scale, letters, has_heads: false })?;
            Ok(html! { div class=(class) { (inlined(&text, size, &table.plan.title, &summary(table))) } })
        };
    let wide = draw(WIDE)?;
    let narrow = draw(NARROW)?;
    Ok(html! { (wide) (narrow) })
}

/// Inserts an SVG file into the page: scaled to the available width, with its title and a summary for screen readers.
pub(super) fn inlined(svg: &str, (width, height): (u32, u32), title: &str, summary: &str) -> Markup {
    let inner = svg.split_once('>').map_or("", |(_, inner)| inner);
    let inner = inner.trim_end().strip_suffix("</svg>").unwrap_or_default();
    html! {
        svg viewBox=(format!("0 0 {width} {height}")) role="img" aria-label=(title) {
            desc { (summary) }
            // Drawn by this project's code, which escapes its texts.
            (PreEscaped(inner))
        }
    }
}

/// A description of the lines.
fn summary(table: &Table) -> String {
    let Plan { x, y, .. } = &table.plan;
    let mut text = format!("{} ({}) over {} ({}), simulated.", y.label, y.unit, x.label, x.unit);
    for Series { label, points } in &table.series {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { continue };
        text += &format!(" {label}: {} at {}, {} at {}.", short(first.1), first.0, short(last.1), last.0);
    }
    text
}

fn legend(table: &Table) -> Markup {
    html! {
        ul.legend {
            @for (number, series) in table.series.iter().enumerate() {
                li { (swatch(number)) " " (series.label) }
            }
        }
    }
}

/// The paper's values in words, or what it has instead.
fn theirs(table: &Table) -> Markup {
    let Some(values) = values(&table.plan.figure) else { return html! {} };
    html! {
        @if let Some(none) = &values.none { p.place.none { "The paper has no number for this figure: " (none) "." } }
        @else {
            ul.legend.theirs { @for known in values.known() {
                li { (sample(&known, table)) " paper: " strong { (in_words(&known, table)) } ", " (known.what) }
            } }
        }
    }
}

/// A sample of a value of the paper, as it is drawn.
fn sample(known: &Known, table: &Table) -> Markup {
    let of = |label: &String| table.series.iter().position(|series| series.label == *label);
    let colour = known.line.as_ref().and_then(of).map(|number| {
        let ((red, green, blue), _) = mark(number);
        format!("rgb({red},{green},{blue})")
    });
    let colour = colour.as_deref().unwrap_or("currentColor");
    html! {
        svg.swatch viewBox="0 0 24 10" aria-hidden="true" {
            @match known.spot {
                Spot::Level(_) => line x1="0" y1="5" x2="24" y2="5" stroke=(colour) stroke-width="2" stroke-dasharray="5 3" {},
                Spot::Mark(_) => line x1="12" y1="0" x2="12" y2="10" stroke=(colour) stroke-width="2" stroke-dasharray="3 2" {},
                Spot::Point(..) => path d="M7 5L12 0L17 5L12 10Z" stroke="currentColor" fill=(colour) {},
            }
        }
    }
}

/// A sample of a line with its point.
fn swatch(number: usize) -> Markup {
    let ((red, green, blue), is_open) = mark(number);
    let colour = format!("rgb({red},{green},{blue})");
    let (width, fill) = if is_open { ("1", "none") } else { ("2", colour.as_str()) };
    html! {
        svg.swatch viewBox="0 0 24 10" aria-hidden="true" {
            line x1="0" y1="5" x2="24" y2="5" stroke=(colour) stroke-width=(width) {}
            circle cx="12" cy="5" r="3" stroke=(colour) fill=(fill) {}
        }
    }
}

/// The numbers, with a column for each line.
fn numbers(table: &Table) -> Markup {
    let Plan { x, y, .. } = &table.plan;
    let mut points: Vec<f64> =
        table.series.iter().flat_map(|series| series.points.iter().map(|(x, _)| *x)).collect();
    points.sort_by(f64::total_cmp);
    points.dedup();
    let labels: BTreeSet<&str> = table.series.iter().map(|series| series.label.as_str()).collect();
    html! {
        details {
            summary { "Numbers: " (labels.len()) " lines, " (y.label) " in " (y.unit) }
            div.wide tabindex="0" role="region" aria-label=(format!("Numbers of {}", table.plan.figure)) { table {
                thead { tr {
                    th scope="col" { (x.label) " (" (x.unit) ")" }
                    @for series in &table.series { th scope="col" { (series.label) } }
                } }
                tbody { @for at in points { tr {
                    th scope="row" { (at) }
                    @for series in &table.series { td { @if let Some(value) = series.at(at) { (short(value)) } } }
                } } }
            } }
        }
    }
}

/// A number with about four digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() || size == 0.0 || size >= 100.0 => format!("{}", rounded(value)),
        size if size >= 1.0 => format!("{}", (value * 1e3).round() / 1e3),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}
