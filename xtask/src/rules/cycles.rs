//! Sibling modules of a crate do not use each other in a circle.
//!
//! ```text
//! a path `crate::x::Y` or `super::z` in a file ──► the two sibling modules that it connects ──► edge
//! edges between the children of one module ──► a circle ──► violation
//! ```
//!
//! A module and its descendants count as one: a parent may use its children, and they the parent. Test code is not checked.
//! A name that a parent imports is followed to its origin. Types are not resolved further.

use std::collections::{BTreeMap, BTreeSet};

use crate::tree::{Package, SourceFile};
use crate::violation::Violation;

/// Levels of imports that are followed.
const MAX_IMPORTS: usize = 4;

/// A module's path from the crate's root.
type ModulePath = Vec<String>;

pub(crate) fn check(files: &[SourceFile], packages: &[Package]) -> Vec<Violation> {
    let folder = |package: &Package| package.manifest.replace("Cargo.toml", "src/");
    let mut folders: Vec<String> = packages.iter().map(folder).collect();
    folders.sort();
    folders.iter().flat_map(|folder| Modules::read(files, folder).circles()).collect()
}

/// The files of one crate, by module.
struct Modules<'a> {
    by_path: BTreeMap<ModulePath, &'a SourceFile>,
}

/// The edges between the children of one module, with the first place of each.
type Edges<'a> = BTreeMap<(String, String), (&'a str, usize)>;

impl<'a> Modules<'a> {
    fn read(files: &'a [SourceFile], folder: &str) -> Self {
        let module = |file: &'a SourceFile| {
            let inside = file.path.strip_prefix(folder)?.strip_suffix(".rs")?;
            let is_test = file.is_test() || inside.starts_with("bin/");
            let parts = inside.split('/').filter(|part| !matches!(*part, "lib" | "main" | "mod"));
            (!is_test).then(|| (parts.map(str::to_owned).collect(), file))
        };
        Self { by_path: files.iter().filter_map(module).collect() }
    }

    fn circles(&self) -> Vec<Violation> {
        let mut by_parent: BTreeMap<ModulePath, Edges<'a>> = BTreeMap::new();
        for (from, file) in &self.by_path {
            let Some(syntax) = file.rust() else { continue };
            for path in syntax.paths.iter().filter(|path| !path.in_test) {
                let to = self.resolve(from, &path.segments, 0);
                let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
                if shared < from.len() && shared < to.len() {
                    let edges = by_parent.entry(from[..shared].to_vec()).or_default();
                    let edge = (from[shared].clone(), to[shared].clone());
                    edges.entry(edge).or_insert((&file.path, path.line));
                }
            }
        }
        by_parent.values().flat_map(circles_among).collect()
    }

    /// The module that a path leads to.
    fn resolve(&self, from: &[String], segments: &[String], depth: usize) -> ModulePath {
        let mut at = from.to_vec();
        for segment in segments {
            match segment.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()),
                "self" => {}
                name => {
                    let mut child = at.clone();
                    child.push(name.to_owned());
                    if self.by_path.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    // Descendants see a module's imports.
                    let sees = depth < MAX_IMPORTS && from.starts_with(&at);
                    let imported = if sees { self.imported(&at, name) } else { None };
                    return imported.map_or(at.clone(), |path| self.resolve(&at, &path, depth + 1));
                }
            }
        }
        at
    }

    /// The path that a module imports under a name, relative to that module.
    fn imported(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let syntax = self.by_path.get(module)?.rust()?;
        let import = syntax.imports.iter().find(|path| path.last().is_some_and(|last| last == name))?;
        Some(import.clone())
    }
}

fn circles_among(edges: &Edges<'_>) -> Vec<Violation> {
    let reachable = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(at) = open.pop() {
            for (_, to) in edges.keys().filter(|(one, _)| *one == at) {
                if seen.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        seen
    };
    let closes = |(from, to): &(String, String)| from < to && reachable(to).contains(from);
    edges
        .iter()
        .filter(|(edge, _)| closes(edge))
        .map(|((from, to), (path, line))| {
            let message = format!("modules `{from}` and `{to}` use each other in a circle");
            Violation::new(path, *line, message, "move the shared items to a module that uses neither")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> usize {
        let files: Vec<SourceFile> =
            files.iter().map(|(name, text)| SourceFile::new(&format!("a/src/{name}"), text)).collect();
        let package = Package { name: "a".to_owned(), manifest: "a/Cargo.toml".to_owned(), edges: vec![] };
        check(&files, &[package]).len()
    }

    #[test]
    fn finds_two_modules_that_use_each_other() {
        let one = ("one.rs", "use crate::two::T;");
        assert_eq!(found(&[("lib.rs", ""), one, ("two.rs", "fn f() { crate::one::g() }")]), 1);
        assert_eq!(found(&[("lib.rs", ""), one, ("two.rs", "struct T;")]), 0);
        assert_eq!(
            found(&[("lib.rs", ""), one, ("two.rs", "#[cfg(test)]\nmod tests { use crate::one::g; }")]),
            0
        );
    }

    #[test]
    fn finds_a_circle_of_three_and_of_folders() {
        let files = [
            ("lib.rs", ""),
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "use crate::c::X;"),
            ("c.rs", ""),
            ("c/inner.rs", "use crate::a::X;"),
        ];
        assert!(found(&files) >= 1);
    }

    #[test]
    fn follows_imports_of_the_parent() {
        let files =
            [("lib.rs", "pub use two::T;"), ("one.rs", "use crate::T;"), ("two.rs", "use crate::one::f;")];
        assert_eq!(found(&files), 1);
    }

    #[test]
    fn a_parent_and_its_children_may_use_each_other() {
        let files = [("lib.rs", ""), ("a.rs", "use crate::a::b::X;"), ("a/b.rs", "use super::Y;")];
        assert_eq!(found(&files), 0);
    }
}
