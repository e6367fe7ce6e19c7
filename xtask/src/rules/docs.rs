//! Every Rust file starts with module documentation.
//!
//! The first line must be `//!`. The rule does not check that the text says what the module is, draws its flow, and says what
//! it does not do.

use crate::tree::SourceFile;
use crate::violation::Violation;

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    files
        .iter()
        .filter(|file| file.syntax.is_some() && !file.text.starts_with("//! "))
        .map(|file| {
            Violation::new(
                &file.path,
                1,
                "the file does not start with module documentation",
                "start it with `//! ` and say what the module is, how data flows through it, and what it does not do",
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_documentation_on_the_first_line() {
        assert_eq!(check(&[SourceFile::new("a.rs", "//! What this is.\nfn a() {}\n")]), []);
        assert_eq!(check(&[SourceFile::new("a.txt", "no Rust\n")]), []);
    }

    #[test]
    fn refuses_a_file_without_documentation() {
        for text in ["", "fn a() {}\n", "// A comment.\n", "\n//! Late.\n", "//!\n//! Empty first.\n"] {
            assert_eq!(check(&[SourceFile::new("a.rs", text)]).len(), 1, "{text:?}");
        }
    }
}
