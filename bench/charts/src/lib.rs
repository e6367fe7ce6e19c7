//! Charts as SVG text: lines with points over scaled axes, and bars in groups.
//!
//! ```text
//! Frame { size, title, axes } + lines: Line { label, (x, Value) ... }      ─► lines() ─┐
//!                             + labels, Group { name, a Value per label } ─► bars()  ─┴─► SVG text
//!                             + Beside { spot, words }: values from elsewhere, over lines
//! ```
//!
//! A few values far above all others do not stretch a linear axis of measured values: they are drawn at its end, and a note counts them.
//! Logarithmic axes are linear in the logarithm, so that labels are round numbers. Values without a logarithm are left out on them.
//! The same values give the same bytes: nothing depends on time, machine or fonts.

mod beside;
mod date;

use std::ops::Range;

use beside::Place;
use plotters::prelude::*;
use serde::Deserialize;

pub use beside::{Beside, Spot};
pub use date::day;

/// Colours that colour-blind people can distinguish (Okabe and Ito).
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
/// How far a value lies above the next one before the axis ends below it. Sweeps double their sizes.
const FAR: f64 = 4.0;
/// Room above the highest value that the axis shows, for strokes and bands.
const ABOVE: f64 = 1.5;
/// Opacity of the band from low to high values.
const BAND: f64 = 0.15;
/// Share of a group's width filled by its bars.
const FILLED: f64 = 0.8;
/// Width of a letter of a group's name, and space around the name, pixels.
const LETTER: u32 = 7;
const AROUND: u32 = 24;

/// Why a chart cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DrawError {
    /// Fewer than two distinct points, or no bar.
    #[error("the chart has no points that differ in x and y; give it more values")]
    NothingToShow,
    /// Error of the plotting library.
    #[error("{0}")]
    Plotting(String),
}

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    Linear,
    /// By powers of two.
    Log2,
    /// By powers of ten.
    Log10,
}

impl Scale {
    /// Position of a value; `None` if it has none on this scale.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Scale::Linear => value,
            Scale::Log2 => value.log2(),
            Scale::Log10 => value.log10(),
        };
        place.is_finite().then_some(place)
    }

    /// Label at a position.
    fn label(self, place: f64, in_bytes: bool) -> String {
        match self {
            Scale::Linear => number(place),
            // Ten labels per power of ten are round to two digits.
            Scale::Log10 => number(two_digits(10f64.powf(place))),
            Scale::Log2 if (place - place.round()).abs() > 1e-6 => String::new(),
            Scale::Log2 if in_bytes => bytes(place.round()),
            Scale::Log2 => number(place.round().exp2()),
        }
    }

    /// Range of the axis for positions from `low` to `high`.
    fn span(self, low: f64, high: f64) -> Range<f64> {
        match self {
            Scale::Linear => low.min(0.0) * HEADROOM..high * HEADROOM,
            Scale::Log2 | Scale::Log10 => low.floor()..high.ceil(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Axis {
    /// The text beside the axis.
    pub words: String,
    /// Whether powers of two are labelled as B, KiB, MiB.
    pub in_bytes: bool,
    pub scale: Scale,
}

/// A chart without its values.
#[derive(Clone, Debug)]
pub struct Frame {
    pub size: (u32, u32),
    /// The text above; a chart without title has no legend either.
    pub title: Option<String>,
    pub x: Axis,
    pub y: Axis,
    /// Number of labels that fit along the horizontal axis.
    pub x_labels: usize,
    /// Height of the letters beside the axes.
    pub letters: u32,
    /// Where and when the values were measured, a line below the chart.
    pub measured: Option<String>,
}

/// A value with the range of its variation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    pub low: f64,
    pub middle: f64,
    pub high: f64,
}

impl From<f64> for Value {
    fn from(middle: f64) -> Self {
        Self { low: middle, middle, high: middle }
    }
}

impl Value {
    fn up_to(self, limit: f64) -> Self {
        Self { low: self.low.min(limit), middle: self.middle.min(limit), high: self.high.min(limit) }
    }

    fn places(self, scale: Scale) -> Option<Self> {
        let place = |value| scale.place(value);
        Some(Self { low: place(self.low)?, middle: place(self.middle)?, high: place(self.high)? })
    }
}

#[derive(Clone, Debug)]
pub struct Line {
    /// The text in the legend.
    pub label: String,
    /// Points by rising x; a band is drawn where values vary.
    pub points: Vec<(f64, Value)>,
}

/// Bars side by side under one name.
#[derive(Clone, Debug)]
pub struct Group {
    /// The text below the bars.
    pub name: String,
    /// A bar per label of the chart, or a gap.
    pub bars: Vec<Option<Value>>,
}

/// Colour of a line by its number, and whether its points are hollow: there are fewer colours than lines.
pub fn mark(number: usize) -> ((u8, u8, u8), bool) {
    let RGBColor(red, green, blue) = COLOURS[number % COLOURS.len()];
    ((red, green, blue), number >= COLOURS.len())
}

/// Draws a chart of lines.
///
/// # Errors
/// [`DrawError`].
pub fn lines(frame: &Frame, lines: &[Line]) -> Result<String, DrawError> {
    lines_beside(frame, lines, &[])
}

/// Draws a chart of lines, with values from elsewhere over them. The axes include these.
///
/// # Errors
/// [`DrawError`].
pub fn lines_beside(frame: &Frame, lines: &[Line], others: &[Beside]) -> Result<String, DrawError> {
    let placed = |(x, value): &(f64, Value)| frame.x.scale.place(*x).zip(value.places(frame.y.scale));
    let placed = |line: &Line| line.points.iter().filter_map(placed).collect();
    let places: Vec<Vec<(f64, Value)>> = lines.iter().map(placed).collect();
    let all = || places.iter().flatten();
    let others = placed_beside(frame, others);
    let xs = others.iter().filter_map(|(_, x, _)| *x);
    let (first, last) = extent(all().map(|(x, _)| *x).chain(xs));
    let ys = others.iter().filter_map(|(_, _, y)| *y);
    let (low, high) = extent(all().flat_map(|(_, value)| [value.low, value.high]).chain(ys));
    let limit = limit(frame, all().map(|(_, value)| *value)).unwrap_or(high);
    let above = all().filter(|(_, value)| value.middle > limit).count();
    let places: Vec<Vec<_>> = places
        .iter()
        .map(|points| points.iter().map(|(x, value)| (*x, value.up_to(limit))).collect())
        .collect();
    let spans = (first..last, frame.y.scale.span(low, high.min(limit)));
    let mut text = String::new();
    let mut over = String::new();
    draw(frame, &spans, 44, &mut text, |chart, root| {
        note(frame, above, root)?;
        for (number, (line, points)) in lines.iter().zip(&places).enumerate() {
            let ((red, green, blue), is_open) = mark(number);
            let colour = RGBColor(red, green, blue);
            if points.iter().any(|(_, value)| value.low < value.high) {
                let upper = points.iter().map(|(x, value)| (*x, value.high));
                let lower = points.iter().rev().map(|(x, value)| (*x, value.low));
                let band: Vec<_> = upper.chain(lower).collect();
                chart.draw_series([Polygon::new(band, colour.mix(BAND).filled())]).map_err(plotting)?;
            }
            let middle = || points.iter().map(|(x, value)| (*x, value.middle));
            let style = colour.stroke_width(if is_open { 1 } else { 2 });
            let drawn = chart.draw_series(LineSeries::new(middle(), style)).map_err(plotting)?;
            drawn.label(&line.label).legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style));
            let dot = if is_open { colour.stroke_width(1) } else { colour.filled() };
            chart.draw_series(middle().map(|at| Circle::new(at, 3, dot))).map_err(plotting)?;
        }
        legend(frame, chart, free_corner(&places, &spans))?;
        over = over_lines(frame, chart, &others, &spans);
        root.present().map_err(plotting)
    })?;
    Ok(match text.trim_end().strip_suffix("</svg>") {
        Some(inner) if !over.is_empty() => format!("{inner}{over}</svg>\n"),
        _ => text,
    })
}

/// The values from elsewhere that have a place on the scales, each with its positions.
fn placed_beside<'a>(frame: &Frame, others: &'a [Beside]) -> Vec<(&'a Beside, Option<f64>, Option<f64>)> {
    let x = |value| frame.x.scale.place(value);
    let y = |value| frame.y.scale.place(value);
    let placed = others.iter().map(|other| match other.spot {
        Spot::Level(value) => (other, None, y(value)),
        Spot::Mark(at) => (other, x(at), None),
        // Only both together are a place.
        Spot::Point(at, value) => {
            x(at).zip(y(value)).map_or((other, None, None), |(at, value)| (other, Some(at), Some(value)))
        }
    });
    placed.filter(|(_, x, y)| x.is_some() || y.is_some()).collect()
}

/// Draws values from elsewhere at their places in pixels.
fn over_lines(
    frame: &Frame,
    chart: &ChartContext<'_, SVGBackend<'_>, Coordinates>,
    others: &[(&Beside, Option<f64>, Option<f64>)],
    (x_span, y_span): &Spans,
) -> String {
    let pixels = others.iter().filter_map(|(other, x, y)| {
        let at = (x.unwrap_or(x_span.start), y.unwrap_or(y_span.start));
        let (across, down) = chart.backend_coord(&at);
        let place = match (x, y) {
            (Some(_), Some(_)) => Place::Point(across, down),
            (Some(_), None) => Place::Mark(across),
            (None, Some(_)) => Place::Level(down),
            (None, None) => return None,
        };
        Some((*other, place))
    });
    beside::drawn(&pixels.collect::<Vec<_>>(), &chart.plotting_area().get_pixel_range(), frame.letters)
}

/// Draws groups of bars, each from the start of the axis to its middle value, with a stroke from low to high.
///
/// # Errors
/// [`DrawError`].
pub fn bars(frame: &Frame, labels: &[&str], groups: &[Group]) -> Result<String, DrawError> {
    let placed = |value: &Option<Value>| value.and_then(|value| value.places(frame.y.scale));
    let places = || groups.iter().flat_map(|group| &group.bars).filter_map(placed);
    let (low, high) = extent(places().flat_map(|value| [value.low, value.high]));
    let limit = limit(frame, places()).unwrap_or(high);
    let above = places().filter(|value| value.middle > limit).count();
    let placed = |value: &Option<Value>| placed(value).map(|value| value.up_to(limit));
    let mut spans = (0.0..groups.len() as f64, frame.y.scale.span(low, high.min(limit)));
    let foot = match frame.y.scale {
        Scale::Linear => 0.0,
        // Leaves a step below the lowest bar.
        Scale::Log2 | Scale::Log10 => {
            spans.1.start -= 1.0;
            spans.1.start
        }
    };
    let width = FILLED / labels.len().max(1) as f64;
    let longest = groups.iter().map(|group| group.name.chars().count()).max().unwrap_or(0) as u32;
    let mut text = String::new();
    draw(frame, &spans, longest * LETTER + AROUND, &mut text, |chart, root| {
        note(frame, above, root)?;
        for (number, label) in labels.iter().enumerate() {
            let ((red, green, blue), _) = mark(number);
            let colour = RGBColor(red, green, blue).filled();
            let mut drawn = Vec::new();
            let mut strokes = Vec::new();
            for (place, group) in groups.iter().enumerate() {
                let Some(value) = group.bars.get(number).and_then(placed) else { continue };
                let left = place as f64 + (1.0 - FILLED) / 2.0 + number as f64 * width;
                drawn.push(Rectangle::new([(left, foot), (left + width * 0.9, value.middle)], colour));
                let middle = left + width * 0.45;
                strokes.push(PathElement::new([(middle, value.low), (middle, value.high)], BLACK));
            }
            let drawn = chart.draw_series(drawn).map_err(plotting)?;
            let swatch = move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour);
            drawn.label(*label).legend(swatch);
            chart.draw_series(strokes).map_err(plotting)?;
        }
        legend(frame, chart, SeriesLabelPosition::UpperRight)?;
        let style = ("sans-serif", 13).into_font().transform(FontTransform::Rotate90).color(&BLACK);
        let area = chart.plotting_area().get_pixel_range();
        let across = f64::from(area.0.end - area.0.start) / groups.len() as f64;
        for (place, group) in groups.iter().enumerate() {
            let x = f64::from(area.0.start) + across * (place as f64 + 0.5) + 6.0;
            let name = Text::new(group.name.clone(), (x as i32, area.1.end + 8), style.clone());
            root.draw(&name).map_err(plotting)?;
        }
        root.present().map_err(plotting)
    })?;
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Coordinates =
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>;
type Spans = (Range<f64>, Range<f64>);

/// The end of a linear axis of measured values, if some values lie too far above the others to show both: one in fifty, or a single
/// one, that are more than [`FAR`] times the next. A stroke or band ends there too.
fn limit(frame: &Frame, values: impl Iterator<Item = Value>) -> Option<f64> {
    if frame.measured.is_none() || frame.y.scale != Scale::Linear {
        return None;
    }
    let mut middles: Vec<f64> = values.map(|value| value.middle).collect();
    middles.sort_by(|one, other| other.total_cmp(one));
    let few = (middles.len() / 50).max(1);
    let far = |pair: &[f64]| pair[1] > 0.0 && pair[0] > FAR * pair[1];
    let below =
        (1..=few.min(middles.len().saturating_sub(3))).rev().find(|index| far(&middles[index - 1..=*index]));
    let highest = middles.get(below.unwrap_or(0)).copied()?;
    (highest > 0.0).then_some(highest * ABOVE)
}

/// Writes where and when the values were measured, and how many of them end at the end of the axis.
fn note(frame: &Frame, above: usize, root: &Area<'_>) -> Result<(), DrawError> {
    let Some(measured) = &frame.measured else { return Ok(()) };
    let rest = match above {
        0 => String::new(),
        1 => "; 1 value lies above the axis".to_owned(),
        count => format!("; {count} values lie above the axis"),
    };
    let style = ("sans-serif", 11).into_font().color(&BLACK.mix(0.6));
    let place = (12, frame.size.1.saturating_sub(14) as i32);
    root.draw(&Text::new(format!("{measured}{rest}"), place, style)).map_err(plotting)
}

/// Draws title and axes, then calls `values`. `below` is the height reserved under the chart.
fn draw<'a>(
    frame: &Frame,
    (x_span, y_span): &Spans,
    below: u32,
    text: &'a mut String,
    values: impl FnOnce(&mut ChartContext<'a, SVGBackend<'a>, Coordinates>, &Area<'a>) -> Result<(), DrawError>,
) -> Result<(), DrawError> {
    if !(x_span.start < x_span.end && y_span.start < y_span.end) {
        return Err(DrawError::NothingToShow);
    }
    let root = SVGBackend::with_string(text, frame.size).into_drawing_area();
    root.fill(&WHITE).map_err(plotting)?;
    let mut builder = ChartBuilder::on(&root);
    if let Some(title) = &frame.title {
        builder.caption(title, ("sans-serif", 20));
    }
    let mut chart = builder
        .margin(12)
        .margin_bottom(if frame.measured.is_some() { 26 } else { 12 })
        .margin_right(if frame.title.is_some() { 40 } else { 24 })
        .x_label_area_size(below)
        .y_label_area_size(70)
        .build_cartesian_2d(x_span.clone(), y_span.clone())
        .map_err(plotting)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(&frame.x.words)
        .y_desc(&frame.y.words)
        .x_labels(frame.x_labels)
        .label_style(("sans-serif", frame.letters))
        .light_line_style(TRANSPARENT);
    if frame.x_labels == 0 {
        mesh.disable_x_mesh().disable_x_axis();
    }
    mesh.x_label_formatter(&|place| frame.x.scale.label(*place, frame.x.in_bytes))
        .y_label_formatter(&|place| frame.y.scale.label(*place, frame.y.in_bytes))
        .draw()
        .map_err(plotting)?;
    values(&mut chart, &root)
}

fn legend<'a>(
    frame: &Frame,
    chart: &mut ChartContext<'a, SVGBackend<'a>, Coordinates>,
    corner: SeriesLabelPosition,
) -> Result<(), DrawError> {
    if frame.title.is_none() {
        return Ok(());
    }
    let labels = &mut chart.configure_series_labels();
    labels.position(corner).background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3));
    labels.draw().map_err(plotting)
}

fn plotting(error: impl std::fmt::Display) -> DrawError {
    DrawError::Plotting(error.to_string())
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(value), high.max(value)))
}

/// The corner where a legend covers the fewest points.
fn free_corner(lines: &[Vec<(f64, Value)>], (x, y): &Spans) -> SeriesLabelPosition {
    let share = |value: f64, range: &Range<f64>| (value - range.start) / (range.end - range.start);
    // As shares of the chart: the width of a typical legend, and the height of its lines.
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
                let over = part(ends[0].1.middle, ends[1].1.middle);
                (share(part(ends[0].0, ends[1].0), x), share(over, y))
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

/// Rounds a positive number to two digits.
fn two_digits(value: f64) -> f64 {
    let last = 10f64.powf(value.log10().floor() - 1.0);
    (value / last).round() * last
}

/// A number with few digits.
fn number(value: f64) -> String {
    if value == 0.0 || value.abs() >= 10.0 {
        format!("{value:.0}")
    } else {
        let text = format!("{value:.2}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// A power of two of bytes, with its unit.
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

    fn frame(title: Option<&str>, y_scale: Scale) -> Frame {
        let x = Axis { words: "size (bytes)".to_owned(), in_bytes: true, scale: Scale::Log2 };
        let y = Axis { words: "GB/s".to_owned(), in_bytes: false, scale: y_scale };
        Frame {
            size: (960, 600),
            title: title.map(str::to_owned),
            x,
            y,
            x_labels: 16,
            letters: 12,
            measured: None,
        }
    }

    fn sweep(label: &str, value: impl Fn(f64) -> Value) -> Line {
        let point = |power: i32| (f64::from(power).exp2(), value(f64::from(power)));
        Line { label: label.to_owned(), points: (6..20).map(point).collect() }
    }

    #[test]
    fn line_charts_have_all_their_parts() {
        let varying = sweep("ours", |power| Value { low: power, middle: power + 1.0, high: power + 2.0 });
        let exact = sweep("theirs", Value::from);
        let text = lines(&frame(Some("a sweep"), Scale::Linear), &[varying.clone(), exact.clone()]).unwrap();
        for words in ["<svg", "a sweep", "size (bytes)", "GB/s", "ours", "theirs", "64 B", "KiB", "</svg>"] {
            assert!(text.contains(words), "{words} is missing");
        }
        assert_eq!(text.matches("<polygon").count(), 1, "the band of what varies");
        assert_eq!(text, lines(&frame(Some("a sweep"), Scale::Linear), &[varying, exact.clone()]).unwrap());
        let bare = lines(&frame(None, Scale::Log10), &[exact]).unwrap();
        assert!(!bare.contains("theirs"), "without a title there is no legend");
    }

    #[test]
    fn values_from_elsewhere_lie_over_the_lines() {
        let line = sweep("ours", Value::from);
        let level = |value| Beside {
            spot: Spot::Level(value),
            words: "paper: 900".to_owned(),
            about: String::new(),
            line: Some(0),
        };
        let log = frame(None, Scale::Log10);
        let text = lines_beside(&log, std::slice::from_ref(&line), &[level(900.0)]).unwrap();
        assert_eq!((text.matches("class=\"beside\"").count(), text.matches("</svg>").count()), (1, 1));
        assert!(text.contains(">paper: 900</text>") && text.contains("stroke=\"#0072B2\""), "{text}");
        assert!(text.contains("1000"), "the axis includes it");
        // What has no place on a scale is left out.
        let text = lines_beside(&log, std::slice::from_ref(&line), &[level(0.0)]).unwrap();
        assert_eq!(text, lines(&log, std::slice::from_ref(&line)).unwrap());
    }

    #[test]
    fn a_lone_value_does_not_squash_the_others() {
        let mut outlying = sweep("ours", Value::from);
        outlying.points[3].1 = 9000.0.into();
        let measured =
            Frame { measured: Some("a CPU, today".to_owned()), ..frame(Some("a sweep"), Scale::Linear) };
        let text = lines(&measured, std::slice::from_ref(&outlying)).unwrap();
        assert!(
            text.contains("a CPU, today; 1 value lies above the axis") && !text.contains("8000"),
            "{text}"
        );
        let plain = lines(&frame(Some("a sweep"), Scale::Linear), &[outlying]).unwrap();
        assert!(plain.contains("8000"), "only measured values");
        let doubling = sweep("theirs", |power| power.exp2().into()).points;
        let text = lines(&measured, &[Line { label: String::new(), points: doubling }]).unwrap();
        assert!(!text.contains("above the axis"), "{text}");
    }

    #[test]
    fn bars_are_named_and_gaps_are_left() {
        let groups = [
            Group { name: "cold".to_owned(), bars: vec![Some(2.0.into()), None] },
            Group { name: "hot".to_owned(), bars: vec![Some(1.5.into()), Some(2.5.into())] },
        ];
        for scale in [Scale::Linear, Scale::Log10] {
            let text = bars(&frame(Some("costs"), scale), &["ours", "theirs"], &groups).unwrap();
            for words in ["costs", "cold", "hot", "ours", "theirs", "GB/s"] {
                assert!(text.contains(words), "{words} is missing");
            }
        }
    }

    #[test]
    fn logarithmic_labels_are_round() {
        let label = |tenth: i32| Scale::Log10.label(2.0 + f64::from(tenth) / 10.0, false);
        let labels: Vec<String> = (0..=10).map(label).collect();
        assert_eq!(labels, ["100", "130", "160", "200", "250", "320", "400", "500", "630", "790", "1000"]);
        assert_eq!([-1.0, -0.2].map(|place| Scale::Log10.label(place, false)), ["0.1", "0.63"]);
        let powers = [6.0, 10.0, 16.0, 28.0, 16.5].map(|place| Scale::Log2.label(place, true));
        assert_eq!(powers, ["64 B", "1 KiB", "64 KiB", "256 MiB", ""]);
    }

    #[test]
    fn nothing_to_show_is_an_error() {
        let log = frame(None, Scale::Log10);
        assert_eq!(lines(&log, &[]), Err(DrawError::NothingToShow));
        let negative =
            Line { label: String::new(), points: vec![(64.0, 0.0.into()), (128.0, (-1.0).into())] };
        assert_eq!(lines(&log, &[negative]), Err(DrawError::NothingToShow));
        assert_eq!(bars(&frame(None, Scale::Linear), &["a"], &[]), Err(DrawError::NothingToShow));
    }
}
