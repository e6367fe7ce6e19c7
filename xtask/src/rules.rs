//! The rules, one module each. A rule gets its input and returns the violations.
//!
//! ```text
//! Tree::packages ──► arrows
//! Tree::files ─────► unsafety, length, docs, markers, words, entry, examples, glossary, bindings, comments, links, versions
//! both ────────────► names, dependencies, cycles
//! ```
//!
//! A rule reads no file and runs no command, so a test needs only a few lines of text.

mod arrows;
mod bindings;
mod comments;
mod cycles;
mod dependencies;
mod docs;
mod entry;
mod examples;
mod glossary;
mod length;
mod links;
mod markers;
mod names;
mod unsafety;
mod versions;
mod words;

use crate::tree::Tree;
use crate::violation::Violation;

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: [Rule; 16] = [
    |tree| arrows::check(&tree.packages),
    |tree| bindings::check(&tree.files),
    |tree| comments::check(&tree.files),
    |tree| cycles::check(&tree.files, &tree.packages),
    |tree| dependencies::check(&tree.files, &tree.packages),
    |tree| docs::check(&tree.files),
    |tree| entry::check(&tree.files),
    |tree| examples::check(&tree.files),
    |tree| glossary::check(&tree.files),
    |tree| length::check(&tree.files),
    |tree| links::check(&tree.files),
    |tree| markers::check(&tree.files),
    |tree| names::check(&tree.files, &tree.packages),
    |tree| unsafety::check(&tree.files),
    |tree| versions::check(&tree.files),
    |tree| words::check(&tree.files),
];

pub(crate) const COUNT: usize = RULES.len();

/// Runs every rule; the violations are sorted by place.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    violations.sort();
    violations.dedup();
    violations
}
