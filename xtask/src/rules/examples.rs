//! Every type that the crate `memferry` defines for its users has an example in its documentation.
//!
//! ```text
//! files of crates/memferry/src ──► `pub` types at the start of a line ──► documentation above ──► a code block?
//! ```
//!
//! rustdoc runs the examples. Types that the crate exports from others are not checked, nor are methods and functions.

use crate::layout::API;
use crate::tree::SourceFile;
use crate::violation::Violation;

/// How the declarations of types begin.
const KINDS: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub type "];

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let held = files.iter().filter(|file| file.path.starts_with(API) && file.syntax.is_some());
    held.flat_map(check_file).collect()
}

fn check_file(file: &SourceFile) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Whether the documentation since the last line outside of one has a code block.
    let mut has_example = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.starts_with("///") {
            has_example |= line.starts_with("/// ```");
        } else if let Some(name) = KINDS.iter().find_map(|kind| line.strip_prefix(kind)) {
            let name = name.split(|end: char| !end.is_alphanumeric()).next().unwrap_or(name);
            if !has_example {
                let message = format!("the public type `{name}` has no example");
                violations.push(Violation::new(
                    &file.path,
                    index + 1,
                    message,
                    "add a code block to its documentation that uses it and asserts something",
                ));
            }
            has_example = false;
        } else if !line.starts_with("#[") && !line.starts_with(' ') && line != ")]" {
            has_example = false;
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(path: &str, text: &str) -> usize {
        check(&[SourceFile::new(path, text)]).len()
    }

    #[test]
    fn refuses_a_public_type_without_an_example() {
        let path = format!("{API}a.rs");
        for kind in ["pub struct A;", "pub enum A {}", "pub trait A {}", "pub type A = u8;"] {
            assert_eq!(count(&path, kind), 1, "{kind}");
            assert_eq!(count(&path, &format!("/// A.\n{kind}\n")), 1, "{kind}");
            assert_eq!(
                count(&path, &format!("/// A.\n///\n/// ```\n/// ```\n#[derive(Debug)]\n{kind}\n")),
                0
            );
        }
    }

    #[test]
    fn example_belongs_to_one_type() {
        let text = "/// A.\n///\n/// ```\n/// ```\npub struct A;\n\n/// B.\npub struct B;\n";
        assert_eq!(count(&format!("{API}a.rs"), text), 1);
    }

    #[test]
    fn leaves_other_crates_and_private_types_alone() {
        assert_eq!(count("crates/other/src/a.rs", "pub struct A;\n"), 0);
        assert_eq!(count(&format!("{API}a.rs"), "pub(crate) struct A;\nstruct B;\n"), 0);
    }
}
