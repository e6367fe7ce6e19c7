//! One binding per line: `let (a, b) = (x, y)` must be written as two statements.
//!
//! Destructuring a returned tuple is allowed, and so is a swap, which has no other short form.

use crate::tree::SourceFile;
use crate::violation::Violation;

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let packed = |file: &SourceFile| -> Vec<Violation> {
        let lines = file.rust().map_or(&[][..], |syntax| &syntax.packed_lets);
        let violation = |line: &usize| {
            Violation::new(&file.path, *line, "several bindings in one `let`", "write one `let` for each")
        };
        lines.iter().map(violation).collect()
    };
    files.iter().flat_map(packed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_a_packed_let_and_no_other() {
        let count = |body: &str| check(&[SourceFile::new("a.rs", &format!("fn f() {{ {body} }}"))]).len();
        assert_eq!(count("let (a, b) = (1, 2);"), 1);
        assert_eq!(count("let (a, b) = pair(1, 2);"), 0);
    }
}
