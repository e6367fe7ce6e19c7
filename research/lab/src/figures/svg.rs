//! A figure's picture: lines with points, axes with the paper's units, a legend.
//!
//! ```text
//! Table ── x and y on their scales ──► plotters ──► SVG text
//! ```
//!
//! Axes are drawn linearly over logarithms, so that each label is a round number. Values that are not positive have no
//! place on a logarithmic axis and are left out there.

use std::ops::Range;

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
            // Ten labels to a power of ten are round to two digits.
            Scale::Log10 => number(two_digits(10f64.powf(place))),
            Scale::Log2 if (place - place.round()).abs() > 1e-6 => String::new(),
            Scale::Log2 if unit == "bytes" => bytes(place.round()),
            Scale::Log2 => number(place.round().exp2()),
        }
    }
}

/// How a picture is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    pub size: (u32, u32),
    /// How many labels there are room for along the horizontal axis.
    pub x_labels: usize,
    /// How the upright axis is divided.
    pub y_scale: Scale,
    /// The height of letters beside the axes.
    pub letters: u32,
    /// Whether title and legend stand in the picture, or beside it.
    pub has_heads: bool,
}

/// The picture as SVG text, as it stands in a file of its own.
///
/// # Errors
/// [`DrawError`].
pub fn svg(table: &Table) -> Result<String, DrawError> {
    let y_scale = table.plan.y.scale;
    drawn(table, Look { size: SIZE, x_labels: 20, y_scale, letters: 12, has_heads: true })
}

/// The picture as SVG text.
///
/// # Errors
/// [`DrawError`].
pub fn drawn(table: &Table, look: Look) -> Result<String, DrawError> {
    let mut text = String::new();
    draw(table, look, &mut text)?;
    Ok(text)
}

/// The colour of a line by its number, and whether its points are open: there are fewer colours than lines.
pub fn mark(number: usize) -> ((u8, u8, u8), bool) {
    let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
    ((red, green, blue), number >= COLOURS.len())
}

type Points = Vec<(f64, f64)>;

/// The places of a line's points.
fn places(table: &Table, y_scale: Scale) -> Vec<Points> {
    let x_scale = table.plan.x.scale;
    let place = |(x, y): &(f64, f64)| x_scale.place(*x).zip(y_scale.place(*y));
    table.series.iter().map(|series| series.points.iter().filter_map(place).collect()).collect()
}

/// From the least to the most of one coordinate.
fn extent(lines: &[Points], of: fn(&(f64, f64)) -> f64) -> (f64, f64) {
    let all = || lines.iter().flatten().map(of);
    (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max))
}

/// What the axes span.
fn spans(lines: &[Points], y_scale: Scale) -> Result<(Range<f64>, Range<f64>), DrawError> {
    let (first, last) = extent(lines, |(x, _)| *x);
    let (lowest, highest) = match (extent(lines, |(_, y)| *y), y_scale) {
        ((low, high), Scale::Linear) => (low.min(0.0), high * HEADROOM),
        ((low, high), _) => (low.floor(), high.ceil()),
    };
    if first < last && lowest < highest {
        return Ok((first..last, lowest..highest));
    }
    Err(DrawError::NothingToShow)
}

fn draw(table: &Table, look: Look, text: &mut String) -> Result<(), DrawError> {
    let plan = &table.plan;
    let lines = places(table, look.y_scale);
    let (x_span, y_span) = spans(&lines, look.y_scale)?;
    let root = SVGBackend::with_string(text, look.size).into_drawing_area();
    root.fill(&WHITE).map_err(plotting)?;
    let mut builder = ChartBuilder::on(&root);
    if look.has_heads {
        let title = format!("{} ({}, figure {}; simulated)", plan.title, plan.paper, plan.number);
        builder.caption(title, ("sans-serif", 20));
    }
    let mut chart = builder
        .margin(12)
        .margin_right(if look.has_heads { 40 } else { 24 })
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(x_span.clone(), y_span.clone())
        .map_err(plotting)?;
    chart
        .configure_mesh()
        .x_desc(format!("{} ({})", plan.x.label, plan.x.unit))
        .y_desc(format!("{} ({}), simulated", plan.y.label, plan.y.unit))
        .x_labels(look.x_labels)
        .x_label_formatter(&|place| plan.x.scale.label(*place, &plan.x.unit))
        .y_label_formatter(&|place| look.y_scale.label(*place, &plan.y.unit))
        .label_style(("sans-serif", look.letters))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(plotting)?;
    for (number, (series, points)) in table.series.iter().zip(&lines).enumerate() {
        let ((red, green, blue), is_open) = mark(number);
        let colour = RGBColor(red, green, blue);
        let line = colour.stroke_width(if is_open { 1 } else { 2 });
        let drawn = chart.draw_series(LineSeries::new(points.clone(), line)).map_err(plotting)?;
        drawn.label(&series.label).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], line));
        let dot = if is_open { colour.stroke_width(1) } else { colour.filled() };
        chart.draw_series(points.iter().map(|at| Circle::new(*at, 3, dot))).map_err(plotting)?;
    }
    if look.has_heads {
        let labels = &mut chart.configure_series_labels();
        let labels = labels.position(free_corner(&lines, (x_span, y_span)));
        labels.background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw().map_err(plotting)?;
    }
    root.present().map_err(plotting)
}

fn plotting(error: impl std::fmt::Display) -> DrawError {
    DrawError::Plotting(error.to_string())
}

/// The corner where a legend of so many lines covers the least of them.
fn free_corner(lines: &[Points], (x, y): (Range<f64>, Range<f64>)) -> SeriesLabelPosition {
    let share = |value: f64, range: &Range<f64>| (value - range.start) / (range.end - range.start);
    // Of the picture; a legend is about as wide as this, and a line of it as high.
    let width = 0.4;
    let height = 0.06 * lines.len() as f64;
    let covered = |left: bool, upper: bool| -> usize {
        let within = |(at, over): (f64, f64)| {
            (if left { at < width } else { at > 1.0 - width })
                && (if upper { over > 1.0 - height } else { over < height })
        };
        let segments = lines.iter().flat_map(|points| points.windows(2));
        let on_the_way = segments.flat_map(|ends| {
            (0..=20).map(|step| {
                let part = |from: f64, to: f64| from + (to - from) * f64::from(step) / 20.0;
                (share(part(ends[0].0, ends[1].0), &x), share(part(ends[0].1, ends[1].1), &y))
            })
        });
        on_the_way.filter(|place| within(*place)).count()
    };
    let corners = [
        (covered(true, true), SeriesLabelPosition::UpperLeft),
        (covered(false, true), SeriesLabelPosition::UpperRight),
        (covered(true, false), SeriesLabelPosition::LowerLeft),
        (covered(false, false), SeriesLabelPosition::LowerRight),
    ];
    let freest = corners.into_iter().min_by_key(|(covered, _)| *covered);
    freest.map_or(SeriesLabelPosition::UpperRight, |(_, corner)| corner)
}

/// The first two digits of a number that is positive.
fn two_digits(value: f64) -> f64 {
    let last = 10f64.powf(value.log10().floor() - 1.0);
    (value / last).round() * last
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

    const PLAN: &str = "figure = 'a-1'\ntitle = 'sizes'\nshows = 's'\npaper = 'p'\nnumber = '7'\nrunner = 'r'\nseed = 1\nclaims = []\n\
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
    fn labels_of_a_logarithmic_axis_are_round() {
        let labels: Vec<String> =
            (0..=10).map(|tenth| Scale::Log10.label(2.0 + f64::from(tenth) / 10.0, "us")).collect();
        assert_eq!(labels, ["100", "130", "160", "200", "250", "320", "400", "500", "630", "790", "1000"]);
        assert_eq!(
            (Scale::Log10.label(-1.0, "us"), Scale::Log10.label(-0.2, "us")),
            ("0.1".to_owned(), "0.63".to_owned())
        );
    }

    #[test]
    fn nothing_to_show_is_said_so() {
        assert_eq!(svg(&table(vec![])), Err(DrawError::NothingToShow));
        assert_eq!(svg(&table(vec![(64.0, 0.0), (128.0, -1.0)])), Err(DrawError::NothingToShow));
    }
}
