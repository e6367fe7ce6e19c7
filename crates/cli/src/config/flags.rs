//! The options as flags of a command, derived from their rows.
//!
//! ```text
//! rows ─► flags with help ─► given values, each checked by its row ─ apply ─► Settings
//! ```

use std::ffi::OsString;
use std::marker::PhantomData;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use memferry_service::PolicySettings;
use toml::Value;

use super::settings::Settings;
use super::table::{Row, SECTIONS};

/// Selects the options that a command has flags for.
pub(crate) trait Scope {
    fn has(section: &str) -> bool;

    /// What every option is without its flag, in words. `None`: its default.
    const WITHOUT: Option<&'static str> = None;
}

/// All options.
pub(crate) enum Everything {}

impl Scope for Everything {
    fn has(_section: &str) -> bool {
        true
    }
}

/// The options of the policies.
pub(crate) enum Policies {}

impl Scope for Policies {
    fn has(section: &str) -> bool {
        section == "policy"
    }

    /// The command changes a running service.
    const WITHOUT: Option<&'static str> = Some("unchanged");
}

/// The given flags with their values.
pub(crate) struct Flags<S> {
    given: Vec<(&'static Row, Vec<OsString>)>,
    scope: PhantomData<S>,
}

impl<S: Scope> Flags<S> {
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Applies the given flags to `settings`.
    pub(crate) fn apply(&self, settings: &mut Settings) -> Result<(), String> {
        self.given.iter().try_for_each(|(row, texts)| row.place.set_from_flag(settings, texts))
    }

    fn rows() -> impl Iterator<Item = &'static Row> {
        SECTIONS.iter().filter(|section| S::has(section.name)).flat_map(|section| section.rows)
    }
}

impl Flags<Policies> {
    /// Returns `policy` changed by the given flags.
    pub(crate) fn apply_to(&self, policy: PolicySettings) -> Result<PolicySettings, String> {
        let mut settings = Settings::default();
        settings.daemon.service.policy = policy;
        self.apply(&mut settings)?;
        Ok(settings.daemon.service.policy)
    }
}

impl<S: Scope> Args for Flags<S> {
    fn augment_args(command: Command) -> Command {
        let defaults = Settings::default();
        command.args(Self::rows().map(|row| flag(row, S::WITHOUT.or(row.default), &defaults)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Scope> FromArgMatches for Flags<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let texts = |row: &Row| matches.get_many(row.flag).map(|texts| texts.cloned().collect());
        let given = Self::rows().filter_map(|row| texts(row).map(|texts| (row, texts))).collect();
        Ok(Self { given, scope: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn flag(row: &'static Row, without: Option<&str>, defaults: &Settings) -> Arg {
    let check = |text: OsString| {
        let texts = [text];
        let mut settings = Settings::default();
        row.place.set_from_flag(&mut settings, &texts)?;
        row.check_bounds(&row.place.to_file(&settings))?;
        let [text] = texts;
        Ok::<_, String>(text)
    };
    let is_repeated = row.place.is_repeated();
    let again = if is_repeated { "; may be repeated" } else { "" };
    let default = without.map_or_else(|| plain(&row.place.to_file(defaults)), str::to_owned);
    Arg::new(row.flag)
        .long(row.flag)
        .value_name(row.unit)
        .help(format!("{}{again} [default: {default}]", row.about(str::to_owned)))
        .action(if is_repeated { ArgAction::Append } else { ArgAction::Set })
        .allow_negative_numbers(true) // the option's own message about them is clearer
        .value_parser(OsStringValueParser::new().try_map(check))
}

/// A value in the syntax of a flag.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "none".to_owned(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
