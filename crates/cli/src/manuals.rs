//! `memferry manual-pages DIRECTORY`: the manual pages of all commands, and of the configuration file.
//!
//! ```text
//! clap's commands, which also make the help ─┐
//! TEXTS: what clap cannot say ───────────────┴─► memferry.1, memferry-serve.1, memferry-config-check.1, ...
//! table of the service's options ──────────────► memferry.toml.5
//! ```
//!
//! Packages call it when they are built. A new command needs its clap declaration, a file `manuals/NAME.roff` with its examples,
//! and a row of [`TEXTS`]. A text describes no option: clap's declaration does that.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;

use crate::roff::{escaped, see_also};
use crate::{CommandError, config, socket};

/// Day of the last change to the texts, for the footers.
const DATE: &str = "2026-11-24";
/// Exit status of commands whose text has no such section.
const EXIT_STATUS: &str = ".SH EXIT STATUS\n0 for success, 1 for failures, 2 for bad arguments.\n";

/// What a page says beyond clap's declarations.
struct Text {
    /// Name of the page.
    page: &'static str,
    /// Pages of other commands and projects to name under SEE ALSO.
    see: &'static [&'static str],
    /// Rest of the description, then sections.
    roff: &'static str,
}

const TEXTS: &[Text] = &[
    Text { page: "memferry", see: &["memferry.toml(5)"], roff: include_str!("manuals/memferry.roff") },
    Text {
        page: "memferry-serve",
        see: &["memferry.toml(5)", "memferry-status(1)", "memferry-policy(1)"],
        roff: include_str!("manuals/memferry-serve.roff"),
    },
    Text {
        page: "memferry-doctor",
        see: &["memferry-serve(1)", "memferry.toml(5)", "accel-config(1)", "udev(7)"],
        roff: include_str!("manuals/memferry-doctor.roff"),
    },
    Text {
        page: "memferry-config-check",
        see: &["memferry.toml(5)"],
        roff: include_str!("manuals/memferry-config-check.roff"),
    },
    Text {
        page: "memferry-config-default",
        see: &["memferry.toml(5)"],
        roff: include_str!("manuals/memferry-config-default.roff"),
    },
    Text {
        page: "memferry-tune",
        see: &["memferry-advise(1)"],
        roff: include_str!("manuals/memferry-tune.roff"),
    },
    Text {
        page: "memferry-advise",
        see: &["memferry-tune(1)", "memferry-profile(1)"],
        roff: include_str!("manuals/memferry-advise.roff"),
    },
    Text {
        page: "memferry-profile",
        see: &["memferry-advise(1)", "ld.so(8)", "prctl(2)"],
        roff: include_str!("manuals/memferry-profile.roff"),
    },
    Text {
        page: "memferry-status",
        see: &["memferry-metrics(1)"],
        roff: include_str!("manuals/memferry-status.roff"),
    },
    Text {
        page: "memferry-policy",
        see: &["memferry-serve(1)", "memferry.toml(5)"],
        roff: include_str!("manuals/memferry-policy.roff"),
    },
    Text {
        page: "memferry-metrics",
        see: &["memferry-status(1)", "memferry-dashboard(1)"],
        roff: include_str!("manuals/memferry-metrics.roff"),
    },
    Text {
        page: "memferry-dashboard",
        see: &["memferry-metrics(1)", "memferry-status(1)"],
        roff: include_str!("manuals/memferry-dashboard.roff"),
    },
    Text {
        page: "memferry-copy",
        see: &["memferry-share(1)", "cp(1)", "copy_file_range(2)"],
        roff: include_str!("manuals/memferry-copy.roff"),
    },
    Text {
        page: "memferry-share",
        see: &["memferry-copy(1)"],
        roff: include_str!("manuals/memferry-share.roff"),
    },
    Text {
        page: "memferry-9p-serve",
        see: &["mount(8)", "diod(8)"],
        roff: include_str!("manuals/memferry-9p-serve.roff"),
    },
    Text {
        page: "memferry-rotate",
        see: &["memferry-flip(1)", "memferry-overlay(1)"],
        roff: include_str!("manuals/memferry-rotate.roff"),
    },
    Text {
        page: "memferry-flip",
        see: &["memferry-rotate(1)", "memferry-overlay(1)"],
        roff: include_str!("manuals/memferry-flip.roff"),
    },
    Text {
        page: "memferry-overlay",
        see: &["memferry-rotate(1)", "memferry-flip(1)"],
        roff: include_str!("manuals/memferry-overlay.roff"),
    },
    Text { page: "memferry-demo", see: &[], roff: include_str!("manuals/memferry-demo.roff") },
    Text { page: "memferry-completions", see: &[], roff: include_str!("manuals/memferry-completions.roff") },
];

/// Arguments of `manual-pages`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory for the pages; it is created if it does not exist.
    directory: PathBuf,
}

/// Writes all pages.
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

/// File names and texts of all pages.
fn pages(command: Command) -> Result<Vec<(String, String)>, CommandError> {
    let mut found = Vec::new();
    collect(&prepared(command), None, &mut found)?;
    found.push(("memferry.toml.5".to_owned(), format!("{}{}", title("memferry.toml", 5), config::manual())));
    Ok(found)
}

/// The command with full names for each below it, without `help`.
fn prepared(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The commands below this one that have pages.
fn below(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

fn collect(
    command: &Command,
    above: Option<&str>,
    found: &mut Vec<(String, String)>,
) -> Result<(), CommandError> {
    let name = name_of(command);
    found.push((format!("{name}.1"), page(command, above)?));
    below(command).try_for_each(|below| collect(below, Some(name), found))
}

fn page(command: &Command, above: Option<&str>) -> Result<String, CommandError> {
    let name = name_of(command);
    let text = TEXTS.iter().find(|text| text.page == name);
    let roff = text.map_or("", |text| text.roff);
    let at = if roff.starts_with(".SH") { 0 } else { roff.find("\n.SH").map_or(roff.len(), |at| at + 1) };
    let (description, sections) = roff.split_at(at);
    let man = Man::new(with_places_in_words(command));
    let mut page = title(name, 1).into_bytes();
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if !description.is_empty() {
        page.extend(format!(".PP\n{description}").bytes());
    }
    man.render_options_section(&mut page)?;
    if below(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    page.extend(sections.bytes());
    if !sections.contains(".SH EXIT STATUS") {
        page.extend(EXIT_STATUS.bytes());
    }
    let others = text.map_or(&[][..], |text| text.see).iter().map(|page| (*page).to_owned());
    let links = above.map(|above| format!("{above}(1)")).into_iter();
    let links = links.chain(below(command).map(|below| format!("{}(1)", name_of(below)))).chain(others);
    page.extend(see_also(links).bytes());
    Ok(tidy(&String::from_utf8(page)?))
}

/// Defaults that depend on the user who writes the pages, in words.
fn with_places_in_words(command: &Command) -> Command {
    let path = socket::service_path();
    command.clone().mut_args(|argument| {
        let here = argument.get_default_values().iter().any(|value| *value == path.as_os_str());
        if here {
            argument.default_value("memferry.sock in $XDG_RUNTIME_DIR, if it is there, else in /run")
        } else {
            argument
        }
    })
}

fn title(name: &str, section: u8) -> String {
    let manual = if section == 1 { "User Commands" } else { "File Formats" };
    let name = escaped(&name.to_uppercase());
    format!(".TH {name} {section} {DATE} \"memferry {}\" \"{manual}\"\n", env!("CARGO_PKG_VERSION"))
}

/// The page without spaces at ends of lines, and with one space request for each run of blank lines and breaks.
fn tidy(page: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut is_example = false;
    for line in page.lines().map(str::trim_end) {
        is_example = line == ".nf" || is_example && line != ".fi";
        match line {
            "" | ".br" if is_example => lines.push(line),
            "" | ".br" if lines.last() == Some(&".sp") => {}
            "" | ".br" => lines.push(".sp"),
            line => lines.push(line),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests;
