//! Sweeps over sizes as charts: lines through medians, with bands around the middle eight tenths of the rounds.
//!
//! ```text
//! rounds ─ spread ─► Value ─► Line ─ sweep ─► SVG ─ Run::picture ─► DIRECTORY/name.svg
//! ```
//!
//! A band from minimum to maximum would only show other activity of the machine. Each chart names the machine and the day.

use std::time::{SystemTime, UNIX_EPOCH};

use memferry_charts::{Axis, DrawError, Frame, Line, Scale, Value};
use memferry_service::profile;

use crate::timing::median;

/// The median of values, with the first and the last tenth as `low` and `high`.
pub(crate) fn spread(values: &[f64]) -> Value {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |tenths: usize| {
        let last = sorted.len().saturating_sub(1);
        sorted.get((last * tenths + 5) / 10).copied().unwrap_or(f64::NAN)
    };
    Value { low: at(1), middle: median(values), high: at(9) }
}

/// The median of values, with minimum and maximum; `None` without values.
pub(crate) fn range(values: &[f64]) -> Option<Value> {
    let low = values.iter().copied().min_by(f64::total_cmp)?;
    let high = values.iter().copied().max_by(f64::total_cmp)?;
    Some(Value { low, middle: median(values), high })
}

/// A frame whose vertical axis shows values.
pub(crate) fn frame(title: &str, x: Axis, values: &str, scale: Scale) -> Frame {
    let y = Axis { words: values.to_owned(), in_bytes: false, scale };
    let title = Some(title.to_owned());
    Frame { size: (1100, 640), title, x, y, x_labels: 16, letters: 12, measured: Some(surroundings()) }
}

/// The machine and the day, which values depend on.
fn surroundings() -> String {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{}, {cpus} CPUs, {}", profile::cpu(), memferry_charts::day(seconds))
}

/// Lines over sizes in bytes.
///
/// # Errors
/// [`DrawError`] when the chart has nothing to show.
pub(crate) fn sweep(title: &str, values: &str, lines: &[Line]) -> Result<String, DrawError> {
    let words = "bytes (line: median, band: the middle eight tenths)".to_owned();
    let x = Axis { words, in_bytes: true, scale: Scale::Log2 };
    memferry_charts::lines(&frame(title, x, values, Scale::Linear), lines)
}

/// Bars in groups, each with a stroke from minimum to maximum.
///
/// # Errors
/// [`DrawError`] when the chart has nothing to show.
pub(crate) fn bars(
    title: &str,
    (values, scale): (&str, Scale),
    labels: &[&str],
    groups: &[memferry_charts::Group],
) -> Result<String, DrawError> {
    let x = Axis { words: String::new(), in_bytes: false, scale: Scale::Linear };
    memferry_charts::bars(&Frame { x_labels: 0, ..frame(title, x, values, scale) }, labels, groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_name_machine_and_day() {
        assert!(surroundings().contains(" CPUs, 20"));
    }

    #[test]
    fn a_spread_omits_a_tenth_at_either_end() {
        let values: Vec<_> = (0..=10).map(f64::from).collect();
        assert_eq!(spread(&values), Value { low: 1.0, middle: 5.0, high: 9.0 });
        assert_eq!(spread(&[2.0]), Value::from(2.0));
        assert_eq!(range(&values), Some(Value { low: 0.0, middle: 5.0, high: 10.0 }));
        assert_eq!(range(&[]), None);
    }
}
