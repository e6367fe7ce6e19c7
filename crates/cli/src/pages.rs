//! Tests that the command lines of the documentation are ones that the command takes.
//!
//! ```text
//! README.md, docs/**.md ─┬─ console blocks: `$ memferry ...` ──► the whole line parses
//!                        └─ code in the text: `memferry ...` ───► no unknown command or option
//! ```
//!
//! Nothing is run: `./x test --full packages` runs README.md and the guide's first chapter in a fresh system.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser;
use clap::error::ErrorKind;

use crate::Cli;

/// What pages write for any command, and users that packages make, with what stands for them here.
const STAND_INS: [(&str, &str); 3] =
    [("COMMAND", "status"), ("user=memferry-engine", "user=root"), ("user=memferry-link", "user=root")];

/// The words of a shell's line up to a comment, a redirection or a pipe.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut is_quoted = false;
    for letter in line.chars().chain([' ']) {
        match letter {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => {
                found.extend(Some(std::mem::take(&mut word)).filter(|word| !word.is_empty()))
            }
            '#' | '>' | '|' | '&' if !is_quoted && word.is_empty() => break,
            _ => word.push(letter),
        }
    }
    found
}

/// The words from the program's name on, of a line that runs it, perhaps by sudo.
fn of_program(line: &str) -> Option<Vec<String>> {
    let line = STAND_INS.iter().fold(line.to_owned(), |line, (name, instead)| line.replace(name, instead));
    let mut words = words(&line);
    if words.first().is_some_and(|word| word == "sudo") {
        let skipped = if words.get(1).is_some_and(|word| word == "-u") { 3 } else { 1 };
        words.drain(..skipped.min(words.len()));
    }
    let is_program = |word: &String| word == "memferry" || word.ends_with("/memferry");
    words.first().is_some_and(is_program).then_some(words)
}

/// What a reader types at a prompt, as `$ memferry` or `alpha$  memferry`.
fn typed(line: &str) -> Option<&str> {
    let (prompt, command) = line.split_once(['$', '#'])?;
    (prompt.chars().all(char::is_alphanumeric) && command.starts_with(' ')).then_some(command.trim_start())
}

/// What is wrong with the command lines of a page.
fn mistakes(text: &str) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut block = None;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            block = if block.is_none() { Some(language == "console") } else { None };
            continue;
        }
        let mut check = |line: &str, is_whole: bool| {
            let Some(Err(error)) = of_program(line).map(Cli::try_parse_from) else { return };
            let is_wrong = match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => false,
                ErrorKind::UnknownArgument | ErrorKind::InvalidSubcommand => true,
                _ => is_whole,
            };
            if is_wrong {
                mistakes.push(format!("{number}: `{line}`: {error}"));
            }
        };
        match block {
            Some(true) => typed(line).into_iter().for_each(|command| check(command, true)),
            Some(false) => {}
            None => line.split('`').skip(1).step_by(2).for_each(|code| check(code, false)),
        }
    }
    mistakes
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

#[test]
fn command_lines_of_pages_parse() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md"), root.join("CHANGELOG.md")];
    pages(&root.join("docs"), &mut found);
    let mut mistaken = Vec::new();
    for page in found {
        let text = fs::read_to_string(&page).unwrap();
        mistaken.extend(mistakes(&text).into_iter().map(|mistake| format!("{}:{mistake}", page.display())));
    }
    assert!(mistaken.is_empty(), "{}", mistaken.join("\n"));
}

#[test]
fn wrong_command_lines_are_found() {
    let block = |line| mistakes(&format!("```console\n{line}\n```\n")).len();
    for right in [
        "$ memferry status --watch   # figures",
        "alpha$  memferry copy a b",
        "$ sudo -u user memferry tune",
        "$ memferry metrics --listen 127.0.0.1:9464 &",
        "$ cargo add --path PATH/crates/memferry --nonsense",
        "memferry: output",
    ] {
        assert_eq!(block(right), 0, "{right}");
    }
    for wrong in ["$ memferry nonsense", "$ memferry status --nonsense", "beta# memferry copy a"] {
        assert_eq!(block(wrong), 1, "{wrong}");
    }
    assert_eq!(mistakes("Both `memferry copy` and `memferry status --json` do.\n").len(), 0);
    assert_eq!(mistakes("Neither `memferry status --nonsense` nor `memferry nonsense` does.\n").len(), 2);
}
