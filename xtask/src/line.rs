//! A command line as data: built and tested as a pure value, run elsewhere.
//!
//! ```text
//! Line::new("cargo").args(["test"]).env("RUSTFLAGS", "...") ──► to_string()  what a stage prints
//!                                                           └─► command()    what is run
//! ```

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place;

/// A program, its arguments, and changes of its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(String, OsString)>,
    unset: Vec<String>,
    folder: Option<PathBuf>,
}

impl Line {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            unset: Vec::new(),
            folder: None,
        }
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.unset.push(name.to_owned());
        self
    }

    /// Runs in this folder instead of the root.
    pub(crate) fn within(mut self, folder: impl AsRef<Path>) -> Self {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    pub(crate) fn program(&self) -> &OsStr {
        &self.program
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        for (name, value) in place::cargos_changes() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        for name in &self.unset {
            command.env_remove(name);
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        command
    }
}

impl fmt::Display for Line {
    /// In the syntax of a shell.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(folder) = &self.folder {
            write!(out, "cd {} && ", quoted(folder.as_os_str()))?;
        }
        if !self.variables.is_empty() || !self.unset.is_empty() {
            write!(out, "env ")?;
        }
        for name in &self.unset {
            write!(out, "-u {name} ")?;
        }
        for (name, value) in &self.variables {
            write!(out, "{name}={} ", quoted(value))?;
        }
        write!(out, "{}", quoted(&self.program))?;
        self.arguments.iter().try_for_each(|argument| write!(out, " {}", quoted(argument)))
    }
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=+,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_in_shell_syntax() {
        let line = Line::new("cargo").args(["test", "a b"]).env("RUSTFLAGS", "--cfg loom").within("fuzz");
        assert_eq!(line.to_string(), "cd fuzz && env RUSTFLAGS='--cfg loom' cargo test 'a b'");
        assert_eq!(Line::new("echo").arg("it's").arg("").to_string(), r"echo 'it'\''s' ''");
        assert_eq!(Line::new("cargo").without("CARGO").to_string(), "env -u CARGO cargo");
    }

    #[test]
    fn command_has_every_part_of_the_line() {
        let line = Line::new("cargo").arg("test").env("A", "1").without("B").within("fuzz");
        let command = line.command();
        assert_eq!(command.get_program(), "cargo");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["test"]);
        let variables: Vec<_> = command.get_envs().collect();
        assert!(variables.contains(&(OsStr::new("A"), Some(OsStr::new("1")))));
        assert!(variables.contains(&(OsStr::new("B"), None)));
        assert!(variables.contains(&(OsStr::new("CARGO_PKG_NAME"), None)), "cargo set it for this test");
        assert_eq!(command.get_current_dir(), Some(Path::new("fuzz")));
    }
}
