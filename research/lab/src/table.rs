//! The results of runners: the lines of a figure, and all figures by id.
//!
//! ```text
//! runner ──► Series { label, points x → y } ──► Table ──► figures (CSV, SVG)
//!                                                 └──► Tables ── line(figure, label) ──► judges
//! ```
//!
//! Units are those of the plan.

use std::collections::BTreeMap;

use crate::plan::Plan;

/// One line of a figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub label: String,
    /// x and y in the plan's units, by increasing x.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// The highest value; zero without points.
    pub fn peak(&self) -> f64 {
        self.points.iter().map(|(_, y)| *y).fold(0.0, f64::max)
    }

    /// The value at the last point; zero without points.
    pub fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |(_, y)| *y)
    }

    /// The value at a point of the sweep.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|(at, _)| *at == x).map(|(_, y)| *y)
    }

    /// The x of the highest value, the first of equal ones; zero without points.
    pub fn peak_at(&self) -> f64 {
        let peak = self.peak();
        self.points.iter().find(|(_, y)| *y == peak).map_or(0.0, |(x, _)| *x)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    pub plan: Plan,
    /// In the order of the plan.
    pub series: Vec<Series>,
}

/// A judge asked for a series or point that was not computed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TableError {
    #[error("figure `{figure}` has no series `{label}`")]
    NoSeries { figure: String, label: String },
    #[error("figure `{figure}`, series `{label}` has no point at {x}")]
    NoPoint { figure: String, label: String, x: f64 },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tables(BTreeMap<String, Table>);

impl Tables {
    /// Indexes the figures by id.
    pub fn new(tables: impl IntoIterator<Item = Table>) -> Self {
        Self(tables.into_iter().map(|table| (table.plan.figure.clone(), table)).collect())
    }

    /// The figures whose plans name a claim.
    #[must_use]
    pub fn of_claim(&self, id: &str) -> Self {
        let named = self.iter().filter(|table| table.plan.claims.iter().any(|claim| claim == id));
        Self::new(named.cloned())
    }

    /// The figures, by increasing id.
    pub fn iter(&self) -> impl Iterator<Item = &Table> {
        self.0.values()
    }

    /// A line of a figure.
    ///
    /// # Errors
    /// [`TableError::NoSeries`].
    pub fn line(&self, figure: &str, label: &str) -> Result<&Series, TableError> {
        let found = self.0.get(figure).and_then(|table| table.series.iter().find(|line| line.label == label));
        found.ok_or_else(|| TableError::NoSeries { figure: figure.to_owned(), label: label.to_owned() })
    }

    /// The value of a line at a point.
    ///
    /// # Errors
    /// [`TableError::NoSeries`], [`TableError::NoPoint`].
    pub fn value(&self, figure: &str, label: &str, x: f64) -> Result<f64, TableError> {
        self.line(figure, label)?.at(x).ok_or_else(|| TableError::NoPoint {
            figure: figure.to_owned(),
            label: label.to_owned(),
            x,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_peak_and_a_last_value() {
        let line =
            Series { label: "a".to_owned(), points: vec![(1.0, 2.0), (2.0, 5.0), (4.0, 5.0), (8.0, 3.0)] };
        assert_eq!(
            (line.peak(), line.peak_at(), line.last(), line.at(4.0), line.at(3.0)),
            (5.0, 2.0, 3.0, Some(5.0), None)
        );
    }
}
