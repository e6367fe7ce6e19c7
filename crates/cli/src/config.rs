//! The configuration file of `memferry serve`, and `memferry config`, which checks or prints one.
//!
//! ```text
//! defaults ─► set by the file ─► set by flags ─► Settings
//! ```
//!
//! Each option is declared once, as a row of [`table`]: names, description, bounds and field. Files, flags and documentation are
//! derived from the rows. Mistakes have file, line and remedy. Those in single options are reported at once; of TOML's syntax, and of
//! options that do not suit each other, the first one.

mod edit;
mod engine;
mod file;
mod flags;
mod kinds;
mod settings;
mod table;
mod text;

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use memferry_service::PolicyKind;

use crate::output::say;
use crate::{CommandError, files};
pub(crate) use edit::EngineLine;
use file::{Mistake, Mistakes};
pub(crate) use flags::{Everything, Flags, Policies};
use kinds::Kind;
pub(crate) use settings::{LogFormat, Settings};

/// The file that is read if it exists and no other is named.
const SYSTEM_FILE: &str = "/etc/memferry.toml";
/// Bytes of the longest file that is accepted.
const LONGEST_BYTES: u64 = 1 << 20;

/// Arguments of `config`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check a configuration file and report every mistake in it.
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

/// The manual page of the configuration file, without its title.
pub(crate) fn manual() -> String {
    text::manual()
}

/// Parses the name of a policy.
pub(crate) fn policy(name: &str) -> Result<PolicyKind, String> {
    PolicyKind::parse(name)
}

/// Reads the named file, else the system's file if it exists, else returns the defaults.
pub(crate) fn load(named: Option<&Path>) -> Result<Settings, CommandError> {
    match named {
        Some(file) => read(file),
        // A link that leads nowhere is a mistake, not a missing file: defaults admit more than its target may.
        None if Path::new(SYSTEM_FILE).symlink_metadata().is_ok() => read(Path::new(SYSTEM_FILE)),
        None => Ok(Settings::default()),
    }
}

fn read(path: &Path) -> Result<Settings, CommandError> {
    Ok(text_of(path)?.1)
}

/// The text of a file without mistakes, and its settings.
fn text_of(path: &Path) -> Result<(String, Settings), CommandError> {
    let (source, about) = files::open_source(path)?;
    if about.len() > LONGEST_BYTES {
        let name = path.display();
        let length = about.len();
        return Err(format!(
            "{name} is not a configuration file: it has {length} bytes, the maximum is {LONGEST_BYTES}"
        )
        .into());
    }
    let mut bytes = Vec::new();
    let read = source.take(LONGEST_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let named = |mistakes| Mistakes { file: path.display().to_string(), mistakes };
    let text = std::str::from_utf8(&bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        named(vec![Mistake { line, message: "this is not UTF-8; save the file as UTF-8".to_owned() }])
    })?;
    let settings = file::parse(text).map_err(named)?;
    Ok((text.to_owned(), settings))
}

#[cfg(test)]
mod tests;
