//! The report as a picture: for each size class its share of calls, of bytes and of time, side by side.
//!
//! ```text
//! Report: sizes ─► shares ─► bars ─► SVG
//! ```
//!
//! The same report gives the same file.

use plotters::prelude::*;

use super::report::{Report, Sum};
use crate::CommandError;

const SIZE: (u32, u32) = (960, 540);
/// Colours that people who see fewer of them can tell apart too (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(230, 159, 0), RGBColor(0, 158, 115)];
const NAMES: [&str; 3] = ["calls", "bytes", "time (4 KiB and more)"];
/// Of the space of a class, its bars take so much.
const FILLED: f64 = 0.8;

pub(super) fn svg(report: &Report) -> Result<String, CommandError> {
    let mut text = String::new();
    draw(report, &mut text).map_err(|error| format!("cannot draw the picture: {error}"))?;
    Ok(text)
}

/// Percent of calls, bytes and time.
fn shares(sum: &Sum, all: &Sum) -> [f64; 3] {
    let share = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    [
        share(sum.calls as f64, all.calls as f64),
        share(sum.bytes as f64, all.bytes as f64),
        share(sum.seconds, all.seconds),
    ]
}

fn draw(report: &Report, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let bars: Vec<[f64; 3]> = report.sizes.iter().map(|size| shares(&size.sum, &report.all)).collect();
    let names: Vec<String> = report.sizes.iter().map(|size| short(size.from_bytes)).collect();
    let highest = bars.iter().flatten().copied().fold(1.0, f64::max) * 1.08;
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title = format!("copies of {} by size", report.program.first().map_or("", String::as_str));
    let classes = bars.len().max(1);
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(60)
        .build_cartesian_2d(-0.5..classes as f64 - 0.5, 0.0..highest)?;
    chart
        .configure_mesh()
        .x_desc("bytes, from")
        .y_desc("percent of all")
        .x_labels(2 * classes + 1)
        .x_label_formatter(&|at| class_name(*at, &names))
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .draw()?;
    let width = FILLED / COLOURS.len() as f64;
    for (index, (colour, name)) in COLOURS.into_iter().zip(NAMES).enumerate() {
        let bar = |(class, shares): (usize, &[f64; 3])| {
            let left = class as f64 - FILLED / 2.0 + index as f64 * width;
            Rectangle::new([(left, 0.0), (left + width, shares[index])], colour.filled())
        };
        chart
            .draw_series(bars.iter().enumerate().map(bar))?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()?;
    Ok(())
}

/// The name of the class in whose middle a place is; nothing between classes.
fn class_name(at: f64, names: &[String]) -> String {
    let whole = at.round();
    let is_middle = (at - whole).abs() < 1e-6 && whole >= 0.0;
    is_middle.then(|| names.get(whole as usize).cloned()).flatten().unwrap_or_default()
}

/// A length in few characters: there may be sixty beside each other.
fn short(bytes: u64) -> String {
    let units = [(60, "E"), (50, "P"), (40, "T"), (30, "G"), (20, "M"), (10, "K"), (0, "")];
    let fits = |(power, _): &&(u32, &str)| bytes >> power > 0;
    units
        .iter()
        .find(fits)
        .map_or_else(|| "0".to_owned(), |(power, unit)| format!("{}{unit}", bytes >> power))
}

#[cfg(test)]
mod tests {
    use memferry_recording::{Alignment, Distance, Kind, Operation, Recording, Row};

    use super::*;

    #[test]
    fn a_picture_has_its_sizes_and_is_the_same_for_the_same_report() {
        let row = |size_class: u8| {
            let operation = Operation::Memcpy;
            let alignment = Alignment::Words;
            let kind = Kind { operation, size_class, alignment, distance: Distance::Near, caller: None };
            Row { kind, calls: 5, bytes: 100, ticks: 7 }
        };
        let recording = Recording { rows: (1..20).map(row).collect(), ..Recording::default() };
        let report = Report::new(&recording, Some(1.0), 3);
        let text = svg(&report).unwrap();
        for word in ["<svg", "calls", "time (4 KiB and more)", "64K", "percent of all", "</svg>"] {
            assert!(text.contains(word), "{word} is missing");
        }
        assert_eq!(text, svg(&report).unwrap());
    }

    #[test]
    fn lengths_are_short() {
        assert_eq!([0, 1, 512, 1024, 1 << 29, 1 << 63].map(short), ["0", "1", "512", "1K", "512M", "8E"]);
    }

    #[test]
    fn a_report_of_nothing_is_a_picture_without_bars() {
        assert!(svg(&Report::default()).unwrap().contains("</svg>"));
    }
}
