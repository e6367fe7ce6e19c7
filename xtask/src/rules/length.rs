//! Files and functions are short enough to be read as a whole.
//!
//! A Rust file has at most [`FILE_LINES`] lines. A function, including tests, has at most [`FUNCTION_LINES`] from its `fn` to
//! its closing brace, without attributes and documentation. There are no exceptions. A file that does not lex is reported
//! here, since its functions cannot be measured.

use crate::tree::SourceFile;
use crate::violation::Violation;

const FILE_LINES: usize = 1000;
const FUNCTION_LINES: usize = 80;

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    files.iter().flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    let syntax = match &file.syntax {
        None => return violations,
        Some(Ok(syntax)) => syntax,
        Some(Err(error)) => {
            let message = format!("not a sequence of Rust tokens: {}", error.message);
            return vec![Violation::new(&file.path, error.line, message, "make the file compile")];
        }
    };
    let lines = file.text.lines().count();
    if lines > FILE_LINES {
        violations.push(Violation::new(
            &file.path,
            FILE_LINES + 1,
            format!("the file has {lines} lines, the maximum is {FILE_LINES}"),
            "split it along its sections into modules",
        ));
    }
    for function in syntax.functions.iter().filter(|function| function.length > FUNCTION_LINES) {
        violations.push(Violation::new(
            &file.path,
            function.line,
            format!(
                "function `{}` has {} lines, the maximum is {FUNCTION_LINES}",
                function.name, function.length
            ),
            "extract steps that can be named",
        ));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(inner_lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    step();\n".repeat(inner_lines))
    }

    #[test]
    fn accepts_what_just_fits() {
        assert_eq!(check(&[SourceFile::new("a.rs", &function(FUNCTION_LINES - 2))]), []);
        assert_eq!(check(&[SourceFile::new("a.rs", &"// line\n".repeat(FILE_LINES))]), []);
        assert_eq!(check(&[SourceFile::new("a.md", &"line\n".repeat(FILE_LINES + 1))]), []);
    }

    #[test]
    fn refuses_a_function_one_line_too_long() {
        let found =
            check(&[SourceFile::new("a.rs", &format!("//! Docs.\n{}", function(FUNCTION_LINES - 1)))]);
        assert_eq!((found.len(), found[0].line), (1, 2));
        assert!(found[0].message.contains("`long` has 81 lines"));
    }

    #[test]
    fn refuses_a_long_test_in_a_macro() {
        let text = format!("proptest! {{\n{}}}\n", function(FUNCTION_LINES - 1));
        assert_eq!(check(&[SourceFile::new("tests/a.rs", &text)]).len(), 1);
    }

    #[test]
    fn refuses_a_file_one_line_too_long() {
        assert_eq!(check(&[SourceFile::new("a.rs", &"// line\n".repeat(FILE_LINES + 1))]).len(), 1);
    }

    #[test]
    fn refuses_a_file_that_does_not_lex() {
        assert_eq!(check(&[SourceFile::new("a.rs", "fn a( {\n")]).len(), 1);
    }
}
