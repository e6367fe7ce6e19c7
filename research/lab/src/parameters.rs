//! Parameters of a paper's model: every value with its unit, its source and the mechanism that it models.
//!
//! ```text
//! parameters/PAPER.toml ──parse, check──► Parameters ── get(name) ──► runners
//!                                              │                   └── asked(): the names that a result depends on
//!                                              └── scaled(name, factor) ──► the sensitivity table
//! ```
//!
//! Each paper has one file with all its parameters; experiments have none of their own. Runners give the values their meaning.
//! The files are built in, not read from disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

/// Units of time. The sensitivity table varies the parameters with these units.
const TIMES: [&str; 5] = ["ps", "ns", "us", "ms", "cycles"];

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
    /// The part of the machine's behaviour that it models.
    pub mechanism: String,
}

impl Parameter {
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
    fn values_are_found_by_name_and_scaled() {
        let parameters = Parameters::parse(&(entry("a", "10") + &entry("b", "2.5"))).expect("well formed");
        assert_eq!((parameters.get("a"), parameters.get("b")), (Ok(10.0), Ok(2.5)));
        let scaled = parameters.scaled("a", 1.2).expect("there");
        assert_eq!((scaled.get("a"), scaled.get("b")), (Ok(12.0), Ok(2.5)));
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
}
