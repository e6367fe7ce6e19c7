//! Parameters of a paper's model: every value with its unit, its source and the mechanism that it models.
//!
//! ```text
//! parameters/PAPER.toml ──parse, check──► Parameters ── get(name) ──► runners
//!                                              │                   └── asked(): the names that a result depends on
//!                                              └── sampled(fractions) ──► the bands: a machine within all ranges
//! ```
//!
//! Each paper has one file with all its parameters; experiments have none of their own. Runners give the values their meaning.
//! The files are built in, not read from disk. A parameter of a paper says how well its value is known: it is `exact`, or it has
//! a `range` or `choices` with their source in `within`. Studies of our own may leave that out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

/// Units of time. Other parameters with whole ends of their range are counts.
const TIMES: [&str; 5] = ["ps", "ns", "us", "ms", "cycles"];

/// A range whose ends differ by this factor or more is sampled evenly in its logarithm.
const WIDE: f64 = 4.0;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// Unique in its file.
    pub name: String,
    /// In `unit`; not negative.
    pub value: f64,
    pub unit: String,
    /// Where the value is from: a manual, the paper, an assumption, or the claim it is calibrated to.
    pub source: String,
    /// Why the value has no range.
    pub exact: Option<String>,
    /// The lowest and the highest value that can be argued.
    pub range: Option<[f64; 2]>,
    /// The values that can be argued, where only some are possible.
    pub choices: Option<Vec<f64>>,
    /// Where `range` or `choices` is from; "assumed" where no document says.
    pub within: Option<String>,
    /// The calibrated claim to which it is fitted again on each machine of the bands, within `range`, instead of being drawn.
    pub fitted: Option<String>,
    /// The part of the machine's behaviour that it models.
    pub mechanism: String,
}

impl Parameter {
    /// Whether the file says how well the value is known.
    pub fn is_bounded(&self) -> bool {
        self.exact.is_some() || self.varies()
    }

    /// Whether it has a range or choices.
    pub fn varies(&self) -> bool {
        self.range.is_some() || self.choices.is_some()
    }

    /// Whether machines of the bands draw it from its range or choices.
    pub fn is_drawn(&self) -> bool {
        self.varies() && self.fitted.is_none()
    }

    /// Whether its range is from no document and no fit.
    pub fn is_assumed(&self) -> bool {
        self.within.as_deref().is_some_and(|within| within.starts_with("assumed"))
    }

    /// The value at a fraction, in 0 to 1, of its range.
    pub fn at(&self, fraction: f64) -> f64 {
        let part = fraction.clamp(0.0, 1.0);
        if let Some(choices) = &self.choices {
            let place = (part * choices.len() as f64) as usize;
            return choices.get(place.min(choices.len().saturating_sub(1))).copied().unwrap_or(self.value);
        }
        let Some([low, high]) = self.range else { return self.value };
        if !self.is_time() && low.fract() == 0.0 && high.fract() == 0.0 && high - low < 1e6 {
            return (low + (part * (high - low + 1.0)).floor()).min(high);
        }
        if low > 0.0 && high / low >= WIDE {
            return low * (high / low).powf(part);
        }
        low + part * (high - low)
    }

    /// Whether value, range, choices and their source agree.
    fn is_consistent(&self) -> bool {
        let is_stated = |list: &[f64]| list.iter().all(|value| value.is_finite() && *value >= 0.0);
        let ranged = self.range.is_none_or(|[low, high]| {
            is_stated(&[low, high]) && low < high && (low..=high).contains(&self.value)
        });
        let chosen = self
            .choices
            .as_ref()
            .is_none_or(|choices| is_stated(choices) && choices.len() > 1 && choices.contains(&self.value));
        let ways = [self.exact.is_some(), self.range.is_some(), self.choices.is_some()];
        ranged
            && chosen
            && ways.iter().filter(|is| **is).count() <= 1
            && self.within.is_some() == self.varies()
            && (self.fitted.is_none() || self.range.is_some())
    }

    /// Whether its unit is a unit of time.
    pub fn is_time(&self) -> bool {
        TIMES.contains(&self.unit.as_str())
    }
}

/// Why parameters are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParametersError {
    /// Not TOML, or an entry with an unknown or missing key.
    #[error("the parameters do not parse: {0}")]
    Syntax(#[from] toml::de::Error),
    /// Two entries with one name.
    #[error("parameter `{name}` is listed twice")]
    Duplicate {
        /// The name in question.
        name: String,
    },
    /// A value that is negative, infinite or not a number.
    #[error("parameter `{name}` is {value}: give it a finite number that is not negative")]
    Value { name: String, value: f64 },
    /// A range or choices without the value or without `within`; two statements of how well the value is known; or a fitted
    /// parameter that has no range.
    #[error(
        "parameter `{name}`: give one of exact, range and choices, the value within it, and `within` beside the latter two; \
         what is fitted needs a range"
    )]
    Range {
        /// The name in question.
        name: String,
    },
    /// A runner asks for a parameter that the file does not have.
    #[error("there is no parameter `{name}`: list it with its value, unit, source and mechanism")]
    Missing {
        /// The name asked for.
        name: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    parameter: Vec<Parameter>,
}

/// A checked list of parameters, in the order of its text.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    list: Vec<Parameter>,
    places: BTreeMap<String, usize>,
    /// Names requested so far, shared with the lists derived from this one.
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl Parameters {
    /// Reads and checks a list.
    ///
    /// # Errors
    /// The first entry that breaks a rule of [`ParametersError`].
    pub fn parse(text: &str) -> Result<Self, ParametersError> {
        let Document { parameter: list } = toml::from_str(text)?;
        let mut places = BTreeMap::new();
        for (place, parameter) in list.iter().enumerate() {
            let name = || parameter.name.clone();
            if !parameter.value.is_finite() || parameter.value < 0.0 {
                return Err(ParametersError::Value { name: name(), value: parameter.value });
            }
            if !parameter.is_consistent() {
                return Err(ParametersError::Range { name: name() });
            }
            if places.insert(name(), place).is_some() {
                return Err(ParametersError::Duplicate { name: name() });
            }
        }
        Ok(Self { list, places, asked: Arc::default() })
    }

    /// The same list with an empty record of requested names.
    #[must_use]
    pub fn watched(&self) -> Self {
        Self { asked: Arc::default(), ..self.clone() }
    }

    /// The names requested since the list was read or [`Parameters::watched`], from it and from lists derived from it. A result
    /// does not depend on parameters outside this set.
    pub fn asked(&self) -> BTreeSet<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counts names as requested, for a result that was computed elsewhere.
    pub(crate) fn ask(&self, names: &BTreeSet<String>) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).extend(names.iter().cloned());
    }

    /// The parameters, in the order of their text.
    pub fn list(&self) -> &[Parameter] {
        &self.list
    }

    /// The value of a parameter, in its unit.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn get(&self, name: &str) -> Result<f64, ParametersError> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        let found = self.places.get(name).and_then(|place| self.list.get(*place));
        found
            .map(|parameter| parameter.value)
            .ok_or_else(|| ParametersError::Missing { name: name.to_owned() })
    }

    /// The same list with another value for one parameter.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn with(&self, name: &str, value: f64) -> Result<Self, ParametersError> {
        let mut changed = self.clone();
        let found = self.places.get(name).and_then(|place| changed.list.get_mut(*place));
        found.ok_or_else(|| ParametersError::Missing { name: name.to_owned() })?.value = value;
        Ok(changed)
    }

    /// The same list with one parameter multiplied.
    ///
    /// # Errors
    /// [`ParametersError::Missing`].
    pub fn scaled(&self, name: &str, factor: f64) -> Result<Self, ParametersError> {
        self.with(name, self.get(name)? * factor)
    }

    /// A list with each drawn parameter at the fraction of its range that `fraction` gives; it is called in the order of the text.
    #[must_use]
    pub fn sampled(&self, mut fraction: impl FnMut() -> f64) -> Self {
        let mut changed = self.clone();
        for parameter in changed.list.iter_mut().filter(|parameter| parameter.is_drawn()) {
            parameter.value = parameter.at(fraction());
        }
        changed
    }

    /// Names of the parameters whose value differs from another list's.
    pub fn changed_from(&self, other: &Self) -> BTreeSet<String> {
        let pairs = self.list.iter().zip(&other.list);
        pairs.filter(|(own, before)| own.value != before.value).map(|(own, _)| own.name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, value: &str) -> String {
        format!(
            "[[parameter]]\nname = '{name}'\nvalue = {value}\nunit = 'ns'\nsource = 's'\nmechanism = 'm'\n"
        )
    }

    #[test]
    fn values_are_found_by_name_and_replaced() {
        let parameters = Parameters::parse(&(entry("a", "10") + &entry("b", "2.5"))).expect("well formed");
        assert_eq!((parameters.get("a"), parameters.get("b")), (Ok(10.0), Ok(2.5)));
        let changed = parameters.with("a", 12.0).expect("there");
        assert_eq!((changed.get("a"), changed.get("b")), (Ok(12.0), Ok(2.5)));
        assert_eq!(parameters.get("c"), Err(ParametersError::Missing { name: "c".to_owned() }));
    }

    #[test]
    fn derived_lists_share_the_requested_names() {
        let list =
            Parameters::parse(&(entry("a", "1") + &entry("b", "2") + &entry("c", "3"))).expect("well formed");
        let watched = list.watched();
        watched.with("b", 7.0).and_then(|changed| changed.get("c")).expect("there");
        watched.get("a").expect("there");
        assert_eq!(watched.asked().into_iter().collect::<Vec<_>>(), ["a", "c"]);
        assert_eq!((list.asked(), watched.watched().asked()), Default::default());
    }

    #[test]
    fn refuses_malformed_parameters() {
        let twice = Parameters::parse(&entry("a", "1").repeat(2));
        assert_eq!(twice.err(), Some(ParametersError::Duplicate { name: "a".to_owned() }));
        let unknown = Parameters::parse(&(entry("a", "1") + "sauce = 'x'\n"));
        assert!(matches!(unknown, Err(ParametersError::Syntax(_))));
        let negative = Parameters::parse(&entry("a", "-1"));
        assert_eq!(negative.err(), Some(ParametersError::Value { name: "a".to_owned(), value: -1.0 }));
    }

    fn bounded(rest: &str, unit: &str) -> Result<Parameters, ParametersError> {
        let entry = entry("a", "10").replace("'ns'", &format!("'{unit}'"));
        Parameters::parse(&(entry + rest + "\n"))
    }

    #[test]
    fn a_range_is_sampled_from_end_to_end() {
        let at = |rest: &str, unit: &str, fractions: &[f64]| {
            let list = bounded(rest, unit).expect("well formed");
            fractions.iter().map(|part| list.list()[0].at(*part)).collect::<Vec<_>>()
        };
        let ends = [0.0, 0.5, 1.0];
        assert_eq!(at("range = [8, 12]\nwithin = 'm'", "ns", &ends), [8.0, 10.0, 12.0]);
        let wide = at("range = [1, 100]\nwithin = 'm'", "ns", &ends);
        assert!((wide[1] - 10.0).abs() < 1e-9, "in the logarithm: {wide:?}");
        let counts = at("range = [9, 11]\nwithin = 'm'", "lines", &[0.0, 0.32, 0.34, 0.99, 1.0]);
        assert_eq!(counts, [9.0, 9.0, 10.0, 11.0, 11.0]);
        assert_eq!(
            at("choices = [5, 10]\nwithin = 'm'", "bytes", &[0.0, 0.49, 0.5, 1.0]),
            [5.0, 5.0, 10.0, 10.0]
        );
        assert_eq!(at("exact = 'm'", "ns", &ends), [10.0; 3]);
    }

    #[test]
    fn a_sample_moves_what_varies() {
        let text =
            entry("a", "1") + "exact = 'm'\n" + &entry("b", "2") + "range = [1, 3]\nwithin = 'assumed: x'\n";
        let list = Parameters::parse(&text).expect("well formed");
        let mut asked = 0;
        let sampled = list.sampled(|| {
            asked += 1;
            1.0
        });
        assert_eq!((asked, sampled.get("a"), sampled.get("b")), (1, Ok(1.0), Ok(3.0)));
        assert_eq!(sampled.changed_from(&list), BTreeSet::from(["b".to_owned()]));
        assert!(list.list()[1].is_assumed() && !list.list()[0].is_assumed());
    }

    #[test]
    fn a_fitted_value_is_not_drawn() {
        let list = bounded("range = [8, 12]\nwithin = 'm'\nfitted = 'c'", "ns").expect("well formed");
        let sampled = list.sampled(|| panic!("nothing to draw"));
        assert_eq!(sampled.get("a"), Ok(10.0));
        assert!(list.list()[0].varies() && !list.list()[0].is_drawn());
    }

    #[test]
    fn refuses_a_range_that_is_no_statement() {
        for rest in [
            "range = [11, 12]\nwithin = 'm'",
            "range = [10, 10]\nwithin = 'm'",
            "range = [-1, 12]\nwithin = 'm'",
            "range = [9, 12]",
            "within = 'm'",
            "choices = [9, 12]\nwithin = 'm'",
            "choices = [10]\nwithin = 'm'",
            "exact = 'm'\nrange = [9, 12]\nwithin = 'm'",
            "choices = [9, 10]\nwithin = 'm'\nfitted = 'c'",
            "fitted = 'c'",
        ] {
            let refused = bounded(rest, "ns").err();
            assert_eq!(refused, Some(ParametersError::Range { name: "a".to_owned() }), "{rest}");
        }
    }
}
