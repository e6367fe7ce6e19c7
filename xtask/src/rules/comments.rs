//! A comment says more than the line below it: comments of three words or fewer are violations.
//!
//! ```text
//! a one-line comment before code ──► its words ──► at most MAX_WORDS ──► violation
//! ```
//!
//! Exceptions: module documentation, numbers and code names (a source, a width), reasons for unsafe code, and help texts of command
//! lines (documentation in files that use clap).

use crate::tree::SourceFile;
use crate::violation::Violation;

/// A comment of so few words says nothing that a name could not.
const MAX_WORDS: usize = 3;

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let rust = files.iter().filter(|file| file.rust().is_some());
    let is_held = |file: &&SourceFile| !file.text.contains("clap::");
    rust.filter(is_held).flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Violation> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let is_comment =
        |at: Option<usize>| at.and_then(|at| lines.get(at)).is_some_and(|line| line.starts_with("//"));
    let alone = |at: &usize| !is_comment(at.checked_sub(1)) && !is_comment(Some(at + 1));
    let violation = |at: usize| {
        Violation::new(&file.path, at + 1, "a comment that says no more than a name", "say why, or remove it")
    };
    (0..lines.len()).filter(|at| says_nothing(lines[*at])).filter(alone).map(violation).collect()
}

fn says_nothing(line: &str) -> bool {
    let text = line.strip_prefix("/// ").or_else(|| line.strip_prefix("// "));
    let is_fact = |text: &str| text.contains(|letter: char| letter.is_ascii_digit() || letter == '`');
    text.is_some_and(|text| {
        text.split_whitespace().count() <= MAX_WORDS && !text.contains("SAFETY") && !is_fact(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        check(&[SourceFile::new("a.rs", text)]).len()
    }

    #[test]
    fn refuses_comments_of_three_words() {
        assert_eq!(count("//! Docs.\n\n/// The name.\nstruct A;\n// Its length.\nfn f() {}\n"), 2);
    }

    #[test]
    fn accepts_facts_and_help_texts() {
        assert_eq!(count("//! Docs.\n\n/// 24 bits.\nstruct A;\n/// `memcpy(3)`.\nfn f() {}\n"), 0);
        assert_eq!(count("use clap::Args;\n\n/// The name.\nstruct A;\n"), 0);
    }

    #[test]
    fn accepts_longer_ones_and_parts_of_longer_ones() {
        assert_eq!(count("/// A name that readers know.\nstruct A;\n"), 0);
        assert_eq!(count("/// First line of several,\n/// and last.\nstruct A;\n"), 0);
        assert_eq!(count("// SAFETY: checked.\nstruct A;\n"), 0);
    }
}
