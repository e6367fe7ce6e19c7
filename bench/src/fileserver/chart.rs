//! The table as a picture: groups of bars, a bar for each server, from nothing to the median, with a line from least to most.
//!
//! ```text
//! Group { name, bars: (server, values of the rounds) } ──► SVG
//! ```
//!
//! The same figures give the same file.

use std::path::Path;

use plotters::prelude::*;

use crate::timing::median;
use crate::{BenchError, plots};

const SIZE: (u32, u32) = (1100, 620);
/// Of the servers, in the order of the table.
const COLOURS: [RGBColor; 5] =
    [plots::COLOURS[1], plots::COLOURS[0], plots::COLOURS[2], plots::COLOURS[6], plots::COLOURS[4]];
/// The part of a group's width that its bars take.
const FILLED: f64 = 0.8;

/// Some bars beside one another.
pub(super) struct Group {
    /// What stands below them.
    pub(super) name: String,
    /// Servers, and their values; one without values has no bar.
    pub(super) bars: Vec<(&'static str, Vec<f64>)>,
}

/// Draws them.
///
/// # Errors
/// When there is nothing to draw, or it cannot be written.
pub(super) fn draw(path: &Path, groups: &[Group]) -> Result<(), BenchError> {
    let values =
        || groups.iter().flat_map(|group| &group.bars).flat_map(|(_, values)| values.iter().copied());
    let highest = values().fold(0.0, f64::max) * 1.1;
    if highest <= 0.0 {
        return Err("a picture needs values".into());
    }
    let mut text = String::new();
    draw_into(&mut text, groups, highest).map_err(|error| error.to_string())?;
    Ok(std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?)
}

fn draw_into(text: &mut String, groups: &[Group], highest: f64) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(
            "Processor time of the server for a GiB (bar: median, line: least to most)",
            ("sans-serif", 20),
        )
        .margin(12)
        .x_label_area_size(150)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..groups.len() as f64, 0.0..highest)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .y_desc("s/GiB")
        .light_line_style(TRANSPARENT)
        .draw()?;
    let servers = groups.iter().map(|group| group.bars.len()).max().unwrap_or(1);
    let width = FILLED / servers as f64;
    for server in 0..servers {
        let colour = COLOURS[server % COLOURS.len()];
        let mut bars = Vec::new();
        let mut lines = Vec::new();
        for (place, group) in groups.iter().enumerate() {
            let Some((_, values)) = group.bars.get(server).filter(|(_, values)| !values.is_empty()) else {
                continue;
            };
            let left = place as f64 + (1.0 - FILLED) / 2.0 + server as f64 * width;
            bars.push(Rectangle::new([(left, 0.0), (left + width * 0.9, median(values))], colour.filled()));
            let ends =
                values.iter().fold((f64::INFINITY, 0.0_f64), |(low, high), v| (low.min(*v), high.max(*v)));
            let middle = left + width * 0.45;
            lines.push(PathElement::new([(middle, ends.0), (middle, ends.1)], BLACK.stroke_width(1)));
        }
        let name = groups.iter().find_map(|group| group.bars.get(server)).map_or("", |(name, _)| name);
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
        chart.draw_series(lines)?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    let style = ("sans-serif", 13).into_font().transform(FontTransform::Rotate90).color(&BLACK);
    let area = chart.plotting_area().get_pixel_range();
    for (place, group) in groups.iter().enumerate() {
        let across = f64::from(area.0.end - area.0.start) / groups.len() as f64;
        let x = f64::from(area.0.start) + across * (place as f64 + 0.6);
        root.draw(&Text::new(group.name.clone(), (x as i32, area.1.end + 8), style.clone()))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_names_its_groups_and_servers_and_is_the_same_twice() {
        let groups = [
            Group { name: "cold".to_owned(), bars: vec![("ours", vec![1.0, 2.0, 3.0]), ("theirs", vec![])] },
            Group { name: "hot".to_owned(), bars: vec![("ours", vec![1.5]), ("theirs", vec![2.0])] },
        ];
        let mut texts = [String::new(), String::new()];
        for text in &mut texts {
            draw_into(text, &groups, 4.0).unwrap();
        }
        assert_eq!(texts[0], texts[1]);
        for word in ["cold", "hot", "ours", "theirs", "s/GiB"] {
            assert!(texts[0].contains(word), "{word} is missing");
        }
        assert!(draw(Path::new("/nowhere/at/all"), &[]).is_err());
    }
}
