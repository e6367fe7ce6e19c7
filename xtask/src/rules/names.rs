//! Names of crates and modules say what they contain.
//!
//! Checked are the words of a crate's name, the directories and names of Rust files, and inline modules, but not the names of
//! functions and types.

use std::collections::BTreeSet;

use crate::tree::{Package, SourceFile};
use crate::violation::Violation;

const EMPTY_NAMES: [&str; 7] = ["common", "util", "utils", "core", "base", "manager", "helpers"];
const REMEDY: &str = "name it after its contents";

pub(crate) fn check(files: &[SourceFile], packages: &[Package]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in packages {
        if package.name.split(['-', '_']).any(is_empty_name) {
            let message = format!("the crate name `{}` does not say what it contains", package.name);
            violations.push(Violation::new(&package.manifest, 1, message, REMEDY));
        }
    }
    let mut paths = BTreeSet::new();
    for file in files {
        let Some(syntax) = &file.rust() else { continue };
        paths.extend(badly_named_paths(&file.path));
        for module in syntax.modules.iter().filter(|module| is_empty_name(&module.name)) {
            let message = format!("the module name `{}` does not say what it contains", module.name);
            violations.push(Violation::new(&file.path, module.line, message, REMEDY));
        }
    }
    violations.extend(paths.into_iter().map(|path| {
        Violation::new(path, 1, "the name of this file or directory does not say what it contains", REMEDY)
    }));
    violations
}

/// The leading parts of a path, including the whole, that end in an empty name.
fn badly_named_paths(path: &str) -> impl Iterator<Item = &str> {
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| &path[..end]).filter(|part| {
        let name = part.rsplit('/').next().unwrap_or(part);
        is_empty_name(name.strip_suffix(".rs").unwrap_or(name))
    })
}

fn is_empty_name(name: &str) -> bool {
    EMPTY_NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_files_and_directories_once_each() {
        let files = ["a/src/util.rs", "a/common/x.rs", "a/common/y.rs", "a/tests/helpers/mod.rs"];
        let found = check(&files.map(|path| SourceFile::new(path, "")), &[]);
        let places: Vec<&str> = found.iter().map(|violation| violation.path.as_str()).collect();
        assert_eq!(places, ["a/common", "a/src/util.rs", "a/tests/helpers"]);
    }

    #[test]
    fn refuses_inline_modules_and_crates() {
        let found = check(&[SourceFile::new("a.rs", "//! Docs.\nmod base {}\n")], &[]);
        assert_eq!((found.len(), found[0].line), (1, 2));
        let package =
            Package { name: "memferry-core".to_owned(), manifest: "c/Cargo.toml".to_owned(), edges: vec![] };
        assert_eq!(check(&[], &[package]).len(), 1);
    }

    #[test]
    fn accepts_names_that_contain_such_a_word_and_files_of_other_kinds() {
        let files =
            ["a/src/database.rs", "core/notes.md"].map(|path| SourceFile::new(path, "use core::fmt;"));
        assert_eq!(check(&files, &[]), []);
    }
}
