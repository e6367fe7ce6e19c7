//! A plan: one figure of a paper as data.
//!
//! ```text
//! plans/FIGURE.toml ──parse, check──► Plan { figure, runner, x sweep, y axis, series with settings, claims }
//! Plan × series ──► Line ── settings::<T>(), x values, parameters ──► a runner
//! ```
//!
//! Unknown keys are refused in plans; in the settings of a series, the runner's settings type refuses them. Runners define the
//! settings, and claims define what is required.

use memferry_charts::Scale;
use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    pub label: String,
    pub unit: String,
    pub scale: Scale,
}

/// The horizontal axis and the x values to run: `points`, or the powers of two `from..=to`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    pub label: String,
    pub unit: String,
    pub scale: Scale,
    pub points: Option<Vec<f64>>,
    pub from: Option<u64>,
    pub to: Option<u64>,
    /// Increasing x values for the bands: few and cheap ones. Default: all points.
    pub reduced: Option<Vec<f64>>,
}

impl Sweep {
    /// The x values, increasing; `None` unless exactly one of the two ways is used.
    fn all(&self) -> Option<Vec<f64>> {
        match (&self.points, self.from, self.to) {
            (Some(points), None, None) => Some(points.clone()),
            (None, Some(from), Some(to)) if from.is_power_of_two() && from <= to => {
                let powers = (from.trailing_zeros()..64).map(|power| 1u64 << power);
                Some(powers.take_while(|point| *point <= to).map(|point| point as f64).collect())
            }
            _ => None,
        }
    }
}

/// One line of a figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesPlan {
    /// Its name in the legend.
    pub label: String,
    /// Input for the runner.
    #[serde(default)]
    pub settings: toml::Table,
}

impl SeriesPlan {
    /// Its name and, where one simulation gives two lines, that of the second: the setting `also`.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let also = self.settings.get("also").and_then(toml::Value::as_str);
        std::iter::once(self.label.as_str()).chain(also)
    }
}

/// The plan of one figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Unique; names its files and is the key for judges.
    pub figure: String,
    pub title: String,
    /// What the paper's figure shows: axes, lines, comments of its text. For a figure that the paper does not have: its purpose.
    pub shows: String,
    /// The paper, by author and year.
    pub paper: String,
    /// The number of the figure in the paper.
    pub number: String,
    pub runner: String,
    /// Seed of the runner's random numbers.
    pub seed: u64,
    /// The claims that it helps to decide.
    pub claims: Vec<String>,
    pub x: Sweep,
    pub y: Axis,
    pub series: Vec<SeriesPlan>,
}

/// Why a plan is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, or an unknown or missing key.
    #[error("a plan does not parse: {0}")]
    Syntax(#[from] toml::de::Error),
    /// The figure's name is not usable as a file name.
    #[error("figure `{figure}`: use lower-case letters, digits and hyphens only")]
    Name { figure: String },
    /// A sweep without increasing points, or stated in two ways.
    #[error("figure `{figure}`: give x either rising points, or from and to as powers of two")]
    Sweep { figure: String },
    /// No line, or two lines with one label.
    #[error("figure `{figure}`: give at least one series, and each a unique label")]
    Series { figure: String },
}

impl Plan {
    /// Reads and checks a plan.
    ///
    /// # Errors
    /// The first rule of [`PlanError`] that it breaks.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let plan: Self = toml::from_str(text)?;
        let figure = || plan.figure.clone();
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if plan.figure.is_empty() || !plan.figure.chars().all(is_plain) {
            return Err(PlanError::Name { figure: figure() });
        }
        let rises = |points: &[f64]| !points.is_empty() && points.is_sorted_by(|a, b| a < b);
        let stated = plan.x.all().is_some_and(|points| rises(&points));
        if !stated || !plan.x.reduced.as_deref().is_none_or(rises) {
            return Err(PlanError::Sweep { figure: figure() });
        }
        let labels = || plan.series.iter().flat_map(SeriesPlan::labels);
        let unique: std::collections::BTreeSet<&str> = labels().collect();
        if unique.is_empty() || unique.len() != labels().count() {
            return Err(PlanError::Series { figure: figure() });
        }
        Ok(plan)
    }

    /// The x values of the sweep, increasing.
    pub fn points(&self) -> Vec<f64> {
        self.x.all().unwrap_or_default()
    }

    /// The same plan with the short sweep of the bands.
    #[must_use]
    pub fn reduced(&self) -> Self {
        let mut plan = self.clone();
        if let Some(points) = plan.x.reduced.clone() {
            (plan.x.points, plan.x.from, plan.x.to) = (Some(points), None, None);
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = "figure = 'a-1'\ntitle = 't'\nshows = 's'\npaper = 'p'\nnumber = '1'\nrunner = 'r'\nseed = 1\nclaims = []\n";
    const AXES: &str = "[x]\nlabel = 'size'\nunit = 'bytes'\nscale = 'log2'\nfrom = 4\nto = 20\nreduced = [8]\n\
                        [y]\nlabel = 'v'\nunit = 'MiB/s'\nscale = 'linear'\n";
    const SERIES: &str = "[[series]]\nlabel = 's'\nsettings = { bits = 8 }\n";

    fn parse(parts: &[&str]) -> Result<Plan, PlanError> {
        Plan::parse(&parts.concat())
    }

    #[test]
    fn powers_of_two_cover_the_sweep() {
        let plan = parse(&[PLAN, AXES, SERIES]).expect("well formed");
        assert_eq!(plan.points(), [4.0, 8.0, 16.0]);
        assert_eq!(plan.reduced().points(), [8.0]);
    }

    #[test]
    fn refuses_unknown_keys_and_bad_figure_names() {
        assert!(matches!(parse(&[PLAN, "colour = 1\n", AXES, SERIES]), Err(PlanError::Syntax(_))));
        assert!(matches!(parse(&[PLAN, AXES, SERIES, "label2 = 's'"]), Err(PlanError::Syntax(_))));
        let named = parse(&[&PLAN.replace("a-1", "../a"), AXES, SERIES]);
        assert_eq!(named, Err(PlanError::Name { figure: "../a".to_owned() }));
    }

    #[test]
    fn refuses_missing_double_and_falling_sweeps() {
        for x in ["", "points = [1]\nfrom = 1\nto = 2\n", "points = [2, 1]\n", "from = 3\nto = 9\n"] {
            let axes = AXES.replace("from = 4\nto = 20\n", x);
            assert_eq!(
                parse(&[PLAN, &axes, SERIES]),
                Err(PlanError::Sweep { figure: "a-1".to_owned() }),
                "{x}"
            );
        }
    }

    #[test]
    fn refuses_repeated_labels_and_no_lines() {
        let twice = parse(&[PLAN, AXES, SERIES, SERIES]);
        assert_eq!(twice, Err(PlanError::Series { figure: "a-1".to_owned() }));
        let second = SERIES.replace("bits = 8", "also = 's'");
        let one = parse(&[PLAN, AXES, &second]);
        assert_eq!(one, Err(PlanError::Series { figure: "a-1".to_owned() }));
        let none = parse(&[PLAN, "series = []\n", AXES]);
        assert_eq!(none, Err(PlanError::Series { figure: "a-1".to_owned() }));
    }
}
