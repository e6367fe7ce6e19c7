//! Values from elsewhere beside the lines of a chart: dashed lines across it and diamonds, each with its words.
//!
//! ```text
//! Beside { spot, words, about, line } + places of the axes in pixels ─► <g class="beside"> ... </g> before </svg>
//! ```
//!
//! Written by hand, since the plotting library gives its elements neither classes nor titles. A page can colour and find them by
//! class; a separate file has the colours of its attributes.

use std::fmt::Write;
use std::ops::Range;

use crate::mark;

/// Half the width of a diamond, pixels.
const DIAMOND: i32 = 6;
/// Space between words and their line, pixels.
const GAP: i32 = 4;

/// Where a value from elsewhere lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spot {
    /// At this height across the chart.
    Level(f64),
    /// At this x from top to bottom.
    Mark(f64),
    /// At one x and height.
    Point(f64, f64),
}

/// A value from elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    pub spot: Spot,
    /// The text beside it.
    pub words: String,
    /// What it is, for those who point at it.
    pub about: String,
    /// The number of the line that it belongs to, for its colour.
    pub line: Option<usize>,
}

/// A spot in pixels.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Level(i32),
    Mark(i32),
    Point(i32, i32),
}

/// The values from elsewhere as SVG elements.
pub(crate) fn drawn(
    all: &[(&Beside, Place)],
    (across, down): &(Range<i32>, Range<i32>),
    letters: u32,
) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = "<g class=\"beside\">\n".to_owned();
    let mut taken = Vec::new();
    for (beside, place) in all {
        let colour = beside.line.map_or("#000000".to_owned(), |line| {
            let ((red, green, blue), _) = mark(line);
            format!("#{red:02X}{green:02X}{blue:02X}")
        });
        let about = escaped(&beside.about);
        let dashes = "stroke-width=\"2\" stroke-dasharray=\"7 5\"";
        // Writing to a string cannot fail.
        let _ = match *place {
            Place::Level(y) => write!(
                text,
                "<line x1=\"{}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{colour}\" {dashes}><title>{about}</title></line>\n{}",
                across.start,
                across.end,
                label(&beside.words, (across.end - GAP, y - GAP), true, letters, down, &mut taken)
            ),
            Place::Mark(x) => {
                let is_left = x > (across.start + across.end) / 2;
                let at = if is_left { x - GAP } else { x + GAP };
                write!(
                    text,
                    "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"{colour}\" {dashes}><title>{about}</title></line>\n{}",
                    down.start,
                    down.end,
                    label(
                        &beside.words,
                        (at, down.start + letters as i32),
                        is_left,
                        letters,
                        down,
                        &mut taken
                    )
                )
            }
            Place::Point(x, y) => {
                let [left, right, up, low] = [x - DIAMOND, x + DIAMOND, y - DIAMOND, y + DIAMOND];
                writeln!(
                    text,
                    "<path d=\"M{left} {y}L{x} {up}L{right} {y}L{x} {low}Z\" fill=\"{colour}\" stroke=\"#000000\">\
                     <title>{about}</title></path>"
                )
            }
        };
    }
    text + "</g>\n"
}

/// Words at a place, or below others that are there already; upright, they stay within the chart.
fn label(
    words: &str,
    (x, y): (i32, i32),
    ends_here: bool,
    letters: u32,
    down: &Range<i32>,
    taken: &mut Vec<(bool, i32)>,
) -> String {
    let step = letters as i32 + 2;
    let is_free = |y: i32, taken: &[(bool, i32)]| {
        taken.iter().all(|(side, at)| *side != ends_here || (at - y).abs() >= step)
    };
    let mut y = y.max(down.start + letters as i32);
    while !is_free(y, taken) && y < down.end {
        y += step;
    }
    taken.push((ends_here, y));
    let anchor = if ends_here { "end" } else { "start" };
    format!(
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" font-family=\"sans-serif\" font-size=\"{letters}\" \
         fill=\"#000000\" stroke=\"#FFFFFF\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>\n",
        escaped(words)
    )
}

/// Text within an element.
fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(spot: Spot, words: &str) -> Beside {
        Beside { spot, words: words.to_owned(), about: format!("about {words}"), line: None }
    }

    /// The heights of all texts.
    fn heights(text: &str) -> Vec<i32> {
        let texts = text.split("<text ").skip(1);
        texts.filter_map(|rest| rest.split("y=\"").nth(1)?.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn words_do_not_lie_on_each_other_or_above_the_chart() {
        let all = ["a", "b", "c"].map(|words| beside(Spot::Level(1.0), words));
        let places: Vec<_> = all.iter().zip([20, 21, 60]).map(|(one, y)| (one, Place::Level(y))).collect();
        let heights = heights(&drawn(&places, &(10..200, 18..150), 12));
        assert_eq!(heights.len(), 3);
        assert!(heights.iter().all(|y| *y >= 18 + 12), "{heights:?}");
        for (at, y) in heights.iter().enumerate() {
            assert!(heights[..at].iter().all(|other| (other - y).abs() >= 12), "{heights:?}");
        }
    }

    #[test]
    fn texts_are_escaped() {
        let hostile = beside(Spot::Mark(1.0), "<script> & ");
        let text = drawn(&[(&hostile, Place::Mark(50))], &(0..100, 0..100), 12);
        assert!(!text.contains("<script") && text.contains("&lt;script&gt; &amp;"), "{text}");
        assert_eq!(drawn(&[], &(0..100, 0..100), 12), "");
    }
}
