//! The rules, one module each. A rule takes what it looks at and gives back the breaches it found.
//!
//! ```text
//! Tree::packages ──► arrows
//! Tree::files ─────► unsafety, length, docs, markers, words, entry, glossary, bindings, comments
//! both ────────────► names, dependencies, cycles
//! ```
//!
//! A rule reads no file and starts no command, so that its tests are a few lines of text each.

mod arrows;
mod bindings;
mod comments;
mod cycles;
mod dependencies;
mod docs;
mod entry;
mod glossary;
mod length;
mod markers;
mod names;
mod unsafety;
mod words;

use crate::tree::Tree;
use crate::violation::Violation;

type Rule = fn(&Tree) -> Vec<Violation>;

const RULES: [Rule; 13] = [
    |tree| arrows::check(&tree.packages),
    |tree| bindings::check(&tree.files),
    |tree| comments::check(&tree.files),
    |tree| cycles::check(&tree.files, &tree.packages),
    |tree| dependencies::check(&tree.files, &tree.packages),
    |tree| docs::check(&tree.files),
    |tree| entry::check(&tree.files),
    |tree| glossary::check(&tree.files),
    |tree| length::check(&tree.files),
    |tree| markers::check(&tree.files),
    |tree| names::check(&tree.files, &tree.packages),
    |tree| unsafety::check(&tree.files),
    |tree| words::check(&tree.files),
];

/// How many rules there are.
pub(crate) const COUNT: usize = RULES.len();

/// Runs every rule; the breaches come sorted by place.
pub(crate) fn check(tree: &Tree) -> Vec<Violation> {
    let mut violations: Vec<Violation> = RULES.iter().flat_map(|rule| rule(tree)).collect();
    violations.sort();
    violations.dedup();
    violations
}
