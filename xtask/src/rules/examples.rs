//! Every type that the crate `memferry` has for its users has an example in its documentation.
//!
//! ```text
//! crates/memferry/src: all `pub` types ─────────────┐
//! its lib.rs: `pub use memferry_x::m::Type` ────────┴─► declaration, documentation above it ─► a code block?
//!   ─► crates/x/src, in the file of `m` where one is
//! ```
//!
//! rustdoc runs the examples. Methods and functions are not checked, nor are types of other crates that `memferry` does not export.

use crate::layout::API;
use crate::tree::SourceFile;
use crate::violation::Violation;

/// How the declarations of types begin, also within a macro call.
const KINDS: [&str; 4] = ["pub struct ", "pub enum ", "pub trait ", "pub type "];

/// A type with its place, and whether its documentation has an example.
struct Declared<'a> {
    path: &'a str,
    line: usize,
    name: &'a str,
    has_example: bool,
    /// It stands in a macro call, as sets of flags do, or in a module within the file.
    is_inner: bool,
}

pub(crate) fn check(files: &[SourceFile]) -> Vec<Violation> {
    let declared: Vec<Declared<'_>> =
        files.iter().filter(|file| file.syntax.is_some()).flat_map(declared).collect();
    let exports: Vec<Export<'_>> = files
        .iter()
        .filter(|file| file.path == format!("{API}lib.rs"))
        .flat_map(|file| exports(&file.text))
        .collect();
    declared
        .iter()
        .filter(|one| !one.has_example)
        .filter(|one| {
            one.path.starts_with(API) && !one.is_inner || exports.iter().any(|export| export.is(one))
        })
        .map(|one| {
            let message = format!("the public type `{}` has no example", one.name);
            let remedy = "add a code block to its documentation that uses it and asserts something";
            Violation::new(one.path, one.line, message, remedy)
        })
        .collect()
}

fn declared(file: &SourceFile) -> Vec<Declared<'_>> {
    let mut found = Vec::new();
    // Whether the documentation since the last line outside of one has a code block.
    let mut has_example = false;
    for (index, whole) in file.text.lines().enumerate() {
        let line = whole.trim_start();
        if line.starts_with("///") {
            has_example |= line.starts_with("/// ```");
        } else if let Some(name) = KINDS.iter().find_map(|kind| line.strip_prefix(kind)) {
            let name = name.split(|end: char| !end.is_alphanumeric()).next().unwrap_or(name);
            let is_inner = whole != line;
            found.push(Declared { path: &file.path, line: index + 1, name, has_example, is_inner });
            has_example = false;
        } else if !is_part_of_an_attribute(whole) {
            has_example = false;
        }
    }
    found
}

/// Whether a line between documentation and declaration may belong to an attribute.
fn is_part_of_an_attribute(line: &str) -> bool {
    line.starts_with(' ') || line.starts_with("#[") || line == ")]"
}

/// A type of another crate that the library exports.
struct Export<'a> {
    /// The folder's name of the crate, as `shm`.
    krate: &'a str,
    name: &'a str,
}

impl Export<'_> {
    /// `memferry_service` exports types of `memferry_path` in its turn.
    fn is(&self, declared: &Declared<'_>) -> bool {
        let is_in = |krate: &str| declared.path.starts_with(&format!("crates/{krate}/src/"));
        declared.name == self.name && (is_in(self.krate) || is_in("path"))
    }
}

fn exports(library: &str) -> Vec<Export<'_>> {
    let mut found = Vec::new();
    for statement in library.split("pub use memferry_").skip(1) {
        let statement = statement.split(';').next().unwrap_or(statement);
        let krate = statement.split("::").next().unwrap_or(statement);
        let mut words = statement.split(|end: char| !end.is_alphanumeric() && end != '_');
        while let Some(word) = words.next() {
            if word == "as" {
                words.next();
            } else if word.starts_with(char::is_uppercase) {
                found.push(Export { krate, name: word });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "/// A.\n///\n/// ```\n/// ```\n";

    fn count(path: &str, text: &str) -> usize {
        check(&[SourceFile::new(path, text)]).len()
    }

    #[test]
    fn refuses_a_public_type_without_an_example() {
        let path = format!("{API}a.rs");
        for kind in ["pub struct A;", "pub enum A {}", "pub trait A {}", "pub type A = u8;"] {
            assert_eq!(count(&path, kind), 1, "{kind}");
            assert_eq!(count(&path, &format!("/// A.\n{kind}\n")), 1, "{kind}");
            assert_eq!(count(&path, &format!("{EXAMPLE}#[derive(Debug)]\n{kind}\n")), 0);
        }
    }

    #[test]
    fn example_belongs_to_one_type() {
        let text = format!("{EXAMPLE}pub struct A;\n\n/// B.\npub struct B;\n");
        assert_eq!(count(&format!("{API}a.rs"), &text), 1);
    }

    #[test]
    fn leaves_other_crates_and_private_types_alone() {
        assert_eq!(count("crates/other/src/a.rs", "pub struct A;\n"), 0);
        let text = "pub(crate) struct A;\nstruct B;\nmod inner {\n    pub trait Sealed {}\n}\n";
        assert_eq!(count(&format!("{API}a.rs"), text), 0);
    }

    #[test]
    fn checks_what_the_library_exports_from_others() {
        let library = format!("{API}lib.rs");
        let exports =
            "pub use memferry_shm::arena::{Small, Statistics as ArenaStatistics};\npub use crate::Own;\n";
        let types = "/// S.\npub struct Small;\n/// T.\npub struct Statistics;\n/// O.\npub struct Other;\n";
        let files = |path: &str| [SourceFile::new(&library, exports), SourceFile::new(path, types)];
        assert_eq!(check(&files("crates/shm/src/a.rs")).len(), 2);
        assert_eq!(check(&files("crates/pool/src/a.rs")).len(), 0);
    }
}
