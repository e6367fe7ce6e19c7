//! A figure's chart: its lines, the paper's values, axes with the paper's units, a legend.
//!
//! ```text
//! Table ─► Frame, Lines, Beside ─► memferry_charts ─► SVG text
//! ```

use memferry_charts::{Axis, DrawError, Frame, Line, Scale};

use super::beside::beside;
use crate::table::Table;

/// Width of a chart beside its lines, pixels.
const MARGINS: u32 = 106;

/// Settings of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChartStyle {
    pub size: (u32, u32),
    /// Maximum number of labels along the horizontal axis.
    pub x_labels: usize,
    /// Scale of the vertical axis.
    pub y_scale: Scale,
    /// Height of the letters beside the axes.
    pub letters: u32,
    /// Whether the chart contains its title and legend.
    pub has_heads: bool,
}

/// The chart as SVG text for a separate file.
///
/// # Errors
/// [`DrawError`].
pub fn svg(table: &Table) -> Result<String, DrawError> {
    let y_scale = table.plan.y.scale;
    drawn(table, ChartStyle { size: (960, 600), x_labels: 20, y_scale, letters: 12, has_heads: true })
}

/// The chart as SVG text.
///
/// # Errors
/// [`DrawError`].
pub fn drawn(table: &Table, style: ChartStyle) -> Result<String, DrawError> {
    let ChartStyle { size, x_labels, y_scale, letters, has_heads } = style;
    let plan = &table.plan;
    let words = format!("{} ({})", plan.x.label, plan.x.unit);
    // A label that does not fit below a narrow chart is in the caption and above the numbers.
    let fits = size.0.saturating_sub(MARGINS) / (letters * 6 / 10).max(1);
    let words = if words.chars().count() > fits as usize { plan.x.unit.clone() } else { words };
    let x = Axis { words, in_bytes: plan.x.unit == "bytes", scale: plan.x.scale };
    let words = format!("{} ({}), simulated", plan.y.label, plan.y.unit);
    let y = Axis { words, in_bytes: plan.y.unit == "bytes", scale: y_scale };
    let title = format!("{} ({}, figure {}; simulated)", plan.title, plan.paper, plan.number);
    let title = has_heads.then_some(title);
    let frame = Frame { size, title, x, y, x_labels, letters, measured: None };
    let lines = table.series.iter().map(|series| Line {
        label: series.label.clone(),
        points: series.points.iter().map(|(x, y)| (*x, (*y).into())).collect(),
    });
    memferry_charts::lines_beside(&frame, &lines.collect::<Vec<_>>(), &beside(table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::table::Series;

    const PLAN: &str = "figure = 'a-1'\ntitle = 'sizes'\nshows = 's'\npaper = 'p'\nnumber = '7'\nrunner = 'r'\nseed = 1\nclaims = []\n\
                        [x]\nlabel = 'transfer size'\nunit = 'bytes'\nscale = 'log2'\nfrom = 64\nto = 1048576\n\
                        [y]\nlabel = 'throughput'\nunit = 'MiB/s'\nscale = 'log10'\n[[series]]\nlabel = 'ours'\n";

    fn table(points: Vec<(f64, f64)>) -> Table {
        let plan = Plan::parse(PLAN).expect("well formed");
        Table { plan, series: vec![Series { label: "ours".to_owned(), points }] }
    }

    #[test]
    fn a_picture_has_title_units_and_legend() {
        let points = (6..21).map(|power| (f64::from(1 << power), f64::from(power) * 3.0)).collect();
        let text = svg(&table(points)).expect("drawn");
        for word in
            ["<svg", "sizes (p, figure 7; simulated)", "(bytes)", "(MiB/s), simulated", "ours", "64 KiB"]
        {
            assert!(text.contains(word), "{word} is missing");
        }
    }
}
