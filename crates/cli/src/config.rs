//! The configuration file of `memferry serve`, and `memferry config`, which checks one and prints one.
//!
//! ```text
//! file ─ read ─► text ─ TOML with spans ─► each key against `entries` ─► Options      or every mistake with its line
//! Options of the command line ─ over ─► those of the file ─ over ─► the defaults ─► Settings
//! ```
//!
//! All options are listed once, in [`entries`]: what they are called, what they may be, what they are when nobody says
//! otherwise. A mistake in a file names file, line and remedy, and all of them are told at once. Starting the service is
//! `serve`'s.

mod entries;
mod options;
mod policy;
mod text;

use std::fmt::{self, Display, Write};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use memferry_service::PolicySettings;
use memferry_service::config::LIMITS;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Value};

use crate::output::say;
use crate::{CommandError, files};
use entries::{Entry, SECTIONS, Section};
pub(crate) use options::{LogFormat, Options, Settings};
pub(crate) use policy::{PolicyOptions, policy};

/// The file that is read when it is there and no other is named.
const SYSTEM_FILE: &str = "/etc/memferry.toml";
/// Bytes of the longest file; one that is longer is not meant.
const LONGEST_BYTES: u64 = 1 << 20;

/// Arguments of `config`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what is wrong in a configuration file.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print a configuration file with every option, its meaning and its default.
    Default,
}

/// Checks a file or prints one.
pub(crate) fn run(arguments: &Arguments) -> Result<(), CommandError> {
    match &arguments.command {
        Command::Check { file } => {
            read(file)?;
            say!("{}: no mistakes", file.display());
        }
        Command::Default => say!("{}", text::default_file().trim_end()),
    }
    Ok(())
}

/// One thing wrong in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mistake {
    line: usize,
    /// What is wrong and what to do.
    message: String,
}

/// All that is wrong in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mistakes {
    file: String,
    mistakes: Vec<Mistake>,
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

/// The options of the file that is named, else of the system's when there is one, else none.
pub(crate) fn load(named: Option<&Path>) -> Result<Options, CommandError> {
    match named {
        Some(file) => read(file),
        None if Path::new(SYSTEM_FILE).exists() => read(Path::new(SYSTEM_FILE)),
        None => Ok(Options::default()),
    }
}

fn read(path: &Path) -> Result<Options, CommandError> {
    let (file, about) = files::open_source(path)?;
    if about.len() > LONGEST_BYTES {
        let name = path.display();
        let length = about.len();
        return Err(format!("{name} is no configuration file: it has {length} bytes").into());
    }
    let mut bytes = Vec::new();
    let read = file.take(LONGEST_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let named = |mistakes| Mistakes { file: path.display().to_string(), mistakes };
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        named(vec![Mistake { line, message: "this is no UTF-8; save the file as UTF-8".to_owned() }])
    })?;
    Ok(parse(text).map_err(named)?)
}

/// The options a text sets, or every mistake in it, in the order of their lines.
fn parse(text: &str) -> Result<Options, Vec<Mistake>> {
    // Editors of other systems put a mark there that is no part of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let at = |span: Range<usize>, message: String| Mistake { line: line_of(text, span.start), message };
    let table = DeTable::parse(text).map_err(|error| {
        let message =
            format!("{}; `memferry config default` prints a file as it should be", one_line(error.message()));
        vec![at(error.span().unwrap_or(0..0), message)]
    })?;
    let mut options = Options::default();
    let mut mistakes = Vec::new();
    for (name, value) in table.get_ref() {
        let span = name.span();
        let name = name.get_ref().as_ref();
        match (SECTIONS.iter().find(|section| section.name == name), value.get_ref()) {
            (Some(section), DeValue::Table(entries)) => {
                for (key, value) in entries {
                    let set = set(section, key.get_ref(), value, &mut options);
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
    let defaults = PolicySettings::default();
    let policy = options.numbers.clone().resolve(options.policy, defaults).check();
    if let (true, Err(error)) = (mistakes.is_empty(), policy) {
        let section = table.get_ref().iter().find(|(name, _)| name.get_ref() == "policy");
        mistakes.push(at(section.map_or(0..0, |(name, _)| name.span()), error.to_string()));
    }
    mistakes.sort_by_key(|mistake| mistake.line);
    if mistakes.is_empty() { Ok(options) } else { Err(mistakes) }
}

/// Sets one option; an error says whether the key is at fault or its value.
fn set(
    section: &Section,
    key: &str,
    value: &Spanned<DeValue<'_>>,
    options: &mut Options,
) -> Result<(), (bool, String)> {
    let entry = section.entries.iter().find(|entry| entry.key == key);
    let entry = entry.ok_or_else(|| (true, unknown_key(section, key)))?;
    let value = plain(value.get_ref());
    let wrong = |reason: String| (false, format!("'{key}' {reason}"));
    (entry.set)(options, &value).map_err(wrong)?;
    in_range(entry, &value).map_err(wrong)
}

/// A value without its place; what no option can be is told by its kind alone.
fn plain(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            // One that is larger than any number there is.
            .map_or(Value::Float(f64::INFINITY), Value::Integer),
        DeValue::Boolean(switch) => Value::Boolean(*switch),
        DeValue::Float(_) => Value::Float(0.5),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(list) => Value::Array(list.iter().map(|value| plain(value.get_ref())).collect()),
        DeValue::Table(_) => Value::Table(toml::Table::new()),
    }
}

fn in_range(entry: &Entry, value: &Value) -> Result<(), String> {
    let limit = LIMITS.iter().find(|limit| Some(limit.name) == entry.limit);
    let (Some(limit), Some(number)) = (limit, value.as_integer()) else { return Ok(()) };
    let inside = u64::try_from(number).is_ok_and(|number| (limit.least..=limit.most).contains(&number));
    if inside { Ok(()) } else { Err(format!("is {number}, it has to be {}", limit.allowed)) }
}

fn unknown_section(name: &str) -> String {
    let owner = SECTIONS.iter().find(|section| section.entries.iter().any(|entry| entry.key == name));
    let names: Vec<_> = SECTIONS.iter().map(|section| format!("[{}]", section.name)).collect();
    let remedy = match owner {
        Some(owner) => format!("write it below [{}]", owner.name),
        None => match nearest(name, SECTIONS.iter().map(|section| section.name)) {
            Some(near) => format!("did you mean [{near}]?"),
            None => format!("the sections are {}", names.join(" and ")),
        },
    };
    format!("there is no section '{name}'; {remedy}")
}

fn unknown_key(section: &Section, key: &str) -> String {
    let others = SECTIONS.iter().find(|other| other.entries.iter().any(|entry| entry.key == key));
    let mut message = format!("[{}] has no option '{key}'; ", section.name);
    let keys = section.entries.iter().map(|entry| entry.key);
    let _ = match (others, nearest(key, keys.clone())) {
        (Some(other), _) => write!(message, "it belongs below [{}]", other.name),
        (None, Some(near)) => write!(message, "did you mean '{near}'?"),
        (None, None) => write!(message, "it has {}", keys.collect::<Vec<_>>().join(", ")),
    };
    message
}

/// The name that was probably meant.
fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let told = name.replace('_', "-").to_lowercase();
    let measured = names.map(|candidate| (strsim::damerau_levenshtein(&told, candidate), candidate));
    measured.min().filter(|(distance, _)| *distance <= told.len().div_ceil(2).min(3)).map(|(_, near)| near)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn one_line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
