//! Parses a configuration file into settings, or into the list of its mistakes.
//!
//! ```text
//! text ─ TOML with spans ─► each key against its row ─► Settings, or every mistake with its line
//! ```

use std::fmt::{self, Display, Write};
use std::ops::Range;

use memferry_service::config::ConfigError;
use memferry_service::printable::printable;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use super::settings::Settings;
use super::table::{SECTIONS, Section};

/// A mistake in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mistake {
    pub(super) line: usize,
    /// What is wrong and how to correct it.
    pub(super) message: String,
}

/// All mistakes in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mistakes {
    pub(super) file: String,
    pub(super) mistakes: Vec<Mistake>,
}

impl Display for Mistakes {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, mistake) in self.mistakes.iter().enumerate() {
            let separator = if number == 0 { "" } else { "\n" };
            write!(to, "{separator}{}:{}: {}", self.file, mistake.line, mistake.message)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Returns the defaults with the text's changes, or all mistakes in order of their lines.
pub(super) fn parse(text: &str) -> Result<Settings, Vec<Mistake>> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    // Keys in quotes may have any characters, and messages name them.
    let at = |span: Range<usize>, message: String| Mistake {
        line: line_of(text, span.start),
        message: printable(&message),
    };
    let table = DeTable::parse(text).map_err(|error| {
        let message =
            format!("{}; run `memferry config default` for a valid file", one_line(error.message()));
        vec![at(error.span().unwrap_or(0..0), message)]
    })?;
    let mut settings = Settings::default();
    let mut mistakes = Vec::new();
    for (name, value) in table.get_ref() {
        let span = name.span();
        let name = name.get_ref().as_ref();
        match (SECTIONS.iter().find(|section| section.name == name), value.get_ref()) {
            (Some(section), DeValue::Table(entries)) => {
                for (key, value) in entries {
                    let set = set(section, key.get_ref(), value, &mut settings);
                    let place = |of_key| if of_key { key.span() } else { value.span() };
                    mistakes.extend(set.err().map(|(of_key, message)| at(place(of_key), message)));
                }
            }
            (Some(section), _) => {
                let message = format!("'{0}' is a section; write [{0}] and its options below", section.name);
                mistakes.push(at(span, message));
            }
            (None, _) => mistakes.push(at(span, unknown_section(name))),
        }
    }
    let together = settings.daemon.service.check();
    if let (true, Err(error)) = (mistakes.is_empty(), together) {
        let section = table.get_ref().iter().find(|(name, _)| name.get_ref() == section_of(&error));
        mistakes.push(at(section.map_or(0..0, |(name, _)| name.span()), error.to_string()));
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    if mistakes.is_empty() { Ok(settings) } else { Err(mistakes) }
}

/// The section of a mistake that does not show in one option alone.
fn section_of(error: &ConfigError) -> &'static str {
    match error {
        ConfigError::Policy(_) => "policy",
        // Options that are numbers have been checked by their rows; those that remain are words of an engine's string.
        ConfigError::Value(_) | ConfigError::EngineName(_) | ConfigError::EngineTwice(_) => "engines",
    }
}

/// Sets one option. The error's flag says whether the key is wrong, or else the value.
fn set(
    section: &Section,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    settings: &mut Settings,
) -> Result<(), (bool, String)> {
    let row = section.rows.iter().find(|row| row.key == key);
    let row = row.ok_or_else(|| (true, unknown_key(section, key)))?;
    let value = plain(value.get_ref());
    row.set_from_file(settings, &value).map_err(|reason| (false, format!("'{key}' {reason}")))
}

/// A value without its span. Kinds that no option has are reduced to a representative value.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            // The number exceeds all integer types.
            .map_or(Value::Float(f64::INFINITY), Value::Integer),
        DeValue::Boolean(switch) => Value::Boolean(*switch),
        DeValue::Float(_) => Value::Float(0.5),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(list) => Value::Array(list.iter().map(|value| plain(value.get_ref())).collect()),
        DeValue::Table(_) => Value::Table(toml::Table::new()),
    }
}

fn unknown_section(name: &str) -> String {
    let owner = SECTIONS.iter().find(|section| section.rows.iter().any(|row| row.key == name));
    let names: Vec<_> = SECTIONS.iter().map(|section| format!("[{}]", section.name)).collect();
    let remedy = match owner {
        Some(owner) => format!("write it below [{}]", owner.name),
        None => match nearest(name, SECTIONS.iter().map(|section| section.name)) {
            Some(near) => format!("did you mean [{near}]?"),
            None => format!("the sections are {}", names.join(", ")),
        },
    };
    format!("there is no section '{name}'; {remedy}")
}

fn unknown_key(section: &Section, key: &str) -> String {
    let others = SECTIONS.iter().find(|other| other.rows.iter().any(|row| row.key == key));
    let mut message = format!("[{}] has no option '{key}'; ", section.name);
    let keys = section.rows.iter().map(|row| row.key);
    let _ = match (others, nearest(key, keys.clone())) {
        (Some(other), _) => write!(message, "it belongs below [{}]", other.name),
        (None, Some(near)) => write!(message, "did you mean '{near}'?"),
        (None, None) => write!(message, "it has {}", keys.collect::<Vec<_>>().join(", ")),
    };
    message
}

/// The most similar name, if it is similar enough.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.replace('_', "-").to_lowercase();
    let measured = names.map(|candidate| (strsim::damerau_levenshtein(&wanted, candidate), candidate));
    measured.min().filter(|(distance, _)| *distance <= wanted.len().div_ceil(2).min(3)).map(|(_, near)| near)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(", ")
}
