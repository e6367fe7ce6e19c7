//! The sources contain no notes about work still to be done.
//!
//! Missing features belong in the documentation or the planning, since nobody reads notes in code. Prose (Markdown files) is
//! not checked.

use crate::tree::SourceFile;
use crate::violation::Violation;

/// Spelled in two parts, so that the list does not match itself.
const MARKERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("to", "do!")];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| !file.path.ends_with(".md")) {
        for (number, line) in file.lines() {
            violations.extend(MARKERS.iter().filter(|marker| has_word(line, marker)).map(|marker| {
                Violation::new(
                    &file.path,
                    number,
                    format!("the note `{marker}`"),
                    "do it now, or document what is missing",
                )
            }));
        }
    }
    violations
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_part)
            && !line[at + word.len()..].chars().next().is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_each_marker_in_code_and_scripts() {
        for marker in MARKERS {
            for path in ["a.rs", "x", "a.toml"] {
                let found = check(&[SourceFile::new(path, &format!("//! Docs.\n// {marker}: later\n"))]);
                assert_eq!((found.len(), found[0].line), (1, 2), "{marker} in {path}");
            }
        }
    }

    #[test]
    fn accepts_words_that_contain_a_marker_and_prose() {
        assert_eq!(check(&[SourceFile::new("x", concat!("mktemp XX", "XX; METHO", "DOLOGY"))]), []);
        assert_eq!(check(&[SourceFile::new("a.md", MARKERS[0])]), []);
    }
}
