//! Sweeps as pictures: one SVG file each, lines through medians with a band that holds the middle eight tenths of the rounds.
//!
//! ```text
//! rounds ─ Spread::of ─► Series ─► Plot ─ svg ─► text ─ write ─► DIRECTORY/name.svg
//! ```
//!
//! A band from the least to the most would show what else the machine did in some round, and nothing else. The same figures
//! give the same file: nothing in it depends on the time or the machine. What is measured is not this module's concern.

use std::path::{Path, PathBuf};

use plotters::prelude::*;

use crate::BenchError;
use crate::timing::median;

const SIZE: (u32, u32) = (960, 600);
/// Colours that people who see fewer of them can tell apart too (Okabe and Ito).
pub(crate) const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(60, 60, 60),
];
const BAND: f64 = 0.15;
/// Free space above the highest value.
const HEADROOM: f64 = 1.08;

/// Where several values lie: a tenth of them below `low`, a tenth above `high`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Spread {
    low: f64,
    median: f64,
    high: f64,
}

impl Spread {
    /// That of some values.
    pub(crate) fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |tenths: usize| {
            let last = sorted.len().saturating_sub(1);
            sorted.get((last * tenths + 5) / 10).copied().unwrap_or(f64::NAN)
        };
        Self { low: at(1), median: median(values), high: at(9) }
    }
}

/// A line of a plot.
pub(crate) struct Series {
    /// What the legend calls it.
    pub(crate) name: String,
    /// Bytes, and the values there.
    pub(crate) points: Vec<(f64, Spread)>,
}

/// A sweep over sizes in bytes.
pub(crate) struct Plot {
    /// The name of its file, without ending.
    pub(crate) file: &'static str,
    /// What stands above it.
    pub(crate) title: String,
    /// What the upright axis counts, with its unit.
    pub(crate) values: &'static str,
    pub(crate) series: Vec<Series>,
}

impl Plot {
    /// Writes it into a directory, which is made where it is missing; returns its file.
    ///
    /// # Errors
    /// When it cannot be written, or has nothing to show.
    pub(crate) fn write(&self, directory: &Path) -> Result<PathBuf, BenchError> {
        let path = directory.join(self.file).with_extension("svg");
        std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::write(&path, self.svg()?))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(path)
    }

    fn svg(&self) -> std::io::Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(text)
    }

    /// The upper corner on whose side the lines are lower.
    fn free_corner(&self, first: f64, last: f64) -> SeriesLabelPosition {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let highest = |left: bool| {
            let side = points().filter(|(bytes, _)| (bytes.log2() < f64::midpoint(first, last)) == left);
            side.map(|(_, spread)| spread.high).fold(0.0, f64::max)
        };
        if highest(true) < highest(false) {
            SeriesLabelPosition::UpperLeft
        } else {
            SeriesLabelPosition::UpperRight
        }
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let spread = |least: f64, most: f64| (least < most).then_some(least..most);
        let first = points().map(|(bytes, _)| bytes.log2()).fold(f64::INFINITY, f64::min);
        let last = points().map(|(bytes, _)| bytes.log2()).fold(0.0, f64::max);
        let highest = points().map(|(_, spread)| spread.high).fold(0.0, f64::max) * HEADROOM;
        let lowest = points().map(|(_, spread)| spread.low).fold(0.0, f64::min) * HEADROOM;
        let horizontal = spread(first, last).ok_or("a plot needs two sizes")?;
        let vertical = spread(lowest, highest).ok_or("a plot needs values")?;
        let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(&self.title, ("sans-serif", 20))
            .margin(12)
            .margin_right(40)
            .x_label_area_size(44)
            .y_label_area_size(60)
            .build_cartesian_2d(horizontal, vertical)?;
        chart
            .configure_mesh()
            .x_desc("bytes (line: median, band: the middle eight tenths)")
            .y_desc(self.values)
            .x_labels(16)
            .x_label_formatter(&|power| power_name(*power))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let at = |value: fn(&Spread) -> f64| {
                series.points.iter().map(move |(bytes, spread)| (bytes.log2(), value(spread)))
            };
            let band: Vec<_> = at(|spread| spread.high).chain(at(|spread| spread.low).rev()).collect();
            chart.draw_series([Polygon::new(band, colour.mix(BAND).filled())])?;
            let middle: Vec<_> = at(|spread| spread.median).collect();
            chart
                .draw_series(LineSeries::new(middle.clone(), colour.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
            chart.draw_series(middle.into_iter().map(|at| Circle::new(at, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(self.free_corner(first, last))
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

/// A power of two of bytes in words; nothing between powers.
fn power_name(power: f64) -> String {
    let whole = power.round();
    if (power - whole).abs() > 1e-6 {
        return String::new();
    }
    let (unit, less) = match whole {
        p if p >= 30.0 => ("GiB", 30.0),
        p if p >= 20.0 => ("MiB", 20.0),
        p if p >= 10.0 => ("KiB", 10.0),
        _ => ("B", 0.0),
    };
    format!("{} {unit}", (whole - less).exp2())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: &[&str]) -> Plot {
        let points = |of: usize| {
            let at = |power: i32| (2f64.powi(power), Spread::of(&[1.0 + of as f64, 2.0, 4.0]));
            (6..20).map(at).collect()
        };
        let of = |(index, name): (usize, &&str)| Series { name: (*name).to_owned(), points: points(index) };
        let series = series.iter().enumerate().map(of).collect();
        Plot { file: "sweep", title: "a sweep".to_owned(), values: "GB/s", series }
    }

    #[test]
    fn a_plot_is_written_with_its_title_axes_and_series() {
        let directory = std::env::temp_dir().join(format!("memferry-plots-{}", std::process::id()));
        let path = plot(&["ours", "theirs"]).write(&directory).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(path, directory.join("sweep.svg"));
        for word in ["<svg", "a sweep", "GB/s", "bytes", "ours", "theirs", "64 B", "KiB", "</svg>"] {
            assert!(text.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn the_same_figures_give_the_same_file() {
        assert_eq!(plot(&["a", "b"]).svg().unwrap(), plot(&["a", "b"]).svg().unwrap());
    }

    #[test]
    fn a_band_leaves_out_the_tenths_at_either_end() {
        let values: Vec<_> = (0..=10).map(f64::from).collect();
        assert_eq!(Spread::of(&values), Spread { low: 1.0, median: 5.0, high: 9.0 });
        assert_eq!(Spread::of(&[2.0]), Spread { low: 2.0, median: 2.0, high: 2.0 });
    }

    #[test]
    fn refuses_a_plot_with_nothing_to_show() {
        let error = plot(&[]).svg().unwrap_err();
        assert_eq!(error.to_string(), "a plot needs two sizes");
    }

    #[test]
    fn powers_have_names_and_what_lies_between_has_none() {
        let names: Vec<_> = [6.0, 10.0, 16.0, 28.0, 16.5].map(power_name).into();
        assert_eq!(names, ["64 B", "1 KiB", "64 KiB", "256 MiB", ""]);
    }
}
