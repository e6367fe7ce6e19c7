//! A figure's picture: lines with points, axes with the paper's units, a legend.
//!
//! ```text
//! Table ── x and y on their scales ──► plotters ──► SVG text
//! ```
//!
//! Axes are drawn linearly over logarithms, so that each label is a round number. Values that are not positive have no
//! place on a logarithmic axis and are left out there.

use plotters::prelude::*;

use crate::plan::Scale;
use crate::table::Table;

const SIZE: (u32, u32) = (960, 600);
/// Colours that people who see fewer of them can tell apart too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
/// Free space above the highest value of a linear axis.
const HEADROOM: f64 = 1.08;

/// Why a figure cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// Fewer than two points to draw between.
    #[error("it has no points that differ in x and y")]
    NothingToShow,
    /// The plotting library's words.
    #[error("{0}")]
    Plotting(String),
}

impl Scale {
    /// Where a value lies; nothing where it has no place.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Scale::Linear => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
        };
        place.is_finite().then_some(place)
    }

    /// What stands at a place.
    fn label(self, place: f64, unit: &str) -> String {
        match self {
            Scale::Linear => number(place),
            Scale::Log10 => number(10f64.powf(place)),
            Scale::Log2 if (place - place.round()).abs() > 1e-6 => String::new(),
            Scale::Log2 if unit == "bytes" => bytes(place.round()),
            Scale::Log2 => number(place.round().exp2()),
        }
    }
}

/// The picture as SVG text.
///
/// # Errors
/// [`DrawError`].
pub fn svg(table: &Table) -> Result<String, DrawError> {
    let mut text = String::new();
    draw(table, &mut text)?;
    Ok(text)
}

type Points = Vec<(f64, f64)>;

/// The places of a line's points.
fn places(table: &Table) -> Vec<Points> {
    let (x_scale, y_scale) = (table.plan.x.scale, table.plan.y.scale);
    let place = |(x, y): &(f64, f64)| x_scale.place(*x).zip(y_scale.place(*y));
    table.series.iter().map(|series| series.points.iter().filter_map(place).collect()).collect()
}

/// From the least to the most of one coordinate.
fn extent(lines: &[Points], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = || lines.iter().flatten().map(of);
    (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
}

fn draw(table: &Table, text: &mut String) -> Result<(), DrawError> {
    let plan = &table.plan;
    let lines = places(table);
    let (first, last) = extent(&lines, |(x, _)| *x);
    let (lowest, highest) = match (extent(&lines, |(_, y)| *y), plan.y.scale) {
        ((low, high), Scale::Linear) => (low.min(0.0), high * HEADROOM),
        ((low, high), _) => (low.floor(), high.ceil()),
    };
    if !(first < last && lowest < highest) {
        return Err(DrawError::NothingToShow);
    }
    let title = format!("{} ({}, figure {}; simulated)", plan.title, plan.paper, plan.number);
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(plotting)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(40)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(first..last, lowest..highest)
        .map_err(plotting)?;
    chart
        .configure_mesh()
        .x_desc(format!("{} ({})", plan.x.label, plan.x.unit))
        .y_desc(format!("{} ({}), simulated", plan.y.label, plan.y.unit))
        .x_labels(20)
        .x_label_formatter(&|place| plan.x.scale.label(*place, &plan.x.unit))
        .y_label_formatter(&|place| plan.y.scale.label(*place, &plan.y.unit))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(plotting)?;
    for ((series, points), colour) in table.series.iter().zip(&lines).zip(COLOURS.iter().cycle()) {
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))
            .map_err(plotting)?
            .label(&series.label)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        let dots = points.iter().map(|at| Circle::new(*at, 3, colour.filled()));
        chart.draw_series(dots).map_err(plotting)?;
    }
    let middle = f64::midpoint(first, last);
    chart
        .configure_series_labels()
        .position(free_corner(&lines, middle))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()
        .map_err(plotting)?;
    root.present().map_err(plotting)
}

fn plotting(error: impl std::fmt::Display) -> DrawError {
    DrawError::Plotting(error.to_string())
}

/// The upper corner on whose side the lines are lower.
fn free_corner(lines: &[Points], middle: f64) -> SeriesLabelPosition {
    let highest = |left: bool| {
        let side = lines.iter().flatten().filter(|(x, _)| (*x < middle) == left);
        side.map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max)
    };
    if highest(true) < highest(false) {
        SeriesLabelPosition::UpperLeft
    } else {
        SeriesLabelPosition::UpperRight
    }
}

/// A number in few digits.
fn number(value: f64) -> String {
    if value == 0.0 || value.abs() >= 10.0 {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// A power of two of bytes in words.
fn bytes(power: f64) -> String {
    let (unit, less) = match power {
        p if p >= 30.0 => ("GiB", 30.0),
        p if p >= 20.0 => ("MiB", 20.0),
        p if p >= 10.0 => ("KiB", 10.0),
        _ => ("B", 0.0),
    };
    format!("{} {unit}", (power - less).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::table::Series;

    const PLAN: &str = "figure = 'a-1'\ntitle = 'sizes'\npaper = 'p'\nnumber = '7'\nrunner = 'r'\nseed = 1\nclaims = []\n\
                        [x]\nlabel = 'transfer size'\nunit = 'bytes'\nscale = 'log2'\nfrom = 64\nto = 1048576\n\
                        [y]\nlabel = 'throughput'\nunit = 'MiB/s'\nscale = 'log10'\n[[series]]\nlabel = 'ours'\n";

    fn table(points: Points) -> Table {
        let plan = Plan::parse(PLAN).expect("well formed");
        Table { plan, series: vec![Series { label: "ours".to_owned(), points }] }
    }

    #[test]
    fn a_picture_has_its_title_units_legend_and_says_that_it_is_simulated() {
        let points = (6..21).map(|power| (f64::from(1 << power), f64::from(power) * 3.0)).collect();
        let text = svg(&table(points)).expect("drawn");
        for word in
            ["<svg", "sizes (p, figure 7; simulated)", "(bytes)", "(MiB/s), simulated", "ours", "64 KiB"]
        {
            assert!(text.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn nothing_to_show_is_said_so() {
        assert_eq!(svg(&table(vec![])), Err(DrawError::NothingToShow));
        assert_eq!(svg(&table(vec![(64.0, 0.0), (128.0, -1.0)])), Err(DrawError::NothingToShow));
    }
}
