//! The interface between a paper's module and the lab: runners, judges, and the errors of both.
//!
//! ```text
//! Line { plan, series, parameters } ──► Runner ──► Series
//! Case { claim, tables, parameters } ──► Judge ──► Verdict
//! ```
//!
//! [`crate::experiments`] runs them.

use serde::de::DeserializeOwned;

use crate::claims::{Claim, Place};
use crate::parameters::{Parameters, ParametersError};
use crate::plan::{Plan, PlanError, SeriesPlan};
use crate::table::{Series, TableError, Tables};
use crate::verdict::Verdict;

/// Computes the lines of every plan that names it.
#[derive(Clone, Copy, Debug)]
pub struct Runner {
    /// The name used by plans.
    pub name: &'static str,
    /// Computes one line of a plan, which may give several series.
    pub run: fn(&Line<'_>) -> Result<Vec<Series>, RunError>,
}

/// The input of a runner: one line of one figure.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub plan: &'a Plan,
    pub series: &'a SeriesPlan,
    /// The parameters of the paper's model.
    pub parameters: &'a Parameters,
}

impl Line<'_> {
    /// The settings of this line as the runner's own type. That type must refuse unknown keys.
    ///
    /// # Errors
    /// [`RunError::Settings`].
    pub fn settings<T: DeserializeOwned>(&self) -> Result<T, RunError> {
        T::deserialize(self.series.settings.clone()).map_err(|error| RunError::Settings {
            figure: self.plan.figure.clone(),
            series: self.series.label.clone(),
            error: Box::new(error),
        })
    }

    /// An error of this line with the runner's message.
    pub fn failed(&self, message: impl ToString) -> RunError {
        RunError::Failed {
            figure: self.plan.figure.clone(),
            series: self.series.label.clone(),
            message: message.to_string(),
        }
    }
}

/// The input of a judge.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub claim: &'a Claim,
    /// The figures whose plans name the claim.
    pub tables: &'a Tables,
    /// The parameters of the paper's model.
    pub parameters: &'a Parameters,
}

impl Case<'_> {
    /// An error of this claim with the judge's message.
    pub fn failed(&self, message: impl ToString) -> RunError {
        RunError::Judge { claim: self.claim.id.clone(), message: message.to_string() }
    }
}

/// Decides one claim in one place.
#[derive(Clone, Copy, Debug)]
pub struct Judge {
    pub claim: &'static str,
    pub place: Place,
    pub judge: fn(&Case<'_>) -> Result<Verdict, RunError>,
}

/// How a fitted parameter is found again on another machine.
#[derive(Clone, Copy, Debug)]
pub struct Fit {
    /// A parameter whose entry says `fitted`.
    pub parameter: &'static str,
    /// The calibrated claim to which it is fitted.
    pub claim: &'static str,
    /// The relative distance to the claim's figure: positive while the parameter is too low, and falling as it rises.
    pub gap: fn(&Claim, &Parameters) -> Result<f64, RunError>,
}

/// The experiments on one paper.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Author and year, as claims name it.
    pub name: &'static str,
    pub title: &'static str,
    /// TOML texts of its plans.
    pub plans: &'static [&'static str],
    /// TOML text of its parameters.
    pub parameters: &'static str,
    /// The runners that its plans name.
    pub runners: &'static [Runner],
    /// The judges of its claims, grouped by module.
    pub judges: &'static [&'static [Judge]],
    /// The fitted parameters, in the order in which they are solved.
    pub fits: &'static [&'static [Fit]],
}

/// Why experiments could not be prepared or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// A judge needs a series or point that was not computed.
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("figure `{figure}` has two plans")]
    FigureTwice { figure: String },
    #[error("figure `{figure}` names the runner `{runner}`, which its paper does not have")]
    NoRunner { figure: String, runner: String },
    #[error("figure `{figure}` names the claim `{claim}`, which is not listed")]
    NoClaim { figure: String, claim: String },
    #[error("there is a judge for `{claim}`, which is not listed")]
    NothingToJudge { claim: String },
    /// An id on the command line is neither a claim nor a figure.
    #[error("there is no claim and no figure `{id}`")]
    Unknown { id: String },
    /// The settings of a line do not match its runner's type.
    #[error("figure `{figure}`, series `{series}`: {error}")]
    Settings { figure: String, series: String, error: Box<toml::de::Error> },
    #[error("figure `{figure}`, series `{series}`: {message}")]
    Failed { figure: String, series: String, message: String },
    #[error("claim `{claim}`: {message}")]
    Judge { claim: String, message: String },
    #[error("parameter `{parameter}` cannot be fitted: {message}")]
    Fit { parameter: String, message: String },
    /// A judge asks for an unknown protocol.
    #[error("there is no protocol `{name}`")]
    NoProtocol { name: String },
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    const PLAN: &str = "figure = 'a-1'\ntitle = 't'\nshows = 's'\npaper = 'p'\nnumber = '1'\nrunner = 'r'\nseed = 1\nclaims = []\n\
                        [x]\nlabel = 'size'\nunit = 'bytes'\nscale = 'log2'\nfrom = 4\nto = 20\n\
                        [y]\nlabel = 'v'\nunit = 'MiB/s'\nscale = 'linear'\n\
                        [[series]]\nlabel = 's'\nsettings = { bits = 8 }\n";

    #[test]
    fn settings_refuse_unknown_keys() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Bits {
            bits: u32,
        }
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let plan = Plan::parse(PLAN).expect("well formed");
        let line = Line { plan: &plan, series: &plan.series[0], parameters: &Parameters::default() };
        assert_eq!(line.settings::<Bits>().expect("a key of the type").bits, 8);
        assert!(matches!(line.settings::<Nothing>(), Err(RunError::Settings { .. })));
    }
}
