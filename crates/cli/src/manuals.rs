//! `memferry manual-pages DIRECTORY`: the manual pages of all commands, from the declarations that also make the help.
//!
//! ```text
//! clap's commands ──► memferry.1, memferry-serve.1, memferry-config.1, memferry-config-check.1, ...
//! ```
//!
//! Packages call it when they are built. Pages written by hand (`packaging/man`) replace those of the same name there.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::CommandError;

/// Arguments of `manual-pages`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory for the pages; it is created if it does not exist.
    directory: PathBuf,
}

/// Writes one page for each command.
pub(crate) fn run(arguments: &Arguments, command: Command) -> Result<(), CommandError> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot create the directory {}: {error}", directory.display()))?;
    for (name, page) in pages(command)? {
        let path = directory.join(name);
        fs::write(&path, page).map_err(|error| unwritable(&path, &error))?;
    }
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

/// File names and texts of the pages of a command and of all below it that are not hidden.
fn pages(command: Command) -> Result<Vec<(String, Vec<u8>)>, CommandError> {
    // Each page needs the whole name of its command, and no page of `help`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut found = Vec::new();
    collect(&command, &mut found)?;
    Ok(found)
}

fn collect(command: &Command, found: &mut Vec<(String, Vec<u8>)>) -> Result<(), CommandError> {
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let man = Man::new(command.clone()).title(name.to_uppercase()).manual("User Commands");
    let mut page = Vec::new();
    man.render(&mut page)?;
    found.push((format!("{name}.1"), page));
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        collect(below, found)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_visible_command_has_a_page() {
        let pages = pages(crate::Cli::command()).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["memferry.1", "memferry-serve.1", "memferry-config-check.1", "memferry-9p-serve.1"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.iter().any(|name| name.contains("demo-client") || name.contains("manual-pages")));
        for (name, page) in &pages {
            let text = String::from_utf8_lossy(page);
            assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{name}: {text}");
        }
    }
}
